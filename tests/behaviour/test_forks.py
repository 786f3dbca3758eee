"""Sessions that begin with what was said in another one."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.admin.test_limits import limited
from tests.support.client import calls_of, check_whole, text_of
from tests.support.names import names_of
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.session.storage import Storage

if TYPE_CHECKING:
    import httpx

    from tests.support.client import Client
    from tests.support.stack import Stack


async def forked(client: Client, session: str, task: str, key: str = "") -> httpx.Response:
    """Ask for a session that begins with another one's turns."""
    headers = {"Idempotency-Key": key} if key else {}
    params = {"forkOf": session, "forkTask": task}
    return await client.http.post("/liteAgent/v1/initSession", params=params, headers=headers)


async def fork(client: Client, session: str, task: str, key: str = "") -> str:
    """As `forked`, of one that can be: the new session."""
    answer = await forked(client, session, task, key)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["sessionId"]
    return found


async def said(client: Client, session: str) -> list[Any]:
    """What the session's history has, but for the session's name."""
    answer = await client.http.get("/liteAgent/v1/history", params={"sessionId": session})
    assert answer.status_code == 200
    return [{**each, "sessionId": ""} for each in answer.json()]


async def remembered(stack: Stack, session: str) -> list[bytes]:
    """The session's memory."""
    elements: list[bytes] = await stack.broker.sessions.lrange(SessionKeys("dev", session).memory, 0, -1)  # type: ignore[misc]
    return elements


async def test_it_begins_with_the_first_turns_and_goes_on_by_itself(client: Client, stack: Stack) -> None:
    """History and memory are the source's up to there; what is said in one of them then is said in that one."""
    first = await client.turn("s1", "one", id="t1")
    begun = await said(client, "s1")
    await client.turn("s1", "two", id="t2")
    whole, memory = await said(client, "s1"), await remembered(stack, "s1")
    session = await fork(client, "s1", "t1")
    assert await said(client, session) == begun
    assert await remembered(stack, session) == memory[:1]
    frames = await client.turn(session, "three", id="t3")
    check_whole(frames)
    assert frames[0].seq == first[-1].seq + 1
    assert len(await remembered(stack, session)) == 2
    assert await said(client, "s1") == whole
    # All of it is there, and it can be forked again.
    again = await fork(client, session, "t3")
    assert await said(client, again) == await said(client, session)
    # The turns themselves are those of the session in which they were asked.
    assert (
        await client.http.get("/process", params={"session_id": session, "response_id": "t1"})
    ).status_code == 404


@pytest.mark.parametrize("end", ["clear", "stop"])
async def test_it_outlives_what_it_was_made_of(client: Client, stack: Stack, end: str) -> None:
    """Whatever becomes of the source, and whatever had become of its last turn."""
    async with client.process("s1", "/call weather", id="t1") as stream:
        await stream.until(calls_of)
        await client.stop("s1", "t1")
    session = await fork(client, "s1", "t1")
    before, memory = await said(client, session), await remembered(stack, session)
    if end == "clear":
        await client.http.post("/liteAgent/v1/clear", params={"sessionId": "s1"})
        assert (await forked(client, "s1", "t1")).status_code == 410
    assert (await said(client, session), await remembered(stack, session)) == (before, memory)
    assert text_of(await client.turn(session, "and now?")) == "You said: and now?"


async def test_a_client_that_asks_again_gets_the_same_session(client: Client, stack: Stack) -> None:
    """At any front end, also when it is in use by then; for something else the key is refused."""
    await client.turn("s1", "one", id="t1")
    await client.turn("s1", "two", id="t2")
    other = await stack.front_end()
    session = await fork(client, "s1", "t1", "k1")
    await client.turn(session, "three")
    assert await fork(other, "s1", "t1", "k1") == session
    assert len(await remembered(stack, session)) == 2
    refused = await forked(client, "s1", "t2", "k1")
    assert (refused.status_code, refused.json()["reason"]) == (422, "idempotency_mismatch")
    assert await fork(client, "s1", "t1") != session


async def test_who_may_not_see_a_session_cannot_fork_it(client: Client, stack: Stack) -> None:
    """Another owner's is as unknown as one that never was; so is a turn."""
    await client.turn("s1", "one", id="t1")
    (stranger,) = await limited(stack, client, storage=100_000_000)
    refused = [await forked(stranger, "s1", "t1"), await forked(client, "s9", "t1")]
    assert [(each.status_code, each.json()["code"]) for each in refused] == [(404, 30002)] * 2
    assert refused[0].content == refused[1].content
    assert (await forked(client, "s1", "t9")).status_code == 404
    missing = await client.http.post("/liteAgent/v1/initSession", params={"forkOf": "s1"})
    assert missing.status_code == 400


async def test_a_turn_that_has_not_ended_is_not_forked(client: Client) -> None:
    """What it will have said is not known; the turns before it are."""
    await client.turn("s1", "one", id="t1")
    async with client.process("s1", "/call weather", id="t2") as stream:
        call = calls_of(await stream.until(calls_of))[0]["call_id"]
        assert (await forked(client, "s1", "t2")).status_code == 409
        session = await fork(client, "s1", "t1")
        assert len(await said(client, session)) == 2
        await client.callback("s1", call, "sun")
        check_whole(await stream.all())


async def test_large_data_goes_along(client: Client, stack: Stack) -> None:
    """It stands once in either session, and each counts what it holds."""
    data = base64.b64encode(os.urandom(600_000)).decode()
    image = {"type": "image", "image_url": f"data:image/png;base64,{data}"}
    content = [image, {"type": "text", "text": "look"}]
    await client.turn("s1", "", input=[{"role": "user", "type": "message", "content": content}], id="t1")
    session = await fork(client, "s1", "t1")
    storage = Storage(stack.broker.primary, stack.broker.sessions)
    await storage.report(SessionKeys("dev", "s1"))
    await client.http.post("/liteAgent/v1/clear", params={"sessionId": "s1"})
    assert data in orjson.dumps(await said(client, session)).decode()
    await client.turn(session, "and now?")
    await storage.report(SessionKeys("dev", session))
    _, _, held = await storage.of("dev", 9)
    size = {each.session: each.bytes for each in held}
    assert len(data) < size[session] < len(data) + 40_000


async def test_a_fork_counts_for_its_owners_storage(stack: Stack) -> None:
    """One that does not fit is not made, and nothing of it is left."""
    await stack.worker()
    (client,) = await limited(stack, await stack.front_end(), storage=6_000_000)
    await client.turn("s1", "x" * 150_000, id="t1")
    answers = [await forked(client, "s1", "t1") for _ in range(16)]
    statuses = [answer.status_code for answer in answers]
    assert statuses == sorted(statuses)
    assert {statuses[0], statuses[-1]} == {200, 429}
    made = {answer.json()["sessionId"] for answer in answers if answer.status_code == 200}
    names = await names_of(stack.broker.sessions, "ts:{acme/*}:*")
    assert {name.decode().partition("/")[2].partition("}")[0] for name in names} == {"s1", *made}
    assert not [name for name in names if b":staged:" in name]
