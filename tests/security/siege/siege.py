"""A deployment under siege: one attacker with an ordinary key, and a neighbour whose turns are measured.

The shipped topology (nginx, front ends, workers, the broker with its `maxmemory`) as local processes; front ends
and workers in memory cgroups of the size that docker-compose.yml gives them, where this machine lets us make some.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import orjson

from deploy.cluster import ROOT, Cluster
from tests.client import Client
from tests.security.siege.attacks import ATTACKS

if TYPE_CHECKING:
    from collections.abc import Sequence

# What docker-compose.yml gives each role.
LIMITS = {"worker": 2**30, "api": 2**30, "broker": 2 * 2**30, "nginx": 512 * 2**20}

# The neighbour's turn, and the pause between two of them.
TURN = "/tokens 20 5"
PAUSE_SECONDS = 0.1

# A turn that takes longer counts as lost.
LONGEST_SECONDS = 60.0

# What the neighbour's p99 may grow by, besides doubling: one pause of the scheduler of a busy machine.
NOISE_SECONDS = 0.05

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


@dataclass
class Phase:
    """What the neighbour saw during one attack."""

    attack: str
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    answers: str = ""

    @property
    def p50(self) -> float:
        """The middle turn, seconds."""
        return statistics.median(self.seconds) if self.seconds else float("inf")

    @property
    def p99(self) -> float:
        """The slowest turn but one in a hundred, seconds."""
        return statistics.quantiles(self.seconds, n=100)[98] if len(self.seconds) > 1 else float("inf")

    def __str__(self) -> str:
        return (
            f"{self.attack:14} {len(self.seconds):5} turns, {len(self.failures):3} failed, "
            f"p50 {1000 * self.p50:7.0f} ms, p99 {1000 * self.p99:7.0f} ms, "
            f"most {1000 * max(self.seconds, default=0):7.0f} ms   {self.answers}"
        )


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
        operator = Client(self.deployment.url, self.deployment.admin)
        made = {}
        for owner, agent in (("alice", "demo"), ("eve", "demo"), ("eve", "parallel")):
            answer = await operator.http.post("/admin/v1/keys", json={"owner": owner, "agent": agent})
            assert answer.status_code in (200, 201), answer.text
            made[owner, agent] = answer.json()["token"]
        await operator.close()
        self._eve, self._eves_parallel = made["eve", "demo"], made["eve", "parallel"]
        self.alice = Neighbour(self.deployment.url, made["alice", "demo"])
        return self

    async def __aexit__(self, *_: object) -> None:
        """End everything."""
        await self.alice.close()
        await self.deployment.end()
        self.cages.remove()

    async def alone(self, seconds: float) -> Phase:
        """What the neighbour sees when nobody attacks."""
        # The first turns import and connect; they are nobody's measure.
        await self.alice.chat(Phase("warm-up"), min(3.0, seconds))
        phase = Phase("(alone)")
        await self.alice.chat(phase, seconds)
        self.phases.append(phase)
        return phase

    async def under(self, attack: str, seconds: float) -> Phase:
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
        )
        await self.alice.chat(phase, seconds)
        try:
            async with asyncio.timeout(15):
                said, _ = await attacker.communicate()
                phase.answers = str(orjson.loads(said))
        except TimeoutError:
            attacker.kill()
            await attacker.wait()
        self.phases.append(phase)
        return phase

    async def all(self, seconds: float) -> None:
        """Every attack in turn, each for ``seconds``."""
        for attack in ATTACKS:
            await self.under(attack, seconds)

    def report(self) -> str:
        """A line for each phase, then what the parts needed."""
        lines = [str(phase) for phase in self.phases]
        lines += [f"  {phase.attack}: {failure}" for phase in self.phases for failure in phase.failures[:3]]
        if self.cages.real:
            lines.append(f"killed for want of memory: {self.cages.kills()}; peaks, MiB: {self.cages.peaks()}")
        else:
            lines.append("no memory cgroups here: the parts ran without limits")
        return "\n".join(lines)
