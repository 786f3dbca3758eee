"""A request's address and headers: cursors and ids as they come, errors by what is wrong."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from turnstream.api.http.params import cursor_of, route, session_id, task_id
from turnstream.shared.errors import BadCursor, BadRequest, NoSession, NoTask
from turnstream.shared.session.entry import Cursor


def request(last: str | None = None, **query: str) -> Request:
    """A request with this query and ``Last-Event-ID``."""
    headers = [] if last is None else [(b"last-event-id", last.encode())]
    return Request({"type": "http", "headers": headers, "query_string": urlencode(query).encode()})


def test_the_header_is_stronger_than_the_query() -> None:
    """A browser that reconnects sends what it saw last; the address is as old as the page."""
    assert cursor_of(request("7-3", cursor="7-1")) == Cursor(7, 3)
    assert cursor_of(request("", cursor="7-1")) == Cursor(7, 1)
    assert cursor_of(request()) is None


@pytest.mark.parametrize("text", ["7", "7-", "-3", "7-3-1", "a-b", "\uff17-3", "7-" + "1" * 16])
def test_a_malformed_cursor_is_refused(text: str) -> None:
    """It is not taken for a fresh start."""
    with pytest.raises(BadCursor):
        cursor_of(request(cursor=text))


def test_a_session_is_named() -> None:
    """Without one the error names the parameter; a name that no session can have is a session that is not there."""
    assert session_id(request(sessionId="s1"), "sessionId") == "s1"
    with pytest.raises(BadRequest, match="sessionId: missing"):
        session_id(request(), "sessionId")
    with pytest.raises(NoSession):
        session_id(request(sessionId="a/b"), "sessionId")


def test_a_task_may_be_named() -> None:
    """None, or empty: none is meant."""
    assert (task_id(None), task_id(""), task_id("t1")) == (None, None, "t1")
    with pytest.raises(NoTask):
        task_id("..")


def test_a_route_takes_its_methods_alone() -> None:
    """HEAD is not taken with GET: a stream would be made that nobody reads."""

    async def endpoint(_request: Request) -> None: ...

    assert route("/x", endpoint, "GET").methods == {"GET"}
