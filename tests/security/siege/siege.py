"""A deployment under siege: one attacker with an ordinary key, and a neighbour whose turns are measured.

The shipped topology (nginx, front ends, workers, the broker with its `maxmemory`) as local processes; front ends
and workers in memory cgroups of the size that docker-compose.yml gives them, where this machine lets us make some.

Two things differ from real life, and are taken out of the measure. The attacker's machine is this one: what makes its
traffic runs at a tenth of their weight (`attacks.py`), so that the deployment and the neighbour have the cores
first; the deployment's own work for the attacker counts in full. And the speed of a machine drifts: each phase is compared
with what the neighbour saw right before and right after it, alone, with all that the attacker left running stopped.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import orjson
import psutil
import redis

from deploy.cluster import ROOT, Cluster
from tests.security.siege.attacks import ATTACKS, WITHOUT_ANSWERS
from tests.support.client import Client
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

# What docker-compose.yml gives each role.
LIMITS = {"worker": 2**30, "api": 2**30, "broker": 2 * 2**30, "nginx": 512 * 2**20}

# The neighbour's turn, and the pause between two of them.
TURN = "/tokens 20 5"
PAUSE_SECONDS = 0.1

# A turn that takes longer counts as lost.
LONGEST_SECONDS = 60.0

# What the neighbour's p99 may grow by, besides doubling: one pause of the scheduler of a busy machine.
NOISE_SECONDS = 0.05

# The time of the neighbour alone before and after each attack, as a share of the attack's.
ALONE_SHARE = 1 / 3

_CGROUPS = Path("/sys/fs/cgroup/memory")


class Cages:
    """Memory cgroups for the parts of a deployment; none, where they cannot be made."""

    def __init__(self, name: str) -> None:
        self._top = _CGROUPS / f"turnstream-{name}"
        self._made: dict[str, Path] = {}
        try:
            self._top.mkdir()
        except OSError:
            self.real = False
        else:
            self.real = True

    def command(self, part: str, command: Sequence[str]) -> list[str]:
        """The command, to be run within the part's limit."""
        if not self.real:
            return list(command)
        cage = self._made[part] = self._top / part
        cage.mkdir(exist_ok=True)
        (cage / "memory.limit_in_bytes").write_text(str(LIMITS[part.partition("-")[0]]))
        return ["sh", "-c", f'echo $$ > {cage}/cgroup.procs; exec "$@"', "sh", *command]

    def kills(self) -> dict[str, int]:
        """Part → processes that were killed for want of memory."""
        counts = {}
        for part, cage in self._made.items():
            words = (cage / "memory.oom_control").read_text().split()
            counts[part] = int(words[words.index("oom_kill") + 1])
        return counts

    def peaks(self) -> dict[str, int]:
        """Part → the most memory it had, MiB."""
        return {
            part: int((cage / "memory.max_usage_in_bytes").read_text()) >> 20
            for part, cage in self._made.items()
        }

    def remove(self) -> None:
        """Remove them; what ran in them has ended."""
        for cage in (*self._made.values(), *([self._top] if self.real else [])):
            cage.rmdir()


class Deployment(Cluster):
    """The local cluster, its parts within their limits."""

    def __init__(self, folder: Path, cages: Cages, **given: Any) -> None:
        super().__init__(folder, **given)
        self._cages = cages

    async def _begin(self, name: str, command: Sequence[str], **given: Any) -> None:
        await super()._begin(name, self._cages.command(name, command), **given)

    def cpu(self) -> Counter[str]:
        """Role → seconds of the processor that its processes have had."""
        seconds: Counter[str] = Counter()
        for name, part in self.parts.items():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(part.pid)
                for each in (process, *process.children(recursive=True)):
                    times = each.cpu_times()
                    seconds[name.partition("-")[0]] += times.user + times.system
        return seconds

    def slowest_command(self, since: float) -> int:
        """Milliseconds that one command held the broker since that Unix time; 0 when none took ten."""
        password = self.passwords["operator"]
        with redis.Redis(port=self.broker_port, username="operator", password=password) as broker:
            logged = broker.slowlog_get(128)
        return max((each["duration"] // 1000 for each in logged if each["start_time"] >= since), default=0)


@dataclass
class Phase:
    """What the neighbour saw during one attack."""

    attack: str
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    # Status → how many of the attacker's requests got it.
    answers: dict[str, int] = field(default_factory=dict)
    # What it saw alone, right before and right after.
    beside: list[Phase] = field(default_factory=list)
    # Cores that each role used, and the longest command at the broker, ms.
    cores: dict[str, float] = field(default_factory=dict)
    slowest_command: int = 0

    @property
    def p50(self) -> float:
        """The middle turn, seconds."""
        return statistics.median(self.seconds) if self.seconds else float("inf")

    @property
    def p99(self) -> float:
        """The slowest turn but one in a hundred, seconds."""
        return _p99(self.seconds)

    @property
    def alone(self) -> float:
        """The p99 of the turns beside it, seconds."""
        return _p99([each for phase in self.beside for each in phase.seconds])

    @property
    def took_place(self) -> bool:
        """Whether the attacker was answered at all, where its attack has answers."""
        return bool(self.answers) or self.attack in WITHOUT_ANSWERS

    @property
    def held(self) -> bool:
        """Whether all turns completed, and the p99 was within twice that of the turns beside it."""
        return self.took_place and not self.failures and self.p99 <= 2 * self.alone + NOISE_SECONDS

    def __str__(self) -> str:
        told = (
            f"{self.attack:14} {len(self.seconds):5} turns, {len(self.failures):3} failed, "
            f"p50 {1000 * self.p50:7.0f} ms, p99 {1000 * self.p99:7.0f} ms"
        )
        if not self.beside:
            return told
        outcome = "held" if self.held else "NOT HELD" if self.took_place else "NO ATTACK"
        cores = " ".join(f"{role} {used:.2f}" for role, used in self.cores.items())
        return (
            f"{told}, alone {1000 * self.alone:5.0f} ms, {outcome}; "
            f"cores: {cores}; longest command {self.slowest_command} ms; answers: {self.answers}"
        )


def _p99(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98] if len(seconds) > 1 else float("inf")


class Neighbour:
    """Somebody with a key of their own, who chats."""

    def __init__(self, url: str, key: str) -> None:
        self._client = Client(url, key)
        self._turns = 0

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def chat(self, phase: Phase, seconds: float) -> None:
        """One turn after the other, each read to its end."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._turns += 1
            begun = time.monotonic()
            try:
                async with asyncio.timeout(LONGEST_SECONDS):
                    await self._turn(f"alice-{self._turns // 20}", f"turn-{self._turns}")
            except Exception as error:
                phase.failures.append(f"{type(error).__name__}: {error}"[:200])
            else:
                phase.seconds.append(time.monotonic() - begun)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _turn(self, session: str, response: str) -> None:
        async with self._client.process(session, TURN, id=response) as stream:
            if stream.response.status_code != 200:
                raise AssertionError(
                    f"{stream.response.status_code} {(await stream.response.aread())[:150]!r}"
                )
            frames = await stream.all()
        last = frames[-1].data if frames else {}
        if last.get("object") != "response" or last.get("status") != "completed":
            raise AssertionError(f"the stream ended with {str(last)[:150]}")


class Siege:
    """A deployment, an attacker's keys and a neighbour."""

    def __init__(self, folder: Path, *, name: str, **variables: str) -> None:
        agents = folder / "agents.toml"
        agents.write_text(
            '[agents.demo]\nmodel = "demo"\nimages = true\n\n[agents.parallel]\nmodel = "demo"\nbusy = "parallel"\n'
        )
        self.heard: list[str] = []
        self.cages = Cages(name)
        self.deployment = Deployment(
            folder,
            self.cages,
            say=lambda part, line: self.heard.append(f"{part} {line}"),
            TURNSTREAM_AGENTS=str(agents),
            # Whoever comes back finds the events of a turn cut; an hour is too long for a siege.
            TURNSTREAM_LOG_GRACE_SECONDS="5",
            **variables,
        )
        self.phases: list[Phase] = []

    async def __aenter__(self) -> Self:
        """Start everything, and make the keys."""
        await self.deployment.__aenter__()
        self._operator = Client(self.deployment.url, self.deployment.admin)
        made = {}
        for owner, agent in (("alice", "demo"), ("eve", "demo"), ("eve", "parallel")):
            answer = await self._operator.http.post("/admin/v1/keys", json={"owner": owner, "agent": agent})
            assert answer.status_code in (200, 201), answer.text
            made[owner, agent] = answer.json()["token"]
        self._eve, self._eves_parallel = made["eve", "demo"], made["eve", "parallel"]
        self.alice = Neighbour(self.deployment.url, made["alice", "demo"])
        # The first turns import and connect; they are nobody's measure.
        await self.alice.chat(Phase("warm-up"), 3)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End everything."""
        await self.alice.close()
        await self._operator.close()
        await self.deployment.end()
        self.cages.remove()

    async def all(self, seconds: float, attacks: Sequence[str] = tuple(ATTACKS)) -> AsyncIterator[Phase]:
        """The attacks in turn, each for ``seconds``, the neighbour alone between them: each phase when it is complete."""
        before = await self._alone(seconds * ALONE_SHARE)
        for attack in attacks:
            phase = await self._under(attack, seconds)
            await self._calm()
            after = await self._alone(seconds * ALONE_SHARE)
            phase.beside = [before, after]
            self.phases.append(phase)
            yield phase
            before = after

    @property
    def alone(self) -> list[float]:
        """All that the neighbour saw while nobody attacked, seconds."""
        phases = {id(each): each for phase in self.phases for each in phase.beside}
        return [each for phase in phases.values() for each in phase.seconds]

    async def _alone(self, seconds: float) -> Phase:
        """What the neighbour sees when nobody attacks."""
        phase = Phase("(alone)")
        await self.alice.chat(phase, seconds)
        return phase

    async def _under(self, attack: str, seconds: float) -> Phase:
        """What the neighbour sees during an attack."""
        phase = Phase(attack)
        front_end = next(part for name, part in self.deployment.parts.items() if name.startswith("api"))
        attacker = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.security.siege.attacks", attack, "--seconds", str(seconds)),
            *("--url", self.deployment.url, "--direct", f"http://127.0.0.1:{front_end.port}"),
            *("--key", self._eve, "--parallel-key", self._eves_parallel),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
            # The scheduler weighs sessions first, and processes within them.
            start_new_session=True,
        )
        assert attacker.stdout is not None
        # What it has to load takes a while at its weight.
        assert await attacker.stdout.readline(), f"the attacker of {attack} did not start"
        begun, used = time.time(), self.deployment.cpu()
        await self.alice.chat(phase, seconds)
        lasted = time.time() - begun
        phase.cores = {role: all_of / lasted for role, all_of in (self.deployment.cpu() - used).items()}
        phase.slowest_command = self.deployment.slowest_command(begun)
        try:
            async with asyncio.timeout(15):
                said, _ = await attacker.communicate()
                phase.answers = orjson.loads(said)
        except TimeoutError:
            attacker.kill()
            await attacker.wait()
        return phase

    async def _calm(self) -> None:
        """Stop what the attacker left running or queued."""

        async def stopped() -> bool:
            asked = {"owner": "eve", "status": ["queued", "running"]}
            answer = await self._operator.http.post("/admin/v1/stop", json=asked)
            told = answer.json()
            return answer.status_code == 200 and not told["stopped"] and not told["more"]

        await wait_until(stopped, "the attacker's turns to be stopped", seconds=60)

    def report(self) -> str:
        """What the neighbour saw alone and under all attacks, a line for each of these, then what the parts needed."""
        alone = Phase("(alone)", self.alone)
        under = Phase("(all attacks)")
        for phase in self.phases:
            under.seconds += phase.seconds
            under.failures += phase.failures
        lines = [str(alone), str(under), *map(str, self.phases)]
        lines += [f"  {phase.attack}: {failure}" for phase in self.phases for failure in phase.failures[:3]]
        if self.cages.real:
            lines.append(f"killed for want of memory: {self.cages.kills()}; peaks, MiB: {self.cages.peaks()}")
        else:
            lines.append("no memory cgroups here: the parts ran without limits")
        return "\n".join(lines)
