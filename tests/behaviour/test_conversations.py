"""The list of one's own conversations: what it tells of each, in which order, page by page; naming and deleting one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.admin.test_limits import limited
from tests.support.client import calls_of
from tests.support.names import names_of
from tests.support.waiting import wait_until
from turnstream.shared.broker import keys
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.session import session_list

if TYPE_CHECKING:
    import pytest

    from tests.support.client import Client
    from tests.support.stack import Stack

PATH = "/console/sessions"


async def page(client: Client, **params: Any) -> dict[str, Any]:
    """One page of the list."""
    answer = await client.http.get(PATH, params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def listed(client: Client, **params: Any) -> list[dict[str, Any]]:
    """The whole list."""
    found: list[dict[str, Any]] = []
    while True:
        told = await page(client, **params)
        found += told["conversations"]
        if told["next"] is None:
            return found
        params["cursor"] = told["next"]


async def one(client: Client, session: str) -> dict[str, Any]:
    """A conversation, as the list has it; empty while it has it not."""
    return next((each for each in await listed(client) if each["session"] == session), {})


async def test_a_conversation_is_listed_with_its_first_words_and_times(client: Client) -> None:
    """Its title is how it began, whatever was said since; its last sign of life is that of its last turn."""
    await client.turn("s1", "What is the\n weather?")
    first = await wait_until(lambda: one(client, "s1"), "the conversation to be listed")
    assert first["title"] == "What is the weather?"
    assert (first["named"], first["state"], first["calls"]) == (False, "ended", [])
    assert first["created_at"] <= first["active_at"] < first["expires_at"]
    await client.turn("s1", "And tomorrow?")
    again = await one(client, "s1")
    assert again["title"] == first["title"]
    assert again["active_at"] >= first["active_at"]
    assert again["created_at"] == first["created_at"]


async def test_a_completion_without_a_session_is_no_conversation(client: Client) -> None:
    """Each has a session for itself: they would fill the list. One whose session a header names is in it."""
    body = {
        "model": "demo",
        "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "hi"}],
    }
    for headers in ({}, {}, {"X-Session-Id": "s1"}):
        answer = await client.http.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
    named = await wait_until(lambda: one(client, "s1"), "the conversation to be listed")
    assert named["title"] == "hi"
    # Once more, by what the list has kept of them.
    for _ in range(2):
        assert [each["session"] for each in await listed(client)] == ["s1"]


async def test_a_long_beginning_is_cut_between_letters(client: Client) -> None:
    """Kept in few bytes, whatever is said; what has no text is called after its kind."""
    await client.turn("s1", "Ä" * 500)
    image = {"type": "image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    body = {
        "session_id": "s2",
        "input": [{"role": "user", "type": "message", "content": [image]}],
        "stream": True,
    }
    async with client.open("POST", "/process", json=body) as stream:
        await stream.all()
    await wait_until(lambda: one(client, "s2"), "both to be listed")
    assert (await one(client, "s1"))["title"] == "Ä" * 30 + "…"
    assert (await one(client, "s2"))["title"] == "image"


async def test_the_state_is_that_of_its_turns(client: Client) -> None:
    """Who is asked by one turn is needed, whatever else waits; what is asked is told; then it has ended."""
    async with client.process("s1", "/call weather {}", id="t1") as stream:
        await stream.until(calls_of)
        call = next(iter(calls_of(stream.frames)))
        asked = await wait_until(
            lambda: _in_state(client, "s1", "needs_you"), "the conversation to need its user"
        )
        assert [(each["task"], each["kind"], each["name"]) for each in asked["calls"]] == [
            ("t1", "function", "weather")
        ]
        assert [each["session"] for each in await listed(client, state="needs_you")] == ["s1"]
        assert await listed(client, state="ended") == []
        assert asked["calls"][0]["call"] == call["call_id"]
    async with client.process("s2", "/tokens 3000 20", id="t2") as stream:
        await stream.until(lambda frames: len(frames) > 5)
        await wait_until(lambda: _in_state(client, "s2", "running"), "the conversation to run")
    for session in ("s1", "s2"):
        assert (await client.stop(session)).status_code == 200
        assert (await one(client, session))["state"] == "ended"


async def _in_state(client: Client, session: str, state: str) -> dict[str, Any]:
    found = await one(client, session)
    return found if found.get("state") == state else {}


async def test_one_whose_first_turn_waits_for_a_worker_is_listed(stack: Stack) -> None:
    """No worker has had it yet."""
    client = await stack.front_end()
    async with client.process("s1", "hello"):
        found = await wait_until(lambda: one(client, "s1"), "the conversation to be listed")
        assert (found["state"], found["title"]) == ("queued", "hello")
        assert (await client.stop("s1")).status_code == 200


async def test_pages_have_each_once_the_newest_first(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where several expire in the same millisecond, and where more has to be looked at than a page shows."""
    monkeypatch.setattr(session_list, "AT_ONCE", 2)
    for number in range(5):
        await client.turn(f"s{number}", f"word{number} of all")
        await wait_until(partial(one, client, f"s{number}"), "it to be listed")
    for limit in (1, 2, 3, 100):
        names = [each["session"] for each in await listed(client, limit=limit)]
        assert names == ["s4", "s3", "s2", "s1", "s0"], limit
    monkeypatch.setattr(session_list, "MOST_LOOKED_AT", 2)
    assert [each["session"] for each in await listed(client, search="WORD1")] == ["s1"]
    assert (await page(client, search="word1"))["conversations"] == []
    assert await listed(client, search="nothing like it") == []


async def test_the_same_millisecond(client: Client, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker orders by name comes once each, over pages."""
    monkeypatch.setattr(session_list, "AT_ONCE", 2)
    for number in range(5):
        await client.turn(f"s{number}", "hello")
        await wait_until(partial(one, client, f"s{number}"), "it to be listed")
    owned = keys.owner_sessions("dev")
    redis: Any = stack.broker.primary
    score = await redis.zscore(owned, "s0")
    await redis.zadd(owned, {f"s{number}": score for number in range(5)})
    # What cannot be a session's name, or is of none, is passed over.
    await redis.zadd(owned, {b"\xff": score, "s3x": score})
    assert [each["session"] for each in await listed(client, limit=1)] == ["s4", "s3", "s2", "s1", "s0"]


async def test_a_name_stays_until_it_is_taken_away(client: Client) -> None:
    """It is one line; it is found by it; without it the first words are back."""
    await client.turn("s1", "hello")
    named = await client.http.post(f"{PATH}/s1", json={"title": "  My\n trip  "})
    assert named.json() == {"session": "s1", "title": "My trip"}
    found = await wait_until(lambda: one(client, "s1"), "it to be listed")
    assert (found["title"], found["named"]) == ("My trip", True)
    assert [each["session"] for each in await listed(client, search="trip")] == ["s1"]
    await client.turn("s1", "more")
    assert (await one(client, "s1"))["title"] == "My trip"
    assert (await client.http.post(f"{PATH}/s1", json={"title": ""})).status_code == 200
    assert (await one(client, "s1"))["title"] == "hello"
    for body in ({}, {"title": 1}, {"title": "x" * 201}, {"title": "x", "more": 1}):
        assert (await client.http.post(f"{PATH}/s1", json=body)).status_code == 422, body


async def test_a_cleared_one_begins_with_other_words(client: Client) -> None:
    """What was forgotten is not in its title."""
    await client.turn("s1", "a secret")
    assert (await wait_until(lambda: one(client, "s1"), "it to be listed"))["title"] == "a secret"
    assert (await client.http.post("/liteAgent/v1/clear", params={"sessionId": "s1"})).status_code == 200
    assert (await one(client, "s1"))["title"] == ""
    await client.turn("s1", "hello")
    assert (await one(client, "s1"))["title"] == "hello"


async def test_what_is_deleted_is_gone(client: Client, stack: Stack) -> None:
    """What runs in it ends first; nothing that was said is left, and it is not in the list."""
    await client.turn("s1", "hello", id="t1")
    await client.turn("s2", "stays")
    async with client.process("s1", "/call weather {}", id="t2") as stream:
        await stream.until(calls_of)
        gone = await client.http.delete(f"{PATH}/s1")
        assert gone.json() == {"session": "s1", "deleted": True}
    assert [each["session"] for each in await listed(client)] == ["s2"]
    assert (await client.http.delete(f"{PATH}/s1")).status_code == 404
    assert (await client.http.post(f"{PATH}/s1", json={"title": "x"})).status_code == 404
    left = await names_of(stack.broker.sessions, f"{SessionKeys('dev', 's1').prefix}*")
    # That a call led to a turn expires by itself.
    assert all(b":call:" in name for name in left), left
    await client.turn("s1", "anew")
    assert (await wait_until(lambda: one(client, "s1"), "it to be listed"))["title"] == "anew"


async def test_a_branch_tells_what_it_began_with(client: Client) -> None:
    """It begins with the same words, and names the turn that it goes on from."""
    await client.turn("s1", "hello", id="t1")
    made = await client.http.post("/liteAgent/v1/initSession", params={"forkOf": "s1", "forkTask": "t1"})
    branch = made.json()["sessionId"]
    row = (await client.http.get(f"{PATH}/{branch}")).json()
    assert (row["title"], row["forked_from"]) == ("hello", {"session": "s1", "task": "t1"})
    assert "forked_from" not in (await client.http.get(f"{PATH}/s1")).json()


async def test_only_ones_own(client: Client, stack: Stack) -> None:
    """Not those of another owner, nor of a user who is not named."""
    await client.turn("s1", "mine")
    await client.turn("s2", "ada's", user_id="ada")
    (other,) = await limited(stack, client)
    await other.turn("s3", "theirs")
    await wait_until(lambda: one(other, "s3"), "it to be listed")
    assert [each["session"] for each in await listed(other)] == ["s3"]
    assert [each["session"] for each in await listed(client)] == ["s1"]
    assert [each["session"] for each in await listed(client, user_id="ada")] == ["s2", "s1"]
    assert (await client.http.get(f"{PATH}/s2")).status_code == 404
    assert [each["session"] for each in await listed(client, user_id="bob")] == ["s1"]
    assert (await client.http.delete(f"{PATH}/s2", params={"user_id": "bob"})).status_code == 404
    assert (await other.http.delete(f"{PATH}/s1")).status_code == 404
    assert (await client.http.get(PATH, params={"state": "x"})).status_code == 400
    for cursor in ("x", "1:", "1:a/b", "x:s1"):
        assert (await client.http.get(PATH, params={"cursor": cursor})).status_code == 400, cursor
    operator = stack.client(client.base_url, stack.admin)
    assert (await operator.http.get(PATH)).status_code == 403
