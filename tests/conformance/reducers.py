"""Clients as they are in the field: each reads a stream its own way, and rebuilds the conversation from it.

They share no code with the product, and none with the rules. A client that would die of what it is sent
raises `ClientError`; one that would lose it, loses it here too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import orjson

from tests.conformance.capture import Capture, Json

# Who said it, what it is, and what was said; for the Agent API a list of parts (or data), for LiteAgent
# the content of an envelope.
Said: TypeAlias = tuple[str, str, Any]


class ClientError(Exception):
    """The client cannot read what it was sent."""


# ── Agent API ──


def python_client(capture: Capture) -> list[Said]:
    """Reads lines as `httpx` splits them, takes those that begin with ``data: ``, and adds parts by index.

    It believes the pieces: what closes a part or a message must not be needed.
    """
    messages: dict[str, tuple[str, str, dict[int, Json]]] = {}
    for line in capture.body.decode().splitlines():
        if not line.startswith("data: "):
            continue
        event = json.loads(line[6:])
        if event["object"] == "message":
            known = messages.setdefault(event["id"], (event["role"], event["type"], {}))
            if event["status"] in ("completed", "incomplete") and not known[2]:
                known[2].update(enumerate(event["content"]))
        elif event["object"] == "content":
            parts = messages[event["msg_id"]][2]
            index = event["index"]
            if event["delta"] and index in parts:
                parts[index] = {**event, "text": parts[index]["text"] + event["text"]}
            elif index not in parts:
                parts[index] = event
    return [
        (role, kind, _parts([parts[index] for index in sorted(parts)]))
        for role, kind, parts in messages.values()
    ]


def web_page(capture: Capture) -> list[Said]:
    """Buffers up to an empty line, adds pieces to a message's last part, and lets the final output replace all."""
    messages = _web_messages(capture, outputs=True)
    return [(event["role"], event["type"], _parts(event["content"])) for event in messages]


def web_page_before_the_end(capture: Capture) -> list[Said]:
    """The page as it stands just before the final output replaces it."""
    messages = _web_messages(capture, outputs=False)
    return [(event["role"], event["type"], _parts(event["content"])) for event in messages]


def _web_messages(capture: Capture, *, outputs: bool) -> list[Json]:
    past: list[Json] = []
    shown: dict[str, Json] = {}
    for block in capture.body.decode().split("\n\n"):
        for line in block.split("\n"):
            if not line.startswith("data:"):
                continue
            event = json.loads(line[5:].strip())
            match event["object"]:
                case "response":
                    if outputs and event.get("output") is not None:
                        shown = {message["id"]: message for message in event["output"]}
                    if event["status"] in ("completed", "failed", "canceled"):
                        past += shown.values()
                        shown = {}
                case "message":
                    kept = shown.get(event["id"], {"content": []})
                    shown[event["id"]] = {**kept, **event, "content": event.get("content") or kept["content"]}
                case "content":
                    _append(shown[event["msg_id"]]["content"], event)
                case other:
                    raise ClientError(f"the page shows an error for {other!r}")
    return [*past, *shown.values()]


def _append(parts: list[Json], event: Json) -> None:
    """The page looks at its last part, not at the index: while that part is open, it grows or is replaced."""
    if parts and parts[-1]["status"] == "in_progress":
        old = parts.pop()
        if event["delta"]:
            event = {**event, "text": old["text"] + event["text"]}
    parts.append(event)


def java_edition(capture: Capture) -> list[Said]:
    """Binds camelCase fields and upper-case message types; what it does not know stays null."""
    messages: dict[str, tuple[str, str, list[Json]]] = {}
    for line in capture.body.decode().split("\n"):
        if not line.startswith("data:"):
            continue
        event = json.loads(line[5:])
        if type(event.get("sequenceNumber")) is not int:
            raise ClientError("sequenceNumber is null")
        if event["object"] == "message":
            if event["type"] not in _JAVA_TYPES:
                raise ClientError(f"no enum constant {event['type']!r}")
            known = messages.setdefault(event["id"], (event["role"], _JAVA_TYPES[event["type"]], []))
            if event.get("content"):
                known[2][:] = event["content"]
        elif event["object"] == "content":
            _append(messages[event["msgId"]][2], event)
        elif event["createdAt"] < 1_000_000_000_000:
            raise ClientError("createdAt is a date of 1970")
    return [
        (role, kind, _parts([_java_part(part) for part in parts])) for role, kind, parts in messages.values()
    ]


_JAVA_TYPES = {
    name: "mcp_call" + name[13:].lower() if name.startswith("MCP_TOOL_CALL") else name.lower()
    for name in (
        *("MESSAGE", "REASONING", "FUNCTION_CALL", "FUNCTION_CALL_OUTPUT", "PLUGIN_CALL"),
        *("PLUGIN_CALL_OUTPUT", "COMPONENT_CALL", "COMPONENT_CALL_OUTPUT", "MCP_LIST_TOOLS"),
        *("MCP_APPROVAL_REQUEST", "MCP_APPROVAL_RESPONSE", "MCP_TOOL_CALL", "MCP_TOOL_CALL_OUTPUT"),
    )
}


def _java_part(part: Json) -> Json:
    names = {"imageUrl": "image_url", "fileUrl": "file_url", "videoUrl": "video_url"}
    return {names.get(key, key): value for key, value in part.items()}


def _parts(parts: Iterable[Json]) -> list[Any]:
    """What parts say, without what is about them."""
    fields = ("text", "data", "image_url", "refusal", "file_url", "filename", "video_url", "format")
    return [{key: part[key] for key in fields if key in part} for part in parts]


def output_of(capture: Capture) -> list[Said]:
    """What the terminal responses of an Agent API stream say was said."""
    said: list[Said] = []
    for frame in capture.said:
        event = frame.json
        for message in event.get("output") or []:
            parts = [_java_part(part) for part in message["content"]]
            kind = _JAVA_TYPES[message["type"]] if capture.wire == "java" else message["type"]
            said.append((message["role"], kind, _parts(parts)))
    return said


AGENT_API_CLIENTS: dict[str, Callable[[Capture], list[Said]]] = {
    "python_client": python_client,
    "web_page": web_page,
    "web_page_before_the_end": web_page_before_the_end,
}


# ── LiteAgent ──

_JAVA_ROLES = frozenset(
    ["developer", "user", "agent", "assistant", "dispatcher", "subagent", "reflection", "tool", "client"]
)
_JAVA_CONTENTS = frozenset(
    [
        "text",
        "imageUrl",
        "contentList",
        "toolCalls",
        "dispatch",
        "reflection",
        "toolReturn",
        "functionCall",
        "taskStatus",
        "reasoningContent",
        "planning",
    ]
)


def dispatcher(capture: Capture) -> list[Said]:
    """Java and C#: line by line, by the event's name; dies of a frame without one, and of unknown enum values."""
    hearer = _Hearer("arguments")
    name = ""
    for line in capture.body.decode().splitlines():
        if line.startswith("event:"):
            name = line[6:]
        elif line.startswith("data:"):
            if name not in ("message", "chunk", "functionCall", "ping"):
                raise ClientError(f"no handler for event {name!r}")
            if name != "ping":
                body = json.loads(line[5:])
                for key, known in (("role", _JAVA_ROLES), ("to", _JAVA_ROLES), ("type", _JAVA_CONTENTS)):
                    if body[key] not in known:
                        raise ClientError(f"no enum constant {body[key]!r}")
                hearer.hear(name, body)
            name = ""
        elif line and not line.startswith("id:"):
            raise ClientError(f"a frame without an event: {line[:40]!r}")
    return hearer.said


_DART = re.compile(r"event:(\w+)\ndata:(.*?)\n\n")


def dart(capture: Capture) -> list[Said]:
    """Dart: a regular expression over each network read by itself; what is split is lost."""
    hearer = _Hearer("parameters")
    for piece in capture.reads:
        for match in _DART.finditer(piece.decode(errors="replace")):
            if match[1] != "ping":
                hearer.hear(match[1], json.loads(match[2]))
    return hearer.said


def typescript(capture: Capture) -> list[Said]:
    """TypeScript: buffers up to an empty line, trims values, and is done at the first end of its task."""
    hearer = _Hearer("arguments")
    *blocks, _ = capture.body.decode().split("\n\n")
    for block in blocks:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        if "event" in fields and fields["event"] != "ping" and "data" in fields:
            hearer.hear(fields["event"], json.loads(fields["data"]))
    return hearer.said


LITEAGENT_CLIENTS: dict[str, Callable[[Capture], list[Said]]] = {
    "dispatcher": dispatcher,
    "dart": dart,
    "typescript": typescript,
}


class _Hearer:
    """What LiteAgent clients do with a message once they have read it."""

    def __init__(self, arguments: str) -> None:
        self.said: list[Said] = []
        self._arguments = arguments
        self._pieces: dict[str, list[str]] = {}

    def hear(self, event: str, body: Json) -> None:
        """Take one envelope."""
        speaker = str(body.get("agentId", ""))
        kind = body["type"]
        if event == "chunk":
            self._pieces.setdefault(speaker, []).append(body["part"])
            return
        content = body["content"]
        if kind == "text" and content == "":
            content = "".join(self._pieces.pop(speaker, []))
        if kind == "toolCalls":
            content = [(call["id"], call["name"], call[self._arguments]) for call in content]
        elif kind == "functionCall":
            content = (content["id"], content["name"], content[self._arguments])
        if kind != "taskStatus" and content != "":
            self.said.append((body["role"], kind, content))


def history_of(capture: Capture) -> list[Said]:
    """What the history says was said."""
    hearer = _Hearer("arguments")
    for body in orjson.loads(capture.history or b"[]"):
        hearer.hear("message", {**body, "content": body["message"]})
    return hearer.said


def without_requests(said: Iterable[Said]) -> list[Said]:
    """Without what is asked of the client: the history does not keep it."""
    return [each for each in said if each[1] != "functionCall"]


# ── from one wire to the other ──


def as_liteagent(said: Iterable[Said]) -> list[Said]:
    """What an Agent API client heard, in the words of LiteAgent, as far as both have them."""
    return [each for role, kind, parts in said for each in _respoken(role, kind, parts)]


def in_common(said: Iterable[Said]) -> list[Said]:
    """What a LiteAgent client heard and an Agent API client can have heard too.

    The user's own words are not in the other stream, nor which of the agents speaks.
    """
    return [
        ("assistant" if role == "subagent" and kind != "dispatch" else role, kind, content)
        for role, kind, content in without_requests(said)
        if role != "user"
    ]


def _respoken(role: str, kind: str, parts: list[Any]) -> Iterator[Said]:
    text = "".join(part.get("text", "") for part in parts)
    data = parts[0].get("data", {}) if parts else {}
    if kind == "message":
        yield from ((role, *_named(part)) for part in parts if not part.keys() & {"text", "refusal"})
        text = "".join(part.get("text", part.get("refusal", "")) for part in parts)
        if text:
            yield role, "text", text
    elif kind == "reasoning":
        yield role, "reasoningContent", text
    elif kind in ("plugin_call", "function_call", "mcp_call"):
        yield role, "toolCalls", [(data["call_id"], data["name"], json.loads(data["arguments"]))]
    elif kind in ("plugin_call_output", "function_call_output", "mcp_call_output"):
        yield role, "toolReturn", {"id": data["call_id"], "result": _object(data["output"])}
    elif data.get("name") == "reflection":
        wanted = ("isPass", "agentId", "name", "messageScore", "passScore", "count", "maxCount")
        yield "reflection", "reflection", {key: data["output"][key] for key in wanted}
    elif kind in ("component_call", "component_call_output"):
        yield "subagent", "dispatch", data


def _named(part: Json) -> tuple[str, str]:
    """LiteAgent knows images; it is told of anything else by its link, its name, or as JSON."""
    if "image_url" in part:
        return "imageUrl", part["image_url"]
    if "format" in part:
        return "text", part["data"] if ":" in part["data"] else f"audio.{part['format']}"
    links = (part[key] for key in ("file_url", "video_url") if key in part)
    return "text", next(links, None) or json.dumps(part["data"], separators=(",", ":"))


def no_json(constant: str) -> None:
    """Python's own parser takes ``NaN`` and ``Infinity``, which are no JSON, for numbers; for `json.loads`.

    Raises:
        ValueError: always.
    """
    raise ValueError(constant)


def _object(text: str) -> Json:
    """LiteAgent knows objects only: anything else stands under ``result``."""
    try:
        value = json.loads(text, parse_constant=no_json)
    except ValueError:
        return {"result": text}
    return value if isinstance(value, dict) else {"result": value}
