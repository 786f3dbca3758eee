"""A stream of OpenAI's, read lean: all events of one read are parsed together, and neighbouring deltas of one part are merged.

The library's client makes some twenty objects of each event, and each of them wakes everybody up to the client of the turn.
Most events of a stream differ from the one before them by a piece of text only. Those of one read become one event here;
all others pass as they are, and what is made of either is the library's. A merged event says what its pieces say one by one:

- The pieces belong to one part: everything else in them is equal, but for what the library does not read twice.
- A piece that the library looks at by itself is not merged: a thinking tag, or white space before anything else.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx2
import orjson
from openai._streaming import ServerSentEvent, SSEDecoder
from pydantic import BaseModel

from turnstream.worker.agents.stream_end import DONE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

# What a chunk may have of its own in a run of deltas: the library reads the first time only, and padding not at all.
_OWN = ("created", "obfuscation")

_CONTENT = ("choices", 0, "delta", "content")

_REASONING = ("reasoning", "reasoning_content")

# Events of the Responses API whose `delta` is a piece of one item's text.
_DELTAS = frozenset(
    {
        "response.function_call_arguments.delta",
        "response.output_text.delta",
        "response.reasoning_summary_text.delta",
        "response.reasoning_text.delta",
        "response.refusal.delta",
    }
)


@contextmanager
def transport_errors(request: httpx2.Request | None = None) -> Iterator[None]:
    """Raise what the library's own transport would: its errors are retried, and have a code for clients.

    Raises:
        httpx2.ReadError: the connection was lost, which aiohttp's transport takes for one that was not made in time.
        httpx2.RemoteProtocolError: what came is not HTTP, for which it has no word.
    """
    try:
        yield
    except httpx2.ConnectTimeout as error:
        if isinstance(error.__cause__, TimeoutError):
            raise
        raise httpx2.ReadError(str(error), request=request) from error
    except aiohttp.ClientError as error:
        raise httpx2.RemoteProtocolError(str(error), request=request) from error


class Deltas:
    """Neighbouring deltas of one part; the library's client makes one object of them."""

    def __init__(
        self, path: tuple[str | int, ...], rest: dict[str, Any], text: str, own: dict[str, Any]
    ) -> None:
        """``path`` leads to the text, which ``rest``, the event without what is its own, does not have."""
        self.path = path
        self.rest = rest
        self.pieces = [text]
        self.own = own
        self.template: BaseModel | None = None

    def take(self, other: Deltas) -> bool:
        """Append another delta, if it belongs to the same part."""
        if self.path != other.path or self.rest != other.rest:
            return False
        if self.path == _CONTENT and not self.pieces[0].strip():
            return False
        self.pieces += other.pieces
        self.own = other.own
        return True

    def like(self, other: Deltas | None) -> None:
        """Take the other's object for a template, if this differs by text only."""
        if other is not None and self.path == other.path and self.rest == other.rest:
            self.template = other.template

    def build(self, construct: Callable[[dict[str, Any]], Any]) -> Any:
        """The library's object of all the deltas; ``construct`` makes one of an event's data."""
        text = "".join(self.pieces)
        if self.template is None:
            self.template = construct({**_with(self.rest, self.path, text), **self.own})
            return self.template
        return _copy(self.template, self.path, text, self.own)


def _with(data: Any, path: tuple[str | int, ...], text: str) -> Any:
    """A copy of parsed JSON, with a text in its place."""
    if not path:
        return text
    step, *rest = path
    copy = data.copy()
    copy[step] = _with(copy.get(step) if isinstance(step, str) else copy[step], tuple(rest), text)
    return copy


def _copy(made: Any, path: tuple[str | int, ...], text: str, own: dict[str, Any] | None = None) -> Any:
    """A copy of what the library made of an event, with another text in its place."""
    if not path:
        return text
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return [_copy(each, rest, text) if place == step else each for place, each in enumerate(made)]
    return made.model_copy(update={step: _copy(getattr(made, step), rest, text), **(own or {})})


def deltas_of(data: Any) -> Deltas | None:
    """What an event's data says, if that is a piece of text only."""
    if type(data) is not dict or data.get("error"):
        return None
    if "choices" in data:
        return _of_chunk(data)
    return _of_response(data) if data.get("type") in _DELTAS else None


def _of_response(data: dict[str, Any]) -> Deltas | None:
    text = data.get("delta")
    if type(text) is not str or data.get("logprobs"):
        return None
    own = {"sequence_number": data["sequence_number"]} if "sequence_number" in data else {}
    rest = {name: value for name, value in data.items() if name not in _RESPONSES_OWN}
    return Deltas(("delta",), rest, text, own)


_RESPONSES_OWN = frozenset({"delta", "sequence_number", "obfuscation"})


def _of_chunk(data: dict[str, Any]) -> Deltas | None:
    choices = data["choices"]
    if type(choices) is not list or len(choices) != 1 or data.get("usage") or not data.get("created"):
        return None
    choice = choices[0]
    if type(choice) is not dict or choice.get("finish_reason") or choice.get("logprobs"):
        return None
    delta = choice.get("delta")
    if type(delta) is not dict:
        return None
    place = _place(delta)
    if place is None:
        return None
    return Deltas(("choices", 0, "delta", *place), *_without(data, delta, place))


def _place(delta: dict[str, Any]) -> tuple[str | int, ...] | None:
    """Where the one piece of text of a delta stands; None if there are several, or none."""
    if delta.get("annotations"):
        # The library gathers those of each chunk.
        return None
    texts = [name for name in ("content", "refusal", *_REASONING) if delta.get(name)]
    calls = delta.get("tool_calls")
    if len(texts) == 1 and not calls:
        text = delta[texts[0]]
        # It may be a thinking tag.
        alone = type(text) is not str or (texts[0] == "content" and "<" in text)
        return None if alone else (texts[0],)
    if texts or type(calls) is not list or len(calls) != 1 or type(calls[0]) is not dict:
        return None
    function = calls[0].get("function")
    if type(function) is not dict or calls[0].get("id") or function.get("name"):
        return None
    return None if type(function.get("arguments")) is not str else ("tool_calls", 0, "function", "arguments")


def _without(
    data: dict[str, Any], delta: dict[str, Any], place: tuple[str | int, ...]
) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """The data without its text and what is its own, the text, and what is its own; the data is used up."""
    holder: Any = delta
    for step in place[:-1]:
        holder = holder[step]
    text = holder.pop(place[-1])
    return data, text, {name: data.pop(name) for name in _OWN if name in data}


class _Event(ServerSentEvent):
    """A server-sent event whose data is parsed."""

    def __init__(self, event: str | None, value: Any) -> None:
        super().__init__(event=event)
        self._value = value

    def json(self) -> Any:
        return self._value


class Decoder(SSEDecoder):
    """Takes the place of the library's decoder of server-sent events: merged ones have `Deltas` as their data.

    Lines are read by the library itself. Events that cannot be parsed are passed as they are: the library raises what it
    raises then.
    """

    def __init__(self) -> None:
        super().__init__()
        # Whether the provider gave an end.
        self.done = False
        self._lines = Lines()
        self._run: Deltas | None = None
        self._name: str | None = None
        self._last: Deltas | None = None

    async def aiter_bytes(self, iterator: AsyncIterator[bytes]) -> AsyncIterator[ServerSentEvent]:
        """The events of a stream, those of one read together."""
        try:
            with transport_errors():
                async for data in iterator:
                    for event in self._read(self._lines.feed(data)):
                        yield event
            for event in self._read(self._lines.rest()):
                yield event
        finally:
            self._reset()

    def _read(self, lines: list[bytes]) -> Iterator[ServerSentEvent]:
        for line in lines:
            try:
                event = self.decode(line.decode())
            except UnicodeDecodeError:
                yield from self._merged()
                raise
            if event is not None:
                yield from self._take(event)
        yield from self._merged()

    def _take(self, event: ServerSentEvent) -> Iterator[ServerSentEvent]:
        try:
            value = orjson.loads(event.data)
        except orjson.JSONDecodeError:
            self.done |= event.data.startswith(DONE)
            yield from self._merged()
            yield event
            return
        found = deltas_of(value)
        if found is None:
            yield from self._merged()
            # The library's reader has the last word on what it reads otherwise.
            yield _Event(event.event, value)
            return
        if self._run is not None and self._name == event.event and self._run.take(found):
            return
        yield from self._merged()
        self._run, self._name = found, event.event

    def _merged(self) -> Iterator[ServerSentEvent]:
        run, self._run = self._run, None
        if run is not None:
            run.like(self._last)
            self._last = run
            yield _Event(self._name, run)


class Lines:
    """Bytes into lines, which CR, LF or both end. A long line, an image say, is joined once, when it has ended."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole by now."""
        if self._after_cr:
            # The LF that may come belongs to the line that has ended.
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        lines = data.splitlines(keepends=True)
        begun = [lines.pop()] if lines and not lines[-1].endswith((b"\r", b"\n")) else []
        if lines:
            lines[0] = b"".join([*self._begun, lines[0]])
            self._begun = begun
        else:
            self._begun += begun
        return [line.rstrip(b"\r\n") for line in lines]

    def rest(self) -> list[bytes]:
        """The last line, if nothing ended it."""
        begun, self._begun = self._begun, []
        return [b"".join(begun)] if begun else []
