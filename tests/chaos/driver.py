"""One chaos run: a deployment, its clients, its faults; healed in the end, and judged when the accounts balance."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from deploy.ports import free_port
from tests.chaos.checker import Violation, check
from tests.chaos.clients import ChaosClient, Town
from tests.chaos.faults import PACE_SECONDS, Faults
from tests.chaos.homes import HOMES
from tests.chaos.records import ENDS, Account, Session, Turn, View, rows
from tests.processes.deployment import Deployment
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


# Short times, so that what is lost is noticed soon: the promises are the same with any.
SETTINGS = {
    "TURNSTREAM_LEASE_SECONDS": "2",
    "TURNSTREAM_DRAIN_SECONDS": "1",
    "TURNSTREAM_HEARTBEAT_SECONDS": "1",
}

# After the last fault: every turn that was begun must have ended by then, or it counts as stuck.
# A lost launch is noticed after 10 s, a lost worker after its lease, and three of them may follow each other.
BALANCE_SECONDS = 45.0

# How often a history is asked for whose front end says that the broker is away.
MOST_ASKED = 3

# Looks for turns that no client waits for any more, and what is between two of them.
LEFT_LOOKS, LEFT_SECONDS = 20, 1.0


@dataclass(frozen=True)
class Plan:
    """What to do: how many clients, for how long, with which faults (none named: all), at which of `HOMES`."""

    seed: int
    seconds: float
    clients: int = 30
    fronts: int = 2
    workers: int = 3
    most_turns: int = 1_000_000
    most_faults: int = 1_000_000
    only: tuple[str, ...] = ()
    pace: tuple[float, float] = PACE_SECONDS
    broker: str = "server"


@dataclass
class Report:
    """How it went."""

    plan: Plan
    account: Account
    faults: list[tuple[float, str]]
    stuck: list[str]
    violations: list[Violation] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def statuses(self) -> Counter[str]:
        """How the turns ended."""
        return Counter(
            self.account.session_of(turn).tasks.get(turn.task, {}).get("status", "none")
            for turn in self.account.turns
        )

    @property
    def crashes(self) -> int:
        """Attempts that counted as crashes."""
        tasks = [task for session in self.account.sessions.values() for task in session.tasks.values()]
        return sum(int(task.get("crashes", 0)) for task in tasks)

    def silences(self) -> dict[str, list[float]]:
        """Fault → for each turn that was being said, how long after it the next event came, in seconds.

        Left out are turns that are silent by themselves: those that wait for another one, and tools that sleep, which
        sleep anew in each attempt.
        """
        found: dict[str, list[float]] = {}
        for turn in self.account.turns:
            times = turn.own.times
            if turn.prompt.startswith("/slow"):
                continue
            for when, kind in self.faults:
                # The first event only says that the turn is queued.
                if len(times) > 1 and times[1] < when < times[-1]:
                    after = next(each for each in times if each > when)
                    found.setdefault(kind, []).append(after - when)
        return found

    def text(self) -> str:
        """A few lines for a person."""
        account = self.account
        events = sum(len(view.frames) for turn in account.turns for view in turn.views)
        trouble = sum((turn.trouble for turn in account.turns), Counter[str]())
        lines = [
            f"seed {self.plan.seed}: {len(account.turns)} turns in {len(account.sessions)} sessions",
            f"  {events} events, {self.seconds:.0f} s; {dict(self.statuses)}; crashes {self.crashes}",
            f"  faults {dict(Counter(kind for _, kind in self.faults))}",
            f"  clients met {dict(trouble)}",
            f"  stuck {len(self.stuck)}, violations {len(self.violations)}",
            *(f"  STUCK {each}" for each in self.stuck[:20]),
            *(f"  {each}" for each in self.violations[:20]),
        ]
        return "\n".join(lines)


async def run(plan: Plan, folder: Path) -> Report:
    """Do it, in a folder of its own; every process that is started is ended."""
    begun = time.monotonic()
    rng = random.Random(plan.seed)
    chosen = random.Random(f"faults {plan.seed}")
    ports = [free_port() for _ in range(plan.fronts)]
    home = HOMES[plan.broker](folder, "everysec" if plan.seed % 2 else "always", chosen)
    deployment = Deployment(0, folder, **SETTINGS, **home.variables)
    town = Town(deployment.key, [f"http://127.0.0.1:{port}" for port in ports])
    try:
        await home.open(town)
        faults = Faults(home, deployment, ports, plan.workers, chosen)
        await faults.serving()
        await wait_until(lambda: _ready(town), "the front ends to be ready")
        clients = [ChaosClient(number, town, random.Random(rng.random())) for number in range(plan.clients)]
        living = [asyncio.create_task(client.live()) for client in clients]
        await _injure(faults, plan, town)
        await asyncio.wait(living, timeout=BALANCE_SECONDS)
        stuck = [str(turn) for turn in town.turns if not all(view.ended or view.lost for view in turn.views)]
        for each in living:
            each.cancel()
        for outcome in await asyncio.gather(*living, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        # One that was killed just before the end may still be starting.
        await faults.serving()
        await wait_until(lambda: _ready(town), "the front ends to be ready")
        if town.losses:
            await _stop_abandoned(await home.sessions(), town)
        account = await account_of(await home.sessions(), town)
        stuck += unended(account)
        report = Report(plan, account, faults.done, stuck)
        report.violations = check(account) + [Violation("no_process_ends", each) for each in faults.lost()]
        report.violations += [Violation("nothing_raises", each) for each in _raised(deployment)]
        report.seconds = time.monotonic() - begun
        return report
    finally:
        await deployment.close()
        home.close()


async def _injure(faults: Faults, plan: Plan, town: Town) -> None:
    injecting = asyncio.create_task(faults.inject(plan.only, plan.pace))
    end = time.monotonic() + plan.seconds
    while time.monotonic() < end and len(town.turns) < plan.most_turns and not injecting.done():
        if len(faults.done) >= plan.most_faults:
            break
        await asyncio.wait([injecting], timeout=0.2)
    town.closing.set()
    await faults.heal()
    await injecting
    town.healed.set()


async def _ready(town: Town) -> bool:
    async with httpx.AsyncClient(headers=town.headers, trust_env=False) as http:
        for front in town.fronts:
            try:
                if (await http.get(f"{front}/readyz")).status_code != 200:
                    return False
                if (await http.get(f"{front}/liteAgent/v1/history")).status_code == 401:
                    return False
            except httpx.TransportError:
                return False
    return True


async def _stop_abandoned(redis: Any, town: Town) -> None:
    """Stop what waits for a client that saw its end: it came back with a server that had lost it, and others wait behind it."""
    async with httpx.AsyncClient(headers=town.headers, trust_env=False) as http:
        for _ in range(LEFT_LOOKS):
            waiting = False
            for turn in town.turns:
                status = await redis.hget(_key(town, turn.session, f"task:{turn.task}"), "status")
                if not status or status.decode() in ENDS:
                    continue
                waiting = True
                if status == b"parked" and all(view.ended or view.lost for view in turn.views):
                    turn.stopped = True
                    params = {"sessionId": turn.session, "taskId": turn.task}
                    await http.post(f"{town.fronts[0]}/liteAgent/v1/stop", params=params)
            if not waiting:
                break
            await asyncio.sleep(LEFT_SECONDS)
    await redis.aclose()


async def account_of(redis: Any, town: Town) -> Account:
    """Read everything that there is; the client, which finds every session, is closed."""
    account = Account(turns=town.turns, losses=town.losses)
    async with httpx.AsyncClient(
        headers=town.headers, trust_env=False, timeout=30, transport=town.transport()
    ) as http:
        for turn in town.turns:
            name = turn.session
            session = account.sessions.setdefault(name, Session(name, serial=town.is_serial(name)))
            fields = await redis.hgetall(_key(town, turn.session, f"task:{turn.task}"))
            # A look that found no task left its mark.
            if b"status" in fields:
                session.tasks[turn.task] = {
                    name.decode(): value.decode()
                    for name, value in fields.items()
                    if name in (b"status", b"why", b"crashes", b"attempt", b"launch", b"parks")
                }
        for session in account.sessions.values():
            files = await files_of(redis, town, session.name)
            session.log = rows(await redis.xrange(_key(town, session.name, "log")), files)
            session.history = rows(await redis.xrange(_key(town, session.name, "history")), files)
            epoch, seq, former = await redis.hmget(_key(town, session.name, "meta"), "epoch", "seq", "former")
            ended = [f"{epoch.decode()}-{seq.decode()}", *(former or b"").decode().split()] if epoch else []
            session.epochs = {int(one): int(last) for one, _, last in (each.partition("-") for each in ended)}
            if session.history:
                url = f"{town.fronts[0]}/liteAgent/v1/history"
                headers = town.headers_of(session.name)
                session.told = await _told(http, url, session.name, headers)
        for turn in town.turns if town.losses else ():
            for view in turn.views:
                # One that was told so before is asked about again: a former primary may have become the primary anew.
                if view.frames:
                    view.gone = await _gone(http, town, turn, view)
                    view.lost = view.lost or bool(view.gone)
    await redis.aclose()
    return account


async def files_of(redis: Any, town: Town, session: str) -> dict[str, bytes]:
    """What a session's entries refer to, by digest."""
    stored = await redis.hgetall(_key(town, session, "files"))
    return {name.decode(): data for name, data in stored.items()}


async def _told(http: httpx.AsyncClient, url: str, session: str, headers: dict[str, str]) -> Any:
    """A session's history, asked for as a client does: a front end whose connection fell silent may notice only now."""
    for _ in range(MOST_ASKED):
        answer = await http.get(url, params={"sessionId": session}, headers=headers)
        if answer.status_code != 503:
            break
        await asyncio.sleep(float(answer.headers["Retry-After"]))
    assert answer.status_code == 200, f"history of {session}: {answer.status_code} {answer.text}"
    return answer.json()


async def _gone(http: httpx.AsyncClient, town: Town, turn: Turn, view: View) -> str:
    """How a client that comes back is told that what it has is gone; empty: it is there."""
    url, params = f"{town.fronts[-1]}/process", {"session_id": turn.session, "response_id": turn.task}
    headers = {**town.headers_of(turn.session), "Last-Event-ID": view.frames[-1].id}
    async with http.stream("GET", url, params=params, headers=headers) as answer:
        if answer.status_code not in (404, 410):
            return ""
        told = (await answer.aread()).decode()
    return f"behind {view.frames[-1].id}: {answer.status_code} {told}, {dt.datetime.now(dt.UTC):%H:%M:%S.%f}"


def _key(town: Town, session: str, rest: str) -> str:
    return f"ts:{{{town.owner_of(session)}/{session}}}:{rest}"


def unended(account: Account) -> list[str]:
    """Tasks that have not ended."""
    return [
        f"{session.name}/{task}: {fields}"
        for session in account.sessions.values()
        for task, fields in session.tasks.items()
        if fields["status"] not in ENDS
    ]


def _raised(deployment: Deployment) -> list[str]:
    """What no process expected: logged exceptions. A generator that is closed at exit says so otherwise."""
    return [
        f"{process.log}: {line[:300].decode(errors='replace')}"
        for process in deployment.processes
        for line in process.log.read_bytes().splitlines()
        if line.startswith(b"{") and b'"exception": ' in line
    ]
