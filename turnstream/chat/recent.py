"""The recent sessions of this user's terminals, and where the terminal client keeps what it remembers."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

# The file is written anew with each turn.
MOST = 200

# Of what was said first, by which a session is recognised.
MOST_CHARACTERS = 60


def state_file(name: str) -> Path | None:
    """A file of ``$XDG_STATE_HOME/turnstream``, made if need be, readable for its user alone; None where there can be none."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "turnstream" / name
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except (OSError, RuntimeError):
        return None
    return path


@dataclass(frozen=True, slots=True)
class Session:
    """A session that was talked to: at which front end, with which agent, when last (Unix seconds), and how it began."""

    url: str
    agent: str
    id: str
    at: float
    text: str


class Recent:
    """The sessions of one agent at one front end, the newest first."""

    def __init__(self, url: str, agent: str) -> None:
        self._url = url
        self._agent = agent

    def all(self) -> list[Session]:
        """Those that are remembered."""
        return [each for each in _read() if (each.url, each.agent) == (self._url, self._agent)]

    def note(self, session: str, text: str) -> None:
        """Something was said in a session."""
        path = state_file("sessions")
        if path is None:
            return
        known = _read()
        former = next((each for each in known if (each.url, each.id) == (self._url, session)), None)
        first = former.text if former else " ".join(text.split())[:MOST_CHARACTERS]
        now = Session(self._url, self._agent, session, time.time(), first)
        rows = [now, *(each for each in known if each is not former)][:MOST]
        made = path.with_name(f"sessions.{os.getpid()}")
        try:
            made.touch(mode=0o600)
            made.write_bytes(b"".join(orjson.dumps(asdict(each)) + b"\n" for each in rows))
            made.replace(path)
        except OSError:
            made.unlink(missing_ok=True)


def _read() -> list[Session]:
    path = state_file("sessions")
    try:
        lines = path.read_bytes().splitlines() if path is not None else []
        return [Session(**orjson.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError):
        # Another version's, or spoilt: it is written anew with the next turn.
        return []
