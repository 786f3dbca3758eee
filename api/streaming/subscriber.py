"""The one connection of a front end on which it hears what is appended to the logs it follows."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from turnstream.shared import metrics
from turnstream.shared.broker.client import is_trouble
from turnstream.shared.broker.connection import open_line
from turnstream.shared.broker.pipeline import COMMAND_SECONDS

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from turnstream.shared.broker.connection import Line

log = structlog.get_logger(__name__)

# Silence after which the broker is asked for a sign of life; as long again without one, and the connection
# counts as lost. Longer, and followers behind a dead connection stand still for longer.
SILENCE_SECONDS = 3.0

# Channels in one command. A broker serves nobody else while it works through one.
SUBSCRIBE_AT_ONCE = 256

FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 1.0


class TailListener(Protocol):
    """Who is told."""

    def heard(self, channel: bytes, message: bytes) -> None:
        """A message came in on a channel."""

    def subscribed(self, channel: bytes) -> None:
        """The broker acknowledges: from here on nothing on this channel is missed."""

    def deaf(self) -> None:
        """The connection is lost: every channel misses messages until it is acknowledged again."""


class TailReader:
    """Listens to channels.

    Duties:
        1. hold one pub/sub connection, made anew whenever it is lost, silent or cut by the broker;
        2. subscribe to what is wanted, in batches, and again after each loss;
        3. tell the listener of each message, each acknowledgement and each loss.

    All that knows the broker's protocol is `_receive` and `_write`.
    """

    def __init__(self, redis: Redis, listener: TailListener) -> None:
        self._pool = redis.connection_pool
        self._listener = listener
        self._wanted: dict[bytes, None] = {}
        self._joining: dict[bytes, None] = {}
        self._leaving: dict[bytes, None] = {}
        self._work = asyncio.Event()
        self._silent = True
        self._delay = FIRST_RETRY_SECONDS
        self._over: asyncio.Future[None]

    def join(self, channel: bytes) -> None:
        """Subscribe to a channel; `TailListener.subscribed` follows."""
        self._wanted[channel] = None
        self._leaving.pop(channel, None)
        self._joining[channel] = None
        self._work.set()

    def leave(self, channel: bytes) -> None:
        """Unsubscribe from a channel."""
        self._wanted.pop(channel, None)
        self._joining.pop(channel, None)
        self._leaving[channel] = None
        self._work.set()

    async def run(self) -> None:
        """Listen for ever; to be run as a task."""
        loop = asyncio.get_running_loop()
        lost: float | None = None
        while True:
            line: Line | None = None
            self._over = loop.create_future()
            try:
                async with asyncio.timeout(COMMAND_SECONDS):
                    line = await open_line(self._pool, self._receive, lambda _: self._end(ConnectionError()))
                self._joining = dict(self._wanted)
                self._leaving.clear()
                self._work.set()
                if lost is not None:
                    log.info("tails.back", seconds=round(loop.time() - lost, 2), channels=len(self._wanted))
                lost = None
                await self._listen(line)
            except Exception as error:
                if not is_trouble(error):
                    log.exception("tails.failed")
                elif lost is None:
                    log.warning("tails.lost", error=type(error).__name__, channels=len(self._wanted))
                metrics.tail_losses.n += lost is None
                lost = lost if lost is not None else loop.time()
            finally:
                self._listener.deaf()
                if line is not None:
                    line.close()
            await asyncio.sleep(self._delay * random.uniform(0.5, 1.5))  # noqa: S311
            self._delay = min(self._delay * 2, LONGEST_RETRY_SECONDS)

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
        # An answer to PING is a list only while something is subscribed to.
        kind = reply[0] if isinstance(reply, list) else b""
        if kind == b"message":
            self._listener.heard(reply[1], reply[2])
        elif kind == b"subscribe":
            # Not before: a broker that takes connections may still refuse what they say.
            self._delay = FIRST_RETRY_SECONDS
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
                if self._silent:
                    raise TimeoutError

    async def _write(self, line: Line) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            # In this order: a channel that was left and wanted again must end up subscribed.
            leaving, self._leaving = list(self._leaving), {}
            joining, self._joining = list(self._joining), {}
            for command, channels in (("UNSUBSCRIBE", leaving), ("SUBSCRIBE", joining)):
                for at in range(0, len(channels), SUBSCRIBE_AT_ONCE):
                    line.send(command, *channels[at : at + SUBSCRIBE_AT_ONCE])
