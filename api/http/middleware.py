"""The outermost layer: errors become answers, and every answer gets the headers that all have."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match, Route

from turnstream.api.http.connection import connection_of
from turnstream.api.http.error_shape import Problem
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.errors import BrokerAway, TurnstreamError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from turnstream.api.http.cors import Cors
    from turnstream.api.http.error_shape import ErrorShape

log = structlog.get_logger(__name__)

# Letters that can do no harm in a log or a header.
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.:@/+=-]{1,128}")

_COMMON = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class ErrorMiddleware:
    """Wraps the application.

    Errors of ours answer for themselves, to pages of other origins, too. The broker's trouble is a 503. Anything else is a bug: a 500
    that tells nothing, and a log line without bodies or keys. A request that is answered before its body
    has come is the last one of its connection.
    """

    def __init__(self, app: ASGIApp, errors: ErrorResponses, cors: Cors) -> None:
        self._app = app
        self._errors = errors
        self._cors = cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False
        connection = connection_of(scope)
        request_id = _request_id(scope)
        to_browsers = self._cors.headers(scope)
        preflight = self._cors.preflight(scope)

        async def with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                given = message.setdefault("headers", [])
                names = {name.lower() for name, _ in given}
                common = (*_COMMON, *to_browsers, (b"x-request-id", request_id.encode()))
                message["headers"] = [*given, *(header for header in common if header[0] not in names)]
                if connection.awaits_body(scope):
                    message["headers"].append((b"connection", b"close"))
                    await send(message)
                    connection.part()
                    return
            await send(message)

        # What is logged from here on says of which request; the task that serves it keeps this to itself.
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request=request_id)
        try:
            await (preflight or self._app)(scope, receive, with_headers)
        except ClientDisconnect:
            return
        except Exception as error:
            if started:
                _log_broken(error, scope["path"])
                return
            if _ours(error).status == 500:
                log.exception("request.failed", method=scope["method"], path=scope["path"])
            await self._errors.of(error, scope["path"])(scope, receive, with_headers)


class PastLayers:
    """Wraps the application with all of its layers: serves what a response has left to do when they have returned.

    Until its client leaves, a follower then holds neither their frames nor what its request was.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        connection = connection_of(scope)
        rest, connection.rest = connection.rest, None
        if rest is None:
            return
        path = scope["path"]
        _let_go(scope)
        try:
            await rest(send)
        except Exception as error:
            _log_broken(error, path)


def _let_go(scope: Scope) -> None:
    """Drop what was known of a request but what the server still reads."""
    scope["headers"].clear()
    method = scope["method"]
    scope.clear()
    scope["method"] = method


def _log_broken(error: Exception, path: str) -> None:
    """The client sees a stream that breaks off, and comes back with its cursor."""
    if _ours(error).status == 500:
        log.error("request.failed", path=path, exc_info=error)
    log.warning("stream.broken", path=path, error=type(error).__name__)


def _ours(error: Exception) -> TurnstreamError:
    """What a client is given for an error."""
    if is_transient(error):
        return BrokerAway()
    return error if isinstance(error, TurnstreamError) else TurnstreamError()


def _request_id(scope: Scope) -> str:
    """What the client or the proxy calls the request, or a name of ours."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return secrets.token_hex(8)


class ErrorResponses:
    """Answers errors, in the shape that ``shape_of`` has for the request's path."""

    def __init__(self, shape_of: Callable[[str], ErrorShape]) -> None:
        self._shape_of = shape_of

    def of(self, error: Exception, path: str) -> Response:
        """The answer to a request to ``path`` that raised."""
        error = _ours(error)
        headers: dict[str, str] = {}
        if isinstance(error, Unavailable):
            headers["Retry-After"] = str(error.retry_after)
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return self._written(Problem.of(error), path, headers)

    async def ours(self, request: Request, error: Exception) -> Response:
        """Answer one of our own errors."""
        return self.of(error, request.url.path)

    async def of_router(self, request: Request, error: Exception) -> Response:
        """Answer what the router refuses: unknown addresses and methods."""
        if not isinstance(error, HTTPException):
            raise error
        status, headers = error.status_code, dict(error.headers or {})
        word = {404: "not_found", 405: "method_not_allowed"}.get(status, "bad_request")
        if status == 405:
            headers["Allow"] = ", ".join(sorted(_methods_of(request)))
        return self._written(Problem.refused(status, word, error.detail), request.url.path, headers)

    def _written(self, problem: Problem, path: str, headers: dict[str, str]) -> Response:
        shape = self._shape_of(path)
        headers = {"content-type": shape.content_type, **shape.headers(problem), **headers}
        return Response(shape.body(problem), shape.status(problem), headers)


def _methods_of(request: Request) -> set[str]:
    """What may be done at the request's address: several routes share one, and each knows only its own methods."""
    methods: set[str] = set()
    for each in request.app.routes:
        if isinstance(each, Route) and each.matches(request.scope)[0] is not Match.NONE:
            methods |= each.methods or set()
    return methods
