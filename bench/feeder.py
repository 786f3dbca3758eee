"""A process that appends events to sessions at a given pace, as workers would, without their cost.

It says what the product says: each event goes through the script `append`, one event a batch, with the
very words that `shared/session/tasks.py` sends. Or, where the broker would be what is measured, what that script
published is recorded, everything is put back as it was, and it is published again at the wanted pace: who
follows cannot tell the difference. Either is put together before the clock starts, and sent in bursts of
what is due, some 0.15 ms apart. The feeder's CPU is not counted anywhere.
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
from redis import Redis

from bench.topology import HOST, OWNER
from turnstream.shared.broker.client import Broker
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.protocol import ResponseBuilder, canonical
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.outcomes import Appended, Attempt, Launch, TurnSubmission
from turnstream.shared.session.tasks import Tasks, operation
from turnstream.shared.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

TICK_SECONDS = 0.0001

# Sessions that are made at once.
AT_ONCE = 32

# No worker runs, so nobody extends the leases of sessions that stay silent for a while.
LEASE_SECONDS = 300

# Bounds what is sent in one go, so that replies are read in between.
MOST_AT_ONCE = 500

# Well within what a broker holds for a subscriber that does not read.
RECORD_AT_ONCE = 5000

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
        self.packed.append(_pack(*words))
        return [b"ok", b"0", b"0"]


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
            batch.event("message", b"%b%b}" % self._text.text_delta_json(f"tok{self.said} "))
            self.said += 1
        return batch


def serve(pipe: Connection, url: str, sessions: str | None = None) -> None:
    """Answer ``("sessions", name, count, agent)``, ``("prepare", name, rate, seconds)`` and ``("feed",)``.

    The first makes a set of sessions, each with a running task, and answers their ids and responses' ids. The
    second puts together what `feed` sends: ``rate`` events a second over all of the set's sessions in turn.
    `feed` answers how many were sent and in how many seconds. ``("record", name, count)`` records so many, to
    be fed as ``("recorded", name, rate, seconds)``; nobody may follow the sessions yet. ``("say", name, count)`` has each session
    of a set say so many events at once, in large batches; it answers when they are in the logs. ``("append", name, seconds)``
    has each session of a set append one event after the other for so long, by the product's own client, and answers how many
    were appended in how many seconds. ``sessions``: the URL of their broker, if it is another one.
    """
    settings = load(
        redis_url=url,
        session_redis_url=sessions,
        lease_seconds=LEASE_SECONDS,
        log_max_events=1_000_000,
        log_max_bytes=2**30,
    )
    voices: dict[str, list[_Voice]] = {}
    recorded: dict[str, Iterator[bytes]] = {}
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
                case ("record", name, count):
                    channels = [each.attempt.ref.keys.tail for each in voices[name]]
                    recorded[name] = iter(
                        _record(url, runner.run(_words(settings, voices[name], [1] * count)), channels)
                    )
                    answer = None
                case ("recorded", name, rate, seconds):
                    due = (list(itertools.islice(recorded[name], round(rate * seconds))), rate)
                    answer = len(due[0])
                case ("feed",):
                    answer = _feed(url, *due)
                case ("append", name, seconds):
                    answer = runner.run(_appended(settings, voices[name], seconds))
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
    turn = TurnSubmission(
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
    appended = await tasks.append(ref, attempt.claim, voice.opening(), operation())
    assert isinstance(appended, Appended), appended
    return voice


async def _appended(settings: Any, voices: list[_Voice], seconds: float) -> tuple[int, float]:
    """How many events were appended, one after the other by each voice, and in how many seconds."""
    broker = Broker(settings)
    tasks = Tasks(broker.sessions, settings)
    done = 0

    async def speak(voice: _Voice, until: float) -> None:
        nonlocal done
        while time.perf_counter() < until:
            taken = await tasks.append(voice.attempt.ref, voice.attempt.claim, voice.next(), operation())
            assert isinstance(taken, Appended), taken
            done += 1

    try:
        begun = time.perf_counter()
        await asyncio.gather(*(speak(each, begun + seconds) for each in voices))
        return done, time.perf_counter() - begun
    finally:
        await broker.close()


async def _words(settings: Any, voices: list[_Voice], batches: list[int]) -> list[bytes]:
    """What appends batches of these sizes, the voices in turn."""
    words = _Words()
    tasks = Tasks(words, settings)  # type: ignore[arg-type]
    for voice, size in zip(itertools.cycle(voices), batches, strict=False):
        await tasks.append(voice.attempt.ref, voice.attempt.claim, voice.next(size), operation())
    return words.packed


def _record(url: str, packed: list[bytes], channels: list[str]) -> list[bytes]:
    """Append, and put all back as it was: what was published meanwhile, as commands that publish it again."""
    heard: list[bytes] = []
    replies = hiredis.Reader()
    with Redis.from_url(url) as client, _connect(url) as listening:
        before = {key: (max(0, client.pttl(key)), client.dump(key)) for key in client.scan_iter()}
        listening.sendall(_pack("SUBSCRIBE", *channels))
        for at in range(0, len(packed), RECORD_AT_ONCE):
            some = packed[at : at + RECORD_AT_ONCE]
            _feed(url, some, AT_ONCE_RATE)
            while len(heard) < at + len(some):
                replies.feed(listening.recv(1 << 20))
                while (reply := replies.gets()) is not False:
                    if reply[0] == b"message":
                        heard.append(_pack("PUBLISH", reply[1], reply[2]))
        client.flushall()
        for key, (life, value) in before.items():
            # A retry of a restore that was executed finds its key.
            client.restore(key, life, value, replace=True)
    return heard


def _pack(*words: Any) -> bytes:
    packed: bytes = hiredis.pack_command(words)
    return packed


def _connect(url: str) -> socket.socket:
    connection = socket.create_connection((HOST, int(url.rpartition(":")[2].partition("/")[0])), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _feed(url: str, packed: list[bytes], rate: float) -> tuple[int, float]:
    replies = hiredis.Reader()
    good, sent = 0, 0
    waiting = memoryview(b"")
    with _connect(url) as broker:
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
                # Of the script, or of PUBLISH: it was heard by one.
                if reply != 1 and (not isinstance(reply, list) or reply[0] != b"ok"):
                    raise RuntimeError(f"the broker refuses: {reply!r}")
                good += 1
            time.sleep(TICK_SECONDS)
        return good, time.perf_counter() - begun
