"""What the tests of the scripts stand on: refs, turns, batches, and a desk from which to call the scripts."""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from tests.support.logs import WholeLog
from turnstream.shared.broker.keys import SessionKeys, TaskRef
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.endings import Ender
from turnstream.shared.session.entry import END, Cursor, Entry
from turnstream.shared.session.event_log import Tail, parse_tail
from turnstream.shared.session.outcomes import Appended, Attempt, Finished, Launch, Parked, TurnSubmission
from turnstream.shared.session.queue import LaunchQueue
from turnstream.shared.session.tasks import Tasks, operation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.conftest import Place

T = TypeVar("T")

HOUR_MS = 3_600_000

# What reads all of a key, by its type: the command, and its words after the key.
_READING: dict[str, tuple[Any, ...]] = {
    "hash": ("HGETALL",),
    "list": ("LRANGE", 0, -1),
    "stream": ("XRANGE", "-", "+"),
    "string": ("GET",),
    "zset": ("ZRANGE", 0, -1, "WITHSCORES"),
}


def ref(task: str = "t1", session: str = "s1", owner: str = "o1") -> TaskRef:
    """A task's ref."""
    return TaskRef(owner, session, task)


def keys_of(session: str = "s1", owner: str = "o1") -> SessionKeys:
    """A session's keys."""
    return SessionKeys(owner, session)


def turn(**given: Any) -> TurnSubmission:
    """A turn of a serial session that is made when first used."""
    defaults: dict[str, Any] = {
        "agent": "demo",
        "user": "",
        "create": True,
        "busy": "serial",
        "parked": "",
        "request": b'{"input":[]}',
        "response": "r1",
        "deadline_ms": 0,
        "idempotency": "",
        "digest": "",
        "trace": "",
        "batch": asked(),
    }
    return TurnSubmission(**{**defaults, **given})


def asked() -> Batch:
    """The user's message and ``response`` queued."""
    batch = Batch()
    batch.user_message(b'{"object":"message","status":"completed","id":"u1","role":"user"}', extra=b"{}")
    batch.status(b'{"object":"response","status":"queued","id":"r1"}')
    return batch


def opened(message: str, batch: Batch | None = None) -> Batch:
    """A message that begins."""
    batch = Batch() if batch is None else batch
    batch.opening(message, "message", _message(message, "created"))
    return batch


def delta(message: str, text: str, batch: Batch | None = None) -> Batch:
    """A piece of a message's text."""
    batch = Batch() if batch is None else batch
    event = {"object": "content", "type": "text", "delta": True, "msg_id": message, "index": 0, "text": text}
    batch.event("message", orjson.dumps({**event, "status": "in_progress"}))
    return batch


def closed(message: str, text: str = "", batch: Batch | None = None) -> Batch:
    """A message that is completed."""
    batch = Batch() if batch is None else batch
    batch.closing(message, "message", _message(message, "completed", text))
    return batch


def settled(message: str, group: str, batch: Batch | None = None) -> Batch:
    """A call's result; ``extra`` tells whether it was its group's last one."""
    batch = Batch() if batch is None else batch
    batch.opening(message, "plugin_call_output", _message(message, "created"))
    batch.settling(
        message,
        "plugin_call_output",
        _message(message, "completed"),
        extra=b'{"last":false}',
        group=group,
        last=b'{"last":true}',
    )
    return batch


def asking(*calls: str) -> Batch:
    """Calls that the client must answer."""
    batch = Batch()
    for call in calls:
        batch.call(call, b'{"name":"weather"}')
        closed(f"m_{call}", batch=batch)
    return batch


def answer(call: str) -> Batch:
    """The ``…_output`` message of a client's answer."""
    return closed(f"out_{call}")


def ended(status: str = "completed", batch: Batch | None = None) -> Batch:
    """The terminal event."""
    batch = Batch() if batch is None else batch
    batch.end(orjson.dumps({"object": "response", "status": status, "id": "r1"}))
    return batch


def _message(message: str, status: str, text: str = "") -> bytes:
    body: dict[str, Any] = {"object": "message", "status": status, "id": message, "type": "message"}
    if text:
        body["content"] = [{"type": "text", "text": text, "status": "completed"}]
    return orjson.dumps(body)


class Desk:
    """One process's place at the broker.

    Duties:
        1. call the scripts in the order in which most tests need them;
        2. show what is at the broker, and set the task hash's times, so that no test waits;
        3. check what must hold of every log (`sound`) and of every repeat (`twice`).
    """

    def __init__(self, place: Place, **settings: Any) -> None:
        chosen = place.settings(**settings)
        broker = place.connect(chosen)
        self.settings = chosen
        self.broker = broker
        # Untyped: the library's types speak of its blocking client too.
        self.redis: Any = broker.sessions
        self.primary: Any = broker.primary
        self.tasks = Tasks(broker.sessions, chosen, notes=broker.sessions is broker.primary)
        self.launches = LaunchQueue(broker.primary)
        self.log = WholeLog(broker.sessions)
        self.ender = Ender(self.tasks, self.log, self.launches, broker.primary)

    # ── a task's way ──

    async def submit(self, task: TaskRef, **given: Any) -> Any:
        """Submit a turn."""
        return await self.tasks.submit(task, turn(**given), operation())

    async def running(self, task: TaskRef | None = None, launch: int = 1, **given: Any) -> Attempt:
        """Submit a turn and begin it."""
        task = task or ref()
        outcome = await self.submit(task, **given)
        assert isinstance(outcome, Launch), outcome
        return await self.begin(task, launch)

    async def begin(self, task: TaskRef, launch: int = 1) -> Attempt:
        """Begin a launch."""
        attempt = await self.tasks.begin(task, launch, "w1", operation())
        assert isinstance(attempt, Attempt), attempt
        return attempt

    async def append(self, attempt: Attempt, batch: Batch) -> int:
        """Append for an attempt; the last entry's seq."""
        outcome = await self.tasks.append(attempt.ref, attempt.claim, batch, operation())
        assert isinstance(outcome, Appended), outcome
        return outcome.seq

    async def parked(self, *calls: str, wait_ms: int = HOUR_MS, **given: Any) -> Attempt:
        """Submit, begin, ask the client and park."""
        attempt = await self.running(**given)
        outcome = await self.tasks.park(
            attempt.ref, attempt.claim, asking(*calls), operation(), wait_ms=wait_ms, policy="block"
        )
        assert outcome == Parked()
        return attempt

    async def finish(self, attempt: Attempt, status: str = "completed", memory: bytes = b"{}") -> Finished:
        """Write the end."""
        outcome = await self.tasks.finish(
            attempt.ref, attempt.claim, ended(status), operation(), status=status, why="", memory=memory
        )
        assert isinstance(outcome, Finished), outcome
        return outcome

    # ── what is there ──

    async def now(self) -> int:
        """The broker's clock, Unix milliseconds."""
        seconds, micros = await self.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    async def past(self) -> int:
        """A time that is over for everybody."""
        return await self.now() - 10 * HOUR_MS

    async def put(self, task: TaskRef, **fields: Any) -> None:
        """Set fields of the task's hash."""
        await self.redis.hset(task.keys.task(task.task), mapping=fields)

    async def field(self, task: TaskRef, name: str) -> str | None:
        """A field of the task's hash."""
        value = await self.redis.hget(task.keys.task(task.task), name)
        return None if value is None else str(value.decode())

    async def epoch(self) -> int:
        """The session's epoch."""
        meta = await self.log.meta(keys_of())
        assert meta is not None
        return meta.epoch

    async def entries(self, session: SessionKeys | None = None) -> list[Entry]:
        """The whole log."""
        session = session or keys_of()
        meta = await self.log.meta(session)
        return await self.log.read(session, Cursor(meta.epoch, 0)) if meta else []

    async def all_of(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The replies to commands, in one round trip."""
        pipeline = self.redis.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)
        replies: list[Any] = await pipeline.execute()
        return replies

    async def everything(self) -> dict[bytes, Any]:
        """All that the broker holds."""
        keys = sorted(await self.redis.keys("*"))
        kinds = await self.all_of(*(("TYPE", key) for key in keys))
        reading = [_READING[kind.decode()] for kind in kinds]
        values = await self.all_of(
            *((words[0], key, *words[1:]) for key, words in zip(keys, reading, strict=True))
        )
        return dict(zip(keys, values, strict=True))

    async def state(self) -> dict[bytes, tuple[bytes, int]]:
        """All that the broker holds, to be given to `go_back`."""
        keys = await self.redis.keys("*")
        dumps = await self.all_of(*(("DUMP", key) for key in keys))
        lives = await self.all_of(*(("PTTL", key) for key in keys))
        return {key: (dump, max(0, life)) for key, dump, life in zip(keys, dumps, lives, strict=True)}

    async def go_back(self, state: dict[bytes, tuple[bytes, int]]) -> None:
        """Have the broker hold that again, and nothing else, as after a failover to a replica that lagged."""
        await self.redis.flushall()
        for key, (value, ttl) in state.items():
            await self.redis.restore(key, ttl, value)

    async def lives(self) -> dict[bytes, int]:
        """Session key → its time to live in ms."""
        keys = await self.redis.keys("ts:{*")
        return dict(zip(keys, await self.all_of(*(("PTTL", key) for key in keys)), strict=True))

    @asynccontextmanager
    async def tails(self, session: SessionKeys | None = None) -> AsyncIterator[Callable[[], Awaitable[Tail]]]:
        """The next message of a session's tail, each time it is asked for."""
        pubsub = self.redis.pubsub()
        await pubsub.subscribe((session or keys_of()).tail)

        async def following() -> Any:
            while (message := await pubsub.get_message(timeout=5)) is None:
                pass
            return message["data"]

        await following()

        async def tail() -> Tail:
            return parse_tail(await following())

        try:
            yield tail
        finally:
            await pubsub.aclose()

    # ── what must hold ──

    async def twice(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Do it as if the first reply was lost: the same outcome, and nothing written."""
        first = await ask()
        before = await self.everything()
        assert await ask() == first
        assert await self.everything() == before
        return first

    async def nothing_written(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Do it; it must be refused without a trace."""
        before = await self.everything()
        outcome = await ask()
        assert await self.everything() == before
        return outcome

    async def sound(self, session: SessionKeys | None = None) -> list[Entry]:
        """The whole log, after a check: see `check_sound`."""
        entries = await self.entries(session)
        check_sound(entries)
        return entries


def check_sound(entries: list[Entry]) -> None:
    """Check a log: dense, each task's events numbered from 0, one end each and nothing after it."""
    assert all(after.seq == before.seq + 1 for before, after in pairwise(entries))
    for task in {entry.task for entry in entries}:
        mine = [entry for entry in entries if entry.task == task]
        numbers = [
            number
            for entry in mine
            if (number := orjson.loads(entry.event).get("sequence_number")) is not None
        ]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert entries[0].seq > 1 or numbers[0] == 0
        assert END not in [entry.kind for entry in mine[:-1]]


def numbers(entries: list[Entry]) -> list[int | None]:
    """The entries' sequence_numbers."""
    return [orjson.loads(entry.event).get("sequence_number") for entry in entries]
