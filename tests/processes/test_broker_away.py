"""The broker goes away and comes back: no process ends, nothing is lost, and its return is not taken for dead workers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes.broker import Broker
from tests.processes.deployment import START_SECONDS, Deployment, Process
from tests.support.client import asked, check_whole, text_of
from tests.support.waiting import wait_until
from turnstream.shared.broker.retry import LONG_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker of one's own."""
    broker = Broker(tmp_path / "data")
    broker.start()
    yield broker
    broker.stop()


async def test_a_turn_survives_the_brokers_absence(broker: Broker, tmp_path: Path) -> None:
    """Killed in mid-turn and back after 10 s: the stream goes on where it was; meanwhile 503, and no crash counts."""
    deployment = Deployment(broker.port, tmp_path, TURNSTREAM_LEASE_SECONDS="3")
    try:
        front, client = await deployment.front_end()
        worker = await deployment.worker()
        async with client.process("s1", "/tokens 300 10", id="t1") as stream:
            await stream.until(lambda frames: len(frames) >= 20)
            operator = {"Authorization": f"Bearer {deployment.admin}"}
            # The front end believes the key for some seconds, so that the stop itself meets the broker's absence.
            assert (await client.http.get("/admin/v1/keys", headers=operator)).status_code == 200
            broker.kill()
            back = asyncio.get_running_loop().time() + 10
            answer = await client.http.post("/process", json=asked("s2", "hi"))
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) > 0
            assert answer.json()["code"] == "broker_away"
            for meant in ({"refs": ["dev/s1/t1", "dev/s2/t2"]}, {"status": ["running"]}):
                answer = await client.http.post("/admin/v1/stop", json=meant, headers=operator)
                assert (answer.status_code, answer.json()["code"]) == (503, "broker_away")
            assert (await client.http.get("/readyz")).status_code == 503
            assert (await client.http.get("/healthz")).status_code == 200
            await wait_until(lambda: asyncio.get_running_loop().time() > back, "ten seconds to pass")
            server = broker.start()
            frames = await stream.all()
        with server.client() as redis:
            assert redis.hget("ts:{dev/s1}:task:t1", "crashes") == b"0"
        check_whole(frames)
        assert text_of(frames) == "".join(f"tok{number} " for number in range(300))
        assert front.popen.poll() is None
        assert worker.popen.poll() is None

        async def ready() -> bool:
            return (await client.http.get("/readyz")).status_code == 200

        await wait_until(ready, "the front end to be ready again")
        assert text_of(await client.turn("s2", "hi")) == "You said: hi"
    finally:
        await deployment.close()


async def test_processes_start_without_their_broker(broker: Broker, tmp_path: Path) -> None:
    """A front end and a worker that are there first wait for the broker, each says so in one line, and then they work."""
    broker.kill()
    deployment = Deployment(broker.port, tmp_path)
    try:
        waiting = asyncio.create_task(deployment.front_end())
        worker = deployment.start("worker")
        started = "the worker to have started"
        await wait_until(lambda: b"worker.started" in worker.log.read_bytes(), started, START_SECONDS)
        await wait_until(lambda: len(deployment.processes) == 2, "the front end to be started")
        (front,) = [each for each in deployment.processes if each.role == "api"]
        for process in (front, worker):
            await wait_until(partial(_lines, process, "waiting"), "the line that says so", START_SECONDS)
            (line,) = _lines(process, "waiting")
            assert line["what"] == f"TURNSTREAM_REDIS_URL = redis://127.0.0.1:{broker.port}/0"
            assert line["seconds"] >= LONG_SECONDS
            assert "restart this process" in line["todo"]
        broker.start()
        _, client = await waiting
        assert text_of(await client.turn("s1", "hi")) == "You said: hi"
        for process in (front, worker):
            assert len(_lines(process, "waiting")) == 1
            assert _lines(process, "back")[0]["what"].startswith("TURNSTREAM_REDIS_URL")
    finally:
        await deployment.close()


def _lines(process: Process, what: str) -> list[dict[str, Any]]:
    """What a process has logged of waiting for its broker."""
    return process.logged(f"broker.{what}")
