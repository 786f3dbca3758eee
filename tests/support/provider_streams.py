"""Generated streams of OpenAI-compatible providers: what they say, how it is written, and how it comes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import strategies as st

# Tags in one piece and in several, white space alone, two bytes and four to a character, what JSON escapes.
_PIECES = (
    "a", "b ", " c", " ", "\n", "\n\n", "<think>", "</think>", "<", "th", "think>", "é", "😀", '"', "\\", "\u2028", "{", "x" * 40,
    # A mark of a chat template that the library has hidden, and pieces of it.
    "<\u200d|im_start|>", "<\u200d", "|im_", "start|>",
)  # fmt: skip
PIECES = st.one_of(st.sampled_from(_PIECES), st.sampled_from(_PIECES), st.text(max_size=4))

_ENDS = ("\n", "\n", "\n", "\r\n", "\r")

SOMETIMES = st.sampled_from((False, False, False, True))


@dataclass(frozen=True)
class Sent:
    """A body as it comes.

    Attributes:
        parts: the bytes of each read.
        broken: the connection breaks after them.
    """

    parts: tuple[bytes, ...]
    broken: bool


# ── chat completions ──


@st.composite
def _chat_delta(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(
        st.sampled_from(
            ("content",) * 6 + ("reasoning_content",) * 3 + ("tool",) * 3 + ("reasoning", "both", "odd")
        )
    )
    text = draw(PIECES)
    role = {"role": "assistant"} if draw(SOMETIMES) else {}
    match kind:
        case "tool":
            return {**role, "tool_calls": draw(st.lists(_fragment(), min_size=1, max_size=2))}
        case "both":
            return {
                **role,
                "reasoning": text,
                "reasoning_content": text,
                "content": draw(st.sampled_from((None, "", "x"))),
            }
        case "reasoning_content":
            return {**role, "content": None, "reasoning_content": text}
        case "odd":
            return draw(
                st.sampled_from(
                    (
                        {"refusal": text}, {}, {"content": ""}, {"content": [{"type": "text", "text": text}]}, {"content": 7},
                        {"content": text, "vendor": 1}, {"content": text, "annotations": []}, {"tool_calls": []},
                        {"reasoning": 3, "content": text}, {"content": text, "tool_calls": None}, {"function_call": None},
                    )
                )
            )  # fmt: skip
    return {**role, kind: text}


@st.composite
def _fragment(draw: st.DrawFn) -> dict[str, Any]:
    index = draw(st.integers(0, 2))
    if draw(SOMETIMES):
        function = {
            "name": draw(st.sampled_from(("look", "find"))),
            "arguments": draw(st.sampled_from(("", "{", None))),
        }
        return {"index": index, "id": f"call_{index}", "type": "function", "function": function}
    more: dict[str, Any] = draw(
        st.sampled_from(({}, {"type": "function"}, {"id": None}, {"extra_content": {"sign": "x"}}))
    )
    return {"index": index, "function": {"arguments": draw(PIECES)}, **more}


@st.composite
def _chunk(draw: st.DrawFn, envelope: dict[str, Any]) -> Any:
    if draw(st.integers(0, 40)) == 0:
        return draw(
            st.sampled_from(
                (
                    {"error": {"message": "overloaded", "type": "server_error", "code": 503}}, {"error": "broken"},
                    {"error": None, **envelope, "choices": []}, {**envelope, "choices": None}, {**envelope, "choices": []},
                    {**envelope, "choices": [{"index": 0, "delta": None}]}, [], "text", {},
                )
            )
        )  # fmt: skip
    choice: dict[str, Any] = {"index": 0, "delta": draw(_chat_delta())}
    if draw(st.booleans()):
        choice["finish_reason"] = draw(st.sampled_from((None,) * 30 + ("stop", "length", "", "odd")))
    if draw(SOMETIMES):
        token = {"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}
        choice["logprobs"] = draw(st.sampled_from((None, None, {"content": [token], "refusal": None})))
    data = {**envelope, "choices": [choice]}
    if draw(SOMETIMES):
        data |= draw(
            st.sampled_from(
                (
                    {"usage": None}, {"obfuscation": "abc"}, {"obfuscation": "d"}, {"vendor": {"x": 1}}, {"created": 5},
                    {"created": 0}, {"system_fingerprint": "fp"}, {"service_tier": "default"}, {"model": "other"}, {"id": "other"},
                    {"usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}},
                )
            )
        )  # fmt: skip
    return data


@st.composite
def chat_chunks(draw: st.DrawFn) -> list[Any]:
    """The data of a stream of chat completions."""
    envelope = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": draw(st.sampled_from((1, 1, 1, 0))),
        "model": draw(st.sampled_from(("m", "m", ""))),
    }
    chunks: list[Any] = [
        {**envelope, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    ]
    for _ in range(draw(st.integers(0, 6))):
        # Runs of one kind, as models speak, and single pieces of any.
        first = draw(_chunk(envelope))
        chunks += [first]
        for _ in range(draw(st.integers(0, 5))):
            chunks.append(_again(first, draw(PIECES)))
    if draw(st.integers(0, 5)):
        chunks.append(
            {
                **envelope,
                "choices": [
                    {"index": 0, "delta": {}, "finish_reason": draw(st.sampled_from(("stop", "tool_calls")))}
                ],
            }
        )
    if draw(st.booleans()):
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        chunks.append({**envelope, "choices": [], "usage": usage})
    return chunks


def _again(data: Any, text: str) -> Any:
    """The same event with another text."""
    copy = orjson.loads(orjson.dumps(data))
    try:
        delta = copy["choices"][0]["delta"]
        for name, value in delta.items():
            if isinstance(value, str) and name != "role":
                delta[name] = text
        for call in delta.get("tool_calls") or ():
            call.pop("id", None)
            call["function"] = {"arguments": text}
    except (KeyError, IndexError, TypeError, AttributeError):
        pass
    return copy


# ── the Responses API ──


@st.composite
def response_events(draw: st.DrawFn) -> list[Any]:
    """The data of a stream of the Responses API."""
    response = {"id": "resp_1", "object": "response", "created_at": 1, "status": "in_progress", "model": "m", "output": [],
                "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    events: list[Any] = [{"type": "response.created", "response": response}]
    items: list[list[Any]] = [draw(_item(place)) for place in range(draw(st.integers(0, 3)))]
    if draw(SOMETIMES):
        # Side by side.
        while any(items):
            events.append(draw(st.sampled_from([each for each in items if each])).pop(0))
    else:
        events += [event for item in items for event in item]
    if draw(SOMETIMES):
        odd = (
            {"type": "error", "code": "server_error", "message": "overloaded", "param": None},
            {"type": "response.failed", "response": {**response, "status": "failed", "error": {"code": "server_error", "message": "no"}}},
            {"type": "response.output_text.delta", "item_id": "item_0", "output_index": 0, "content_index": 0, "delta": None},
            {"type": "response.vendor.event", "x": 1},
            {"error": {"message": "broken"}},
        )  # fmt: skip
        events.insert(draw(st.integers(1, len(events))), draw(st.sampled_from(odd)))
    if draw(st.integers(0, 5)):
        usage = {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 1}, "output_tokens": 5,
                 "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 8}  # fmt: skip
        events.append(
            {"type": "response.completed", "response": {**response, "status": "completed", "usage": usage}}
        )
    return [
        {**event, "sequence_number": number, **({"obfuscation": "x" * (number % 4)} if number % 3 else {})}
        if isinstance(event, dict) and "type" in event
        else event
        for number, event in enumerate(events)
    ]


@st.composite
def _item(draw: st.DrawFn, place: int) -> list[Any]:
    about = {"item_id": f"item_{place}", "output_index": place}
    pieces = draw(st.lists(PIECES, max_size=8))
    text = "".join(pieces)
    match draw(st.sampled_from(("message", "message", "reasoning", "raw", "call", "refusal"))):
        case "call":
            item = {
                "id": about["item_id"],
                "type": "function_call",
                "call_id": f"call_{place}",
                "name": "look",
                "arguments": "",
            }
            kind, more = "function_call_arguments", {}
            end = [
                {"type": "response.function_call_arguments.done", **about, "name": "look", "arguments": text}
            ]
            done: dict[str, Any] = {**item, "arguments": text, "status": "completed"}
        case "reasoning":
            item = {"id": about["item_id"], "type": "reasoning", "summary": []}
            kind, more, end = "reasoning_summary_text", {"summary_index": 0}, []
            done = {
                **item,
                "summary": [{"type": "summary_text", "text": text}],
                "encrypted_content": "sealed",
            }
        case "raw":
            item = {"id": about["item_id"], "type": "reasoning", "summary": []}
            kind, more, end = "reasoning_text", {"content_index": draw(st.integers(0, 1))}, []
            done = item
        case name:
            phase = draw(st.sampled_from(({}, {"phase": "commentary"})))
            item = {
                "id": about["item_id"],
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
                **phase,
            }
            kind, more = ("refusal" if name == "refusal" else "output_text"), {"content_index": 0}
            field = "refusal" if name == "refusal" else "text"
            end = [{"type": f"response.{kind}.done", **about, **more, field: text, "logprobs": []}]
            done = {
                **item,
                "status": "completed",
                "content": [{"type": kind, field: text, "annotations": []}],
            }
    logprobs: dict[str, Any] = {"logprobs": []} if kind == "output_text" and draw(st.booleans()) else {}
    deltas = [
        {"type": f"response.{kind}.delta", **about, **more, "delta": piece, **logprobs} for piece in pieces
    ]
    return [
        {"type": "response.output_item.added", "output_index": place, "item": item},
        *deltas,
        *end,
        {"type": "response.output_item.done", "output_index": place, "item": done},
    ]


# ── as bytes ──


@st.composite
def sent(draw: st.DrawFn, events: st.SearchStrategy[list[Any]]) -> Sent:
    """A stream's data as server-sent events, in any spelling, cut anywhere."""
    end = draw(st.sampled_from(_ENDS))
    named = draw(st.booleans())
    lines: list[bytes] = []
    for event in draw(events):
        if draw(SOMETIMES):
            lines += draw(
                st.sampled_from(
                    ([b": ping"], [b":"], [b": ping", b""], [b"retry: 10"], [b"id: 7"], [b"odd: x"])
                )
            )
        kind = event.get("type") if isinstance(event, dict) else None
        if named and isinstance(kind, str):
            lines.append(b"event: " + kind.encode())
        lines += [draw(st.sampled_from((b"data: ", b"data: ", b"data:"))) + orjson.dumps(event), b""]
    spoiled = draw(st.integers(0, 30))
    if spoiled == 0:
        wrong = (b'data: {"choices": [', b"data: \xff", b"data: NaN", b"data:", b'data: {"a": 1e999}')
        at = draw(st.integers(0, len(lines)))
        lines[at:at] = [draw(st.sampled_from(wrong)), b""]
    if draw(st.integers(0, 3)):
        lines += [b"data: [DONE]", b""]
        lines += draw(st.sampled_from(([], [], [b"data: {}", b""])))
    body = b"".join(line + end.encode() for line in lines)
    body = body[: len(body) - draw(st.sampled_from((0, 0, 0, 1, 2, 9)))]
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=draw(st.sampled_from((0, 2, 12))))))
    places = [0, *cuts, len(body)]
    parts = tuple(body[begin:stop] for begin, stop in pairwise(places) if stop > begin)
    return Sent(parts, broken=draw(st.integers(0, 9)) == 0)
