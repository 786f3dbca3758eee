"""The end of a model's stream: whether the provider ended it, or something on the way closed it in order.

A proxy or a server that goes away may end a response as HTTP asks for it, so a cut answer looks like a whole one. It is
whole only if the provider says so: by a finish reason, by the event that ends a response, or by ``[DONE]``, which some
send instead. Anything else is a lost connection, for which the turn is retried.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from openai._streaming import SSEDecoder
from pydantic_ai.exceptions import ModelConnectionError, UnexpectedModelBehavior

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openai._streaming import ServerSentEvent

DONE = "[DONE]"


class NotingDecoder(SSEDecoder):
    """The library's decoder of server-sent events, which notes that ``[DONE]`` came."""

    done = False

    def decode(self, line: str) -> ServerSentEvent | None:
        """The event that this line completes."""
        event = super().decode(line)
        if event is not None and event.data.startswith(DONE):
            self.done = True
        return event


def note(stream: Any) -> None:
    """Have a stream of the library's note its end; before it is read, or after one event of it."""
    decoder = getattr(stream, "_decoder", None)
    if type(decoder) is SSEDecoder:
        # A client offers no choice of it without a class of its own, and there are a dozen such.
        decoder.__class__ = NotingDecoder


def is_done(stream: Any) -> bool:
    """Whether ``[DONE]`` came, as far as it is known: what does not note it is believed."""
    return bool(getattr(getattr(stream, "_decoder", None), "done", True))


def cut(model: str) -> ModelConnectionError:
    """What to raise for a stream that was closed before its end."""
    return ModelConnectionError(model, "the stream was closed before its end", phase="read", in_stream=True)


@contextmanager
def cut_at_start(model: str, stream: Any) -> Iterator[None]:
    """Raise `cut` for a stream without any event, which the library takes for the model's answer."""
    note(stream)
    try:
        yield
    except UnexpectedModelBehavior as error:
        if is_done(stream):
            raise
        raise cut(model) from error
