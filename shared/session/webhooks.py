"""Whom a task is to tell of itself: webhooks, kept in the task's hash, and a hint at the primary when to see to it.

What is told is a state, not each event: that the client is asked, and that the task has ended. Whoever looks (any worker) tells
the present one, once for each webhook, and notes it; so nothing is owed but the newest state, whoever is killed in between.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import orjson

from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command
from turnstream.shared.broker.retry import Retrying, whole
from turnstream.shared.broker.scripts import Script
from turnstream.shared.session.queue import redate, remind
from turnstream.shared.session.status import TERMINAL, TaskStatus

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from turnstream.shared.broker.keys import TaskRef
    from turnstream.shared.session.tasks import Tasks

# Webhooks of one task.
MOST_WEBHOOKS = 8

_due = Script("webhooks_due", keys=("due",), args=("most", "again_ms"))

# What is read of a task to know whether anybody is to be told.
_FIELDS = ("status", "hooks", "parks", "parked", "ended", "submitted")


@dataclass(frozen=True, slots=True)
class Webhook:
    """Somebody who is told of a task.

    Attributes:
        id: its name, among those of the task.
        url: where.
        token: what the receiver knows us by; messages are signed with it, too.
        scheme, credentials: what stands in the ``Authorization`` header; or none does.
    """

    id: str
    url: str
    token: str = ""
    scheme: str = ""
    credentials: str = field(default="", repr=False)


class State(NamedTuple):
    """What there is to tell.

    Attributes:
        mark: unlike any other state's of the task.
        status: the task's.
        at: since when, Unix milliseconds.
    """

    mark: str
    status: str
    at: int


class Told(NamedTuple):
    """What came of telling a webhook.

    Attributes:
        mark: of which state.
        tries: how often it failed; 0: it was told.
        at: when to try again, Unix milliseconds; 0: never.
    """

    mark: str = ""
    tries: int = 0
    at: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """A task that is looked at: its present state if it is one to tell, whether it has ended, and who is told.

    ``since`` is when it became what it is, as far as is known, in Unix milliseconds.
    """

    state: State | None
    over: bool
    since: int
    webhooks: list[tuple[Webhook, Told]]


class Webhooks(Retrying):
    """Keeps webhooks and hints."""

    def __init__(self, primary: Redis, tasks: Tasks) -> None:
        self._primary = primary
        self._sessions = tasks.redis
        self._tasks = tasks

    async def keep(self, ref: TaskRef, webhook: Webhook) -> bool | None:
        """Keep a webhook, or another one in its place; False: the task has too many, None: there is no such task.

        A look is noted before and after: whoever dies in between has left one.
        """
        await self.remind(ref, 10_000)
        reply = await self._tasks.webhook(
            ref, webhook.id, "hook", orjson.dumps(asdict(webhook)), MOST_WEBHOOKS
        )
        if reply == b"kept":
            await self.remind(ref, 500)
        return {b"kept": True, b"full": False}.get(reply)

    async def drop(self, ref: TaskRef, name: str) -> None:
        """Tell that webhook no more."""
        await self._tasks.webhook(ref, name, "hook", b"", MOST_WEBHOOKS)

    async def note(self, ref: TaskRef, name: str, told: Told) -> None:
        """Note what came of telling a webhook."""
        value = f"{told.mark} {told.tries} {told.at}".encode()
        await self._tasks.webhook(ref, name, "told", value, MOST_WEBHOOKS)

    @whole
    async def of(self, ref: TaskRef) -> list[Webhook]:
        """The task's webhooks, the oldest first."""
        names = await command(self._sessions, "HGET", ref.keys.task(ref.task), "hooks")
        return [webhook for webhook, _ in await self._read(ref, (names or b"").decode().split())]

    @whole
    async def look(self, ref: TaskRef) -> Look | None:
        """Look at a task; None: nobody is told of it any more."""
        values = await command(
            self._sessions, "HMGET", ref.keys.task(ref.task), *_FIELDS, doubt=_tells_nobody
        )
        status, hooks, parks, parked, ended, submitted = ((value or b"").decode() for value in values)
        webhooks = await self._read(ref, hooks.split())
        if not status or not webhooks:
            return None
        over = status in TERMINAL
        state = None
        if over:
            state = State("end", status, int(ended or 0))
        elif status == TaskStatus.PARKED:
            state = State(f"asked-{parks.rpartition('-')[2]}", status, int(parked or 0))
        return Look(state, over, max(int(parked or 0), int(submitted or 0)), webhooks)

    async def remind(self, ref: TaskRef, ms: int) -> None:
        """Have somebody look at the task in ``ms`` at the latest."""
        await remind(self._primary, due=keys.WEBHOOKS, recent=None, live=None, ref=str(ref), look_ms=ms)

    async def recall(self, ref: TaskRef) -> None:
        """Have somebody look at the task now, if anybody is told of it: hints were lost."""
        if await command(self._sessions, "HGET", ref.keys.task(ref.task), "hooks"):
            await self.remind(ref, 0)

    async def any(self) -> bool:
        """Whether there are hints."""
        return bool(await command(self._primary, "ZCARD", keys.WEBHOOKS))

    async def due(self, count: int, again_ms: int) -> tuple[int, list[bytes]]:
        """Take hints whose time has come; each is due again in ``again_ms`` unless it is re-dated. Their date until then, too."""
        again, *hints = await _due(self._primary, due=keys.WEBHOOKS, most=count, again_ms=again_ms)
        return int(again), hints

    async def redate(self, ref: TaskRef, ms: int, taken: int) -> None:
        """Look at the task again in ``ms``, never again when negative; not if its hint is another than was ``taken``."""
        await redate(self._primary, due=keys.WEBHOOKS, ref=str(ref), look_ms=ms, taken=taken)

    async def forget(self, hint: bytes) -> None:
        """Drop a hint that names no task."""
        await command(self._primary, "ZREM", keys.WEBHOOKS, hint)

    async def _read(self, ref: TaskRef, names: list[str]) -> list[tuple[Webhook, Told]]:
        if not names:
            return []
        fields = [f"{kind}:{name}" for name in names for kind in ("hook", "told")]
        values: list[bytes | None] = await command(self._sessions, "HMGET", ref.keys.task(ref.task), *fields)
        return [
            (Webhook(**orjson.loads(hook)), _told(told))
            for hook, told in zip(values[::2], values[1::2], strict=True)
            if hook is not None
        ]


def _tells_nobody(values: list[bytes | None]) -> bool:
    """Whether a task, by its `_FIELDS`, is not there, or nobody is told of it."""
    return not (values[0] and values[1])


def _told(value: bytes | None) -> Told:
    if value is None:
        return Told()
    mark, tries, at = value.decode().split(" ")
    return Told(mark, int(tries), int(at))
