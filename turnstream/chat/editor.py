"""The terminal's line editor: cursor keys, a history of what was typed, and pasted lines as one text."""

from __future__ import annotations

import asyncio
import signal

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout

from turnstream.chat.recent import state_file

PROMPT = "› "


class Editor:
    """Reads lines from the terminal.

    Enter sends, Alt+Enter begins a further line. A paste is one text, however many lines it has. What was typed is
    kept in ``$XDG_STATE_HOME/turnstream/history``, readable for its user alone; answers to an agent's questions are not.
    """

    def __init__(self) -> None:
        keys = _keys()
        self._turns: PromptSession[str] = PromptSession(history=_history(), key_bindings=keys, multiline=True)
        self._answers: PromptSession[str] = PromptSession(
            history=InMemoryHistory(), key_bindings=keys, multiline=True
        )

    async def turn(self) -> str:
        """What the user says next.

        Raises:
            EOFError: Ctrl-D on an empty line.
            KeyboardInterrupt: Ctrl-C.
        """
        with patch_stdout(raw=True):
            return await self._turns.prompt_async(PROMPT)

    async def answer(self, question: str) -> str | None:
        """The answer to a question of the running turn; None after Ctrl-D. Ctrl-C is the turn's, as without a question."""
        try:
            with patch_stdout(raw=True):
                return await self._answers.prompt_async(question, handle_sigint=False)
        except EOFError:
            return None
        except KeyboardInterrupt:
            # As a key, since the terminal is in raw mode; who waits for the signal then gives the question up.
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
            raise


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _history() -> History:
    """The file, or only this conversation's where there can be none."""
    path = state_file("history")
    return InMemoryHistory() if path is None else FileHistory(path)
