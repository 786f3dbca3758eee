"""What is done to a deployment while its clients chat: killed, frozen, cut, restarted; chosen by seed."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any

from tests.chaos.homes import HOMES
from tests.processes.deployment import START_SECONDS
from tests.processes.servers import OUTSIDE
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Coroutine

    from tests.chaos.homes import Home
    from tests.processes.deployment import Deployment, Process

# Between two injections. Shorter, and the deployment does nothing but start processes.
PACE_SECONDS = (0.4, 1.8)

# How long a process is frozen: from within its lease (2 s) to past it; in half of the cases for so long that
# others have gone on, and ended, what it had, and that all who spoke with it have given it up.
FROZEN_SECONDS = (1.0, 5.0)
LONG_FROZEN_SECONDS = (11.0, 15.0)

# How long a process is cut off from some of the data: within its lease and past it.
PARTED_SECONDS = (0.5, 5.0)

# By how much the clocks of the processes' hosts are wrong.
SKEWS_SECONDS = (-5, 0, 5)

# Those that lose what was acknowledged.
LOSSY = frozenset({"restore_broker", "promote_replica"})

# How often each is done, relative to the others and to those of the home. Those that start a process cost most of a core
# for seconds.
PROCESSES = {
    "kill_worker": 3,
    "drain_worker": 1,
    "freeze_worker": 3,
    "kill_front_end": 2,
    "drain_front_end": 1,
    "freeze_front_end": 1,
    "cut_commands": 4,
    "cut_subscribers": 3,
    "flush_scripts": 2,
    # Where there are links.
    "part_process": 3,
    # Only when it is asked for by name.
    "roll": 0,
}

# Of any home.
KINDS = sorted({*PROCESSES, *(kind for home in HOMES.values() for kind in home.weights)})


class Faults:
    """Injects faults into a deployment, and heals it in the end.

    Every process that ends is started again at once, as a supervisor would; front ends keep their ports.
    """

    def __init__(
        self,
        home: Home,
        deployment: Deployment,
        ports: list[int],
        workers: int,
        rng: random.Random,
    ) -> None:
        self._home = home
        self._deployment = deployment
        self._rng = rng
        self._healing = asyncio.Event()
        self.done: list[tuple[float, str]] = []
        self._thaws: set[asyncio.Task[None]] = set()
        self._frozen: set[Process] = set()
        self._fronts = {port: self._start_front_end(port) for port in ports}
        self._workers = [self._start_worker() for _ in range(workers)]

    def _start_front_end(self, port: int) -> Process:
        return self._deployment.start("api", "--port", str(port), **self._skew())

    def _start_worker(self) -> Process:
        return self._deployment.start("worker", **self._skew())

    def _skew(self) -> dict[str, str]:
        return self._deployment.skewed(self._rng.choice(SKEWS_SECONDS))

    async def inject(self, only: tuple[str, ...] = (), pace: tuple[float, float] = PACE_SECONDS) -> None:
        """Do one thing after the other, until `heal`."""
        weights = {**PROCESSES, **self._home.weights}
        if not self._home.links():
            del weights["part_process"]
        kinds = only or tuple(weights)
        while True:
            try:
                async with asyncio.timeout(self._rng.uniform(*pace)):
                    await self._healing.wait()
                return
            except TimeoutError:
                pass
            [kind] = self._rng.choices(kinds, None if only else list(weights.values()))
            act: Callable[[], Awaitable[bool]] = getattr(self if kind in PROCESSES else self._home, kind)
            when = time.monotonic()
            if await act():
                self.done.append((when, kind))

    async def heal(self) -> None:
        """Let `inject` and the home complete what they have begun, and thaw and join all processes."""
        self._healing.set()
        for thaw in self._thaws:
            thaw.cancel()
        await asyncio.gather(*self._thaws, return_exceptions=True)
        for process in self._frozen:
            process.signal(signal.SIGCONT)
        self._frozen.clear()
        await self._home.heal()

    def lost(self) -> list[str]:
        """Processes that ended although nobody ended them."""
        standing = [*self._fronts.values(), *self._workers]
        return [f"{each.role} {each.log}" for each in standing if each.popen.poll() is not None]

    # ── the faults ──

    async def kill_worker(self) -> bool:
        """SIGKILL."""
        return await self._replace_worker(signal.SIGKILL)

    async def drain_worker(self) -> bool:
        """SIGTERM: it gives its turns back."""
        return await self._replace_worker(signal.SIGTERM)

    async def freeze_worker(self) -> bool:
        """SIGSTOP, and SIGCONT after a while; mostly past its lease.

        The rules hold it to say nothing then: a closed message that goes on, or a second one beside that of
        the attempt that took over, breaks them.
        """
        # One stays awake: somebody must take over for a thawed one to have something to disturb.
        awake = [each for each in self._workers if each not in self._frozen and _serves(each)]
        return len(awake) > 1 and self._freeze(self._rng.choice(awake))

    async def kill_front_end(self) -> bool:
        """SIGKILL: its streams break within a frame."""
        return await self._replace_front_end(signal.SIGKILL)

    async def drain_front_end(self) -> bool:
        """SIGTERM: it ends its streams between frames."""
        return await self._replace_front_end(signal.SIGTERM)

    async def freeze_front_end(self) -> bool:
        """SIGSTOP, and SIGCONT after a while."""
        awake = [each for each in self._fronts.values() if each not in self._frozen]
        return len(awake) > 1 and self._freeze(self._rng.choice(awake))

    async def part_process(self) -> bool:
        """Nothing passes between a process and some of the data, and it is not told; others go on."""
        standing = [*self._fronts.values(), *self._workers]
        process = self._rng.choice([each for each in standing if _serves(each)])
        links, seconds = self._rng.choice(self._home.links()), self._rng.uniform(*PARTED_SECONDS)
        for link in links:
            link.part(process.popen.pid)

        async def join() -> None:
            try:
                await asyncio.sleep(seconds)
            finally:
                for link in links:
                    link.join(process.popen.pid)

        self._later(join())
        return True

    async def cut_commands(self) -> bool:
        """CLIENT KILL TYPE normal, but for what another fault is about to do."""
        return await self._home.tell_all("CLIENT", "KILL", "TYPE", "normal", "NOT-NAME", OUTSIDE)

    async def cut_subscribers(self) -> bool:
        """CLIENT KILL TYPE pubsub."""
        return await self._home.tell_all("CLIENT", "KILL", "TYPE", "pubsub")

    async def flush_scripts(self) -> bool:
        """SCRIPT FLUSH."""
        return await self._home.tell_all("SCRIPT", "FLUSH")

    async def roll(self) -> bool:
        """A new release: every process is drained and started anew, one after the other."""
        for at, worker in enumerate(self._workers):
            await self._end(worker, signal.SIGTERM)
            self._workers[at] = self._start_worker()
            await self.serving()
        for port, front in self._fronts.items():
            await self._end(front, signal.SIGTERM)
            self._fronts[port] = self._start_front_end(port)
            await self.serving()
        return True

    # ── how ──

    async def serving(self) -> None:
        """Wait until every process has started."""
        standing = [*self._fronts.values(), *self._workers]
        await wait_until(lambda: all(map(_serves, standing)), "every process to start", 3 * START_SECONDS)

    async def _replace_worker(self, number: int) -> bool:
        at = self._rng.randrange(len(self._workers))
        # A start takes seconds. With nobody there no turn would run, and nothing could go wrong.
        if sum(map(_serves, self._workers)) < 2 or not _serves(self._workers[at]):
            return False
        await self._end(self._workers[at], number)
        self._workers[at] = self._start_worker()
        return True

    async def _replace_front_end(self, number: int) -> bool:
        port = self._rng.choice(list(self._fronts))
        if not all(map(_serves, self._fronts.values())):
            return False
        await self._end(self._fronts[port], number)
        self._fronts[port] = self._start_front_end(port)
        return True

    async def _end(self, process: Process, number: int) -> None:
        if process in self._frozen:
            self._frozen.discard(process)
            process.signal(signal.SIGCONT)
        process.signal(number)
        await process.ended()

    def _freeze(self, process: Process) -> bool:
        if process in self._frozen or not _serves(process):
            return False
        self._frozen.add(process)
        process.signal(signal.SIGSTOP)
        seconds = self._rng.choice((FROZEN_SECONDS, LONG_FROZEN_SECONDS))
        self._later(self._thaw(process, self._rng.uniform(*seconds)))
        return True

    def _later(self, thawing: Coroutine[Any, Any, None]) -> None:
        thaw = asyncio.create_task(thawing)
        self._thaws.add(thaw)
        thaw.add_done_callback(self._thaws.discard)

    async def _thaw(self, process: Process, after: float) -> None:
        await asyncio.sleep(after)
        if process in self._frozen:
            self._frozen.discard(process)
            process.signal(signal.SIGCONT)


def _serves(process: Process) -> bool:
    said = process.log.read_bytes()
    return b"worker.started" in said or b"api.serving" in said
