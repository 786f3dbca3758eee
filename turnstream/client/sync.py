"""The synchronous client: the asynchronous one on an event loop in a thread of its own.

Every method returns what the asynchronous one's awaits, and raises the same errors. Callers may be any threads; they
must not be the client's own coroutine functions, which run on that loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, Self, TypeVar

from turnstream.client.client import AsyncClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator

    import httpx

    from turnstream.client.calls import Approval, Call
    from turnstream.client.client import Identity
    from turnstream.client.events import TurnEvent
    from turnstream.client.following import AsyncFollowing
    from turnstream.client.reply import AsyncReply
    from turnstream.client.retrying import Backoff, ConnectionNews
    from turnstream.client.session import AsyncSession, Remembered, Said
    from turnstream.shared.protocol import AgentResponse, Message

_Value = TypeVar("_Value")
_Function = TypeVar("_Function", bound="Callable[..., Any]")


class _Loop:
    """An event loop in a daemon thread: a program that never closes its client can still exit."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="turnstream-client", daemon=True)
        self._thread.start()

    def run(self, call: Coroutine[Any, Any, _Value]) -> _Value:
        """Run a coroutine to its end; an interrupt of the caller cancels it."""
        if threading.current_thread() is self._thread:
            call.close()
            raise RuntimeError("a coroutine function of this client must not call it: use AsyncClient")
        if self._loop.is_closed():
            call.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def each(self, items: AsyncIterator[_Value], limit: _Limit | None = None) -> Iterator[_Value]:
        """The items of an asynchronous iterator, all within the limit; leaving early closes a generator."""

        async def following() -> _Value:
            return await (limit.within(lambda: anext(items)) if limit else anext(items))

        try:
            while True:
                try:
                    item = self.run(following())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            # A client that is closed has closed them all.
            if (close := getattr(items, "aclose", None)) is not None and not self._loop.is_closed():
                self.run(close())

    def close(self) -> None:
        """Cancel what the loop still runs, close its generators, and stop it with its thread."""
        if not self._loop.is_closed():
            self.run(_finished())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class _Limit:
    """For how long a turn is waited for, from the first time that it is."""

    def __init__(self, reply: AsyncReply, seconds: float | None) -> None:
        self._reply = reply
        self._seconds = seconds
        self._ends: float | None = None

    async def within(self, call: Callable[[], Awaitable[_Value]]) -> _Value:
        """What the call gives.

        Raises:
            TimeoutError: the time is over; the text says that the turn goes on, and what can be done.
        """
        if self._seconds is not None and self._ends is None:
            self._ends = time.monotonic() + self._seconds
        left = self._ends - time.monotonic() if self._ends is not None else None
        try:
            async with asyncio.timeout(left) as limit:
                return await call()
        except TimeoutError:
            if not limit.expired():
                raise
            turn, session = self._reply.id, self._reply.session.id
            raise TimeoutError(
                f"The turn {turn!r} has not ended within {self._seconds} s. It goes on at the server, if it was "
                f"accepted: ask this reply again, or follow it with client.session({session!r}).follow({turn!r}); "
                "reply.stop() ends it."
            ) from None


async def _finished() -> None:
    """End what runs on this loop, as `asyncio.run` does."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class Client:
    """Chats with the agent that a key selects, without ``async``; see `AsyncClient` for the arguments.

    with Client("http://127.0.0.1:8090", key) as client:
        print(client.chat("hello").text())
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
        self._client = AsyncClient(
            url, key, patience=patience, backoff=backoff, on_connection=on_connection, http=http
        )
        self._loop = _Loop()

    def __repr__(self) -> str:
        return repr(self._client).replace("<Async", "<", 1)

    def session(self, session: str | None = None, *, user: str | None = None) -> Session:
        """As `AsyncClient.session`."""
        return Session(self._loop, self._client.session(session, user=user))

    def chat(
        self, said: Said, *, session: str | None = None, user: str | None = None, **settings: Any
    ) -> Reply:
        """As `AsyncClient.chat`."""
        return self.session(session, user=user).chat(said, **settings)

    def function(self, name: str) -> Callable[[_Function], _Function]:
        """As `AsyncClient.function`."""
        return self._client.function(name)

    def other_functions(self, function: _Function) -> _Function:
        """As `AsyncClient.other_functions`."""
        return self._client.other_functions(function)

    def approval(self, function: _Function) -> _Function:
        """As `AsyncClient.approval`."""
        return self._client.approval(function)

    def identity(self) -> Identity:
        """As `AsyncClient.identity`, with its errors."""
        return self._loop.run(self._client.identity())

    def close(self) -> None:
        """Close all connections. Turns go on at the server."""
        try:
            self._loop.run(self._client.close())
        finally:
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Session:
    """One conversation; see `AsyncSession`."""

    def __init__(self, loop: _Loop, session: AsyncSession) -> None:
        self._loop = loop
        self._session = session

    def __repr__(self) -> str:
        return repr(self._session).replace("<Async", "<", 1)

    @property
    def id(self) -> str:
        """Its name; the same key finds it again under it."""
        return self._session.id

    def chat(self, said: Said, *, id: str | None = None, **settings: Any) -> Reply:  # noqa: A002 - the field's name
        """As `AsyncSession.chat`, with its errors."""
        return Reply(self._loop, self, self._session.chat(said, id=id, **settings))

    def follow(self, id: str, *, cursor: str = "") -> Reply:  # noqa: A002
        """As `AsyncSession.follow`."""
        return Reply(self._loop, self, self._session.follow(id, cursor=cursor))

    def watch(self, *, cursor: str = "") -> Following:
        """As `AsyncSession.watch`, with its errors."""
        return Following(self._loop, self._session.watch(cursor=cursor))

    def answer(self, call: str, result: Any) -> None:
        """As `AsyncSession.answer`, with its errors."""
        self._loop.run(self._session.answer(call, result))

    def stop(self, id: str | None = None) -> None:  # noqa: A002
        """As `AsyncSession.stop`, with its errors."""
        self._loop.run(self._session.stop(id))

    def history(self) -> list[Remembered]:
        """As `AsyncSession.history`, with its errors."""
        return self._loop.run(self._session.history())

    def clear(self) -> None:
        """As `AsyncSession.clear`, with its errors."""
        self._loop.run(self._session.clear())


class Following:
    """The events of a session; see `AsyncFollowing`."""

    def __init__(self, loop: _Loop, following: AsyncFollowing) -> None:
        self._loop = loop
        self._following = following

    def __repr__(self) -> str:
        return repr(self._following).replace("<Async", "<", 1)

    @property
    def cursor(self) -> str:
        """The id of the last event, or empty: where to go on."""
        return self._following.cursor

    def __iter__(self) -> Iterator[TurnEvent]:
        return self._loop.each(self._following)

    def close(self) -> None:
        """Close the connection; iterating again goes on after the last event."""
        self._loop.run(self._following.close())


class Reply:
    """What the agent answers to one turn; iterate over it for events. See `AsyncReply`.

    The client's functions answer calls on the client's thread, also between two calls of these methods.

    ``timeout``: seconds for all that is waited for, an iterator's from its first item on and with what its caller does
    between them; None: no limit. When they are over, `TimeoutError` says how the turn, which goes on, can be followed or
    stopped; this reply can be asked again.
    """

    def __init__(self, loop: _Loop, session: Session, reply: AsyncReply) -> None:
        self.id = reply.id
        self.session = session
        self._loop = loop
        self._reply = reply

    def __repr__(self) -> str:
        return repr(self._reply).replace("<Async", "<", 1)

    @property
    def cursor(self) -> str:
        """Where this reply stands; give it to `Session.follow` to go on in another process."""
        return self._reply.cursor

    @property
    def messages_so_far(self) -> list[Message]:
        """All messages, the open ones as far as they have come."""
        return self._reply.messages_so_far

    @property
    def open_calls(self) -> list[Call | Approval]:
        """The calls that came and are not answered yet."""
        return self._reply.open_calls

    @property
    def ended(self) -> bool:
        """Whether the terminal event has come."""
        return self._reply.ended

    def __iter__(self) -> Iterator[TurnEvent]:
        return self._loop.each(self._reply)

    def deltas(self, timeout: float | None = None) -> Iterator[str]:
        """As `AsyncReply.deltas`, with its errors, and TimeoutError."""
        return self._loop.each(self._reply.deltas(), _Limit(self._reply, timeout))

    def messages(self, timeout: float | None = None) -> Iterator[Message]:
        """As `AsyncReply.messages`, with its errors, and TimeoutError."""
        return self._loop.each(self._reply.messages(), _Limit(self._reply, timeout))

    def text(self, timeout: float | None = None) -> str:
        """As `AsyncReply.text`, with its errors, and TimeoutError."""
        return self._loop.run(_Limit(self._reply, timeout).within(self._reply.text))

    def finished(self, timeout: float | None = None) -> AgentResponse:
        """As `AsyncReply.finished`, with its errors, and TimeoutError."""
        return self._loop.run(_Limit(self._reply, timeout).within(self._reply.finished))

    def answer(self, call: str | Call | Approval, result: Any) -> None:
        """As `AsyncReply.answer`, with its errors."""
        self._loop.run(self._reply.answer(call, result))

    def stop(self) -> None:
        """As `AsyncReply.stop`, with its errors."""
        self._loop.run(self._reply.stop())

    def close(self) -> None:
        """Leave: connections are closed, the turn goes on."""
        self._loop.run(self._reply.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
