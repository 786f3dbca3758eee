"""The gate before each request to a model: whether it may be asked now, over all workers (`shared/model_states.py`).

A worker looks at the states when it hears that something is noted or that a breaker opened, and once a second while anything
is; it lets requests pass by what it saw. So a model that is not held, answers and has no limit costs nothing at the broker; a request to another one
asks there, and a failure is noted there.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import secrets
import time
from collections import defaultdict
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import orjson
import structlog
from pydantic_ai.exceptions import ModelAPIError

from turnstream.shared import metrics
from turnstream.shared.broker.retry import is_transient as is_brokers
from turnstream.shared.errors import BrokerAway
from turnstream.shared.model_states import USUAL, Closed, IsBusy, IsHeld, IsOpen, ModelState, Opened, of_agent
from turnstream.worker.agents.failures import asked_seconds, explain, is_transient
from turnstream.worker.agents.run_outcome import NotNow
from turnstream.worker.turn import now_ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from pydantic_ai.models import Model

    from turnstream.shared.model_states import ModelStates, Outcome
    from turnstream.shared.session.model_calls import ModelCall
    from turnstream.shared.session.outcomes import Attempt
    from turnstream.worker.turn import RunningTurn

log = structlog.get_logger(__name__)

# Between two looks at the states while anything is noted: a resume takes effect so late.
LOOK_SECONDS = 1.0

# While nothing is: for when the message was lost that something is now.
QUIET_LOOK_SECONDS = 5.0

# How long a report is retried while the broker is away: a permit expires by itself, and one failure more or less is none.
REPORT_RETRY_SECONDS = 5.0

# A turn comes back to a model that is held after half the time for which it has been held, within these seconds: soon to
# one that was held by mistake, and seldom to one that is held for hours.
LEAST_HELD_SECONDS = 2.0
MOST_HELD_SECONDS = 30.0

# While another request probes a model.
PROBED_SECONDS = 1.5

# How many of the turns that a worker has turned away from a model come back to it in a second, about: each takes a slot to
# ask whether it may, and thousands that did so at once would be felt. What this adds is bounded.
RETURNS_PER_SECOND = 10.0
MOST_ADDED_SECONDS = 30.0

# When all permits are taken; longer the more turns wait, so that many do not ask all the time.
LEAST_BUSY_SECONDS = 0.5
MOST_BUSY_SECONDS = 15.0

# Checkpoint: names of models whose retries are spent; others stand in for them from then on.
GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model, and the name by which operators and `agents.toml` know it. None: an agent's that has none of its own."""

    name: str
    model: Model | str | None


class ModelGate:
    """One for a worker.

    Duties:
        1. look at the models' states, and extend this worker's permits (`tend`);
        2. refuse a request to a model that is held, that the breaker leaves alone, or that has as many requests as it may
           have (`asking`), by an exception that says when to come back: the turn is released for so long;
        3. report what failed, and the first answer after a failure.
    """

    def __init__(self, states: ModelStates, limits: Mapping[str, int], models: frozenset[str]) -> None:
        """``limits``: requests at once; ``models``: those that have a state: what only a request names has none."""
        self._states = states
        self._limits = limits
        self.models = models
        self._seen: dict[str, ModelState] = {}
        # The broker's clock minus ours, ms.
        self._offset = 0.0
        self._permits: dict[str, set[str]] = defaultdict(set)
        # When those come back that were turned away, by `time.monotonic`: a heap for each model.
        self._returns: dict[str, list[float]] = defaultdict(list)
        # Between two extensions, where there are permits: as with leases two may be lost.
        self._extend_seconds = states.permit_ms / 3000 if limits else math.inf
        self._reports: set[asyncio.Task[None]] = set()
        self._noted = asyncio.Event()

    def noted(self) -> None:
        """Something is noted of a model: look now."""
        self._noted.set()

    async def tend(self) -> None:
        """Look for ever; to be run as a task."""
        while True:
            try:
                await self._look()
                await self._extend()
            except Exception as error:
                if not (is_brokers(error) or isinstance(error, BrokerAway)):
                    log.exception("models.look_failed")
            seconds = LOOK_SECONDS if self._seen else QUIET_LOOK_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, self._extend_seconds)):
                    await self._noted.wait()
            self._noted.clear()

    async def end(self) -> None:
        """Wait for the reports that are on their way."""
        await asyncio.gather(*self._reports, return_exceptions=True)

    def refusal(self, model: str) -> NotNow | None:
        """Why the model may not be asked, as far as this worker saw; None: it may, or has to be asked for."""
        state = self._seen.get(model, USUAL)
        now = self._now()
        if state.held:
            return _refusal(model, IsHeld(now - state.held))
        if state.until and (now < state.until or now < state.probe):
            return _refusal(model, IsOpen(max(0, state.until - now)))
        return None

    @asynccontextmanager
    async def asking(self, model: str, turn: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Around a request to the model that ``turn`` makes; await what this gives when the answer begins to come.

        Raises:
            NotNow: it may not be asked now.
            Others: whatever the block raises; a failure of the model is reported.
        """
        if model not in self.models:
            yield _nothing
            return
        if refusal := self.refusal(model):
            raise self.spread_out(model, refusal)
        limit = self._limits.get(model, 0)
        call = secrets.token_hex(8)
        # Whether the broker knows of this request.
        known = bool(limit or self._seen.get(model, USUAL).until)
        if known:
            self._permits[model].add(call)
        outcome: Outcome = "none"
        asked_ms, cancelled = 0, False
        try:
            if known:
                entered = await self._states.enter(model, call, turn, limit)
                if refusal := _refusal(model, entered, limit):
                    known = False
                    raise self.spread_out(model, refusal)
            yield partial(self._answered, model, call)
        except Exception as error:
            if isinstance(error, ModelAPIError):
                outcome = "failed" if is_transient(error) else "answered"
                asked_ms = int(1000 * asked_seconds(error))
            raise
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            self._permits[model].discard(call)
            if known or outcome == "failed":
                reporting = asyncio.create_task(self._report(model, call, outcome, asked_ms), name="report")
                self._reports.add(reporting)
                reporting.add_done_callback(self._reports.discard)
                if not cancelled:
                    # The turn's next request must find the permit free.
                    await asyncio.shield(reporting)

    def spread_out(self, model: str, refusal: NotNow) -> NotNow:
        """The same refusal, later the more turns are to come back; of those that wait for a permit the broker keeps count."""
        if refusal.code == "model_busy":
            return refusal
        now, returns = time.monotonic(), self._returns[model]
        while returns and returns[0] <= now:
            heapq.heappop(returns)
        most = min(len(returns) / RETURNS_PER_SECOND, MOST_ADDED_SECONDS)
        refusal.seconds += random.uniform(0, most)  # noqa: S311 - it is no secret
        heapq.heappush(returns, now + refusal.seconds)
        return refusal

    async def _answered(self, model: str, call: str) -> None:
        """Note that the model answers, where it is not known to."""
        state = self._seen.get(model, USUAL)
        if state.failures or state.until:
            await self._report(model, call, "answered", over=False)

    async def _report(
        self, model: str, call: str, outcome: Outcome, asked_ms: int = 0, *, over: bool = True
    ) -> None:
        try:
            states = self._states.retrying(REPORT_RETRY_SECONDS)
            change = await states.report(model, call, outcome, over=over, asked_ms=asked_ms)
            if isinstance(change, Opened):
                log.warning("model.opened", model=model, seconds=change.ms / 1000)
            elif isinstance(change, Closed):
                log.info("model.closed", model=model)
            if outcome != "none":
                await self._look()
        except Exception as error:
            if not (is_brokers(error) or isinstance(error, BrokerAway)):
                log.exception("models.report_failed", model=model)

    def _now(self) -> int:
        """The broker's time, about, Unix milliseconds."""
        return int(time.monotonic() * 1000 + self._offset)

    async def _look(self) -> None:
        now, self._seen = await self._states.once.read()
        self._offset = now - time.monotonic() * 1000

    async def _extend(self) -> None:
        for model, calls in self._permits.items():
            if calls and model in self._limits:
                await self._states.once.extend(model, list(calls), self._now())


async def _nothing() -> None:
    pass


def _refusal(model: str, entered: object, limit: int = 1) -> NotNow | None:
    """How a turn is refused that may not ask the model; when it comes back is random, so that all do not come at once."""
    match entered:
        case IsHeld(ms):
            most = min(max(LEAST_HELD_SECONDS, ms / 2000), MOST_HELD_SECONDS)
            return NotNow("model_held", model, _spread(most))
        case IsOpen(ms):
            seconds = ms / 1000
            return NotNow(
                "model_unavailable", model, seconds + _spread(PROBED_SECONDS + seconds / 4), failed=True
            )
        case IsBusy(turns):
            most = min(LEAST_BUSY_SECONDS * (1 + turns / limit), MOST_BUSY_SECONDS)
            return NotNow("model_busy", model, _spread(most))
    return None


def _spread(seconds: float) -> float:
    return random.uniform(seconds / 2, seconds)  # noqa: S311 - it is no secret


@contextmanager
def noting(turn: RunningTurn, agent: str, path: str, model: str) -> Iterator[ModelCall]:
    """Note the request to a model that is made in this block: when it was made, when it ended, and as what it failed."""
    call = turn.begin_call(agent, path, model)
    try:
        yield call
    except asyncio.CancelledError:
        call.error = "canceled"
        raise
    except Exception as error:
        call.error = explain(error)[0]
        raise
    finally:
        call.end(now_ms())
        turn.note_calls()


class TurnModels:
    """The models that one attempt may ask."""

    def __init__(self, gate: ModelGate, attempt: Attempt) -> None:
        self._gate = gate
        self._turn = str(attempt.ref)
        self._given_up: set[str] = set(orjson.loads(attempt.state.get(GIVEN_UP, b"[]")))
        # Those that another one may stand in for.
        self._replaceable: set[str] = set()
        # Of these, those that failed.
        self._failed: set[str] = set()

    def label(self, model: str) -> str:
        """What metrics call a model: one that only a request names has no name of its own."""
        return model if model in self._gate.models else metrics.OTHER

    def check(self, agent: str) -> None:
        """See to it that no operator holds the agent.

        Raises:
            NotNow: one does.
        """
        name = of_agent(agent)
        if refusal := self._gate.refusal(name):
            raise self._gate.spread_out(name, NotNow("agent_held", agent, refusal.seconds))

    def give_up(self) -> bytes | None:
        """Give those up that failed, where others are left: what to keep as `GIVEN_UP`; None: no other is left."""
        if not self._failed:
            return None
        self._given_up |= self._failed
        return orjson.dumps(sorted(self._given_up))

    def choose(self, chain: Sequence[NamedModel]) -> NamedModel:
        """The first that may be asked now, of those that are not given up; else the one that may be asked first."""
        left = [each for each in chain if each.name not in self._given_up] or [chain[-1]]
        if len(left) > 1:
            self._replaceable.update(each.name for each in left)
        refused: list[tuple[float, NamedModel]] = []
        for each in left:
            if (refusal := self._gate.refusal(each.name)) is None:
                return each
            refused.append((refusal.seconds, each))
        return min(refused, key=lambda pair: pair[0])[1]

    @asynccontextmanager
    async def asking(self, model: str, agent: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """As `ModelGate.asking`, for an agent that no operator holds."""
        self.check(agent)
        try:
            async with self._gate.asking(model, self._turn) as answered:
                yield answered
        except Exception as error:
            if isinstance(error, ModelAPIError):
                metrics.models_failed.add(self.label(model), explain(error)[0])
            if model in self._replaceable and is_transient(error):
                self._failed.add(model)
            raise
