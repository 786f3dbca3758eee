"""Text deltas go straight from a model's stream to who listens, not through all that the library has in between.

Between a model's stream and who iterates over an agent's run lie a dozen generators and locks for each event. For pieces of
text they decide nothing: the part they belong to has begun by an event, and ends by one. So these are given to the listener
at their place in the stream, and left out of the events. What the model said is gathered by the library either way.

The listener also says how long a stream waits between two reads: what comes meanwhile is one event, so a busy worker has fewer.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pydantic_ai.messages import PartDeltaEvent, TextPartDelta, ThinkingPartDelta
from pydantic_ai.models.openai import OpenAIResponsesStreamedResponse, OpenAIStreamedResponse

from turnstream.worker.agents.stream_end import cut, is_done

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from pydantic_ai.messages import ModelResponseStreamEvent


@dataclass(frozen=True, slots=True)
class DeltaListener:
    """Who listens.

    Attributes:
        hear: is given each delta.
        window: the seconds between two reads.
    """

    hear: Callable[[PartDeltaEvent], Awaitable[None]]
    window: Callable[[], float]


_listener: ContextVar[DeltaListener | None] = ContextVar("turnstream_delta_listener", default=None)


@contextmanager
def listening(listener: DeltaListener) -> Iterator[None]:
    """Give the deltas of streams that are begun meanwhile to this one."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@dataclass
class ChatStream(OpenAIStreamedResponse):
    """A chat completion whose deltas are listened to, and whose end is looked at."""

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        async for event in super()._get_event_iterator():
            if not await _heard(self, event):
                yield event
        if not (self._has_finish_reason or self.cancelled or is_done(self._response.source)):
            raise cut(self.model_name)


@dataclass
class ResponsesStream(OpenAIResponsesStreamedResponse):
    """A response of the Responses API whose deltas are listened to, and whose end is looked at."""

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        async for event in super()._get_event_iterator():
            if not await _heard(self, event):
                yield event
        if not (self.state == "complete" or self.cancelled or is_done(self._response.source)):
            raise cut(self.model_name)


async def _heard(stream: ChatStream | ResponsesStream, event: ModelResponseStreamEvent) -> bool:
    """Give a delta to the listener, as the library would give it to who iterates: what it restores in it is restored."""
    if type(event) is not PartDeltaEvent or not isinstance(event.delta, TextPartDelta | ThinkingPartDelta):
        return False
    listener = _listener.get()
    if listener is None:
        return False
    restorer = stream._parts_manager.special_token_restorer  # noqa: SLF001 - no other way to it
    if restorer is not None:
        # Of a host that may take some words of a text for its own marks.
        event = cast("PartDeltaEvent", restorer.restore(event))
    await listener.hear(event)
    return True


def window() -> float:
    """The seconds between two reads of a stream; 0 where nobody listens."""
    listener = _listener.get()
    return listener.window() if listener is not None else 0.0
