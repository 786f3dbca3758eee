"""What the tests of A2A share: the agent that is published, messages, and what is held against the specification's types."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import orjson
from a2a.types import SendMessageRequest, StreamResponse
from google.api import field_behavior_pb2
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message as Proto

from turnstream.shared.agents import config
from turnstream.shared.agents.config import A2aCard, Agents

if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION = {"A2A-Version": "1.0"}
ENDED = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED")

# A method, and how the other binding has it.
BY_HTTP = {
    "GetTask": ("GET", "/tasks/{id}"),
    "CancelTask": ("POST", "/tasks/{id}:cancel"),
    "SubscribeToTask": ("POST", "/tasks/{id}:subscribe"),
    "CreateTaskPushNotificationConfig": ("POST", "/tasks/{taskId}/pushNotificationConfigs"),
    "GetTaskPushNotificationConfig": ("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
    "ListTaskPushNotificationConfigs": ("GET", "/tasks/{taskId}/pushNotificationConfigs"),
    "DeleteTaskPushNotificationConfig": ("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
    "ListTasks": ("GET", "/tasks"),
    "SendMessage": ("POST", "/message:send"),
    "SendStreamingMessage": ("POST", "/message:stream"),
    "GetExtendedAgentCard": ("GET", "/extendedAgentCard"),
}


def published(**card: Any) -> Agents:
    """The built-in agents, of which the demo agent is published."""
    agents = config.load(None)
    specs = {spec.name: spec for spec in agents}
    specs["demo"] = specs["demo"].model_copy(update={"a2a": A2aCard(**card)})
    return Agents(specs)


def said(
    text: str = "", *, data: Any = None, name: str = "", configuration: Any = None, **more: Any
) -> dict[str, Any]:
    """A request's body: a message of some text, or of data."""
    parts: list[dict[str, Any]] = [{"text": text}] if text else []
    parts += [{"data": each} for each in ([data] if data is not None else [])]
    message = {"messageId": name or uuid.uuid4().hex, "role": "ROLE_USER", "parts": parts, **more}
    return {"message": message} | ({"configuration": configuration} if configuration else {})


def request(text: str = "", *, data: Any = None, **more: Any) -> SendMessageRequest:
    """The same for the real client."""
    made = SendMessageRequest()
    ParseDict(said(text, data=data, **more), made)
    return made


def strictly(document: dict[str, Any], kind: Proto) -> Any:
    """A document as the specification's type; every field is known, and all that are required are there."""
    made = ParseDict(document, kind)
    _check_required(made)
    return made


def _check_required(message: Any) -> None:
    for descriptor in message.DESCRIPTOR.fields:
        required = (
            field_behavior_pb2.REQUIRED
            in descriptor.GetOptions().Extensions[field_behavior_pb2.field_behavior]
        )
        value = getattr(message, descriptor.name)
        if required and (
            descriptor.is_repeated or descriptor.has_presence or descriptor.type == descriptor.TYPE_STRING
        ):
            assert value or message.HasField(descriptor.name), f"{message.DESCRIPTOR.name}.{descriptor.name}"
        if required and descriptor.enum_type is not None:
            assert value, f"{message.DESCRIPTOR.name}.{descriptor.name}"
        if descriptor.message_type is None or descriptor.message_type.file.package.startswith("google"):
            continue
        if descriptor.message_type.GetOptions().map_entry:
            continue
        for each in value if descriptor.is_repeated else [value] if message.HasField(descriptor.name) else []:
            _check_required(each)


class Seen:
    """What a client makes of a stream: the task, as each event changes it."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.states: list[str] = []
        self.texts: dict[str, str] = {}
        self.task: dict[str, Any] = {}
        self.status: dict[str, Any] = {}

    @property
    def text(self) -> str:
        """All that the agent says."""
        return "".join(self.texts.values())

    def take(self, event: dict[str, Any]) -> None:
        """One event, which fits the specification's type."""
        strictly(event, StreamResponse())
        assert ("task" in event) is (not self.events), "the task comes first, and once"
        self.events.append(event)
        ((kind, said),) = event.items()
        if kind == "task":
            self.task = said
            self.texts = {each["artifactId"]: words(each["parts"]) for each in said.get("artifacts", [])}
        elif kind == "artifactUpdate":
            artifact = said["artifact"]
            before = self.texts[artifact["artifactId"]] if said.get("append") else ""
            self.texts[artifact["artifactId"]] = before + words(artifact["parts"])
        if "status" in said:
            self.status = said["status"]
            self.states.append(said["status"]["state"])


def words(parts: Iterable[dict[str, Any]]) -> str:
    """What parts say."""
    return "".join(each.get("text", "") for each in parts)


def frames_of(raw: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The cursors and events of a stream, or of a part of one that ends with a frame."""
    *frames, rest = raw.split(b"\n\n")
    assert rest == b"", raw[-300:]
    read = []
    for frame in frames:
        if frame.startswith(b":"):
            continue
        *names, data = frame.split(b"\n")
        cursor = names[0].removeprefix(b"id: ").decode() if names else ""
        event = orjson.loads(data.removeprefix(b"data: "))
        read.append((cursor, event.get("result", event)))
    return read


def seen_in(raw: bytes) -> Seen:
    """What a whole stream shows."""
    seen = Seen()
    for _, event in frames_of(raw):
        seen.take(event)
    return seen
