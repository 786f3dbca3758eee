"""What a role reads of its environment: `.env`, for the developer's roles, and no variable that is misspelt in silence."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.client import Client
from tests.support.commands import ROOT, turnstream, turnstream_in
from tests.support.serving import serve
from turnstream.shared.api_keys import make_token

if TYPE_CHECKING:
    from tests.support.client import Client as StackClient
    from tests.support.stack import Stack

AGENTS = '[agents.shop]\npython = "shop:shop"\n'
SHOP = """
import os
from turnstream import agent

@agent
async def shop(turn):
    yield os.environ["SHOP_NAME"] + os.environ["SHOP_TOWN"]
"""


async def test_serve_reads_the_file(tmp_path: Path) -> None:
    """Settings and what agents read, both; what the environment has already wins."""
    file, own = make_token(), make_token()
    (tmp_path / "agents.toml").write_text(AGENTS)
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / ".env").write_text(
        f"TURNSTREAM_AGENTS=agents.toml\nTURNSTREAM_DEV_AGENT=shop\nTURNSTREAM_DEV_KEY={file}\n"
        "SHOP_NAME='Bicycles of '\nSHOP_TOWN=Bern\n"
    )
    async with serve(tmp_path, TURNSTREAM_DEV_KEY=own, SHOP_TOWN="Oslo") as serving:
        assert own in serving.said
        assert file not in serving.said
        client = Client(serving.url, own)
        assert "Bicycles of Oslo" in str((await client.turn("s1", "hello"))[-1].data)
        await client.close()


async def test_a_misspelt_variable_is_named(tmp_path: Path) -> None:
    """With the one that is meant, wherever it came from; never its value; it stops nothing."""
    (tmp_path / ".env").write_text("TURNSTREAM_SESION_TTL=77\n")
    async with serve(
        tmp_path, TURNSTREAM_ADMIN_KYE="hush-hush", TURNSTREAM_ZZZ="1", TURNSTREAM_URL="x"
    ) as it:
        lines = [json.loads(line) for line in it.said.splitlines() if '"settings.unknown"' in line]
        assert [(line["variable"], line.get("did_you_mean")) for line in lines] == [
            ("TURNSTREAM_ADMIN_KYE", "TURNSTREAM_ADMIN_KEY"),
            ("TURNSTREAM_SESION_TTL", "TURNSTREAM_SESSION_TTL"),
            ("TURNSTREAM_ZZZ", None),
        ]
        assert "hush-hush" not in it.said


@pytest.mark.parametrize("role", ["api", "worker"])
async def test_other_roles_name_it_too_and_read_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """A deployment's environment is its own: a file that lies in its folder changes nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("TURNSTREAM_REDIS_URL=redis://127.0.0.1:1/0\n")
    refused = await turnstream_in(tmp_path, role, TURNSTREAM_PROT="1")
    # With the file it would wait for that broker.
    assert (refused.code, "memory://" in refused.err) == (2, True)
    started = await turnstream_in(
        tmp_path,
        role,
        TURNSTREAM_PROT="1",
        TURNSTREAM_REDIS_URL="redis://127.0.0.1:1/0",
        TURNSTREAM_AGENTS="nowhere",
    )
    assert '"did_you_mean": "TURNSTREAM_PORT"' in started.err
    assert started.code == 2


async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Not as a traceback."""
    (tmp_path / ".env").write_bytes(b"A=\xff\xfe\n")
    done = await turnstream_in(tmp_path, "serve")
    assert done.code == 2
    assert done.err.startswith("turnstream: .env cannot be read")
    assert len(done.err.splitlines()) == 1


async def test_version_help_and_completion(tmp_path: Path) -> None:
    """What every command line has."""
    version, short, long = await asyncio.gather(
        turnstream("--version"), turnstream("tasks", "-h"), turnstream("tasks", "--help")
    )
    assert (version.code, version.out) == (0, "turnstream 0.1.0\n")
    assert (short.code, short.out) == (0, long.out)
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("turnstream"),
        env={
            "PYTHONPATH": str(ROOT),
            "_TURNSTREAM_COMPLETE": "complete_bash",
            "COMP_WORDS": "turnstream mo",
            "COMP_CWORD": "1",
        },
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert out.split() == [b"models"]


@pytest.mark.parametrize("backend", ["fakeredis"])
async def test_agents_are_listed(client: StackClient, stack: Stack) -> None:
    """Those of the front end that is asked, as a table or as JSON."""
    env = {"TURNSTREAM_ADMIN_KEY": stack.admin, "TURNSTREAM_URL": client.base_url}
    table, lines = await asyncio.gather(
        turnstream("agents", "list", **env), turnstream("agents", "list", "--json", **env)
    )
    assert table.out.splitlines()[0].split() == ["AGENT", "MODEL", "BUSY", "STATE", "DESCRIPTION"]
    assert table.out.splitlines()[1].split() == ["demo", "demo", "serial", "open"]
    found = [json.loads(line) for line in lines.out.splitlines()]
    assert [each["agent"] for each in found] == ["demo", "demo-researcher", "demo-critic"]


async def test_the_option_is_named_where_it_is_one(tmp_path: Path) -> None:
    """Beside the variable, of which who gave the option need know nothing."""
    option = await turnstream_in(tmp_path, "serve", "--port", "70000")
    assert (option.code, "--port, TURNSTREAM_PORT = 70000: " in option.err) == (2, True), option.err
    variable = await turnstream_in(tmp_path, "serve", TURNSTREAM_PORT="70000")
    assert (variable.code, "--port" in variable.err) == (2, False), variable.err


async def test_serve_takes_the_file_as_an_argument(tmp_path: Path) -> None:
    """The chat key is for its first agent, or for the one that is named."""
    (tmp_path / "mine.toml").write_text(f"{AGENTS}[agents.other]\npython = 'shop:shop'\n")
    (tmp_path / "shop.py").write_text(SHOP)
    for more, agent in (((), "shop"), (("--agent", "other"), "other")):
        async with serve(tmp_path, "mine.toml", *more) as serving:
            assert f"(agent: {agent})" in serving.said
