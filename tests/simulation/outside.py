"""What lies outside of a deployment, and its agents depend on: a model's provider that fails, and a bank that books.

Each looks at who asks, at the broker, past all connections, in the moment in which it is asked. What a model gets is
made by the agent library as ever; only the provider's client is not there: what it raises is raised here.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections import Counter, defaultdict
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pydantic_ai.exceptions import (
    ModelConnectionError,
    ModelHTTPError,
    ModelOverloadedError,
    ModelRateLimitError,
)

from tests.chaos.checker import _text
from tests.chaos.records import ENDS
from tests.simulation.loop import current
from tests.simulation.steps import SET_BACK_MS
from turnstream import Outcome, current_call, current_turn
from turnstream.shared.broker.keys import MODELS

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from tests.chaos.records import Account, Turn
    from tests.simulation.broker import Store
    from tests.simulation.clients import SimulatedTown
    from tests.simulation.loop import Process, SimulatedLoop
    from turnstream.worker.lease import Held
    from turnstream.worker.turn import RunningTurn

# The provider's model, by its name and as operators know it.
MODEL = "provided"
GATED = f"function:{MODEL}"

# Until the provider answers, and between two pieces of its answer.
ANSWER_SECONDS = (0.0, 0.02)
PIECE_SECONDS = (0.0, 0.002, 0.01)

# The share of streams that break off while the provider's do.
CUT_SHARE = 0.5

# How long the provider wants to be left alone; and how long of turns that have less time.
RETRY_AFTER_SECONDS = (2.0, 2.0, 4.0, 8.0)
TOO_LONG_SECONDS = 300.0

# How long a worker may run on that has not heard yet that its turn has ended: it stands still, or its connections do.
UNHEARD_SECONDS = 20.0

# When workers know what is noted of a model, where nothing comes between them and the broker: they are sent a message.
HEARD_SECONDS = 0.5

# Seconds in which a worker runs, after which it has given up a turn that is parked, or whose model is away: it asks the
# broker for ten.
RELEASED_SECONDS = 15

# Until the bank has booked, and until it says so then.
BOOKED_SECONDS = (0.0, 0.01)
STALLED_SECONDS = (0.0, 0.01, 0.05, 0.5)

# How often the bank cannot tell what it has booked.
SILENT_SHARE = 0.15

_here: ContextVar[Outside] = ContextVar("outside")


def outside() -> Outside:
    """That of the simulation that runs."""
    return _here.get()


class Outside:
    """Provider and bank of one simulation.

    Attributes:
        connected: this run has the same workers from begin to end, and nothing comes between them and the brokers.
        wrong: what did not hold.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        rng: random.Random,
        broker: Store,
        primary: Store,
        serves: Callable[[str | None], bool],
    ) -> None:
        """``broker`` has the sessions, ``primary`` what is noted of models; ``serves``: whether workers know that one serves a version."""
        self._broker = broker
        self._primary = primary
        self._serves = serves
        # Ref → attempt → the version of the agent that ran.
        self._versions: defaultdict[str, dict[int, str | None]] = defaultdict(dict)
        broker.steps.on_gone = self._look_at_gone
        self.loop = loop
        self.rng = rng
        self.connected = False
        self.wrong: list[str] = []
        self.provider = Provider(self)
        self.bank = Bank(self)
        _here.set(self)

    def must(self, holds: object, rule: str, where: object) -> None:
        """Note what does not hold, unless the broker has lost what would tell."""
        if not holds and not self._broker.losses:
            self.wrong.append(f"{rule}: {where}")

    def now_ms(self) -> float:
        """The clock of the sessions' broker."""
        return self._broker.clock_ms()

    def noting_ms(self) -> float:
        """The clock of the broker that has what is noted of models."""
        return self._primary.clock_ms()

    def waited(self, ref: str, attempt: int) -> bool:
        """Whether the attempt was released to wait."""
        return (ref, attempt) in self._broker.steps.waited

    def marked(self, ref: str, attempt: int, call: str) -> bool:
        """Whether the attempt's mark that the call begins is in the store."""
        return (ref, attempt, call) in self._broker.steps.marked

    def ended_ms_ago(self, turn: RunningTurn) -> float:
        """How long ago the turn has ended; 0 where it has not."""
        ref = turn.attempt.ref
        key = ref.keys.task(ref.task)
        if self._broker.field(key, "status") not in ENDS:
            return 0.0
        return self.now_ms() - float(self._broker.field(key, "ended"))

    def noted(self, what: str) -> str:
        """What is noted of the provider's model; empty where it is as usual, or what is noted may be an old state."""
        return "" if self._primary.losses else self._primary.field(MODELS, f"{what} {GATED}")

    def look_at_slot(self, held: Held, process: Process, rule: str) -> None:
        """See that a worker's process gives the turn up within `RELEASED_SECONDS`, of those in which it runs."""
        context = process.context.copy()

        def look(seconds: int) -> None:
            if held._task is not None and not held._task.done():
                self.must(seconds, rule, held.attempt.ref)
                if seconds:
                    self.loop.call_later(1, look, seconds - 1, context=context)

        self.loop.call_later(1, look, RELEASED_SECONDS, context=context)

    def look_at_version(self) -> None:
        """See that the turn that runs, of an agent with versions, goes on at its own, or may move."""
        turn = current_turn()
        ref, attempt, version = str(turn.attempt.ref), turn.attempt.number, turn.spec.version
        former = self._version(ref, attempt, version)
        holds = former == version or (turn.spec.on_version == "move" and not self._serves(former))
        self.must(holds, "a_turn_keeps_its_version", f"{ref} {attempt}: {former}, then {version}")
        self._versions[ref][attempt] = version

    def _version(self, ref: str, before: int, begun: str | None) -> str | None:
        """The version of the newest attempt before this one that wrote something; ``begun`` where none has."""
        wrote = self._broker.steps.wrote
        earlier = [each for each in self._versions[ref] if each < before and (ref, each) in wrote]
        return self._versions[ref][max(earlier)] if earlier else begun

    def _look_at_gone(self, ref: str) -> None:
        version = self._version(ref, 1_000_000, "none")
        self.must(not self._serves(version), "who_fails_for_its_version_has_no_worker", f"{ref}: {version}")

    def wrong_answers(self, account: Account, town: SimulatedTown) -> Iterator[str]:
        """What turns have said that completed, and is not what the provider said, or not so."""
        for turn in account.turns:
            end = turn.own.frames[-1].data if turn.own.ended else {}
            if end.get("status") == "completed" and turn.prompt.startswith(("/ask", "/book")):
                texts = [_text(each) for each in end["output"] if each["type"] == "message"]
                yield from self._wrong_answer(turn, town.ref_of(turn), "".join(texts[-1:]))

    def _wrong_answer(self, turn: Turn, ref: str, text: str) -> Iterator[str]:
        answers = self.provider.answers[ref]
        newest = max((attempt for attempt, _ in answers), default=0)
        final = [said for attempt, said in answers if attempt == newest or self._broker.losses]
        if text not in final:
            yield f"an_answer_is_what_the_provider_said: {turn}: {text!r}, not {final}"
        if turn.prompt.startswith("/book") and not self._broker.losses:
            booked = len(self.bank.booked[ref])
            known = "booked" in text or ("unknown" in text and not turn.prompt.startswith("/book rerun"))
            if booked > 1 or ("booked" in text and not booked) or not known:
                yield f"an_effect_counts_once: {turn}: {booked} bookings: {text!r}"


class Provider:
    """A model's. It gives each request an answer of its own, piece by piece.

    Attributes:
        trouble: ``away``, ``limits`` (429) or ``cuts``; empty while all is well.
        answers: ref → attempt and text of each answer that came to its end.
        on_asked: called with the name of the process that asks, and the ref, until one of them wants it.
    """

    def __init__(self, around: Outside) -> None:
        self._outside = around
        self._numbers = itertools.count(1)
        self.trouble = ""
        self.answers: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        self.on_asked: list[Callable[[str, str], bool]] = []
        # Attempts that it failed, and the broker's time before which it does not want to be asked again.
        self._failed: dict[tuple[str, int], float] = {}
        # What was noted as the breaker's probe when it was asked.
        self._probes: set[str] = set()

    async def stream(self, said: Sequence[Any]) -> AsyncIterator[Any]:
        """Answer the model's request of the turn that runs.

        Raises:
            ModelAPIError: as the library's clients raise it.
        """
        turn, rng = current_turn(), self._outside.rng
        self._look_at(turn)
        any(each(str(current()), str(turn.attempt.ref)) for each in self.on_asked)
        said = [f"Answer {next(self._numbers)}. ", *said]
        await asyncio.sleep(rng.uniform(*ANSWER_SECONDS))
        if self.trouble in ("away", "limits"):
            raise self._failure(turn)
        cut = rng.randint(0, len(said)) if self.trouble == "cuts" and rng.random() < CUT_SHARE else -1
        seconds = rng.choice(PIECE_SECONDS)
        for at, piece in enumerate(said):
            if at == cut:
                raise self._failure(turn)
            yield piece
            await asyncio.sleep(seconds)
        if cut == len(said):
            raise self._failure(turn)
        text = "".join(each for each in said if isinstance(each, str))
        self.answers[str(turn.attempt.ref)].append((turn.attempt.number, text))

    def _look_at(self, turn: RunningTurn) -> None:
        around, ref, attempt = self._outside, str(turn.attempt.ref), turn.attempt.number
        around.must((ref, attempt) not in self._failed, "a_failed_attempt_asks_no_more", f"{ref} {attempt}")
        if around.waited(ref, attempt - 1):
            early = self._failed.get((ref, attempt - 1), 0.0) - around.now_ms()
            around.must(early < SET_BACK_MS, "a_provider_is_left_alone", f"{ref}: {early:.0f} ms")
        late = around.ended_ms_ago(turn)
        around.must(late < 1000 * UNHEARD_SECONDS, "who_has_ended_asks_nothing", f"{ref}: for {late:.0f} ms")
        seconds = HEARD_SECONDS if around.connected else UNHEARD_SECONDS
        if around.loop.time() - current().began > seconds:
            self._look_at_gate(ref, seconds)

    def _look_at_gate(self, ref: str, seconds: float) -> None:
        """All workers have heard of what has been noted for so long."""
        around = self._outside
        now = around.noting_ms()
        held, since = (now - float(around.noted(each) or now) for each in ("held", "since"))
        around.must(held < 1000 * seconds, "a_held_model_is_not_asked", f"{ref}: for {held:.0f} ms")
        if since < 1000 * seconds:
            return
        early = float(around.noted("until") or 0) - now
        around.must(early < SET_BACK_MS, "an_open_breaker_lets_nothing_pass", f"{ref}: {early:.0f} ms early")
        probe = around.noted("probe")
        around.must(probe not in self._probes, "one_request_probes", f"{ref}: {probe!r}")
        self._probes.add(probe)

    def _failure(self, turn: RunningTurn) -> Exception:
        around, rng = self._outside, self._outside.rng
        seconds = 0.0
        error: Exception
        if self.trouble == "limits":
            seconds = rng.choice(RETRY_AFTER_SECONDS)
            if turn.spec.deadline < TOO_LONG_SECONDS and rng.random() < 0.5:
                seconds = TOO_LONG_SECONDS
            error = _http_error(ModelRateLimitError, 429, seconds)
        elif self.trouble == "away" and rng.random() < 0.5:
            error = _http_error(ModelOverloadedError, 503)
        else:
            error = ModelConnectionError("provided", "the connection is gone")
        self._failed[str(turn.attempt.ref), turn.attempt.number] = around.now_ms() + 1000 * seconds
        around.look_at_slot(turn._held, current(), "who_waits_holds_no_slot")
        return error


class Bank:
    """Books an amount, once for each key, and tells so later, if anybody is there to hear it.

    Attributes:
        approved: ref → how often its client has agreed that a call is run again.
        booked: ref → the keys with which something was booked.
        on_booked: called with the name of the process that had something booked, and has not heard of it yet, and the
            ref, until one of them wants it.
    """

    def __init__(self, around: Outside) -> None:
        self._outside = around
        self._context = contextvars.copy_context()
        self._asked: defaultdict[str, list[str]] = defaultdict(list)
        self.approved: Counter[str] = Counter()
        self.booked: defaultdict[str, set[str]] = defaultdict(set)
        self.on_booked: list[Callable[[str, str], bool]] = []

    async def book(self, amount: int) -> str:
        """Book an amount, for the call that runs."""
        ref, key = self._look_at(), current_call().key
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        seconds = self._outside.rng.uniform(*BOOKED_SECONDS)
        # What was sent arrives, whatever becomes of the worker.
        who = str(current())
        self._outside.loop.call_later(seconds, self._commit, ref, key, who, answer, context=self._context)
        await answer
        return f"booked {amount}"

    def _look_at(self) -> str:
        call, around = current_call(), self._outside
        ref, attempt = str(call.turn.attempt.ref), call.attempt
        asked = self._asked[ref]
        asked.append(call.key)
        around.must(around.marked(ref, attempt, call.source), "an_effect_is_marked_first", f"{ref} {attempt}")
        around.must(len(set(asked)) == 1, "a_call_keeps_its_key", f"{ref} {asked}")
        most = {"tell": 1, "ask": 1 + self.approved[ref]}.get(call.name, len(asked))
        around.must(
            len(asked) <= most, "nothing_runs_again_unasked", f"{ref}: {call.name}, {len(asked)} times"
        )
        return ref

    def _commit(self, ref: str, key: str, who: str, answer: asyncio.Future[str]) -> None:
        self.booked[ref].add(key)
        any(each(who, ref) for each in self.on_booked)
        self._outside.loop.call_later(self._outside.rng.choice(STALLED_SECONDS), _answer, answer)

    async def find(self, key: str) -> Any:
        """What became of a call."""
        await asyncio.sleep(self._outside.rng.uniform(*BOOKED_SECONDS))
        if self._outside.rng.random() < SILENT_SHARE:
            return Outcome.UNKNOWN
        return "It was booked." if any(key in keys for keys in self.booked.values()) else Outcome.NOT_DONE


def _answer(answer: asyncio.Future[str]) -> None:
    if not answer.done():
        answer.set_result("")


def _http_error(category: Any, status: int, retry_after: float | None = None) -> ModelHTTPError:
    return ModelHTTPError.for_category(
        category, status_code=status, model_name="provided", retry_after=retry_after
    )
