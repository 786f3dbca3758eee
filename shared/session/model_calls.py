"""When a turn's models were asked and how they answered: what a worker notes of it, and what operators are told.

It is one checkpoint of the turn, bounded, which goes with batches that are written anyway; the task's hash has it when the turn
has ended. Clients are not told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from turnstream.shared import metrics

# Requests of a turn that are kept; of more, the longest. Each has some hundred bytes, which go with each answer of a model.
MOST_CALLS = 50

# Characters of a model's name, and of a path: a request may choose the one, and agents that ask each other make the other long.
MOST_NAME = 120

# What is kept of a request, in this order, as operators are told of it.
FIELDS = (
    "agent", "path", "model", "asked_ms", "first_token_ms", "ended_ms", "input_tokens", "output_tokens", "error",
)  # fmt: skip


class _Checkpoint(BaseModel):
    calls: list[tuple[str, str, str, int, int | None, int | None, int | None, int | None, str | None]]
    more: int
    more_ms: int


@dataclass(slots=True)
class ModelCall:
    """One request to a model. Times are Unix milliseconds, by the clock of the worker that makes it.

    Attributes:
        agent, path: who asked, and where it stands in the turn; the path of the session's agent is empty.
        model: as operators know it.
        first_token_ms: when the answer began to come; None: it did not yet, or came at once.
        ended_ms: when all of it had come, or it failed; None: it is being made, or was lost with its attempt.
        input_tokens, output_tokens: by what the provider says, if it does.
        error: a code, if it failed.
        current: it is being made by this attempt.
    """

    agent: str
    path: str
    model: str
    asked_ms: int
    first_token_ms: int | None = None
    ended_ms: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None
    current: bool = False

    @property
    def ms(self) -> int:
        """How long it took; 0 where its end is not known."""
        return max(0, (self.ended_ms or 0) - self.asked_ms)

    def end(self, now_ms: int) -> None:
        """It ended, or failed, now."""
        self.ended_ms = now_ms
        self.current = False


class ModelCalls:
    """A turn's requests to models: the longest, and how many there were beside them."""

    def __init__(self, kept: bytes | None) -> None:
        """``kept``: the checkpoint of earlier attempts."""
        self._calls, self._more, self._more_ms = _read(kept)

    def begin(self, agent: str, path: str, model: str, now_ms: int) -> ModelCall:
        """A request is made now."""
        call = ModelCall(agent, path[:MOST_NAME], model[:MOST_NAME], now_ms, current=True)
        self._calls.append(call)
        if len(self._calls) > MOST_CALLS:
            self._leave_one_out()
        return call

    def dump(self) -> bytes:
        """The checkpoint."""
        calls = [[getattr(call, name) for name in FIELDS] for call in self._calls]
        return orjson.dumps({"calls": calls, "more": self._more, "more_ms": self._more_ms})

    def _leave_one_out(self) -> None:
        over = [call for call in self._calls if not call.current]
        shortest = min(over, key=lambda call: call.ms) if over else self._calls[0]
        self._calls = [call for call in self._calls if call is not shortest]
        self._more += 1
        self._more_ms += shortest.ms


def told(kept: bytes | None) -> dict[str, Any]:
    """What operators are told of a checkpoint, as fields of the task."""
    calls, more, more_ms = _read(kept)
    rows = [
        {name: value for name in FIELDS if (value := getattr(call, name)) is not None}
        for call in sorted(calls, key=lambda call: call.asked_ms)
    ]
    left_out = {"model_calls_left_out": {"calls": more, "ms": more_ms}} if more else {}
    return {"model_calls": rows, **left_out}


def _read(kept: bytes | None) -> tuple[list[ModelCall], int, int]:
    """The requests of a checkpoint, how many there were beside them, and their time; none of one that cannot be read."""
    if not kept:
        return [], 0, 0
    try:
        known = _Checkpoint.model_validate_json(kept)
    except ValidationError:
        # Of another release, or damaged: no reason for a turn to fail.
        metrics.unreadable.add("model calls")
        return [], 0, 0
    calls = [ModelCall(*each) for each in known.calls]
    return calls, known.more, known.more_ms
