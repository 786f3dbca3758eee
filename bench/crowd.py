"""What stands at the broker of a large deployment, made out of a few turns that front ends and workers really took.

Sessions are copies, key by key, of such a session. What the first broker notes of them is written by the classes that front
ends write it with; only of turns that have ended, which are very many, it is written in bulk, as it stands of the one that was real.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvloop

from bench import streams
from bench.topology import OWNER
from turnstream.shared.api_keys import ApiKeys, Limits, make_token
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import Broker
from turnstream.shared.broker.keys import SessionKeys, TaskRef
from turnstream.shared.session.owner_limits import OwnerLimits, Room
from turnstream.shared.session.queue import LaunchQueue
from turnstream.shared.session.tasks import operation
from turnstream.shared.settings import load

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from bench.topology import Topology

# The owner of a tenth of all that has ended; the others share what is left.
LARGE = "large"

# Turns of the other owners that an owner may have at once, and bytes: more than these have, so that both are counted.
LIMITS = Limits(concurrency=10_000, storage=2**40)

DAY_MS = 86_400_000

AT_ONCE = 500

WAIT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Pattern:
    """A turn that was real, in a session of its own: what its keys' names end with."""

    ref: TaskRef
    endings: tuple[str, ...]

    def others(self, owners: Iterable[str], name: str) -> list[TaskRef]:
        """Turns like it, one for each of ``owners``."""
        return [TaskRef(owner, f"{name}-{number}", self.ref.task) for number, owner in enumerate(owners)]


class Crowd:
    """Makes it."""

    def __init__(self, built: Topology) -> None:
        self._built = built
        self._client = built.client

    def turn(self, agent: str, status: str) -> Pattern:
        """A turn of this agent, as it is when it has come to this."""
        asyncio.run(self._post_and_leave(self._built.key(agent), "1", status))
        source = self._pattern(status)
        name = source.ref.keys.task(source.ref.task)
        until(lambda: self._client.hget(name, "status") == status.encode(), f"a turn to be {status}")
        return source

    def copy(self, pattern: Pattern, refs: list[TaskRef]) -> None:
        """Make sessions for the turns, which are like it."""
        source = pattern.ref.keys.prefix
        pipeline = self._client.pipeline(transaction=False)
        for at in range(0, len(refs), AT_ONCE):
            for ref in refs[at : at + AT_ONCE]:
                for ending in pattern.endings:
                    pipeline.copy(source + ending, ref.keys.prefix + ending)
            pipeline.execute()

    def parked(self, refs: list[TaskRef]) -> None:
        """Note turns that are to be looked at by rescuers, and count them against limits, as front ends do."""
        held = self._held(self._real(refs[0].task))
        room = Room(LIMITS.storage, held, DAY_MS)

        async def note(broker: Broker, ref: TaskRef) -> None:
            await LaunchQueue(broker.primary).note(ref)
            await OwnerLimits(broker.primary, broker.sessions).admit(ref, operation(), LIMITS, room)

        uvloop.run(self._each(refs, note))

    def ended(self, refs: list[TaskRef], seconds: float) -> None:
        """Note turns that ended in the last ``seconds``, after which their events are to be cut: so a rescuer dated the first."""
        client = self._client
        real = self._real(refs[0].task)
        recent, held = client.zscore(keys.RECENT, str(real)), self._held(real)
        assert client.zscore(keys.DUE, str(real)), "a turn that ended has no hint"
        due, step = recent + 1000 * seconds, 1000 * seconds / len(refs)
        pipeline = client.pipeline(transaction=False)
        for at in range(0, len(refs), AT_ONCE):
            some = [(number, str(ref)) for number, ref in enumerate(refs[at : at + AT_ONCE], at)]
            pipeline.zadd(keys.DUE, {ref: due - int(step * number) for number, ref in some})
            pipeline.zadd(keys.RECENT, {ref: recent - int(step * number) for number, ref in some})
            # As launch.lua bounds it.
            pipeline.zremrangebyrank(keys.RECENT, 0, -10_001)
            pipeline.execute()
        by_owner: dict[str, list[str]] = {}
        for ref in refs:
            by_owner.setdefault(ref.owner, []).append(ref.session)
        for owner, sessions in by_owner.items():
            pipeline.hincrby(keys.owner_bytes(owner), "", held * len(sessions))
            for at in range(0, len(sessions), AT_ONCE):
                named = sessions[at : at + AT_ONCE]
                pipeline.hset(keys.owner_bytes(owner), mapping=dict.fromkeys(named, held))
                pipeline.zadd(keys.owner_sessions(owner), dict.fromkeys(named, int(due)))
            pipeline.pexpire(keys.owner_bytes(owner), DAY_MS)
            pipeline.pexpire(keys.owner_sessions(owner), DAY_MS)
        pipeline.execute()

    def due(self, refs: list[TaskRef]) -> None:
        """Have rescuers look at these turns now."""
        for at in range(0, len(refs), AT_ONCE):
            self._client.zadd(keys.DUE, {str(ref): 1 for ref in refs[at : at + AT_ONCE]}, xx=True)

    def launched(self, refs: list[TaskRef]) -> None:
        """Have turns wait for a worker, in the queue."""

        async def launch(broker: Broker, ref: TaskRef) -> None:
            await LaunchQueue(broker.primary).launch(ref, 1)

        uvloop.run(self._each(refs, launch))

    def keys(self, owners: list[str], agent: str) -> None:
        """Make an API key for each."""

        async def make(broker: Broker, owner: str) -> None:
            await ApiKeys(broker.primary).register(make_token(), owner=owner, agent=agent, limits=LIMITS)

        uvloop.run(self._each(owners, make))

    def admin_key(self) -> str:
        """A key of an operator."""
        token = make_token()

        async def make(broker: Broker, owner: str) -> None:
            await ApiKeys(broker.primary).register(
                token, owner=owner, agent="stream", scopes=("chat", "admin")
            )

        uvloop.run(self._each([LARGE], make))
        return token

    def limited_key(self, owner: str, agent: str, most: int) -> str:
        """A key of this owner's, who may have so many turns at once; those that wait for their client do not count."""
        token, limits = make_token(), Limits(concurrency=most, storage=LIMITS.storage)

        async def make(broker: Broker, owner: str) -> None:
            await ApiKeys(broker.primary).register(token, owner=owner, agent=agent, limits=limits)

        uvloop.run(self._each([owner], make))
        return token

    def taken(self, key: str, count: int) -> None:
        """Post so many turns, each in a session of its own.

        Raises:
            asyncio.IncompleteReadError: one was refused.
        """

        async def post() -> None:
            for number in range(count):
                await self._post_and_leave(key, "1", f"taken-{number}")

        asyncio.run(post())

    async def _each(self, of: list[Any], do: Callable[[Broker, Any], Awaitable[None]]) -> None:
        broker = Broker(load(redis_url=self._built.url))
        try:
            for at in range(0, len(of), AT_ONCE):
                await asyncio.gather(*(do(broker, each) for each in of[at : at + AT_ONCE]))
        finally:
            await broker.close()

    async def _post_and_leave(self, key: str, text: str, session: str) -> None:
        """Post a turn, and go when it is taken."""
        reader, writer = await asyncio.open_connection(streams.HOST, self._built.port)
        writer.write(streams.post(key, text, session))
        await reader.readuntil(b'"queued"')
        writer.close()

    def _pattern(self, session: str) -> Pattern:
        """Of the only turn of a session."""
        prefix = SessionKeys(OWNER, session).prefix
        names = [
            name.decode() for name in self._client.scan_iter(prefix.replace("{", r"\{") + "*", count=10_000)
        ]
        endings = tuple(name.removeprefix(prefix) for name in names)
        task = next(each.removeprefix("task:") for each in endings if each.startswith("task:"))
        return Pattern(TaskRef(OWNER, session, task), endings)

    def _real(self, task: str) -> TaskRef:
        """The turn that was real, by its id."""
        names = (name.decode() for name, _ in self._client.zscan_iter(keys.RECENT, f"{OWNER}/*/{task}"))
        return TaskRef.parse(next(names))

    def _held(self, ref: TaskRef) -> int:
        """The bytes that its session was reported to hold."""
        return int(self._client.hget(keys.owner_bytes(OWNER), ref.session))


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for it.

    Raises:
        TimeoutError: it never came to be.
    """
    ends = time.monotonic() + WAIT_SECONDS
    while not true():
        if time.monotonic() > ends:
            raise TimeoutError(f"waited for {what} for {WAIT_SECONDS} s")
        time.sleep(0.1)
