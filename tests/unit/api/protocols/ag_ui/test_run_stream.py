"""The encoder by itself: whatever is left of a turn's log, and however it ends, clients take it."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.agui_events import check_run, events_of, text_of
from turnstream.api.protocols.ag_ui.run_stream import RunStream
from turnstream.shared.session.entry import END, PARKED, RESPONSE, Entry

USAGE = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}


def entry(kind: str, path: str = "", extra: dict[str, Any] | None = None, **event: Any) -> Entry:
    """An entry of the task."""
    fields = {"sequence_number": 0, **event}
    if kind == PARKED:
        del fields["sequence_number"]
    beside = orjson.dumps(extra) if extra else b""
    return Entry(1, "t1", path, kind, 1_700_000_000_000, orjson.dumps(fields), beside)


def piece(text: str, message: str = "m1", path: str = "", kind: str = "message") -> Entry:
    """A piece of a text."""
    more: dict[str, Any] = {"status": "in_progress", "type": "text", "index": 0, "delta": True}
    return entry(kind, path, object="content", msg_id=message, text=text, **more)


def closed(text: str, message: str = "m1", path: str = "", kind: str = "message") -> Entry:
    """A text, whole."""
    content = [{"object": "content", "type": "text", "index": 0, "text": text}]
    return entry(kind, path, object="message", id=message, status="completed", type=kind, content=content)


def data(kind: str, path: str = "", extra: dict[str, Any] | None = None, **fields: Any) -> Entry:
    """A closed message with one data part."""
    content = [{"object": "content", "type": "data", "index": 0, "data": fields}]
    return entry(kind, path, extra, object="message", id=f"m{fields}", status="completed", content=content)


def dispatch(call: str, name: str, path: str = "", group: str = "") -> Entry:
    """Work is handed to a sub-agent."""
    extra = {"group": {"ids": [group or call]}}
    content = [{"type": "text", "message": "do it"}]
    return data("component_call", path, extra, dispatchId=call, agentId=name, name=name, content=content)


def done(call: str, name: str, path: str = "", *, failed: bool = False) -> Entry:
    """It is done."""
    content = [{"type": "text", "message": "done"}]
    extra = {"failed": True} if failed else None
    return data(
        "component_call_output", path, extra, dispatchId=call, agentId=name, name=name, content=content
    )


def parked(*calls: str) -> Entry:
    """The client is asked."""
    return entry(
        PARKED, object="turnstream.parked", park=1, calls=[*calls], until=1_700_000_100_000, usage=USAGE
    )


def ended(word: str = "completed", **more: Any) -> Entry:
    """The turn's end."""
    return entry(END, object="response", status=word, completed_at=1_700_000_001, usage=USAGE, **more)


BEGUN = entry(RESPONSE, object="response", status="queued")


def told(*entries: Entry, **given: Any) -> list[dict[str, Any]]:
    """The events of a run that these entries make."""
    stream = RunStream("thread", "run", **given)
    return events_of(b"".join(stream.feed(1, each) for each in entries))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.data())
def test_text_is_told_once_whatever_pieces_are_left(pieces: list[str], data: st.DataObject) -> None:
    """The pieces that came, then the rest, when the message closes."""
    came = data.draw(st.integers(0, len(pieces)))
    text = "".join(pieces)
    events = told(BEGUN, *map(piece, pieces[:came]), closed(text), ended())
    check_run(events)
    assert text_of(events) == text


PATHS = ("", "a", "a/b", "a~2")
STEPS = st.one_of(
    st.tuples(st.just("piece"), st.sampled_from(PATHS)),
    st.tuples(st.just("thought"), st.sampled_from(PATHS)),
    st.tuples(st.just("dispatch"), st.sampled_from(PATHS[1:])),
    st.tuples(st.just("done"), st.sampled_from(PATHS[1:])),
    st.tuples(st.just("ask"), st.sampled_from(PATHS)),
    st.tuples(st.just("approve"), st.sampled_from(PATHS)),
    st.tuples(st.just("call"), st.sampled_from(PATHS)),
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(STEPS, max_size=20),
    st.sampled_from(["completed", "failed", "canceled", "parked"]),
    st.booleans(),
)
def test_any_order_of_anything(steps: list[tuple[str, str]], end: str, old: bool) -> None:
    """Also what no worker would write, and what is told of sub-agents whose beginning nobody saw."""
    entries, asked = [BEGUN], list[str]()
    calls: dict[str, str] = {}
    for number, (step, path) in enumerate(steps):
        above, _, name = path.rpartition("/")
        match step:
            case "piece":
                entries.append(piece("x", f"p{path}", path))
            case "thought":
                entries.append(closed("hm", f"t{number}", path, "reasoning"))
            case "dispatch":
                calls[path] = f"d{number}"
                entries.append(dispatch(calls[path], name.partition("~")[0], above, "group"))
            case "done":
                entries.append(done(calls.get(path, "d"), name, above, failed=number % 2 == 0))
            case "ask":
                asked.append(f"c{number}")
                entries.append(data("function_call", path, call_id=f"c{number}", name="f", arguments="{}"))
            case "approve":
                asked.append(f"c{number}")
                entries.append(data("mcp_approval_request", path, id=f"c{number}", name="f", arguments="{}"))
            case _:
                entries.append(data("plugin_call", path, call_id=f"c{number}", name="f", arguments="{}"))
                entries.append(data("plugin_call_output", path, call_id=f"c{number}", name="f", output="1"))
    entries.append(parked(*asked) if end == "parked" else ended(end, error={"message": "no", "code": "x"}))
    last = check_run(told(*entries, is_old=old), old=old)
    assert last["type"] == ("RUN_ERROR" if end == "failed" else "RUN_FINISHED")


def test_a_subagent_called_again_is_another_one() -> None:
    """Under the same path, when the first is done."""
    events = told(
        BEGUN,
        dispatch("d1", "sub"),
        closed("one", "m1", "sub"),
        done("d1", "sub"),
        dispatch("d2", "sub"),
        closed("two", "m2", "sub"),
        done("d2", "sub", failed=True),
        ended(),
    )
    check_run(events)
    kinds = [
        (event["type"], event["subagentRunId"]) for event in events if event["type"].startswith("SUBAGENT")
    ]
    assert kinds == [
        ("SUBAGENT_STARTED", "d1"),
        ("SUBAGENT_FINISHED", "d1"),
        ("SUBAGENT_STARTED", "d2"),
        ("SUBAGENT_ERROR", "d2"),
    ]
    owners = [event.get("subagentRunId") for event in events if event["type"] == "TEXT_MESSAGE_START"]
    assert owners == ["d1", "d2"]


def test_a_question_about_a_lost_call() -> None:
    """It is about the call that was told, which is not told again."""
    lost: dict[str, Any] = {"id": "c1_1", "name": "f", "arguments": "{}", "reason": "It may have run."}
    events = told(
        BEGUN,
        data("plugin_call", call_id="c1", name="f", arguments="{}"),
        data("mcp_approval_request", **lost),
        parked("c1_1"),
    )
    (interrupt,) = check_run(events)["outcome"]["interrupts"]
    assert (interrupt["id"], interrupt["toolCallId"]) == ("c1_1", "c1")
    assert interrupt["message"] == "It may have run."
    assert interrupt["expiresAt"] == "2023-11-14T22:15:00.000Z"
    assert sum(event["type"] == "TOOL_CALL_START" for event in events) == 1


def test_a_further_run_costs_what_came_behind_its_park() -> None:
    """The usage is the run's own."""
    whole = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    end = entry(END, object="response", status="completed", completed_at=1, usage=whole)
    last = check_run(told(parked("c"), closed("a"), end, segment=1))
    assert last["usage"] == [{"inputTokens": 7, "outputTokens": 1, "totalTokens": 8}]
