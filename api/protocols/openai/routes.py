"""All routes under ``/v1``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstream.api.protocols.openai.chat_routes import ChatRoutes
from turnstream.api.protocols.openai.conversation_routes import ConversationRoutes
from turnstream.api.protocols.openai.model_routes import ModelRoutes
from turnstream.api.protocols.openai.not_served import NotServedRoutes
from turnstream.api.protocols.openai.response_routes import ResponseRoutes

if TYPE_CHECKING:
    from starlette.routing import Route

    from turnstream.api.services import Services


class OpenAiRoutes:
    """Serves OpenAI's clients."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Models, responses, conversations, chat completions; and what there is not."""
        services = self._services
        families = (ModelRoutes, ResponseRoutes, ConversationRoutes, ChatRoutes, NotServedRoutes)
        return [each for family in families for each in family(services).routes()]
