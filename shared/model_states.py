"""The states of models, the same for all workers: held by an operator, left alone by the breaker, limited.

An agent that an operator holds has a state here, too, under a name that no model has (`of_agent`).

All but the permits is one hash, ``ts:models``, with a field ``<what> <model>`` for what is not as usual; a model that is
held by no operator and answers has none. What writes it: `lua/model_enter.lua` before a request that may be refused,
`lua/model_report.lua` after one that failed, or changes something, and operators. Times are the broker's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from turnstream.shared import metrics
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command, now_ms
from turnstream.shared.broker.retry import Retrying, whole
from turnstream.shared.broker.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from redis.asyncio import Redis

_enter = Script(
    "model_enter",
    keys=("models", "permits", "waiting"),
    args=("model", "call", "turn", "limit", "permit_ms", "probe_ms", "waiting_ms"),
)
_report = Script(
    "model_report",
    keys=("models", "permits"),
    args=(
        "model",
        "call",
        "outcome",
        "over",
        "most_failures",
        "first_ms",
        "most_ms",
        "asked_ms",
        "doorbell",
        "message",
    ),
)

# What workers hear on the doorbell when something is noted of a model of which nothing was, or its breaker opened.
NOTED = b"models"

# Failures in a row that open the breaker. Fewer, and a provider that fails now and then is left alone by chance: at one of
# five, ten in a row are one of ten million.
MOST_FAILURES = 10

# How long it stays open the first time, and at most: each probe that fails doubles it.
FIRST_OPEN_MS = 1_000
MOST_OPEN_MS = 60_000

# A probe that has brought nothing after this may be lost with its worker: another one is made.
PROBE_MS = 30_000

# A turn that waits for a permit and has not come back after this does not come: it was stopped.
WAITING_MS = 30_000

StateName = Literal["closed", "open", "probing", "held"]
Outcome = Literal["answered", "failed", "none"]


@dataclass(frozen=True, slots=True)
class ModelState:
    """What is known of a model. Times are Unix milliseconds, 0 for never.

    Attributes:
        held: since when an operator holds it.
        failures: in a row.
        since: when the breaker opened.
        until: when the next probe may be made.
        probe: until when the probe that is being made is waited for.
    """

    held: int = 0
    failures: int = 0
    since: int = 0
    until: int = 0
    probe: int = 0

    def name(self, now: int) -> StateName:
        """The state in one word."""
        if self.held:
            return "held"
        if not self.until:
            return "closed"
        return "probing" if self.until <= now < self.probe else "open"


_AGENT = "agent "


def of_agent(agent: str) -> str:
    """What an agent is called among models; their names have no spaces."""
    return _AGENT + agent


def is_agent(name: str) -> bool:
    """Whether something of which a state is noted is an agent."""
    return name.startswith(_AGENT)


# A model of which nothing is noted.
USUAL = ModelState()


@dataclass(frozen=True, slots=True)
class Go:
    """The request may be made."""


@dataclass(frozen=True, slots=True)
class IsHeld:
    """An operator holds the model, for ``ms`` now."""

    ms: int


@dataclass(frozen=True, slots=True)
class IsOpen:
    """The breaker is open for ``ms`` more; 0: a probe is being made."""

    ms: int


@dataclass(frozen=True, slots=True)
class IsBusy:
    """As many requests are being made as may be, and so many turns wait."""

    turns: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The breaker opened, or stays so, for ``ms``."""

    ms: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The breaker closed."""


class ModelStates(Retrying):
    """The states at the primary."""

    def __init__(self, redis: Redis, permit_ms: int) -> None:
        """``permit_ms``: how long a permit counts unless it is extended. As a lease: without that its worker died."""
        self._redis = redis
        self.permit_ms = permit_ms

    @whole
    async def read(self) -> tuple[int, dict[str, ModelState]]:
        """The broker's time, and the state of each model of which something is noted."""
        now = await now_ms(self._redis)
        noted: dict[bytes, bytes] = await command(self._redis, "HGETALL", keys.MODELS)
        found: dict[str, dict[str, int]] = {}
        for field, value in noted.items():
            what, _, model = field.decode(errors="replace").partition(" ")
            number = value.partition(b" ")[0]
            if not model or not number.isdigit():
                metrics.unreadable.add("model state")
            elif what in ModelState.__slots__:
                found.setdefault(model, {})[what] = int(number)
        return now, {model: ModelState(**fields) for model, fields in found.items()}

    async def hold(self, model: str) -> bool:
        """Let no request to the model begin until `resume`; False: it is held already."""
        now = await now_ms(self._redis)
        held = bool(await command(self._redis, "HSETNX", keys.MODELS, f"held {model}", now))
        await command(self._redis, "PUBLISH", keys.DOORBELL, NOTED)
        return held

    async def resume(self, model: str) -> bool:
        """End a hold, and close the breaker; False: there was nothing to end."""
        fields = (f"{what} {model}" for what in (*ModelState.__slots__, "opened"))
        return bool(await command(self._redis, "HDEL", keys.MODELS, *fields))

    async def enter(self, model: str, call: str, turn: str, limit: int) -> Go | IsHeld | IsOpen | IsBusy:
        """Ask whether the request ``call`` of a turn may be made, of which ``limit`` may be at once (0: any number)."""
        reply = await _enter(
            self._redis,
            models=keys.MODELS,
            permits=keys.model_permits(model),
            waiting=keys.model_waiting(model),
            model=model,
            call=call,
            turn=turn,
            limit=limit,
            permit_ms=self.permit_ms,
            probe_ms=PROBE_MS,
            waiting_ms=WAITING_MS,
        )
        match reply:
            case [b"held", ms]:
                return IsHeld(int(ms))
            case [b"open", ms]:
                return IsOpen(int(ms))
            case [b"busy", turns]:
                return IsBusy(int(turns))
        return Go()

    async def report(
        self, model: str, call: str, outcome: Outcome, *, over: bool, asked_ms: int = 0
    ) -> Opened | Closed | None:
        """Say how a request went; ``over``: its permit is given back; ``asked_ms``: as ``Retry-After`` asks."""
        reply = await _report(
            self._redis,
            models=keys.MODELS,
            permits=keys.model_permits(model),
            model=model,
            call=call,
            outcome=outcome,
            over="1" if over else "0",
            most_failures=MOST_FAILURES,
            first_ms=FIRST_OPEN_MS,
            most_ms=MOST_OPEN_MS,
            asked_ms=asked_ms,
            doorbell=keys.DOORBELL,
            message=NOTED,
        )
        match reply:
            case [b"opened", ms]:
                return Opened(int(ms))
            case [b"closed"]:
                return Closed()
        return None

    async def extend(self, model: str, calls: Iterable[str], now: int) -> None:
        """Have the permits of these requests count for longer; ``now`` is the broker's time."""
        dated = [word for call in calls for word in (now + self.permit_ms, call)]
        await command(self._redis, "ZADD", keys.model_permits(model), "XX", *dated)
        await command(self._redis, "PEXPIRE", keys.model_permits(model), self.permit_ms)

    async def listed(self, known: Iterable[str], limits: Mapping[str, int]) -> list[dict[str, Any]]:
        """What operators see of each known model, and of those of which something is noted; by name."""
        now, states = await self.read()
        rows = []
        for model in sorted({*known, *(name for name in states if not is_agent(name))}):
            row = _row(model, states.get(model, USUAL), now)
            if limit := limits.get(model, 0):
                permits = keys.model_permits(model)
                row["running"] = int(await command(self._redis, "ZCOUNT", permits, now, "+inf"))
                row["limit"] = limit
            rows.append(row)
        return rows

    async def agents_held(self) -> dict[str, float]:
        """The agents that operators hold, and since when, Unix seconds."""
        _, states = await self.read()
        return {
            name.removeprefix(_AGENT): state.held / 1000
            for name, state in states.items()
            if is_agent(name) and state.held
        }


def _row(model: str, state: ModelState, now: int) -> dict[str, Any]:
    name = state.name(now)
    row: dict[str, Any] = {"model": model, "state": name, "failures": state.failures}
    if since := state.held or state.since:
        row["since"] = since / 1000
    if name == "open" and state.until > now:
        row["until"] = state.until / 1000
    return row
