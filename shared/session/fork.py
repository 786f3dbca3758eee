"""A new session that begins with what was said in another one, up to the end of a turn: its memory and its history.

They are copied, since either session may be cleared or expire. Source and target may be at two nodes of a cluster, so no script can do
it: what is copied is read, and read again if the source's log began a new epoch meanwhile; it waits beside the target under a name
of its own; then one script makes the session of it, once.

The target's log begins behind the turn, as if all before it had been trimmed. The turns themselves stay where they were: the new
session has none of that name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from turnstream.shared.broker.client import command
from turnstream.shared.broker.scripts import Script
from turnstream.shared.errors import (
    BrokerAway,
    CursorGone,
    IdempotencyMismatch,
    NoSession,
    NoTask,
    SessionBusy,
)
from turnstream.shared.session.endings import named
from turnstream.shared.session.entry import END, Cursor
from turnstream.shared.session.files import FETCHED_AT_ONCE, PIECE_BYTES, fetch, references
from turnstream.shared.session.status import TERMINAL
from turnstream.shared.session.storage import SESSION_BYTES
from turnstream.shared.session.tasks import STAGED_MS, Waiting, operation, stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.batch import Argument
    from turnstream.shared.session.event_log import Log, SessionMeta
    from turnstream.shared.session.tasks import Tasks

# To repeat it would bring a piece twice.
_graft = Script("graft", keys=("history", "memory"), args=("life_ms",), rest="parts", large=True, once=True)

# As lua/_session.lua: what an entry costs beside what its fields hold.
_ENTRY_BYTES = 96
_LINE = (b"t", b"a", b"y", b"c", b"e", b"x")

# How many are made at once in a process. Each may hold as much as a memory and a history do.
FORKS_AT_ONCE = 4

# How often a source is read that begins new epochs meanwhile: its broker fails over again and again.
_MOST_READS = 3


@dataclass(frozen=True, slots=True)
class Copied:
    """What a fork begins with.

    Attributes:
        seq: the last place of the source that it has.
        entries: of the history: seq, and fields with their values.
        elements: of the memory.
        files: bytes of each file that these refer to.
    """

    seq: int
    entries: list[tuple[int, dict[bytes, bytes]]]
    elements: list[bytes]
    files: dict[str, int]

    def lent(self, *texts: bytes) -> int:
        """The bytes of the files that texts refer to."""
        return sum(self.files.get(digest, 0) for text in texts for digest in references(text))

    @property
    def size(self) -> int:
        """The bytes that it takes, where files stand once."""
        history = sum(_bytes_of(fields) for _, fields in self.entries)
        return SESSION_BYTES + history + sum(map(len, self.elements)) + sum(self.files.values())


class Forks:
    """Makes them: one of an owner at a time, and few in all, since each holds what it copies."""

    def __init__(self, tasks: Tasks, log: Log) -> None:
        self._tasks = tasks
        self._log = log
        self._owners = WeakValueDictionary[str, asyncio.Lock]()
        self._room = asyncio.Semaphore(FORKS_AT_ONCE)

    async def make(
        self,
        source: SessionKeys,
        meta: SessionMeta,
        task: str,
        target: SessionKeys,
        admit: Callable[[int], Awaitable[None]],
    ) -> bool:
        """Make ``target`` of what ``source`` held at the end of its turn ``task``; False when it was made so before.

        ``admit`` is asked whether there is room for so many bytes. A target without a turn soon expires, as any session.

        Raises:
            NoSession: the source is gone.
            NoTask: the source has no such turn (any more).
            SessionBusy: the turn has not ended.
            CursorGone: the source was cleared since, or no longer remembers the turn.
            IdempotencyMismatch: the target is another session.
            BrokerAway: the broker did not answer.
            What ``admit`` raises.
        """
        alone = self._owners.setdefault(source.owner, asyncio.Lock())
        async with alone, self._room:
            redis = self._tasks.redis
            origin = f"{source.session} {task}"
            epoch, made_of = await command(redis, "HMGET", target.meta, "epoch", "origin")
            if epoch:
                return _made(made_of or b"", origin)
            for _ in range(_MOST_READS):
                copied = await _read(redis, self._log, source, meta, task, target)
                now = await self._log.meta(source)
                if now is None:
                    raise NoSession
                if now.epoch == meta.epoch:
                    break
                meta = now
            else:
                raise BrokerAway
            await admit(copied.size)
            reply = await self._tasks.fork(
                target, meta, origin, await _stage_all(redis, source, copied, target)
            )
            if reply[0] == b"forked":
                return True
            if reply[0] == b"exists":
                return _made(reply[1], origin)
            # What waited for it went, since it took too long.
            raise BrokerAway


def _made(made_of: bytes, origin: str) -> bool:
    """False, of a session that is there already.

    Raises:
        IdempotencyMismatch: it was made of something else.
    """
    if made_of.decode() != origin:
        raise IdempotencyMismatch
    return False


async def _read(
    redis: Redis, log: Log, source: SessionKeys, meta: SessionMeta, task: str, target: SessionKeys
) -> Copied:
    """What stands in the source up to the turn's end."""
    known = await log.task(source, task)
    if not known:
        raise NoTask
    if not meta.has_epoch(int(known["epoch"])):
        raise CursorGone
    if known["status"] not in TERMINAL:
        raise SessionBusy("The turn has not ended: begin another session with it then.")
    seq = int(known["out"])
    elements = await _remembered(redis, source, task)
    entries = await _told(log, source, Cursor(meta.epoch, seq), target)
    texts = [*elements, *(text for _, fields in entries for text in (fields[b"e"], fields[b"x"]))]
    digests = sorted({digest for text in texts for digest in references(text)})
    sizes = await asyncio.gather(*(command(redis, "HSTRLEN", source.files, digest) for digest in digests))
    # One that is gone is gone in the target, too.
    files = {digest: size for digest, size in zip(digests, sizes, strict=True) if size}
    return Copied(seq, entries, elements, files)


async def _remembered(redis: Redis, source: SessionKeys, task: str) -> list[bytes]:
    """The memory up to a turn; none where the agent has none."""
    memory: list[bytes] = await command(redis, "LRANGE", source.memory, 0, -1, large=True)
    head = named(task, b'{"')[:-1]
    for at, element in enumerate(memory, 1):
        if element.startswith(head):
            return memory[:at]
    if await command(redis, "HGET", source.meta, "remember") == b"0":
        return []
    raise CursorGone("The session no longer remembers this turn, so nothing can go on from it.")


async def _told(
    log: Log, source: SessionKeys, stop: Cursor, target: SessionKeys
) -> list[tuple[int, dict[bytes, bytes]]]:
    """The history of all turns that had ended at a place, as the target's."""
    rows = [row async for row in log.all_kept_rows(source, stop)]
    ended = {fields[b"t"] for _, fields in rows if fields[b"y"] == END.encode()}
    entries = []
    for seq, fields in rows:
        # A turn that went on behind the place is none of what the target's turns come after.
        if fields[b"t"] not in ended:
            continue
        if fields[b"y"] == END.encode():
            was, becomes = (b'"session_id":"%b"' % each.session.encode() for each in (source, target))
            fields[b"e"] = fields[b"e"].replace(was, becomes, 1)
        for field in (b"l", b"n"):
            fields.pop(field, None)
        entries.append((seq, fields))
    return entries


def _bytes_of(fields: dict[bytes, bytes]) -> int:
    """What lua/_session.lua counts for an entry: a line of these, and what it costs beside."""
    return sum(len(fields[name]) + 1 for name in _LINE) - 1 + _ENTRY_BYTES


async def _stage_all(redis: Redis, source: SessionKeys, copied: Copied, target: SessionKeys) -> Waiting:
    """Bring all that the target begins with to where it waits."""
    history, memory = target.staged(op := operation(), "history"), target.staged(op, "memory")

    async def graft(elements: list[bytes], entries: list[Argument]) -> int:
        parts = [len(elements), *elements, *entries]
        return int(await _graft(redis, history=history, memory=memory, life_ms=STAGED_MS, parts=parts))

    # By the clock of the target's server, as any epoch.
    epoch = await graft([], [])
    waiting: list[bytes] = []
    for element in copied.elements:
        if waiting and sum(map(len, waiting)) + len(element) > PIECE_BYTES:
            await graft(waiting, [])
            waiting = []
        waiting.append(element)
    await graft(waiting, [])
    kept = lent = size = 0
    rows: list[Argument] = []
    for seq, fields in copied.entries:
        fields[b"s"] = b"%d" % kept
        if lent:
            fields[b"l"] = b"%d" % lent
        flat = [part for pair in fields.items() for part in pair]
        rows += (f"{epoch}-{seq}", len(flat), *flat)
        of_files = copied.lent(fields[b"e"], fields[b"x"])
        costs = _bytes_of(fields)
        kept, lent, size = kept + costs + of_files, lent + of_files, size + costs
        if size > PIECE_BYTES:
            await graft([], rows)
            rows, size = [], 0
    await graft([], rows)
    files = list(copied.files)
    for at in range(0, len(files), FETCHED_AT_ONCE):
        some = await fetch(
            redis, source.files, [digest.encode() for digest in files[at : at + FETCHED_AT_ONCE]]
        )
        for digest, data in some.items():
            await stage(redis, files=target.files, digest=digest, data=data, life_ms=STAGED_MS)
    often = Counter(digest for element in copied.elements for digest in references(element))
    memory_lent = copied.lent(*copied.elements)
    return Waiting(
        history=history,
        memory=memory,
        epoch=epoch,
        seq=copied.seq,
        entries=len(copied.entries),
        elements=len(copied.elements),
        kept=kept,
        memory_bytes=sum(map(len, copied.elements)) + memory_lent,
        history_lent=lent,
        memory_lent=memory_lent,
        files=files,
        references={digest: times for digest, times in often.items() if digest in copied.files},
    )
