"""Tasks as operators see them: list, look at, follow, stop."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import orjson
import structlog
from starlette.responses import Response

from turnstream.api.access.session_access import Visitor
from turnstream.api.admin.events import MOST_EVENTS, USUAL_EVENTS, events_of
from turnstream.api.admin.params import StopBody, body_of, filter_of, place_of, ref_of
from turnstream.api.admin.replay import replay
from turnstream.api.admin.schemas import TaskPage, TaskReplayed, TaskShown, TasksStopped, TaskStopped
from turnstream.api.http.answers import answer
from turnstream.api.http.params import cursor_of, limit_of, route
from turnstream.api.protocols.agent_api.frames import AGENTSCOPE
from turnstream.api.turns.follow import watch
from turnstream.api.turns.stop import stop
from turnstream.api.turns.submit import idempotency_of
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import NoTask
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.outcomes import Finished, Gone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request
    from starlette.routing import Route

    from turnstream.api.services import Services
    from turnstream.api.streaming.sse import EventStream
    from turnstream.shared.session.task_list import Filter, Place

log = structlog.get_logger(__name__)

BASE = "/admin/v1"
TASK = BASE + "/tasks/{owner}/{session}/{task}"

USUAL_ROWS = 50
MOST_ROWS = 200

# Tasks stopped by one request; whoever asks for more asks again. Sessions ended at a time.
MOST_AT_ONCE = 200
SIDE_BY_SIDE = 16


class AdminTaskRoutes:
    """Serves operators."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            route(BASE + "/tasks", self.tasks, "GET"),
            route(TASK, self.task, "GET"),
            route(TASK + "/events", self.events, "GET"),
            route(TASK + "/follow", self.follow, "GET"),
            route(TASK + "/stop", self.stop, "POST"),
            route(TASK + "/replay", self.replay, "POST"),
            route(BASE + "/stop", self.stop_many, "POST"),
        ]

    async def tasks(self, request: Request) -> Response:
        """A page of the tasks that fit the query, newest first."""
        await self._services.auth.admin(request)
        rows, place = await self._page(
            filter_of(request), limit_of(request, USUAL_ROWS, MOST_ROWS), place_of(request)
        )
        return answer(TaskPage, {"tasks": rows, "next": str(place) if place else None})

    async def task(self, request: Request) -> Response:
        """One task, with the calls that its client has not answered, its attempts, and its requests to models."""
        await self._services.auth.admin(request)
        ref = ref_of(request)
        row = await self._row(ref)
        task_list = self._services.task_list
        calls, attempts, model_calls = await asyncio.gather(
            self._services.session_list.calls(ref.keys, ref.task),
            task_list.attempts(ref),
            task_list.model_calls(ref),
        )
        shown = {**row, "calls": calls, "attempts": attempts, **model_calls}
        if row["status"] == "failed" and (traceback := await self._traceback(ref)):
            shown["traceback"] = traceback
        return answer(TaskShown, shown)

    async def events(self, request: Request) -> Response:
        """A page of the task's events, oldest first."""
        services = self._services
        await services.auth.admin(request)
        ref = ref_of(request)
        cursor = cursor_of(request)
        limit = limit_of(request, USUAL_EVENTS, MOST_EVENTS)
        return Response(await events_of(services, ref, cursor, limit), media_type="application/json")

    async def follow(self, request: Request) -> EventStream:
        """The task's events as they come, as the Agent API tells them."""
        services = self._services
        key = await services.auth.admin(request)
        ref = ref_of(request)
        cursor = cursor_of(request)
        row = await self._row(ref)
        log.info("admin.follows", key=key.id, ref=str(ref))
        visitor = Visitor(row["agent"])
        return await watch(services, ref.keys, visitor, AGENTSCOPE, caller=None, task=ref.task, cursor=cursor)

    async def stop(self, request: Request) -> Response:
        """End one task. When this answers, its end is in the log."""
        key = await self._services.auth.admin(request)
        ref = ref_of(request)
        outcome = await self._stop(ref, key.id)
        if outcome == "missing":
            raise NoTask
        return answer(TaskStopped, {"ref": str(ref), "outcome": outcome})

    async def replay(self, request: Request) -> Response:
        """Say what the task's user said once more, as a new turn of the session."""
        key = await self._services.auth.admin(request)
        ref = ref_of(request)
        made = await replay(self._services, ref, idempotency_of(request))
        log.info("admin.replayed", key=key.id, ref=str(ref), to=str(made))
        return answer(TaskReplayed, {"ref": str(ref), "made": str(made)})

    async def stop_many(self, request: Request) -> Response:
        """End several tasks: those that are named, or all live ones that fit."""
        services = self._services
        key = await services.auth.admin(request)
        body = await body_of(request, services.settings, StopBody)
        more = False
        if body.refs is not None:
            refs = await self._waiting_first([TaskRef.parse(ref) for ref in dict.fromkeys(body.refs)])
        else:
            refs, more = await self._meant(body.filter())
        told: dict[str, list[str]] = {"stopped": [], "ended": [], "missing": []}
        sessions: dict[tuple[str, str], list[TaskRef]] = defaultdict(list)
        for ref in refs:
            sessions[ref.owner, ref.session].append(ref)
        turnstile = asyncio.Semaphore(SIDE_BY_SIDE)

        async def one_session(mine: Iterable[TaskRef]) -> None:
            # Those that wait stand first: they must not begin when the running one ends.
            async with turnstile:
                for ref in mine:
                    told[await self._stop(ref, key.id)].append(str(ref))

        # A group of tasks would hide the broker's trouble in a group of errors, and break off the others.
        done = await asyncio.gather(
            *(one_session(mine) for mine in sessions.values()), return_exceptions=True
        )
        for each in done:
            if isinstance(each, BaseException):
                raise each
        return answer(TasksStopped, {**told, "more": more})

    async def _meant(self, wanted: Filter) -> tuple[list[TaskRef], bool]:
        """The live tasks that fit, newest first, `MOST_AT_ONCE` at most; and whether there may be more."""
        found: list[TaskRef] = []
        place: Place | None = None
        while True:
            rows, place = await self._page(wanted, MOST_AT_ONCE - len(found), place)
            found += [TaskRef.parse(row["ref"]) for row in rows]
            if place is None or len(found) >= MOST_AT_ONCE:
                return found, place is not None

    async def _waiting_first(self, refs: list[TaskRef]) -> list[TaskRef]:
        """The tasks that wait for their turn, and then the others."""
        rows = await self._services.task_list.rows(refs)
        waiting = {row["ref"] for row in rows if row["waits_for_turn"]}
        return sorted(refs, key=lambda ref: str(ref) not in waiting)

    async def _stop(self, ref: TaskRef, key_id: str) -> str:
        """End a task; what became of it: stopped, ended (before) or missing."""
        outcome = await stop(self._services, ref, "stop", who=f"admin {key_id}")
        if isinstance(outcome, Gone):
            return "missing"
        became = "stopped" if isinstance(outcome, Finished) else "ended"
        log.info("admin.stopped", key=key_id, ref=str(ref), outcome=became)
        return became

    async def _page(
        self, wanted: Filter, limit: int, place: Place | None
    ) -> tuple[list[dict[str, Any]], Place | None]:
        return await self._services.task_list.page(wanted, limit, place)

    async def _row(self, ref: TaskRef) -> dict[str, Any]:
        rows = await self._services.task_list.rows([ref])
        if not rows:
            raise NoTask
        return rows[0]

    async def _traceback(self, ref: TaskRef) -> str:
        """The traceback that a worker in debug mode kept with the turn's end; empty when there is none."""
        log_ = self._services.log
        known, meta = await log_.task(ref.keys, ref.task), await log_.meta(ref.keys)
        if not known.get("out") or meta is None or not meta.has_epoch(int(known["epoch"])):
            return ""
        end = await log_.at(ref.keys, Cursor(meta.epoch, int(known["out"])))
        if end is None or end.task != ref.task or not end.extra:
            return ""
        return str(orjson.loads(end.extra).get("traceback", ""))
