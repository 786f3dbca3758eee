"""Pages of other origins: which of them browsers let read our answers, in the protocols that are for browsers.

A key is in a header that no browser sends by itself, so a page that is let in can do nothing that it has no key for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Scope

# All origins.
ANY = b"*"

# How long a browser need not ask again, in seconds; some remember for less.
_MAX_AGE = 7200

_METHODS = b"GET, POST, DELETE"
_NAMES = re.compile(rb"[A-Za-z0-9_-]+( *, *[A-Za-z0-9_-]+)*")


class Cors:
    """What an answer tells the browser of another origin's page.

    A page that is not let in gets the answers that it would get without all this, and its browser keeps them from it.
    """

    def __init__(self, origins: str, has: Callable[[str], bool]) -> None:
        """``origins``: those that are let in, with commas between them; ``has``: to which paths."""
        self._origins = frozenset(origin.strip().encode() for origin in origins.split(",") if origin.strip())
        self._has = has

    def headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """What the answer to a request has besides."""
        if not self._origins or not self._has(scope["path"]):
            return []
        # Also for a page that is not let in: to another one the answer is another.
        headers = [(b"vary", b"Origin")]
        if allowed := self._allowed(scope):
            headers += [
                (b"access-control-allow-origin", allowed),
                (b"access-control-expose-headers", b"*"),
            ]
        return headers

    def preflight(self, scope: Scope) -> Response | None:
        """The answer to a browser that asks what a page may send; None: it asks nothing, or the page is not let in."""
        if scope["method"] != "OPTIONS" or not self._has(scope["path"]) or not self._allowed(scope):
            return None
        asked = dict(scope["headers"])
        if b"access-control-request-method" not in asked:
            return None
        response = Response(status_code=204)
        response.raw_headers += [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", b"%d" % _MAX_AGE),
        ]
        # Clients have some of their own; `*` would not be taken for `Authorization`.
        names = asked.get(b"access-control-request-headers", b"")
        if _NAMES.fullmatch(names):
            response.raw_headers.append((b"access-control-allow-headers", names))
        return response

    def _allowed(self, scope: Scope) -> bytes:
        """The request's origin, if its pages are let in."""
        origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
        return bytes(origin) if origin and (origin in self._origins or ANY in self._origins) else b""
