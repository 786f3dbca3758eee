"""A newcomer's first minutes: `turnstream init` in an empty folder, `turnstream dev`, an edit, the client, the test."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from tests.support.commands import ROOT, turnstream_in
from tests.support.serving import serve
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

FILES = {".gitignore", "agents.toml", "client.py", "conftest.py", "shop.py", "test_shop.py"}


def names(folder: Path) -> set[str]:
    """What is in a folder."""
    return {path.name for path in folder.iterdir()}


async def python(folder: Path, *arguments: str) -> tuple[int | None, str]:
    """Run Python in a folder; its code, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    return process.returncode, out.decode()


async def test_the_first_minutes(tmp_path: Path) -> None:
    """What `init` writes runs, is edited without a restart, is spoken to from terminal and Python, and its tests pass."""
    made = await turnstream_in(tmp_path, "init")
    assert (made.code, names(tmp_path)) == (0, FILES)
    assert "turnstream dev" in made.out
    checked = await turnstream_in(tmp_path, "agents", "check", "agents.toml")
    assert (checked.code, "warning" in checked.out) == (0, False)

    async with serve(tmp_path, role="dev") as serving:
        assert "(agent: shop)" in serving.said
        here = {"TURNSTREAM_URL": serving.url}
        # No key is given: the one of this folder is taken.
        chatted = await turnstream_in(tmp_path, "chat", "/tool discount 80 25", **here)
        assert (chatted.code, chatted.out.strip()) == (0, "The result is 60.0.")
        client = (tmp_path / "client.py").read_text()
        (tmp_path / "client.py").write_text(client.replace("http://127.0.0.1:8090", serving.url))
        assert await python(tmp_path, "client.py") == (0, "The result is 60.0.\nThe result is red.\n")

        shop = (tmp_path / "shop.py").read_text()
        (tmp_path / "shop.py").write_text(shop.replace("(100 - b) / 100", "0"))
        await wait_until(lambda: "serve.reloaded" in serving.said, "the edit to be taken over")
        edited = await turnstream_in(tmp_path, "chat", "/tool discount 80 25", **here)
        assert edited.out.strip() == "The result is 0.0."
        (tmp_path / "shop.py").write_text(shop.replace("return", "raise KeyError; return"))
        await wait_until(lambda: serving.said.count("serve.reloaded") == 2, "the mistake to be taken over")
        await turnstream_in(tmp_path, "chat", "/tool discount 80 25", **here)
        await wait_until(lambda: "in discount" in serving.said, "the traceback")
        # Operators' commands find their key here, too.
        listed = await turnstream_in(tmp_path, "tasks", "list", "--status", "failed", **here)
        assert listed.out.count("failed") == 1

    (tmp_path / "shop.py").write_text(shop)
    code, out = await python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert (code, "3 passed" in out) == (0, True), out


async def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """One file that is there already is enough: all of them are left alone, and it is named."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "agents.toml").write_text("mine")
    refused = await turnstream_in(tmp_path, "init", "shop")
    assert refused.code == 2
    assert "shop/agents.toml: there already. Nothing was written" in refused.err
    assert names(tmp_path / "shop") == {"agents.toml"}
    assert (tmp_path / "shop" / "agents.toml").read_text() == "mine"
    (tmp_path / "file").touch()
    refused = await turnstream_in(tmp_path, "init", "file")
    assert (refused.code, "file" in refused.err, "Traceback" in refused.err) == (2, True, False)


async def test_keys_of_the_folder_stay_on_this_machine(tmp_path: Path) -> None:
    """A front end elsewhere is not sent a key that is lying about."""
    (tmp_path / ".turnstream").mkdir()
    (tmp_path / ".turnstream" / "dev_key").write_text("sk-" + "0" * 32)
    (tmp_path / ".turnstream" / "admin_key").write_text("sk-" + "1" * 32)
    chat, tasks = await asyncio.gather(
        turnstream_in(tmp_path, "chat", "hello", "--url", "http://front-end.invalid"),
        turnstream_in(tmp_path, "tasks", "list", "--url", "http://front-end.invalid"),
    )
    assert (chat.code, "TURNSTREAM_KEY" in chat.err) == (2, True)
    assert (tasks.code, "TURNSTREAM_ADMIN_KEY" in tasks.err) == (2, True)


WITHOUT_SERVER = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"arq", "redis", "fakeredis", "jsonschema", "pydantic_ai", "starlette", "uvicorn"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
sys.argv = ["turnstream", "init", "new"]
from turnstream.cli import main
main()
"""


async def test_the_client_alone_has_the_command_line(tmp_path: Path) -> None:
    """Without the server's packages it is imported, and `init` works."""
    code, out = await python(tmp_path, "-c", WITHOUT_SERVER)
    assert (code, "wrote  new/agents.toml" in out) == (0, True), out
