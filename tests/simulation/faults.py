"""What goes wrong in a simulation, chosen by its seed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from tests.simulation.broker import SKEWS_SECONDS
from tests.simulation.cluster import CLUSTER, OTHER_VERSION, SENTINEL, TWO
from tests.simulation.nodes import TIMEOUT_SECONDS, UNAWARE_SECONDS, ClusterOfNodes, Node, Watched, slot_of
from tests.simulation.outside import GATED
from tests.simulation.steps import BATCH
from turnstream.worker.worker import WorkerProcess

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from tests.simulation.broker import SimulatedBroker
    from tests.simulation.cluster import Cluster, Running
    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.network import Endpoint
    from tests.simulation.nodes import Servers, Shard
    from turnstream.shared.session.outcomes import Attempt

# Fault → how often beside the others.
WEIGHTS = {
    "kill_worker": 6,
    "kill_front_end": 4,
    "drain_worker": 3,
    "drain_front_end": 2,
    "freeze_worker": 4,
    "freeze_front_end": 2,
    "freeze_cut": 3,
    "restart_broker": 2,
    "lose_writes": 2,
    "lose_checkpoint": 1,
    "fill_memory": 2,
    "become_replica": 2,
    "flush_scripts": 2,
    "cut": 10,
    "drop_replies": 8,
    "delay": 8,
    "late": 8,
    "jump": 1,
    "kill_writing": 8,
    "freeze_writing": 4,
    "overtake": 6,
    "repeat": 6,
    "kill_unheard": 6,
    "kill_late": 3,
    "kill_booking": 6,
    "provider_away": 4,
    "provider_limits": 4,
    "provider_cuts": 6,
    "overtake_asking": 4,
    "hold_model": 3,
    "other_version": 3,
    "kill_node": 3,
    "lose_node": 3,
    "freeze_node": 3,
    "part_node": 3,
    "name_replica": 3,
    "part_process": 4,
    "move_slots": 16,
    "read_slowly": 6,
    "half_close": 3,
    "silence": 3,
    "lose_host": 3,
    "kill_asking": 3,
    # How it is from the beginning on, rather than what happens.
    "skew": 0,
}

# Faults that only some forms of brokers have.
FORMS_OF = {
    **dict.fromkeys(("kill_node", "lose_node", "freeze_node", "part_process"), (SENTINEL, CLUSTER)),
    **dict.fromkeys(("part_node", "move_slots"), (CLUSTER,)),
    "name_replica": (SENTINEL,),
    "kill_late": (TWO, CLUSTER),
}

# Those that take something away that was written.
LOSING = frozenset(
    ("lose_writes", "lose_checkpoint", "lose_node", "freeze_node", "part_node", "name_replica")
)

# Those that leave the workers that there are, and what connects them to the brokers.
CONNECTED = {
    *("kill_front_end", "drain_front_end", "freeze_front_end", "flush_scripts", "repeat", "hold_model"),
    *("provider_away", "provider_limits", "provider_cuts", "read_slowly", "half_close", "skew"),
}

# Those that let every process tell the brokers what it has to.
WHOLE = CONNECTED - {"kill_front_end"}

# Seconds between two faults: a storm, then rest; and how many faults each of them has.
STORM_SECONDS, STORM = (0.01, 0.15), 12
REST_SECONDS, REST = (0.1, 1.0), 6

# A worker stands still for so long that others miss it, if they do; and what passes before that: a lease, and a few looks.
MISSED_SECONDS = (1.3, 5.0)
CALM_SECONDS = 3.0

FROZEN_SECONDS = ((0.1, 1.0), (2.0, 5.0))
AWAY_SECONDS = (0.05, 1.5)
REFUSING_SECONDS = (0.1, 1.5)
LOST_SECONDS = (0.01, 1.0)
HEARD_SECONDS = (0.001, 0.02)
TROUBLE_SECONDS = (0.2, 4.0)
HELD_SECONDS = ((0.03, 0.3), (0.05, 3.0))
MODEL_HELD_SECONDS = ((0.5, 5.0), (25.0, 40.0))
SLOW_SECONDS = ((0.05, 1.0), (1.0, 12.0))
PARTED_SECONDS = ((0.1, 1.0), (2.0, 8.0))

# The share of nodes that were replaced which do not come back; and of those whose slots go back to where they came from.
GONE_SHARE = 0.2
LEFT_SHARE = 0.5

# The share of slots which move at once that do so when something was just said.
SPEAKING_SHARE = 0.6
START_SECONDS = (0.05, 1.0)
JUMPS_SECONDS = (0.5, 3.0, -0.3)

# More faults than so many for each turn that was begun, and the deployment comes to nothing: then it rests for longer.
MOST_FOR_A_TURN = 2.0
LONG_REST_SECONDS = (0.5, 2.0)

# Connections that one fault of the network concerns; the share of such faults that concern one process's to the brokers.
MOST_CONNECTIONS = 4
AIMED_SHARE = 0.5

# A process is stopped in one of so many writes, if they come within so many seconds.
MOST_WRITES = 6
WRITES_SECONDS = 1.0

# Scripts that leave something to do to who asked for them, if their reply begins so; how long one of them is waited for.
LEFT_TO_DO = {
    "submit": (b"launch",),
    "callback": (b"launch",),
    "take": (b"taken",),
    "begin": (b"begun",),
    "park": (b"launch", b"superseded"),
    "release": (b"launch", b"waits"),
    "sweep": (b"launch", b"passed", b"end"),
    "finish": (b"ok",),
}
UNHEARD_SECONDS = 5.0

# A front end does not reach sessions for so long: the look after `LAUNCH_GRACE_MS` comes before, and nobody has given up.
LATE_SECONDS = (3.2, 4.8)

# How long a booking, or a request to the model, is waited for: a lease, and a client that is to agree first, are over by then.
BOOKING_SECONDS = 8.0

# A model's answer is in the log after so many appends of its worker.
MOST_ANSWERED = 4

# A worker stands still until it was overtaken, at most for so long, and how much longer.
OVERTAKEN_SECONDS = 8.0
LOOK_SECONDS = 0.01
AFTERWARDS_SECONDS = (0.0, 0.3)

# All workers that there are, when they are replaced.
MOST_REPLACED = 3

# The share of operations that are carried out twice, and for how long.
REPEATED_SHARE = 0.3
REPEATED_SECONDS = (0.1, 1.0)


class Faults:
    """Does one thing after the other, until `heal`. What ends is started again, as a supervisor would.

    Attributes:
        done: when, which, and of whom.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        cluster: Cluster,
        rng: random.Random,
        on_loss: Callable[[], None],
        turns: Callable[[], int],
        kinds: list[str],
        pace: float = 1.0,
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._rng = rng
        self._on_loss = on_loss
        self._turns = turns
        self._kinds = [kind for kind in kinds if WEIGHTS[kind]]
        self._pace = pace
        self._healing = asyncio.Event()
        self._beside: set[asyncio.Task[None]] = set()
        self._busy_broker = asyncio.Lock()
        self._model_lock = asyncio.Lock()
        self._cutting = asyncio.Lock()
        self._replacing = False
        # Processes that a fault waits for the right moment for.
        self._in_hand: list[Running] = []
        self.done: list[tuple[float, str, str]] = []

    async def inject(self) -> None:
        """Until `heal`."""
        number = 0
        while not self._healing.is_set() and self._kinds:
            storms = number % (STORM + REST) < STORM
            number += 1
            await asyncio.sleep(self._rng.uniform(*(STORM_SECONDS if storms else REST_SECONDS)) / self._pace)
            while number > MOST_FOR_A_TURN * self._turns() + STORM and not self._healing.is_set():
                await asyncio.sleep(self._rng.uniform(*LONG_REST_SECONDS))
            [kind] = self._rng.choices(self._kinds, [WEIGHTS[each] for each in self._kinds])
            act: Callable[[], Coroutine[Any, Any, None]] = getattr(self, kind)
            task = asyncio.create_task(act())
            self._beside.add(task)
            task.add_done_callback(self._is_done)
        await asyncio.gather(*self._beside)
        # What was held up still arrives.
        await asyncio.sleep(HELD_SECONDS[-1][-1])
        if "hold_model" in self._kinds:
            # The broker may have lost that it was resumed.
            await self._cluster.resume_model(GATED)
        for version in (None, OTHER_VERSION) if "other_version" in self._kinds else ():
            # Turns wait for theirs.
            if not any(each.role == "worker" and each.version == version for each in self._cluster.running):
                self._cluster.start("worker", version=version)

    def _is_done(self, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        task.result()

    def heal(self) -> None:
        """Begin nothing more; what was begun comes to its end."""
        self._healing.set()

    def _note(self, kind: str, who: object = "") -> None:
        self.done.append((self._loop.time(), kind, str(who)))

    # ── processes ──

    def _able(self, role: str) -> list[Running]:
        """Those that run, if they are several: one must be left to take over."""
        able = [
            each
            for each in self._cluster.running
            if each.role == role and not each.process.frozen and each.server and each not in self._in_hand
        ]
        return able if len(able) > 1 else []

    def _one(self, role: str) -> Running | None:
        able = self._able(role)
        return self._rng.choice(able) if able else None

    async def _again(self, ended: Running) -> None:
        await asyncio.sleep(self._rng.uniform(*START_SECONDS))
        begun = self._cluster.start(ended.role, ended.port, ended.version)
        begun.process.ahead = self._rng.choice(SKEWS_SECONDS)

    async def _kill(self, role: str) -> None:
        if running := self._one(role):
            self._note(f"kill {role}", running.process)
            self._cluster.kill(running)
            await self._again(running)

    async def kill_worker(self) -> None:
        """It runs no further instruction."""
        await self._kill("worker")

    async def kill_front_end(self) -> None:
        """The same, with all of its streams."""
        await self._kill("api")

    async def lose_host(self) -> None:
        """A process dies with its host: who is connected to it is not told."""
        role = self._rng.choice(("api", "worker"))
        if running := self._one(role):
            self._note(f"lose host of {role}", running.process)
            for near, _ in list(self._cluster.network.connections.values()):
                if str(running.process) in near.name.split(">"):
                    near.silence()
            self._cluster.kill(running)
            await self._again(running)

    async def _drain(self, role: str) -> None:
        if running := self._one(role):
            await self._replace(running, running.version)

    async def _replace(self, running: Running, version: str | None) -> None:
        """End it in order, and start another one."""
        self._note(f"drain {running.role}", running.process)
        assert running.server is not None
        self._loop.call_in(running.process, running.server.stop)
        running.server = None
        await asyncio.wait([running.task])
        running.task.result()
        self._cluster.forget(running)
        running.version = version
        await self._again(running)

    async def drain_worker(self) -> None:
        """It gives its turns back."""
        await self._drain("worker")

    async def drain_front_end(self) -> None:
        """It ends its streams between events."""
        await self._drain("api")

    async def other_version(self) -> None:
        """One worker, or one after the other, is replaced by one that serves another version of the coded agents."""
        version = self._rng.choice((None, OTHER_VERSION))
        for _ in range(self._rng.choice((1, MOST_REPLACED))):
            others = [each for each in self._able("worker") if each.version != version]
            if others:
                self._note("deploy", version or "first version")
                await self._replace(others[0], version)

    async def _freeze(self, role: str) -> None:
        if running := self._one(role):
            self._note(f"freeze {role}", running.process)
            running.process.frozen = True
            await asyncio.sleep(self._rng.uniform(*self._rng.choice(FROZEN_SECONDS)))
            running.process.frozen = False
            self._note("thaw", running.process)

    async def freeze_worker(self) -> None:
        """It stands still for a while, past its lease now and then."""
        await self._freeze("worker")

    async def freeze_cut(self) -> None:
        """A worker stands still, and meanwhile loses the connection on which it is seen to live."""
        if self._cutting.locked():
            return
        async with self._cutting:
            # Those who would miss it look only when no connection was lost for a lease.
            await asyncio.sleep(CALM_SECONDS)
            if running := self._one("worker"):
                self._note("freeze cut worker", running.process)
                running.process.frozen = True
                for near in self._cluster.subscription(running):
                    near.cut()
                await asyncio.sleep(self._rng.uniform(*MISSED_SECONDS))
                running.process.frozen = False
                self._note("thaw", running.process)

    async def freeze_front_end(self) -> None:
        """It stands still for a while."""
        await self._freeze("api")

    # ── processes, at a moment that matters ──

    async def _stop_in_write(self, running: Running, *, torn: bool) -> bool:
        """Freeze a process in one of its next writes to a broker; False when none came. ``torn``: a part may get out."""
        self._in_hand.append(running)
        stopped = asyncio.Event()
        left = self._rng.randint(1, MOST_WRITES)

        def write(data: bytes) -> bytes:
            nonlocal left
            left -= 1
            if left:
                return data
            running.process.frozen = True
            stopped.set()
            return data[: self._rng.randint(0, len(data))] if torn else data

        lines = [near for near, _ in self._to_brokers(running)]
        for line in lines:
            line.on_write = write
        try:
            async with asyncio.timeout(WRITES_SECONDS):
                await stopped.wait()
        except TimeoutError:
            return running.process.frozen
        finally:
            self._in_hand.remove(running)
            for line in lines:
                line.on_write = None
        return True

    async def kill_writing(self) -> None:
        """A process dies while it writes to a broker: between two steps, or within one."""
        role = self._rng.choice(("api", "worker"))
        running = self._one(role)
        if running and await self._stop_in_write(running, torn=self._rng.random() < 0.5):
            self._note(f"kill {role} writing", running.process)
            self._cluster.kill(running)
            await self._again(running)

    async def kill_unheard(self) -> None:
        """A process dies whose script was carried out, and never hears of it: what it left to do is others' now."""
        script = self._rng.choice(list(LEFT_TO_DO))

        def leaves_something(name: str, reply: Any) -> bool:
            return name == script and _leaves_something(name, reply)

        asked = await self._asked(leaves_something, ("api", "worker"), UNHEARD_SECONDS)
        if asked is not None:
            self._note(f"kill {asked.role} after {script}", asked.process)
            self._cluster.kill(asked)
            await self._again(asked)

    async def kill_late(self) -> None:
        """The same, of a front end whose command comes so late that the look which it asked for has been."""

        def hints(name: str, _reply: Any) -> bool:
            return name == "remind"

        asking = await self._asked(hints, ("api",), UNHEARD_SECONDS)
        if asking is None:
            return
        seconds = self._rng.uniform(*LATE_SECONDS)
        self._note("part", f"{asking.process} from sessions {seconds:.2f} s")
        for broker in self._cluster.sessions.brokers:
            self._cluster.network.part(str(asking.process), f"broker-{broker.port}", seconds)
        asking.process.frozen = False

        def queues(name: str, reply: Any) -> bool:
            return name in ("submit", "callback") and _leaves_something(name, reply)

        asked = await self._asked(queues, ("api",), 2 * LATE_SECONDS[1], asking)
        if asked is not None:
            self._note("kill api late", asked.process)
            self._cluster.kill(asked)
            await self._again(asked)

    async def _asked(
        self,
        for_it: Callable[[str, Any], bool],
        roles: tuple[str, ...],
        seconds: float,
        by: Running | None = None,
    ) -> Running | None:
        """The first process that asks for such a script soon (name, reply), of these roles or this one, frozen as it is carried out."""
        looking = [each.steps for each in self._cluster.stores]
        if any(steps.on_script for steps in looking):
            return None
        asked: asyncio.Future[Running] = self._loop.create_future()

        def look(name: str, who: str, reply: Any) -> None:
            if asked.done() or not for_it(name, reply):
                return
            for each in (each for role in roles for each in self._able(role)):
                if str(each.process) == who and by in (None, each):
                    each.process.frozen = True
                    asked.set_result(each)

        for steps in looking:
            steps.on_script = look
        await asyncio.wait([asked], timeout=seconds)
        for steps in looking:
            steps.on_script = None
        return asked.result() if asked.done() else None

    async def kill_booking(self) -> None:
        """A worker dies between an effect and its result, and maybe the one that runs the call again, too."""
        await self._kill_each("booking", self._cluster.outside.bank.on_booked, self._rng.randint(1, 2))

    async def kill_asking(self) -> None:
        """A turn takes worker after worker with it when it asks the model: as many as end it, or one less."""
        await self._kill_each("asking", self._cluster.outside.provider.on_asked, self._rng.randint(2, 3))

    async def _kill_each(self, what: str, hooks: list[Callable[[str, str], bool]], times: int) -> None:
        ref = ""
        for _ in range(times):
            who, ref = await self._next(hooks, ref)
            for each in self._able("worker"):
                if str(each.process) == who:
                    self._note(f"kill worker {what}", f"{each.process} {ref}")
                    self._cluster.kill(each)
                    await self._again(each)

    async def _next(self, hooks: list[Callable[[str, str], bool]], ref: str = "") -> tuple[str, str]:
        """The process that next does what the hooks are called for, for this turn or any, and the turn; empty when none does."""
        done: asyncio.Future[tuple[str, str]] = self._loop.create_future()

        def look(who: str, whose: str) -> bool:
            wanted = not done.done() and ref in ("", whose)
            if wanted:
                done.set_result((who, whose))
            return wanted

        hooks.append(look)
        await asyncio.wait([done], timeout=BOOKING_SECONDS)
        hooks.remove(look)
        return done.result() if done.done() else ("", ref)

    async def freeze_writing(self) -> None:
        """A worker stands still with a command under way."""
        running = self._one("worker")
        if running and await self._stop_in_write(running, torn=False):
            self._note("freeze worker writing", running.process)
            await asyncio.sleep(self._rng.uniform(*self._rng.choice(FROZEN_SECONDS)))
            running.process.frozen = False
            self._note("thaw", running.process)

    async def overtake(self) -> None:
        """A worker stands still until another one has a turn of its, and goes on before that has ended."""
        running = self._one("worker")
        if running is None or not isinstance(running.server, WorkerProcess) or not len(running.server.leases):
            return
        if self._rng.random() < 0.5:
            await self._stop_unheard(running)
        await self._stand_still(running, running.server)

    async def overtake_asking(self) -> None:
        """The same, of one whose model answers: with a call that has an effect, maybe, which is not marked yet."""
        who, _ = await self._next(self._cluster.outside.provider.on_asked)
        for each in self._able("worker"):
            if str(each.process) == who and isinstance(each.server, WorkerProcess):
                await self._stop_unheard(each, self._rng.randint(1, MOST_ANSWERED))
                await self._stand_still(each, each.server)

    async def _stand_still(self, running: Running, worker: WorkerProcess) -> None:
        held = [each.attempt for each in worker.leases]
        self._note("freeze worker", running.process)
        running.process.frozen = True
        until = self._loop.time() + OVERTAKEN_SECONDS
        while self._loop.time() < until and not any(map(self._was_overtaken, held)):
            await asyncio.sleep(LOOK_SECONDS)
        await asyncio.sleep(self._rng.uniform(*AFTERWARDS_SECONDS))
        running.process.frozen = False
        self._note("thaw", running.process)

    async def _stop_unheard(self, running: Running, appends: int = 1) -> None:
        """Freeze a worker that has not heard yet that one of its appends was carried out, if there are so many soon."""
        steps, stopped = self._cluster.sessions.steps, asyncio.Event()

        def look(name: str, who: str, reply: Any) -> None:
            nonlocal appends
            if name == "append" and who == str(running.process):
                appends -= 1
                if not appends:
                    running.process.frozen = True
                    stopped.set()

        if steps.on_script is not None:
            return
        steps.on_script = look
        self._in_hand.append(running)
        with suppress(TimeoutError):
            async with asyncio.timeout(WRITES_SECONDS):
                await stopped.wait()
        self._in_hand.remove(running)
        steps.on_script = None

    def _was_overtaken(self, attempt: Attempt) -> bool:
        key = attempt.ref.keys.task(attempt.ref.task)
        sessions = self._cluster.sessions
        return (
            sessions.field(key, "status") == "running"
            and sessions.field(key, "holder") != attempt.claim.holder
        )

    # ── the brokers ──

    async def repeat(self) -> None:
        """Operations are carried out twice: the first reply was lost."""
        steps = self._cluster.sessions.steps
        self._note("repeat")
        steps.repeated = REPEATED_SHARE
        await asyncio.sleep(self._rng.uniform(*REPEATED_SECONDS))
        steps.repeated = 0.0

    def _broker(self) -> SimulatedBroker:
        return self._rng.choice(self._cluster.brokers)

    @asynccontextmanager
    async def _some_broker(self) -> AsyncIterator[SimulatedBroker]:
        """One to which nothing else is done."""
        async with self._busy_broker:
            while not (free := [each for each in self._cluster.brokers if not self._in_hands(each)]):
                await asyncio.sleep(LOOK_SECONDS)
            broker = self._rng.choice(free)
            shard = self._shards().get(broker)
            if shard:
                shard.in_hand = True
            yield broker
            if shard:
                shard.in_hand = False

    def _shards(self) -> dict[SimulatedBroker, Shard]:
        """Those of primaries that can be replaced."""
        return {shard.primary: shard for group in self._cluster.groups for shard in group.shards}

    def _in_hands(self, broker: SimulatedBroker) -> bool:
        shard = self._shards().get(broker)
        return shard is not None and shard.in_hand

    async def restart_broker(self) -> None:
        """It is away for a while, and back with all it had."""
        async with self._some_broker() as broker:
            self._note("restart broker", broker.port)
            await self._restart(broker)

    async def lose_writes(self) -> None:
        """It is back with what it had a moment before."""
        async with self._some_broker() as broker:
            broker.remember()
            await asyncio.sleep(self._rng.uniform(*LOST_SECONDS))
            self._on_loss()
            self._note("lose writes", broker.port)
            await self._restart(broker)
            broker.go_back()

    async def lose_checkpoint(self) -> None:
        """It is back without a batch that only kept something, of which its writer has heard: no log has lost anything."""
        async with self._some_broker() as broker:
            taken = asyncio.Event()

            def look(where: SimulatedBroker, script: str, args: Sequence[bytes]) -> None:
                # Neither groups nor entries.
                if (where, script, *args[BATCH : BATCH + 2]) == (broker, "append", b"0", b"0"):
                    broker.remember()
                    taken.set()

            broker.steps.before = look
            with suppress(TimeoutError):
                async with asyncio.timeout(UNHEARD_SECONDS):
                    await taken.wait()
                    await asyncio.sleep(self._rng.uniform(*HEARD_SECONDS))
            broker.steps.before = None
            if taken.is_set():
                self._on_loss()
                self._note("lose a checkpoint", broker.port)
                await self._restart(broker)
                broker.go_back()

    async def _restart(self, broker: SimulatedBroker) -> None:
        since = broker.clock_ms()
        broker.stop()
        await asyncio.sleep(self._rng.uniform(*AWAY_SECONDS))
        broker.restart()
        broker.unable.append((since, broker.clock_ms()))

    async def fill_memory(self) -> None:
        """It refuses what would need some."""
        async with self._some_broker() as broker:
            self._note("full", broker.port)
            broker.full = True
            await asyncio.sleep(self._rng.uniform(*REFUSING_SECONDS))
            broker.full = False

    async def become_replica(self) -> None:
        """It answers, and takes no writes."""
        async with self._some_broker() as broker:
            if isinstance(broker, Node):
                # That is `freeze_node`, and others.
                return
            self._note("replica", broker.port)
            since, broker.replica = broker.clock_ms(), True
            await asyncio.sleep(self._rng.uniform(*REFUSING_SECONDS))
            broker.replica = False
            broker.unable.append((since, broker.clock_ms()))

    async def flush_scripts(self) -> None:
        """It forgets them."""
        self._note("flush scripts")
        self._broker().flush_scripts()

    async def jump(self) -> None:
        """The brokers' clocks do."""
        seconds = self._rng.choice(JUMPS_SECONDS)
        self._note("jump", seconds)
        for store in self._cluster.stores:
            store.jump(seconds)

    # ── brokers that stand in for each other ──

    @asynccontextmanager
    async def _some_shard(self) -> AsyncIterator[tuple[Servers, Shard] | None]:
        """One whose primary may be replaced; one at a time, as most must be left to decide."""
        group = self._rng.choice(self._cluster.groups)
        free = [shard for shard in group.shards if not shard.in_hand]
        if self._replacing or not free:
            yield None
            return
        shard = self._rng.choice(free)
        self._replacing = shard.in_hand = True
        yield group, shard
        self._replacing = False
        shard.in_hand = not shard.replica.runs

    async def kill_node(self) -> None:
        """A primary dies; its replica, which has all of it, takes its place."""
        await self._kill_node(kept=False)

    async def lose_node(self) -> None:
        """The same; the replica lacks what was written in the last moments."""
        await self._kill_node(kept=True)

    async def _kill_node(self, *, kept: bool) -> None:
        async with self._some_shard() as found:
            if found is None:
                return
            group, shard = found
            node = shard.primary
            if kept:
                node.remember()
                await asyncio.sleep(self._rng.uniform(*LOST_SECONDS))
            self._note("lose node" if kept else "kill node", node.port)
            since = node.clock_ms()
            node.stop()
            sentinel = self._rng.choice(group.sentinels) if isinstance(group, Watched) else None
            if sentinel and self._rng.random() < 0.5:
                # It was at the same machine.
                sentinel.stop()
            await group.fail_over(shard, kept=kept)
            group.unable.append((since, node.clock_ms()))
            if isinstance(group, ClusterOfNodes):
                others = [each.primary for each in group.shards if not each.in_hand]
                if self._rng.random() < LEFT_SHARE:
                    # Nothing was written there meanwhile.
                    group.give_back(shard.primary, others)
                if len(others) == len(group.shards) - 1 and self._rng.random() < GONE_SHARE:
                    return
            await asyncio.sleep(self._rng.uniform(*AWAY_SECONDS))
            group.rejoin(shard)
            if sentinel and not sentinel.runs:
                sentinel.start()

    async def freeze_node(self) -> None:
        """A primary stands still; if for long, it is replaced meanwhile, and does not know it yet when it goes on."""
        async with self._some_shard() as found:
            if found is None:
                return
            group, shard = found
            node, seconds = shard.primary, self._rng.uniform(*self._rng.choice(FROZEN_SECONDS))
            self._note("freeze node", f"{node.port} {seconds:.2f} s")
            since, until = node.clock_ms(), self._loop.time() + seconds
            node.freeze(True)
            if seconds > TIMEOUT_SECONDS:
                await group.fail_over(shard, kept=False)
            group.unable.append((since, node.clock_ms()))
            await asyncio.sleep(until - self._loop.time())
            node.freeze(False)
            self._note("thaw node", node.port)
            if node is not shard.primary:
                await asyncio.sleep(self._rng.uniform(*UNAWARE_SECONDS))
                group.demote(shard)

    async def name_replica(self) -> None:
        """The Sentinels take a replica that lags for the primary, as they may while one failover follows another.

        It may take itself for one, too, and lose what it takes then.
        """
        async with self._some_shard() as found:
            if found is None:
                return
            group, shard = found
            assert isinstance(group, Watched)
            shard.replica.copy(shard.primary)
            await asyncio.sleep(self._rng.uniform(*LOST_SECONDS))
            believes = self._rng.random() < 0.5
            self._note("promote for a moment" if believes else "name replica", shard.replica.port)
            since = shard.primary.clock_ms()
            group.mistake(shard, believes=believes)
            await asyncio.sleep(self._rng.uniform(*REFUSING_SECONDS))
            group.correct(shard)
            group.unable.append((since, shard.primary.clock_ms()))

    async def part_node(self) -> None:
        """The other nodes do not reach a primary; its clients do. What it takes until it notices is lost."""
        async with self._some_shard() as found:
            if found is None:
                return
            group, shard = found
            node = shard.primary
            assert isinstance(node, Node)
            self._note("part node", node.port)
            node.remember()
            node.alone = True
            self._loop.call_later(TIMEOUT_SECONDS, setattr, node, "down", True)
            since = node.clock_ms()
            await group.fail_over(shard, kept=True)
            group.unable.append((since, node.clock_ms()))
            await asyncio.sleep(self._rng.uniform(*AWAY_SECONDS))
            group.demote(shard)

    async def part_process(self) -> None:
        """A process does not reach a server that others reach."""
        running, broker = self._rng.choice(self._cluster.running), self._broker()
        seconds = self._rng.uniform(*self._rng.choice(PARTED_SECONDS))
        self._note("part", f"{running.process} from {broker.port} {seconds:.2f} s")
        self._cluster.network.part(str(running.process), f"broker-{broker.port}", seconds)
        await asyncio.sleep(seconds)

    async def move_slots(self) -> None:
        """Some go to another node, key by key or at once."""
        [nodes] = [each for each in self._cluster.groups if isinstance(each, ClusterOfNodes)]
        free = [shard for shard in nodes.shards if not shard.in_hand]
        if len(free) < 2:
            return
        pair = self._rng.sample(free, 2)
        source, target = (shard.primary for shard in pair)
        assert isinstance(source, Node)
        assert isinstance(target, Node)
        slots, at_once = nodes.some_slots(source), self._rng.random() < 0.5
        if at_once and self._rng.random() < SPEAKING_SHARE:
            slots = [each for each in await self._speaking(source) if nodes.map.owners[each] is source]
        if not slots or [source, target] != [shard.primary for shard in pair if not shard.in_hand]:
            return
        self._note("move at once" if at_once else "move", f"{len(slots)} slots {source.port} {target.port}")
        since = nodes.clock_ms()
        if at_once:
            nodes.move_at_once(slots, source, target)
        else:
            for shard in pair:
                shard.in_hand = True
            await nodes.move(slots, source, target)
            for shard in pair:
                shard.in_hand = False
        nodes.unable.append((since, nodes.clock_ms()))

    async def _speaking(self, node: Node) -> list[int]:
        """The slot in which something is said next at a node, if that is soon."""
        said: asyncio.Future[int] = self._loop.create_future()

        def look(name: str, key: bytes) -> None:
            slot = slot_of(key)
            if name == "append" and node.view.owners[slot] is node and not said.done():
                said.set_result(slot)

        node.steps.on_key.append(look)
        await asyncio.wait([said], timeout=WRITES_SECONDS)
        node.steps.on_key.remove(look)
        return [said.result()] if said.done() else []

    # ── the models' provider ──

    async def provider_away(self) -> None:
        """It takes no connections, or says that it is overloaded."""
        await self._trouble("away")

    async def provider_limits(self) -> None:
        """It wants fewer requests, and says when the next one."""
        await self._trouble("limits")

    async def provider_cuts(self) -> None:
        """Its streams break off, at any token."""
        await self._trouble("cuts")

    async def _trouble(self, kind: str) -> None:
        provider = self._cluster.outside.provider
        if not provider.trouble:
            self._note(f"provider {kind}")
            provider.trouble = kind
            await asyncio.sleep(self._rng.uniform(*TROUBLE_SECONDS))
            provider.trouble = ""

    async def hold_model(self) -> None:
        """An operator holds it, and resumes it later."""
        if not self._model_lock.locked():
            async with self._model_lock:
                self._note("hold model")
                await self._cluster.hold_model(GATED)
                await asyncio.sleep(self._rng.uniform(*self._rng.choice(MODEL_HELD_SECONDS)))
                self._note("resume model")
                await self._cluster.resume_model(GATED)

    # ── the network ──

    def _to_brokers(self, running: Running) -> list[tuple[Endpoint, Endpoint]]:
        return [
            pair
            for pair in self._cluster.network.connections.values()
            if pair[0].name.startswith(f"{running.process}>broker")
        ]

    def _connections(self) -> list[tuple[Endpoint, Endpoint]]:
        if self._rng.random() < AIMED_SHARE:
            return self._to_brokers(self._rng.choice(self._cluster.running))
        open_ones = list(self._cluster.network.connections.values())
        return self._rng.sample(open_ones, min(len(open_ones), self._rng.randint(1, MOST_CONNECTIONS)))

    async def cut(self) -> None:
        """Some connections are lost at both sides, with what is under way."""
        for near, _ in self._connections():
            self._note("cut", near.name)
            near.cut()

    async def drop_replies(self) -> None:
        """What was sent is carried out; no answer comes, and then the connection is lost."""
        for near, far in self._connections():
            self._note("drop replies", near.name)
            far.hold(60)
            self._loop.call_later(self._rng.uniform(0, 0.01), near.cut)

    async def delay(self) -> None:
        """What is sent by one side of some connections comes later."""
        for pair in self._connections():
            side = self._rng.choice(pair)
            seconds = self._rng.uniform(*self._rng.choice(HELD_SECONDS))
            self._note("delay", f"{side.name} {seconds:.2f} s")
            side.hold(seconds)

    async def silence(self) -> None:
        """Nothing passes over some connections any more, and nobody is told."""
        for near, _ in self._connections():
            self._note("silence", near.name)
            near.silence()

    def _clients(self) -> list[Endpoint]:
        """Some connections to front ends, at their clients' side."""
        near = [pair[0] for pair in self._cluster.network.connections.values() if ">api" in pair[0].name]
        return self._rng.sample(near, min(len(near), self._rng.randint(1, MOST_CONNECTIONS)))

    async def read_slowly(self) -> None:
        """Some clients read nothing for a while."""
        for near in self._clients():
            seconds = self._rng.uniform(*self._rng.choice(SLOW_SECONDS))
            self._note("read slowly", f"{near.name} {seconds:.2f} s")
            near.read_slowly(seconds)

    async def half_close(self) -> None:
        """Some clients say that they will send no more, whatever they wait for."""
        for near in self._clients():
            self._note("half close", near.name)
            near.write_eof()

    async def late(self) -> None:
        """The sender loses the connection, and what it sent arrives all the same, after it has tried again elsewhere."""
        for pair in self._connections():
            side = self._rng.choice(pair)
            seconds = self._rng.uniform(*self._rng.choice(HELD_SECONDS))
            self._note("late", f"{side.name} {seconds:.2f} s")
            side.hold(seconds)
            self._loop.call_later(self._rng.uniform(0, 0.02), side.part)


def _leaves_something(script: str, reply: Any) -> bool:
    """Whether who asked for a script is to do something now; who ended a turn is to launch the next one."""
    return reply[0] in LEFT_TO_DO[script] and (script != "finish" or bool(reply[2]))
