"""Lists of items: what was asked in a turn or a session, and what was answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from turnstream.api.protocols.openai.response_stream import ResponseStream
from turnstream.api.turns.ids import CallId, ResponseId
from turnstream.shared.errors import BadRequest, NoTask
from turnstream.shared.protocol.answers import ANSWERS
from turnstream.shared.session.endings import numbered
from turnstream.shared.session.entry import PARKED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from starlette.requests import Request

    from turnstream.shared.session.entry import Entry

Json = dict[str, Any]

MOST_LISTED = 100


async def inputs_of(session: str, entries: AsyncIterator[Entry]) -> list[Json]:
    """What a response's client sent: its user's messages, or the answers to calls that the response begins with."""
    items: list[Json] = []
    place = 0
    async for entry in entries:
        if entry.kind == PARKED:
            # A further one begins with its own.
            if place:
                break
        elif item := _input(session, entry):
            items.append(item)
        elif items and numbered(entry.event) and entry.kind not in ANSWERS:
            break
        place += 1
    return items


def all_items(session: str, agent: str, entries: Iterable[Entry]) -> list[Json]:
    """What was asked and answered in a session, as its history has it."""
    items: list[Json] = []
    # By task, since several may speak at once.
    streams: dict[str, ResponseStream] = {}
    for entry in entries:
        stream = streams.get(entry.task)
        if stream is None or stream.over:
            stream = streams[entry.task] = ResponseStream(ResponseId(session, entry.task, 1), {}, agent)
            stream.quiet()
        if item := _input(session, entry):
            items.append(item)
            continue
        before = len(stream.output)
        stream.feed(0, entry)
        items += stream.output[before:]
    for stream in streams.values():
        # What is still being written has its text so far.
        stream.document()
    return items


def _input(session: str, entry: Entry) -> Json | None:
    if not numbered(entry.event):
        event = orjson.loads(entry.event)
        # One that is none of a user's stands there where no user said anything.
        if event.get("role") not in ("user", "system"):
            return None
        return {
            "type": "message",
            "id": event["id"],
            "status": "completed",
            "role": event["role"],
            "content": [_part(part) for part in event.get("content") or []],
        }
    if entry.kind not in ANSWERS:
        return None
    event = orjson.loads(entry.event)
    if event.get("object") != "message" or event.get("status") != "completed":
        return None
    data = event["content"][0]["data"]
    if entry.kind == "function_call_output":
        call = str(CallId(session, entry.task, data["call_id"]))
        more: Json = {"call_id": call, "output": data["output"], "status": "completed"}
    else:
        call = str(CallId(session, entry.task, data["approval_request_id"]))
        more = {"approval_request_id": call, "approve": data["approve"], "reason": data.get("reason")}
    return {"type": entry.kind, "id": event["id"], **more}


def _part(part: Json) -> Json:
    match part.get("type"):
        case "image":
            return {
                "type": "input_image",
                "detail": "auto",
                "image_url": part.get("image_url"),
                "file_id": None,
            }
        case "file":
            names = ("file_id", "file_url", "filename", "file_data")
            return {"type": "input_file", **{name: part[name] for name in names if part.get(name)}}
        case "text":
            return {"type": "input_text", "text": part.get("text") or ""}
        case kind:
            return {"type": "input_text", "text": f"({kind})"}


def listed(request: Request, items: list[Json], *, order: str) -> Json:
    """A page of a list, as the query asks for it: ``limit``, ``order``, ``after``.

    Raises:
        BadRequest: it asks for what cannot be.
        NoTask: there is no item ``after`` which.
    """
    query = request.query_params
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:4]) <= MOST_LISTED):
        raise BadRequest(f"limit: a number from 1 to {MOST_LISTED}")
    order = query.get("order", order)
    if order not in ("asc", "desc"):
        raise BadRequest("order: give 'asc' or 'desc'")
    if order == "desc":
        items.reverse()
    if after := query.get("after"):
        place = next((place for place, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise NoTask
        items = items[place + 1 :]
    page = items[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }
