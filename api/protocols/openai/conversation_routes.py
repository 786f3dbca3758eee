"""``/v1/conversations``: sessions, as OpenAI's clients know them."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnstream.api.http.answers import answer
from turnstream.api.http.body import json_object
from turnstream.api.http.params import route
from turnstream.api.protocols.openai.listing import all_items, listed
from turnstream.api.protocols.openai.overridden import NO_MODEL
from turnstream.api.protocols.openai.response_requests import Metadata, Short
from turnstream.api.protocols.openai.schemas import Conversation, DeletedConversation, Item, ItemList
from turnstream.api.turns.finding import found
from turnstream.api.turns.ids import ConversationId
from turnstream.api.turns.posted import posted
from turnstream.api.turns.stop import clear
from turnstream.shared.errors import InvalidBody, NoModel, NoSession, NoTask
from turnstream.shared.protocol import explain

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from turnstream.api.access.auth import Caller
    from turnstream.api.services import Services
    from turnstream.shared.broker.keys import SessionKeys

BASE = "/v1/conversations"

# What is noted of a session that is a conversation.
_NOTE = "conversation"


class ConversationBody(BaseModel):
    """A conversation to be made, or to be changed."""

    model_config = ConfigDict(extra="allow")

    metadata: Metadata | None = Field(None, description="Told again with the conversation.")
    model: Short | None = Field(None, description="The agent, where the key has several.")
    items: list[Any] | None = Field(
        None, max_length=0, description="None: the items of a conversation are those of its responses."
    )


class ConversationRoutes:
    """Serves conversations."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """To create, and what can be done with one."""
        one = BASE + "/{conversation_id}"
        return [
            route(BASE, self.create, "POST"),
            route(one, self.retrieve, "GET"),
            route(one, self.update, "POST"),
            route(one, self.delete, "DELETE"),
            route(f"{one}/items", self.items, "GET"),
            route(f"{one}/items/{{item_id}}", self.item, "GET"),
        ]

    async def create(self, request: Request) -> Response:
        """Make a session."""
        services = self._services
        caller, _, body = await posted(services, request, _parse)
        if body.model is not None:
            named = caller.speaking_to(body.model)
            if named is None:
                raise NoModel(NO_MODEL)
            caller = named
        keys = caller.keys(uuid.uuid4().hex)
        await services.limiter.admit_session(keys, caller)
        await services.tasks.create(keys, caller.spec.name, "")
        return await self._noted(keys, body)

    async def retrieve(self, request: Request) -> Response:
        """What is known of a conversation."""
        keys, _ = await self._found(request)
        return _answer(keys, await self._services.log.note(keys, _NOTE))

    async def update(self, request: Request) -> Response:
        """Replace its metadata."""
        keys, _ = await self._found(request)
        _, _, body = await posted(self._services, request, _parse)
        return await self._noted(keys, body)

    async def delete(self, request: Request) -> Response:
        """End what is live in it, and forget it."""
        keys, _ = await self._found(request)
        await clear(self._services, keys, None, "deleted", who="client")
        made = {"id": _name(keys), "object": "conversation.deleted", "deleted": True}
        return answer(DeletedConversation, made)

    async def items(self, request: Request) -> Response:
        """Its items."""
        keys, caller = await self._found(request)
        return answer(ItemList, listed(request, await self._items(keys, caller), order="desc"))

    async def item(self, request: Request) -> Response:
        """One item of it."""
        keys, caller = await self._found(request)
        for item in await self._items(keys, caller):
            if item["id"] == request.path_params["item_id"]:
                return answer(Item, item)
        raise NoTask

    async def _items(self, keys: SessionKeys, caller: Caller) -> list[dict[str, Any]]:
        entries = [entry async for entry in self._services.log.all_kept(keys)]
        return all_items(keys.session, caller.spec.name, entries)

    async def _found(self, request: Request) -> tuple[SessionKeys, Caller]:
        caller = await self._services.auth.caller(request)
        keys = caller.keys(ConversationId.parse(request.path_params["conversation_id"]).session)
        caller, _ = await found(self._services, keys, caller)
        return keys, caller

    async def _noted(self, keys: SessionKeys, body: ConversationBody) -> Response:
        known = await self._services.log.note(keys, _NOTE)
        note = orjson.loads(known) if known else {"created_at": int(time.time())}
        note["metadata"] = body.metadata or {}
        text = orjson.dumps(note).decode()
        if not await self._services.tasks.note(keys, _NOTE, text):
            raise NoSession
        return _answer(keys, text)


def _parse(raw: bytes, caller: Caller) -> ConversationBody:  # noqa: ARG001 - any caller's
    try:
        return ConversationBody.model_validate(json_object(raw) if raw.strip() else {})
    except ValidationError as error:
        raise InvalidBody(explain(error)) from None


def _answer(keys: SessionKeys, note: str | None) -> Response:
    # A session that another protocol began has none.
    fields = orjson.loads(note) if note else {"created_at": 0, "metadata": {}}
    return answer(Conversation, {"id": _name(keys), "object": "conversation", **fields})


def _name(keys: SessionKeys) -> str:
    return str(ConversationId(keys.session))
