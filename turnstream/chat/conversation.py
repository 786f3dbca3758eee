"""The terminal client's conversation: prompt, turn, questions, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnstream.chat.commands import Commands, QuitError
from turnstream.chat.plain import Plain
from turnstream.chat.recent import Recent
from turnstream.chat.telling import Telling, arguments, clean, short
from turnstream.client import (
    Approval,
    AsyncClient,
    Backoff,
    Call,
    ClientError,
    ConnectionLost,
    FunctionError,
    KeyRefused,
    UnansweredCall,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from turnstream.chat.editor import Editor
    from turnstream.chat.screen import Screen
    from turnstream.client import AsyncReply, AsyncSession, ConnectionNews
    from turnstream.client.session import Said

# A turn is stopped for at most so long at the end, when the server cannot be reached.
STOP_SECONDS = 5.0

# The first request is given up soon: most likely the URL is wrong, or nothing runs there yet.
FIRST_CONTACT_SECONDS = 3.0
# Tried more often for that: nobody but this user has lost anything.
FIRST_CONTACT = Backoff(first=0.5)

# Waits between tries that a user should know of; the first one is always told.
WORTH_TELLING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says.

    Attributes:
        url, key: where, and with which key.
        agent: the agent that the key must speak to; empty for any.
        session: the session to go on with; empty for a new one.
        message: one turn, then leave; None for a conversation.
    """

    url: str
    key: str
    agent: str = ""
    session: str = ""
    message: str | None = None


class LeaveError(Exception):
    """The user wants to go."""


async def chat(options: Options) -> int:
    """Chat until the user leaves; the exit code: 0, 1 when the last turn of a pipe failed, 130 after Ctrl-C.

    Raises:
        ClientError: the key is refused, or nobody answers.
        ValueError: the URL, the key or the session cannot be one.
    """
    if sys.stdout.isatty() and sys.stdin.isatty():
        from turnstream.chat.editor import Editor
        from turnstream.chat.screen import Screen

        with Screen() as screen:
            return await _Talk(options, screen, Editor()).run()
    return await _Talk(options).run()


class _Talk:
    """One conversation."""

    def __init__(self, options: Options, screen: Screen | None = None, editor: Editor | None = None) -> None:
        """With a screen and an editor a person sits there; without them it is a pipe."""
        self._options = options
        self._screen = screen
        self._editor = editor
        self._display: Screen | Plain = screen or Plain()
        self._asking = asyncio.Lock()
        self._failed = False
        self._began = 0.0
        self._stopped = False

    async def run(self) -> int:
        """Talk to the end."""
        options = self._options
        async with AsyncClient(
            options.url,
            options.key,
            patience=FIRST_CONTACT_SECONDS,
            backoff=FIRST_CONTACT,
            on_connection=lambda _: None,
        ) as first:
            identity = await first.identity()
        async with AsyncClient(options.url, options.key, on_connection=self._connection) as client:
            if "chat" not in identity.scopes:
                raise ValueError(
                    "the key is for operators only: chat with one of scope chat (turnstream keys create)"
                )
            if options.agent and identity.agent != options.agent:
                raise ValueError(
                    f"the key speaks to the agent {identity.agent!r}, not to {options.agent!r}: a key selects its "
                    f"agent, so make one with `turnstream keys create --owner … --agent {options.agent}`"
                )
            if self._screen is not None:
                client.other_functions(self._ask_result)
                client.approval(self._ask_consent)
            session = client.session(options.session or None)
            if self._screen is None or options.message is not None:
                return await self._talk(session)
            screen = self._screen
            screen.note(
                f"{identity.agent} · session {session.id} · Ctrl-C stops a turn, Ctrl-D leaves, /help", "dim"
            )
            commands = Commands(
                client, session, Recent(options.url, identity.agent), lambda line: screen.note(line, "dim")
            )
            with suppress(QuitError):
                if await self._talk(session, commands) == 130:
                    return 130
            screen.note(f"To go on: turnstream chat --session {commands.session.id}", "dim")
        return 0

    async def _talk(self, session: AsyncSession, commands: Commands | None = None) -> int:
        """Turn by turn, until the user leaves; the exit code.

        Raises:
            QuitError: by a command.
        """
        try:
            async for line in self._said():
                said = line if commands is None else commands.take(line)
                if said is not None:
                    await self._turn(session if commands is None else commands.session, said)
        except LeaveError:
            return 130
        return 1 if self._failed else 0

    async def _said(self) -> AsyncIterator[str]:
        """What the user says, turn by turn."""
        if self._options.message is not None:
            yield self._options.message
            return
        while True:
            if self._editor is None:
                line = await asyncio.to_thread(sys.stdin.readline)
                if not line:
                    return
            else:
                try:
                    line = await self._editor.turn()
                except (EOFError, KeyboardInterrupt):
                    return
            if line.strip():
                yield line.strip()

    async def _turn(self, session: AsyncSession, said: Said) -> None:
        reply = session.chat(said)
        telling = Telling(self._display)
        self._began = time.monotonic()
        self._display.begin()
        try:
            with _interrupts() as interrupts:
                shown = asyncio.create_task(self._show(reply, telling))
                try:
                    await self._until_done(shown, interrupts, reply)
                finally:
                    shown.cancel()
                    await asyncio.gather(shown, return_exceptions=True)
                    await reply.close()
        finally:
            self._display.end()

    async def _until_done(
        self, shown: asyncio.Task[None], interrupts: asyncio.Queue[None], reply: AsyncReply
    ) -> None:
        """Wait for the turn's end; the first Ctrl-C stops the turn, the second one leaves."""
        stopping: asyncio.Task[bool] | None = None
        pressed = asyncio.create_task(interrupts.get())
        try:
            while True:
                await asyncio.wait({shown, pressed}, return_when=asyncio.FIRST_COMPLETED)
                if shown.done():
                    await self._outcome(shown, reply)
                    return
                if stopping is not None:
                    if not stopping.done():
                        self._note("left before the turn was stopped: it may go on", "yellow")
                    raise LeaveError
                self._note("stopping the turn; Ctrl-C again to leave", "yellow")
                stopping = asyncio.create_task(self._stop(reply))
                pressed = asyncio.create_task(interrupts.get())
        finally:
            for task in (pressed, stopping):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    async def _show(self, reply: AsyncReply, telling: Telling) -> None:
        """Show everything, and have somebody answer calls; in a pipe nobody can."""
        async for event in reply:
            telling.take(event)
            if self._screen is None and reply.open_calls:
                call = reply.open_calls[0]
                self._stopped = await self._stop(reply)
                raise UnansweredCall(call.name, approval=isinstance(call, Approval))

    async def _outcome(self, shown: asyncio.Task[None], reply: AsyncReply) -> None:
        self._failed = True
        try:
            shown.result()
        except UnansweredCall as error:
            what = f"{short(error.name)!r} waits for a person, and this is a pipe"
            self._note(f"{what}: the turn was stopped" if self._stopped else what, "red")
            return
        except KeyRefused:
            raise
        except ClientError as error:
            self._note(clean(str(error)), "red")
            return
        response = await reply.finished()
        if response.status == "canceled":
            self._note("■ stopped", "yellow")
        elif response.status != "completed":
            error_ = response.error
            self._note(f"✕ failed: {clean(error_.message) if error_ else response.status}", "red")
        else:
            self._failed = False
        if self._screen is not None:
            self._note(_spent(time.monotonic() - self._began, response.usage or {}), "dim")

    async def _stop(self, reply: AsyncReply) -> bool:
        """Stop the turn; whether that was heard. If not, it is told."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await reply.stop()
        except TimeoutError:
            why = f"no answer within {STOP_SECONDS:g} s"
        except ClientError as error:
            why = clean(str(error))
        else:
            return True
        self._note(f"the turn could not be stopped and may go on: {why}", "red")
        return False

    # ── questions ──

    async def _ask_result(self, call: Call) -> Any:
        """The result of a function that the agent calls: JSON, or any text."""
        question = f"The agent calls {short(call.name)}({arguments(call.arguments)}). Result (JSON or text): "
        text = await self._ask(question)
        if text is None:
            raise FunctionError("The user gave no result.")
        try:
            return json.loads(text)
        except ValueError:
            return text

    async def _ask_consent(self, approval: Approval) -> Any:
        """Consent to a tool."""
        question = (
            f"Allow {short(approval.name)}({arguments(approval.arguments)})? [y/n, or a reason for no]: "
        )
        text = await self._ask(question)
        match (text or "").strip().lower():
            case "y" | "yes":
                return True
            case "" | "n" | "no":
                return False
        return False, (text or "").strip()

    async def _ask(self, question: str) -> str | None:
        """A line from the terminal, one question at a time; None at its end."""
        async with self._asking:
            if self._screen is None or self._editor is None:
                return None
            self._screen.give_terminal()
            try:
                return await self._editor.answer(question)
            finally:
                self._screen.take_terminal()

    # ── notes ──

    def _connection(self, news: ConnectionNews) -> None:
        if isinstance(news, ConnectionLost):
            if news.tries == 1 or news.retry_in >= WORTH_TELLING_SECONDS:
                self._note(f"⟳ {clean(news.reason)}; trying again in {news.retry_in:.1f} s", "yellow")
        else:
            self._note(f"⟳ connected again after {news.seconds:.1f} s", "green")

    def _note(self, text: str, style: str) -> None:
        if self._screen is not None:
            self._screen.note(text, style)
        else:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def _spent(seconds: float, usage: dict[str, Any]) -> str:
    """What a turn took: time, and tokens and cost as far as they are known."""
    minutes, rest = divmod(round(seconds), 60)
    told = [f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"]
    tokens = [usage.get(f"{way}_tokens") or 0 for way in ("input", "output")]
    if any(tokens):
        told.append("{:,} in, {:,} out".format(*tokens))
    if (cost := usage.get("cost_usd")) is not None:
        told.append(f"${cost:.4f}")
    return " · ".join(told)


@contextmanager
def _interrupts() -> Iterator[asyncio.Queue[None]]:
    """Ctrl-C as something to wait for."""
    queue: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, queue.put_nowait, None)
    try:
        yield queue
    finally:
        loop.remove_signal_handler(signal.SIGINT)
