"""Following logs: one reader for the whole process, one ring per followed session, a cursor per follower.

A follower has no queue of its own, so a slow client costs no memory: one that falls off the ring reads
from the broker. Nothing is read before the broker acknowledged the subscription, and nothing from the
start: what a reconnect costs is what was missed.

A ring is used until it is invalidated: the connection was lost, a message does not follow on what the ring has, or the
log itself, asked once in a while, is another one. Then the ring is dropped, and each follower reads on from its own place
before it uses the next one. So each gets all there is to get, or is told
that the log is not the one it followed. Which states a follower can be in: docs/reference.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from itertools import count
from random import randrange
from typing import TYPE_CHECKING

import structlog

from turnstream.api.streaming.feed import Feed
from turnstream.api.streaming.followed import Followed
from turnstream.api.streaming.pages import Pages
from turnstream.api.streaming.rounds import Rounds
from turnstream.shared import metrics
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.broker.shards import subscriber
from turnstream.shared.errors import Overloaded, ShuttingDown, TooMany
from turnstream.shared.session.event_log import parse_tail

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from redis.asyncio import Redis

    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.event_log import Log

log = structlog.get_logger(__name__)

# How often a session's log is asked whether it is still the one that its followers see: a broker that was emptied, or
# a session that has expired, says nothing by itself. Smaller, and 10,000 idle followers are felt at the broker.
LOOK_SECONDS = 60.0

# In so many parts, not all of the sessions at once. In a sixth of the time, idle sessions' rings are emptied.
_PARTS = 60


class Hub:
    """Feeds the followers of this process.

    Duties:
        1. subscribe to each followed session once, and unsubscribe a moment after its last follower left;
        2. hand each message to the session's ring, and wake its followers: many of them in turn with others' (`Rounds`);
           what all of them have, the ring drops;
        3. look now and then whether each session is still there, and what followers have of those that are idle;
        4. end every feed at shutdown.

    The reader starts with the first follower.
    """

    def __init__(
        self, redis: Redis, reader: Log, *, most: int = 15_000, most_per_owner: int = 10_000
    ) -> None:
        """``most`` followers at once, each of which holds a connection; above it, clients are sent elsewhere."""
        self._log = reader
        self._pages = Pages(reader)
        self._most = most
        self._most_per_owner = most_per_owner
        self._tails = subscriber(redis, self, lost="tails.lost", back="tails.back")
        self.rounds = Rounds()
        self._running: tuple[asyncio.Task[None], ...] = ()
        self._followed: dict[bytes, Followed] = {}
        self._followers: Counter[str] = Counter()
        self._operators = 0
        self.closed = False

    @property
    def followers(self) -> int:
        """How many follow something here."""
        return self._followers.total() + self._operators

    def followers_of(self, owner: str) -> int:
        """How many of them are the owner's; operators who look at its sessions are not."""
        return self._followers[owner]

    @property
    def sessions(self) -> int:
        """How many sessions are followed here."""
        return len(self._followed)

    def follow(self, keys: SessionKeys, *, operator: bool = False) -> Feed:
        """A feed of the session's entries; the session need not exist yet. Leave it when done (``with``).

        An ``operator`` does not count against what the session's owner may have.

        Raises:
            ShuttingDown: this front end is stopping.
            Overloaded: it holds as many followers as it may.
            TooMany: the owner has too many followers here.
        """
        if self.closed:
            raise ShuttingDown
        if self.followers >= self._most:
            raise Overloaded(
                "This front end holds as many streams as it may. Try again: another one may answer."
            )
        if not operator and self._followers[keys.owner] >= self._most_per_owner:
            raise TooMany
        if not self._running:
            self._running = (asyncio.create_task(self._tails.run()), asyncio.create_task(self._look()))
        channel = keys.tail.encode()
        followed = self._followed.get(channel)
        if followed is None:
            followed = self._followed[channel] = Followed(keys, self.rounds, self._left, randrange(_PARTS))  # noqa: S311
            self._tails.subscribe(channel)
        feed = Feed(followed, self._pages, operator=operator)
        followed.join(feed)
        if operator:
            self._operators += 1
        else:
            self._followers[keys.owner] += 1
        return feed

    @contextmanager
    def following(self, keys: SessionKeys, *, operator: bool = False) -> Iterator[Feed]:
        """A feed for a response that is yet to be made: left if that fails, else the response leaves it."""
        feed = self.follow(keys, operator=operator)
        try:
            yield feed
        except BaseException:
            feed.leave()
            raise

    def close(self) -> None:
        """End every feed, between two entries; new ones are refused."""
        self.closed = True
        for followed in self._followed.values():
            for feed in list(followed.feeds):
                feed.end()

    async def stop(self) -> None:
        """End every feed and the reader."""
        self.close()
        for followed in self._followed.values():
            followed.stay()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, self._pages.close(), return_exceptions=True)

    def _left(self, followed: Followed, feed: Feed) -> None:
        """A follower is done."""
        owner = followed.keys.owner
        if feed.operator:
            self._operators -= 1
        else:
            self._followers[owner] -= 1
            if self._followers[owner] <= 0:
                del self._followers[owner]
        if not followed.feeds and not self.closed:
            followed.linger(lambda: self._forget(followed))

    def message_received(self, channel: bytes, message: bytes) -> None:
        """A batch was appended to a session's log, or the log was cleared."""
        followed = self._followed.get(channel)
        if followed is None:
            return
        try:
            followed.message_received(parse_tail(message))
        except ValueError:
            # Written by another version of us. What it said can be read from the log.
            log.warning("hub.not_understood", channel=channel.decode())
            followed.invalidate()

    def subscribed(self, channel: bytes) -> None:
        """From here on nothing is missed; what came before has to be read."""
        followed = self._followed.get(channel)
        if followed is not None:
            followed.attach()

    def connection_lost(self) -> None:
        """All tails are missed."""
        self.lost(tuple(self._followed))

    def lost(self, channels: Iterable[bytes]) -> None:
        """These tails are missed. Their followers wait, and read on when their session is subscribed again."""
        metrics.tail_losses.n += 1
        for channel in channels:
            followed = self._followed.get(channel)
            if followed is not None:
                followed.attached = False
                followed.invalidate()

    async def _look(self) -> None:
        for number in count():
            await asyncio.sleep(LOOK_SECONDS / _PARTS)
            looks = []
            for followed in self._followed.values():
                if followed.part % (_PARTS // 6) == number % (_PARTS // 6):
                    followed.shrink_if_idle()
                if followed.part == number % _PARTS:
                    looks.append(followed.look(self._log.once))
            for outcome in await asyncio.gather(*looks, return_exceptions=True):
                if isinstance(outcome, Exception) and not is_transient(outcome):
                    log.error("hub.look_failed", exc_info=outcome)

    def _forget(self, followed: Followed) -> None:
        if followed.feeds:
            return
        channel = followed.keys.tail.encode()
        self._followed.pop(channel, None)
        self._tails.unsubscribe(channel)
