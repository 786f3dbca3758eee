"""What a request's address and headers say: cursors, ids, and routes that take just their own methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.routing import Route

from turnstream.shared.errors import BadRequest, NoSession, NoTask
from turnstream.shared.names import IDENTIFIER
from turnstream.shared.session.entry import Cursor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request


def route(path: str, endpoint: Callable[[Request], Awaitable[Any]], *methods: str) -> Route:
    """A route for these methods. Starlette would add HEAD to GET, and with it streams that nobody reads."""
    made = Route(path, endpoint, methods=methods)
    made.methods = set(methods)
    return made


def cursor_of(request: Request) -> Cursor | None:
    """The ``Last-Event-ID``, or ``cursor`` in the query for clients that cannot set headers.

    Raises:
        BadCursor: it is malformed.
    """
    text = request.headers.get("last-event-id") or request.query_params.get("cursor")
    return Cursor.parse(text) if text else None


def session_id(request: Request, name: str) -> str:
    """The session that the query names.

    Raises:
        BadRequest: it names none.
        NoSession: it cannot be one.
    """
    text = request.query_params.get(name)
    if not text:
        raise BadRequest(f"{name}: missing in the query")
    if not IDENTIFIER.fullmatch(text):
        raise NoSession
    return text


def task_id(text: str | None) -> str | None:
    """A task id, when one is given.

    Raises:
        NoTask: it cannot be one.
    """
    if not text:
        return None
    if not IDENTIFIER.fullmatch(text):
        raise NoTask
    return text


def limit_of(request: Request, usual: int, most: int) -> int:
    """How many are wanted.

    Raises:
        BadRequest: it is not a number from 1 to ``most``.
    """
    text = request.query_params.get("limit")
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= most):
        raise BadRequest(f"limit: give a number from 1 to {most}")
    return int(text)
