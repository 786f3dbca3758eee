"""A session's log and history as readers see them: from a cursor, forward, never from the start.

The log is written by lua/_session.lua alone. Its stream ids are the places of cursors, so reading on costs what
was missed, however long the log is; they begin with the log's first epoch, whatever epochs came after that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ReadOnlyError

from turnstream.shared.broker.client import command
from turnstream.shared.broker.retry import Retrying, whole
from turnstream.shared.broker.scripts import Script
from turnstream.shared.session.entry import Cursor, Entry
from turnstream.shared.session.files import fetch, fill

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from redis.asyncio import Redis

    from turnstream.shared.broker.cluster import Doubt
    from turnstream.shared.broker.keys import SessionKeys

# What one read may bring, objects included; a single entry above it comes alone. A follower far behind holds as
# much while its client takes it, however slowly. Nor do larger pages suit who reads all of something: of small events,
# eight times as much held up the broker for 28 ms, and its reader's event loop for 25.
PAGE_BYTES = 128 * 1024

_read = Script("read", keys=("meta", "stream", "files"), args=("place", "stop", "most_bytes"), large=True)
_FIRST = "0-0"
# An entry's `c` counts from the epoch of its id; an earlier release counted from 1970: no less than this.
_OLDEST = 10**12
_LAST_SEQ = 2**64 - 1
# What readers get of a session's meta hash, in this order; lua/read.lua has the same.
META = ("agent", "user", "epoch", "seq", "head", "active", "former")
# Where the base stands in what that script says of the meta.
_BASE = 9


@dataclass(frozen=True, slots=True)
class SessionMeta:
    """What a session's meta hash tells a reader.

    Attributes:
        agent, user: whom it belongs to.
        epoch: generation of the log.
        seq: of the newest entry.
        head: seq of the oldest entry that is still in the log.
        active: the task whose turn it is, in a serial session; may be empty.
        former: epochs that this log went through before, the newest and the first, each with its last seq: a broker that
            may have lost the log's end begins a new one. Up to there, their cursors mean what they meant.
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
        return min(self.former, default=self.epoch) <= epoch <= self.epoch

    def lacks(self, written: Cursor) -> bool:
        """Whether a place that was written is not among those that the log ever had, as far as is known: not all former epochs are."""
        last = self.seq if written.epoch == self.epoch else self.former.get(written.epoch)
        return written.seq > last if last is not None else not self.has_epoch(written.epoch)


class Lacking(Exception):  # noqa: N818 - it may be no error
    """What was written is not in the log that answered.

    It was lost, or dropped with the session; or another server answered than the one that has it.
    """


@dataclass(frozen=True, slots=True)
class Page:
    """What one read of a log or a history brought.

    Attributes:
        meta: the session's. Where its epoch is not the one that was asked for, the page tells no more than that: see
            `SessionMeta.place`. Its seq is of the log's newest entry, whether that is in the log or was cut from it.
        written: when the entry at the place that was asked for was written, Unix milliseconds; 0 if none stands there.
        entries: those behind the place, oldest first. Where the first one of a log is not the place's next, those
            between were cut.
        whole: whether nothing that was asked for stood behind the entries then.
        cut: of a history, whether entries that stood behind the place may have been cut from it.
    """

    meta: SessionMeta
    written: int
    entries: list[Entry]
    whole: bool
    cut: bool

    @property
    def last(self) -> Cursor | None:
        """The place of the last entry; None: there is none."""
        return Cursor(self.meta.epoch, self.entries[-1].seq) if self.entries else None


class Tail(NamedTuple):
    """One message of a session's tail channel.

    ``entries`` is empty when the batch was too large to be published, when the log began a new epoch, or when an earlier
    release parked a task (then nothing stands between ``first`` and ``last``). ``written`` is when the entry
    at ``last`` was written, 0 if that is not said.
    """

    epoch: int
    first: int
    last: int
    written: int
    entries: list[Entry]


class Log(Retrying):
    """Reads the sessions' logs on one server."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def meta(self, keys: SessionKeys) -> SessionMeta | None:
        """The session's meta, or None when there is no such session."""
        return _meta(await command(self._redis, "HMGET", keys.meta, *META))

    async def sure_meta(self, keys: SessionKeys, cursor: Cursor | None = None) -> SessionMeta | None:
        """The same, to tell a client by: where there is none, or it lacks the ``cursor``, that is what the log's primary says.

        Raises:
            BrokerAway: the broker did not answer.
        """

        def lacks(values: list[bytes | None]) -> bool:
            meta = _meta(values)
            return meta is None or (cursor is not None and meta.place(cursor) is None)

        return _meta(await command(self._redis, "HMGET", keys.meta, *META, doubt=lacks))

    async def live(self, keys: SessionKeys) -> list[str]:
        """The session's tasks that have not ended, the newest first."""
        tasks: list[bytes] = await command(self._redis, "ZRANGE", keys.live, 0, -1, "REV")
        return [task.decode() for task in tasks]

    async def note(self, keys: SessionKeys, name: str) -> str | None:
        """What a protocol said of a session under that name, see `Tasks.note`; None: nothing."""
        kept: bytes | None = await command(self._redis, "HGET", keys.meta, f"note:{name}")
        return None if kept is None else kept.decode()

    async def task(self, keys: SessionKeys, task: str, *, sure: bool = False) -> dict[str, str]:
        """The task's hash without its larger fields; empty when there is no such task, ``sure``: as the log's primary says."""
        names = (
            "status", "epoch", "first", "out", "number", "response", "metadata", "submitted", "why", "attempt", "parked_until",
            "parks",
        )  # fmt: skip
        doubt = _all_missing if sure else None
        values = await command(self._redis, "HMGET", keys.task(task), *names, doubt=doubt)
        return {name: value.decode() for name, value in zip(names, values, strict=True) if value is not None}

    @whole
    async def page(
        self, keys: SessionKeys, after: Cursor, most: int = PAGE_BYTES, written: Cursor | None = None
    ) -> Page | None:
        """Entries after the cursor, oldest first, up to ``most`` bytes but at least one; None: there is no session.

        ``written``: a place that the reader knows to have been written. Where the page lacks that, or the cursor's entry, which a
        client has seen and is told then that its history is gone, or there is none, it is the log's primary that says so (`Script.sure`).
        """

        def lacks(meta: SessionMeta | None) -> bool:
            return meta is None or (bool(after.seq) and meta.place(after) is None) or _lacks(meta, written)

        return await self._read(keys, keys.log, str(after), f"{after.epoch}-{_LAST_SEQ}", most, lacks)

    @whole
    async def at(self, keys: SessionKeys, cursor: Cursor) -> Entry | None:
        """The entry at the cursor, if it still stands in the log or in the history, for sure; without its large data.

        A cursor of a former epoch is good, too.
        """
        if not cursor.seq:
            # The place before the first.
            return None
        before = str(cursor._replace(seq=cursor.seq - 1))
        for key in (keys.log, keys.history):
            doubt = partial(_lacks_entry, cursor=cursor, cut=key == keys.log)
            reply = await self._rows(keys, key, before, str(cursor), 1, doubt)
            meta = _meta(reply[0]) if reply else None
            if meta is None:
                return None
            if meta.epoch != cursor.epoch:
                place = meta.place(cursor)
                return place and await self.at(keys, place)
            for entry_id, pairs in reply[2]:
                return _entry(entry_id, pairs, {})
        return None

    @whole
    async def first_kept(self, keys: SessionKeys, most: int) -> list[Entry]:
        """The oldest entries of the history, ``most`` at most; without their large data."""
        found = await command(self._redis, "XRANGE", keys.history, "-", "+", "COUNT", most, large=True)
        return [
            _entry(entry_id, [part for pair in fields.items() for part in pair], {})
            for entry_id, fields in found
        ]

    @whole
    async def reaches_back(self, keys: SessionKeys, cursor: Cursor) -> bool:
        """Whether all that the history ever had after the cursor is still in it, for certain."""

        def lacks(meta: SessionMeta | None) -> bool:
            return meta is None or meta.epoch != cursor.epoch

        page = await self._read(keys, keys.history, str(cursor), str(cursor), 1, lacks)
        return page is not None and page.meta.epoch == cursor.epoch and not page.cut

    @whole
    async def kept(
        self,
        keys: SessionKeys,
        after: Cursor | None = None,
        before: Cursor | None = None,
        written: Cursor | None = None,
    ) -> Page | None:
        """Completed messages and terminal responses, oldest first, strictly between the cursors; None: no session.

        Up to `PAGE_BYTES` but at least one, unless none is left. Both cursors are of one epoch: those that have another
        one than the page say nothing about it. ``written``: as for `page`.
        """
        stop = f"({before}" if before else "+"
        return await self._read(
            keys, keys.history, str(after or _FIRST), stop, PAGE_BYTES, partial(_lacks, written=written)
        )

    def all_kept(
        self, keys: SessionKeys, after: Cursor | None = None, written: Cursor | None = None
    ) -> AsyncIterator[Entry]:
        """All that the history has after the cursor, page by page.

        Each entry once, also where the log begins a new epoch between two pages; no more when it was cleared. ``written`` is a
        place that the reader knows to have been written.

        Raises:
            BrokerAway: the broker did not answer.
            Lacking: the log that answered does not have what was ``written``.
        """
        return self._all(lambda log, place: log.kept(keys, place, written=written), after, written)

    def all_after(
        self, keys: SessionKeys, after: Cursor, written: Cursor | None = None
    ) -> AsyncIterator[Entry]:
        """All that the log has after the cursor, as `all_kept`; it ends where it ends when that is read."""
        return self._all(lambda log, place: log.page(keys, place or after, written=written), after, written)

    async def all_kept_rows(
        self, keys: SessionKeys, last: Cursor
    ) -> AsyncIterator[tuple[int, dict[bytes, bytes]]]:
        """All that the history has up to a cursor, as it stands there: seq and fields, times from 1970, data by reference.

        No more where the log is of another epoch by now.

        Raises:
            BrokerAway: the broker did not answer.
        """
        after = _FIRST
        while True:
            reply = await self._rows_until(keys, after, last)
            if not reply or int(reply[0][2]) != last.epoch:
                return
            rows = reply[2]
            for entry_id, pairs in rows:
                fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
                fields[b"c"] = b"%d" % _created(entry_id.partition(b"-")[0], fields[b"c"])
                yield _seq_of(entry_id), fields
            if reply[4] or not rows:
                return
            after = f"{last.epoch}-{_seq_of(rows[-1][0])}"

    @whole
    async def _rows_until(self, keys: SessionKeys, after: str, last: Cursor) -> list[Any]:
        def lacks(reply: list[Any]) -> bool:
            return bool(reply) and int(reply[0][2]) == last.epoch and int(reply[0][3]) < last.seq

        reply = await self._rows(keys, keys.history, after, str(last), PAGE_BYTES, lacks)
        if lacks(reply):
            raise ReadOnlyError("a log answers that lacks what was read of it before")
        return reply

    @whole
    async def _rows(
        self, keys: SessionKeys, stream: str, start: str, stop: str, most: int, doubt: Doubt | None = None
    ) -> list[Any]:
        """What read.lua replies."""
        reply: list[Any] = await _read.sure(
            self._redis,
            doubt,
            meta=keys.meta,
            stream=stream,
            files=keys.files,
            place=start,
            stop=stop,
            most_bytes=most,
        )
        return reply

    async def _all(
        self,
        read: Callable[[Log, Cursor | None], Awaitable[Page | None]],
        after: Cursor | None,
        written: Cursor | None,
    ) -> AsyncIterator[Entry]:
        while True:
            page = await read(self, after)
            if _lacks(page.meta if page else None, written):
                raise Lacking
            if page is not None and after is not None and page.meta.epoch != after.epoch:
                if (after := page.meta.place(after)) is None:
                    return
                continue
            if page is None or page.last is None:
                return
            for entry in page.entries:
                yield entry
            if page.whole:
                return
            after = page.last

    async def _read(
        self,
        keys: SessionKeys,
        stream: str,
        start: str,
        stop: str,
        most: int,
        lacks: Callable[[SessionMeta | None], bool] | None = None,
    ) -> Page | None:
        def doubt(reply: list[Any]) -> bool:
            return lacks is not None and lacks(_meta(reply[0]) if reply else None)

        for _ in range(2):
            reply = await self._rows(keys, stream, start, stop, most, doubt)
            if not reply:
                return None
            known, written, rows, digests, whole, cut = reply
            files = await fetch(self._redis, keys.files, digests)
            if len(files) == len(digests):
                break
            # Dropped in between, as the entries were that refer to them; or lost.
        meta = _meta(known)
        if meta is None:
            return None
        return Page(
            meta=meta,
            written=_created(known[_BASE] or known[2], written) if written else 0,
            entries=[_entry(entry_id, pairs, files) for entry_id, pairs in rows],
            whole=bool(whole),
            cut=bool(cut),
        )


def _all_missing(values: list[bytes | None]) -> bool:
    return not any(values)


def _lacks_entry(reply: list[Any], *, cursor: Cursor, cut: bool) -> bool:
    """Whether a log does not have a place, or what was read of it no entry there, which may have been ``cut``."""
    meta = _meta(reply[0]) if reply else None
    return meta is None or meta.place(cursor) is None or not (cut or reply[2])


def _lacks(meta: SessionMeta | None, written: Cursor | None) -> bool:
    """Whether a log does not have what is known to have been written; None: nothing is."""
    return written is not None and (meta is None or meta.lacks(written))


def _meta(values: list[bytes | None]) -> SessionMeta | None:
    """Read the values of `META`; None when there is no such session."""
    agent, user, epoch, seq, head, active, former = (
        value.decode() if value else "" for value in values[: len(META)]
    )
    if not epoch:
        return None
    return SessionMeta(
        agent=agent,
        user=user,
        epoch=int(epoch),
        seq=int(seq),
        head=int(head or 1),
        active=active,
        former=_former(former),
    )


def _former(text: str) -> dict[int, int]:
    return {int(epoch): int(last) for epoch, _, last in (ended.partition("-") for ended in text.split())}


def _seq_of(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[2])


def _created(base: bytes, text: bytes) -> int:
    """When an entry was written, by the first number of its id and its field `c`."""
    created = int(text)
    return created if created >= _OLDEST else int(base) // 1000 + created


def _entry(entry_id: bytes, pairs: list[bytes], files: Mapping[str, bytes]) -> Entry:
    fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
    base, _, seq = entry_id.partition(b"-")
    return Entry(
        seq=int(seq),
        # Rings and pages hold many entries of few tasks and kinds: one text serves all.
        task=intern(fields[b"t"].decode()),
        path=intern(fields[b"a"].decode()),
        kind=intern(fields[b"y"].decode()),
        created=_created(base, fields[b"c"]),
        event=fill(fields[b"e"], files),
        extra=fill(fields[b"x"], files),
        opened=int(fields.get(b"o", 0)),
        epoch=int(fields.get(b"n", base)),
    )


def parse_tail(message: bytes) -> Tail:
    """Read what lua/_session.lua publishes: a line ``epoch-first-last-written``, then one line per entry."""
    head, _, body = message.partition(b"\n")
    numbers = head.split(b"-")
    epoch, first, last = int(numbers[0]), int(numbers[1]), int(numbers[2])
    # Missing where nothing was written, and in what an earlier release says.
    written = int(numbers[3]) if len(numbers) > 3 else 0
    entries: list[Entry] = []
    if body:
        for seq, line in enumerate(body.split(b"\n"), first):
            task, path, kind, created, event, extra = line.split(b"\t")
            entries.append(
                Entry(
                    seq,
                    intern(task.decode()),
                    intern(path.decode()),
                    intern(kind.decode()),
                    int(created),
                    event,
                    extra,
                    epoch=epoch,
                )
            )
    return Tail(epoch, first, last, written, entries)
