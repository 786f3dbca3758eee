"""A process that appends events to sessions at a given pace, as workers would, without their cost.

It says what the product says: each event goes through the script `append`, one event a batch, with the
very words that `shared/tasks.py` sends. They are put together before the clock starts, and sent in
bursts of what is due, some 0.15 ms apart. Its CPU is not counted anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from typing import TYPE_CHECKING, Any

import hiredis
import orjson

from bench.topology import HOST, OWNER
from shared.batch import Batch
from shared.broker import Broker
from shared.keys import TaskRef
from shared.protocol import ResponseBuilder, canonical
from shared.settings import load
from shared.tasks import Appended, Attempt, Launch, Tasks, Turn, operation

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

TICK_SECONDS = 0.0001

# Sessions that are made at once.
AT_ONCE = 32

# No worker runs, so nobody extends the leases of sessions that stay silent for a while.
LEASE_SECONDS = 300

# Bounds what is sent in one go, so that replies are read in between.
MOST_AT_ONCE = 500

# Events of one batch where the pace does not matter, and a pace that is none.
LARGE_BATCH = 250
AT_ONCE_RATE = 1e9

# What the last batch may take to be acknowledged.
ACKNOWLEDGED_SECONDS = 20


class _Words:
    """Takes the place of a client: what would be sent is kept instead."""

    def __init__(self) -> None:
        self.packed: list[bytes] = []

    async def execute_command(self, *words: Any) -> list[bytes]:
        """Keep a command, and say that all is well."""
        self.packed.append(hiredis.pack_command(words))
        return [b"ok", b"0"]


class _Voice:
    """One running task, and what it says next."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.said = 0
        response = ResponseBuilder(
            session_id=attempt.ref.session,
            response_id=attempt.response,
            created_at=attempt.submitted // 1000,
            status="in_progress",
            numbered=False,
        )
        self._message = response.create_message_builder(role="assistant", message_type="message")
        self._text = self._message.create_content_builder("text")

    def opening(self) -> Batch:
        batch = Batch()
        batch.opening(self._message.message_id, "message", canonical(self._message.created()))
        batch.event("message", canonical(self._message.in_progress()))
        return batch

    def next(self, count: int = 1) -> Batch:
        batch = Batch()
        for _ in range(count):
            batch.event("message", self._text.text_delta_json(f"tok{self.said} "))
            self.said += 1
        return batch


def serve(pipe: Connection, url: str) -> None:
    """Answer ``("sessions", name, count, agent)``, ``("prepare", name, rate, seconds)`` and ``("feed",)``.

    The first makes a set of sessions, each with a running task, and answers their ids and responses' ids. The
    second puts together what `feed` sends: ``rate`` events a second over all of the set's sessions in turn.
    `feed` answers how many were sent and in how many seconds. ``("say", name, count)`` has each session
    of a set say so many events at once, in large batches; it answers when they are in the logs.
    """
    settings = load(redis_url=url, lease_seconds=LEASE_SECONDS, log_max_events=1_000_000, log_max_bytes=2**30)
    voices: dict[str, list[_Voice]] = {}
    due: tuple[list[bytes], float] = ([], 0.0)
    with asyncio.Runner() as runner:
        while True:
            match pipe.recv():
                case ("sessions", name, count, agent):
                    made = runner.run(_sessions(settings, name, count, agent))
                    voices[name] = made
                    answer: Any = [(each.attempt.ref.session, each.attempt.response) for each in made]
                case ("prepare", name, rate, seconds):
                    due = (runner.run(_words(settings, voices[name], [1] * round(rate * seconds))), rate)
                    answer = len(due[0])
                case ("feed",):
                    answer = _feed(url, *due)
                case ("say", name, count):
                    large = [LARGE_BATCH] * (count // LARGE_BATCH) + [count % LARGE_BATCH]
                    for each in voices[name]:
                        _feed(url, runner.run(_words(settings, [each], large)), AT_ONCE_RATE)
                    answer = None
                case unknown:
                    raise ValueError(unknown)
            pipe.send((True, answer))


async def _sessions(settings: Any, name: str, count: int, agent: str) -> list[_Voice]:
    broker = Broker(settings)
    tasks = Tasks(broker.sessions, settings)
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> _Voice:
        async with slots:
            return await _begin(tasks, TaskRef(OWNER, f"{name}{number}", f"t{number}"), agent)

    try:
        return await asyncio.gather(*(one(number) for number in range(count)))
    finally:
        await broker.close()


async def _begin(tasks: Tasks, ref: TaskRef, agent: str) -> _Voice:
    queued = Batch()
    body = {
        "object": "response",
        "status": "queued",
        "id": f"response_{ref.task}",
        "created_at": int(time.time()),
    }
    queued.status(orjson.dumps(body))
    turn = Turn(
        agent=agent,
        user="",
        create=True,
        busy="serial",
        parked="block",
        request=b"{}",
        response=f"response_{ref.task}",
        deadline_ms=0,
        idempotency="",
        digest="",
        trace="",
        batch=queued,
    )
    taken = await tasks.submit(ref, turn, operation())
    assert isinstance(taken, Launch), taken
    attempt = await tasks.begin(ref, taken.number, "feeder", operation())
    assert isinstance(attempt, Attempt), attempt
    voice = _Voice(attempt)
    appended = await tasks.append(ref, attempt.number, voice.opening(), operation())
    assert isinstance(appended, Appended), appended
    return voice


async def _words(settings: Any, voices: list[_Voice], batches: list[int]) -> list[bytes]:
    """What appends batches of these sizes, the voices in turn."""
    words = _Words()
    tasks = Tasks(words, settings)  # type: ignore[arg-type]
    for voice, size in zip(itertools.cycle(voices), batches, strict=False):
        await tasks.append(voice.attempt.ref, voice.attempt.number, voice.next(size), operation())
    return words.packed


def _feed(url: str, packed: list[bytes], rate: float) -> tuple[int, float]:
    replies = hiredis.Reader()
    good, sent = 0, 0
    waiting = memoryview(b"")
    with socket.create_connection((HOST, int(url.rpartition(":")[2].partition("/")[0]))) as broker:
        broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        broker.setblocking(False)
        begun = time.perf_counter()
        while good < len(packed):
            now = time.perf_counter() - begun
            if now > len(packed) / rate + ACKNOWLEDGED_SECONDS:
                raise RuntimeError(f"the broker acknowledged {good} of {len(packed)} batches")
            due = min(len(packed), int(now * rate) + 1, sent + MOST_AT_ONCE)
            if not waiting and sent < due:
                waiting, sent = memoryview(b"".join(packed[sent:due])), due
            with contextlib.suppress(BlockingIOError):
                if waiting:
                    waiting = waiting[broker.send(waiting) :]
            with contextlib.suppress(BlockingIOError):
                replies.feed(broker.recv(1 << 20))
            while (reply := replies.gets()) is not False:
                if not isinstance(reply, list) or reply[0] != b"ok":
                    raise RuntimeError(f"the broker refuses: {reply!r}")
                good += 1
            time.sleep(TICK_SECONDS)
        return good, time.perf_counter() - begun
