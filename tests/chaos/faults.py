"""What is done to a deployment while its clients chat: killed, frozen, cut, restarted; chosen by seed."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.processes.deployment import START_SECONDS
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from tests.processes.broker import Broker
    from tests.processes.deployment import Deployment, Process

# Between two injections. Shorter, and the deployment does nothing but start processes.
PACE_SECONDS = (0.4, 1.8)

# How long a process is frozen: from within its lease (2 s) to past it; in half of the cases for so long that
# others have gone on, and ended, what it had, and that all who spoke with it have given it up.
FROZEN_SECONDS = (1.0, 5.0)
LONG_FROZEN_SECONDS = (11.0, 15.0)

# How long the broker is away; in one case of five for longer than a request insists.
AWAY_SECONDS = (0.1, 1.0)
LONG_AWAY_SECONDS = (3.0, 6.0)

# How long the broker takes no writes: within a lease (2 s) or past it.
REFUSING_SECONDS = (0.2, 4.0)

# How much of what it had taken a broker loses: seconds before its end.
LOST_SECONDS = (0.1, 1.0)

# By how much the clocks of the processes' hosts are wrong.
SKEWS_SECONDS = (-5, 0, 5)

# Those that lose what was acknowledged.
LOSSY = frozenset({"restore_broker", "promote_replica"})

# How often each is done, relative to the others. Those that start a process cost most of a core for seconds.
WEIGHTS = {
    "kill_worker": 3,
    "drain_worker": 1,
    "freeze_worker": 3,
    "kill_front_end": 2,
    "drain_front_end": 1,
    "freeze_front_end": 1,
    "restart_broker": 2,
    "fill_memory": 1,
    "become_replica": 1,
    "cut_commands": 4,
    "cut_subscribers": 3,
    "flush_scripts": 2,
    "restore_broker": 2,
    "promote_replica": 2,
    # Only when it is asked for by name.
    "roll": 0,
}


class Faults:
    """Injects faults into a deployment, and heals it in the end.

    Every process that ends is started again at once, as a supervisor would; front ends keep their ports.
    """

    def __init__(
        self,
        broker: Broker,
        deployment: Deployment,
        ports: list[int],
        workers: int,
        rng: random.Random,
        on_loss: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._deployment = deployment
        self._rng = rng
        self._on_loss = on_loss
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
        kinds = only or tuple(WEIGHTS)
        while True:
            try:
                async with asyncio.timeout(self._rng.uniform(*pace)):
                    await self._healing.wait()
                return
            except TimeoutError:
                pass
            [kind] = self._rng.choices(kinds, None if only else list(WEIGHTS.values()))
            act: Callable[[], Awaitable[bool]] = getattr(self, kind)
            when = time.monotonic()
            if await act():
                self.done.append((when, kind))

    async def heal(self) -> None:
        """Let `inject` complete what it has begun, and thaw what is frozen."""
        self._healing.set()
        for thaw in self._thaws:
            thaw.cancel()
        await asyncio.gather(*self._thaws, return_exceptions=True)
        for process in self._frozen:
            process.signal(signal.SIGCONT)
        self._frozen.clear()

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

    async def restart_broker(self) -> bool:
        """Killed, or ended in order where it writes its file every second; it is back with that file."""
        away = LONG_AWAY_SECONDS if self._rng.random() < 0.2 else AWAY_SECONDS
        await asyncio.to_thread(self._broker.kill)
        await asyncio.sleep(self._rng.uniform(*away))
        await asyncio.to_thread(self._broker.start)
        return True

    async def restore_broker(self) -> bool:
        """Killed, and started with its file of a moment ago."""
        copy = await asyncio.to_thread(self._broker.remember)
        await self._about_to_lose()
        await asyncio.to_thread(self._broker.go_back, copy)
        return True

    async def promote_replica(self) -> bool:
        """Killed, and a replica that lags takes its place."""
        await asyncio.to_thread(self._broker.replicate)
        await asyncio.to_thread(self._broker.lag)
        await self._about_to_lose()
        await asyncio.to_thread(self._broker.promote)
        return True

    async def _about_to_lose(self) -> None:
        await asyncio.sleep(self._rng.uniform(*LOST_SECONDS))
        self._on_loss()

    async def fill_memory(self) -> bool:
        """No memory left, for a while: whatever would need some is refused."""
        return await self._refuse(("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"))

    async def become_replica(self) -> bool:
        """A replica of nobody, as after a failover that went back and forth: it answers, but takes no writes."""
        return await self._refuse(("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"))

    async def cut_commands(self) -> bool:
        """CLIENT KILL TYPE normal."""
        return await self._tell("CLIENT", "KILL", "TYPE", "normal")

    async def cut_subscribers(self) -> bool:
        """CLIENT KILL TYPE pubsub."""
        return await self._tell("CLIENT", "KILL", "TYPE", "pubsub")

    async def flush_scripts(self) -> bool:
        """SCRIPT FLUSH."""
        return await self._tell("SCRIPT", "FLUSH")

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
        thaw = asyncio.create_task(self._thaw(process, self._rng.uniform(*seconds)))
        self._thaws.add(thaw)
        thaw.add_done_callback(self._thaws.discard)
        return True

    async def _thaw(self, process: Process, after: float) -> None:
        await asyncio.sleep(after)
        if process in self._frozen:
            self._frozen.discard(process)
            process.signal(signal.SIGCONT)

    async def _refuse(self, begin: tuple[str, ...], end: tuple[str, ...]) -> bool:
        if not await self._tell(*begin):
            return False
        await asyncio.sleep(self._rng.uniform(*REFUSING_SECONDS))
        await self._tell(*end)
        return True

    async def _tell(self, *words: str) -> bool:
        redis: Any = Redis(port=self._broker.port)
        try:
            await redis.execute_command(*words)
        except (RedisError, OSError):
            # It is away at the moment: nothing is there to be cut.
            return False
        finally:
            await redis.aclose()
        return True


def _serves(process: Process) -> bool:
    said = process.log.read_bytes()
    return b"worker.started" in said or b"api.serving" in said
