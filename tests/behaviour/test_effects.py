"""What becomes of a tool's effect when its worker is lost between the effect and its result."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.support.bank import ADDRESS, Bank
from tests.support.client import calls_of, check_whole, text_of
from tests.support.lost import REF, lose, taken
from tests.support.scripted import script
from tests.support.waiting import wait_until
from turnstream.worker.agents.agent_run import Run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.client import Client, Frame
    from tests.support.stack import Stack

TELLER = "tests.support.bank:teller"
UNKNOWN = "whether it took effect is unknown. It was not run again."


@pytest.fixture
async def bank(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bank]:
    """A bank that the tools know."""
    bank = Bank()
    monkeypatch.setenv(ADDRESS, await bank.open())
    yield bank
    await bank.close()


async def lost(client: Client, stack: Stack, bank: Bank, tool: str = "book") -> list[Frame]:
    """The frames of a turn whose worker is lost after the bank has booked, before it answers."""
    bank.stalls = 1
    async with client.process("s1", script([(tool, {"amount": 5})], "{results}"), id="t1") as stream:
        await wait_until(lambda: bank.bookings, "the booking")
        await lose(stack)
        frames: list[Frame] = await stream.all()
    check_whole(frames)
    return frames


async def marks(stack: Stack) -> dict[str, bytes]:
    """The marks that are kept of the turn's calls."""
    redis: Any = stack.broker.sessions
    state = await redis.hgetall(REF.keys.state(REF.task))
    return {name.decode(): value for name, value in state.items() if name.startswith(b"started:")}


@pytest.mark.parametrize(("honours", "bookings"), [(True, 1), (False, 2)])
async def test_rerun_gives_the_same_key_again(serve: Any, bank: Bank, honours: bool, bookings: int) -> None:
    """A bank that honours keys books once; one that does not shows that the call did run twice."""
    client, stack = await serve(lead={"python": TELLER, "on_lost": {"book": "rerun"}})
    bank.honours = honours
    frames = await lost(client, stack, bank)
    assert text_of(frames) == "booked 5 "
    (first, one), (second, two) = bank.requests
    assert first == second == str(uuid.UUID(first))
    assert (one, two) == (1, 2)
    assert len(bank.bookings) == bookings
    assert len(calls_of(frames, "plugin_call")) == len(calls_of(frames, "plugin_call_output")) == 1


async def test_by_default_the_model_is_told(serve: Any, bank: Bank) -> None:
    """It reads that the outcome is unknown, and so does the client; the tool does not run again."""
    client, stack = await serve(lead={"python": TELLER})
    frames = await lost(client, stack, bank)
    assert UNKNOWN in text_of(frames)
    (output,) = calls_of(frames, "plugin_call_output")
    assert UNKNOWN in output["output"]
    assert len(bank.requests) == 1


@pytest.mark.parametrize("tool", ["book_again", "look"])
async def test_a_function_declares_what_it_does(serve: Any, bank: Bank, tool: str) -> None:
    """The decorator's word holds where the configuration says nothing."""
    client, stack = await serve(lead={"python": TELLER})
    assert text_of(await lost(client, stack, bank, tool)) == "booked 5 "
    assert len(bank.requests) == 2


async def test_the_configuration_overrules_a_declaration(serve: Any, bank: Bank) -> None:
    """An operator may know better than the author."""
    client, stack = await serve(lead={"python": TELLER, "on_lost": {"look": "tell"}})
    assert UNKNOWN in text_of(await lost(client, stack, bank, "look"))
    assert len(bank.requests) == 1


@pytest.mark.parametrize(
    ("decision", "said", "requests"),
    [
        ({"approve": True}, "booked 5 ", 2),
        (
            {"approve": False, "reason": "I will look."},
            f"{UNKNOWN} The tool call was denied. I will look. ",
            1,
        ),
    ],
)
async def test_the_client_is_asked(
    serve: Any, bank: Bank, decision: dict[str, Any], said: str, requests: int
) -> None:
    """The turn parks with the request for approval that clients know; a yes runs the call with the same key."""
    client, stack = await serve(lead={"python": TELLER, "on_lost": {"book": "ask"}})
    bank.stalls = 1
    async with client.process("s1", script([("book", {"amount": 5})], "{results}"), id="t1") as stream:
        await wait_until(lambda: bank.bookings, "the booking")
        await lose(stack)
        (asked,) = calls_of(await stream.until(_asked), "mcp_approval_request")
        await wait_until(lambda: _parked(stack), "the turn to park")
        assert (asked["name"], orjson.loads(asked["arguments"])) == ("book", {"amount": 5})
        assert "unknown" in asked["reason"]
        assert len(bank.requests) == 1
        assert (await client.callback("s1", asked["id"], decision)).status_code == 200
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames).endswith(said)
    assert len(bank.requests) == requests
    assert len({key for key, _ in bank.requests}) == len(bank.bookings) == 1


async def test_each_loss_is_asked_about(serve: Any, bank: Bank) -> None:
    """Consent to the call, lost; consent to its repetition, lost; another question."""
    client, stack = await serve(lead={"python": TELLER, "on_lost": {"book_if_allowed": "ask"}})
    bank.stalls = 2
    steps = script([("book_if_allowed", {"amount": 5})], "{results}")
    async with client.process("s1", steps, id="t1") as stream:
        for run in (1, 2, 3):
            await wait_until(lambda: _parked(stack), "the turn to park")
            frames = await stream.until(partial(_asked_about, run))
            await client.callback("s1", _asked(frames)[-1]["id"], True)
            await wait_until(partial(_ran, bank, run), "the call to run")
            if run < 3:
                await lose(stack)
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames) == "booked 5 "
    assert len({each["id"] for each in _asked(frames)}) == 3
    assert len(bank.bookings) == 1


@pytest.mark.parametrize(
    ("function", "said", "requests"),
    [
        ("find", "found the booking ", 1),
        ("find_in_a_thread", "book 5 was found by look ", 1),
        ("find_nothing", f"{UNKNOWN} ", 1),
    ],
)
async def test_a_function_finds_out(serve: Any, bank: Bank, function: str, said: str, requests: int) -> None:
    """It is given call and arguments, and returns the result; one that fails does not know."""
    client, stack = await serve(
        lead={"python": TELLER, "on_lost": {"book": f"tests.support.bank:{function}"}}
    )
    assert text_of(await lost(client, stack, bank)).endswith(said)
    assert len(bank.requests) == requests


@pytest.mark.parametrize(("silent", "said", "requests"), [(False, "booked 5 ", 2), (True, f"{UNKNOWN} ", 1)])
async def test_a_function_may_find_nothing(
    serve: Any, bank: Bank, silent: bool, said: str, requests: int
) -> None:
    """What never took effect runs; of what cannot be found out the model is told."""
    client, stack = await serve(lead={"python": TELLER, "on_lost": {"book": "tests.support.bank:find"}})
    bank.stalls, bank.silent = 1, silent
    async with client.process("s1", script([("book", {"amount": 5})], "{results}"), id="t1") as stream:
        await wait_until(lambda: bank.bookings, "the booking")
        bank.bookings.clear()
        await lose(stack)
        frames = await stream.all()
    assert text_of(frames).endswith(said)
    assert len(bank.requests) == requests


async def test_a_call_that_never_began_runs(serve: Any, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is lost after the model's answer, before the mark: nothing is unknown."""
    client, stack = await serve(lead={"python": TELLER})
    begun, mark = asyncio.Event(), Run.start

    async def hang_first(run: Run, call: str) -> None:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        await mark(run, call)

    monkeypatch.setattr(Run, "start", hang_first)
    async with client.process("s1", script([("book", {"amount": 5})], "{results}"), id="t1") as stream:
        await begun.wait()
        await lose(stack)
        frames = await stream.all()
    assert text_of(frames) == "booked 5 "
    assert [attempt for _, attempt in bank.requests] == [2]


async def test_a_worker_that_lost_its_turn_begins_no_call(
    serve: Any, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know yet that another one has the turn; the mark is refused, and the tool does not run."""
    client, stack = await serve(lead={"python": TELLER})
    mark = Run.start
    lost: list[str] = []

    async def behind(run: Run, call: str) -> None:
        try:
            if run.turn.attempt.number == 1:
                await taken(stack)
                await wait_until(lambda: bank.bookings, "the other worker's booking")
            await mark(run, call)
        except BaseException as error:
            lost.append(type(error).__name__)
            raise

    monkeypatch.setattr(Run, "start", behind)
    async with client.process("s1", script([("book", {"amount": 5})], "{results}"), id="t1") as stream:
        await stream.until(lambda frames: calls_of(frames, "plugin_call"))
        stack.workers[0][0]._arq.pause()
        await stack.worker()
        frames = await stream.all()
    assert text_of(frames) == "booked 5 "
    assert [attempt for _, attempt in bank.requests] == [2]
    # On a slow machine a renewal may be refused first.
    await wait_until(lambda: lost in (["LostAttempt"], ["CancelledError"]), "the first worker to be refused")


async def test_only_what_has_an_effect_is_marked(serve: Any, bank: Bank) -> None:
    """While they run, one of two calls has its mark in the log's store; afterwards none has."""
    client, stack = await serve(lead={"python": TELLER})
    bank.stalls = 2
    steps = script([("book", {"amount": 5}), ("look", {"amount": 5})], "done")
    async with client.process("s1", steps, id="t1") as stream:
        await wait_until(lambda: len(bank.bookings) == 2, "both calls to run")
        frames = await stream.until(lambda all_: len(calls_of(all_, "plugin_call")) == 2)
        (call,) = [each["call_id"] for each in calls_of(frames, "plugin_call") if each["name"] == "book"]
        assert await marks(stack) == {f"started:{call}": b"1"}
        await client.stop("s1", "t1")


async def test_a_drained_worker_leaves_the_outcome_unknown(serve: Any, bank: Bank) -> None:
    """Its turn is given back in the middle of the call, and the same rule holds."""
    client, stack = await serve(lead={"python": TELLER})
    bank.stalls = 1
    async with client.process("s1", script([("book", {"amount": 5})], "{results}"), id="t1") as stream:
        await wait_until(lambda: bank.bookings, "the booking")
        worker, running = stack.workers.pop(0)
        await stack.worker()
        worker.stop(0)
        await running
        frames = await stream.all()
    check_whole(frames)
    assert UNKNOWN in text_of(frames)
    assert len(bank.requests) == 1


async def test_a_tool_that_sends_the_model_back_did_nothing(serve: Any, bank: Bank) -> None:
    """`ModelRetry` takes the mark back: lost after that, the call runs again and says the same."""
    client, stack = await serve(lead={"python": TELLER})
    steps = script([("pick", {"amount": 1})], {"hang_at_attempt": 1, "say": "{results}"})
    async with client.process("s1", steps, id="t1") as stream:
        await stream.until(lambda frames: calls_of(frames, "plugin_call_output"))
        assert await marks(stack) == {}
        await lose(stack)
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames) == "one is too little "


async def test_each_step_of_a_call_has_a_key(serve: Any, bank: Bank) -> None:
    """Two bookings in one call, two keys, the same when the call runs again."""
    client, stack = await serve(lead={"python": TELLER, "on_lost": {"book_twice": "rerun"}})
    frames = await lost(client, stack, bank, "book_twice")
    assert text_of(frames) == "booked 5 "
    keys = [key for key, _ in bank.requests]
    assert len(bank.bookings) == len(set(keys)) == 2
    assert keys == [keys[0], keys[0], keys[2]]


async def test_a_coded_agent_names_what_it_does(serve: Any, bank: Bank) -> None:
    """Called anew from its first line, it books with the same key."""
    client, stack = await serve(lead={"python": "tests.support.bank:clerk"})
    bank.stalls = 1
    async with client.process("s1", "5", id="t1") as stream:
        await wait_until(lambda: bank.bookings, "the booking")
        await lose(stack)
        frames = await stream.all()
    assert text_of(frames) == "booked 5"
    assert len(bank.requests) == 2
    assert len(bank.bookings) == 1


def _asked(frames: Any) -> Any:
    return calls_of(frames, "mcp_approval_request")


def _asked_about(times: int, frames: Any) -> bool:
    return len(_asked(frames)) == times


def _ran(bank: Bank, times: int) -> bool:
    return len(bank.requests) == times


async def _parked(stack: Stack) -> bool:
    return await stack.status("s1", "t1") == "parked"
