"""What a tool is given to make its effect happen once: the key of its call, and how it declares what it does."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from turnstream.worker.turn import current_turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_ai.tools import ToolDefinition

    from turnstream.worker.turn import RunningTurn

Function = TypeVar("Function", bound=Callable[..., Any])

# Of all keys, so that no other program's UUIDs can be the same.
_KEYS = uuid.UUID("0f6f6c1e-6c0b-4d0a-9d8e-7f0b1c2d3e4f")

# What an `on_lost` may be beside a function.
WORDS = ("rerun", "tell", "ask")


class Outcome(Enum):
    """What a function given as ``on_lost`` returns when it has no result of the lost call."""

    NOT_DONE = "not_done"  # it never took effect: run it
    UNKNOWN = "unknown"  # not to be found out: the model gets that as the result


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, or one step of it.

    Attributes:
        key: the idempotency key, a UUID: the same whenever this call is run again, and of no other call.
        attempt: the fencing number, larger each time that a worker takes the turn up.
        deadline: Unix seconds by this host's clock; the call is not awaited after that.
        name: the tool, or the step.
    """

    key: str
    attempt: int
    deadline: float
    name: str
    turn: RunningTurn = field(repr=False)
    source: str = field(repr=False)

    @property
    def cancelled(self) -> str:
        """Why this run counts no more: ``stop``, ``deadline``, ``shutdown`` or ``lease_lost``; empty while it does.

        For functions that run in a thread, which cannot be cancelled.
        """
        return str(self.turn.cancelled or "")

    @property
    def meta(self) -> dict[str, Any]:
        """What an MCP server gets of it, in ``_meta``."""
        return {
            "turnstream/idempotency-key": self.key,
            "turnstream/attempt": self.attempt,
            "turnstream/deadline": self.deadline,
        }

    def step(self, name: str) -> Call:
        """A part of the call that has a key of its own."""
        return _call(self.turn, f"{self.source}/{name}", name, self.deadline)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a tool does to the world, and what is done about a call of it whose outcome is unknown.

    Attributes:
        on_lost: ``rerun``, ``tell``, ``ask``, ``module:function``, or a function.
        read_only: it has no effect: it is run again, and no mark is kept.
    """

    on_lost: str | Callable[..., Any] = "tell"
    read_only: bool = False

    @classmethod
    def hinted(cls, annotations: Mapping[str, Any] | None) -> Policy:
        """By an MCP server's hints."""
        hints = annotations or {}
        if hints.get("readOnlyHint") is True:
            return cls("rerun", read_only=True)
        return cls("rerun" if hints.get("idempotentHint") is True else "tell")


class Policies:
    """Those of one agent's server tools: as configured, else as declared, else as an MCP server hints."""

    def __init__(self, configured: Mapping[str, Policy], declared: Mapping[str, Policy]) -> None:
        self._by_name = {**declared, **configured}

    def of(self, tool: ToolDefinition) -> Policy:
        """The policy of a tool."""
        hints = (tool.metadata or {}).get("annotations")
        return self._by_name.get(tool.name) or Policy.hinted(hints)


_DECLARED = "__turnstream_effects__"


def effects(
    *, on_lost: str | Callable[..., Any] = "tell", read_only: bool = False
) -> Callable[[Function], Function]:
    """Declare what a tool does; see `Policy`.

    Raises:
        ValueError: there is no such ``on_lost``.
    """
    if isinstance(on_lost, str) and on_lost not in WORDS and ":" not in on_lost:
        raise ValueError(f"on_lost must be one of {', '.join(WORDS)}, 'module:function' or a function")
    policy = Policy("rerun", read_only=True) if read_only else Policy(on_lost)

    def declare(function: Function) -> Function:
        setattr(function, _DECLARED, policy)
        return function

    return declare


def declared(function: object) -> Policy | None:
    """What the author of a function declared."""
    found = getattr(function, _DECLARED, None)
    return found if isinstance(found, Policy) else None


_current: ContextVar[Call] = ContextVar("turnstream_call")


def current_call(step: str = "") -> Call:
    """The call that runs here; with ``step``, a part of it that has a key of its own.

    A coded agent is no tool's call: it names what it does, ``current_call("charge")``, and gets the same key for the
    same name whenever the turn's function is called anew.

    Raises:
        LookupError: called outside a turn, or outside a tool without a name.
    """
    call = _current.get(None)
    if call is not None:
        return call.step(step) if step else call
    if not step:
        raise LookupError("no tool is called here: name what you do, as in current_call('charge')")
    turn = current_turn()
    return _call(turn, f"/{step}", step, turn.ends)


def call_of(turn: RunningTurn, call: str, name: str, seconds: float) -> Call:
    """The call of a tool that is given so many seconds."""
    return _call(turn, call, name, min(turn.ends, time.time() + seconds))


@contextmanager
def calling(call: Call) -> Iterator[None]:
    """Make it the current call."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)


def _call(turn: RunningTurn, source: str, name: str, deadline: float) -> Call:
    return Call(key_of(turn, source), turn.attempt.number, deadline, name, turn, source)


def key_of(turn: RunningTurn, source: str) -> str:
    """The idempotency key of something that a turn does: the same in each of its attempts."""
    attempt = turn.attempt
    # A session may be cleared, and its tasks' names used again.
    return str(uuid.uuid5(_KEYS, f"{attempt.ref}/{attempt.submitted}/{source}"))
