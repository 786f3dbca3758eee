"""Signals to workers over pub/sub: "work is waiting", "look at the models" (doorbell) and "you lost task X" (control).

The same connection carries the lifeline (worker/lifeline.py), a channel without messages.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import structlog

from turnstream.shared import metrics
from turnstream.shared.broker import keys
from turnstream.shared.broker.subscriber import Subscriber
from turnstream.shared.model_states import NOTED
from turnstream.shared.session.cancellation import Reason
from turnstream.shared.session.queue import offered
from turnstream.shared.worker_orders import is_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

    from turnstream.shared.session.queue import Job
    from turnstream.worker.lease import Leases
    from turnstream.worker.lifeline import Lifeline

log = structlog.get_logger(__name__)

_DOORBELL = keys.DOORBELL.encode()
_CONTROL = keys.CONTROL.encode()


class SignalListener:
    """Subscribes to the control channel, the doorbell, one of its bells and the channel by which it is seen to live, for ever.

    Polling the queue, renewing the leases and looking at the models make up for a lost message; this is for speed. Only
    the background responses of a turn that no worker holds are not canceled where the message was lost.
    """

    def __init__(
        self,
        redis: Redis,
        leases: Leases,
        doorbell: asyncio.Event,
        take: Callable[[Job, str, str], None],
        cancel: Callable[[bytes], None],
        noted: Callable[[], None],
        lifeline: Lifeline | None = None,
        rang: Callable[[], None] = lambda: None,
        order: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """``take`` is given launches that are offered: with their agent, and the version it must have.

        ``cancel`` is given the background responses of a turn that was ended.
        ``noted`` is called when something may be noted of a model of which nothing was, ``rang`` when a turn may be
        claimed, ``order`` with what operators ask of workers. ``lifeline`` has this process's own channel, and is notified when it is subscribed or lost.
        """
        self._rang = rang
        self._order = order
        self._lifeline = lifeline
        self._cancel = cancel
        self._leases = leases
        self._doorbell = doorbell
        self._take = take
        self._noted = noted
        bell = random.choice(keys.BELLS)  # noqa: S311
        # Its own comes first: while it is not subscribed to that, it looks as if it had been killed.
        own = () if lifeline is None else (lifeline.channel,)
        self._channels = (*own, _DOORBELL, bell.encode(), _CONTROL)
        self._subscribed: set[bytes] = set()
        self._subscriber = Subscriber(redis, self, lost="listener.lost", back="listener.back")
        self.listening = asyncio.Event()

    async def listen(self) -> None:
        """Listen for ever; to be run as a task for as long as the worker lives."""
        for channel in self._channels:
            self._subscriber.subscribe(channel)
        await self._subscriber.run()

    def subscribed(self, channel: bytes) -> None:
        """Make up for the signals that were missed, once all channels are there."""
        self._subscribed.add(channel)
        if self._lifeline is not None and channel == self._lifeline.channel:
            self._lifeline.subscribed()
        if len(self._subscribed) == len(self._channels):
            # They are in the queue and in the leases.
            self._doorbell.set()
            self._rang()
            self._leases.renew_now()
            self._noted()
            self.listening.set()

    def connection_lost(self) -> None:
        """Signals are missed from here on."""
        self._subscribed.clear()
        self.listening.clear()
        if self._lifeline is not None:
            self._lifeline.lost()

    def message_received(self, channel: bytes, message: bytes) -> None:
        """Ring the doorbell, hand on what came with it, or take an attempt from its turn."""
        if channel != _CONTROL:
            if message == NOTED:
                self._noted()
                return
            self._rang()
            if (offer := offered(message)) is None:
                self._doorbell.set()
            else:
                self._take(*offer)
            return
        try:
            if is_order(message):
                self._order(message)
                return
            # Further words are of another release.
            ref, attempt, reason, *more = message.decode().split(" ")
            self._leases.lost(ref, int(attempt), _reason(reason))
            if more:
                self._cancel(more[0].encode())
        except ValueError:
            metrics.unreadable.add("control message")
            log.warning("listener.not_understood", channel=keys.CONTROL)


def _reason(text: str) -> Reason:
    """Why an attempt was taken; another release may have further reasons, and the attempt is lost all the same."""
    return Reason(text) if text in set(Reason) else Reason.LEASE_LOST
