"""The wheel, as somebody else installs it: with the server beside their own modules, and the client alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.ports import free_port
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]

USERS_OWN = {
    "api/__init__.py": "raise ImportError('this is not the api that was meant')\n",
    "worker.py": "raise ImportError('this is not the worker that was meant')\n",
    "shared/__init__.py": "",
    "shared/prices.py": "def price(a: int, b: int) -> int:\n    return 100 * a + b\n",
    "agents.toml": '[agents.shop]\nmodel = "demo"\ntools = ["shared.prices:price"]\n',
}

TYPED = """
from turnstream.client import AgentResponse, Client, Message, TextContent

with Client("http://127.0.0.1:8090", "sk-x") as client:
    reveal_type(client.chat("hi").text())
    for event in client.chat("hi"):
        if isinstance(event, TextContent):
            reveal_type(event.text)
        if isinstance(event, AgentResponse | Message):
            reveal_type(event.status)
    client.chat(said=3)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what is in the repository."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(out), str(copy)]
    subprocess.run([sys.executable, "-m", "pip", *build], capture_output=True, check=True)
    (built,) = out.glob("*.whl")
    return built


class Environment:
    """A virtual environment with the wheel and what it requires, and nothing else."""

    def __init__(self, folder: Path, wheel: Path, *extras: str) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.bin = folder / "bin"
        site = next(folder.glob("lib/python*/site-packages"))
        for name in _closure([Requirement(each) for each in _required(wheel)], set(extras)):
            for entry in {file.parts[0] for file in distribution(name).files or [] if file.parts[0] != ".."}:
                source = Path(str(distribution(name).locate_file(entry)))
                if source.exists() and not (site / entry).exists():
                    (site / entry).symlink_to(source)
        install = ["install", "--no-deps", "--no-index", "--quiet", str(wheel)]
        subprocess.run(
            [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), *install], check=True
        )

    def run(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """A program of the environment, to its end."""
        return subprocess.run(
            [self.bin / words[0], *words[1:]],
            cwd=cwd,
            env=clean(),
            capture_output=True,
            text=True,
            check=False,
        )


def _required(wheel: Path) -> list[str]:
    metadata = subprocess.run(
        ["unzip", "-p", wheel, "*/METADATA"], capture_output=True, text=True, check=True
    )
    return re.findall(r"^Requires-Dist: (.*)$", metadata.stdout, re.MULTILINE)


def _closure(requirements: Iterable[Requirement], extras: set[str]) -> set[str]:
    """The distributions that these requirements bring, by their metadata here."""
    found: set[tuple[str, str]] = set()
    waiting = [(each, extra) for each in requirements for extra in extras | {""}]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in requirement.extras | {""}:
            if (name, wanted) not in found:
                found.add((name, wanted))
                more = [Requirement(each) for each in distribution(name).requires or []]
                waiting += [(each, wanted) for each in more]
    return {name for name, _ in found}


def clean() -> dict[str, str]:
    """The variables without ours and without Python's."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("TURNSTREAM_", "PYTHON"))
    }


async def test_a_server_runs_beside_a_users_own_modules(wheel: Path, tmp_path: Path) -> None:
    """Named ``api``, ``worker`` and ``shared``, one of which is a tool; ours are importable by no such name."""
    environment = Environment(tmp_path / "env", wheel, "server")
    elsewhere, folder = tmp_path / "empty", tmp_path / "theirs"
    elsewhere.mkdir()
    for name in ("api", "worker", "shared"):
        done = environment.run("python", "-c", f"import {name}", cwd=elsewhere)
        assert f"No module named '{name}'" in done.stderr
    for name, text in USERS_OWN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    port, log = free_port(), folder / "serve.log"
    variables = {**clean(), "TURNSTREAM_AGENTS": "agents.toml", "TURNSTREAM_DEV_AGENT": "shop"}
    with log.open("wb") as out:
        serving = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [environment.bin / "turnstream", "serve", "--port", str(port)],
            cwd=folder, env=variables, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        await wait_until(
            lambda: "Ctrl-C ends it" in log.read_text() or serving.poll() is not None, "serve", 60
        )
        assert serving.poll() is None, log.read_text()
        (key,) = re.findall(r"chat key +(sk-\S+)", log.read_text())
        chat = ("chat", "--url", f"http://127.0.0.1:{port}", "--key", key, "/tool price 3 7")
        answered = environment.run("turnstream", *chat, cwd=folder)
        assert "307" in answered.stdout, answered.stderr
    finally:
        serving.terminate()
        serving.wait()


def test_the_client_alone_brings_no_server(wheel: Path, tmp_path: Path) -> None:
    """Clients and HTTP commands work without it, commands that need it say how to install it; types are checked."""
    environment = Environment(tmp_path / "env", wheel)
    missing = environment.run("python", "-c", "import redis", cwd=tmp_path)
    assert "No module named 'redis'" in missing.stderr
    loaded = environment.run("python", "-c", "from turnstream import AsyncClient, Client", cwd=tmp_path)
    assert (loaded.returncode, loaded.stderr) == (0, "")
    for command in (("serve",), ("api",), ("worker",), ("keys", "list"), ("agents", "check", "agents.toml")):
        refused = environment.run("turnstream", *command, cwd=tmp_path)
        assert refused.returncode == 2, (command, refused.stderr)
        assert "pip install 'turnstream[server]'" in refused.stderr, (command, refused.stderr)
        assert len(refused.stderr.splitlines()) == 1
    url = f"http://127.0.0.1:{free_port()}"
    looked = environment.run("turnstream", "doctor", "--url", url, cwd=tmp_path)
    assert "broker" in looked.stdout
    assert url in looked.stdout
    listed = environment.run("turnstream", "tasks", "list", "--url", url, cwd=tmp_path)
    assert "TURNSTREAM_ADMIN_KEY" in listed.stderr
    (tmp_path / "typed.py").write_text(TYPED)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", environment.bin / "python", "--strict", "typed.py"],
        cwd=tmp_path, env=clean(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert re.findall(r'Revealed type is "(.*)"', checked.stdout) == ["str", "str | None", "str | None"], (
        checked.stdout
    )
    (error,) = re.findall(r"error: (.*)  \[", checked.stdout)
    assert error.startswith('Argument "said" to "chat" of "Client" has incompatible type "int"')
