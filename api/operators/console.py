"""The console: one static page for users and operators, and what it asks about its own key."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, RedirectResponse, Response

from turnstream.api.http.answers import answer
from turnstream.api.http.params import route
from turnstream.api.operators.schemas import KeyUse

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import Route

    from turnstream.api.services import Services

# The page runs its own files only, and speaks to its own front end only. A picture that an agent shows may
# lie anywhere; the page loads it when its reader asks for it, since its address could carry secrets out.
_POLICIES = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data: https: http:",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
)
POLICY = "; ".join(_POLICIES)

_KINDS = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}


class ConsoleRoutes:
    """Serves the files of ``static`` and nothing else; they need no key, what they ask for does."""

    def __init__(self, services: Services) -> None:
        self._services = services
        folder = files("turnstream.api.operators") / "static"
        self._files = {
            each.name: _answer(each.name, each.read_bytes())
            for each in folder.iterdir()
            if each.name.rpartition(".")[2] in _KINDS
        }

    def routes(self) -> list[Route]:
        """The routes."""
        pages = [
            route("/", self.moved, "GET"),
            route("/console", self.moved, "GET"),
            route("/console/", self.page, "GET"),
            route("/console/{name}", self.file, "GET"),
        ]
        for each in pages:
            each.include_in_schema = False
        return [route("/console/key", self.key, "GET"), *pages]

    async def moved(self, request: Request) -> Response:  # noqa: ARG002 - a route's signature
        """The page's files are found beside it, so its address ends with a slash, behind any proxy's prefix."""
        return RedirectResponse("console/", 307)

    async def page(self, request: Request) -> Response:
        """The page itself."""
        return self._given(request, "index.html")

    async def file(self, request: Request) -> Response:
        """A file of the page."""
        return self._given(request, request.path_params["name"])

    async def key(self, request: Request) -> Response:
        """What the key of this request is for."""
        services = self._services
        key = await services.auth.key(request)
        told: dict[str, Any] = {"owner": key.owner, "agent": key.agent, "scopes": list(key.scopes)}
        spec = services.agents.get(key.agent)
        if "chat" in key.scopes and spec is not None:
            told["largest_message"] = services.bodies.most(spec)
            told["attachments"] = list(spec.attachments)
        return answer(KeyUse, told)

    def _given(self, request: Request, name: str) -> Response:
        found = self._files.get(name)
        if found is None:
            return JSONResponse({"code": "not_found", "message": "The console has no such file."}, 404)
        body, headers = found
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers)


def _answer(name: str, body: bytes) -> tuple[bytes, dict[str, str]]:
    headers = {
        "Content-Type": _KINDS[name.rpartition(".")[2]],
        "Content-Security-Policy": POLICY,
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "X-Frame-Options": "DENY",
        # Asked for anew each time, and not sent again while it is the same: an upgrade shows at once.
        "Cache-Control": "no-cache",
        "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
    }
    return body, headers
