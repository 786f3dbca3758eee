"""A2A's own client, at the deployment of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory

from tests.support.a2a import published
from tests.support.stack import Stack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place
    from tests.support.client import Client


@pytest.fixture
async def stack(place: Place) -> AsyncIterator[Stack]:
    """A deployment whose demo agent is published, and which may tell addresses of this machine."""
    stack = Stack(place, published(), protocols="default,a2a", webhook_networks="127.0.0.0/8,::1/128")
    yield stack
    await stack.close()


@pytest.fixture(params=["JSONRPC", "HTTP+JSON"])
def binding(request: pytest.FixtureRequest) -> str:
    """Both bindings do the same."""
    name: str = request.param
    return name


@pytest.fixture
async def a2a_at() -> AsyncIterator[Any]:
    """Makes a client of the front end that another client speaks to, as its card says."""
    opened: list[httpx.AsyncClient] = []

    async def at(client: Client, binding: str = "JSONRPC", key: str = "", **given: Any) -> Any:
        http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key or client.key}"},
            timeout=30,
            trust_env=False,
            verify=False,
        )
        opened.append(http)
        card = await A2ACardResolver(http, client.base_url).get_agent_card()
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding], **given)
        return ClientFactory(config).create(card)

    yield at
    for http in opened:
        await http.aclose()
