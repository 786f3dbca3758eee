"""Large data of a session: it stands once, and every reader gets it back as it was."""

from __future__ import annotations

import base64
import os
import re
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.shared.session.support import (
    HOUR_MS,
    Desk,
    answer,
    asking,
    closed,
    ended,
    keys_of,
    opened,
    ref,
    turn,
)
from turnstream.shared.broker import client, scripts
from turnstream.shared.session import files
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.event_log import PAGE_BYTES
from turnstream.shared.session.files import FETCHED_AT_ONCE, LARGE_BYTES, PIECE_BYTES, cut, fill
from turnstream.shared.session.outcomes import Busy, Foreign, Launch, Missing, Parked, Same
from turnstream.shared.session.tasks import STAGED_MS, operation, stage

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.conftest import Place
    from turnstream.shared.broker.keys import TaskRef
    from turnstream.shared.session.outcomes import TurnSubmission

RAW = b"\xfb\xef\xff" + os.urandom(99_999)
DATA = base64.b64encode(RAW).decode()


def message(data: str = DATA) -> bytes:
    """A user's message with an image."""
    part = {"type": "image", "image_url": f"data:image/png;base64,{data}"}
    return orjson.dumps({"object": "message", "id": "u1", "role": "user", "content": [part]})


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("name", ["data", "file_data", "image_url"])
def test_both_alphabets_stand_once(encode: object, name: str) -> None:
    """Whatever the client's copy and the library's look like, they are one, and come back as they were."""
    kept: dict[str, bytes] = {}
    data = encode(RAW).decode()  # type: ignore[operator]
    text = orjson.dumps([{name: data}, {"url": f"data:a/b;base64,{DATA}", "text": "\x1a;base64,x"}])
    short = cut(text, kept)
    assert len(short) < 500
    assert list(kept.values()) == [DATA.encode()]
    assert fill(short, kept) == text


REFERENCES = re.compile(rb"\x1a[su][0-9a-f]{64}\x1a")

# What is large data, as one pattern; `cut` finds the same many times faster, and in steps.
WHAT = re.compile(
    rb'(?:;base64,|"(?:data|file_data|image_url|file_url|video_url)":")([A-Za-z0-9+/_-]{%d,}={0,2})'
    % LARGE_BYTES
)
LENGTHS = st.sampled_from(
    [1, 20, LARGE_BYTES // 2, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 50_000, PIECE_BYTES, 600_000]
)
RUNS = st.builds(
    lambda before, letters, length, after: before + (letters * (length // len(letters) + 1))[:length] + after,
    st.sampled_from([b";base64,", b'"data":"', b'"image_url":"', b'"text":"', b'"', b"\n", b""]),
    st.sampled_from([b"a", b"Ab9+/", b"Ab9-_", b"aB+/-_"]),
    LENGTHS,
    st.sampled_from([b"", b"=", b"==", b"===", b'"', b"\\n", b'","k":"']),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(RUNS, st.binary(max_size=200).map(lambda some: some.replace(b"\x1a", b""))), max_size=6
    )
)
def test_all_large_data_and_nothing_else_is_taken_out(parts: list[bytes]) -> None:
    """Wherever it begins and ends, whatever stands beside it."""
    text, kept = b"".join(parts), dict[str, bytes]()
    short = cut(text, kept)
    assert fill(short, kept) == text
    assert REFERENCES.sub(b"", short) == WHAT.sub(
        lambda found: found[0][: found.start(1) - found.start()], text
    )


async def test_the_next_attempt_has_what_the_first_one_had(place: Place) -> None:
    """Its worker is gone: request and checkpoints come back whole."""
    desk = Desk(place)
    batch = Batch()
    batch.user_message(message())
    request = orjson.dumps({"input": [orjson.Fragment(message())]})
    first = await desk.running(request=batch.cut(request), batch=batch)
    assert first.task["request"] == request
    more = Batch()
    more.keep("messages", message(base64.urlsafe_b64encode(RAW).decode()))
    await desk.append(first, more)
    released = await desk.tasks.release(first.ref, first.claim, operation())
    assert isinstance(released, Launch)
    second = await desk.begin(first.ref, released.number)
    assert second.task["request"] == request
    assert second.state["messages"] == message(base64.urlsafe_b64encode(RAW).decode())
    assert await desk.redis.hlen(keys_of().files) == 2
    assert await desk.redis.pttl(keys_of().files) > 0


async def test_references_do_not_make_a_page_larger(place: Place) -> None:
    """Many turns say the same image: a page is bounded by what it gives, log and history by what they would give."""
    desk = Desk(place, log_max_bytes=2_000_000)
    for number in range(40):
        batch = Batch()
        batch.user_message(message())
        attempt = await desk.running(ref(f"t{number}"), batch=batch)
        await desk.finish(attempt, memory=message())
        found = await desk.log.page(keys_of(), Cursor(await desk.epoch(), 0))
        assert found is not None
        assert sum(len(entry.event) for entry in found.entries) <= max(PAGE_BYTES, len(message()))
    history = await desk.log.history(keys_of())
    told = [entry.event for entry in history if entry.event == message()]
    assert 10 < len(told) <= 2_200_000 / len(message())
    assert await desk.redis.hlen(keys_of().files) == 3


async def _told(desk: Desk, task: str, *, memory: bytes, most: int = 20) -> None:
    """A turn in which the user says the image and ``memory`` is remembered; the session remembers ``most`` turns."""
    batch = Batch()
    batch.user_message(message())
    await desk.finish(await desk.running(ref(task), batch=batch, memory_turns=most), memory=memory)


async def test_the_log_alone_keeps_a_file(place: Place) -> None:
    """Nothing of its turn is remembered; who reads log or history gets it."""
    desk = Desk(place)
    await _told(desk, "t0", memory=b"")
    assert message() in [entry.event for entry in await desk.entries()]
    assert message() in [entry.event for entry in await desk.log.history(keys_of())]


async def test_the_memory_alone_keeps_a_file(place: Place) -> None:
    """Log and history have lost its turn: what the model saw comes back whole, until the memory forgets it."""
    desk = Desk(place, log_max_bytes=65_536)
    await _told(desk, "t0", memory=message())
    for number in range(1, 4):
        attempt = await desk.running(ref(f"t{number}"), memory_turns=20)
        await desk.append(attempt, closed("m", "y" * 90_000, opened("m")))
        await desk.finish(attempt)
    assert message() not in [entry.event for entry in await desk.log.history(keys_of())]
    last = await desk.running(ref("t4"), memory_turns=20)
    assert last.memory[0] == message()
    await desk.finish(last)
    await desk.finish(await desk.running(ref("t5"), memory_turns=1))
    assert not await desk.redis.exists(keys_of().files)


async def test_a_turn_that_waits_keeps_its_own_files_and_no_others(place: Place) -> None:
    """Beside it others say one image after the other: these go with log and history, its own are there when it goes on."""
    desk = Desk(place, log_max_bytes=200_000)
    images = [base64.b64encode(os.urandom(60_000)).decode() for _ in range(24)]
    batch = Batch()
    batch.user_message(message())
    request = orjson.dumps({"input": [orjson.Fragment(message())]})
    waits = await desk.running(ref("waits"), busy="parallel", request=batch.cut(request), batch=batch)
    more = asking("c1")
    more.keep("messages", message(images[0]))
    parked = await desk.tasks.park(waits.ref, waits.claim, more, operation(), wait_ms=HOUR_MS, policy="block")
    assert parked == Parked()
    for number, data in enumerate(images[1:]):
        batch = Batch()
        batch.user_message(message(data))
        await desk.finish(await desk.running(ref(f"t{number}"), busy="parallel", batch=batch), memory=b"")
    # What is not needed any more is cut at four times the limit.
    held = sum(map(len, await desk.redis.hvals(keys_of().files)))
    assert held < 1_000_000 + len(DATA) + len(images[0])
    batch = answer("c1")
    result = message(images[1])
    outcome = await desk.tasks.callback(waits.ref, "c1", result, batch, operation())
    assert isinstance(outcome, Launch)
    await desk.finish(await desk.running(ref("last"), busy="parallel"), memory=b"")
    again = await desk.begin(waits.ref, outcome.number)
    assert (again.task["request"], again.state["messages"]) == (request, message(images[0]))
    assert again.results["c1"] == result


class Commands:
    """What is sent to the broker, and what comes back: the bytes of each command."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sent: list[int] = []
        self.came: list[int] = []
        for module in (files, scripts):
            patch.setattr(module, "command", self._command, raising=False)

    async def _command(self, redis: Redis, *words: Any, **given: Any) -> Any:
        self.sent.append(_bytes(words))
        reply = await client.command(redis, *words, **given)
        self.came.append(_bytes(reply))
        return reply


def _bytes(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value))
    return len(value) if isinstance(value, bytes | str) else 0


async def _large_turn(desk: Desk, text: bytes) -> None:
    """A turn with large data in its request, in a checkpoint of its worker and in what it remembers."""
    batch = Batch()
    batch.user_message(text)
    request = orjson.dumps({"input": [orjson.Fragment(text)]})
    attempt = await desk.running(request=batch.cut(request), batch=batch, memory_turns=20)
    assert attempt.task["request"] == request
    batch = Batch(known=attempt.files)
    batch.keep("messages", text)
    await desk.append(attempt, batch)
    end = ended(batch=Batch(known=attempt.files))
    await desk.tasks.finish(
        attempt.ref, attempt.claim, end, operation(), status="completed", why="", memory=text
    )
    assert text in [entry.event for entry in await desk.entries()]
    assert (await desk.running(ref("t2"))).memory == [text]


async def test_no_command_is_large(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker serves nobody else while it takes or gives one command's bytes: large data goes in pieces."""
    commands = Commands(monkeypatch)
    data = base64.b64encode(os.urandom(3 * 2**20)).decode()
    await _large_turn(Desk(place), message(data))
    # Those sent whole are scripts' texts, when the broker sees them first.
    assert max(commands.sent) < PIECE_BYTES + 2**16
    assert max(commands.came) < FETCHED_AT_ONCE * PIECE_BYTES + 2**16
    # Twice where the broker has to learn the script that takes it.
    assert sum(commands.sent) < 2.5 * len(data), "what the session has was sent again"


async def test_what_the_broker_has_lost_is_sent_again(place: Place) -> None:
    """A writer believes that the session has its files: it has the last word."""
    desk = Desk(place)
    attempt = await desk.running()
    lost = Batch()
    lost.cut(message())
    more = Batch(known=set(lost.files))
    more.keep("messages", message())
    await desk.append(attempt, more)
    released = await desk.tasks.release(attempt.ref, attempt.claim, operation())
    assert isinstance(released, Launch)
    assert (await desk.begin(attempt.ref, released.number)).state["messages"] == message()


@pytest.mark.parametrize("outcome", [Missing, Busy, Same, Foreign])
async def test_data_of_a_turn_that_is_refused_goes(place: Place, outcome: type) -> None:
    """It came ahead of its script: it counts for nobody, and does not stay, however often it is sent."""
    desk = Desk(place)
    if outcome is not Missing:
        await _told(desk, "t0", memory=b"")
        assert isinstance(await desk.submit(ref("t1"), busy="reject"), Launch)
    for _ in range(2):
        large = Batch()
        large.user_message(message(base64.b64encode(os.urandom(2**20)).decode()))
        agent = "another" if outcome is Foreign else "demo"
        made = turn(batch=large, create=False, busy="reject", agent=agent)
        task = ref("t1" if outcome is Same else "t2")

        async def ask(task: TaskRef = task, made: TurnSubmission = made) -> object:
            return await desk.tasks.submit(task, made, operation())

        assert isinstance(await desk.nothing_written(ask), outcome)


async def test_data_goes_without_its_script(place: Place) -> None:
    """Its front end died in between: where the session had no files it expires soon, else the next end drops it."""
    desk = Desk(place)
    await stage(desk.redis, files=keys_of().files, digest="0" * 64, data=b"x" * 300_000, life_ms=STAGED_MS)
    assert 0 < await desk.redis.pttl(keys_of().files) <= STAGED_MS
    await _told(desk, "t1", memory=b"")
    await stage(desk.redis, files=keys_of().files, digest="1" * 64, data=b"x" * 300_000, life_ms=STAGED_MS)
    await _told(desk, "t2", memory=b"")
    held = await desk.redis.hget(keys_of().meta, "files")
    assert int(held or 0) == len(DATA)
    assert await desk.redis.hlen(keys_of().files) == 2
