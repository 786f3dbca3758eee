"""`turnstream chat`, on a terminal and in a pipe."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pexpect
import pytest

from tests.support.link import Link
from tests.unit.turnstream.client.conftest import port_of
from turnstream.chat.screen import settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.client import Client
    from tests.support.stack import Stack

once = pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)

# A line editor says so to the terminal when it begins to read.
PROMPT = r"\x1b\[\?2004h"

_STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A person at a terminal."""

    def __init__(self, url: str, key: str, *arguments: str) -> None:
        self._child = pexpect.spawn(
            sys.executable,
            ["-m", "turnstream", "chat", "--url", url, *arguments],
            env={
                **os.environ,
                "TURNSTREAM_KEY": key,
                "TERM": "xterm-256color",
                "NO_COLOR": "1",
                # This terminal cannot be asked where its cursor is.
                "PROMPT_TOOLKIT_NO_CPR": "1",
            },
            encoding="utf-8",
            dimensions=(30, 100),
            timeout=60,
        )
        self.seen = ""

    async def see(self, pattern: Any) -> str:
        """Wait until it is on the screen; what came up to it."""
        await asyncio.to_thread(self._child.expect, pattern)
        text = f"{self._child.before}{self._child.after if isinstance(self._child.after, str) else ''}"
        self.seen += text
        return _STYLES.sub("", text)

    def type(self, line: str) -> None:
        """Type a line."""
        self._child.sendline(line)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._child.sendintr()

    async def leave(self) -> int:
        """Ctrl-D; the exit code."""
        self._child.sendeof()
        return await self.left()

    async def left(self) -> int:
        """Wait for the program's end; its exit code."""
        await self.see(pexpect.EOF)
        await asyncio.to_thread(self._child.close)
        code: int = self._child.exitstatus
        return code


@pytest.fixture
async def proxy(client: Client) -> AsyncIterator[Link]:
    """A proxy before the front end."""
    proxy = Link(port_of(client))
    await proxy.start()
    yield proxy
    await proxy.close()


@once
async def test_a_conversation_on_a_terminal(client: Client, stack: Stack) -> None:
    """Markdown, thoughts, tools, a function's result, consent, a stop: each is seen and can be answered."""
    terminal = Terminal(client.base_url, stack.key, "--session", "talk", "--agent", "demo")
    await terminal.see(PROMPT)
    terminal.type("a **bold** word")
    answered = await terminal.see(PROMPT)
    assert re.search(r"You said: a bold word.*\d\.\d s · \d+ in, \d+ out", answered, re.DOTALL), answered
    terminal.type("/think")
    assert "Let me think about that for a moment." in await terminal.see(PROMPT)
    terminal.type("/tool add 1 2")
    assert re.search(r"add\(a=1, b=2\).*↳ 3.*The result is 3\.", await terminal.see(PROMPT), re.DOTALL)
    terminal.type('/call weather {"city": "Bern"}')
    await terminal.see(re.escape('The agent calls weather(city="Bern"). Result (JSON or text):'))
    terminal.type('{"t": 21}')
    assert 'The result is {"t":21}.' in await terminal.see(PROMPT)
    terminal.type("/approve")
    await terminal.see(r'Allow delete_everything\(what="everything"\)\?')
    terminal.type("not on a Friday")
    assert re.search(r"refused.*not on a Friday\.", await terminal.see(PROMPT), re.DOTALL)
    terminal.type("/tokens 1000 20")
    await terminal.see("tok12 ")
    terminal.interrupt()
    assert re.search(r"stopping the turn.*stopped", await terminal.see(PROMPT), re.DOTALL)
    terminal.type("/fail no luck")
    assert "failed: no luck" in await terminal.see(PROMPT)
    assert await terminal.leave() == 0
    assert "turnstream chat --session talk" in terminal.seen


@once
async def test_a_line_is_edited_recalled_and_pasted(
    client: Client, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow keys move and recall, also in the next conversation; a paste of several lines is one turn."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    terminal = Terminal(client.base_url, stack.key, "--session", "edited")
    await terminal.see(PROMPT)
    terminal.type("second\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x1b[Dfirst ")
    assert "You said: first second" in await terminal.see(PROMPT)
    terminal.type("\x1b[A")
    assert "You said: first second" in await terminal.see(PROMPT)
    terminal.type("\x1b[200~line one\nline two\nline three\x1b[201~")
    await terminal.see(PROMPT)
    assert await terminal.leave() == 0
    again = Terminal(client.base_url, stack.key, "--session", "edited")
    await again.see(PROMPT)
    again.type("\x1b[A")
    assert "You said: line one line two line three" in await again.see(PROMPT)
    assert await again.leave() == 0
    said = [
        json.loads(entry.event)["content"][0]["text"]
        for entry in await stack.entries("edited")
        if entry.event.startswith(b'{"object":"message"') and b'"role":"user"' in entry.event
    ]
    assert said == ["first second", "first second", *["line one\nline two\nline three"] * 2]
    assert (tmp_path / "turnstream" / "history").stat().st_mode & 0o077 == 0


@once
async def test_commands_of_the_terminal_itself(
    client: Client, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help, a new session, the list of sessions, one of them again, attachments, and the agent's own `/` commands as ever."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "note.txt").write_text("buy milk")
    (tmp_path / "dot.png").write_bytes(b"\x89PNG")
    (tmp_path / "zip.bin").write_bytes(b"\xff\xfe")
    terminal = Terminal(client.base_url, stack.key, "--session", "first")
    await terminal.see(PROMPT)
    terminal.type("/help")
    assert re.search(r"/new +a new session.*/attach FILE.*/quit", await terminal.see(PROMPT), re.DOTALL)
    terminal.type("/sessions")
    assert "no session was talked to from here yet" in await terminal.see(PROMPT)
    terminal.type("my first words")
    await terminal.see(PROMPT)
    terminal.type("/new")
    (other,) = re.findall(r"session ([0-9a-f]{32})", await terminal.see(PROMPT))
    terminal.type("/tool add 1 2")
    assert "The result is 3." in await terminal.see(PROMPT)
    terminal.type("//new is not for you")
    assert "The result" not in await terminal.see(PROMPT)
    terminal.type("/sessions")
    listed = await terminal.see(PROMPT)
    assert re.search(rf"\* +1 .* {other}  /tool add 1 2.*  2 .* first  my first words", listed, re.DOTALL)
    terminal.type("/session 2")
    assert "session first" in await terminal.see(PROMPT)
    terminal.type("/session ../x")
    assert "which one?" in await terminal.see(PROMPT)

    for name, noted in (
        ("note.txt", "attached note.txt"),
        ("dot.png", "attached dot.png"),
        ("zip.bin", "neither an image"),
        ("no", "No such file"),
    ):
        terminal.type(f"/attach {tmp_path / name}")
        # Lines are wrapped, wherever the name ends.
        assert noted.replace(" ", "") in re.sub(r"\s", "", await terminal.see(PROMPT))
    terminal.type("see this")
    await terminal.see(PROMPT)
    terminal.type("/quit")
    assert await terminal.left() == 0
    assert "turnstream chat --session first" in terminal.seen
    said = [
        json.loads(entry.event)["content"]
        for entry in await stack.entries("first")
        if entry.event.startswith(b'{"object":"message"') and b'"role":"user"' in entry.event
    ]
    assert [part.get("text") or part["image_url"] for part in said[-1]] == [
        "see this", "note.txt:\nbuy milk", "data:image/png;base64,iVBORw==",
    ]  # fmt: skip
    assert [each[0]["text"] for each in said[:-1]] == ["my first words"]
    assert (tmp_path / "turnstream" / "sessions").stat().st_mode & 0o077 == 0


@once
async def test_a_lost_connection_is_noted_and_mended(stack: Stack, proxy: Link) -> None:
    """The connection is cut in mid-answer: the user sees that, and the whole answer."""
    terminal = Terminal(proxy.url, stack.key)
    await terminal.see(PROMPT)
    terminal.type("/tokens 60 20")
    await terminal.see("tok10 ")
    proxy.cut_all()
    seen = await terminal.see(PROMPT)
    assert re.search(r"The connection broke; trying again.*connected again", seen, re.DOTALL)
    assert "tok59" in seen
    assert await terminal.leave() == 0


@once
async def test_a_second_interrupt_leaves(client: Client, stack: Stack, proxy: Link) -> None:
    """Even when the server cannot be reached to stop the turn."""
    terminal = Terminal(proxy.url, stack.key)
    await terminal.see(PROMPT)
    terminal.type("/tokens 1000 20")
    await terminal.see("tok3 ")
    proxy.upstream = 1
    proxy.cut_all()
    terminal.interrupt()
    await terminal.see("Ctrl-C again to leave")
    terminal.interrupt()
    await terminal.see("left before the turn was stopped: it may go on")
    assert await terminal.left() == 130


@once
async def test_an_interrupt_at_the_first_prompt_leaves(client: Client, stack: Stack) -> None:
    """Nothing runs: it is like Ctrl-D."""
    terminal = Terminal(client.base_url, stack.key)
    await terminal.see(PROMPT)
    terminal.interrupt()
    assert await terminal.left() == 0
    assert "Traceback" not in terminal.seen


@once
async def test_a_stop_that_is_not_heard_is_told(client: Client, stack: Stack, proxy: Link) -> None:
    """When the server cannot be reached for a while, the user knows that the turn goes on; then it is followed again."""
    terminal = Terminal(proxy.url, stack.key)
    await terminal.see(PROMPT)
    terminal.type("/tokens 100000 5")
    await terminal.see("tok3 ")
    upstream, proxy.upstream = proxy.upstream, 1
    proxy.cut_all()
    terminal.interrupt()
    await terminal.see("the turn could not be stopped and may go on: no answer within 5 s")
    proxy.upstream = upstream
    await terminal.see("connected again")
    terminal.interrupt()
    assert await terminal.left() == 130


@once
async def test_hostile_text_moves_no_cursor(client: Client, stack: Stack) -> None:
    """What an agent says cannot set the window's title, clear the screen or hide in bidirectional marks."""
    hostile = "x\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e!"
    terminal = Terminal(client.base_url, stack.key, hostile)
    assert await terminal.left() == 0
    assert "You said: x]0;pwned[2J31m!" in terminal.seen
    assert "\x1b]0;" not in terminal.seen
    assert "\x1b[2J" not in terminal.seen


async def run(client: Client, key: str, *arguments: str, given: str = "") -> tuple[int, str, str]:
    """The command in a pipe: exit code, output, errors."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "turnstream", "chat", "--url", client.base_url, *arguments],
        env={**os.environ, "TURNSTREAM_KEY": key},
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@once
async def test_in_a_pipe_the_answer_is_all_there_is(client: Client, stack: Stack) -> None:
    """Plain text on standard output, notes on standard error; each line that comes in is a turn."""
    assert await run(client, stack.key, "/think") == (0, "I thought about it: it is fine.\n", "")
    code, out, notes = await run(client, stack.key, given="/tool add 1 2\n\nhello\n")
    assert (code, out) == (0, "The result is 3.\nYou said: hello\n")
    assert notes == "⚙ add(a=1, b=2)\n↳ 3\n"


@once
async def test_in_a_pipe_failures_are_told_by_the_exit_code(client: Client, stack: Stack) -> None:
    """A turn that fails, or that waits for a person, is 1; what was asked for wrongly is 2, and said."""
    failed, parked, stranger, mistaken = await asyncio.gather(
        run(client, stack.key, "/fail no luck"),
        run(client, stack.key, "/call weather {}", "--session", "s"),
        run(client, "sk-00000000000000000000000000000000", "hi"),
        run(client, stack.key, "hi", "--agent", "other"),
    )
    assert failed == (1, "", "✕ failed: no luck\n")
    assert (parked[0], stranger[0], mistaken[0]) == (1, 3, 2)
    assert "'weather' waits for a person" in parked[2]
    assert "not known here" in stranger[2]
    assert "sk-0000" not in stranger[2]
    assert "speaks to the agent 'demo', not to 'other'" in mistaken[2]
    assert [await stack.status("s", task) for task in {each.task for each in await stack.entries("s")}] == [
        "canceled"
    ]


@pytest.mark.parametrize(
    ("text", "settled"),
    [
        ("one\n\ntwo", "one\n\n"),
        ("one\ntwo", ""),
        ("a\n\n```\ncode\n\nmore", "a\n\n"),
        ("```\ncode\n\n```\n\nafter", "```\ncode\n\n```\n\n"),
        ("~~~\n```\n\n~~~\n\nz", "~~~\n```\n\n~~~\n\n"),
    ],
)
def test_only_whole_paragraphs_are_settled(text: str, settled: str) -> None:
    """An empty line settles what is before it, unless it stands within a block of code."""
    assert settle(text) == (settled, text[len(settled) :])
