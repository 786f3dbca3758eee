"""Mutations of the LiteAgent wire."""

from __future__ import annotations

from dataclasses import replace

from tests.conformance.capture import Frame
from tests.conformance.spoiling import (
    LITE,
    Mutations,
    added,
    at,
    body,
    both,
    content,
    cut,
    envelope,
    first_read_split,
    frames,
    history,
    piece,
    piece_end,
    put,
    replaced,
    says,
    state,
    without,
    without_id,
)

LITEAGENT = Mutations()
add = LITEAGENT.add

add("a lost delta", LITE, "tokens", cut(piece), "history_is_what_was_said")
add(
    "a doubled event",
    LITE,
    "tokens",
    at(piece, lambda frame: [frame, frame]),
    *("cursors_increase", "history_is_what_was_said"),
)
add("a missing terminal", LITE, "text", cut(state("done")), "tasks_end_once")
add("nothing at all", LITE, "text", body(lambda _: b""), "tasks_end_once", kept=False)
add(
    "a frame after the terminal",
    LITE,
    "text",
    frames(lambda given: [*given[:2], given[-1], *given[2:-1]]),
    *("tasks_end_once", "cursors_increase"),
)
add("a comment", LITE, "text", added(b": ping"), "there_are_no_comments")
add("a split frame", LITE, "text", first_read_split, "frames_are_not_split")
add("a retry line", LITE, "text", added(b"retry:3000"), "fields_are_id_event_data")
add(
    "a line between event and data",
    LITE,
    "text",
    frames(lambda given: [Frame((given[0].lines[1], given[0].lines[0], given[0].lines[2])), *given[1:]]),
    "fields_are_id_event_data",
)
add(
    "a space after the colon",
    LITE,
    "text",
    replaced(b"\ndata:", b"\ndata: ", 1),
    "no_space_follows_the_colon",
)
add("an unknown event", LITE, "text", added(b"event:heartbeat", b"data:{}"), "event_names_are_known")
add("an event without its id", LITE, "tokens", at(piece, without_id), "ids_end_events")
add("an end without its id", LITE, "text", at(state("done"), without_id), "ids_end_events")
add(
    "an id before the event's last frame",
    LITE,
    "server_tool",
    at(
        state("toolsStart"),
        lambda frame: [Frame((b"id:9999999999999-1", *frame.lines))],
    ),
    "cursors_increase",
)
add("a chunk with content", LITE, "tokens", envelope(piece, put(content="x")), "envelopes_are_complete")
add(
    "an empty task id",
    LITE,
    "text",
    envelope(piece, put(to="")),
    "envelopes_are_complete",
    "enums_are_closed",
)
add("an unknown role", LITE, "text", envelope(state("start"), put(role="bot")), "enums_are_closed")
add("an unknown type", LITE, "text", envelope(piece, put(type="delta")), "enums_are_closed")
add(
    "a state told by a tool",
    LITE,
    "text",
    envelope(state("start"), put(role="tool")),
    "everybody_speaks_in_their_place",
)
add(
    "a chunk for the client",
    LITE,
    "text",
    envelope(piece, put(to="client")),
    "everybody_speaks_in_their_place",
)
add(
    "a client function in a message",
    LITE,
    "client_call",
    replaced(b"event:functionCall", b"event:message"),
    "events_carry_their_types",
)
add(
    "a time in UTC",
    LITE,
    "text",
    envelope(piece, put(createTime="2026-01-01T00:00:00.000Z")),
    "times_are_as_written",
)
add(
    "another session's envelope",
    LITE,
    "text",
    envelope(piece, put(sessionId="else")),
    "one_session_is_heard",
)
add(
    "a sub-agent without a parent",
    LITE,
    "dispatch_client_call",
    envelope(says("taskStatus", role="subagent"), without("parentTaskId")),
    "subagents_say_who_they_are",
)
add(
    "a sub-agent without a name",
    LITE,
    "dispatch_client_call",
    envelope(says("taskStatus", role="subagent"), without("parentTaskId", "agentId")),
    "subagents_say_who_they_are",
)
add(
    "tokens as text",
    LITE,
    "text",
    envelope(says("text", content=""), lambda value: value["completions"]["usage"].update(totalTokens="7")),
    "completions_are_whole_or_absent",
    kept=False,
)
add(
    "completions without a model",
    LITE,
    "text",
    envelope(says("text", content=""), lambda value: value["completions"].pop("model")),
    "completions_are_whole_or_absent",
    kept=False,
)
add(
    "a result that is no object",
    LITE,
    "server_tool",
    envelope(says("toolReturn"), content(put(result=3))),
    "contents_have_their_shape",
    kept=False,
)
add(
    "a dispatch as a list",
    LITE,
    "dispatch",
    envelope(says("dispatch"), lambda value: value.update(content=[value["content"]])),
    "contents_have_their_shape",
    kept=False,
)
add(
    "an unknown kind of part",
    LITE,
    "text",
    envelope(says("contentList"), content(put(type="image"))),
    "contents_have_their_shape",
    kept=False,
)
add(
    "an unknown state",
    LITE,
    "server_tool",
    envelope(state("toolsStart"), content(put(status="tools"))),
    "states_are_known",
    "ids_end_events",
    "calls_are_announced",
)
add(
    "a state without its task",
    LITE,
    "text",
    envelope(state("done"), content(without("taskId"))),
    "states_are_known",
)
add(
    "an exception without a code",
    LITE,
    "failure",
    envelope(state("exception"), content(put(description={"error": "on purpose"}))),
    "states_describe_themselves",
)
add(
    "a description that is no object",
    LITE,
    "text",
    envelope(state("done"), content(put(description="done"))),
    "states_describe_themselves",
)
add(
    "arguments under one name",
    LITE,
    "server_tool",
    envelope(says("toolCalls"), content(without("parameters"))),
    "arguments_have_both_names",
    kept=False,
)
add(
    "two sets of arguments",
    LITE,
    "server_tool",
    envelope(says("toolCalls"), content(put(parameters={}))),
    "arguments_have_both_names",
    kept=False,
)
add(
    "a score as text",
    LITE,
    "reflection",
    envelope(says("reflection"), content(put(passScore="8"))),
    "scores_are_numbers",
    kept=False,
)
add(
    "a verdict as text",
    LITE,
    "reflection",
    envelope(says("reflection"), content(put(isPass="true"))),
    "scores_are_numbers",
    kept=False,
)
add(
    "a verdict under one name",
    LITE,
    "reflection",
    envelope(says("reflection"), content(lambda verdict: verdict["messageScore"].pop("contentList"))),
    "scores_are_numbers",
    kept=False,
)
add("no echo", LITE, "text", cut(says("contentList")), "tasks_begin_with_start_and_echo", kept=False)
add("no start", LITE, "text", cut(state("start")), "tasks_begin_with_start_and_echo")
add(
    "chunks that nobody asked for",
    LITE,
    "text",
    lambda capture: replace(capture, stream=False),
    "chunks_come_only_when_asked_for",
)
add("no empty chunk", LITE, "text", cut(piece_end), "streamed_texts_are_closed")
add(
    "no message after the chunks",
    LITE,
    "text",
    cut(says("text", content="")),
    "streamed_texts_are_closed",
    kept=False,
)
add("calls that are not announced", LITE, "server_tool", cut(state("toolsStart")), "calls_are_announced")
add(
    "calls that are never done",
    LITE,
    "client_call",
    both(cut(state("toolsDone")), at(says("toolReturn"), lambda frame: [Frame((b"id:0", *frame.lines))])),
    "calls_are_announced",
    "cursors_are_well_formed",
)
add("no result", LITE, "server_tool", cut(says("toolReturn")), "results_follow_their_calls", kept=False)
add(
    "a client function with other arguments",
    LITE,
    "client_call",
    envelope(says("functionCall"), content(put(arguments={}, parameters={}))),
    "client_functions_follow_their_calls",
)
add(
    "a history in an object",
    LITE,
    "text",
    history(lambda told: {"messages": told}),
    *("history_is_a_bare_array", "history_is_what_was_said"),
)
add(
    "a state in the history",
    LITE,
    "text",
    history(lambda told: [*told, {**told[0], "type": "taskStatus"}]),
    *("history_is_a_bare_array", "history_is_what_was_said"),
)
add(
    "a history under one name",
    LITE,
    "text",
    history(lambda told: [{key: value for key, value in one.items() if key != "message"} for one in told]),
    "history_says_it_under_both_names",
)
add(
    "a history with the time of asking",
    LITE,
    "text",
    history(lambda told: [{**one, "createTime": "2026-01-01T00:00:00.000+0800"} for one in told]),
    "history_is_what_was_said",
)
add("a history that forgets", LITE, "text", history(lambda told: told[:-1]), "history_is_what_was_said")
