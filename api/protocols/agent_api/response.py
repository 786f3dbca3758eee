"""Answers of one JSON object: a turn's outcome, for clients that do not want a stream, and its refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response

from turnstream.api.streaming.start_position import parks_of
from turnstream.api.streaming.whole import WholeAnswer
from turnstream.shared.errors import SessionBusy
from turnstream.shared.protocol import ResponseBuilder
from turnstream.shared.session.endings import numbered, without_number
from turnstream.shared.session.entry import END, PARKED, Cursor
from turnstream.shared.session.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from turnstream.api.protocols.agent_api.frames import Agentscope
    from turnstream.api.protocols.agent_api.segments import SegmentResponse
    from turnstream.api.streaming.feed import Feed
    from turnstream.api.streaming.start_position import Start
    from turnstream.api.turns.durable_submit import Headers
    from turnstream.shared.errors import Overloaded, TooMany
    from turnstream.shared.session.entry import Entry
    from turnstream.shared.session.event_log import Log


class WholeResponse(WholeAnswer):
    """Waits until a task ends or parks, then answers with its response.

    Ended: the terminal response. Parked: the response in progress, its messages so far (the calls among
    them) as its output.
    """

    def __init__(
        self,
        feed: Feed,
        start: Start,
        dialect: Agentscope,
        reader: Log,
        *,
        headers: Headers = (),
        part: SegmentResponse | None = None,
    ) -> None:
        """With a ``part`` its response is the answer: `SegmentResponse.so_far` where more answers are awaited."""
        super().__init__(feed, start, reader, headers=headers)
        feed.parking = True
        self._dialect = dialect
        self._part = part

    async def answer(self, entries: AsyncGenerator[Entry | None, None]) -> tuple[int, bytes] | None:
        """The response's JSON."""
        part = self._part
        async for entry in entries:
            if entry is not None and (end := self._end(entry)):
                return 200, self._dialect.document(end)
            # An earlier release parks without an entry: nothing comes.
            waits = entry is None or entry.kind == PARKED or (part is not None and part.answering)
            if waits and (response := await self._parked()):
                return 200, self._dialect.document(response)
        return None

    def _end(self, entry: Entry) -> bytes:
        """The response's end, if that is the entry's; else empty."""
        if self._part is None:
            return entry.event if entry.kind == END else b""
        events = self._part.events(entry)
        return events[-1] if self._part.over else b""

    async def _parked(self) -> bytes | None:
        """The response in progress, when the task is parked."""
        keys = self._feed.keys
        task = await self._log.task(keys, self._task)
        if task.get("status") != TaskStatus.PARKED:
            return None
        if self._part is not None:
            # It may have parked again meanwhile: that is still to come.
            return self._part.so_far() if max(parks_of(task)) == self._part.number else None
        before_it = Cursor(self._feed.after.epoch, int(task["first"]) - 1)
        output = [
            orjson.Fragment(without_number(entry.event))
            async for entry in self._log.all_kept(keys, before_it)
            if entry.task == self._task and entry.kind != END and numbered(entry.event)
        ]
        response: dict[str, Any] = {
            "sequence_number": int(task["number"]) - 1,
            "object": "response",
            "status": "in_progress",
            "id": task["response"],
            "session_id": keys.session,
            "created_at": int(task["submitted"]) // 1000,
        }
        if metadata := task.get("metadata"):
            response["metadata"] = orjson.Fragment(metadata)
        return orjson.dumps(response | {"output": output})


def rejected(
    session: str, response: str | None, refusal: SessionBusy | TooMany | Overloaded, dialect: Agentscope
) -> Response:
    """The answer to a refused turn: a response that is over before it began."""
    builder = ResponseBuilder(session_id=session, response_id=response)
    code = "session_busy" if isinstance(refusal, SessionBusy) else str(refusal.code)
    event = builder.rejected(code, refusal.public_text).model_dump_json(exclude_none=True).encode()
    headers = {} if isinstance(refusal, SessionBusy) else {"Retry-After": str(refusal.retry_after)}
    return Response(
        dialect.document(event), status_code=refusal.status, media_type="application/json", headers=headers
    )
