"""Tool calls, their results, dispatches and critics, as a LiteAgent client is told them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import orjson

from turnstream.api.protocols.liteagent.envelope import (
    Json,
    Said,
    completions_of,
    content_of,
    speaker,
    task_status,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnstream.shared.session.entry import Entry

# The name of the component whose output is a critic's verdict.
_REFLECTION = "reflection"
_IMAGES = ("image", "imageUrl")


class _Step(NamedTuple):
    """A completed message of a tool: its entry, the data of its parts, and the answer that it ends."""

    entry: Entry
    datas: list[Json]
    completions: Json | None


def told(entry: Entry, event: Json, extra: Json) -> list[Said]:
    """What a completed message of a tool tells; nothing for the kinds that these clients have no word for.

    The first call of one model answer is announced by ``toolsStart``, its last result by ``toolsDone``.
    """
    tell = _TELLERS.get(entry.kind)
    if tell is None or event.get("status") != "completed":
        return []
    datas = [part["data"] for part in content_of(event) if isinstance(part.get("data"), dict)]
    said = tell(_Step(entry, datas, completions_of(extra)))
    group = extra.get("group")
    if said and group:
        calls = {"functionCallIdList": group.get("ids") or []}
        if group.get("first"):
            said.insert(0, task_status(entry, "toolsStart", calls))
        if group.get("last"):
            said.append(task_status(entry, "toolsDone", calls))
    return said


def _called(step: _Step) -> list[Said]:
    calls = [_call(data) for data in step.datas]
    role = speaker(step.entry, "assistant")
    return [Said(role, "agent", "toolCalls", calls, step.completions)] if calls else []


def _called_client(step: _Step) -> list[Said]:
    return _called(step) + _asked_client(step)


def _asked_client(step: _Step) -> list[Said]:
    role = speaker(step.entry, "agent")
    return [Said(role, "client", "functionCall", _call(data), event=b"functionCall") for data in step.datas]


def _returned(step: _Step) -> list[Said]:
    return [Said("tool", "agent", "toolReturn", _result(data)) for data in step.datas]


def _dispatched(step: _Step) -> list[Said]:
    return [
        Said("subagent", "agent", "dispatch", _dispatch(data), step.completions)
        for data in step.datas
        if data.get("name") != _REFLECTION
    ]


def _answered(step: _Step) -> list[Said]:
    return [
        Said("reflection", "agent", "reflection", _verdict(data.get("output", data)))
        if data.get("name") == _REFLECTION
        else Said("subagent", "agent", "dispatch", _dispatch(data))
        for data in step.datas
    ]


_TELLERS: dict[str, Callable[[_Step], list[Said]]] = {
    "plugin_call": _called,
    "mcp_call": _called,
    "function_call": _called_client,
    "mcp_approval_request": _asked_client,
    "plugin_call_output": _returned,
    "mcp_call_output": _returned,
    "function_call_output": _returned,
    "component_call": _dispatched,
    "component_call_output": _answered,
}


def _id(data: Json) -> str:
    return _string(data.get("call_id") or data.get("id"))


def _call(data: Json) -> Json:
    """A call. Its arguments stand under both names: some clients read one, some the other."""
    arguments = data.get("arguments")
    given = _object(arguments, "value") if arguments else {}
    return {"id": _id(data), "name": _string(data.get("name")), "arguments": given, "parameters": given}


def _result(data: Json) -> Json:
    output, error = data.get("output"), data.get("error")
    result = {"error": error} if output is None and error else _object(output, "result")
    return {"id": _id(data), "result": result}


def _object(value: object, key: str) -> object:
    """The value as a JSON object, which is all that clients take: as it is, or under a key of its own.

    A string that holds JSON is spliced in as written: to parse and write it again would cost numbers
    their precision, and fail where it is nested deeper than can be written.
    """
    if isinstance(value, str):
        try:
            parsed = orjson.loads(value)
        except orjson.JSONDecodeError:
            return {key: value}
        # Line ends can only stand between the tokens, where a space is the same.
        written = orjson.Fragment(value.replace("\r", " ").replace("\n", " "))
        return written if isinstance(parsed, dict) else {key: written}
    return value if isinstance(value, dict) else {key: value}


def _dispatch(data: Json) -> Json:
    return {
        "dispatchId": _string(data.get("dispatchId")),
        "agentId": _string(data.get("agentId")),
        "name": _string(data.get("name")),
        "content": _items(data.get("content")),
    }


def _verdict(output: object) -> Json:
    """A critic's verdict, with every field of the type that strict clients want."""
    verdict = _fields(output)
    score = _fields(verdict.get("messageScore"))
    content = _items(score.get("contentList") or score.get("content"))
    listed = score.get("reflectScoreList")
    scores = [_fields(one) for one in listed] if isinstance(listed, list) else []
    return {
        "isPass": _string(verdict.get("isPass")).lower() == "true",
        "agentId": _string(verdict.get("agentId")),
        "name": _string(verdict.get("name")),
        "messageScore": {
            "content": content,
            "contentList": content,
            "messageType": _string(score.get("messageType")) or "text",
            "message": _string(score.get("message")),
            "reflectScoreList": [
                {"score": _integer(one.get("score"), 0), "description": _string(one.get("description"))}
                for one in scores
            ],
        },
        "passScore": _integer(verdict.get("passScore"), 8),
        "count": _integer(verdict.get("count"), 1),
        "maxCount": _integer(verdict.get("maxCount"), 10),
    }


def _items(content: object) -> list[dict[str, str]]:
    """A content list, whichever way its author spelled the items."""
    items = content if isinstance(content, list) else [content] if content else []
    return [_item(item) for item in items]


def _item(item: object) -> dict[str, str]:
    if not isinstance(item, dict):
        return {"type": "text", "message": _string(item)}
    kind = "imageUrl" if item.get("type") in _IMAGES else "text"
    value = next((item[key] for key in ("message", "text", "image_url") if item.get(key)), None)
    return {"type": kind, "message": _string(value)}


def _fields(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _string(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _integer(value: object, default: int) -> int:
    """The value as an int of 32 bits, which is what strict clients read; else the default."""
    if not isinstance(value, int | float | str):
        return default
    try:
        number = int(value)
    except ValueError:
        return default
    return number if abs(number) < 2**31 else default
