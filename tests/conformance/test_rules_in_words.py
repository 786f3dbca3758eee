"""What clients in the field ask of each wire, in words, and the rules of the checker that hold it.

Each row is a test of its own: its rules are in the table (so a mutation shows that they can fail), and every
recorded feature keeps them, in each way a client may ask for it, with heartbeats.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.conformance.captures import from_entries, recorded, recordings
from tests.conformance.checker import WAYS, table

if TYPE_CHECKING:
    from tests.conformance.capture import Capture, Wire

LITEAGENT: dict[str, tuple[str, ...]] = {
    "a frame is an id, an event and directly behind it a data line": ("fields_are_id_event_data",),
    "no space behind a colon": ("no_space_follows_the_colon",),
    "line feeds only": ("line_feeds_only",),
    "one data line, one empty line behind it": ("one_data_line", "frames_end_with_an_empty_line"),
    "a frame is never split over two writes": ("frames_are_not_split",),
    "no comments, no retry": ("there_are_no_comments", "fields_are_id_event_data"),
    "no [DONE]: data is a JSON object": ("data_is_an_object",),
    "bytes are UTF-8": ("text_is_utf8",),
    "events are message, chunk, functionCall and ping": ("event_names_are_known", "events_carry_their_types"),
    "a heartbeat is event ping with an empty object": ("event_names_are_known",),
    "a stream ends with done, stop or exception, once, and nothing follows": ("tasks_end_once",),
    "an envelope has sessionId, taskId, role, to, type, createTime and content or part": (
        "envelopes_are_complete",
    ),
    "role, to and type are of closed lists": ("enums_are_closed", "everybody_speaks_in_their_place"),
    "completions are whole or absent": ("completions_are_whole_or_absent",),
    "agentId and parentTaskId are on what sub-agents say, only": ("subagents_say_who_they_are",),
    "createTime is yyyy-MM-dd'T'HH:mm:ss.SSSZ": ("times_are_as_written",),
    "a stream is of one session": ("one_session_is_heard",),
    "a task begins with start, then the echo": ("tasks_begin_with_start_and_echo",),
    "a call has arguments and parameters, the same object": ("arguments_have_both_names",),
    "toolsStart before the calls and toolsDone after the results name them": (
        "calls_are_announced",
        "states_describe_themselves",
    ),
    "a functionCall comes after its toolCalls, and says the same": ("client_functions_follow_their_calls",),
    "each call has one toolReturn": ("results_follow_their_calls",),
    "a tool's result is an object": ("contents_have_their_shape",),
    "without stream an answer is one message": ("chunks_come_only_when_asked_for",),
    "with stream chunks, an empty one, then a message without text": ("streamed_texts_are_closed",),
    "a verdict has a bool and ints, its content under both names": ("scores_are_numbers",),
    "a dispatch is an object": ("contents_have_their_shape",),
    "a state is known, and names its task": ("states_are_known",),
    "an exception has a code and an error": ("states_describe_themselves",),
    "only the last frame of an event carries its id": ("ids_end_events",),
    "ids are <epoch>-<seq> and increase": ("cursors_are_well_formed", "cursors_increase"),
    "the history is a bare array without states and calls to the client": ("history_is_a_bare_array",),
    "the history has content and message": ("history_says_it_under_both_names",),
    "the history is what was said, with the times at which it was said": ("history_is_what_was_said",),
}

AGENT_API: dict[str, tuple[str, ...]] = {
    "a frame is an id and a data line, no event, never an id alone": ("fields_are_id_and_data",),
    "one space behind each colon": ("a_space_follows_the_colon",),
    "line feeds only": ("line_feeds_only",),
    "a comment is a heartbeat": ("comments_are_heartbeats",),
    "no [DONE]: data is a JSON object": ("data_is_an_object",),
    "one data line that every client reads as one": ("one_data_line", "frames_end_with_an_empty_line"),
    "bytes are UTF-8": ("text_is_utf8",),
    "objects are response, message and content": ("objects_are_known",),
    "created, in_progress, messages, then the end; queued may come first": ("responses_begin_in_order",),
    "one terminal response, and nothing behind it": ("responses_end_once",),
    "a message is created, in progress, has its content, and is closed": ("messages_go_through_their_steps",),
    "no content before its message is in progress": ("messages_go_through_their_steps",),
    "a message's type and role do not change": ("messages_stay_what_they_are",),
    "no message is open at the end": ("messages_are_closed_before_the_end",),
    "deltas are in progress, the whole is not a delta": ("deltas_are_in_progress",),
    "a part's last event is whole": ("parts_are_closed_whole",),
    "a completed message has its whole content": ("messages_are_closed_whole",),
    "the end has the whole output": ("output_is_whole",),
    "the end has usage": ("usage_is_told",),
    "created_at on all, completed_at at the end": ("responses_say_when",),
    "the user's own message is not in the stream": ("the_user_is_not_heard",),
    "sequence_number is an int on every event, dense from 0": ("numbers_are_integers", "numbers_are_dense"),
    "parts are sequential, index counts them": ("indexes_count_parts",),
    "content names its message": ("content_names_its_message",),
    "ids are msg_<uuid> and response_<uuid>": ("ids_are_ours",),
    "tool parts are data, and snapshots": ("tool_parts_are_snapshots",),
    "the data of each tool message has its keys, arguments and output are text": ("tool_data_is_typed",),
    "arguments are JSON": ("arguments_are_json",),
    "call ids are ours": ("call_ids_are_ours",),
    "each call is answered once": ("calls_are_answered_once",),
    "statuses are known, unknown is never said": ("statuses_are_known",),
    "types and roles are known": ("types_and_roles_are_known",),
    "nulls are left out": ("nulls_are_left_out",),
    "a failure has error with code and message": ("failures_are_explained",),
    "every response event names its session": ("responses_name_their_session",),
    "ids are <epoch>-<seq> and increase": ("cursors_are_well_formed", "cursors_increase"),
}

WORDS: dict[Wire, dict[str, tuple[str, ...]]] = {
    "liteagent": LITEAGENT,
    "agentscope": AGENT_API
    | {
        "times are Unix seconds": ("times_are_seconds",),
        "keys are snake_case, types lower case": ("keys_are_snake_case",),
    },
    "java": AGENT_API
    | {
        "times are Unix milliseconds": ("times_are_milliseconds",),
        "keys are camelCase, types upper case": ("keys_are_camel_case",),
    },
}


@cache
def _captures(wire: Wire) -> tuple[Capture, ...]:
    return tuple(
        from_entries(recorded(name), wire, stream=stream, pings=True)
        for name in recordings()
        for each, stream in WAYS
        if each == wire
    )


@pytest.mark.parametrize(
    ("wire", "rules"),
    [
        pytest.param(wire, rules, id=f"{wire}: {words}")
        for wire, rows in WORDS.items()
        for words, rules in rows.items()
    ],
)
def test_rule(wire: Wire, rules: tuple[str, ...]) -> None:
    """What the row says holds for everything that was recorded."""
    checks = {rule.name: rule.check for rule in table(wire)}
    for capture in _captures(wire):
        assert [how for name in rules for how in checks[name](capture)] == []


@pytest.mark.parametrize("wire", WORDS)
def test_every_rule_is_put_into_words(wire: Wire) -> None:
    """The checker has no rule that no row asks for."""
    assert {rule.name for rule in table(wire)} == {name for rules in WORDS[wire].values() for name in rules}
