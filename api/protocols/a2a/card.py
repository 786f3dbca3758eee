"""Agent cards: what an agent says of itself to whoever wants to speak to it. They need no key."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response

from turnstream.api.http.params import route
from turnstream.api.protocols.a2a.errors import NoAgent
from turnstream.api.protocols.a2a.operations import VERSION
from turnstream.api.protocols.a2a.task_encoder import CURSORS
from turnstream.shared.agents.versions import versions

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import Route

    from turnstream.api.services import Services
    from turnstream.shared.agents.config import AgentSpec

Json = dict[str, Any]

BASE = "/a2a/{agent}"
WELL_KNOWN = "/.well-known/agent-card.json"

# How long a card may be kept.
CACHE = "public, max-age=60"


class CardRoutes:
    """Serves the cards."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Each agent's, and that of the only one."""
        return [
            route(BASE + WELL_KNOWN, self.card, "GET"),
            route(WELL_KNOWN, self.only_card, "GET"),
        ]

    async def card(self, request: Request) -> Response:
        """The card of an agent that is published."""
        spec = self._services.agents.get(request.path_params["agent"])
        if spec is None or spec.a2a is None:
            raise NoAgent
        return self._answer(request, spec)

    async def only_card(self, request: Request) -> Response:
        """The card of the only agent that is published."""
        published = [spec for spec in self._services.agents if spec.a2a is not None]
        if len(published) != 1:
            raise NoAgent("Not one agent is published here, but none or several: ask for the card of one.")
        return self._answer(request, published[0])

    def _answer(self, request: Request, spec: AgentSpec) -> Response:
        services = self._services
        version = versions(services.agents)[spec.name]
        body = orjson.dumps(card_of(spec, _address(request, services.settings.public_url), version))
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        headers = {"cache-control": CACHE, "etag": tag}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="application/json", headers=headers)


def card_of(spec: AgentSpec, address: str, version: str) -> Json:
    """The card of an agent that is reached at an address."""
    told = spec.a2a
    if told is None:
        raise NoAgent
    name = told.title or spec.name
    description = told.description or spec.description or name
    skills: list[Json] = [skill.model_dump(exclude_defaults=True) for skill in told.skills]
    images = ("image/*",) if spec.images and "image" in spec.attachments else ()
    made: Json = {
        "name": name,
        "description": description,
        "version": version,
        "supportedInterfaces": [
            {"url": f"{address}/a2a/{spec.name}", "protocolBinding": binding, "protocolVersion": VERSION}
            for binding in ("JSONRPC", "HTTP+JSON")
        ],
        "capabilities": {
            "streaming": True,
            "pushNotifications": told.push_notifications,
            "extendedAgentCard": False,
            "extensions": [
                {
                    "uri": CURSORS,
                    "description": "Each event has a cursor in its metadata; SubscribeToTask with the header Last-Event-ID goes on "
                    "behind it.",
                    "required": False,
                }
            ],
        },
        "securitySchemes": {"key": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
        "securityRequirements": [{"schemes": {"key": {"list": []}}}],
        "defaultInputModes": ["text/plain", "application/json", *images],
        "defaultOutputModes": ["application/json" if spec.output_schema else "text/plain"],
        "skills": skills or [{"id": spec.name, "name": name, "description": description, "tags": ["agent"]}],
    }
    if told.organization:
        made["provider"] = {"organization": told.organization, "url": told.organization_url}
    links = {"documentationUrl": told.documentation_url, "iconUrl": told.icon_url}
    return made | {field: url for field, url in links.items() if url}


def _address(request: Request, public_url: str | None) -> str:
    """Where the front ends are reached. Without being told, where the request came: its Host header is the client's word."""
    if public_url:
        return public_url.rstrip("/")
    host, port = request.scope.get("server") or ("127.0.0.1", 0)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
