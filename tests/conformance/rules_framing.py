"""What every wire asks of its bytes: text that all clients split into the same lines, and cursors that lead on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import orjson

from tests.conformance.capture import Capture, Rules

FRAMING = Rules("every wire")

CURSOR = re.compile(r"[1-9]\d{0,15}-[1-9]\d{0,14}")

# What `str.splitlines` takes for the end of a line (clients built on httpx do), and what the dot of
# Dart's regular expressions stops at.
_ENDS_OF_LINE = ("\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")


@FRAMING.rule("frames")
def text_is_utf8(capture: Capture) -> Iterator[str]:
    """The bytes are UTF-8."""
    try:
        capture.body.decode()
    except UnicodeDecodeError as error:
        yield f"byte {error.start} is not"


@FRAMING.rule("frames")
def line_feeds_only(capture: Capture) -> Iterator[str]:
    """Lines end with LF alone."""
    if at := capture.body.find(b"\r") + 1:
        yield f"a carriage return at byte {at - 1}"


@FRAMING.rule("frames")
def frames_end_with_an_empty_line(capture: Capture) -> Iterator[str]:
    """The last frame is whole, and one empty line stands between two."""
    body = capture.body.replace(b"\r\n", b"\n")
    if body and not body.endswith(b"\n\n"):
        yield f"the stream ends within a frame: {body[-40:]!r}"
    if b"\n\n\n" in body or body.startswith(b"\n"):
        yield "more than one empty line"


@FRAMING.rule("frames")
def one_data_line(capture: Capture) -> Iterator[str]:
    """A frame has one data line, and nothing in it ends a line for any client."""
    for frame in capture.frames:
        lines = [line for line in frame.lines if line.startswith(b"data:")]
        if len(lines) > 1:
            yield f"{len(lines)} data lines"
        text = b"".join(lines).decode(errors="replace")
        for end in _ENDS_OF_LINE:
            if end in text:
                yield f"an unescaped {end!r}"


@FRAMING.rule("frames")
def data_is_an_object(capture: Capture) -> Iterator[str]:
    """Data is a JSON object; there is no end marker."""
    for frame in capture.frames:
        if frame.data is None:
            continue
        try:
            value = orjson.loads(frame.data)
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            yield repr(frame.data[:60])


@FRAMING.rule("resuming")
def cursors_are_well_formed(capture: Capture) -> Iterator[str]:
    """An id is ``<epoch>-<seq>``."""
    for frame in capture.frames:
        if frame.id and not CURSOR.fullmatch(frame.id):
            yield repr(frame.id)


@FRAMING.rule("resuming")
def cursors_increase(capture: Capture) -> Iterator[str]:
    """Each id is greater than the one before, and its place too: a broker that restarts begins a new epoch."""
    ids = [frame.id for frame in capture.frames if CURSOR.fullmatch(frame.id)]
    for one, other in pairwise(ids):
        (epoch, _, seq), (next_epoch, _, next_seq) = one.partition("-"), other.partition("-")
        if int(epoch) > int(next_epoch) or int(seq) >= int(next_seq):
            yield f"{other} after {one}"
