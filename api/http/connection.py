"""What a response may do with its connection, past the layers through which an ASGI message goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Scope, Send

# Where a request's scope has it, among the extensions.
_NAME = "turnstream.connection"


class Connection(Protocol):
    """A client's connection, as the server has it (api/server.py).

    Attributes:
        on_lost: called once when the client leaves; to wait for it in a task costs each follower two kilobytes.
        rest: serves what is left of the response, when the layers through which its beginning went have returned
            (api/http/middleware.py). Waiting within them costs each follower six kilobytes.
    """

    on_lost: Callable[[], None] | None
    rest: Callable[[Send], Awaitable[None]] | None

    def awaits_body(self, scope: Scope) -> bool:
        """Whether the rest of this request's body is still to come."""

    def part(self) -> None:
        """Let the answer that has begun be the connection's last one, whatever of the request is still to come."""

    def is_lost(self) -> bool:
        """Whether the client has left."""

    def abort(self) -> None:
        """Cut it at once: closing would wait for the client to read."""

    def write_chunk(self, body: bytes) -> bool:
        """Write a chunk of the response's body; False when there is no room for it now."""


def extension(connection: Connection) -> dict[str, Connection]:
    """What the server puts into a scope."""
    return {_NAME: connection}


def connection_of(scope: Scope) -> Connection:
    """The connection that a request came on.

    Raises:
        RuntimeError: another server serves the application.
    """
    found: Connection | None = scope.get("extensions", {}).get(_NAME)
    if found is None:
        raise RuntimeError(
            "This application is served by turnstream.api.server.FrontEnd only: `turnstream api`."
        )
    return found


class Watched:
    """A context in which ``left`` is called when the client leaves, or has left. A generator would be four times as large."""

    __slots__ = ("_connection", "_left")

    def __init__(self, connection: Connection, left: Callable[[], None]) -> None:
        self._connection = connection
        self._left = left

    def __enter__(self) -> None:
        if self._connection.is_lost():
            self._left()
        self._connection.on_lost = self._left

    def __exit__(self, *_: object) -> None:
        self._connection.on_lost = None
