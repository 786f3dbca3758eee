"""Background responses of OpenAI's: the provider goes on generating without a reader, so that an answer is not paid twice.

The id of the response behind an answer is checkpointed when the provider gives it, and forgotten with the answer's own
checkpoint. In between:

    the connection is cut            it is read on behind the last event, in the same message
    the attempt ends: worker dead,   the next attempt reads the response from its first event: the former one's message is
    drained, provider away           closed as incomplete, as ever, and the answer stands whole in the next message
    the turn ends                    the response is canceled
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

import orjson
import structlog
from openai import APIConnectionError
from pydantic_ai.exceptions import ModelConnectionError, ModelHTTPError, SuspendedResponseExpired

from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command
from turnstream.shared.session.batch import BACKGROUND
from turnstream.worker.agents.calls import key_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from typing import Protocol

    from redis.asyncio import Redis

    from turnstream.worker.turn import RunningTurn

    class Cancels(Protocol):
        """A model, as far as its background responses are concerned."""

        async def cancel_response(self, response: str) -> None:
            """Have the provider cancel a response."""


log = structlog.get_logger(__name__)

# Connections in a row that bring no new event; then the turn waits for the provider without a worker.
MOST_EMPTY = 3

# All workers hear which responses are to be canceled: how long they leave one to the first of them.
CANCEL_MS = 60_000

_CANCELED = "response.cancelled"

# The last event of a response.
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", _CANCELED, "error"})

# Those after which the response gives no answer any more, so that another one must be begun.
_FAILED = frozenset({"response.failed", _CANCELED})

_NONE = ("", "", "", 0)


class BackgroundResponse:
    """The provider's response behind the next answer of one run, as it is checkpointed.

    Those of all runs of a turn are one checkpoint: who ends the turn from outside finds them there. It is written, never
    dropped: of a name that is kept and dropped in one batch nothing is left. What another model has begun for the same
    answer, before it was held, say, stays there: it is canceled with the turn.
    """

    def __init__(self, turn: RunningTurn, scope: str, agent: str, model: str, answers: int) -> None:
        """``model`` by its name; ``answers``: how many of this run came before."""
        self._turn = turn
        self._scope = scope
        self._agent = agent
        self._model = model
        self._answers = answers

    @property
    def id(self) -> str:
        """The provider's id of it; empty while there is none."""
        return self._known()[0]

    @property
    def key(self) -> str:
        """An idempotency key for its begin: the same in each attempt, another one when it has failed."""
        return key_of(self._turn, f"{self._name}/{self._known()[1]}")

    def keep(self, response: str) -> None:
        """It was begun under this id."""
        if response != self.id:
            self._write((response, self._known()[1]))

    def failed(self) -> None:
        """It gives no answer: another one is to be begun."""
        self._write(("", self._known()[1] + 1))

    def answered(self) -> None:
        """Its answer is kept, in the batch that gathers."""
        if self._name in responses_of(self._turn.kept(BACKGROUND)):
            self._write(None)
        self._answers += 1

    @property
    def _name(self) -> str:
        return f"{self._scope}/response/{self._answers}/{self._model}"

    def _known(self) -> tuple[str, int]:
        """The id, and how many failed before it."""
        _, _, response, failed = responses_of(self._turn.kept(BACKGROUND)).get(self._name, _NONE)
        return response, failed

    def _write(self, known: tuple[str, int] | None) -> None:
        responses = responses_of(self._turn.kept(BACKGROUND))
        if known is None:
            del responses[self._name]
        else:
            responses[self._name] = [self._agent, self._model, *known]
        self._turn.keep(BACKGROUND, orjson.dumps(responses))


def responses_of(kept: bytes | None) -> dict[str, list[Any]]:
    """A turn's background responses as checkpointed: for each its agent, model and id, and how many failed before it."""
    responses: dict[str, list[Any]] = orjson.loads(kept or b"{}")
    return responses


_current: ContextVar[BackgroundResponse | None] = ContextVar("turnstream_background", default=None)


@contextmanager
def keeping(response: BackgroundResponse) -> Iterator[None]:
    """Keep the response that is begun meanwhile as this one."""
    token = _current.set(response)
    try:
        yield
    finally:
        _current.reset(token)


def current_response() -> BackgroundResponse | None:
    """Where to keep the response that is asked for now; None: nowhere."""
    return _current.get()


class BackgroundStream:
    """A response's events over any number of connections, each event once; stands in place of the library's stream."""

    def __init__(
        self,
        stream: Any,
        response: BackgroundResponse,
        model: str,
        reread: Callable[[str, int], Awaitable[Any]],
    ) -> None:
        """``reread`` gives a stream of the events of a response behind the one of that number."""
        self._stream = stream
        self._response = response
        self._model = model
        self._reread = reread
        self._cursor: int | None = None
        self._empty = 0
        self._ended = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connection; the provider goes on."""
        await self._stream.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        cause: Exception | None
        while True:
            try:
                event = await anext(self._stream)
            except StopAsyncIteration:
                if self._ended:
                    raise
                cause = None
            except (APIConnectionError, ValueError) as error:
                # What cannot be parsed was cut, too.
                cause = error
            else:
                self._note(event)
                return event
            await self._read_on(cause)

    def _note(self, event: Any) -> None:
        number = getattr(event, "sequence_number", None)
        if self._cursor is not None and number is not None and number <= self._cursor:
            raise self._lost("the provider did not go on where it was asked to")
        self._cursor, self._empty = number, 0
        response = getattr(event, "response", None)
        if response is not None and response.background and response.id:
            self._response.keep(response.id)
        kind = getattr(event, "type", None)
        self._ended |= kind in _ENDS
        if kind in _FAILED:
            self._response.failed()
        if kind == _CANCELED:
            # The library has no class for it.
            raise self._lost("the response was canceled at the provider")

    async def _read_on(self, cause: Exception | None) -> None:
        """Connect again, behind the last event.

        Raises:
            ModelAPIError: the provider is away, or does not stream the rest: for the next attempt.
        """
        self._empty += 1
        if not self._response.id or self._cursor is None or self._empty > MOST_EMPTY:
            raise self._lost("the stream was closed before its end") from cause
        log.info("model.read_on", response=self._response.id, after=self._cursor, error=type(cause).__name__)
        await self._stream.close()
        try:
            self._stream = await self._reread(self._response.id, self._cursor)
        except (ModelHTTPError, SuspendedResponseExpired) as error:
            if not streamed_no_more(error):
                raise
            raise self._lost("the rest of the answer is streamed no more") from error

    def _lost(self, why: str) -> ModelConnectionError:
        return ModelConnectionError(self._model, why, phase="read", in_stream=True)


def streamed_no_more(error: Exception) -> bool:
    """Whether a response's events cannot be had any more: OpenAI has them for minutes, the whole answer for longer."""
    return isinstance(error, SuspendedResponseExpired) or (
        isinstance(error, ModelHTTPError) and error.status_code == 400
    )


class ResponseCanceller:
    """Has providers cancel the background responses of turns that have ended.

    Every worker hears of a turn that was ended from outside, since none may hold it; the first one sees to its responses.
    """

    def __init__(self, models: Mapping[tuple[str, str], Cancels], primary: Redis) -> None:
        """``models`` by agent and name; without a name, for those that a request chooses from the same provider."""
        self._models = models
        self._primary = primary
        self._running: set[asyncio.Task[None]] = set()

    def cancel(self, kept: bytes | None) -> None:
        """Cancel what this checkpoint names; returns at once."""
        for agent, name, response, *_ in responses_of(kept).values():
            model = self._models.get((agent, name)) or self._models.get((agent, ""))
            if response and model is not None:
                running = asyncio.create_task(self._cancel(model, response), name=f"cancel {response}")
                self._running.add(running)
                running.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Wait for what was begun: as long as the provider's client does."""
        if self._running:
            await asyncio.wait(self._running)

    async def _cancel(self, model: Cancels, response: str) -> None:
        try:
            first = await command(self._primary, "SET", keys.cancelled(response), b"1", "NX", "PX", CANCEL_MS)
            if first:
                await model.cancel_response(response)
                log.info("model.canceled", response=response)
        except Exception as error:
            # The turn has ended all the same, and so will the response, later.
            log.warning("model.not_canceled", response=response, error=type(error).__name__)
