"""An owner's sessions, the newest first, for the people who speak in them.

The list is the one by which the owner's storage is counted (`turnstream.shared.session.storage`): sessions by when they expire, which
is the order of their last sign of life, with those in front that are kept longer since they wait for their client. It is a hint, at the
primary; what is told of a session comes from its own keys.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from turnstream.shared import metrics
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import SessionKeys, owner_sessions
from turnstream.shared.broker.retry import Retrying, whole
from turnstream.shared.names import IDENTIFIER
from turnstream.shared.protocol import MessageType, Role
from turnstream.shared.session.status import TaskStatus

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from turnstream.shared.session.event_log import Log
    from turnstream.shared.session.tasks import Tasks

# Sessions looked at together, and for one page: what few fit is found in several pages, none of which takes long.
AT_ONCE = 50
MOST_LOOKED_AT = 500

# Live turns of a session that are asked for its state, the oldest first.
MOST_LIVE = 32

# Entries of a history among which the user's first message is.
FIRST_ENTRIES = 4

# Bytes that a session's beginning takes in its meta; with more, the broker would keep the whole meta in its larger form
# (hash-max-listpack-value).
MOST_BEGINNING = 60

# What the user calls a session, and how it begins, as `Tasks.note` keeps them.
TITLE = "title"
_BEGINNING = "begins"

# Beside the first message of a session that a request made for itself alone (`Entry.extra`): it is nobody's conversation.
ONE_SHOT = "one_shot"

_META = ("agent", "user", "epoch", "created", "origin", f"note:{TITLE}", f"note:{_BEGINNING}")
_TASK = ("status", "submitted", "launched", "started", "parked")

# A session's state by its live turns; the first one that fits.
STATES = (
    (TaskStatus.PARKED, "needs_you"),
    (TaskStatus.RUNNING, "running"),
    (TaskStatus.QUEUED, "queued"),
)


class Place(NamedTuple):
    """A place in the list: when the session expires (Unix ms), and its name."""

    until: int
    session: str

    def __str__(self) -> str:
        return f"{self.until}:{self.session}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read a place.

        Raises:
            ValueError: it is none.
        """
        until, _, session = text.partition(":")
        if not IDENTIFIER.fullmatch(session):
            raise ValueError(text)
        return cls(int(until), session)


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Whose sessions are meant: of an owner with an agent; empty fields match any. ``search`` is part of the title.

    ``user``: sessions of users are meant only where their user is named, those without one always. ``state`` is ``needs_you``, ``running``, ``queued`` or ``ended``.
    """

    owner: str
    agent: str
    user: str = ""
    search: str = ""
    state: str = ""


class SessionList(Retrying):
    """Reads the list."""

    def __init__(self, primary: Redis, sessions: Redis, log: Log, tasks: Tasks, ttl_ms: int) -> None:
        self._primary = primary
        self._sessions = sessions
        self._log = log
        self._tasks = tasks
        self._ttl_ms = ttl_ms

    @whole
    async def page(
        self, wanted: SessionFilter, limit: int, after: Place | None
    ) -> tuple[list[dict[str, Any]], Place | None]:
        """Up to ``limit`` sessions that come after the place, and where to go on; None: there are no more.

        A page may hold fewer, even none, and yet not be the last one.
        """
        found: list[dict[str, Any]] = []
        looked_at = 0
        while looked_at < MOST_LOOKED_AT:
            places, more = await self._places(wanted.owner, after)
            rows = await asyncio.gather(*(self.row(wanted, place.session) for place in places))
            looked_at += len(places)
            for place, row in zip(places, rows, strict=True):
                after = place
                if row is not None:
                    found.append(row)
                    if len(found) == limit:
                        return found, after
            if not more:
                return found, None
        return found, after

    async def _places(self, owner: str, after: Place | None) -> tuple[list[Place], bool]:
        """The next `AT_ONCE` places, and whether there may be more. What cannot be a session's name is passed over."""
        highest = str(after.until) if after else "+inf"
        offset = 0
        while True:
            # Expired ones stand in the list until it is counted anew.
            flat: list[bytes] = await command(
                self._primary,
                "ZREVRANGEBYSCORE", owner_sessions(owner), highest, int(time.time() * 1000) - self._ttl_ms,
                "WITHSCORES", "LIMIT", offset, AT_ONCE,
            )  # fmt: skip
            found = []
            for name, until in zip(flat[::2], flat[1::2], strict=True):
                try:
                    place = Place.parse(f"{float(until):.0f}:{name.decode()}")
                except ValueError:
                    metrics.unreadable.add("listed session")
                    continue
                # Of those of the same millisecond, the ones that were told already come first.
                if after is None or place < after:
                    found.append(place)
            more = len(flat) == 2 * AT_ONCE
            if found or not more:
                return found, more
            offset += AT_ONCE

    async def row(self, wanted: SessionFilter, session: str) -> dict[str, Any] | None:
        """What there is to tell of a session; None: it is gone, or not meant.

        Raises:
            redis.exceptions.RedisError, OSError: see `turnstream.shared.broker.retry.is_transient`.
        """
        keys = SessionKeys(wanted.owner, session)
        values, life, live = await asyncio.gather(
            command(self._sessions, "HMGET", keys.meta, *_META),
            command(self._sessions, "PTTL", keys.meta),
            command(self._sessions, "ZRANGE", keys.live, 0, MOST_LIVE - 1),
        )
        agent, user, epoch, created, origin, title, begins = (
            value.decode() if value else "" for value in values
        )
        if not epoch or life <= 0 or agent != wanted.agent or user not in ("", wanted.user):
            return None
        shown = title or await self._beginning(keys, epoch, begins)
        if shown is None:
            return None
        if wanted.search and wanted.search.casefold() not in shown.casefold():
            return None
        state, since, asked = await self._state(keys, [task.decode() for task in live])
        if wanted.state and wanted.state != state:
            return None
        now = int(time.time() * 1000)
        # With no turn that is live, a session has its whole time to live from its last sign of life on.
        at = since or min(now, now + life - self._ttl_ms)
        row: dict[str, Any] = {
            "session": session,
            "title": shown,
            "named": bool(title),
            "state": state,
            "active_at": max(at, int(created or 0)) / 1000,
            "expires_at": (now + life) / 1000,
            "calls": asked,
        }
        if origin:
            row["forked_from"] = dict(zip(("session", "task"), origin.split(" "), strict=True))
        if created:
            row["created_at"] = int(created) / 1000
        return row

    async def _state(self, keys: SessionKeys, live: list[str]) -> tuple[str, int, list[dict[str, str]]]:
        """A session's state, since when its turns are so (Unix ms; 0: none is live), and what they ask their client."""
        if not live:
            return "ended", 0, []
        told = await asyncio.gather(
            *(command(self._sessions, "HMGET", keys.task(task), *_TASK) for task in live)
        )
        status = {task: (values[0] or b"").decode() for task, values in zip(live, told, strict=True)}
        since = max(int(value or 0) for values in told for value in values[1:])
        state = next((name for known, name in STATES if known in status.values()), "ended")
        parked = [task for task in live if status[task] == TaskStatus.PARKED]
        asked = await asyncio.gather(*(self.calls(keys, task) for task in parked))
        calls = [{"task": task, **call} for task, some in zip(parked, asked, strict=True) for call in some]
        return state, since if state != "ended" else 0, calls

    async def calls(self, keys: SessionKeys, task: str) -> list[dict[str, str]]:
        """A turn's calls that its client has not answered, without their arguments: those are in the events."""
        kept: dict[bytes, bytes] = await command(self._sessions, "HGETALL", keys.calls(task))
        found = []
        for name, record in kept.items():
            call = name.decode()
            if call.endswith(":result") or name + b":result" in kept:
                continue
            told = orjson.loads(record)
            found.append(
                {
                    "call": call,
                    "kind": "approval" if told["kind"] == "approval" else "function",
                    "name": told.get("name") or "",
                    "path": told.get("path") or "",
                }
            )
        return found

    async def _beginning(self, keys: SessionKeys, epoch: str, kept: str) -> str | None:
        """How the session begins: its first message's first words, read from the history once. A clear begins anew.

        None: a request made it for itself alone; of such a one the epoch is kept, and no words.
        """
        known, some, text = kept.partition(" ")
        if known == epoch:
            return text if some else None
        for entry in await self._log.first_kept(keys, FIRST_ENTRIES):
            if entry.extra and orjson.loads(entry.extra).get(ONE_SHOT):
                await self._tasks.note(keys, _BEGINNING, epoch)
                return None
            message = orjson.loads(entry.event)
            if message.get("role") == Role.USER and message.get("type") == MessageType.MESSAGE:
                text = _words(message.get("content") or [])
                await self._tasks.note(keys, _BEGINNING, f"{epoch} {text}")
                return text
        return ""


def _words(content: list[dict[str, Any]]) -> str:
    """The first words of a message's text; where it has none, what its first part is."""
    text = " ".join(" ".join(part["text"] for part in content if part.get("text")).split())
    if not text:
        return str(content[0].get("filename") or content[0].get("type", "")) if content else ""
    cut = text.encode()[:MOST_BEGINNING].decode(errors="ignore")
    return cut if cut == text else f"{cut.rstrip()}…"
