"""The terminal client's own commands: lines that begin with ``/`` and are not said to the agent."""

from __future__ import annotations

import base64
import mimetypes
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnstream.chat.telling import clean
from turnstream.shared.names import IDENTIFIER

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnstream.chat.recent import Recent
    from turnstream.client import AsyncClient, AsyncSession
    from turnstream.client.session import Said

# Texts are sent within the message.
MOST_TEXT_BYTES = 256 * 1024

HELP = {
    "/help": "these lines",
    "/new": "a new session",
    "/sessions": "the sessions that were talked to from here, the newest first",
    "/session N": "go on with one of them, by its number or its name",
    "/attach FILE": "send an image or a text with what is said next",
    "/quit": "leave; so does Ctrl-D",
    "//…": "say to the agent what begins with one of these commands",
}


class QuitError(Exception):
    """The user wants to leave."""


class Commands:
    """Takes what is typed: acts on commands, and gives back what is for the agent.

    Attributes:
        session: the one that is talked in.
    """

    def __init__(
        self, client: AsyncClient, session: AsyncSession, recent: Recent, note: Callable[[str], None]
    ) -> None:
        """``note`` shows a line to the user."""
        self.session = session
        self._client = client
        self._recent = recent
        self._note = note
        self._attached: list[dict[str, Any]] = []

    def take(self, line: str) -> Said | None:
        """What is to be said to the agent; None: the line was a command.

        Raises:
            QuitError: the user wants to leave.
        """
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if "\n" not in line:
            match word:
                case "/help":
                    width = max(map(len, HELP))
                    for name, meaning in HELP.items():
                        self._note(f"{name.ljust(width)}  {meaning}")
                    return None
                case "/new":
                    self._go_to(self._client.session())
                    return None
                case "/sessions":
                    self._list()
                    return None
                case "/session":
                    self._choose(rest)
                    return None
                case "/attach":
                    self._attach(rest)
                    return None
                case "/quit":
                    raise QuitError
        said = line[1:] if line.startswith("//") else line
        self._recent.note(self.session.id, said)
        parts, self._attached = self._attached, []
        return [{"type": "text", "text": said}, *parts] if parts else said

    def _go_to(self, session: AsyncSession) -> None:
        self.session = session
        self._note(f"session {session.id}")

    def _list(self) -> None:
        found = self._recent.all()
        for number, each in enumerate(found, 1):
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.at))
            here = "*" if each.id == self.session.id else " "
            self._note(f"{here}{number:>3}  {when}  {each.id}  {clean(each.text)}")
        if not found:
            self._note("no session was talked to from here yet")

    def _choose(self, which: str) -> None:
        found = self._recent.all()
        if which.isdigit() and 0 < int(which) <= len(found):
            which = found[int(which) - 1].id
        if IDENTIFIER.fullmatch(which) is None:
            self._note("which one? /session N, or its name; /sessions lists them")
            return
        self._go_to(self._client.session(which))

    def _attach(self, name: str) -> None:
        path = Path(name).expanduser()
        try:
            data = path.read_bytes()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self._note(f"{clean(name) or 'no file'}: {why or error}")
            return
        kind = mimetypes.guess_type(path.name)[0] or ""
        if kind.startswith("image/"):
            url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
            self._attached.append({"type": "image", "image_url": url})
        elif len(data) <= MOST_TEXT_BYTES and (text := _text(data)) is not None:
            self._attached.append({"type": "text", "text": f"{path.name}:\n{text}"})
        else:
            self._note(f"{clean(name)}: neither an image nor a text of at most {MOST_TEXT_BYTES // 1024} KiB")
            return
        self._note(f"attached {clean(path.name)} ({len(data)} bytes): it is sent with what is said next")


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
