"""Webhooks are told whoever is killed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.support.a2a import VERSION, said
from tests.support.receiver import receiving
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes.deployment import Deployment

# A hint that a worker took with it, and the look of another one, on a machine that has much else to do.
SECONDS = 60


async def test_a_worker_is_killed_while_it_tells(deployment: Deployment, tmp_path: Path) -> None:
    """And the front end that took the message: another worker tells the same, as the same message, and is believed."""
    (tmp_path / "agents.toml").write_text('[agents.demo]\nmodel = "demo"\n[agents.demo.a2a]\n')
    settings = {
        "TURNSTREAM_AGENTS": str(tmp_path / "agents.toml"),
        "TURNSTREAM_PROTOCOLS": "default,a2a",
        "TURNSTREAM_WEBHOOK_NETWORKS": "127.0.0.1/32",
    }
    async with receiving() as receiver:
        receiver.answers.clear()
        first = await deployment.worker(**settings)
        front_end, client = await deployment.front_end(**settings)
        how = {"taskPushNotificationConfig": {"url": receiver.url}, "returnImmediately": True}
        answer = await client.http.post(
            "/a2a/demo/message:send", json=said("hi", configuration=how), headers=VERSION
        )
        task = answer.json()["task"]["id"]
        await wait_until(lambda: receiver.told, "the first worker to tell", SECONDS)
        first.signal(signal.SIGKILL)
        front_end.signal(signal.SIGKILL)
        await first.ended()
        receiver.answers.set()
        await deployment.worker(**settings)
        await wait_until(lambda: len(receiver.told) > 1, "another worker to tell", SECONDS)
    assert receiver.told[0] == receiver.told[1]
    assert receiver.told[1]["statusUpdate"]["taskId"] == task
    assert receiver.headers[0]["webhook-id"] == receiver.headers[1]["webhook-id"]
