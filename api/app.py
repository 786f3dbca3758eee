"""The front end as an ASGI application."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from turnstream.api.admin.deployment import AdminDeploymentRoutes
from turnstream.api.admin.keys import AdminKeyRoutes
from turnstream.api.admin.models import AdminModelRoutes
from turnstream.api.admin.sessions import AdminSessionRoutes
from turnstream.api.admin.tasks import AdminTaskRoutes
from turnstream.api.http.cors import Cors
from turnstream.api.http.middleware import ErrorMiddleware, ErrorResponses
from turnstream.api.openapi.document import OpenApiRoutes
from turnstream.api.operators.console import ConsoleRoutes
from turnstream.api.operators.conversations import ConversationRoutes
from turnstream.api.operators.health import HealthRoutes
from turnstream.api.operators.metrics import MetricsRoutes
from turnstream.api.protocols import error_shape, served
from turnstream.api.services import Services
from turnstream.shared.api_keys import well_formed
from turnstream.shared.broker.client import Broker
from turnstream.shared.broker.keys import FRONT_ENDS
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.errors import ConfigurationError, TurnstreamError
from turnstream.shared.presence import Presence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from turnstream.shared.agents.config import Agents
    from turnstream.shared.api_keys import ApiKey
    from turnstream.shared.settings import Settings
    from turnstream.shared.siblings import Siblings

log = structlog.get_logger(__name__)


# How long a start waits for the broker to know the keys that the settings bring.
KEYS_SECONDS = 2.0

# Between two looks whether the broker still knows them. For so long they are refused by one that lost its data.
KEYS_AGAIN_SECONDS = 5.0

# Between two times that the broker is told which keys were used.
USED_EVERY_SECONDS = 30.0

# What opens everything must not be guessed, however often somebody tries.
LEAST_ADMIN_KEY = 32


def create_app(
    settings: Settings, agents: Agents, broker: Broker | None = None, siblings: Siblings | None = None
) -> Starlette:
    """The application; its services are in ``app.state.services``. A broker that is given is not closed.

    While it runs, ``app.state.attending`` is a task that ends only when the front end cannot go on.

    Raises:
        ConfigurationError: a key that is to be registered cannot be one, or its agent does not exist.
    """
    keys = _keys_to_register(settings, agents)
    services = Services.make(settings, agents, broker or Broker(settings), siblings=siblings)
    errors = ErrorResponses(error_shape)
    protocols = served(settings.protocols or "")
    cors = Cors(
        settings.cors_origins or "",
        lambda path: any(each.in_browsers and each.has(path) for each in protocols),
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if not app.state.has_connections:
            raise ConfigurationError(
                "The front end needs more of its HTTP server than ASGI has: serve it with `turnstream api`, or FrontEnd."
            )
        presence = _presence(services)
        known = asyncio.Event()
        attending = app.state.attending = asyncio.create_task(_attend(services, keys, presence, known))
        # The settings' keys must not be met with a 401; but while the broker is away, say so rather than nothing.
        knowing = asyncio.create_task(known.wait())
        await asyncio.wait([attending, knowing], timeout=KEYS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        knowing.cancel()
        try:
            yield
        finally:
            attending.cancel()
            await asyncio.gather(attending, services.leaving.end(), return_exceptions=True)
            if services.broker.admitted:
                await asyncio.gather(presence.end(), services.limiter.end())
            await services.hub.stop()
            services.offload.close()
            if broker is None:
                await services.broker.close()

    app = Starlette(
        routes=[
            *HealthRoutes(services).routes(),
            *OpenApiRoutes().routes(),
            *MetricsRoutes(services).routes(),
            *(each for protocol in protocols for each in protocol.make_routes(services).routes()),
            *AdminTaskRoutes(services).routes(),
            *AdminDeploymentRoutes(services).routes(),
            *AdminModelRoutes(services).routes(),
            *AdminKeyRoutes(services).routes(),
            *AdminSessionRoutes(services).routes(),
            *ConversationRoutes(services).routes(),
            *ConsoleRoutes(services).routes(),
        ],
        middleware=[Middleware(ErrorMiddleware, errors, cors)],
        exception_handlers={TurnstreamError: errors.ours, HTTPException: errors.of_router},
        lifespan=lifespan,
    )
    # Its address would be built from the Host header: behind a proxy it could send keys over plain HTTP.
    app.router.redirect_slashes = False
    app.state.services = services
    # Set by a server that gives each request its connection (api/http/connection.py).
    app.state.has_connections = False
    return app


async def _attend(
    services: Services, keys: list[tuple[str, str, str]], presence: Presence, known: asyncio.Event
) -> None:
    """What is done beside requests, for ever, once the broker has let us in; ``known``: it has the settings' keys.

    Raises:
        ConfigurationError: it refuses us.
    """
    await services.broker.admit(FRONT_ENDS, services.name)
    refused: set[str] = set()
    await _register(services, keys, refused)
    known.set()
    await asyncio.gather(
        presence.show(),
        services.limiter.keep(),
        _keep_registered(services, keys, refused),
        _keep_told(services),
    )


async def _keep_told(services: Services) -> None:
    """Tell the broker which keys were used, for ever."""
    while True:
        await asyncio.sleep(USED_EVERY_SECONDS)
        try:
            await services.auth.tell_used()
        except Exception as error:
            if not is_transient(error):
                log.exception("keys.not_told")


async def _keep_registered(services: Services, keys: list[tuple[str, str, str]], refused: set[str]) -> None:
    """See to it that the broker knows the settings' keys, for ever: it may come back with nothing."""
    while True:
        await asyncio.sleep(KEYS_AGAIN_SECONDS)
        await _register(services, keys, refused)


def _presence(services: Services) -> Presence:
    """The sign of life of this front end."""

    def tell() -> dict[str, int]:
        return {"followers": services.hub.followers}

    return Presence(services.broker.once.primary, FRONT_ENDS, services.name, tell, lambda: None)


def _keys_to_register(settings: Settings, agents: Agents) -> list[tuple[str, str, str]]:
    """Token, scope and agent of the keys that the settings bring."""
    found = []
    if settings.dev_key is not None:
        if settings.dev_agent not in agents:
            raise ConfigurationError(f"TURNSTREAM_DEV_AGENT = {settings.dev_agent!r}: there is no such agent")
        found.append(("TURNSTREAM_DEV_KEY", settings.dev_key.get_secret_value(), settings.dev_agent))
    if settings.admin_key is not None:
        found.append(("TURNSTREAM_ADMIN_KEY", settings.admin_key.get_secret_value(), ""))
    for name, token, _ in found:
        if not well_formed(token):
            raise ConfigurationError(
                f"{name} = (value hidden): must be sk- and 16 to 128 letters, digits, _ or -"
            )
        if name == "TURNSTREAM_ADMIN_KEY" and len(token) < LEAST_ADMIN_KEY:
            raise ConfigurationError(
                f"{name} = (value hidden): an admin key must have {LEAST_ADMIN_KEY} characters or more, and be random: "
                "openssl rand -hex 16 makes what stands behind sk-"
            )
    return found


async def _register(services: Services, keys: list[tuple[str, str, str]], refused: set[str]) -> None:
    """Make the settings' keys known as soon as the broker is there; requests meet a 401 until then.

    Of ``refused`` are those that an operator revoked or rotated, or that expired: they are not made known again, also
    when the broker has forgotten that.
    """
    api_keys = services.api_keys.retrying(math.inf)
    for name, token, agent in keys:
        if name in refused:
            continue
        admin = name == "TURNSTREAM_ADMIN_KEY"
        key = await api_keys.bring(
            token,
            setting=name,
            owner="admin" if admin else "dev",
            agent=agent,
            scopes=("admin",) if admin else ("chat",),
        )
        if key is None or key.replaced_by or not key.valid(time.time()):
            refused.add(name)
            log.warning(
                "key.not_registered",
                setting=name,
                key=key.id if key else "",
                why=_why_not(key),
                todo=f"set {name} to another key, and restart the front ends",
            )


def _why_not(key: ApiKey | None) -> str:
    if key is None:
        return "what the broker keeps of it cannot be read"
    return f"rotated to {key.replaced_by}" if key.replaced_by else "revoked" if key.revoked else "expired"
