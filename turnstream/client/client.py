"""The client: one key at one URL, and the functions that the agent may call."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic import BaseModel, Field

from turnstream.client.calls import Functions, log
from turnstream.client.connection import Connection
from turnstream.client.retrying import Backoff, ConnectionLost
from turnstream.client.session import AsyncSession

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from turnstream.client.reply import AsyncReply
    from turnstream.client.retrying import ConnectionNews
    from turnstream.client.session import Said

DEFAULT_URL = "http://127.0.0.1:8090"

_Function = TypeVar("_Function", bound="Callable[..., Any]")


class Identity(BaseModel):
    """What an API key is for.

    Attributes:
        owner: who it speaks for.
        agent: the agent it speaks to; empty when it is for operators only.
        scopes: ``chat``, ``admin``.
    """

    owner: str
    agent: str = ""
    scopes: list[str] = Field(default_factory=list)


class AsyncClient:
    """Chats with the agent that a key selects. `turnstream.client.sync.Client` is the same without ``async``.

        async with AsyncClient("http://127.0.0.1:8090", key) as client:
            print(await client.chat("hello").text())

    Args:
        url: the front end's address, or that of the proxy before several of them. By default the variable
            ``TURNSTREAM_URL``, or ``http://127.0.0.1:8090``.
        key: the API key, ``sk-…``; it selects the agent. By default the variable ``TURNSTREAM_KEY``.
        patience: seconds without an answer from any front end after which a request, or the following of
            a turn, is given up.
        backoff: the waits between tries.
        on_connection: told when the connection is lost and when it is back; must not block.
        http: an HTTP client to use instead of our own, for special transports and certificates. It is
            not closed.

    Raises:
        ValueError: the URL or the key cannot be one.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        patience: float = 120.0,
        backoff: Backoff | None = None,
        on_connection: Callable[[ConnectionNews], None] | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._functions = Functions()
        self._connection = Connection(
            url or os.environ.get("TURNSTREAM_URL") or DEFAULT_URL,
            key or os.environ.get("TURNSTREAM_KEY") or "",
            patience=patience,
            backoff=backoff or Backoff(),
            tell=on_connection or _log_connection,
            http=http,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._connection.address}>"

    def session(self, session: str | None = None, *, user: str | None = None) -> AsyncSession:
        """A conversation: the one of that name, or a new one. Nothing is sent yet.

        ``user`` says whose it is, for keys that serve several; it is fixed by the session's first turn.
        """
        return AsyncSession(self._connection, self._functions, session or uuid.uuid4().hex, user)

    def chat(
        self, said: Said, *, session: str | None = None, user: str | None = None, **settings: Any
    ) -> AsyncReply:
        """Say something in a session, or in a new one; see `AsyncSession.chat`."""
        return self.session(session, user=user).chat(said, **settings)

    def function(self, name: str) -> Callable[[_Function], _Function]:
        """Decorator: the function answers the agent's calls of that name, and gets its arguments by keyword.

        It may be a plain or a coroutine function; plain ones run in a thread. Its result must have a JSON
        form. When it raises, the agent is told so, and goes on; `FunctionError` chooses the words.
        """

        def register(function: _Function) -> _Function:
            self._functions.add(name, function)
            return function

        return register

    def other_functions(self, function: _Function) -> _Function:
        """Decorator: the function gets each `Call` that no other is registered for, and returns its result."""
        self._functions.answer_others(function)
        return function

    def approval(self, function: _Function) -> _Function:
        """Decorator: the function gets each `Approval`, and returns true, false, or one of them and a reason.

        When it raises, that is a refusal.
        """
        self._functions.answer_approvals(function)
        return function

    async def identity(self) -> Identity:
        """What the key is for.

        Raises:
            KeyRefused: it is malformed, unknown or expired.
            Others: as iterating over a reply.
        """
        return Identity.model_validate(await self._connection.call("GET", "/console/key"))

    async def close(self) -> None:
        """Close all connections. Turns go on at the server."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _log_connection(news: ConnectionNews) -> None:
    if isinstance(news, ConnectionLost):
        log.info("%s; trying again in %.1f s", news.reason, news.retry_in)
    else:
        log.info("connected again after %.1f s", news.seconds)
