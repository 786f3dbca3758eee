"""Requests that OpenAI's clients make and that are not served: each is told what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from turnstream.api.http.params import route
from turnstream.api.protocols.openai.conversation_routes import BASE as CONVERSATIONS
from turnstream.api.protocols.openai.errors import NotServed
from turnstream.api.protocols.openai.response_routes import BASE as RESPONSES

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import Route

    from turnstream.api.services import Services

ADD_ITEMS = CONVERSATIONS + "/{conversation_id}/items"
COUNT_TOKENS = RESPONSES + "/input_tokens"
COMPACT = RESPONSES + "/compact"


class NotServedRoutes:
    """Refuses what is not served."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """All of it."""
        return [
            route(ADD_ITEMS, self.add_items, "POST"),
            route(COUNT_TOKENS, self.count_tokens, "POST"),
            route(COMPACT, self.compact, "POST"),
        ]

    async def add_items(self, request: Request) -> NoReturn:
        """Items belong to turns."""
        await self._services.auth.caller(request)
        raise NotServed(
            "Items cannot be put into a conversation: its items are those of its responses. Send them as the input of a response"
            " in this conversation (POST /v1/responses with conversation), which answers them."
        )

    async def count_tokens(self, request: Request) -> NoReturn:
        """What a model is given is known when it is asked."""
        await self._services.auth.caller(request)
        raise NotServed(
            "Input tokens cannot be counted before a turn: the agent's instructions, tools and memory are the server's. The usage"
            " of a response has what it has taken."
        )

    async def compact(self, request: Request) -> NoReturn:
        """Memory is the agent's."""
        await self._services.auth.caller(request)
        raise NotServed(
            "A conversation cannot be compacted by its client: the agent's memory decides what its model is given of it. Go on"
            " with conversation, or previous_response_id; nothing is to be sent again."
        )
