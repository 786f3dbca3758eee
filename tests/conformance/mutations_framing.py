"""Mutations of what every wire asks of its bytes."""

from __future__ import annotations

import re

from tests.conformance.spoiling import (
    AGENT,
    ALL,
    LITE,
    Mutations,
    added,
    body,
    replaced,
)

FRAMING = Mutations()
add = FRAMING.add

add("CRLF", ALL, "text", replaced(b"\n", b"\r\n"), "line_feeds_only")
add(
    "an empty line missing at the end",
    ALL,
    "text",
    body(lambda raw: raw[:-1]),
    "frames_end_with_an_empty_line",
)
add("two empty lines", ALL, "text", replaced(b"\n\n", b"\n\n\n", 1), "frames_end_with_an_empty_line")
add(
    "a byte that is no UTF-8",
    AGENT,
    "text",
    replaced(b": ping", b": p\xffng", 1),
    *("text_is_utf8", "comments_are_heartbeats"),
    pings=True,
)
add(
    "a byte that is no UTF-8",
    LITE,
    "text",
    replaced(b"event:ping", b"event:p\xffng", 1),
    *("text_is_utf8", "event_names_are_known"),
    pings=True,
)
add(
    "an unescaped line separator",
    ALL,
    "awkward_text",
    replaced(rb"\u2028", "\u2028".encode()),
    "one_data_line",
)
add(
    "data in two lines",
    AGENT,
    "text",
    replaced(b',"status"', b'\ndata: ,"status"', 1),
    *("one_data_line", "fields_are_id_and_data"),
)
add(
    "data in two lines",
    LITE,
    "text",
    replaced(b',"taskId"', b'\ndata:,"taskId"', 1),
    *("one_data_line", "fields_are_id_event_data"),
)
add(
    "an end marker",
    AGENT,
    "text",
    added(b"id: 1-1", b"data: [DONE]"),
    "data_is_an_object",
    "cursors_increase",
)
add("an end marker", LITE, "text", added(b"event:message", b"data:[DONE]"), "data_is_an_object")
add(
    "a cursor without an epoch",
    ALL,
    "text",
    body(lambda raw: re.sub(rb"^(id: ?)\d+-", rb"\1", raw)),
    "cursors_are_well_formed",
)
add(
    "a cursor of another epoch",
    ALL,
    "text",
    body(lambda raw: re.sub(rb"^(id: ?)\d+-", rb"\g<1>9999999999999999-", raw)),
    "cursors_increase",
)
