"""When to try again, and when to give up."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from turnstream.client.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

# Longest wait that a server may ask for; a proxy's `Retry-After: 86400` is not meant for a chat.
MOST_ASKED_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait between tries, in seconds: at random, up to a bound that doubles from ``first`` to ``most``.

    So thousands of clients which lost the same front end come back over two seconds, and not all at once: another one
    takes some 2,500 a second for each core.
    """

    first: float = 2.0
    most: float = 10.0

    def wait(self, tries: int) -> float:
        """The wait after that many failed tries in a row, at least one."""
        whole: float = min(self.most, self.first * 2.0 ** min(tries - 1, 30))
        return whole * random.random()  # noqa: S311 - jitter, not a secret


class TroubleError(Exception):
    """A try failed for a reason that may pass; ``after`` is the wait in seconds that the server asked for."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        self.reason = reason
        self.after = after
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The client waits, to try again.

    Attributes:
        reason: what happened, in words.
        retry_in: seconds until the next try.
        tries: failed tries in a row.
    """

    reason: str
    retry_in: float
    tries: int


@dataclass(frozen=True, slots=True)
class ConnectionRestored:
    """A front end answers again.

    Attributes:
        seconds: how long none did.
    """

    seconds: float


ConnectionNews = ConnectionLost | ConnectionRestored


class Retries:
    """The tries of one request, or of one stream that is to be followed to its end.

    What the server asked for comes before the random wait: it asks many for the same. When nobody has answered for
    ``patience`` seconds, that is the end. A wait that would end after that is a shorter one, before the last try.
    """

    def __init__(
        self,
        backoff: Backoff,
        patience: float,
        where: str,
        url: str,
        tell: Callable[[ConnectionNews], None],
    ) -> None:
        self._backoff = backoff
        self._patience = patience
        self._where = where
        self._url = url
        self._tell = tell
        self._tries = 0
        self._since = 0.0
        self._last = False

    def served(self) -> None:
        """A front end answered as it should."""
        if self._tries:
            self._tell(ConnectionRestored(asyncio.get_running_loop().time() - self._since))
            self._tries = 0
            self._last = False

    async def wait(self, trouble: TroubleError) -> None:
        """Wait for the next try.

        Raises:
            Unavailable: patience is over.
        """
        now = asyncio.get_running_loop().time()
        if not self._tries:
            self._since = now
        self._tries += 1
        asked, drawn = trouble.after or 0, self._backoff.wait(self._tries)
        left = self._since + self._patience - now - asked
        if self._last or left <= 0:
            raise Unavailable(
                f"{trouble.reason}; tried {self._tries} times in {now - self._since:.0f} s",
                self._where,
                self._url,
            )
        if drawn > left:
            # At random, too: those who were cut together do not end together.
            drawn, self._last = left * random.random(), True  # noqa: S311 - jitter, not a secret
        seconds = asked + drawn
        self._tell(ConnectionLost(trouble.reason, seconds, self._tries))
        await asyncio.sleep(seconds)


def asked_wait(header: str | None) -> float | None:
    """Seconds of a ``Retry-After`` header, which is a number or a date; None when it says nothing usable."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            then = parsedate_to_datetime(header)
        except ValueError:
            return None
        if then.tzinfo is None:
            then = then.replace(tzinfo=UTC)
        seconds = (then - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), MOST_ASKED_SECONDS) if seconds == seconds else None  # noqa: PLR0124 - NaN
