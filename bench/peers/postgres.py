"""A Postgres with its defaults, in a folder of its own: for peers that need one."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peers.environment import START_SECONDS, NotInstalledError, end
from bench.topology import HOST
from deploy.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where Debian has its programs, which are not on the path.
DEBIAN = Path("/usr/lib/postgresql")

USER = "bench"


@contextmanager
def postgres() -> Iterator[tuple[int, int]]:
    """A running server that trusts the user ``bench`` with its database ``postgres``: its port and process id.

    Raises:
        NotInstalledError: there is none here, or it did not start.
    """
    programs, account = _programs(), _account()
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        if account:
            os.chown(folder, account["user"], account["group"])
        data, log = folder / "data", folder / "log"
        with log.open("wb") as said:
            made = subprocess.run(
                [programs / "initdb", "-D", data, "-U", USER, "-A", "trust", "--no-sync"],
                cwd=folder,
                stdout=said,
                stderr=said,
                check=False,
                **account,
            )
            if made.returncode:
                raise NotInstalledError(f"Postgres makes no database: {log.read_text()[-500:]}")
            process = subprocess.Popen(
                [programs / "postgres", "-D", data, "-h", HOST, "-p", str(port), "-k", ""],
                cwd=folder,
                stdout=said,
                stderr=said,
                **account,
            )
        try:
            until = time.monotonic() + START_SECONDS
            while subprocess.run(
                [programs / "pg_isready", "-q", "-h", HOST, "-p", str(port)], check=False
            ).returncode:
                if process.poll() is not None or time.monotonic() > until:
                    raise NotInstalledError(f"Postgres does not start: {log.read_text()[-500:]}")
                time.sleep(0.05)
            yield port, process.pid
        finally:
            # It then ends without waiting for its clients.
            end(process, signal.SIGINT)


def _programs() -> Path:
    """The folder of its programs: that on the path, else the newest of Debian's."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(DEBIAN.glob("*/bin"), key=_version)
    if not folders:
        raise NotInstalledError("there is no Postgres here")
    return folders[-1]


def _version(folder: Path) -> float:
    return float(folder.parent.name)


def _account() -> dict[str, Any]:
    """Whose its processes are, for `subprocess`: Postgres refuses to be root's."""
    if os.geteuid():
        return {}
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise NotInstalledError("Postgres refuses to be root's, and there is neither a user postgres nor nobody")
