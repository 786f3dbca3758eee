"""What befell brokers in a simulation, in its order: commands, and what became of data past all commands."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TIME = re.compile(rb"redis\.call\('TIME'\)")
_INFO = re.compile(rb"redis\.call\('INFO', 'replication'\)")


@dataclass(frozen=True)
class Command:
    """One that a broker was given.

    Attributes:
        at: the broker's port.
        who: the connection's number.
        words: as they were sent; a script with its text.
        when: the server's clock, Unix seconds.
        role: what the server said of its role, if that was a script.
        full, replica: what it refused writes for.
        elsewhere: it was not carried out: who asked was told which node to ask, or to wait for one.
    """

    at: int
    who: int
    words: list[bytes]
    when: float
    role: bytes = b""
    full: bool = False
    replica: bool = False
    elsewhere: bool = False

    def told(self) -> list[bytes]:
        """The command, its script told the time and the server's role instead of asking for them.

        A script that was not known by its hash has one that no server knows: what stands in scripts is not the same.
        """
        if self.words[0] == b"EVALSHA":
            return [b"EVALSHA", b"0" * 40, *self.words[2:]]
        if self.words[0] != b"EVAL":
            return self.words
        micros = round(self.when * 1_000_000)
        clock = b"{'%d','%d'}" % (micros // 1_000_000, micros % 1_000_000)
        role = b"'" + self.role.replace(b"\r\n", rb"\r\n") + b"'"
        text = _INFO.sub(lambda _: role, _TIME.sub(clock, self.words[1]))
        return [b"EVAL", text, *self.words[2:]]


@dataclass(frozen=True)
class Closed:
    """A connection has ended; all of the broker's, if ``who`` is None."""

    at: int
    who: int | None = None


@dataclass(frozen=True)
class Kept:
    """A copy of a broker's data was made."""

    at: int


@dataclass(frozen=True)
class Put:
    """A broker has another one's data now, or the ``kept`` copy of that."""

    at: int
    source: int
    kept: bool


@dataclass(frozen=True)
class Moved:
    """Keys have gone from a broker to another one; to none, if ``target`` is None."""

    at: int
    keys: list[bytes]
    target: int | None = None


Recorded = Command | Closed | Kept | Put | Moved
