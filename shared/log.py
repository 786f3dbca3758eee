"""A session's log and history as readers see them: from a cursor, forward, never from the start.

The log is written by lua/_session.lua alone. Its stream id is the cursor, so reading on costs what
was missed, however long the log is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shared.broker import command
from shared.entry import Cursor, Entry

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from shared.keys import SessionKeys

# Entries of one read. A follower far behind reads in pages of this size, and sends each before the next.
PAGE = 500


@dataclass(frozen=True, slots=True)
class SessionMeta:
    """What a session's meta hash tells a reader.

    Attributes:
        agent, user: whom it belongs to.
        epoch: age of the log.
        seq: of the newest entry.
        head: seq of the oldest entry that is still in the log.
        active: the task whose turn it is, in a serial session; may be empty.
        former: epochs that this log went through before, each with its last seq: a broker that may have lost the log's
            end begins a new one. Up to there, their cursors mean what they meant.
    """

    agent: str
    user: str
    epoch: int
    seq: int
    head: int
    active: str
    former: dict[int, int] = field(default_factory=dict)

    def place(self, cursor: Cursor) -> Cursor | None:
        """A cursor as one of the present epoch; None when what it names is gone: cleared, or lost with the log's end."""
        if cursor.seq > (self.seq if cursor.epoch == self.epoch else self.former.get(cursor.epoch, -1)):
            return None
        return Cursor(self.epoch, cursor.seq)

    def has_epoch(self, epoch: int) -> bool:
        """Whether the log was not cleared since that epoch."""
        return epoch == self.epoch or epoch in self.former


class Tail(NamedTuple):
    """One message of a session's tail channel.

    ``entries`` is empty when the batch was too large to be published, or the log was cleared
    (then ``last`` is 0).
    """

    epoch: int
    first: int
    last: int
    entries: list[Entry]


class Log:
    """Reads the sessions' logs on one server."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def meta(self, keys: SessionKeys) -> SessionMeta | None:
        """The session's meta, or None when there is no such session."""
        flat: dict[bytes, bytes] = await command(self._redis, "HGETALL", keys.meta)
        fields = {name.decode(): value.decode() for name, value in flat.items()}
        if "epoch" not in fields:
            return None
        return SessionMeta(
            agent=fields["agent"],
            user=fields["user"],
            epoch=int(fields["epoch"]),
            seq=int(fields["seq"]),
            head=int(fields["head"]),
            active=fields["active"],
            former={
                int(epoch): int(last)
                for epoch, _, last in (ended.partition("-") for ended in fields.get("former", "").split())
            },
        )

    async def live(self, keys: SessionKeys) -> list[str]:
        """The session's tasks that have not ended, the newest first."""
        tasks: list[bytes] = await command(self._redis, "ZRANGE", keys.live, 0, -1, "REV")
        return [task.decode() for task in tasks]

    async def task(self, keys: SessionKeys, task: str) -> dict[str, str]:
        """The task's hash without its larger fields; empty when there is no such task."""
        names = (
            "status", "epoch", "first", "out", "number", "response", "metadata", "submitted", "why", "attempt", "parked_until"
        )  # fmt: skip
        values = await command(self._redis, "HMGET", keys.task(task), *names)
        return {name: value.decode() for name, value in zip(names, values, strict=True) if value is not None}

    async def read(self, keys: SessionKeys, after: Cursor, count: int = PAGE) -> list[Entry]:
        """Entries after the cursor, oldest first, ``count`` at most."""
        return await self._range(keys.log, f"({after}", f"{after.epoch}-+", count)

    async def at(self, keys: SessionKeys, cursor: Cursor) -> Entry | None:
        """The entry at the cursor, or the next completed one when its details were trimmed."""
        found = await self._range(keys.log, str(cursor), str(cursor), 1)
        if not found:
            found = await self._range(keys.history, str(cursor), f"{cursor.epoch}-+", 1)
        return found[0] if found else None

    async def history(
        self, keys: SessionKeys, after: Cursor | None = None, before: Cursor | None = None
    ) -> list[Entry]:
        """Completed messages and terminal responses, oldest first, strictly between the cursors."""
        start = f"({after}" if after else "-"
        stop = f"({before}" if before else "+"
        return await self._range(keys.history, start, stop, None)

    async def _range(self, key: str, start: str, stop: str, count: int | None) -> list[Entry]:
        # "<epoch>-+" is no id of Redis; the largest seq of that epoch is.
        stop = stop.replace("-+", "-18446744073709551615")
        limit = () if count is None else ("COUNT", count)
        rows: list[tuple[bytes, dict[bytes, bytes]]] = await command(
            self._redis, "XRANGE", key, start, stop, *limit
        )
        return [_entry(entry_id, fields) for entry_id, fields in rows]


def _entry(entry_id: bytes, fields: dict[bytes, bytes]) -> Entry:
    return Entry(
        seq=int(entry_id.partition(b"-")[2]),
        task=fields[b"t"].decode(),
        path=fields[b"a"].decode(),
        kind=fields[b"y"].decode(),
        created=int(fields[b"c"]),
        event=fields[b"e"],
        extra=fields[b"x"],
        opened=int(fields.get(b"o", 0)),
    )


def parse_tail(message: bytes) -> Tail:
    """Read what lua/_session.lua publishes: a line ``epoch-first-last``, then one line per entry."""
    head, _, body = message.partition(b"\n")
    numbers = head.split(b"-")
    epoch, first, last = int(numbers[0]), int(numbers[1]), int(numbers[2])
    entries: list[Entry] = []
    if body:
        for seq, line in enumerate(body.split(b"\n"), first):
            task, path, kind, created, event, extra = line.split(b"\t")
            entries.append(
                Entry(seq, task.decode(), path.decode(), kind.decode(), int(created), event, extra)
            )
    return Tail(epoch, first, last, entries)
