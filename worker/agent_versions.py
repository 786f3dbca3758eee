"""Agent versions: whether a turn may go on at this worker, waits for one that serves its version, or fails."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnstream.shared.session.endings import End
from turnstream.shared.session.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from turnstream.shared.agents.config import AgentSpec
    from turnstream.shared.session.outcomes import Attempt

# Checkpoint: the version of the agent that writes the turn.
VERSION = "agent_version"

# In an offer: the turn runs at any version.
ANY_VERSION = "*"

# What operators read of a turn that waits for a worker with its version.
WAITS_FOR = "agent_version"

# Between two looks whether a worker serves the version by now. One that does is offered the turn, so the first is only for
# when it had no slot, or did not hear; the second adds to how long a turn waits for a worker that comes back. (A tenth of
# the agent's `version_wait` where that is less, so that a short one is kept too.)
OFFERED_MS = 1_000
UNSERVED_MS = 5_000

UNKNOWN = End(TaskStatus.FAILED, "agent_unknown", "No worker knows this agent any more.")
GONE = End(
    TaskStatus.FAILED, "agent_version_gone", "The agent has changed since this turn was begun. Send it again."
)


@dataclass(frozen=True, slots=True)
class GoOn:
    """The turn runs here, and ``version`` is what it is checkpointed with."""

    version: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The turn is released for ``ms``, for ``most_ms`` in all (0: without end); then it fails.

    ``offer``: the version of its agent that other workers serve, which are offered it at once; empty: none does.
    """

    ms: int
    most_ms: int = 0
    offer: str = ""


class AgentVersions:
    """What this worker serves, beside what others do.

    Args:
        mine: agent → version.
        others: the same for each other worker that lives and is not shutting down, asked when it matters.
    """

    def __init__(
        self, mine: Mapping[str, str], others: Callable[[], Awaitable[list[dict[str, str]]]]
    ) -> None:
        self.mine = mine
        self._others = others

    def serves(self, agent: str, version: str) -> bool:
        """Whether a turn of that version may run here; the empty version is any."""
        return agent in self.mine and version in ("", self.mine[agent])

    async def decide(self, attempt: Attempt, spec: AgentSpec | None) -> GoOn | Wait | End:
        """What becomes of a turn of which this worker holds an attempt; ``spec`` is its agent's, if it is served here.

        A turn that has no version runs at any: it was not begun yet, or by a release that had none.
        """
        version = attempt.state.get(VERSION, b"").decode()
        if spec is not None and self.serves(spec.name, version):
            return GoOn(self.mine[spec.name])
        others = await self._others()
        if any(_serves(other, attempt.agent, version) for other in others):
            return Wait(_about(OFFERED_MS), offer=version or ANY_VERSION)
        if spec is None:
            # Those that have the agent know what is to become of its turns.
            known = any(attempt.agent in other for other in others)
            return Wait(_about(OFFERED_MS), offer=ANY_VERSION) if known else UNKNOWN
        most_ms = int(spec.version_wait * 1000)
        if spec.on_version == "wait" and most_ms:
            return Wait(_about(min(UNSERVED_MS, most_ms / 10)), most_ms)
        return GoOn(self.mine[spec.name]) if spec.on_version == "move" else GONE


def _serves(other: Mapping[str, str], agent: str, version: str) -> bool:
    return agent in other and version in ("", other[agent])


def _about(ms: float) -> int:
    """So that turns that wait together do not come back together."""
    return max(1, int(ms * random.uniform(0.5, 1.5)))  # noqa: S311
