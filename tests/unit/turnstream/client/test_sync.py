"""The synchronous client: the same surface without ``async``."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from turnstream import AsyncClient, Client
from turnstream.client import AsyncReply, AsyncSession, Reply, Session, TurnCanceled, TurnFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import client as plain
    from tests.support.stack import Stack

PAIRS: list[tuple[type[Any], type[Any]]] = [
    (AsyncClient, Client),
    (AsyncSession, Session),
    (AsyncReply, Reply),
]


@pytest.mark.parametrize(("awaited", "direct"), PAIRS)
def test_it_has_the_asynchronous_ones_surface(awaited: type[Any], direct: type[Any]) -> None:
    """Each public method and property, with the same parameters, and a time limit where ``asyncio.timeout`` is none."""
    names = {name for name in vars(awaited) if not name.startswith("_")}
    assert names - {"id", "session"} <= set(vars(direct))
    for name in names & set(vars(direct)):
        if inspect.isfunction(vars(awaited)[name]):
            ours, theirs = (
                list(inspect.signature(vars(each)[name]).parameters) for each in (direct, awaited)
            )
            limited = direct is Reply and name in ("text", "finished", "deltas", "messages")
            assert ours == [*theirs, *(["timeout"] if limited else [])], name
    assert list(inspect.signature(Client).parameters) == list(inspect.signature(AsyncClient).parameters)


async def _in_a_thread(client: plain.Client, stack: Stack, program: Callable[[Client], Any]) -> Any:
    def run() -> Any:
        with Client(client.base_url, stack.key) as ours:
            return program(ours)

    return await asyncio.to_thread(run)


async def test_a_chat_without_async(client: plain.Client, stack: Stack) -> None:
    """Events, pieces, messages, the text, and what the session remembers."""

    def program(ours: Client) -> tuple[Any, ...]:
        session = ours.session()
        reply = session.chat("/tokens 5")
        numbers = [event.sequence_number for event in reply]
        pieces = "".join(session.chat("/tokens 3").deltas())
        kinds = [message.type for message in session.chat("/think").messages()]
        followed = session.follow(reply.id).text()
        return numbers, reply.ended, pieces, kinds, followed, len(session.history()), ours.identity().agent

    numbers, ended, pieces, kinds, followed, remembered, agent = await _in_a_thread(client, stack, program)
    assert numbers == list(range(len(numbers)))
    assert ended
    assert pieces == "tok0 tok1 tok2 "
    assert kinds == ["reasoning", "message"]
    assert followed == "tok0 tok1 tok2 tok3 tok4 "
    assert remembered >= 6
    assert agent == "demo"


async def test_functions_answer_and_may_not_call_the_client(client: plain.Client, stack: Stack) -> None:
    """A plain function answers; a coroutine function that waits for its own client gets an error, not a deadlock."""

    def program(ours: Client) -> tuple[str, str, list[str]]:
        refused: list[str] = []

        @ours.function("double")
        def double(number: int) -> int:
            return 2 * number

        @ours.function("nested")
        async def nested(number: int) -> int:
            try:
                ours.identity()
            except RuntimeError as error:
                refused.append(str(error))
            return number

        first = ours.chat('/call double {"number": 21}').text()
        return first, ours.chat('/call nested {"number": 7}').text(), refused

    first, second, refused = await _in_a_thread(client, stack, program)
    assert "42" in first
    assert "7" in second
    assert refused == ["a coroutine function of this client must not call it: use AsyncClient"]


async def test_a_turn_is_stopped_and_errors_are_raised(client: plain.Client, stack: Stack) -> None:
    """Leaving a loop closes it; stop returns when the turn has ended; failures come as exceptions."""

    def program(ours: Client) -> None:
        reply = ours.chat("/tokens 1000 20")
        assert next(iter(reply.deltas())).startswith("tok0 ")
        reply.stop()
        with pytest.raises(TurnCanceled):
            reply.text()
        with pytest.raises(TurnFailed):
            ours.chat("/fail on purpose").text()
        ours.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            ours.identity()

    def run() -> None:
        program(Client(client.base_url, stack.key))

    await asyncio.to_thread(run)


@pytest.mark.parametrize("asked", ["text", "finished", "deltas", "messages"])
async def test_a_turn_is_waited_for_so_long(client: plain.Client, stack: Stack, asked: str) -> None:
    """Then it is told how the turn can be followed or stopped; the same reply goes on with it. One that ends is not cut."""

    def program(ours: Client) -> tuple[list[int | None], bool]:
        def wait(reply: Reply, seconds: float | None) -> Any:
            told = getattr(reply, asked)(timeout=seconds)
            return told if asked in ("text", "finished") else list(told)

        reply = ours.session("s1").chat("/tokens 1000000 5", id="t1")
        first = next(iter(reply))
        with pytest.raises(TimeoutError) as late:
            wait(reply, 0.05)
        assert str(late.value) == (
            "The turn 't1' has not ended within 0.05 s. It goes on at the server, if it was accepted: ask this reply "
            "again, or follow it with client.session('s1').follow('t1'); reply.stop() ends it."
        )
        second = next(iter(reply), None)
        assert second is not None
        ours.session("s1").follow("t1").stop()
        assert reply.finished(timeout=60).status == "canceled"
        return [first.sequence_number, second.sequence_number], bool(wait(ours.chat("hello"), 60))

    (first, second), whole = await _in_a_thread(client, stack, program)
    assert (first, whole) == (0, True)
    assert second is not None
    assert second > 0


async def test_all_pieces_share_a_time_limit(client: plain.Client, stack: Stack) -> None:
    """It is the whole turn's: pieces that come one after the other do not begin it anew."""

    def program(ours: Client) -> None:
        with ours.chat("/tokens 1000000 20") as reply:
            next(reply.deltas())
            with pytest.raises(TimeoutError):
                list(reply.deltas(timeout=1.0))
            reply.stop()

    await _in_a_thread(client, stack, program)


async def test_a_script_needs_two_variables_and_no_end(client: plain.Client, stack: Stack) -> None:
    """`Client()` reads TURNSTREAM_URL and TURNSTREAM_KEY; a program that never closes it exits all the same."""
    program = 'from turnstream import Client; print(Client().chat("hi").text())'
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False,
        env={"TURNSTREAM_URL": client.base_url, "TURNSTREAM_KEY": stack.key},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("You said: hi\n", "")


LEAVING = """
import gc, logging
from turnstream import Client

# How long a callback takes is the machine's affair.
logging.getLogger("asyncio").setLevel(logging.ERROR)

with Client() as client:
    reply = client.chat("/tokens 1000 20")
    events = iter(reply)
    next(events)
    pieces = reply.deltas()
    next(pieces)
    for event in client.chat("/call weather {}"):
        if event.object == "message" and event.type == "function_call" and event.status == "completed":
            break
    for piece in client.chat("/tokens 5").deltas():
        break
del events, pieces
gc.collect()
"""


async def test_what_was_left_early_is_closed_in_silence(client: plain.Client, stack: Stack) -> None:
    """Loops that were left, and iterators that outlive the client, print no warning."""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-X", "dev", "-c", LEAVING], capture_output=True, text=True, timeout=120, check=False,
        env={"TURNSTREAM_URL": client.base_url, "TURNSTREAM_KEY": stack.key},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which variable would do."""
    monkeypatch.delenv("TURNSTREAM_KEY", raising=False)
    with pytest.raises(ValueError, match="key = '': give an API key, sk-…, or set TURNSTREAM_KEY"):
        Client("http://127.0.0.1:1")


async def test_objects_tell_what_they_are(client: plain.Client, stack: Stack) -> None:
    """In a debugger or a notebook: where, which session, which turn and how it stands; never the key."""

    def program(ours: Client) -> tuple[str, ...]:
        session = ours.session("s1")
        reply = session.chat("hi", id="t1")
        before = repr(reply)
        reply.finished()
        return repr(ours), repr(session), before, repr(reply), repr(session.watch(cursor="1-2"))

    url = client.base_url
    assert await _in_a_thread(client, stack, program) == (
        f"<Client of {url}>",
        f"<Session 's1' at {url}>",
        "<Reply 't1' of session 's1': not ended, as far as was read>",
        "<Reply 't1' of session 's1': completed>",
        "<Following of session 's1', at 1-2>",
    )
    async with AsyncClient(url.replace("://", "://me:hunter2@"), stack.key) as awaited:
        assert repr(awaited) == f"<AsyncClient of {url}>"
