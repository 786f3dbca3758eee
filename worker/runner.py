"""One launch, from claim to outcome: begin an attempt, run the agent, write how it ended.

begin ──► its version is served here? No (`AgentVersions.decide`): release, for a worker that serves it;
  │                                   where none does: go on here, release and wait, or finish(failed)
  │
  ├─────► agent runs ──► Done          finish(completed)
  │           │     └──► NeedsClient   park
  │           ├──► raises               finish(failed), or, while the model's provider is away,
  │           │                         release: it goes on when it may be asked again, or at a fallback
  │           └──► cancelled: stop, lease lost   nothing more may be said
  │                           log behind         launched again: the broker lost what the attempt wrote
  │                           deadline           finish(failed)
  │                           shutdown           release: it goes on elsewhere
  └──► superseded, ended, gone: nothing to do
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from turnstream.shared import metrics, tracing
from turnstream.shared.agents import places
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import BrokerAway
from turnstream.shared.session.batch import BACKGROUND, TooLarge
from turnstream.shared.session.cancellation import Reason
from turnstream.shared.session.endings import (
    TEXTS,
    AttemptRefused,
    End,
    close_open,
    open_messages,
    write_end,
)
from turnstream.shared.session.outcomes import (
    Attempt,
    Behind,
    Ended,
    Finished,
    GivesWay,
    Heavy,
    Launch,
    NotBefore,
    Parked,
    Spent,
)
from turnstream.shared.session.queue import Job
from turnstream.shared.session.status import TaskStatus
from turnstream.shared.session.tasks import operation
from turnstream.worker.agent_versions import GONE, UNKNOWN, WAITS_FOR, GoOn, Wait
from turnstream.worker.agents.failures import (
    explain,
    for_operators,
    full_traceback,
    is_transient,
    retry_seconds,
    seconds_to_wait,
)
from turnstream.worker.agents.model_gate import GIVEN_UP, TurnModels
from turnstream.worker.agents.run_outcome import Done, NeedsClient
from turnstream.worker.budget import NoRoom
from turnstream.worker.flush_window import FlushWindow
from turnstream.worker.lease import Moment
from turnstream.worker.publisher import LostAttempt, Publisher
from turnstream.worker.turn import RunningTurn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from turnstream.shared.agents.config import AgentSpec
    from turnstream.shared.session.batch import Batch
    from turnstream.shared.session.endings import Ender
    from turnstream.shared.session.outcomes import Gone, Refusal, Superseded
    from turnstream.shared.settings import Settings
    from turnstream.worker.agent_versions import AgentVersions
    from turnstream.worker.agents.model_gate import ModelGate
    from turnstream.worker.budget import Budget, Share
    from turnstream.worker.lease import Held, Leases

    class RunnableAgent(Protocol):
        """What the runner needs of an agent."""

        spec: AgentSpec

        async def run(self, turn: RunningTurn) -> Done | NeedsClient:
            """Answer a turn, or get to where the client must answer first."""


log = structlog.get_logger(__name__)

# Timeout of the last writes of an attempt: closing, releasing, parking.
PARTING_SECONDS = 10.0

# What is retried, where the turn does not wait for its agent's version.
_MODEL = "model"

# An agent that has not ended so long after its turn was cancelled is abandoned: the turn goes on without it, while the
# task is still cancelled again (`CLEANUP_SECONDS`). Longer, and a deadline takes effect late; shorter, and an agent that
# cleans up is overtaken by its next attempt.
HEED_SECONDS = 1.0

# An agent that is told by `LostAttempt` that its attempt is over is cancelled so long after that, unless it has ended.
RAISED_SECONDS = 0.25


class Runner:
    """Runs launches."""

    def __init__(
        self,
        worker: str,
        ender: Ender,
        leases: Leases,
        agents: Mapping[str, RunnableAgent],
        budget: Budget,
        settings: Settings,
        look: Callable[[TaskRef, int], None],
        versions: AgentVersions,
        gate: ModelGate,
        cancel: Callable[[bytes | None], None],
    ) -> None:
        """``look`` has the task swept in so many milliseconds, as far as this process lives; ``cancel`` has background responses canceled."""
        self._cancel_responses = cancel
        self._worker = worker
        self._versions = versions
        self._look = look
        self._gate = gate
        self._budget = budget
        self._ender = ender
        self._leases = leases
        self._agents = agents
        self._lease_ms = settings.lease_ms
        self._turn_bytes = settings.turn_max_bytes
        self._window = FlushWindow(settings.flush_seconds)
        # Agents that went on after their turn was cancelled.
        self._left: set[asyncio.Task[Any]] = set()
        self._debug = bool(settings.debug)

    async def run_task(self, ctx: dict[Any, Any], ref_text: str, launch: int) -> None:  # noqa: ARG002 - arq's signature
        """What an arq job does. Nothing is raised: whatever happens is settled here, or by the rescuer."""
        ref = TaskRef.parse(ref_text)
        try:
            with self._budget.share() as share:
                asked = Moment()
                begun = await self._begin(ref, launch, share)
                if isinstance(begun, Attempt):
                    metrics.attempts.add("first" if begun.fresh else "further")
                    metrics.queue_wait_seconds.add(begun.waited_ms(self._lease_ms) / 1000)
                    await self._run(begun, asked)
                else:
                    log.info("task.not_begun", ref=ref_text, launch=launch, because=type(begun).__name__)
        except NoRoom:
            if self._budget.closed:
                await self._launch(ref, launch)
            else:
                log.info("task.left_to_rescuer", ref=ref_text, launch=launch, because="no room")
        except BrokerAway:
            log.warning("task.left_to_rescuer", ref=ref_text, launch=launch)
        except asyncio.CancelledError:
            # Cancelled before the attempt was held, or once more after its parting words.
            log.info("task.cancelled", ref=ref_text, launch=launch)
        except Exception:
            log.exception("task.left_to_rescuer", ref=ref_text, launch=launch)

    async def _begin(
        self, ref: TaskRef, launch: int, share: Share
    ) -> Attempt | Heavy | Superseded | Ended | Gone:
        """Begin the launch, when there is room for what it is given. Meanwhile another worker may."""
        op = operation()
        while True:
            begun = await self._ender.tasks.begin(ref, launch, self._worker, op, room=share.size)
            if not isinstance(begun, Heavy):
                return begun
            await share.take(begun.bytes)

    async def _run(self, attempt: Attempt, asked: Moment) -> None:
        held = self._leases.hold(attempt, asked)
        ender = self._ender
        publisher = Publisher(
            ender.tasks, attempt, held.refused, ender.offload, self._window, most_bytes=self._turn_bytes
        )
        timer = self._arm_deadline(held)
        with (
            structlog.contextvars.bound_contextvars(
                ref=str(attempt.ref), agent=attempt.agent, attempt=attempt.number, worker=self._worker
            ),
            tracing.attempting(
                attempt.task.get("trace", b"").decode(),
                attempt.ref,
                number=attempt.number,
                agent=attempt.agent,
                waited_ms=attempt.waited_ms(self._lease_ms),
            ),
        ):
            log.info("attempt.began")
            try:
                await self._answer(held, publisher)
            except asyncio.CancelledError:
                await self._cancelled(held, publisher)
            except LostAttempt:
                log.info("attempt.lost")
            finally:
                if timer is not None:
                    timer.cancel()
                # Counted here: the message of a stop often arrives after an append was refused.
                metrics.leases_lost.n += held.reason is Reason.LEASE_LOST
                self._leases.drop(held)
                if held.reason is Reason.STOP:
                    self._cancel_responses(attempt.state.get(BACKGROUND))
                await publisher.close()
                if held.launch:
                    log.warning("attempt.behind", launch=held.launch)
                    await self._launch(attempt.ref, held.launch)

    def _arm_deadline(self, held: Held) -> asyncio.TimerHandle | None:
        attempt = held.attempt
        if not attempt.deadline:
            return None
        # The broker's clock at begin, told by the lease it gave: deadlines are never by our own clock.
        now = int(attempt.task["lease"]) - self._lease_ms
        seconds = max(0.0, (attempt.deadline - now) / 1000)
        held.ends = time.time() + seconds
        return asyncio.get_running_loop().call_later(seconds, held.cancel, Reason.DEADLINE)

    async def _answer(self, held: Held, publisher: Publisher) -> None:
        attempt = held.attempt
        agent = self._agents.get(attempt.agent)
        decided = await self._versions.decide(attempt, agent.spec if agent is not None else None)
        if agent is None or not isinstance(decided, GoOn):
            await self._go_elsewhere(held, publisher, decided)
            return
        asked = attempt.task["request"]
        request = await publisher.offload.run_large(attempt.ref.owner, len(asked), orjson.loads, asked)
        turn = RunningTurn(held, agent.spec, publisher, request, TurnModels(self._gate, attempt))
        turn.enter()
        turn.begin_version(decided.version)
        if attempt.open:
            await self._close_former(held, publisher)
        try:
            outcome = await self._let_run(held, agent, turn)
        except (asyncio.CancelledError, LostAttempt, BrokerAway):
            raise
        except TooLarge:
            text = "The turn said more than a turn may. Ask for less at once."
            await self._finish(
                held, publisher, turn, End(TaskStatus.FAILED, "turn_too_large", text, turn.usage)
            )
            return
        except BaseException as error:
            # What an agent's code raises ends its turn, never the worker: SystemExit and the like too.
            await self._failed(held, publisher, turn, error)
            return
        if isinstance(outcome, Done):
            await self._finish(
                held, publisher, turn, End(TaskStatus.COMPLETED, "", "", turn.usage, outcome.memory)
            )
        elif turn.waits:
            await self._park(held, publisher, turn)
        else:
            # Parked like this the task would be launched again at once, for ever.
            text = "The agent waits for its client, but has asked it nothing."
            await self._finish(
                held, publisher, turn, End(TaskStatus.FAILED, "agent_asked_nothing", text, turn.usage)
            )

    async def _go_elsewhere(self, held: Held, publisher: Publisher, decided: GoOn | Wait | End) -> None:
        """Release the attempt for a worker that serves the turn's version; or end the turn: none came in time."""
        attempt = held.attempt
        if isinstance(decided, Wait):
            outcome = await self._release(
                held, publisher, decided.ms, WAITS_FOR, decided.most_ms, retrying=WAITS_FOR
            )
            if isinstance(outcome, NotBefore):
                log.info("attempt.waits", code=WAITS_FOR, wait_ms=decided.ms, offered=decided.offer)
                if decided.offer:
                    job = Job(attempt.ref, outcome.number)
                    await self._ender.launches.offer(job, attempt.agent, decided.offer)
            if not isinstance(outcome, Spent):
                return
            decided = GONE
        end = decided if isinstance(decided, End) else UNKNOWN
        log.warning("attempt.no_agent", code=end.why, agent=attempt.agent)
        await self._finish(held, publisher, None, end)

    async def _failed(
        self, held: Held, publisher: Publisher, turn: RunningTurn, error: BaseException
    ) -> None:
        """Release the attempt while a failure that passes may be retried, then for another model, if any; else end the turn."""
        code, text = explain(error)
        seconds = retry_seconds(error, turn.spec.retry_for)
        if seconds is not None:
            await publisher.seal()
            task = held.attempt.task
            again = not publisher.progressed and task.get("retrying") == _MODEL.encode()
            wait_ms = max(1, int(seconds_to_wait(error, int(task.get("retries", 0)) if again else 0) * 1000))
            outcome = await self._release(
                held, publisher, wait_ms, code, int(seconds * 1000), retrying=_MODEL
            )
            if not isinstance(outcome, Spent):
                log.warning("attempt.waits", code=code, wait_ms=wait_ms, **for_operators(error))
                return
        if is_transient(error) and (given_up := turn.models.give_up()) is not None:
            await publisher.seal()
            await publisher.keep(GIVEN_UP, given_up)
            log.warning("model.given_up", code=code, models=given_up.decode(), **for_operators(error))
            await self._release(held, publisher)
            return
        log.warning(
            "agent.failed", code=code, **for_operators(error), exc_info=error if self._debug else None
        )
        trace = full_traceback(error) if self._debug else ""
        await self._finish(
            held, publisher, turn, End(TaskStatus.FAILED, code, text, turn.usage, traceback=trace)
        )

    async def _let_run(self, held: Held, agent: RunnableAgent, turn: RunningTurn) -> Done | NeedsClient:
        """The agent's outcome. It runs as a task of its own: one that swallows its cancellation is left behind.

        Raises:
            asyncio.CancelledError: the turn was cancelled, and the agent has ended, or was left.
            Others: whatever the agent raises.
        """
        name = f"agent {agent.spec.name} {turn.attempt.ref}"
        running = asyncio.create_task(_outcome(agent, turn), name=name)
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            try:
                if turn.publisher.raised:
                    # `LostAttempt` is on its way through the agent, and a cancellation would cut short what it does about that.
                    await asyncio.wait([running], timeout=RAISED_SECONDS)
                running.cancel(msg=held.reason)
                await asyncio.wait([running], timeout=HEED_SECONDS)
            finally:
                if not running.done():
                    self._leave(running, agent, held)
            if not running.done() or running.cancelled():
                raise
        outcome = running.result()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _leave(self, running: asyncio.Task[Any], agent: RunnableAgent, held: Held) -> None:
        """Go on without the agent. Nothing that it says is heard any more; it is held here until it ends."""
        metrics.agents_left.n += 1
        log.warning("agent.left", agent=agent.spec.name, reason=str(held.reason), at=places.of_task(running))
        self._left.add(running)
        running.add_done_callback(self._ended_late)

    def _ended_late(self, running: asyncio.Task[Any]) -> None:
        self._left.discard(running)
        if not running.cancelled():
            # Whatever it was, the turn's end is written: it only must not be reported as never looked at.
            running.exception()

    async def _close_former(self, held: Held, publisher: Publisher) -> None:
        """What the former attempt was saying is closed, incomplete; this attempt says it anew."""
        attempt = held.attempt
        try:
            begun = await open_messages(self._ender, attempt)
        except AttemptRefused as refused:
            held.refused(refused.outcome)
            # Here that cancels the turn, as it does when the publisher is refused.
            await asyncio.sleep(0)
            raise LostAttempt from None
        # Only now: the batch that gathered before may have been sent meanwhile.
        close_open(begun, publisher.batch)
        attempt.open.clear()
        publisher.kick()
        await publisher.flush()

    async def _finish(self, held: Held, publisher: Publisher, turn: RunningTurn | None, end: End) -> None:
        attempt = held.attempt
        if end.status == TaskStatus.COMPLETED and turn is not None and turn.output is not None:
            # All that waits goes with the end, in one append.
            await publisher.settle()
            more, output = publisher.take(), turn.output
        else:
            # The log must be whole before it is read for the output and for what was left open.
            await publisher.flush()
            more, output = None, None
            attempt.open.clear()
            attempt.open.update(publisher.open)
        await self._end(held, end, output, more)

    async def _end(
        self, held: Held, end: End, output: list[bytes] | None = None, more: Batch | None = None
    ) -> None:
        held.parting = True
        if end.status == TaskStatus.FAILED:
            tracing.failed(metrics.code_label(end.why))
        outcome = await write_end(self._ender, held.attempt, end, output=output, more=more)
        if isinstance(outcome, Ended):
            held.reason = Reason.STOP
        elif isinstance(outcome, Behind):
            held.launch = outcome.launch
        elif isinstance(outcome, Finished):
            self._cancel_responses(held.attempt.state.get(BACKGROUND))

    async def _park(self, held: Held, publisher: Publisher, turn: RunningTurn) -> None:
        attempt = held.attempt
        await publisher.settle()
        batch, op = publisher.take(), operation()
        spec = turn.spec
        wait_ms = int(spec.callback_deadline * 1000)
        if wait_ms < self._lease_ms:
            # The next look at the task is when its lease would be over.
            await self._ender.launches.remind(attempt.ref, wait_ms)
        held.parting = True
        outcome = await self._ender.tasks.park(
            attempt.ref,
            attempt.claim,
            batch,
            op,
            wait_ms=wait_ms,
            policy=spec.parked,
        )
        metrics.turns_parked.n += isinstance(outcome, Parked)
        log.info("task.parked", outcome=type(outcome).__name__)
        await self._ender.storage.try_report(attempt.ref.keys)
        if isinstance(outcome, Launch):
            await self._launch(attempt.ref, outcome.number)
        elif isinstance(outcome, Behind):
            held.launch = outcome.launch
        elif isinstance(outcome, GivesWay):
            await self._end(held, End(TaskStatus.CANCELED, "superseded", usage=turn.usage))

    async def _cancelled(self, held: Held, publisher: Publisher) -> None:
        task = asyncio.current_task()
        cancelled = task is not None and task.cancelling() > 0
        while task is not None and task.uncancel() > 0:
            pass
        reason = held.reason or (Reason.SHUTDOWN if cancelled else None)
        log.info("turn.cancelled", reason=str(reason))
        tracing.note(cancelled=str(reason))
        try:
            async with asyncio.timeout(PARTING_SECONDS):
                if reason in (Reason.DEADLINE, Reason.SHUTDOWN):
                    await publisher.seal()
                if reason is None:
                    # Nobody cancelled this turn: something that the agent called did that to itself. To take
                    # it for a shutdown would run the turn again and again.
                    code, text = explain(asyncio.CancelledError())
                    await self._finish(held, publisher, None, End(TaskStatus.FAILED, code, text))
                elif reason is Reason.DEADLINE:
                    await self._finish(
                        held, publisher, None, End(TaskStatus.FAILED, "deadline", TEXTS["deadline"])
                    )
                elif reason is Reason.SHUTDOWN:
                    await self._release(held, publisher)
        except (LostAttempt, TimeoutError, BrokerAway):
            # The lease lapses, and the rescuer does what is left.
            log.info("attempt.left", reason=str(reason))

    async def _release(
        self,
        held: Held,
        publisher: Publisher,
        wait_ms: int = 0,
        reason: str = "",
        retry_ms: int = 0,
        *,
        retrying: str = "",
    ) -> Launch | NotBefore | Spent | Refusal:
        """Release the attempt, to be launched again, in ``wait_ms`` at the earliest; see `Tasks.release`.

        `Spent`: it may be retried no longer, and is still held.
        """
        attempt = held.attempt
        await publisher.flush()
        if 0 < wait_ms < self._lease_ms:
            # The next look at the task is when its lease would be over.
            await self._ender.launches.remind(attempt.ref, wait_ms)
        op = operation()
        held.parting = True
        outcome = await self._ender.tasks.retrying(PARTING_SECONDS).release(
            attempt.ref,
            attempt.claim,
            op,
            wait_ms=wait_ms,
            reason=reason,
            retry_ms=retry_ms,
            retrying=retrying,
        )
        if isinstance(outcome, Launch):
            await self._launch(attempt.ref, outcome.number)
        elif isinstance(outcome, NotBefore):
            metrics.turns_waited.add(reason)
            self._look(attempt.ref, outcome.look_ms)
        elif isinstance(outcome, Behind):
            held.launch = outcome.launch
        return outcome

    async def _launch(self, ref: TaskRef, number: int) -> None:
        asking = self._ender.launches.retrying(PARTING_SECONDS).launch(ref, number)
        try:
            # The script has said that this launch is due: a cancellation that comes now must not drop it.
            await asyncio.shield(asking)
        except BrokerAway:
            # The task is noted in the hints since its submit; a rescuer will launch it.
            log.warning("launch.left_to_rescuer", ref=str(ref), launch=number)


async def _outcome(agent: RunnableAgent, turn: RunningTurn) -> Done | NeedsClient | BaseException:
    """What the agent returns, or raises to end its process: a task that raises that takes the event loop with it."""
    try:
        return await agent.run(turn)
    except (KeyboardInterrupt, SystemExit) as error:
        return error
