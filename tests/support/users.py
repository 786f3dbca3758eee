"""The users of deploy/redis.acl at a test's broker: front ends and workers under test have no more than their rights."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).parents[2] / "deploy"

NAMES = ("api", "worker", "operator", "server")


def password(user: str) -> str:
    """The user's password."""
    return f"password-of-{user}-in-tests"


def define(broker: Any) -> None:
    """Make the users known to a broker, as deployments do; `default`, which is the test itself, keeps its rights."""
    for line in acl_file().splitlines():
        _, user, *rules = line.split()
        if user != "default":
            broker.execute_command("ACL", "SETUSER", user, *rules)


def acl_file() -> str:
    """What deploy/redis-acl.sh makes of deploy/redis.acl."""
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            (Path(folder) / f"redis_{name}_password").write_text(password(name) + "\n")
        made = subprocess.run(
            ["sh", DEPLOY / "redis-acl.sh", folder], check=True, capture_output=True, text=True
        )
    return made.stdout
