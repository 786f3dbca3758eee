"""Segments as responses: what a stream with state writes when its client does not take everything at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson

from tests.unit.api.protocols.turn import EPOCH, entry, message, parked, part, response
from tests.unit.shared.session.support import HOUR_MS, Desk, asking, delta, keys_of, opened, ref
from turnstream.api.http.connection import extension
from turnstream.api.http.middleware import PastLayers
from turnstream.api.protocols.agent_api.frames import AGENTSCOPE
from turnstream.api.protocols.agent_api.segments import AnsweredTurn, SegmentResponse
from turnstream.api.streaming.hub import Hub
from turnstream.api.streaming.sse import EventStream
from turnstream.api.streaming.start_position import Segment, Start
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.outcomes import Parked
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Message, Send

    from tests.conftest import Place
    from turnstream.shared.session.entry import Entry

FURTHER = Segment("t-1", 1, Cursor(EPOCH, 4), None, "response_1", EPOCH, b"")
EVENTS = 60


class SlowAtTimes:
    """The connection of a client that takes every third write at once."""

    def __init__(self) -> None:
        self.on_lost: Callable[[], None] | None = None
        self.rest: Callable[[Send], Awaitable[None]] | None = None
        self.body = b""
        self._writes = 0

    def is_lost(self) -> bool:
        """It never is."""
        return False

    def awaits_body(self, scope: Any) -> bool:
        """All of its request is there."""
        return False

    def part(self) -> None:
        """It may be used again."""

    def abort(self) -> None:
        """It is not that slow."""
        raise AssertionError

    def write_chunk(self, body: bytes) -> bool:
        """Take it, perhaps."""
        self._writes += 1
        if self._writes % 3:
            return False
        self.body += body
        return True

    async def send(self, message: Message) -> None:
        """Take what waits."""
        self.body += message.get("body", b"")

    async def receive(self) -> Message:
        """Nothing more is sent."""
        raise AssertionError


async def test_what_is_not_taken_at_once_is_written_once(place: Place) -> None:
    """An entry is fed once, whoever writes its frames: the call that brought it, or the follower's task."""
    desk = Desk(place)
    hub = Hub(desk.redis, desk.log)
    client = SlowAtTimes()
    attempt = await desk.running()
    stream = EventStream(
        hub.follow(keys_of()),
        Start(Cursor(attempt.epoch, 0), "t1", fresh=True),
        AGENTSCOPE,
        desk.log,
        desk.settings,
        encoder=SegmentResponse(AGENTSCOPE),
    )
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "extensions": extension(client)}
    serving = asyncio.create_task(PastLayers(stream)(scope, client.receive, client.send))
    try:
        await desk.append(attempt, opened("m1"))
        for number in range(EVENTS):
            await desk.append(attempt, delta("m1", str(number)))
        park = desk.tasks.park(
            ref(), attempt.claim, asking("c1"), operation(), wait_ms=HOUR_MS, policy="block"
        )
        assert await park == Parked()
        await serving
    finally:
        await hub.stop()
    alone = SegmentResponse(AGENTSCOPE)
    assert client.body == b"".join(alone.feed(attempt.epoch, each) for each in await desk.entries())
    assert client.body.count(b'"delta":true') == EVENTS


def _fed(part_of: SegmentResponse | AnsweredTurn, *entries: Entry) -> list[dict[str, Any]]:
    """The events of all frames."""
    frames = b"".join(part_of.feed(EPOCH, each) for each in entries).split(b"\n\n")
    return [orjson.loads(frame.partition(b"data: ")[2]) for frame in frames if frame]


def test_the_output_is_in_the_order_in_which_messages_began() -> None:
    """Not in that in which they ended; one that broke off is part of it, and one with an error. What they cost is told."""
    usage = {"input_tokens": 6, "output_tokens": 4, "total_tokens": 10}
    told = _fed(
        SegmentResponse(AGENTSCOPE),
        response("queued", seq=0),
        message("message", status="created", seq=1),
        _other("created", 2),
        part(type="text", delta=True, text="a"),
        _other("completed", 4),
        message("message", status="incomplete", seq=5),
        entry(
            "error",
            {"object": "message", "status": "completed", "error": {"code": "x"}, "id": "msg_3"},
            seq=6,
        ),
        parked(usage=usage),
    )
    assert [each["id"] for each in told[-1]["output"]] == ["msg_1", "msg_2", "msg_3"]
    assert told[-1]["usage"] == usage
    assert (told[-1]["status"], told[-1]["id"]) == ("completed", "response_1")


def test_a_further_segment_passes_over_the_answers_that_begin_it() -> None:
    """And no other ones: those that come when it has begun belong to it. A response event of the turn is none of its own."""
    told = _fed(
        SegmentResponse(AGENTSCOPE, "s-1", FURTHER),
        parked(seq=4, usage={"input_tokens": 6, "output_tokens": 4, "total_tokens": 10}),
        message("function_call_output", status="created", seq=5),
        message("function_call_output", seq=6),
        response("in_progress", seq=7),
        _other("created", 8),
        _other("completed", 9),
        message("function_call_output", seq=10),
        _end(
            [{"id": "msg_0"}, {"id": "msg_2"}, {"id": "msg_1"}],
            {"input_tokens": 7, "output_tokens": 6, "total_tokens": 13},
        ),
    )
    assert [(each["sequence_number"], each["object"], each["status"]) for each in told] == [
        (0, "response", "created"),
        (1, "response", "in_progress"),
        (2, "message", "created"),
        (3, "message", "completed"),
        (4, "message", "completed"),
        (5, "response", "completed"),
    ]
    assert [each["id"] for each in told[-1]["output"]] == ["msg_2", "msg_1"]
    assert told[-1]["usage"] == {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    assert {each["id"] for each in told if each["object"] == "response"} == {"response_1~1"}


def test_an_end_without_the_answers_is_told_whole() -> None:
    """Where they were not kept, nobody can say where to begin."""
    (told,) = _fed(AnsweredTurn(AGENTSCOPE, {"call_1"}), _end([{"id": "msg_0"}]))
    assert told["output"] == [{"id": "msg_0"}]


def _end(output: list[dict[str, Any]], usage: dict[str, int] | None = None) -> Entry:
    return response("completed", kind="end", output=output, usage=usage or {})


def _other(status: str, seq: int, **more: Any) -> Entry:
    event = {"object": "message", "status": status, "id": "msg_2", "type": "message", "role": "assistant"}
    return entry("message", event, seq=seq, **more)
