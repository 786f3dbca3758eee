"""Mutations of the Agent API wire, in both editions."""

from __future__ import annotations

import re

from tests.conformance.spoiling import (
    AGENT,
    DELTA,
    END,
    Mutations,
    added,
    body,
    both,
    data,
    doubled,
    dropped,
    event,
    everywhere,
    frames,
    inserted,
    is_,
    put,
    renumbered,
    replaced,
    without,
)

AGENTSCOPE = Mutations()
add = AGENTSCOPE.add

add(
    "a lost delta",
    AGENT,
    "tokens",
    dropped(DELTA, tidied=False),
    *("numbers_are_dense", "parts_are_closed_whole"),
)
add("a lost delta, hidden by its number", AGENT, "tokens", dropped(DELTA), "parts_are_closed_whole")
add(
    "a lost delta of a text that was stopped",
    AGENT,
    "stop",
    dropped(DELTA),
    "messages_are_closed_whole",
)
add(
    "a doubled event",
    AGENT,
    "tokens",
    doubled(DELTA),
    *("cursors_increase", "numbers_are_dense", "parts_are_closed_whole"),
)
add(
    "a doubled event, hidden by its number",
    AGENT,
    "tokens",
    doubled(DELTA, tidied=True),
    "parts_are_closed_whole",
)
add(
    "a wrong index",
    AGENT,
    "tokens",
    event(DELTA, put(index=1)),
    *("indexes_count_parts", "parts_are_closed_whole", "messages_are_closed_whole"),
)
add(
    "a wrong index, consistently",
    AGENT,
    "text",
    everywhere(is_("content"), put(index=1)),
    "indexes_count_parts",
)
add("a missing terminal", AGENT, "text", dropped(END), "responses_end_once")
add("a doubled terminal", AGENT, "text", doubled(END, tidied=True), "responses_end_once")
add(
    "an event after the terminal",
    AGENT,
    "text",
    both(
        frames(lambda given: [*given[:-2], given[-1], given[-2]]),
        lambda c: c.rewritten(renumbered(list(c.frames), c.wire)),
    ),
    "responses_end_once",
)
add("nothing at all", AGENT, "text", body(lambda _: b""), "responses_end_once")
add(
    "an event line",
    AGENT,
    "text",
    replaced(b"\ndata: ", b"\nevent: message\ndata: ", 1),
    "fields_are_id_and_data",
)
add("an id alone", AGENT, "text", added(b"id: 9999999999999-9"), "fields_are_id_and_data", "cursors_increase")
add("a retry line", AGENT, "text", added(b"retry: 3000"), "fields_are_id_and_data")
add(
    "no space after the colon",
    AGENT,
    "text",
    replaced(b"\ndata: ", b"\ndata:", 1),
    "a_space_follows_the_colon",
)
add("a comment that is no heartbeat", AGENT, "text", added(b": hello"), "comments_are_heartbeats")
add(
    "a heartbeat glued to a frame",
    AGENT,
    "text",
    replaced(b"\n\nid: ", b"\n\n: ping\nid: ", 1),
    *("comments_are_heartbeats", "fields_are_id_and_data"),
)
add(
    "an unknown object",
    AGENT,
    "text",
    inserted({"object": "error", "error": {}}, END),
    "objects_are_known",
    "failures_are_explained",
)
add(
    "a status that only clients know",
    AGENT,
    "text",
    event(is_("response", "queued"), put(status="unknown")),
    *("statuses_are_known", "responses_begin_in_order"),
)
add(
    "an unknown role",
    AGENT,
    "text",
    everywhere(is_("message"), put(role="bot")),
    "types_and_roles_are_known",
)
add(
    "an unknown message type",
    AGENT,
    "text",
    everywhere(is_("message"), put(type="assistant_says")),
    "types_and_roles_are_known",
)
add(
    "an unknown content type",
    AGENT,
    "image",
    everywhere(is_("content", type="image"), put(type="picture")),
    "types_and_roles_are_known",
)
add(
    "foreign message ids",
    AGENT,
    "text",
    body(lambda raw: re.sub(rb"msg_(?=[0-9a-f]{8}-)", b"m_", raw)),
    "ids_are_ours",
)
add("foreign response ids", AGENT, "text", replaced(b'"response_', b'"r_'), "ids_are_ours")
add("a null", AGENT, "text", everywhere(is_("message"), put(code=None)), "nulls_are_left_out")
add(
    "numbers as text",
    AGENT,
    "text",
    everywhere(
        lambda value: "sequence_number" in value,
        lambda value: value.update(sequence_number=str(value["sequence_number"])),
    ),
    "numbers_are_integers",
)
add(
    "numbers from 1",
    AGENT,
    "text",
    everywhere(
        lambda value: "sequence_number" in value,
        lambda value: value.update(sequence_number=value["sequence_number"] + 1),
    ),
    "numbers_are_dense",
)
add(
    "no creation time",
    AGENT,
    "text",
    event(is_("response", "created"), without("created_at")),
    "responses_say_when",
)
add("no time of completion", AGENT, "text", event(END, without("completed_at")), "responses_say_when")
add(
    "milliseconds",
    ("agentscope",),
    "text",
    everywhere(is_("response", "queued"), lambda value: value.update(created_at=value["created_at"] * 1000)),
    "times_are_seconds",
)
add(
    "seconds",
    ("java",),
    "text",
    everywhere(is_("response", "queued"), lambda value: value.update(created_at=value["created_at"] // 1000)),
    "times_are_milliseconds",
)
add(
    "no session",
    AGENT,
    "text",
    event(is_("response", "created"), without("session_id")),
    "responses_name_their_session",
)
add(
    "another response's event",
    AGENT,
    "text",
    event(is_("response", "created"), put(id="response_00000000-0000-4000-8000-000000000000")),
    "responses_name_their_session",
)
add(
    "no response in progress",
    AGENT,
    "text",
    dropped(is_("response", "in_progress")),
    "responses_begin_in_order",
)
add(
    "no message in progress",
    AGENT,
    "text",
    dropped(is_("message", "in_progress")),
    "messages_go_through_their_steps",
)
add(
    "a message that was never created",
    AGENT,
    "text",
    dropped(is_("message", "created")),
    "messages_go_through_their_steps",
)
add(
    "a role that changes",
    AGENT,
    "text",
    event(is_("message", "in_progress"), put(role="tool")),
    "messages_stay_what_they_are",
)
add(
    "a message that stays open",
    AGENT,
    "text",
    dropped(is_("message", "completed")),
    *("messages_are_closed_before_the_end", "output_is_whole"),
)
add(
    "the user's own message",
    AGENT,
    "text",
    everywhere(is_("message"), put(role="user")),
    "the_user_is_not_heard",
)
add("a delta that is no bool", AGENT, "tokens", event(DELTA, put(delta="true")), "deltas_are_in_progress")
add(
    "a part that is never closed",
    AGENT,
    "text",
    dropped(is_("content", "completed")),
    "messages_are_closed_whole",
)
add(
    "a message that is closed with other words",
    AGENT,
    "text",
    everywhere(is_("message", "completed"), lambda value: value["content"][0].update(text="else")),
    "messages_are_closed_whole",
)
add(
    "a message that is closed without its content",
    AGENT,
    "text",
    everywhere(is_("message", "completed"), without("content")),
    "messages_are_closed_whole",
)
add(
    "a part of another message",
    AGENT,
    "text",
    everywhere(is_("message", "completed"), lambda value: value["content"][0].update(msg_id="msg_0")),
    *("content_names_its_message", "messages_are_closed_whole"),
)
add(
    "a message missing in the output",
    AGENT,
    "server_tool",
    event(END, lambda value: value["output"].pop(0)),
    "output_is_whole",
)
add(
    "an output out of order",
    AGENT,
    "server_tool",
    event(END, lambda value: value["output"].reverse()),
    "output_is_whole",
)
add("no output", AGENT, "text", event(END, without("output")), "output_is_whole")
add("no usage", AGENT, "text", event(END, without("usage")), "usage_is_told")
add(
    "a failure without a reason",
    AGENT,
    "failure",
    event(is_("response", "failed"), without("error")),
    "failures_are_explained",
)
add(
    "a success with an error",
    AGENT,
    "text",
    event(END, put(error={"code": "oops", "message": "no"})),
    "failures_are_explained",
)
add(
    "a call as text",
    AGENT,
    "server_tool",
    everywhere(is_("content", type="data"), put(type="text")),
    "tool_parts_are_snapshots",
)
add(
    "an output that is no text",
    AGENT,
    "server_tool",
    everywhere(lambda value: "output" in value.get("data", {}), data(put(output={"sum": 3}))),
    "tool_data_is_typed",
)
add(
    "a call without a name",
    AGENT,
    "server_tool",
    everywhere(lambda value: "arguments" in value.get("data", {}), data(without("name"))),
    "tool_data_is_typed",
)
add(
    "arguments that are no JSON",
    AGENT,
    "server_tool",
    everywhere(lambda value: "arguments" in value.get("data", {}), data(put(arguments="a = 1"))),
    "arguments_are_json",
)
add(
    "a provider's call ids",
    AGENT,
    "server_tool",
    replaced(b'"call_id":"call_', b'"call_id":"chatcmpl-'),
    "call_ids_are_ours",
)
add(
    "an output for another call",
    AGENT,
    "server_tool",
    everywhere(lambda value: "output" in value.get("data", {}), data(put(call_id="call_" + "0" * 32))),
    "calls_are_answered_once",
)
add("a key in camelCase", ("agentscope",), "text", replaced(b'"msg_id"', b'"msgId"'), "keys_are_snake_case")
add("a key in snake_case", ("java",), "text", replaced(b'"msgId"', b'"msg_id"'), "keys_are_camel_case")
add(
    "a type in upper case",
    ("agentscope",),
    "text",
    replaced(b'"type":"message"', b'"type":"MESSAGE"'),
    "keys_are_snake_case",
)
add(
    "a type in lower case",
    ("java",),
    "text",
    replaced(b'"type":"MESSAGE"', b'"type":"message"'),
    "keys_are_camel_case",
)
