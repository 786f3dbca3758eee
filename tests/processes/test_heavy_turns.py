"""What heavy sessions cost a worker: its memory stays bounded, comes back, and neighbours notice little."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.client import terminal, text_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.processes.deployment import Deployment, Process
    from tests.support.client import Client

MIB = 2**20

# A tenth of the shipped limits, and of the images that they are made for.
LIMITS = {
    "TURNSTREAM_MEMORY_MAX_BYTES": str(2 * MIB),
    "TURNSTREAM_WORKER_MAX_BYTES": str(6 * MIB),
}


def resident(worker: Process, field: str) -> float:
    """Memory of the process in MiB: VmRSS now, VmHWM at most so far."""
    lines = Path(f"/proc/{worker.popen.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


async def image(client: Client, session: str) -> Any:
    """A turn with an image of a MiB; its end."""
    url = "data:image/png;base64," + base64.b64encode(os.urandom(3 * MIB // 4)).decode()
    content = [{"type": "text", "text": "look"}, {"type": "image", "image_url": url}]
    body = {"session_id": session, "input": [{"role": "user", "content": content}]}
    async with client.open("POST", "/process", json=body) as stream:
        return terminal(await stream.all())


async def test_heavy_sessions_do_not_fill_their_worker(deployment: Deployment) -> None:
    """Four sessions of fifteen images each: the worker's memory does not grow with them, and a neighbour's turns end."""
    worker = await deployment.worker(**LIMITS)
    _, client = await deployment.front_end()
    await image(client, "warm")
    start = resident(worker, "VmRSS")

    async def session(name: str) -> list[Any]:
        return [await image(client, name) for _ in range(15)]

    heavy = asyncio.gather(*(session(f"heavy{number}") for number in range(4)))
    number = 0
    while not heavy.done():
        number += 1
        assert text_of(await client.turn(f"light{number}", "hello")) == "You said: hello"
    for ends in await heavy:
        assert [end["status"] for end in ends] == ["completed"] * 15
    assert number > 1
    assert resident(worker, "VmHWM") - start < 120
    await wait_until(lambda: resident(worker, "VmRSS") - start < 40, "the memory to come back")
    assert worker.popen.poll() is None
