"""What workers are told at once: "work is waiting" (doorbell) and "you lost task X" (control)."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import structlog

from turnstream.shared import metrics
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import is_trouble
from turnstream.shared.session.cancellation import Reason

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

    from turnstream.worker.lease import Leases

log = structlog.get_logger(__name__)

# Between two looks at the connection; a message wakes the reader by itself.
READ_SECONDS = 5.0

FIRST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 2.0

CHANNELS = (keys.DOORBELL, keys.CONTROL)


class SignalListener:
    """Subscribes to both channels, for ever.

    Polling the queue and renewing the leases find everything that a lost message said; this is for speed.
    """

    def __init__(self, redis: Redis, leases: Leases, doorbell: asyncio.Event) -> None:
        self._redis = redis
        self._leases = leases
        self._doorbell = doorbell
        self.listening = asyncio.Event()

    async def listen(self) -> None:
        """Read for ever; to be run as a task for as long as the worker lives."""
        delay = FIRST_RETRY_SECONDS
        # Since when nobody listens, if it was said.
        lost: float | None = None
        while True:
            pubsub = self._redis.pubsub()
            try:
                await pubsub.subscribe(*CHANNELS)
                if lost is not None:
                    log.info("listener.back", seconds=round(time.monotonic() - lost, 2))
                    lost = None
                await self._read(pubsub)
            except Exception as error:
                if not is_trouble(error):
                    log.exception("listener.failed")
                elif lost is None:
                    log.warning("listener.lost", error=f"{type(error).__name__}: {error}")
                    lost = time.monotonic()
            finally:
                if self.listening.is_set():
                    delay = FIRST_RETRY_SECONDS
                self.listening.clear()
                await pubsub.aclose()  # type: ignore[no-untyped-call]
            await asyncio.sleep(delay)
            delay = min(delay * 2, LONGEST_RETRY_SECONDS)

    async def _read(self, pubsub: PubSub) -> None:
        asked = False
        while True:
            message = await pubsub.get_message(timeout=READ_SECONDS)
            if message is None:
                # A peer that went without a word looks like silence. Who is asked twice in vain is gone.
                if asked:
                    raise TimeoutError("no answer to PING")
                asked = True
                await pubsub.ping()
                continue
            asked = False
            if message["type"] == "subscribe" and message["data"] == len(CHANNELS):
                # What was said while nobody listened is in the queue and in the leases.
                self._doorbell.set()
                self._leases.renew_now()
                self.listening.set()
            if message["type"] == "message":
                self._heard(message)

    def _heard(self, message: dict[str, Any]) -> None:
        if message["channel"] == keys.DOORBELL.encode():
            self._doorbell.set()
            return
        try:
            # What another release says beyond this is not for us.
            ref, attempt, reason, *_ = message["data"].decode().split(" ")
            self._leases.lost(ref, int(attempt), _reason(reason))
        except ValueError:
            metrics.unreadable.add("control message")
            log.warning("listener.not_understood", channel=keys.CONTROL)


def _reason(text: str) -> Reason:
    """Why an attempt was taken; another release may have further reasons, and the attempt is lost all the same."""
    return Reason(text) if text in set(Reason) else Reason.LEASE_LOST
