"""The middleware: what a response leaves to its connection is served when the layers have returned, and its errors are logged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from turnstream.api.http.connection import extension
from turnstream.api.http.middleware import PastLayers
from turnstream.shared.errors import BrokerAway

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Message, Receive, Scope, Send

    from turnstream.api.http.connection import Connection


class Quiet:
    """A connection of which only the rest of a response is of interest."""

    def __init__(self) -> None:
        self.rest: Callable[[Send], Awaitable[None]] | None = None


class Layer:
    """An application whose response leaves ``rest`` to its connection; ``within``: it has not returned."""

    def __init__(self, connection: Quiet, rest: Callable[[Send], Awaitable[None]]) -> None:
        self.within = False
        self._connection = connection
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Begin, and return."""
        self.within = True
        await asyncio.sleep(0)
        self._connection.rest = self._rest
        self.within = False


async def serve(rest: Callable[[Send], Awaitable[None]]) -> tuple[Layer, Quiet, dict[str, Any]]:
    """One request: its application, its connection and what is left of its scope."""
    connection = Quiet()
    layer = Layer(connection, rest)
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/process",
        "headers": [(b"authorization", b"Bearer x")],
        "extensions": extension(cast("Connection", connection)),
    }

    async def receive() -> Message:
        raise AssertionError

    async def send(_: Message) -> None:
        """Take it."""

    await PastLayers(layer)(scope, receive, send)
    return layer, connection, scope


async def test_the_rest_is_served_when_the_layers_have_returned() -> None:
    """By then nothing is held of the request but what the server reads; once."""
    served: list[bool] = []

    async def rest(_: Send) -> None:
        served.append(True)

    layer, connection, scope = await serve(rest)
    assert (served, layer.within, connection.rest, scope) == ([True], False, None, {"method": "GET"})


@pytest.mark.parametrize(
    ("error", "events"),
    [(BrokerAway(), ["stream.broken"]), (ValueError("a bug"), ["request.failed", "stream.broken"])],
)
async def test_an_error_of_the_rest_is_logged_and_breaks_the_stream_off(
    error: Exception, events: list[str]
) -> None:
    """The server cuts the connection, since the response has no end; a bug is logged as one."""

    async def rest(_: Send) -> None:
        raise error

    with capture_logs() as lines:
        await serve(rest)
    assert [(line["event"], line["path"]) for line in lines] == [(event, "/process") for event in events]
