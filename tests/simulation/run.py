"""One simulation: a seed gives the deployment, its clients, its faults and the order of everything; then it is judged."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
import traceback
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog
from redis.asyncio import Redis

from tests.chaos.checker import Violation, check, ids_mean_one_event
from tests.chaos.driver import account_of, unended
from tests.chaos.records import ENDS
from tests.simulation.clients import KEYS, LIMITS, SimulatedClient, SimulatedTown
from tests.simulation.cluster import CLUSTER, CUTTING, FORMS, ONE, SENTINEL, TWO, Cluster
from tests.simulation.coded import wrong_turns
from tests.simulation.faults import CONNECTED, FORMS_OF, LOSING, WEIGHTS, WHOLE, Faults
from tests.simulation.forgotten import with_forgotten
from tests.simulation.invariants import REST_SECONDS, at_rest
from tests.simulation.liteagent import wrong_streams
from tests.simulation.loop import SimulatedLoop, current
from tests.simulation.whole_logs import WholeLogs
from tests.simulation.world import seeded
from tests.support.waiting import wait_until
from turnstream.worker.agents import memory

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from tests.chaos.records import Account
    from tests.simulation.recording import Recorded

# The agent library prepares this when it is used first: here, for all seeds that this process begins others for.
memory.load(memory.dump([]))

FRONT_ENDS, WORKERS = (8001, 8002), 3

# Virtual seconds that all turns have to end when no more goes wrong: three workers lost in turn, and a lost launch.
BALANCE_SECONDS = 90.0

# Virtual seconds of them in which all followers of turns that have ended know it. Hubs look for what they missed in a minute.
HEARD_SECONDS = 20.0

# Virtual seconds that it may take until as many turns have begun as are wanted.
LONGEST_SECONDS = 3600.0

# Virtual seconds between two looks whether something is wrong meanwhile.
LOOK_SECONDS = 1.0

# The share of all kinds of faults that a seed has.
FAULTS_SHARE = 0.6

# The brokers of one seed, and the next ones; and of seeds whose servers cannot be replaced.
IN_TURN = (ONE, CLUSTER, TWO, SENTINEL, CLUSTER, ONE)
ALONE = (ONE, ONE, TWO)

# The share of seeds with servers that are replaced in which nothing is lost thereby.
WHOLE_SHARE = 0.5

# Of so many seeds one has no fault that takes from a process what it was about to tell the brokers: no count may be wrong.
WHOLE_EVERY = 8

# Of so many seeds one has its logs cut, and no fault that loses what was written: who comes back behind the cut could not tell one
# from the other.
CUT_EVERY = 5

# Of so many seeds one has sessions of two owners.
OWNERS_EVERY = 7

# How many times as often as usual faults come in one seed, and the next ones.
PACES = (*(1.0,) * 7, 4.0)

# Lines that a trace keeps.
TRACED = 4000

# How long turns that no client waits for any more have to be stopped.
LEFT_SECONDS = 30.0


@dataclass(frozen=True)
class Plan:
    """What to simulate; the same plan gives the same run.

    Attributes:
        turns: how many, about, are begun.
        clients: how many users there are.
        faults: the kinds of fault, of `tests.simulation.faults.WEIGHTS`; those that `of_seed` chooses, if not given.
        pace: how many times as often as usual they are injected.
        brokers: what brokers there are, one of `tests.simulation.cluster.FORMS`.
    """

    seed: int
    turns: int
    clients: int
    faults: tuple[str, ...]
    pace: float = 1.0
    brokers: str = ONE

    @classmethod
    def of_seed(
        cls,
        seed: int,
        turns: int = 400,
        clients: int = 20,
        faults: tuple[str, ...] | None = None,
        pace: float | None = None,
        brokers: Sequence[str] = IN_TURN,
    ) -> Plan:
        """What the seed chooses. Some faults hide what others show, so each seed has a part of them.

        ``brokers``: forms that seeds have in turn.
        """
        rng = random.Random(f"plan {seed}")
        form = brokers[(seed - 1) % len(brokers)]
        known = [kind for kind in WEIGHTS if form in FORMS_OF.get(kind, FORMS)]
        chosen = tuple(kind for kind in known if rng.random() < FAULTS_SHARE)
        if form in (SENTINEL, CLUSTER) and rng.random() < WHOLE_SHARE:
            chosen = tuple(kind for kind in chosen if kind not in LOSING)
        if seed % CUT_EVERY == 2:
            chosen = tuple(kind for kind in chosen if kind not in LOSING)
        if seed % WHOLE_EVERY == 1:
            chosen = tuple(kind for kind in chosen if kind in WHOLE)
        return cls(
            seed,
            turns,
            clients,
            chosen if faults is None else faults,
            PACES[seed % len(PACES)] if pace is None else pace,
            form,
        )

    @property
    def cuts(self) -> bool:
        """Whether logs are cut."""
        return self.seed % CUT_EVERY == 2 and LOSING.isdisjoint(self.faults)

    def arguments(self) -> list[str]:
        """As ``python -m tests.simulation`` takes it."""
        numbers = {
            "--seeds": self.seed,
            "--turns": self.turns,
            "--clients": self.clients,
            "--pace": self.pace,
            "--brokers": self.brokers,
        }
        return [*(str(part) for pair in numbers.items() for part in pair), "--faults", *self.faults]


@dataclass
class Outcome:
    """How it went.

    Attributes:
        turns: begun.
        virtual, real, cpu: seconds.
        trace: a digest of all that arrived anywhere, and when.
        wrong: violations, and what is stuck.
        log: the newest lines of what each process did.
        recorded: what befell all brokers, in its order, if that was wanted.
    """

    plan: Plan
    turns: int = 0
    virtual: float = 0.0
    real: float = 0.0
    cpu: float = 0.0
    trace: str = ""
    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    recorded: list[Recorded] = field(default_factory=list)

    def __str__(self) -> str:
        head = (
            f"seed {self.plan.seed}: {self.turns} turns, {self.virtual:.1f} s virtual, {self.real:.1f} s real, {self.cpu:.1f} s CPU, "
            f"trace {self.trace}; {self.plan.brokers}; {dict(self.statuses)}; {sum(self.faults.values())} faults; {len(self.wrong)} violations"
        )
        lines = [head]
        lines += [f"  {len(some)} × {some[0]}" for some in self.by_rule().values()]
        return "\n".join(lines)

    def by_rule(self) -> dict[str, list[str]]:
        """Rule → its violations; the one that was seen first is the first."""
        rules: dict[str, list[str]] = {}
        for each in self.wrong:
            rules.setdefault(each.partition(":")[0], []).append(each)
        return rules


def simulate(plan: Plan, *, record: bool = False) -> Outcome:
    """Run a plan to its end, once in a process: what was killed in it can never be freed."""
    clock = time.perf_counter
    begun, cpu = clock(), time.process_time()
    # Cycles are few, and where they are looked for is no business of a seed.
    gc.disable()
    loop = SimulatedLoop(random.Random(f"schedule {plan.seed}"))
    trace = _Trace(loop)
    asyncio.set_event_loop(loop)
    loop.set_exception_handler(trace.failed)
    structlog.configure(processors=[trace.log], cache_logger_on_first_use=False)
    given = CUTTING if plan.cuts else {}
    cluster = Cluster(loop, random.Random(f"network {plan.seed}"), brokers=plan.brokers, **given)
    cluster.outside.connected = CONNECTED.issuperset(plan.faults)
    cluster.others = set(list(KEYS)[::2]) if plan.seed % OWNERS_EVERY == 5 else set()
    cluster.whole = WHOLE.issuperset(plan.faults)
    outcome = Outcome(plan)
    if record:
        for broker in (each for store in cluster.stores for each in store.brokers):
            broker.recorded = outcome.recorded
    with seeded(loop, plan.seed):
        _, task = loop.begin("clients", lambda: _Run(plan, loop, cluster, trace).drive(outcome))
        loop.run_until_complete(task)
    outcome.virtual = loop.time()
    outcome.trace = cluster.network.trace.hexdigest()[:16]
    outcome.real, outcome.cpu = clock() - begun, time.process_time() - cpu
    outcome.log = list(trace.lines)
    return outcome


class _Run:
    """Drives a cluster, its clients and its faults, and judges."""

    def __init__(self, plan: Plan, loop: SimulatedLoop, cluster: Cluster, trace: _Trace) -> None:
        self._plan = plan
        self._loop = loop
        self._cluster = cluster
        self._trace = trace
        fronts = [f"http://127.0.0.1:{port}" for port in FRONT_ENDS]
        self._town = SimulatedTown(cluster, fronts, clears=LOSING.isdisjoint(plan.faults))
        self._town.logs = WholeLogs(cluster.sessions) if plan.cuts else None

    async def drive(self, outcome: Outcome) -> None:
        await self._start()
        plan, town, trace = self._plan, self._town, self._trace
        rng = random.Random(f"faults {plan.seed}")
        faults = Faults(self._loop, self._cluster, rng, town.lose, town.begun, list(plan.faults), plan.pace)
        clients = [
            SimulatedClient(each, town, random.Random(f"client {each} of {plan.seed}"))
            for each in range(plan.clients)
        ]
        living = [asyncio.create_task(client.live()) for client in clients]
        injecting = asyncio.create_task(faults.inject())
        await wait_until(
            lambda: town.begun() >= plan.turns or self._wrong(), "the turns to be begun", LONGEST_SECONDS
        )
        town.closing.set()
        faults.heal()
        await self._wait(LONGEST_SECONDS, [injecting])
        if injecting.done():
            injecting.result()
        town.healed.set()
        stopping = asyncio.create_task(town.stop_abandoned())
        outcome.wrong += await self._unheard(living)
        await self._wait(BALANCE_SECONDS - HEARD_SECONDS, living)
        # What a front end was still about may have begun turns anew; the clients of these have left.
        await self._wait(LEFT_SECONDS, [asyncio.create_task(asyncio.sleep(LEFT_SECONDS))])
        stopping.cancel()
        if not self._wrong():
            await self._judge(living, outcome)
            # Tasks and futures that failed, and hold themselves: what nobody has looked at is told of when they are freed.
            gc.collect()
        outcome.wrong += self._wrong()
        outcome.turns = town.begun()
        outcome.faults = Counter(kind for _, kind, _ in faults.done)
        trace.lines += [f"{when:10.6f} FAULT {kind} {who}" for when, kind, who in faults.done]

    async def _start(self) -> None:
        cluster, rng = self._cluster, random.Random(f"clocks {self._plan.seed}")
        for store in cluster.stores:
            if "skew" in self._plan.faults:
                store.skew(rng)
            store.start()
        for group in cluster.groups:
            group.on_loss = self._town.lose
        await cluster.bring_keys(KEYS, LIMITS)
        for port in FRONT_ENDS:
            cluster.start("api", port)
        for _ in range(WORKERS):
            cluster.start("worker")
        if "skew" in self._plan.faults:
            cluster.skew(rng)
        await wait_until(cluster.serves, "every process to serve")

    def _wrong(self) -> list[str]:
        """What was seen to be wrong so far."""
        steps = [each for store in self._cluster.stores for each in store.steps.wrong]
        return [*self._town.broken, *self._trace.wrong, *steps, *self._cluster.outside.wrong]

    async def _wait(self, seconds: float, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for tasks, so long at most. What is wrong already does not get better, and may never come to rest."""
        until = self._loop.time() + seconds
        while self._loop.time() < until and not self._wrong() and not all(each.done() for each in tasks):
            await asyncio.wait(tasks, timeout=LOOK_SECONDS)

    async def _unheard(self, living: list[asyncio.Task[None]]) -> list[str]:
        """Turns that have ended, and whose followers do not hear of it although nothing goes wrong any more."""
        ended = [turn for turn in self._town.turns if self._town.status_of(turn) in ENDS]
        await self._wait(HEARD_SECONDS, living)
        return [
            f"ends_are_heard_of: {turn}"
            for turn in self._town.turns
            if turn in ended and not self._wrong() and not all(view.ended or view.lost for view in turn.views)
        ]

    async def _judge(self, living: list[asyncio.Task[None]], outcome: Outcome) -> None:
        """Whether the deployment, whose clients' time is over, is what it should be."""
        for each in living:
            each.cancel()
        for result in await asyncio.gather(*living, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        port, town = self._cluster.sessions.port, self._town
        account = await account_of(Redis(port=port), town)
        if town.logs is not None:
            town.logs.complete(account, town)
        outcome.statuses = _statuses(account)
        outcome.wrong += [
            f"stuck: {turn}" for turn in town.turns if not all(view.ended or view.lost for view in turn.views)
        ]
        outcome.wrong += [f"stuck: {each}" for each in unended(account)]
        outcome.wrong += map(str, check(account))
        # Also of what was cleared since: no id is given twice.
        outcome.wrong += map(str, check(with_forgotten(town, account), [ids_mean_one_event]))
        outcome.wrong += wrong_streams(town, town.lite)
        outcome.wrong += self._cluster.outside.wrong_answers(account, town)
        outcome.wrong += wrong_turns(account)
        # Nothing is waited for: what is late shows only when so much time has passed.
        await self._wait(REST_SECONDS, [asyncio.create_task(asyncio.sleep(REST_SECONDS))])
        outcome.wrong += [str(Violation(*each)) for each in at_rest(self._cluster)]


def _statuses(account: Account) -> Counter[str]:
    return Counter(
        account.session_of(turn).tasks.get(turn.task, {}).get("status", "none") for turn in account.turns
    )


class _Trace:
    """What the processes log, and what nobody expected of it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.lines: deque[str] = deque(maxlen=TRACED)
        self.wrong: list[str] = []

    def log(self, _: object, level: str, event: MutableMapping[str, Any]) -> str:
        """As a processor of structlog."""
        error = event.pop("exc_info", None)
        words = " ".join(f"{name}={value}" for name, value in event.items())
        self.lines.append(f"{self._loop.time():10.6f} {current()} {level} {words}")
        if error:
            raised = (
                error if isinstance(error, BaseException) else sys.exception() if error is True else error[1]
            )
            self.wrong.append(
                f"nothing_raises: {current()} {words} {''.join(traceback.format_exception(raised))[-1500:]}"
            )
        raise structlog.DropEvent

    def failed(self, _: object, context: dict[str, Any]) -> None:
        """As a loop's exception handler."""
        error, task = context.get("exception"), context.get("task")
        of = f" of {task.get_name()} {task.process} {task.get_coro()!r}" if task is not None else ""
        self.wrong.append(f"nothing_raises: {current()} {context['message']} {error!r}{of}")
