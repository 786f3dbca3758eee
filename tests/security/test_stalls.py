"""Whatever somebody sends, everybody else is answered: the time that a front end stands still is bounded."""

from __future__ import annotations

import os
import random
import time
from functools import partial
from typing import TYPE_CHECKING

from tests.security.hostile import CHAT, KNOWN, Watch, generated, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes.deployment import Deployment

# How long a front end may keep anybody waiting.
MOST_SECONDS = 0.25

# What a body costs is the same each time; what the machine does besides is not.
TRIES = 4

GENERATED_SECONDS = float(os.environ.get("STALL_SECONDS", "10"))

# A deployment whose agent allows all that a request may ask for.
OPEN = """
[agents.open]
model = "demo"
images = true
allow_overrides = true
"""


def stalls(watch: Watch, attack: Callable[[], object]) -> float:
    """What the attack costs everybody else: the least of some tries, unless the first is good enough."""
    least = watch.worst(attack)
    for _ in range(TRIES - 1):
        if least <= MOST_SECONDS:
            break
        least = min(least, watch.worst(attack))
    return least


async def test_no_body_keeps_everybody_waiting(deployment: Deployment, tmp_path: Path) -> None:
    """Names, lists, numbers, nesting, schemas, errors: each at its largest, for agents that allow all or nothing."""
    (tmp_path / "agents.toml").write_text(OPEN)
    agents: dict[str, dict[str, str]] = {
        "demo": {},
        "open": {"TURNSTREAM_AGENTS": str(tmp_path / "agents.toml"), "TURNSTREAM_DEV_AGENT": "open"},
    }
    slow = []
    for agent, variables in agents.items():
        process, client = await deployment.front_end(**variables)
        session = await client.init()
        with Watch(process.port) as watch:
            idle = watch.at_rest()
            print(f"{agent}: at rest {idle * 1000:.0f} ms")
            chat = f"/liteAgent/v1/chat?sessionId={session}"
            for path, bodies in (("/process", KNOWN), (chat, CHAT)):
                for name, make in bodies.items():
                    body = make()
                    waited = stalls(watch, partial(send, process.port, path, deployment.key, body))
                    print(f"{agent}: {name} ({len(body)} bytes): {waited * 1000:.0f} ms")
                    if waited > MOST_SECONDS:
                        slow.append((agent, name, round(waited, 2)))
        process.popen.terminate()
        await process.ended()
    assert not slow


async def test_no_generated_body_keeps_everybody_waiting(deployment: Deployment, tmp_path: Path) -> None:
    """Random ones, for seconds; STALL_SECONDS=600 for ten minutes. The seed of a run is printed."""
    (tmp_path / "agents.toml").write_text(OPEN)
    process, _ = await deployment.front_end(
        TURNSTREAM_AGENTS=str(tmp_path / "agents.toml"), TURNSTREAM_DEV_AGENT="open"
    )
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    sent, worst, slow = 0, 0.0, []
    with Watch(process.port) as watch:
        until = time.monotonic() + GENERATED_SECONDS
        for body in generated(random.Random(seed)):
            if time.monotonic() > until:
                break
            waited = stalls(watch, partial(send, process.port, "/process", deployment.key, body))
            sent, worst = sent + 1, max(worst, waited)
            if waited > MOST_SECONDS:
                slow.append((body[:200], len(body), round(waited, 2)))
    print(f"{sent} bodies, longest wait {worst * 1000:.0f} ms")
    assert not slow
