"""What a session's scripts keep count of is what stands in its keys, whatever was done before.

A walk does anything with files: says them, remembers them, checkpoints them, gives them as answers to calls, twice and
in both alphabets, while log, history and memory are trimmed, turns wait for their client, are ended from outside or by
nobody, the session is cleared, and the broker goes back. After each step everything is counted anew, one by one.

``WALKS`` does that many other walks instead of the suite's fixed ones.
"""

from __future__ import annotations

import base64
import os
import random
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.support.waiting import wait_until
from tests.unit.shared.session.support import HOUR_MS, Desk, asked, closed, ended, keys_of, opened, ref, turn
from turnstream.shared.broker import scripts
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.files import GONE
from turnstream.shared.session.outcomes import (
    Appended,
    Attempt,
    Cleared,
    Finished,
    Launch,
    Parked,
    Passed,
    Redate,
    Repeated,
    Stored,
    Waits,
)
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from tests.conftest import Place
    from turnstream.shared.broker.keys import SessionKeys

STEPS = 40

_REFERENCE = re.compile(rb"\x1a[su]([0-9a-f]{64})\x1a")
_ENTRY_BYTES = 96

_SOURCE = random.Random(12)
FILES = [
    (base64.b64encode if number % 2 else base64.urlsafe_b64encode)(_SOURCE.randbytes(size)).decode()
    for number, size in enumerate((24_576, 30_000, 45_000, 60_000, 60_000))
]


class Truth:
    """What stands in a session's keys, counted one by one."""

    def __init__(self, desk: Desk, keys: SessionKeys | None = None) -> None:
        self._desk = desk
        self._keys = keys or keys_of()
        self._redis = desk.redis
        self.files: dict[str, bytes] = {}

    def refers(self, text: bytes) -> list[str]:
        """The files that a text refers to; each of them is there."""
        found = [digest.decode() for digest in _REFERENCE.findall(text)]
        assert all(digest in self.files for digest in found), "a reference to a file that is gone"
        return found

    def lent(self, text: bytes) -> int:
        """The bytes of these files."""
        return sum(len(self.files[digest]) for digest in self.refers(text))

    async def check(self) -> None:
        """Compare it with what the scripts count."""
        keys = self._keys
        meta = {
            name.decode(): value.decode() for name, value in (await self._redis.hgetall(keys.meta)).items()
        }
        if not meta:
            return
        held = {name.decode(): value for name, value in (await self._redis.hgetall(keys.files)).items()}
        self.files = {name: value for name, value in held.items() if len(name) == 64}
        counted = {
            name: int(meta.get(name, 0))
            for name in ("bytes", "kept", "memory", "files", "memory_lent", "asked")
        }
        for stream in ("log", "history"):
            counted[f"{stream}_lent"] = int(meta.get(f"{stream}_lent", 0)) - int(
                meta.get(f"{stream}_back", 0)
            )
        found = {"files": sum(map(len, self.files.values()))}
        found["bytes"], found["log_lent"] = await self._stream(keys.log, int(meta["dropped"]))
        found["kept"], found["history_lent"] = await self._stream(keys.history, int(meta["forgotten"]))
        memory = await self._redis.lrange(keys.memory, 0, -1)
        found["memory_lent"] = sum(map(self.lent, memory))
        found["memory"] = sum(map(len, memory)) + found["memory_lent"]
        found["asked"] = await self._live()
        assert counted == found
        remembered = Counter(digest for element in memory for digest in self.refers(element))
        known = {name[:64]: int(value) for name, value in held.items() if name.endswith(":memory")}
        assert {name: count for name, count in known.items() if count} == remembered
        assert {name[:64] for name in held} == set(self.files)
        if held:
            lives = [await self._redis.pttl(key) for key in (keys.meta, keys.log, keys.history)]
            assert await self._redis.pttl(keys.files) >= max(lives) - 1000

    async def _stream(self, key: str, before: int) -> tuple[int, int]:
        total = lent = 0
        for _, pairs in await self._redis.xrange(key):
            entry = {name.decode(): value for name, value in pairs.items()}
            # Followers get the time, of 13 digits, where the entry counts from the epoch.
            entry["c"] = b"0" * 13
            line = b"\t".join(entry[name] for name in "tayce") + b"\t" + entry["x"]
            assert int(entry["s"]) == before + total
            mine = self.lent(line)
            total += len(line) + _ENTRY_BYTES + mine
            lent += mine
        return total, lent

    async def _live(self) -> int:
        total = 0
        for task in await self._desk.log.live(self._keys):
            fields = await self._redis.hgetall(self._keys.task(task))
            total += len(fields.get(b"request", b""))
            for key in (self._keys.calls(task), self._keys.state(task)):
                for value in (await self._redis.hgetall(key)).values():
                    self.refers(value)
            self.refers(fields.get(b"request", b""))
        return total


class Walk:
    """One session, to which anything happens."""

    server = "server0"

    def __init__(self, place: Place, seed: int) -> None:
        self.random = random.Random(seed)
        self.desk = Desk(
            place, log_max_bytes=self.random.choice([65_536, 300_000]), memory_max_bytes=200_000, max_waiting=3,
            max_live=6,
        )  # fmt: skip
        self.truth = Truth(self.desk)
        self.names = 0
        self.running: dict[str, Attempt] = {}
        self.queued: dict[str, int] = {}
        self.parked: dict[str, list[str]] = {}
        self.ended: list[str] = []
        self.memory: list[bytes] = []
        self.kept: Any = None

    def text(self, most: int = 3) -> bytes:
        """A JSON text with some files, some of them twice."""
        some = self.random.choices(FILES, k=self.random.choice([0, 0, *range(1, most + 1)]))
        return orjson.dumps([{"data": data} for data in some] + ["x" * self.random.choice([1, 5_000])])

    def name(self, prefix: str) -> str:
        """A new name."""
        self.names += 1
        return f"{prefix}{self.names}"

    async def ask(self, call: Any) -> Any:
        """Call a script, sometimes as if its first reply was lost."""
        if self.random.random() < 0.2:
            await call()
        return await call()

    def one(self, of: dict[str, Any]) -> str:
        """One of these."""
        return self.random.choice(sorted(of))

    async def step(self) -> None:
        """Anything that may happen now."""
        moves = [self.submit, self.submit]
        moves += [self.begin] * 3 if self.queued else []
        moves += (
            [self.append, self.append, self.append, self.finish, self.finish, self.park, self.release]
            if self.running
            else []
        )
        moves += [self.answer, self.answer] if self.parked else []
        moves += [self.stop] if self.running or self.parked or self.queued else [self.clear, self.expire]
        moves += [self.cut] if self.ended else []
        moves += [self.remember, self.go_back] if self.names > 5 and self.random.random() < 0.3 else []
        move = self.random.choice(moves)
        await move()
        await self.truth.check()
        await self.read()

    async def submit(self) -> None:
        """A turn is sent."""
        task, op, batch = self.name("t"), operation(), asked()
        batch.user_message(b'{"x":' + self.text() + b"}")
        request = batch.cut(b'{"input":' + self.text() + b"}")
        made = turn(
            busy=self.random.choice(["serial", "parallel"]),
            request=request,
            batch=batch,
            memory_turns=self.random.choice([1, 3, 3, 20]),
        )
        outcome = await self.ask(lambda: self.desk.tasks.submit(ref(task), made, op))
        if isinstance(outcome, Launch | Waits):
            self.queued[task] = outcome.number if isinstance(outcome, Launch) else 0

    async def begin(self) -> None:
        """A worker begins a launch."""
        task, op = self.one(self.queued), operation()
        outcome = await self.ask(lambda: self.desk.tasks.begin(ref(task), self.queued[task], "w1", op))
        if isinstance(outcome, Attempt):
            del self.queued[task]
            self.running[task] = outcome
            assert GONE.encode() not in outcome.task["request"]
            assert outcome.memory == self.memory[len(self.memory) - len(outcome.memory) :]
            assert all(
                GONE.encode() not in each for each in (*outcome.state.values(), *outcome.results.values())
            )

    async def append(self) -> None:
        """A holder says something, checkpoints something."""
        task, op, batch = self.one(self.running), operation(), Batch()
        attempt = self.running[task]
        for _ in range(self.random.choice([0, 1, 3])):
            message = self.name("m")
            closed(message, "x" * self.random.choice([1, 9_000]), opened(message, batch))
            batch.event("message", b'{"x":' + self.text() + b"}")
        if self.random.random() < 0.5:
            batch.keep(self.random.choice(["messages", "result"]), self.text())
        if self.random.random() < 0.2:
            batch.drop("messages")
        outcome = await self.ask(lambda: self.desk.tasks.append(ref(task), attempt.claim, batch, op))
        self.heard(task, outcome)

    def heard(self, task: str, outcome: Any) -> None:
        """What became of a write."""
        if not isinstance(outcome, Appended):
            # Behind, or its task went with what the broker lost.
            del self.running[task]
            if launch := getattr(outcome, "launch", 0):
                self.queued[task] = launch

    async def park(self) -> None:
        """A holder waits for its client."""
        task, op, batch = self.one(self.running), operation(), Batch()
        attempt = self.running[task]
        calls = [self.name("c") for _ in range(self.random.choice([1, 2]))]
        for call in calls:
            batch.call(call, b'{"name":"f"}')
            batch.closing(self.name("m"), "message", b'{"x":' + self.text() + b"}")
        batch.keep("messages", self.text())
        outcome = await self.ask(
            lambda: self.desk.tasks.park(ref(task), attempt.claim, batch, op, wait_ms=HOUR_MS * 30, policy="")
        )
        if isinstance(outcome, Parked):
            del self.running[task]
            self.parked[task] = calls
        elif isinstance(outcome, Launch):
            del self.running[task]
            self.queued[task] = outcome.number
        else:
            self.heard(task, outcome)

    async def answer(self) -> None:
        """The client answers a call."""
        task = self.one(self.parked)
        call, batch = self.parked[task].pop(), Batch()
        batch.closing(self.name("m"), "message", b'{"x":' + self.text() + b"}")
        result = self.text()
        outcome = await self.desk.tasks.callback(ref(task), call, result, batch, operation())
        if self.random.random() < 0.3:
            again = await self.desk.tasks.callback(ref(task), call, result, batch, operation())
            assert isinstance(again, Repeated) or not isinstance(outcome, Stored | Launch)
        if isinstance(outcome, Launch):
            self.queued[task] = outcome.number
        if not self.parked[task]:
            del self.parked[task]

    async def release(self) -> None:
        """A worker gives a turn back."""
        task, op = self.one(self.running), operation()
        outcome = await self.ask(lambda: self.desk.tasks.release(ref(task), self.running[task].claim, op))
        if isinstance(outcome, Launch):
            del self.running[task]
            self.queued[task] = outcome.number
        else:
            self.heard(task, outcome)

    async def finish(self) -> None:
        """A holder writes the end."""
        await self.end(self.one(self.running))

    async def end(self, task: str) -> None:
        """Write the end of a task whose attempt is held."""
        op, batch = operation(), Batch()
        attempt = self.running[task]
        batch.closing(self.name("m"), "message", b'{"x":' + self.text() + b"}")
        ended("completed", batch)
        memory = self.random.choice([b"", self.text(), self.text()])
        outcome = await self.ask(
            lambda: self.desk.tasks.finish(
                ref(task), attempt.claim, batch, op, status="completed", why="", memory=memory
            )
        )
        if isinstance(outcome, Finished):
            del self.running[task]
            self.ended.append(task)
            if memory:
                self.memory.append(memory)
            if outcome.next:
                self.queued[outcome.next] = outcome.launch
        else:
            self.heard(task, outcome)

    async def stop(self) -> None:
        """Somebody ends a turn from outside."""
        task, op = self.one({**self.running, **self.parked, **self.queued}), operation()
        outcome = await self.ask(lambda: self.desk.tasks.take(ref(task), "api", "canceled stop", op))
        for known in (self.parked, self.queued):
            known.pop(task, None)
        if isinstance(outcome, Attempt):
            self.running[task] = outcome
            assert GONE.encode() not in outcome.task["request"]
            await self.end(task)
        else:
            self.running.pop(task, None)

    async def cut(self) -> None:
        """A rescuer cuts the pieces of what has ended."""
        task = self.ended.pop()
        if await self.desk.field(ref(task), "status"):
            await self.desk.put(ref(task), ended=await self.desk.past())
            outcome = await self.desk.tasks.sweep(ref(task), operation())
            if isinstance(outcome, Passed):
                self.queued[outcome.task] = outcome.launch
            elif isinstance(outcome, Redate):
                self.ended.append(task)

    async def clear(self) -> None:
        """The session begins anew."""
        meta = await self.desk.log.meta(keys_of())
        if meta is not None:
            outcome = await self.ask(lambda: self.desk.tasks.clear(keys_of(), meta.epoch))
            if isinstance(outcome, Cleared):
                self.memory.clear()
                self.ended.clear()

    async def expire(self) -> None:
        """The session expires, but not all of its keys at once: each was given its time when it was made."""
        left = self.random.sample(["log", "history", "memory", "files"], k=self.random.choice([0, 1, 2]))
        keys = await self.desk.redis.keys(f"{keys_of().prefix}*")
        await self.desk.redis.delete(
            *(key for key in keys if key.decode().rpartition(":")[2] not in left), "-"
        )
        self.memory.clear()
        self.ended.clear()

    async def remember(self) -> None:
        """A replica has all of it."""
        state = await self.desk.state()
        told = (
            dict(self.queued),
            {task: list(calls) for task, calls in self.parked.items()},
            list(self.ended),
        )
        self.kept = state, told, list(self.memory), dict(self.running)

    async def go_back(self) -> None:
        """The broker is that replica now."""
        if self.kept is None:
            return
        await self.desk.go_back(self.kept[0])
        queued, parked, over = self.kept[1]
        self.memory = list(self.kept[2])
        self.queued, self.parked = dict(queued), {task: list(calls) for task, calls in parked.items()}
        self.ended = list(over)
        self.running = {
            **self.kept[3],
            **{task: held for task, held in self.running.items() if task in self.kept[3]},
        }
        Walk.server = self.name("server")
        meta = await self.desk.log.meta(keys_of())
        newest = max([meta.epoch if meta else 0, *(each.claim.epoch for each in self.running.values())])

        async def later() -> bool:
            return await self.desk.now() > newest

        await wait_until(later, "the broker's clock to go on")

    async def read(self) -> None:
        """Who reads gets every file."""
        meta = await self.desk.log.meta(keys_of())
        if meta is None:
            return
        page = await self.desk.log.page(keys_of(), Cursor(meta.epoch, meta.head - 1))
        assert page is not None
        assert all(GONE.encode() not in entry.event for entry in page.entries)


WALKS = range(int(os.environ["WALKS"]), int(os.environ["WALKS"]) + 200) if "WALKS" in os.environ else range(3)


@pytest.mark.parametrize("seed", WALKS)
async def test_the_sums_are_what_stands_there(
    place: Place, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """After each step of a walk."""

    async def told(_: object, **__: object) -> str:
        return Walk.server

    monkeypatch.setattr(scripts, "incarnation", told)
    Walk.server = "server0"
    walk = Walk(place, seed)
    for _ in range(STEPS):
        await walk.step()
