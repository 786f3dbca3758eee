"""API keys over HTTP; `turnstream keys` does the same at the broker."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import structlog
from pydantic import BaseModel, ConfigDict, Field

from turnstream.api.admin.params import body_of
from turnstream.api.admin.schemas import KeyList, KeyMade, KeyRevoked
from turnstream.api.admin.tasks import BASE
from turnstream.api.http.answers import answer
from turnstream.api.http.params import route
from turnstream.shared.api_keys import Limits, Note, Scope, make_token
from turnstream.shared.errors import InvalidBody
from turnstream.shared.names import IDENTIFIER

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from turnstream.api.services import Services
    from turnstream.shared.api_keys import ApiKey

log = structlog.get_logger(__name__)

_MOST_DAYS = 36_500
_MOST_HOURS = 8760


class NewKeyBody(Limits):
    """A key to make."""

    model_config = ConfigDict(extra="forbid")

    owner: Annotated[str, Field(pattern=f"^{IDENTIFIER.pattern}$")]
    agent: str = "demo"
    others: Annotated[
        tuple[str, ...],
        Field(
            max_length=64,
            description="Agents that a request of OpenAI's protocol may name instead, as its model.",
        ),
    ] = ()
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1, max_length=2)] = ("chat",)
    days: Annotated[int, Field(ge=0, le=_MOST_DAYS, description="Until it expires; 0: never.")] = 0
    note: Note = ""


class RotateBody(BaseModel):
    """How long the former key goes on working."""

    model_config = ConfigDict(extra="forbid")

    hours: Annotated[float, Field(ge=0, le=_MOST_HOURS)] = 24.0


class AdminKeyRoutes:
    """Serves operators."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            route(BASE + "/keys", self.keys, "GET"),
            route(BASE + "/keys", self.create, "POST"),
            route(BASE + "/keys/{id}/rotate", self.rotate, "POST"),
            route(BASE + "/keys/{id}/revoke", self.revoke, "POST"),
        ]

    async def keys(self, request: Request) -> Response:
        """Every key, without what only its holder knows."""
        services = self._services
        await services.auth.admin(request)
        found, used = await asyncio.gather(services.api_keys.all(), services.api_keys.used())
        rows = [told(key) | ({"used_at": used[key.id]} if key.id in used else {}) for key in found]
        return answer(KeyList, {"keys": rows})

    async def create(self, request: Request) -> Response:
        """Make a key; this is the only time that it is shown."""
        services = self._services
        by = await services.auth.admin(request)
        body = await body_of(request, services.settings, NewKeyBody)
        for field, name in (("agent", body.agent), *(("others", name) for name in body.others)):
            if "chat" in body.scopes and name not in services.agents:
                known = ", ".join(spec.name for spec in services.agents)
                raise InvalidBody(f"{field}: no such agent; there are {known}")
        token = make_token()
        expires = int(time.time()) + body.days * 86_400 if body.days else 0
        limits = Limits.model_validate(body.model_dump(include=set(Limits.model_fields)))
        key = await services.api_keys.register(
            token,
            owner=body.owner,
            agent=body.agent,
            others=body.others,
            scopes=body.scopes,
            expires=expires,
            limits=limits,
            note=body.note,
        )
        log.info("admin.key_created", by=by.id, key=key.id, owner=key.owner, scopes=key.scopes)
        return answer(KeyMade, {**told(key), "token": token})

    async def rotate(self, request: Request) -> Response:
        """Make a successor of a key; the former one goes on working for a while."""
        services = self._services
        by = await services.auth.admin(request)
        body = await body_of(request, services.settings, RotateBody)
        former = request.path_params["id"]
        # Not to be repeated by itself: each time makes another key.
        token, key = await services.api_keys.rotate(former, int(body.hours * 3600))
        log.info("admin.key_rotated", by=by.id, key=former, to=key.id)
        return answer(KeyMade, {**told(key), "token": token})

    async def revoke(self, request: Request) -> Response:
        """Forget a key."""
        services = self._services
        by = await services.auth.admin(request)
        key = await services.api_keys.revoke(request.path_params["id"])
        log.info("admin.key_revoked", by=by.id, key=key.id)
        return answer(KeyRevoked, {"id": key.id, "revoked": True})


def told(key: ApiKey) -> dict[str, Any]:
    """What operators are told of a key."""
    row: dict[str, Any] = {
        "id": key.id,
        "shown": key.shown,
        "owner": key.owner,
        "agent": key.agent,
        "scopes": list(key.scopes),
        "created_at": key.created,
    }
    if key.others:
        row["others"] = list(key.others)
    if key.expires:
        row["expires_at"] = key.expires
    if key.replaced_by:
        row["replaced_by"] = key.replaced_by
    if key.note:
        row["note"] = key.note
    return row | {name: limit for name, limit in key.limits.model_dump().items() if limit}
