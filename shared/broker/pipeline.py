"""All commands of a process to one server, over one connection: many in flight, replies in their order.

Turns that run side by side share its writes and reads, so the more there are, the less each command
costs. Commands sent one after the other arrive in that order. One that blocks (``WAIT``) would hold up all
others: it belongs on a pipe of its own. So does what is large, and would hold up all others for as long as its
bytes take: see `turnstream.shared.broker.client.PipedRedis`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from turnstream.shared.broker.connection import open_line
from turnstream.shared.broker.retry import is_transient

if TYPE_CHECKING:
    from redis.asyncio import ConnectionPool

    from turnstream.shared.broker.connection import Line

log = structlog.get_logger(__name__)

T = TypeVar("T")

# A connection on which nothing moves for longer than this, while a command waits, is lost. Shorter, and a broker that
# forks for a snapshot looks dead; longer, and a frozen one holds every request.
COMMAND_SECONDS = 5.0
# Between two looks whether anything has moved, while a command waits.
LOOK_SECONDS = 0.25
# A command that takes longer than this is lost whatever moves: some bytes now and then are no answer.
LONGEST_SECONDS = 60.0
LAST_LOOK_SECONDS = 0.05

# For how long a server's name is believed on one connection. Behind a proxy another server may take its place, and a replica
# may be promoted, without a word: until it is asked again, what was lost then does not show.
INCARNATION_SECONDS = 60.0

# Of the server's replication id. It is kept with each session, and two of one deployment must differ.
INCARNATION_CHARACTERS = 12


class Pipe:
    """Sends commands; connects when there is something to send, and anew after a loss."""

    def __init__(self, pool: ConnectionPool, *, large: bool = False) -> None:
        """``large``: what it carries may be, and is written in pieces."""
        self._pool = pool
        self._large = large
        self._line: Line | None = None
        self._opening: asyncio.Task[Line] | None = None
        # In the order sent: who waits, since when, and how much longer than others it may take.
        self._waiting: deque[tuple[asyncio.Future[Any], float, float]] = deque()
        # When something moved for the last time, as far as `_look` has seen, and what was unsent then.
        self._moved = 0.0
        self._unsent = 0
        self._watch: asyncio.TimerHandle | None = None
        self._late = False
        # Another one to the same server, which may do nothing that a replica refuses.
        self.beside: Pipe | None = None
        # How many connections there have been: who needs two commands on the same one compares.
        self.connections = 0
        # What `incarnation` learnt on the present connection, and when it is to be asked again.
        self._incarnation: str | None = None
        self._ask_at = 0.0

    @property
    def idle(self) -> bool:
        """Whether every command has had its reply."""
        return not self._waiting

    async def command(self, *words: str | bytes | float, more_seconds: float = 0) -> Any:
        """Send one command; its raw reply. A caller that is cancelled loses the reply, not the command.

        It may take as long as something moves on the connection, and one that blocks at the broker ``more_seconds``.

        Raises:
            redis.exceptions.RedisError, OSError: an error reply, or the connection's trouble. After a loss
                nobody knows whether the command was carried out.
        """
        line = self._line
        if line is None:
            line = await self._open()
            if line is not self._line:
                raise _loss(None)
        loop = asyncio.get_running_loop()
        reply = loop.create_future()
        if self._large:
            line.send_in_pieces(*words)
        else:
            line.send(*words)
        if not self._waiting:
            # Alone, it need not wait for others: under a load there is always one under way.
            line.flush()
        now = loop.time()
        self._waiting.append((reply, now, more_seconds))
        if self._watch is None:
            self._unsent = line.unsent
            self._watch = loop.call_at(now + LOOK_SECONDS, self._look)
        return await reply

    async def asking(self, *words: str | bytes | float, more_seconds: float = 0) -> Any:
        """As `command`, of a slot that a node of a cluster is about to get: ``ASKING`` goes right before it.

        Should anything come between the two, the command is refused, and nothing was done.
        """
        asked = self.command("ASKING"), self.command(*words, more_seconds=more_seconds)
        reply: Any = (await asyncio.gather(*asked, return_exceptions=True))[1]
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def incarnation(self) -> str:
        """The name that the server at the other end gives to its data: its replication id.

        It is another one after a restart or a promotion, when the newest writes may be missing. Asked on each connection,
        and again every `INCARNATION_SECONDS`, by one caller, while others go on with what is known; a command sent at
        once, without waiting for anything else, goes to that server. Empty where this user may not ask.

        Raises:
            redis.exceptions.RedisError, OSError: the connection's trouble; a replica is trouble, too: its name is
                its primary's until it is promoted.
        """
        loop = asyncio.get_running_loop()
        again = loop.time() >= self._ask_at
        while again or self._incarnation is None:
            again = False
            if self._line is None:
                await self._open()
            asked = self.connections
            self._ask_at = loop.time() + INCARNATION_SECONDS
            try:
                told = bytes(await self.command("INFO", "replication"))
            except ResponseError as error:
                if is_transient(error) and not isinstance(error, NoPermissionError):
                    # It is busy with a script, say.
                    self._ask_at = 0.0
                    raise
                log.warning("broker.incarnation_unknown", error=str(error))
                told = b""
            except BaseException:
                # Whoever asked would wait no longer, say.
                self._ask_at = 0.0
                raise
            fields = dict(line.split(b":", 1) for line in told.splitlines() if b":" in line)
            if self._line is None or self.connections != asked:
                continue
            if fields.get(b"role") == b"slave":
                self.leave()
                raise ReadOnlyError("connected to a replica")
            self._incarnation = fields.get(b"master_replid", b"").decode()[:INCARNATION_CHARACTERS]
        return self._incarnation

    async def confirm(self) -> None:
        """Make sure that it was no replica that answered just now.

        Raises:
            redis.exceptions.RedisError, OSError: it was one, and the connection is closed; or the connection's trouble.
        """
        answered = self.connections
        if self._incarnation != "":
            self._ask_at = 0.0
        await self.incarnation()
        if self.connections != answered:
            raise _loss(None)

    def cut(self) -> None:
        """Close the connection at once."""
        if self._line is not None:
            self._line.close()

    def leave(self) -> None:
        """Close it, and the one beside it: new ones may lead to another server."""
        self.cut()
        if self.beside is not None:
            self.beside.cut()

    async def close(self) -> None:
        """Close the connection; what waits fails."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._line is not None:
            self._line.close()
            self._gone(None)

    async def _open(self) -> Line:
        """One attempt to connect, shared by all who wait for it."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._connect())
            self._opening.add_done_callback(self._opened)
        return await together(self._opening)

    async def _connect(self) -> Line:
        line: Line | None = None

        def lost(error: BaseException | None) -> None:
            if self._line is line:
                self._gone(error)

        line = await open_line(self._pool, self._receive, lost)
        self._line = line
        self._incarnation = None
        self.connections += 1
        return line

    def _opened(self, opening: asyncio.Task[Line]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()

    def _receive(self, reply: Any) -> None:
        waiter, _, _ = self._waiting.popleft()
        if isinstance(reply, ReadOnlyError):
            # Demoted, perhaps without a word: another connection may lead to the new primary.
            self.leave()
        if waiter.done():
            return
        if isinstance(reply, Exception):
            waiter.set_exception(reply)
        else:
            waiter.set_result(reply)

    def _gone(self, error: BaseException | None) -> None:
        self._line = None
        self._incarnation = None
        self._late = False
        waiting, self._waiting = self._waiting, deque()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for waiter, _, _ in waiting:
            if not waiter.done():
                waiter.set_exception(_loss(error))

    def _look(self) -> None:
        """Cut the connection when the oldest command waits, and nothing has moved for too long."""
        self._watch = None
        if not self._waiting or self._line is None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        line = self._line
        if line.unsent < self._unsent:
            self._moved = now
        self._unsent = line.unsent
        _, sent, more = self._waiting[0]
        until = min(max(sent, line.heard, self._moved) + COMMAND_SECONDS, sent + LONGEST_SECONDS) + more
        if now < until:
            self._late = False
            self._watch = loop.call_at(min(until, now + LOOK_SECONDS), self._look)
            return
        if not self._late:
            # The process itself may have stood still: what it was sent meanwhile is read first.
            self._late = True
            self._watch = loop.call_later(LAST_LOOK_SECONDS, self._look)
            return
        self._gone(RedisTimeoutError("no reply from the broker in time"))
        line.close()


class Asking(Pipe):
    """Another pipe, whose every command is `Pipe.asking`."""

    def __init__(self, pipe: Pipe) -> None:
        self._asked = pipe

    async def command(self, *words: str | bytes | float, more_seconds: float = 0) -> Any:
        """As `Pipe.asking`."""
        return await self._asked.asking(*words, more_seconds=more_seconds)


async def together(doing: asyncio.Task[T]) -> T:
    """Wait for what others wait for, too: who gives up does not take it from them.

    Raises:
        redis.exceptions.ConnectionError: it was cancelled, since the connection was closed.
    """
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if doing.cancelled() and not (task and task.cancelling()):
            raise _loss(None) from None
        raise


def _loss(error: BaseException | None) -> Exception:
    """One instance for each waiter: a shared one would gather all their tracebacks."""
    if isinstance(error, RedisTimeoutError):
        return RedisTimeoutError(str(error))
    return RedisConnectionError("the connection to the broker was lost")
