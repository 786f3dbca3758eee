"""The subscriber: a process's one pub/sub connection to a broker, for front ends (tails) and workers (doorbell, control).

In a cluster a channel has a slot, as a key has, and there is one such connection to each node: see `turnstream.shared.broker.shards`.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from turnstream.shared.broker.connection import open_line
from turnstream.shared.broker.pipeline import COMMAND_SECONDS, LAST_LOOK_SECONDS
from turnstream.shared.broker.retry import is_transient

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from turnstream.shared.broker.connection import Line

log = structlog.get_logger(__name__)

# Silence after which the broker is sent a PING; as long again without a reply, and the connection counts as lost. Longer,
# and followers behind a dead connection stand still for longer.
SILENCE_SECONDS = 3.0

# Channels in one command. A broker serves no other client while it works through one.
SUBSCRIBE_AT_ONCE = 256

FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 1.0


class Listener(Protocol):
    """What is done with messages; its methods must not raise."""

    def message_received(self, channel: bytes, message: bytes) -> None:
        """A message came in on a channel."""

    def subscribed(self, channel: bytes) -> None:
        """The broker acknowledges: from here on no message of this channel is missed."""

    def connection_lost(self) -> None:
        """Every channel misses messages until it is acknowledged again; called once for each loss."""


class Subscriber:
    """Subscribes to channels.

    Duties:
        1. hold one pub/sub connection, made anew whenever it is lost, silent or cut by the broker;
        2. subscribe to the wanted channels, in batches, and again after each loss;
        3. pass each message, acknowledgement and loss to the listener;
        4. log each loss and its end, by the events that are named ``lost`` and ``back``.

    All that knows the broker's protocol is `_receive` and `_write`.
    """

    def __init__(self, redis: Redis, listener: Listener, *, lost: str, back: str) -> None:
        self._pool = redis.connection_pool
        self._listener = listener
        self._lost_event, self._back_event = lost, back
        self._wanted: dict[bytes, None] = {}
        self._joining: dict[bytes, None] = {}
        self._leaving: dict[bytes, None] = {}
        self._work = asyncio.Event()
        self._silent = True
        self._delay = FIRST_RETRY_SECONDS
        self._lost_at: float | None = None
        self._over: asyncio.Future[None]

    def subscribe(self, channel: bytes) -> None:
        """Want a channel; `Listener.subscribed` follows."""
        self._wanted[channel] = None
        self._leaving.pop(channel, None)
        self._joining[channel] = None
        self._work.set()

    def unsubscribe(self, channel: bytes) -> None:
        """Want a channel no more."""
        self._wanted.pop(channel, None)
        self._joining.pop(channel, None)
        self._leaving[channel] = None
        self._work.set()

    async def run(self) -> None:
        """Listen for ever; to be run as a task."""
        loop = asyncio.get_running_loop()
        while True:
            line: Line | None = None
            self._over = loop.create_future()
            try:
                async with asyncio.timeout(COMMAND_SECONDS):
                    line = await open_line(self._pool, self._receive, lambda _: self._end(ConnectionError()))
                self._joining = dict(self._wanted)
                self._leaving.clear()
                self._work.set()
                if not self._wanted:
                    self._restored()
                await self._listen(line)
            except Exception as error:
                self._lost(error)
            finally:
                if line is not None:
                    line.close()
            await asyncio.sleep(self._delay * random.uniform(0.5, 1.5))  # noqa: S311
            self._delay = min(self._delay * 2, LONGEST_RETRY_SECONDS)

    def _lost(self, error: Exception) -> None:
        if not is_transient(error):
            log.error("subscriber.failed", exc_info=error)
        elif self._lost_at is None:
            cause = f"{type(error).__name__}: {error}"
            log.warning(self._lost_event, error=cause, channels=len(self._wanted))
        if self._lost_at is None:
            self._lost_at = asyncio.get_running_loop().time()
            self._listener.connection_lost()

    def _restored(self) -> None:
        # Not before: a broker that takes connections may still refuse what they ask.
        self._delay = FIRST_RETRY_SECONDS
        if self._lost_at is not None:
            seconds = round(asyncio.get_running_loop().time() - self._lost_at, 2)
            log.info(self._back_event, seconds=seconds, channels=len(self._wanted))
            self._lost_at = None

    async def _listen(self, line: Line) -> None:
        """Until the connection is lost, silent or refused."""
        parts = [asyncio.ensure_future(part) for part in (self._over, self._write(line), self._check(line))]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    def _end(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def _receive(self, reply: Any) -> None:
        self._silent = False
        # A reply to PING is a list only while something is subscribed to.
        kind = reply[0] if isinstance(reply, list) else b""
        if kind == b"message":
            self._listener.message_received(reply[1], reply[2])
        elif kind == b"subscribe":
            self._restored()
            self._listener.subscribed(reply[1])
        elif isinstance(reply, Exception):
            self._end(reply)

    async def _check(self, line: Line) -> None:
        while True:
            self._silent = True
            await asyncio.sleep(SILENCE_SECONDS)
            if self._silent:
                line.send("PING")
                await asyncio.sleep(SILENCE_SECONDS)
                # The process itself may have stood still: what it was sent meanwhile is read first.
                await asyncio.sleep(LAST_LOOK_SECONDS)
                if self._silent:
                    raise TimeoutError("no reply to PING")

    async def _write(self, line: Line) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            # In this order: a channel that was left and wanted again must end up subscribed.
            leaving, self._leaving = list(self._leaving), {}
            joining, self._joining = list(self._joining), {}
            self._send(line, "UNSUBSCRIBE", leaving)
            self._send(line, "SUBSCRIBE", joining)

    def _send(self, line: Line, command: str, channels: list[bytes]) -> None:
        for at in range(0, len(channels), SUBSCRIBE_AT_ONCE):
            line.send(command, *channels[at : at + SUBSCRIBE_AT_ONCE])
