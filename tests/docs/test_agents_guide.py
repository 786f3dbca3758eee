"""docs/agents.md: complete, and true to the letter for somebody who follows it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from deploy.ports import free_port
from turnstream.shared.agents import config
from turnstream.shared.agents.config import AgentSpec, ClientTool, McpServer
from turnstream.worker.agents import registry

GUIDE = (Path(__file__).parent.parent.parent / "docs" / "agents.md").read_text()


def blocks(language: str) -> list[str]:
    """The fenced blocks in that language."""
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def write(folder: Path, *names: str) -> None:
    """Make the files of the guide that begin with these names."""
    files = {
        block.split("\n", 1)[0].removeprefix("# "): block for block in (*blocks("python"), *blocks("toml"))
    }
    for name in names:
        (folder / name).write_text(files[name])


@pytest.mark.parametrize("model", [AgentSpec, ClientTool, McpServer])
def test_every_field_is_named(model: type[AgentSpec | ClientTool | McpServer]) -> None:
    """A field that the guide does not know of is a field that nobody finds."""
    fields = set(model.model_fields)
    known = set(re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE))
    if model is AgentSpec:
        assert known == fields
    else:
        assert {
            field for field in fields if not re.search(rf"(`{field}`|^{field} =)", GUIDE, re.MULTILINE)
        } == set()


@pytest.mark.parametrize("field", [name for name, field in AgentSpec.model_fields.items() if field.default])
def test_every_default_is_the_real_one(field: str) -> None:
    """As TOML writes it."""
    default = AgentSpec.model_fields[field].default
    if isinstance(default, str | int | float):
        shown = f'"{default}"' if isinstance(default, str) else f"{default:g}"
        assert f"| `{field}` | `{shown}` |" in GUIDE


def test_its_generator_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coded agent of the guide is accepted as it is printed, from the folder of its agents.toml."""
    write(tmp_path, "weather.py")
    (tmp_path / "agents.toml").write_text('[agents.weather]\npython = "weather:weather"\n')
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert "weather" in registry.build(config.load(tmp_path / "agents.toml"))


def test_its_mcp_servers_are_valid(tmp_path: Path) -> None:
    """The tables of the guide are accepted as they are printed."""
    (mcp,) = [block for block in blocks("toml") if "mcp" in block]
    (tmp_path / "agents.toml").write_text('[agents.shop]\nmodel = "demo"\n' + mcp)
    servers = config.load(tmp_path / "agents.toml")["shop"].mcp
    assert [server.way for server in servers] == ["command", "url"]
    assert servers[0].needs_approval("delete_file")
    assert not servers[0].needs_approval("read_file")


@pytest.mark.skipif(shutil.which("curl") is None, reason="the guide is followed with curl")
async def test_a_newcomer_follows_it(tmp_path: Path) -> None:
    """The files of the ten minutes, the server of step 3, and every curl line, as printed."""
    write(tmp_path, "shop.py", "agents.toml")
    port, key = free_port(), "sk-" + "0123456789abcdef" * 2
    environment = {
        **os.environ,
        "TURNSTREAM_AGENTS": "agents.toml",
        "TURNSTREAM_DEV_AGENT": "shop",
        "TURNSTREAM_DEV_KEY": key,
    }
    command = shutil.which("turnstream", path=str(Path(sys.executable).parent))
    assert command is not None
    server = await asyncio.create_subprocess_exec(
        command,
        *("serve", "--port", str(port)),
        cwd=tmp_path,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert server.stdout is not None
        async with asyncio.timeout(120):
            while b"is ready" not in (line := await server.stdout.readline()):
                assert line, "the server ended"
        steps = "".join(blocks("sh")).replace("8090", str(port)).replace("sk-…", key)
        shell = await asyncio.create_subprocess_exec(
            "bash", "-euo", "pipefail", "-c", steps, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(30):
            said, _ = await shell.communicate()
    finally:
        server.terminate()
        await server.wait()
    assert shell.returncode == 0, said.decode()
    assert '"output":"60.0"' in said.decode()
    assert "The result is red." in said.decode()
