"""The upgrade of agents that docs/operations.md describes, step by step, and what becomes of turns whose version is gone.

``UPGRADE_TURNS`` turns of each of four agents are parked in each of two parts. In full: 13.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

from tests.processes.deployment import START_SECONDS
from tests.support.client import Client, calls_of, check_whole, terminal, text_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes.deployment import Deployment
    from tests.support.client import Frame

# Of each agent, in each part of the test.
TURNS = int(os.environ.get("UPGRADE_TURNS", "2"))

AGENTS = """
[agents.mover]
python = "tests.support.versioned:{code}"

[agents.failer]
python = "tests.support.versioned:{code}"
on_version = "fail"

[agents.waiter]
python = "tests.support.versioned:{code}"
on_version = "wait"
version_wait = 3600

[agents.tirer]
python = "tests.support.versioned:{code}"
on_version = "wait"
version_wait = 0.5
"""
NAMES = ("mover", "failer", "waiter", "tirer")


class Upgrade:
    """A deployment with a client for each agent, and its two versions of them."""

    def __init__(self, deployment: Deployment, folder: Path) -> None:
        self._deployment = deployment
        self._folder = folder
        self.clients: dict[str, Client] = {}
        self.admin: Client

    def agents(self, code: str) -> str:
        """The setting for this version of the agents."""
        path = self._folder / f"{code}.toml"
        path.write_text(AGENTS.format(code=code))
        return str(path)

    async def begin(self) -> None:
        """A front end that has keys for all agents."""
        _, client = await self._deployment.front_end(TURNSTREAM_AGENTS=self.agents("first"))
        self.admin = Client(client.base_url, self._deployment.admin)
        self._deployment.closing(self.admin)
        for name in NAMES:
            body = {"owner": "acme", "agent": name}
            made = (await self.admin.http.post("/admin/v1/keys", json=body)).json()
            self.clients[name] = Client(client.base_url, made["token"])
            self._deployment.closing(self.clients[name])

    async def workers(self, *retiring: bool) -> None:
        """Wait until operators see these workers, each with a version of its own."""

        async def seen() -> bool:
            rows = (await self.admin.http.get("/admin/v1/workers")).json()["workers"]
            versions = {row["agents"]["mover"] for row in rows}
            return len(versions) == len(retiring) and sorted(row["retiring"] for row in rows) == sorted(
                retiring
            )

        await wait_until(seen, f"the workers {retiring}", START_SECONDS)

    async def park(self, part: str) -> dict[tuple[str, str], str]:
        """`TURNS` turns of each agent that wait for their client: agent and session → call."""

        async def one(name: str, session: str) -> str:
            async with self.clients[name].process(session, "ask", id="t1") as stream:
                call: str = calls_of(await stream.until(calls_of))[0]["call_id"]
            await wait_until(lambda: self.status(session, "parked"), "the turn to park")
            return call

        turns = [(name, f"{name}-{part}-{number}") for name in NAMES for number in range(TURNS)]
        calls = await asyncio.gather(*(one(*turn) for turn in turns))
        return dict(zip(turns, calls, strict=True))

    async def status(self, session: str, wanted: str) -> bool:
        """Whether the session's turn has this status."""
        row = (await self.admin.http.get(f"/admin/v1/tasks/acme/{session}/t1")).json()
        return bool(row["status"] == wanted)

    async def answer(self, calls: dict[tuple[str, str], str]) -> None:
        """Answer all these calls."""

        async def one(name: str, session: str, call: str) -> None:
            assert (await self.clients[name].callback(session, call, "Rome")).status_code == 200

        await asyncio.gather(*(one(name, session, call) for (name, session), call in calls.items()))

    async def end_of(self, name: str, session: str) -> list[Frame]:
        """All that the turn said, when it has ended."""
        async with self.clients[name].follow(session, "t1") as stream:
            frames: list[Frame] = await stream.all()
        check_whole(frames)
        return frames

    async def ends_of(self, calls: dict[tuple[str, str], str], name: str = "") -> list[list[Frame]]:
        """What these turns said, or those of one agent."""
        turns = [turn for turn in calls if not name or turn[0] == name]
        return await asyncio.gather(*(self.end_of(*turn) for turn in turns))

    async def waits_for(self) -> list[str]:
        """The agents of the turns that wait for their version."""
        rows: list[dict[str, Any]] = (await self.admin.http.get("/admin/v1/tasks?status=queued")).json()[
            "tasks"
        ]
        return [row["agent"] for row in rows if row.get("waiting", {}).get("reason") == "agent_version"]


async def test_agents_are_upgraded_as_the_docs_say(deployment: Deployment, tmp_path: Path) -> None:
    """Parked turns end at the version they began at while it is served; when it is not, each by its agent's policy."""
    upgrade = Upgrade(deployment, tmp_path)
    first, second = upgrade.agents("first"), upgrade.agents("second")
    old, _ = await asyncio.gather(deployment.worker(TURNSTREAM_AGENTS=first), upgrade.begin())
    calls, left = await upgrade.park("a"), await upgrade.park("b")

    # 1. New workers beside the old ones; 2. old ones that retire in place of the others.
    _, retiring = await asyncio.gather(
        deployment.worker(TURNSTREAM_AGENTS=second),
        deployment.worker(TURNSTREAM_AGENTS=first, TURNSTREAM_RETIRING="true"),
    )
    old.signal(signal.SIGTERM)
    assert await old.ended() == 0
    await upgrade.workers(True, False)
    await upgrade.answer(calls)
    for frames in await upgrade.ends_of(calls):
        assert text_of(frames) == "first heard Rome"
    assert text_of(await upgrade.clients["mover"].turn("new", "hello")) == "second heard None"

    # 4. Version 1 is withdrawn, too soon.
    retiring.signal(signal.SIGTERM)
    assert await retiring.ended() == 0
    await upgrade.answer(left)
    for frames in await upgrade.ends_of(left, "mover"):
        assert text_of(frames) == "second heard Rome"
    for frames in (*await upgrade.ends_of(left, "failer"), *await upgrade.ends_of(left, "tirer")):
        ended = terminal(frames) or {}
        assert (ended["status"], ended["error"]["code"]) == ("failed", "agent_version_gone")

    async def waiting() -> bool:
        return await upgrade.waits_for() == ["waiter"] * TURNS

    await wait_until(waiting, "the others to wait for their version")
    for name, session in left:
        if name == "waiter":
            assert (await upgrade.clients[name].stop(session)).status_code == 200
            assert (terminal(await upgrade.end_of(name, session)) or {})["status"] == "canceled"
