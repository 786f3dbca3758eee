"""The events of an Agent API stream as the rules see them: one spelling for both editions, message by message."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from tests.conformance.capture import ENDS, Capture, Frame, Json

ROLES = frozenset({"assistant", "user", "system", "tool"})
TYPES = {
    "MESSAGE": "message",
    "FUNCTION_CALL": "function_call",
    "FUNCTION_CALL_OUTPUT": "function_call_output",
    "PLUGIN_CALL": "plugin_call",
    "PLUGIN_CALL_OUTPUT": "plugin_call_output",
    "COMPONENT_CALL": "component_call",
    "COMPONENT_CALL_OUTPUT": "component_call_output",
    "MCP_LIST_TOOLS": "mcp_list_tools",
    "MCP_APPROVAL_REQUEST": "mcp_approval_request",
    "MCP_TOOL_CALL": "mcp_call",
    "MCP_TOOL_CALL_OUTPUT": "mcp_call_output",
    "MCP_APPROVAL_RESPONSE": "mcp_approval_response",
    "REASONING": "reasoning",
}
CONTENT_TYPES = frozenset({"text", "data", "image", "audio", "file", "refusal", "video"})
STATUSES = {
    "response": frozenset({"queued", "created", "in_progress", "completed", "failed", "canceled"}),
    "message": frozenset({"created", "in_progress", "completed", "incomplete"}),
    "content": frozenset({"in_progress", "completed", "incomplete"}),
}
CLOSED = frozenset({"completed", "incomplete"})

CAMEL = {
    "sequenceNumber": "sequence_number",
    "msgId": "msg_id",
    "createdAt": "created_at",
    "completedAt": "completed_at",
    "sessionId": "session_id",
    "userId": "user_id",
    "imageUrl": "image_url",
    "videoUrl": "video_url",
    "fileUrl": "file_url",
    "fileId": "file_id",
    "fileData": "file_data",
}


def plain(event: Json) -> Json:
    """An event of either edition in the spelling of the newest one; times stay as they are."""
    said = {CAMEL.get(key, key): value for key, value in event.items()}
    if said.get("object") == "message":
        said["type"] = TYPES.get(str(said.get("type")), said.get("type"))
    for nested in ("content", "output"):
        if isinstance(said.get(nested), list):
            said[nested] = [plain(each) if isinstance(each, dict) else each for each in said[nested]]
    return said


def without_place(event: Json) -> Json:
    """An event without its number: what a message or a part is, wherever it stands."""
    return {key: value for key, value in event.items() if key != "sequence_number"}


@dataclass
class Message:
    """What the stream told about one message."""

    events: list[Json] = field(default_factory=list)
    contents: list[Json] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    @property
    def seen_whole(self) -> bool:
        """Whether its beginning was told."""
        return bool(self.steps) and self.steps[0] == "created"

    @property
    def last(self) -> Json:
        """Its newest message event."""
        return self.events[-1] if self.events else {}

    @property
    def closed(self) -> bool:
        """Whether its end was told."""
        return self.last.get("status") in CLOSED


class Turn:
    """One response: its events in one spelling, and what they tell about each message."""

    def __init__(self, frames: tuple[Frame, ...]) -> None:
        self.events = [plain(frame.json) for frame in frames]
        self.responses = [event for event in self.events if event.get("object") == "response"]
        self.messages: dict[str, Message] = {}
        for event in self.events:
            if event.get("object") == "message":
                message = self.messages.setdefault(str(event.get("id")), Message())
                message.events.append(event)
                message.steps.append(str(event.get("status")))
            elif event.get("object") == "content":
                message = self.messages.setdefault(str(event.get("msg_id")), Message())
                message.contents.append(event)
                message.steps.append("content")

    @property
    def terminal(self) -> Json:
        """The terminal event; empty before it has come."""
        return next((event for event in self.responses if event.get("status") in ENDS), {})


@lru_cache(maxsize=1)
def turns_of(capture: Capture) -> tuple[tuple[Turn, bool], ...]:
    """Each turn, and whether its beginning was told. All rules look at one capture, one after the other."""
    return tuple(
        (Turn(frames), not (capture.resumed and number == 0)) for number, frames in enumerate(capture.turns)
    )


def parts_of(message: Json) -> list[Json]:
    """A message's parts."""
    content = message.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def data_of(message: Json) -> Json:
    """The data of a tool message's part."""
    parts = parts_of(message)
    data = parts[0].get("data") if parts else None
    return data if isinstance(data, dict) else {}
