"""A toy wire protocol in one file: turns and answers as plain text. The example of CONTRIBUTING.md.

``POST /plain?session=S`` takes the user's words and answers with the task's id. ``GET /plain?session=S[&task=T]``
follows: each line is a cursor, a space, and some words as a JSON string. Errors are lines, too. tests/behaviour/test_new_protocol.py puts this
file into a copy of the tree as ``api/protocols/plain/protocol.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from starlette.responses import PlainTextResponse

from turnstream.api.http.body import digest_of
from turnstream.api.http.operation import FOLLOW_ERRORS, ID, TURN_ERRORS, Operation, Text, parameter
from turnstream.api.http.params import cursor_of, route, session_id, task_id
from turnstream.api.http.wire_protocol import WireProtocol
from turnstream.api.streaming.dialect import one_line
from turnstream.api.turns.follow import watch
from turnstream.api.turns.submit import (
    RESPONSE_PREFIX,
    NewTurn,
    begin,
    idempotency_of,
    new_task_id,
    trace_of,
)
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import BadCursor, InvalidBody
from turnstream.shared.protocol import Message
from turnstream.shared.session.entry import END

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.routing import Route

    from turnstream.api.http.error_shape import Problem
    from turnstream.api.http.operation import Json
    from turnstream.api.services import Services
    from turnstream.api.streaming.sse import EventStream
    from turnstream.shared.session.entry import Entry


class Plain:
    """Writes pieces of text, and how a turn ended."""

    name = "plain"
    content_type = "text/plain; charset=utf-8"
    ping = b"\n"
    cuts = True

    def frames(self, session: str, epoch: int, entry: Entry) -> bytes:
        """One line, if there is something to write."""
        event = orjson.loads(entry.event)
        if entry.kind == END:
            return _line(epoch, entry, f"({event['status']})")
        if entry.kind == "message" and event.get("delta") and event.get("type") == "text":
            return _line(epoch, entry, event["text"])
        return b""

    def replay(self, session: str, epoch: int, entry: Entry) -> bytes:
        """As `frames`; of a message whose pieces were trimmed, its whole text."""
        event = orjson.loads(entry.event)
        if entry.kind == "message" and event.get("object") == "message" and event.get("role") != "user":
            return _line(epoch, entry, "".join(part.get("text") or "" for part in event.get("content") or []))
        return self.frames(session, epoch, entry)


def _line(epoch: int, entry: Entry, words: str) -> bytes:
    return b"%d-%d %b\n" % (epoch, entry.seq, one_line(orjson.dumps(words)))


PLAIN = Plain()


class PlainRoutes:
    """Serves clients that read plain text."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Ask, and follow."""
        return [route("/plain", self.ask, "POST"), route("/plain", self.follow, "GET")]

    async def ask(self, request: Request) -> PlainTextResponse:
        """Take a turn."""
        services = self._services
        caller = await services.auth.caller(request)
        ref = TaskRef(caller.owner, session_id(request, "session"), new_task_id())
        async with services.limiter.counting_refusals(caller):
            body, words = await services.bodies.read(request, caller, _parse)
        turn = NewTurn(
            ref=ref,
            response=RESPONSE_PREFIX + ref.task,
            user="",
            create=True,
            input=[Message.model_validate({"role": "user", "type": "message", "content": words})],
            idempotency=idempotency_of(request),
            digest=digest_of(words, body),
            trace=trace_of(request),
            size=len(body),
        )
        start, headers = await begin(services, caller, turn)
        replicas = {name.decode(): value.decode() for name, value in headers}
        return PlainTextResponse(f"{start.task}\n", headers=replicas)

    async def follow(self, request: Request) -> EventStream:
        """Follow a task, or the whole session."""
        caller = await self._services.auth.caller(request)
        keys = caller.keys(session_id(request, "session"))
        task, cursor = task_id(request.query_params.get("task")), cursor_of(request)
        return await watch(
            self._services, keys, caller.visitor(), PLAIN, caller=caller, task=task, cursor=cursor
        )


def _parse(body: bytes) -> str:
    try:
        words = body.decode()
    except UnicodeDecodeError:
        raise InvalidBody("The body is not text in UTF-8.") from None
    if not words.strip():
        raise InvalidBody("The body is empty: send some text.")
    return words


class PlainErrors:
    """One line: the error's name and its text."""

    content_type = "text/plain; charset=utf-8"

    def status(self, problem: Problem) -> int:
        """The problem's own."""
        return problem.status

    def headers(self, problem: Problem) -> dict[str, str]:
        """None."""
        return {}

    def body(self, problem: Problem) -> bytes:
        """The line."""
        return f"{problem.word}: {problem.text}\n".encode()

    def schema(self, problems: Sequence[Problem]) -> Json:
        """Any text; those that can be are the examples."""
        return {"type": "string", "examples": [self.body(problem).decode() for problem in problems]}


_OPERATIONS = (
    Operation(
        ("POST",),
        "/plain",
        "askPlain",
        "Take a user's words; the answer is the task's id.",
        {200: (Text("text/plain", "8f14e45f\n"),)},
        TURN_ERRORS - {BadCursor},
        ("plainSession", "Idempotency-Key", "traceparent"),
        body=Text("text/plain", "/tokens 3"),
    ),
    Operation(
        ("GET",),
        "/plain",
        "followPlain",
        "Follow a task, or the whole session: a cursor and some words in each line.",
        {200: (Text("text/plain", '1760000000000-7 "tok0 "\n'),)},
        FOLLOW_ERRORS,
        ("plainSession", "plainTask", "cursor", "Last-Event-ID"),
    ),
)

_PARAMETERS = {
    "plainSession": parameter("query", "session", "The session.", required=True, pattern=ID),
    "plainTask": parameter("query", "task", "The task; absent: all of the session.", pattern=ID),
}

PROTOCOL = WireProtocol("/plain", PlainRoutes, _OPERATIONS, _PARAMETERS, PlainErrors())
