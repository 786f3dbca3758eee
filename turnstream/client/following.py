"""Following a turn or a session to its end, over as many connections as that takes.

A stream may end at any byte, with an error or cleanly, because a front end, a proxy or the network went
away. Only the turn's terminal event is the end. Each new connection goes on after the last event that was
received whole.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

from turnstream.client.errors import BadAnswer
from turnstream.client.events import is_end, read_event
from turnstream.client.retrying import TroubleError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from turnstream.client.connection import Connection
    from turnstream.client.events import TurnEvent

PATH = "/process"

# A turn is followed over its calls, whatever its agent says for other clients.
_ON_PARK = {"on_park": "follow"}

# A connection that lasted so long was a good one, even if it brought nothing: a turn may be silent.
LASTED_SECONDS = 5.0


class AsyncFollowing:
    """The events of one turn, or of a whole session.

    Attributes:
        cursor: the id of the last event, or empty: where to go on.
    """

    def __init__(
        self,
        connection: Connection,
        session: str,
        response: str | None = None,
        *,
        body: bytes | None = None,
        user: str | None = None,
        cursor: str = "",
    ) -> None:
        self.cursor = cursor
        self._connection = connection
        self._body = body
        self._response = response
        self._events: AsyncGenerator[TurnEvent, None] | None = None
        named = {"session_id": session, "response_id": response, "user_id": user}
        self._params = {name: value for name, value in named.items() if value}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of session {self._params['session_id']!r}, at {self.cursor or 'its beginning'}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TurnEvent:
        """The next event, each once, in order; to the turn's end, or of a session for ever.

        Raises:
            Refused: the server will not show it; `Gone` when the session was cleared meanwhile.
            Unavailable, BadAnswer: see `turnstream.client.errors`.
        """
        if self._events is None:
            self._events = self._whole()
            # Held by the client until it is closed: what is left to the garbage collector cannot close in order.
            self._connection.followings.add(self)
        try:
            return await anext(self._events)
        except StopAsyncIteration:
            self._connection.followings.discard(self)
            raise
        except asyncio.CancelledError:
            # That ended the generator, not the turn: whoever asks again goes on after the last event.
            self._events = None
            self._connection.followings.discard(self)
            raise

    async def close(self) -> None:
        """Close the connection; iterating again goes on after the last event."""
        self._connection.followings.discard(self)
        events, self._events = self._events, None
        if events is not None:
            await events.aclose()

    async def _whole(self) -> AsyncGenerator[TurnEvent, None]:
        clock = asyncio.get_running_loop().time
        retries = self._connection.retries(f"{self._method} {PATH}")
        while True:
            opened: float | None = None
            try:
                async with aclosing(self._connected()) as events:
                    async for event in events:
                        if event is None:
                            opened = clock()
                            continue
                        retries.served()
                        yield event
                        if self._response and is_end(event, self._response):
                            return
                trouble = TroubleError("The stream ended before the turn did")
            except TroubleError as error:
                trouble = error
            if opened is not None and clock() - opened > LASTED_SECONDS:
                retries.served()
            await retries.wait(trouble)

    async def _connected(self) -> AsyncGenerator[TurnEvent | None, None]:
        """One connection: None when it stands, then what it brings."""
        method = self._method
        headers = {"Last-Event-ID": self.cursor} if self.cursor else {}
        given: dict[str, Any] = (
            {"params": _ON_PARK, "content": self._body, "headers": {"Content-Type": "application/json"}}
            if method == "POST"
            else {"params": self._params | _ON_PARK, "headers": headers}
        )
        async with self._connection.stream(method, PATH, **given) as events:
            yield None
            async for each in events:
                try:
                    event = read_event(each.data)
                except ValueError:
                    raise BadAnswer("An event is not a JSON object", f"{method} {PATH}") from None
                self.cursor = each.id or self.cursor
                yield event

    @property
    def _method(self) -> str:
        """A turn is sent until its first event has come. Its id keeps it from being taken twice."""
        return "POST" if self._body is not None and not self.cursor else "GET"
