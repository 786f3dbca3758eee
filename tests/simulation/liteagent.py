"""LiteAgent clients of a simulation: what one received of a turn, over all its connections, and whether that is right."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.conformance.capture import Capture
from tests.conformance.checker import check
from tests.conformance.rules_framing import FRAMING
from turnstream.api.protocols.liteagent.frames import LITEAGENT_STREAM, LITEAGENT_WHOLE
from turnstream.shared.session.event_log import _entry

if TYPE_CHECKING:
    from tests.chaos.records import Turn
    from tests.simulation.clients import SimulatedTown
    from tests.support.client import Frame

# A broker that restarts begins a new epoch, in which entries keep their places.
_EPOCH = re.compile(rb"^id:\d+-", re.MULTILINE)

_ENDS = frozenset({"done", "stop", "exception"})


@dataclass
class LiteView:
    """What one LiteAgent follower of a turn received.

    Attributes:
        stream: whether it wants texts piece by piece.
        begins: whether its request begins the turn, instead of the Agent API's.
        frames: all that count; those of an event that was cut off come again.
        followed: whether somebody does: one at a time.
        behind: it came, or came back, when some of what it had yet to see was cut from the log.
        ended, lost: it saw the turn's end, or was told that what it saw is gone.
    """

    stream: bool
    begins: bool
    frames: list[Frame] = field(default_factory=list)
    followed: bool = False
    behind: bool = False
    ended: bool = False
    lost: bool = False

    @property
    def cursor(self) -> str:
        """The last event that came whole; empty when none did."""
        return self.frames[-1].id if self.frames else ""

    def take(self, frame: Frame) -> None:
        """A whole frame came."""
        if frame.event == "ping":
            return
        self.frames.append(frame)
        if frame.id and frame.data.get("type") == "taskStatus":
            self.ended = frame.data["content"]["status"] in _ENDS

    def cut(self) -> None:
        """The connection is gone, and with it the frames without an id at the end."""
        while self.frames and not self.frames[-1].id:
            self.frames.pop()

    def asks(self, turn: Turn) -> dict[str, Any]:
        """The request that begins the turn, or finds it again."""
        content = [{"type": "text", "message": turn.prompt}]
        return {
            "method": "POST",
            "params": {"sessionId": turn.session},
            "json": {"content": content, "stream": self.stream, "taskId": turn.task},
        }

    def follows(self, turn: Turn) -> dict[str, Any]:
        """The request that follows the turn."""
        stream = "true" if self.stream else "false"
        params = {"sessionId": turn.session, "taskId": turn.task, "stream": stream}
        return {"method": "GET", "params": params}


def wrong_streams(town: SimulatedTown, lite: list[tuple[Turn, LiteView]]) -> list[str]:
    """What LiteAgent clients received that their wire does not allow, or that is not what the log says."""
    found = []
    for turn, view in lite:
        if not view.ended:
            if turn.accepted and not view.lost:
                found.append(f"liteagent_turns_end: {turn}")
            continue
        body = b"".join(frame.raw + b"\n\n" for frame in view.frames)
        capture = Capture("liteagent", (body,), stream=view.stream, chosen=frozenset({turn.task}))
        # What was said piece by piece stands whole in the history: of that only the frames are held to their rules.
        wrong = FRAMING.check(capture) if view.behind else check(capture)
        found += [f"liteagent_is_spoken: {turn}: {each}" for each in wrong]
        # Who comes back behind a cut gets less.
        if (
            not town.losses
            and town.logs is None
            and _EPOCH.sub(b"id:", body) != _EPOCH.sub(b"id:", _told(town, turn, view))
        ):
            found.append(f"liteagent_streams_are_the_log: {turn}")
    return found


def _told(town: SimulatedTown, turn: Turn, view: LiteView) -> bytes:
    """What the log's entries are for a LiteAgent client that was there from the beginning."""
    dialect = LITEAGENT_STREAM if view.stream else LITEAGENT_WHOLE
    frames = b""
    store, session = town.cluster.sessions, town.keys_of(turn.session)
    files = store.files(session)
    for cursor, fields in store.stream(f"{session}log"):
        entry = _entry(cursor, [word for pair in fields.items() for word in pair], files)
        if entry.task == turn.task:
            frames += dialect.frames(turn.session, int(cursor.partition(b"-")[0]), entry)
    return frames
