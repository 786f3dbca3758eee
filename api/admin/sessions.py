"""Sessions as operators see them: what an owner's hold, and their end."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Annotated

import structlog
from pydantic import BaseModel, ConfigDict, Field
from redis.exceptions import ResponseError

from turnstream.api.admin.params import body_of
from turnstream.api.admin.schemas import SessionList, SessionsDeleted
from turnstream.api.admin.tasks import BASE
from turnstream.api.http.answers import answer
from turnstream.api.http.params import limit_of, route
from turnstream.api.turns.stop import clear
from turnstream.shared.broker.client import command, servers
from turnstream.shared.broker.keys import SessionKeys, sessions_pattern
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.errors import BadRequest, NoSession
from turnstream.shared.names import IDENTIFIER

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from turnstream.api.services import Services

log = structlog.get_logger(__name__)

USUAL_ROWS = 50
MOST_ROWS = 1000

# Sessions deleted by one request; whoever wants more gone asks again.
MOST_AT_ONCE = 200

# Keys looked at, and deleted, by one command.
KEYS_AT_ONCE = 1000

_Name = Annotated[str, Field(pattern=f"^{IDENTIFIER.pattern}$")]


class DeleteBody(BaseModel):
    """Whose sessions to delete: one, or all."""

    model_config = ConfigDict(extra="forbid")

    owner: _Name
    session: _Name | None = None


class AdminSessionRoutes:
    """Serves operators."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            route(BASE + "/sessions", self.sessions, "GET"),
            route(BASE + "/sessions/delete", self.delete, "POST"),
        ]

    async def sessions(self, request: Request) -> Response:
        """What an owner's sessions hold, the largest first."""
        services = self._services
        await services.auth.admin(request)
        owner = request.query_params.get("owner", "")
        if not IDENTIFIER.fullmatch(owner):
            raise BadRequest("owner: name the owner whose sessions are wanted")
        limit = limit_of(request, USUAL_ROWS, MOST_ROWS)
        held, count, found = await services.storage.of(owner, limit)
        rows = [{"session": each.session, "bytes": each.bytes, "expires_at": each.expires} for each in found]
        return answer(SessionList, {"owner": owner, "bytes": held, "count": count, "sessions": rows})

    async def delete(self, request: Request) -> Response:
        """End what is live in an owner's sessions, and delete them with all that was said."""
        services = self._services
        key = await services.auth.admin(request)
        body = await body_of(request, services.settings, DeleteBody)
        sessions, more = await self._kept(body.owner, body.session)
        deleted = [
            session
            for session, names in sorted(sessions.items())
            if await self._delete(SessionKeys(body.owner, session), names, key.id)
        ]
        if body.session is not None and not deleted:
            raise NoSession
        return answer(SessionsDeleted, {"deleted": deleted, "more": more})

    async def _delete(self, keys: SessionKeys, names: list[str], key_id: str) -> bool:
        """End what is live in a session and delete it, then what its turns left: their hashes, answered calls, and so on.

        Whoever speaks in it meanwhile is in a new session of that name, of which nothing is deleted. False: there was nothing but
        the marks of rescuers that have looked for its turns since it was deleted before.
        """
        services = self._services
        # The session's own keys have one word behind the prefix.
        left = [name for name in names if ":" in name.removeprefix(keys.prefix)]
        try:
            await clear(services, keys, None, "deleted", who=f"admin {key_id}")
            there = True
        except NoSession:
            there = False
            for name in names:
                if not await self._is_mark(keys, name):
                    there = True
                    break
        for at in range(0, len(left), KEYS_AT_ONCE):
            some = left[at : at + KEYS_AT_ONCE]
            await command(services.broker.sessions, "DEL", *some)
        await services.storage.try_report(keys)
        if there:
            log.info("admin.session_deleted", key=key_id, owner=keys.owner, session=keys.session)
        return there

    async def _is_mark(self, keys: SessionKeys, name: str) -> bool:
        """Whether a key is none of what was said: who looked for a turn that is not there left it (lua/sweep.lua), or who waited for replicas."""
        if name == keys.mark:
            return True
        if not name.startswith(keys.task("")):
            return False
        try:
            return not await command(self._services.broker.sessions, "HEXISTS", name, "status")
        except ResponseError as error:
            if is_transient(error):
                raise
            # Of another type: it is nobody's.
            return False

    async def _kept(self, owner: str, session: str | None) -> tuple[dict[str, list[str]], bool]:
        """The names of the keys of an owner's sessions, by session; and whether there are more than `MOST_AT_ONCE`."""
        found: dict[str, list[str]] = defaultdict(list)
        _, where = await servers(self._services.broker.sessions)
        for server in where:
            cursor = ""
            while cursor != "0":
                after, names = await command(
                    server,
                    "SCAN", cursor or "0", "MATCH", sessions_pattern(owner, session), "COUNT", KEYS_AT_ONCE,
                )  # fmt: skip
                for name in names:
                    text = name.decode()
                    found[text[text.index("/") + 1 : text.index("}")]].append(text)
                cursor = after.decode() if isinstance(after, bytes) else str(after)
                if len(found) > MOST_AT_ONCE:
                    return dict(list(found.items())[:MOST_AT_ONCE]), True
        return found, False
