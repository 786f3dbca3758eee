"""How a run of an agent may end, other than by an exception."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """The agent answered. ``memory`` is what the next turn's model should know, JSON."""

    memory: bytes


@dataclass(frozen=True, slots=True)
class NeedsClient:
    """The agent waits for its client's answers; the task parks."""


class AgentError(Exception):
    """Raised by an agent's author to end a turn as failed with a code and a text that the client may see.

    Of any other exception the client is told only the type: its text may hold what nobody should read.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class NotNow(Exception):  # noqa: N818 - the model may be asked later
    """A model may not be asked at the moment: an operator holds it or the agent, its breaker is open, or it has requests enough.

    Attributes:
        code: ``agent_held``, ``model_held``, ``model_unavailable`` or ``model_busy``.
        seconds: when to try again.
        failed: it is since the model failed, so the time counts as retried.
    """

    def __init__(self, code: str, model: str, seconds: float, *, failed: bool = False) -> None:
        super().__init__(f"{code}: {model}")
        self.code = code
        self.seconds = seconds
        self.failed = failed


class AgentMistake(Exception):  # noqa: N818 - it is the author's, and the turn's end
    """An agent did what no agent can. The text is ours and quotes nobody, so client and log may read it."""
