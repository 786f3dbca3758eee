"""The hub against a log to which anything happens: what followers are given is one log, whole, or they are told.

The log is written here as the scripts write it, so that it can also lose its end, silently or not, which no script does.
Each entry knows the one before it: so a follower that is given two entries of different pasts is found out.
Time is a move like others (`tests/support/instant.py`), so that a sequence of moves is the same each time.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from fakeredis import FakeServer
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.support.instant import InstantLoop
from tests.support.waiting import wait_until
from turnstream.api.streaming import hub as hub_module
from turnstream.api.streaming.feed import Feed, Gap, Over
from turnstream.api.streaming.followed import Followed
from turnstream.api.streaming.hub import Hub
from turnstream.api.streaming.rounds import Rounds
from turnstream.shared.broker.client import Broker
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.session.entry import Cursor, Entry
from turnstream.shared.session.event_log import Log, Tail
from turnstream.shared.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnstream.api.streaming.ring import RenderedEntry
    from turnstream.shared.session.event_log import Page

KEYS = SessionKeys("o", "s")

# A follower that has been told nothing new for so long, on a broker that is well, waits for what cannot come.
SETTLED_SECONDS = 10.0

# For so long no read may happen where there is nothing to read.
QUIET_SECONDS = 30.0


class CountingLog(Log):
    """Counts the reads of pages."""

    reads = 0

    async def page(self, *arguments: Any, **options: Any) -> Page | None:
        """Read one."""
        self.reads += 1
        return await super().page(*arguments, **options)


@dataclass
class World:
    """The log as it is, and all that was ever written: entry → the one before it."""

    redis: Any
    epoch: int = 0
    present: list[int] = field(default_factory=list)
    before: dict[int, int] = field(default_factory=dict)
    head: int = 1
    former: dict[int, int] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    epochs: Any = field(default_factory=lambda: itertools.count(2))
    saved: tuple[int, list[int], dict[int, int], int] | None = None

    async def meta(self) -> None:
        """Write down how far the log goes."""
        former = " ".join(f"{epoch}-{last}" for epoch, last in self.former.items())
        await self.redis.hset(
            KEYS.meta,
            mapping={"epoch": self.epoch, "seq": len(self.present), "head": self.head, "former": former},
        )

    async def say(self, count: int, *, told: bool = True, heard: bool = True) -> None:
        """Append entries; ``told``: small enough to be published; ``heard``: published at all."""
        first = len(self.present) + 1
        lines = []
        for _ in range(count):
            number = next(self.numbers)
            self.before[number] = self.present[-1] if self.present else 0
            self.present.append(number)
            await self._add(len(self.present), number)
            lines.append(b"t\t\tmessage\t%d\t%d\t" % (number, number))
        await self.meta()
        last = self.present[-1]
        message = b"%d-%d-%d-%d" % (self.epoch, first, len(self.present), last)
        if heard:
            await self.redis.publish(KEYS.tail, b"\n".join([message, *lines]) if told else message)

    async def _add(self, seq: int, number: int) -> None:
        # As the log spells it: milliseconds since the epoch, which is in microseconds.
        created = number - self.epoch // 1000
        fields = {"t": "t", "a": "", "y": "message", "c": created, "e": number, "x": ""}
        await self.redis.xadd(KEYS.log, fields, id=f"{self.epoch}-{seq}")

    async def lose(self, count: int) -> None:
        """Be as a broker is that came back without the log's end."""
        self.present = self.present[: max(0, len(self.present) - count)]
        await self._rewrite()

    async def begin_epoch(self) -> None:
        """What the scripts do when they notice."""
        self.former = {self.epoch: len(self.present), **self.former}
        self.epoch = next(self.epochs)
        await self._rewrite()
        last = len(self.present)
        await self.redis.publish(KEYS.tail, b"%d-%d-%d" % (self.epoch, last + 1, last))

    async def clear(self) -> None:
        """Begin afresh."""
        self.saved = self.epoch, self.present, self.former, self.head
        self.epoch, self.present, self.former, self.head = next(self.epochs), [], {}, 1
        await self._rewrite()
        await self.redis.publish(KEYS.tail, b"%d-1-0" % self.epoch)

    async def uncleared(self) -> None:
        """Be as a broker is that came back with a file from before the last clear."""
        if self.saved is not None:
            self.epoch, self.present, self.former, self.head = self.saved
            self.saved = None
            await self._rewrite()

    async def cut(self, seq: int) -> None:
        """Drop the head up to a place."""
        self.head = max(self.head, min(seq, len(self.present)) + 1)
        await self.redis.xtrim(KEYS.log, minid=f"{self.epoch}-{self.head}", approximate=False)
        await self.meta()

    async def _rewrite(self) -> None:
        await self.redis.delete(KEYS.log)
        self.head = min(self.head, len(self.present) + 1)
        for seq, number in enumerate(self.present, 1):
            if seq >= self.head:
                await self._add(seq, number)
        await self.meta()


class Follower:
    """What one follower was given, checked as it comes."""

    def __init__(self, world: World, feed: Feed, after: Cursor, fast: bool) -> None:
        self.world = world
        self.feed = feed
        feed.after = after
        self.last: int | None = None
        self.gone = False
        self.shows = itertools.count()
        self.task: asyncio.Task[None] | None = None
        if fast:
            feed.at_once = self.at_once
            self.task = asyncio.create_task(self.follow())

    def at_once(self, news: list[RenderedEntry]) -> bool:
        """Show it, but not always."""
        if next(self.shows) % 4 == 3:
            return False
        self.show(news)
        return True

    def show(self, news: list[RenderedEntry]) -> None:
        """Check that these follow on what was given before."""
        for shown in news:
            entry = shown.entry
            assert entry.seq == self.feed.after.seq + 1, f"{entry.seq} after {self.feed.after}"
            number = int(entry.event)
            if self.last is not None:
                assert self.world.before[number] == self.last, "entries of different pasts"
            self.last = number
            self.feed.after, self.feed.written = Cursor(self.feed.after.epoch, entry.seq), entry.created

    async def step(self, wait: float) -> None:
        """Take what comes."""
        news = await self.feed.entries(wait)
        if isinstance(news, Gap):
            assert news.before > self.feed.after.seq + 1
            self.feed.after, self.feed.written = Cursor(self.feed.after.epoch, news.before - 1), 0
            self.last = None
        elif isinstance(news, Over):
            self.gone = True
        else:
            self.show(news)

    async def follow(self) -> None:
        """Until it is told that there is no more."""
        while not self.gone:
            await self.step(10)

    def has_all(self) -> bool:
        """Whether it was told, or has all there is."""
        return self.gone or self.feed.after == Cursor(self.world.epoch, len(self.world.present))


class HubMachine(RuleBasedStateMachine):
    """Whatever happens to the log, to the connection and to followers."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = InstantLoop()
        self.followers: list[Follower] = []

    def run(self, work: Callable[[], Any]) -> None:
        """Do it, and let what it caused begin."""

        async def doing() -> None:
            await work()
            for _ in range(5):
                await asyncio.sleep(0)

        self.loop.run_until_complete(doing())

    @initialize()
    def begin(self) -> None:
        """A session with an entry, and a hub."""

        async def begin() -> None:
            self.broker = Broker(Settings(redis_url="memory://"), FakeServer())
            self.log = CountingLog(self.broker.sessions)
            self.hub = Hub(self.broker.sessions, self.log)
            self.world = World(self.broker.sessions, epoch=1)
            await self.world.say(1)

        self.run(begin)

    @rule(count=st.integers(1, 5), told=st.booleans())
    def say(self, count: int, told: bool) -> None:
        """A batch."""
        self.run(lambda: self.world.say(count, told=told))

    @rule(data=st.data(), fast=st.booleans())
    def come(self, data: st.DataObject, fast: bool) -> None:
        """A follower comes, with a cursor that the log has."""
        seq = data.draw(st.integers(0, len(self.world.present)))

        async def come() -> None:
            feed = self.hub.follow(KEYS)
            self.followers.append(Follower(self.world, feed, Cursor(self.world.epoch, seq), fast))

        self.run(come)

    @precondition(lambda self: any(each.task is None for each in self.followers))
    @rule(number=st.integers(0, 9))
    def read(self, number: int) -> None:
        """A slow follower takes something. Which moves there are does not depend on what followers were told."""
        slow = [each for each in self.followers if each.task is None]
        follower = slow[number % len(slow)]
        if not follower.gone:
            self.run(lambda: follower.step(0.01))

    @rule(seq=st.integers(1, 20))
    def cut(self, seq: int) -> None:
        """The head of the log is cut."""
        self.run(lambda: self.world.cut(seq))

    @rule()
    def clear(self) -> None:
        """The log begins afresh."""
        self.run(self.world.clear)

    @rule(
        count=st.integers(1, 3),
        more=st.sampled_from([None, -1, 0, 2]),
        noticed=st.booleans(),
        apart=st.booleans(),
    )
    def fail_over(self, count: int, more: int | None, noticed: bool, apart: bool) -> None:
        """The log loses its end; it may go on, as a new epoch if that was noticed, before the hub is connected again.

        ``more``: by how much it then is longer than it was; None: it does not go on.
        """

        async def fail_over() -> None:
            if apart:
                self.lose_connection()
            await self.world.lose(count)
            if noticed:
                await self.world.begin_epoch()
            if more is not None and count + more > 0:
                await self.world.say(count + more)

        self.run(fail_over)

    @rule(more=st.integers(0, 2), apart=st.booleans(), level=st.booleans())
    def go_back(self, more: int, apart: bool, level: bool) -> None:
        """The broker comes back with a file from before the last clear, and the log may go on in that epoch.

        ``level``: it was as long then as it is now, so that only the epoch is another one.
        """

        async def go_back() -> None:
            world = self.world
            if level and world.saved is not None and (count := len(world.saved[1]) - len(world.present)) > 0:
                await world.say(count)
                await asyncio.sleep(0.01)
            if apart:
                self.lose_connection()
            await world.uncleared()
            if more:
                await world.say(more)

        self.run(go_back)

    @rule(missed=st.integers(0, 4))
    def cut_off(self, missed: int) -> None:
        """The connection on which the hub listens is lost, and something is said meanwhile."""

        async def cut_off() -> None:
            self.lose_connection()
            if missed:
                await self.world.say(missed, heard=False)

        self.run(cut_off)

    def lose_connection(self) -> None:
        """As the network does it."""
        tails: Any = self.hub._tails
        if self.hub._running and hasattr(tails, "_over"):
            tails._end(ConnectionError())
            self.hub.connection_lost()

    @rule()
    def vanish(self) -> None:
        """Nothing is left, without a word; a session of that name may be made anew."""

        async def vanish() -> None:
            await self.broker.sessions.flushall()
            self.world.epoch = next(self.world.epochs)
            self.world.present, self.world.former, self.world.head = [], {}, 1
            self.world.saved = None

        self.run(vanish)
        self.settle(gone=True)
        self.run(lambda: self.world.say(1))

    @rule(seconds=st.sampled_from([0.0005, 0.01, 1.0, 60.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.run(lambda: asyncio.sleep(seconds))

    @rule()
    def rest(self) -> None:
        """It is quiet for a while."""

        async def rest() -> None:
            for followed in self.hub._followed.values():
                followed.shrink_if_idle()

        self.run(rest)

    def settle(self, gone: bool = False) -> None:
        """Nothing happens any more: soon, and with few reads, everybody has all or was told, and then nobody reads."""

        async def settle() -> None:
            tasks = [asyncio.create_task(each.follow()) for each in self.followers if each.task is None]
            followed = list(self.hub._followed.values())
            await wait_until(lambda: all(each.attached for each in followed), "the hub to listen")
            self.log.reads = 0
            for session in followed:
                await session.look(self.log)
            everybody = lambda: all(each.gone if gone else each.has_all() for each in self.followers)  # noqa: E731
            await wait_until(everybody, "everybody to have all, or be told", SETTLED_SECONDS)
            # Some were there without a read, and have yet to look.
            await asyncio.sleep(1)
            assert self.log.reads <= 4 + 4 * len(self.followers)
            reads = self.log.reads
            await asyncio.sleep(QUIET_SECONDS)
            assert self.log.reads == reads, "somebody reads, though there is nothing"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in self.followers:
                if each.task is not None and each.task.done():
                    each.task.result()
                if each.gone:
                    each.feed.leave()
            self.followers = [each for each in self.followers if not each.gone]

        self.loop.run_until_complete(settle())

    def teardown(self) -> None:
        """The faults stop."""
        if not hasattr(self, "hub"):
            self.loop.close()
            return
        try:
            self.settle()
        finally:

            async def end() -> None:
                for each in self.followers:
                    if each.task is not None:
                        each.task.cancel()
                    each.feed.leave()
                await self.hub.stop()
                await self.broker.close()

            self.loop.run_until_complete(end())
            self.loop.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is asked when the test says so; lost connections come back at once."""
    monkeypatch.setattr(hub_module, "LOOK_SECONDS", 10_000.0)
    monkeypatch.setattr("turnstream.shared.broker.subscriber.FIRST_RETRY_SECONDS", 0.001)
    monkeypatch.setattr("turnstream.shared.broker.subscriber.LONGEST_RETRY_SECONDS", 0.002)


def test_followers_are_given_one_log_or_are_told() -> None:
    """Any order of events, at first a few and then many."""
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        HubMachine,
        settings=settings(
            max_examples=100,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


async def test_an_older_epoch_ends_the_ring() -> None:
    """A log that went back to before a clear may be as long as the ring is: what is appended then does not follow on it."""

    def tail(epoch: int, seq: int) -> Tail:
        return Tail(epoch, seq, seq, seq, [Entry(seq, "t", "", "message", seq, b"{}")])

    followed = Followed(KEYS, Rounds(), lambda *_: None, 0)
    for each in (Tail(2, 1, 0, 0, []), tail(2, 1)):
        followed.message_received(each)
    assert followed.in_ring(Cursor(2, 1)) == []
    followed.message_received(tail(1, 2))
    # Nothing of epoch 2 stands there.
    assert followed.in_ring(Cursor(2, 2)) is None
