"""The worker's one subscription: made once, kept, and made again when it is cut."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.support.waiting import wait_until
from turnstream.shared.broker import keys
from turnstream.shared.session.cancellation import Reason
from turnstream.worker.signals import SignalListener

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.conftest import Place


class Told:
    """Stands where the leases stand, and keeps what it is told."""

    def __init__(self) -> None:
        self.lost_by: list[tuple[str, int, Reason]] = []
        self.renewals = 0
        self.unread: list[bytes] = []

    def lost(self, ref: str, attempt: int, reason: Reason) -> None:
        """A control message came in."""
        self.lost_by.append((ref, attempt, reason))

    def renew_now(self) -> None:
        """A subscription was acknowledged."""
        self.renewals += 1


async def _say(redis: Redis, channel: str, text: str) -> int:
    """How many heard it."""
    heard: int = await redis.publish(channel, text)
    return heard


async def test_the_subscription_is_kept(place: Place) -> None:
    """Message after message reaches the same subscription: nobody subscribes again between them."""
    redis = place.connect().primary
    told, doorbell = Told(), asyncio.Event()
    listener = SignalListener(redis, told, doorbell, lambda *_: None, told.unread.append, lambda: None)  # type: ignore[arg-type]
    task = asyncio.create_task(listener.listen())
    try:
        await asyncio.wait_for(listener.listening.wait(), 10)
        for number in range(20):
            doorbell.clear()
            assert await _say(redis, keys.DOORBELL, "1") == 1, "nobody listens to the doorbell"
            await asyncio.wait_for(doorbell.wait(), 10)
            assert await _say(redis, keys.CONTROL, f"s/t {number} stop") == 1
            expected = ("s/t", number, Reason.STOP)
            await wait_until(lambda expected=expected: expected in told.lost_by, "the control message")  # type: ignore[misc]
        assert told.renewals == 1, "it subscribed more than once"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_another_release_says_besides_is_passed_over(place: Place) -> None:
    """A reason that nobody here knows, and further words: the attempt is lost all the same."""
    redis = place.connect().primary
    told = Told()
    listener = SignalListener(redis, told, asyncio.Event(), lambda *_: None, told.unread.append, lambda: None)  # type: ignore[arg-type]
    task = asyncio.create_task(listener.listen())
    try:
        await asyncio.wait_for(listener.listening.wait(), 10)
        for words in ("s/t 7 dreamt", "s/t", "s/t 8 stop {} and more"):
            assert await _say(redis, keys.CONTROL, words) == 1
        expected = [("s/t", 7, Reason.LEASE_LOST), ("s/t", 8, Reason.STOP)]
        await wait_until(lambda: told.lost_by == expected, "the control messages")
        assert told.unread == [b"{}"]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_cut_subscription_is_made_again(place: Place) -> None:
    """After a cut the doorbell rings and the leases are renewed once, for what was said meanwhile."""
    if not place.real:
        return
    redis = place.connect().primary
    told, doorbell = Told(), asyncio.Event()
    listener = SignalListener(redis, told, doorbell, lambda *_: None, told.unread.append, lambda: None)  # type: ignore[arg-type]
    task = asyncio.create_task(listener.listen())
    try:
        await asyncio.wait_for(listener.listening.wait(), 10)
        doorbell.clear()
        await redis.client_kill_filter(_type="pubsub")
        await asyncio.wait_for(doorbell.wait(), 10)
        assert told.renewals == 2
        assert await _say(redis, keys.DOORBELL, "1") == 1
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
