"""One client's HTTP: single requests that insist, and streams that are opened once."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
from httpx_sse import EventSource, SSEError

from turnstream.client.errors import BadAnswer, refusal
from turnstream.client.retrying import Backoff, ConnectionNews, Retries, TroubleError, asked_wait
from turnstream.shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from httpx_sse import ServerSentEvent

    from turnstream.client.following import AsyncFollowing

# Front ends, and proxies whose front end just died, answer so for a moment.
PASSING = frozenset({408, 425, 429, 502, 503, 504})

# A front end's stream is never silent for longer than its heartbeat, 10 s unless an operator changed it.
SILENT_SECONDS = 35.0

CONNECT_SECONDS = 10.0


class Connection:
    """Speaks HTTP to one URL with one key.

    Attributes:
        address: the URL, as it is shown to people.
        followings: the streams that are open.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        backoff: Backoff,
        patience: float,
        tell: Callable[[ConnectionNews], None],
        http: httpx.AsyncClient | None = None,
    ) -> None:
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.netloc:
            raise ValueError(f"url = {url!r}: give the front end's address, as http://127.0.0.1:8090")
        if not key:
            raise ValueError("key = '': give an API key, sk-…, or set TURNSTREAM_KEY")
        if not key.isascii() or not key.isprintable():
            raise ValueError("key = (value hidden): give an API key, sk-… and nothing around it")
        self.url = url.rstrip("/")
        # As it is shown: without a password for a proxy.
        self.address = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl().rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}", "User-Agent": f"turnstream-client/{VERSION}"}
        self._backoff = backoff
        self._patience = patience
        self._tell = tell
        self._own = http is None
        self.followings: set[AsyncFollowing] = set()
        # Any number of turns may be followed at once; each holds a connection.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        timeout = httpx.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS, pool=None)
        self._http = http or httpx.AsyncClient(limits=limits, timeout=timeout)

    def retries(self, where: str) -> Retries:
        """The tries of one request or stream."""
        return Retries(self._backoff, self._patience, where, self.address, self._tell)

    async def call(self, method: str, path: str, **asked: Any) -> Any:
        """The JSON that a request is answered with. It is repeated while trouble lasts, so it must bear that.

        Raises:
            Refused, Unavailable, BadAnswer: see `turnstream.client.errors`.
        """
        where = f"{method} {path}"
        retries = self.retries(where)
        while True:
            try:
                try:
                    response = await self._http.request(method, self.url + path, **self._with_key(asked))
                except httpx.TransportError as error:
                    raise _lost(error) from error
                _check(response, where)
            except TroubleError as trouble:
                await retries.wait(trouble)
                continue
            retries.served()
            try:
                return response.json() if response.content else None
            except ValueError:
                raise BadAnswer("The answer is not JSON", where) from None

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, **asked: Any
    ) -> AsyncIterator[AsyncIterator[ServerSentEvent]]:
        """Open a stream, once; its events until it ends, for whatever reason.

        Raises:
            TroubleError: it could not be opened for a reason that may pass.
            Refused, BadAnswer: see `turnstream.client.errors`.
        """
        where = f"{method} {path}"
        given = self._with_key(asked)
        given["headers"] |= {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        try:
            async with self._http.stream(method, self.url + path, **given) as response:
                if response.status_code != 200:
                    await response.aread()
                _check(response, where)
                yield _events(response, where)
        except httpx.TransportError as error:
            raise _lost(error) from error

    async def close(self) -> None:
        """Close what is open; the HTTP client only when it is our own."""
        for each in list(self.followings):
            await each.close()
        if self._own:
            await self._http.aclose()

    def _with_key(self, asked: Any) -> dict[str, Any]:
        return {**asked, "headers": {**self._headers, **asked.get("headers", {})}}


async def _events(response: httpx.Response, where: str) -> AsyncIterator[ServerSentEvent]:
    """The events of a response that hold something; heartbeats and a torn last frame are left out."""
    try:
        async for event in EventSource(response).aiter_sse():
            if event.data:
                yield event
    except SSEError as error:
        raise BadAnswer(str(error), where) from None
    except httpx.TransportError as error:
        raise _lost(error) from error


def _check(response: httpx.Response, where: str) -> None:
    status = response.status_code
    if status == 200:
        return
    code, text = _told(response)
    if status in PASSING:
        reason = text or f"The server answered {status}"
        raise TroubleError(reason, asked_wait(response.headers.get("retry-after")))
    if response.is_redirect:
        raise BadAnswer(f"It redirects to {response.headers.get('location', 'nowhere')}", where)
    if status == 404 and (not text or code == "not_found"):
        # A front end says what is not there; this is its word for a path that it does not serve.
        raise BadAnswer(f"The server answered {status} without saying what is not there", where)
    raise refusal(status, code, text or f"The server answered {status} without saying why.", where)


def _told(response: httpx.Response) -> tuple[str | int, str]:
    """Code and text of an error's body; the body of a 409 is a response that was rejected."""
    try:
        body = response.json()
    except ValueError:
        return "", ""
    if not isinstance(body, dict):
        return "", ""
    if isinstance(body.get("error"), dict):
        body = body["error"]
    # LiteAgent's codes are numbers; what they mean stands beside them.
    code, text = body.get("reason") or body.get("code", ""), body.get("message", "")
    return code if isinstance(code, str | int) else "", text if isinstance(text, str) else ""


def _lost(error: httpx.TransportError) -> TroubleError:
    what = {
        httpx.ConnectError: "No connection",
        httpx.ConnectTimeout: f"No connection within {CONNECT_SECONDS:g} s",
        httpx.ReadTimeout: f"Silence for {SILENT_SECONDS:g} s",
    }.get(type(error), "The connection broke")
    return TroubleError(what)
