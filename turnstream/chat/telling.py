"""A turn's events as something to show: speech, and one line for everything else."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Protocol

from turnstream.client.speech import Speech, Voice
from turnstream.shared.protocol import (
    DataContent,
    ImageContent,
    Message,
    MessageType,
    RefusalContent,
    RunStatus,
)

if TYPE_CHECKING:
    from turnstream.client import TurnEvent

MOST_SHOWN = 200

# What would move the cursor, set the title or ring the bell of whoever reads it; newline and tab may stay.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Display(Protocol):
    """Where a turn is shown."""

    def say(self, voice: Voice, message: str, text: str) -> None:
        """More of a message's text."""

    def close(self, message: str) -> None:
        """The message is complete."""

    def line(self, mark: str, text: str) -> None:
        """Something that happened, in a line."""


class Telling:
    """Tells one turn to a display."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._speech = Speech()

    def take(self, event: TurnEvent) -> None:
        """Tell the next event."""
        for piece in self._speech.pieces(event):
            self._display.say(piece.voice, piece.message, clean(piece.text))
        if not isinstance(event, Message) or event.status not in (RunStatus.Completed, RunStatus.Incomplete):
            return
        self._display.close(event.id)
        if event.status == RunStatus.Incomplete:
            self._display.line("✂", "cut off here")
        for part in event.content or []:
            if isinstance(part, DataContent) and part.data is not None:
                self._data(event.type, part.data)
            elif isinstance(part, ImageContent):
                self._display.line("▣", f"image: {short(part.image_url or '')}")
            elif isinstance(part, RefusalContent):
                self._display.line("✕", f"refused: {short(part.refusal or '')}")

    def _data(self, kind: str, data: dict[str, Any]) -> None:
        name = short(str(data.get("name") or data.get("server_label") or ""))
        match kind:
            case MessageType.FUNCTION_CALL | MessageType.PLUGIN_CALL | MessageType.MCP_TOOL_CALL:
                self._display.line("⚙", f"{name}({arguments(data.get('arguments'))})")
            case MessageType.FUNCTION_CALL_OUTPUT | MessageType.PLUGIN_CALL_OUTPUT:
                self._display.line("↳", short(str(data.get("output", ""))))
            case MessageType.MCP_TOOL_CALL_OUTPUT:
                self._display.line("↳", short(str(data.get("error") or data.get("output") or "")))
            case MessageType.MCP_APPROVAL_REQUEST:
                self._display.line("?", f"wants to use {name}({arguments(data.get('arguments'))})")
            case MessageType.MCP_APPROVAL_RESPONSE:
                self._display.line("↳", "approved" if data.get("approve") else "refused")
            case MessageType.MCP_LIST_TOOLS:
                self._display.line("⚙", f"{name}: {len(data.get('tools') or [])} tools")
            case MessageType.COMPONENT_CALL:
                self._display.line("→", f"asks {name}: {_parts(data.get('content'))}")
            case MessageType.COMPONENT_CALL_OUTPUT if name == "reflection":
                self._display.line("✎", _verdict(data.get("output")))
            case MessageType.COMPONENT_CALL_OUTPUT:
                self._display.line("←", f"{name} is done")
            case MessageType.MESSAGE:
                self._display.line("▤", short(json.dumps(data, ensure_ascii=False)))


def clean(text: str) -> str:
    """Text without what a terminal would obey."""
    return _CONTROLS.sub("", text)


def short(text: str) -> str:
    """One line of it, of bearable length."""
    line = " ".join(clean(text).split())
    return line if len(line) <= MOST_SHOWN else line[: MOST_SHOWN - 1] + "…"


def arguments(given: object) -> str:
    """A call's arguments as a reader of code expects them."""
    try:
        values = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        values = given
    if not isinstance(values, dict):
        return short(str(values or ""))
    return short(
        ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    )


def _parts(content: object) -> str:
    parts = content if isinstance(content, list) else []
    return short(" ".join(str(part.get("message", "")) for part in parts if isinstance(part, dict)))


def _verdict(output: object) -> str:
    said: dict[str, Any] = output if isinstance(output, dict) else {}
    score: dict[str, Any] = said.get("messageScore") or {}
    opinions = [each for each in score.get("reflectScoreList") or [] if isinstance(each, dict)]
    words = "; ".join(f"{each.get('score')}/10 {each.get('description') or ''}".strip() for each in opinions)
    return short(
        f"critics, round {said.get('count')}: {'passed' if said.get('isPass') else 'not yet'} ({words})"
    )
