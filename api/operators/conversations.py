"""Conversations as the people see them who speak in them: a list of the key's own, their names, and their end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from turnstream.api.access.session_access import visible_session
from turnstream.api.http.answers import answer
from turnstream.api.http.body import json_object
from turnstream.api.http.params import limit_of, route
from turnstream.api.operators.schemas import (
    ConversationDeleted,
    ConversationList,
    ConversationNamed,
    ConversationRow,
)
from turnstream.api.turns.delete import delete_session
from turnstream.shared.errors import BadRequest, InvalidBody, NoSession
from turnstream.shared.names import IDENTIFIER
from turnstream.shared.protocol import explain
from turnstream.shared.session.session_list import STATES, TITLE, Place, SessionFilter

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from turnstream.api.access.auth import Caller
    from turnstream.api.services import Services
    from turnstream.shared.broker.keys import SessionKeys

log = structlog.get_logger(__name__)

BASE = "/console/sessions"
ONE = BASE + "/{session}"

USUAL_ROWS = 30
MOST_ROWS = 100

MOST_TITLE = 200
MOST_SEARCH = 200

_STATES = (*(name for _, name in STATES), "ended")

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _one_line(text: str) -> str:
    return " ".join(_CONTROL.sub(" ", text).split())


class NameBody(BaseModel):
    """What to call a conversation; an empty title takes the name away."""

    model_config = ConfigDict(extra="forbid")

    title: Annotated[str, Field(max_length=MOST_TITLE), AfterValidator(_one_line)]


def parse_name(body: bytes) -> NameBody:
    """Read a body.

    Raises:
        InvalidBody: it is not JSON, or a field is wrong; the text names it.
    """
    try:
        return NameBody.model_validate(json_object(body))
    except ValidationError as error:
        raise InvalidBody(explain(error)) from None


class ConversationRoutes:
    """Serves the holders of chat keys."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            route(BASE, self.list, "GET"),
            route(ONE, self.one, "GET"),
            route(ONE, self.name, "POST"),
            route(ONE, self.delete, "DELETE"),
        ]

    async def list(self, request: Request) -> Response:
        """A page of the conversations of the key's owner with its agent, the newest first."""
        services = self._services
        caller = await services.auth.caller(request)
        query = request.query_params
        wanted = SessionFilter(
            caller.owner,
            caller.spec.name,
            user=query.get("user_id", ""),
            state=_state_of(request),
            search=" ".join(query.get("search", "")[:MOST_SEARCH].split()),
        )
        rows, place = await services.session_list.page(
            wanted, limit_of(request, USUAL_ROWS, MOST_ROWS), _place_of(request)
        )
        return answer(ConversationList, {"conversations": rows, "next": str(place) if place else None})

    async def one(self, request: Request) -> Response:
        """One conversation, as the list has it."""
        services = self._services
        caller = await services.auth.caller(request)
        keys = await self._visible(request, caller)
        user = request.query_params.get("user_id", "")
        row = await services.session_list.row(
            SessionFilter(caller.owner, caller.spec.name, user=user), keys.session
        )
        if row is None:
            raise NoSession
        return answer(ConversationRow, row)

    async def name(self, request: Request) -> Response:
        """Call a conversation something."""
        services = self._services
        caller = await services.auth.caller(request)
        services.limiter.admit_data()
        async with services.limiter.counting_refusals(caller):
            _, body = await services.bodies.read(request, caller, parse_name)
        keys = await self._visible(request, caller)
        if not await services.tasks.note(keys, TITLE, body.title):
            raise NoSession
        return answer(ConversationNamed, {"session": keys.session, "title": body.title})

    async def delete(self, request: Request) -> Response:
        """End what is live in a conversation, and delete it with all that was said."""
        services = self._services
        caller = await services.auth.caller(request)
        keys = await self._visible(request, caller)
        await delete_session(services, keys, who="client")
        log.info("session.deleted", owner=keys.owner, session=keys.session)
        return answer(ConversationDeleted, {"session": keys.session, "deleted": True})

    async def _visible(self, request: Request, caller: Caller) -> SessionKeys:
        session: Any = request.path_params["session"]
        if not IDENTIFIER.fullmatch(session):
            raise NoSession
        keys = caller.keys(session)
        await visible_session(
            self._services.log, keys, caller.visitor(request.query_params.get("user_id", ""))
        )
        return keys


def _state_of(request: Request) -> str:
    state = request.query_params.get("state", "")
    if state and state not in _STATES:
        raise BadRequest(f"state: give one of {', '.join(_STATES)}")
    return state


def _place_of(request: Request) -> Place | None:
    text = request.query_params.get("cursor")
    if not text:
        return None
    try:
        return Place.parse(text[:200])
    except ValueError:
        raise BadRequest("cursor: send what the page before gave as next") from None
