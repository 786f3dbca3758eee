"""What bad input gets: a true status code, a stable code, and a text that names the field."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import asked, calls_of, terminal
from turnstream.shared.api_keys import ApiKeys, make_token

if TYPE_CHECKING:
    import httpx

    from tests.support.client import Client
    from tests.support.stack import Stack


def refused(answer: httpx.Response, status: int, code: Any, *words: str) -> None:
    """The answer has this status and code, and its text names these words."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    # LiteAgent's routes have a number for each, and the word beside it.
    assert code in (body["code"], body.get("reason"))
    for word in words:
        assert word in body["message"], body["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", ("not JSON", "line 1, column 2")),
        (b"", ("empty",)),
        (b"[]", ("object",)),
        (b"\xff\xfe", ("UTF-8",)),
        (b'{"input": []}', ("input",)),
        (b'{"input": "text"}', ("input: Input should be an array",)),
        (b'{"input": [null], "n": 0}', ("input[0]: Input should be an object", "; n: ")),
        (b'{"input": [{"role": 5}]}', ("input[0].role",)),
        (
            b'{"input": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}',
            ("input[0].content[0].text",),
        ),
        (b'{"input": [{"role": "user", "content": "x"}], "n": 9}', ("n",)),
        (b'{"input": [{"role": "user", "content": "x"}], "session_id": "a b"}', ("session_id",)),
        (b'{"input": [{"role": "user", "content": "x"}], "session_id": "{x}"}', ("session_id",)),
        (b'{"input": [{"role": "user", "content": "x"}], "id": "../../etc"}', ("id",)),
    ],
)
async def test_a_wrong_process_body_is_named(client: Client, body: bytes, words: tuple[str, ...]) -> None:
    """Not JSON, wrong types, wrong values: 422 with the place."""
    refused(await client.http.post("/process", content=body), 422, "invalid_body", *words)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", ()),
        (b'{"content": 5}', ("content",)),
        (b'{"content": []}', ("content",)),
        (b'{"content": [{"type": "sound", "message": "x"}]}', ("content", "type")),
        (b'{"content": [{"type": "text"}]}', ("content", "message")),
        (b'{"content": [{"type": "text", "message": "x"}], "taskId": "%s"}' % (b"x" * 37), ("taskId",)),
    ],
)
async def test_a_wrong_chat_body_is_named(client: Client, body: bytes, words: tuple[str, ...]) -> None:
    """LiteAgent's bodies are checked the same way."""
    session = await client.init()
    answer = await client.http.post("/liteAgent/v1/chat", params={"sessionId": session}, content=body)
    refused(answer, 422, "invalid_body", *words)


@pytest.mark.parametrize("name", ["a b", "{x}", "..", "é", "x" * 129])
async def test_what_an_id_may_be_is_said_in_words(client: Client, stack: Stack, name: str) -> None:
    """In both protocols and for operators, not as a regular expression."""
    words = ("letters (A-Z, a-z), digits and _ . : @ -, at most 128", "36", "not '.' or '..'")
    message = {"role": "user", "content": "x"}
    for field in ("session_id", "id", "response_id"):
        answer = await client.http.post("/process", json={"input": [message], field: name})
        refused(answer, 422, "invalid_body", f"{field}: An id is made of", *words)
    session = await client.init()
    if len(name) <= 36:
        content = [{"type": "text", "message": "x"}]
        answer = await client.http.post(
            "/liteAgent/v1/chat", params={"sessionId": session}, json={"content": content, "taskId": name}
        )
        refused(answer, 422, "invalid_body", "taskId: An id is made of", *words)
    admin = {"Authorization": f"Bearer {stack.admin}"}
    answer = await client.http.post("/admin/v1/keys", json={"owner": name}, headers=admin)
    refused(answer, 422, "invalid_body", "owner: An id is made of", *words)
    answer = await client.http.post("/admin/v1/stop", json={"refs": [name]}, headers=admin)
    refused(answer, 422, "invalid_body", "refs[0]: A task is named owner/session/task")


async def test_another_address_is_no_redirect(client: Client) -> None:
    """An address is made of the Host header nowhere: a redirect could lead a key to another server."""
    for path in ("/process/", "/liteAgent/v1/chat/"):
        refused(await client.http.post(path, content=b"{}"), 404, "not_found")


async def test_deeply_nested_bodies_are_refused(client: Client) -> None:
    """Ten thousand brackets are a 4xx, not a crash."""
    deep = b'{"input": [{"role": "user", "content": [{"type": "data", "data": %s}]}]}'
    for open_, close in ((b'{"a":', b"}"), (b"[", b"]")):
        body = deep % (open_ * 10_000 + b"1" + close * 10_000)
        answer = await client.http.post("/process", content=body)
        assert answer.status_code == 422


async def test_a_body_that_is_too_large_is_refused(stack: Stack) -> None:
    """Beyond the cap nothing is read: 413."""
    await stack.worker()
    client = await stack.front_end(max_image_body=2048, max_body=1024)
    refused(await client.http.post("/process", json=asked("s1", "x" * 4000)), 413, "body_too_large")
    answer = await client.http.post(
        "/liteAgent/v1/callback", params={"sessionId": "s"}, json={"id": "c", "result": "x" * 4000}
    )
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "header", [b"", b"Bearer", b"Bearer xx", b"Basic abc", b"sk-0123456789abcdef", b"Bearer sk-\xe9"]
)
async def test_a_missing_or_odd_token_is_a_401(client: Client, header: bytes) -> None:
    """No usable key: 10001, the code that LiteAgent clients know."""
    headers = {b"Authorization": header} if header else {}
    client.http.headers.pop("authorization")
    refused(await client.http.get("/liteAgent/v1/history", headers=headers), 401, 10001)


async def test_an_unknown_key_is_a_401(client: Client, stack: Stack) -> None:
    """A well formed key that is not ours: 10004."""
    stranger = stack.client(client.base_url, make_token())
    refused(await stranger.http.get("/liteAgent/v1/history"), 401, 10004)


async def test_an_expired_key_is_a_401(client: Client, stack: Stack) -> None:
    """A key whose time is over is as good as none."""
    token = make_token()
    await ApiKeys(stack.broker.primary).register(token, owner="acme", agent="demo", expires=1)
    refused(await stack.client(client.base_url, token).http.get("/liteAgent/v1/history"), 401, 10004)


async def test_an_admin_key_does_not_chat(client: Client, stack: Stack) -> None:
    """Scopes keep operators and users apart."""
    operator = stack.client(client.base_url, stack.admin)
    refused(await operator.http.post("/process", json=asked("s1", "hi")), 403, "forbidden")


async def test_another_agents_key_does_not_see_the_session(client: Client, stack: Stack) -> None:
    """The same owner with a key for another agent is a stranger to the session."""
    token = make_token()
    await ApiKeys(stack.broker.primary).register(token, owner="dev", agent="demo-researcher")
    whole = await client.turn("s1", "hi", id="t1")
    other = stack.client(client.base_url, token)
    # Also through a front end that has to read what it is asked for.
    far = stack.client((await stack.front_end()).base_url, token)
    for response, cursor in itertools.product(("t1", ""), ("", whole[0].id)):
        for each in (other, far):
            async with each.follow("s1", response, cursor) as stream:
                await stream.response.aread()
                refused(stream.response, 404, 30002)
    refused(await other.http.post("/process", json=asked("s1", "hi")), 404, 30002)


async def test_another_user_does_not_see_the_session(client: Client) -> None:
    """A session that was made for one user is not found by another."""
    await client.turn("s1", "hi", user_id="ann")
    refused(await client.http.post("/process", json=asked("s1", "hi", user_id="bob")), 404, 30002)
    await client.turn("s1", "hi", user_id="ann")


async def test_two_owners_may_use_the_same_session_id(client: Client, stack: Stack) -> None:
    """A session id chosen by a client is scoped to its key's owner."""
    token = make_token()
    await ApiKeys(stack.broker.primary).register(token, owner="acme", agent="demo")
    other = stack.client(client.base_url, token)
    mine, theirs = await client.turn("s1", "mine"), await other.turn("s1", "theirs")
    assert mine[0].data["id"] != theirs[0].data["id"]
    assert {entry.task for entry in await stack.entries("s1")}.isdisjoint(
        {entry.task for entry in await stack.entries("s1", "acme")}
    )


async def test_an_unknown_task_is_a_404(client: Client) -> None:
    """The session exists, the task does not."""
    await client.turn("s1", "hi")
    async with client.follow("s1", "nope") as stream:
        assert stream.response.status_code == 404
        assert b"task_not_found" in await stream.response.aread()


async def test_a_missing_session_parameter_is_named(client: Client) -> None:
    """LiteAgent's routes say which parameter they want."""
    refused(await client.http.get("/liteAgent/v1/history"), 400, "bad_request", "sessionId")


async def test_an_expired_call_is_a_410(client: Client, stack: Stack) -> None:
    """An answer after the deadline is refused, and the turn ends as failed."""
    from tests.support.client import terminal
    from tests.support.waiting import wait_until
    from turnstream.shared.broker.keys import SessionKeys

    async with client.process("s1", "/call f {}", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))

        async def parked() -> bool:
            return await stack.status("s1", "t1") == "parked"

        await wait_until(parked, "the turn to park")
        # Its deadline is an hour away; the test moves it.
        task = SessionKeys("dev", "s1").task("t1")
        await stack.broker.sessions.hset(task, "parked_until", "1")  # type: ignore[misc]
        refused(await client.callback("s1", call["call_id"], 1), 410, "call_expired")
        await _sweep(stack, "t1")
        ended = terminal(await stream.all())
        assert ended is not None
        assert ended["error"]["code"] == "call_expired"
    refused(await client.callback("s1", call["call_id"], 1), 410, "call_expired")


async def _sweep(stack: Stack, task: str) -> None:
    """Do now what a rescuer would do at the hint's time."""
    from turnstream.shared.broker.keys import TaskRef
    from turnstream.shared.session.endings import Ender
    from turnstream.shared.session.queue import LaunchQueue
    from turnstream.worker.rescuer import Rescuer

    ender = Ender(stack.tasks, stack.log, LaunchQueue(stack.broker.primary), stack.broker.primary)
    await Rescuer(ender, stack.settings()).sweep(TaskRef("dev", "s1", task), 0)


async def test_an_answer_that_nobody_could_read_again_is_refused(client: Client) -> None:
    """Nested deeper than 64 levels; the call stays open, and a right answer is taken."""
    async with client.process("s1", "/call f {}", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        deep: Any = "x"
        for _ in range(65):
            deep = [deep]
        refused(await client.callback("s1", call["call_id"], deep), 422, "invalid_body")
        assert (await client.callback("s1", call["call_id"], deep[0])).status_code == 200
        ended = terminal(await stream.all())
    assert ended is not None
    assert ended["status"] == "completed"
