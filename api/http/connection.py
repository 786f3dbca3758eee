"""What a response may do with its connection, past the layers through which an ASGI message goes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import Scope

# Where a request's scope has it, among the extensions.
_NAME = "turnstream.connection"


class Connection(Protocol):
    """A client's connection, as the server has it (api/server.py).

    Attributes:
        on_lost: called once when the client leaves; to wait for it in a task costs each follower two kilobytes.
    """

    on_lost: Callable[[], None] | None

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


@contextmanager
def watched(connection: Connection, left: Callable[[], None]) -> Iterator[None]:
    """Have ``left`` called when the client leaves, or has left."""
    if connection.is_lost():
        left()
    connection.on_lost = left
    try:
        yield
    finally:
        connection.on_lost = None
