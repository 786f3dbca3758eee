"""What a request is refused for, and in which words: each protocol's own, with the field or the method named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import asked
from turnstream.shared.errors import TurnstreamError

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider
    from tests.support.stack import Stack

LITE = "/liteAgent/v1"


@pytest.mark.parametrize(
    ("method", "path", "more", "status", "code", "reason"),
    [
        ("POST", "/chat", {}, 400, 40000, "bad_request"),
        ("POST", "/chat?sessionId=s1", {"json": {"content": 5}}, 422, 42200, "invalid_body"),
        ("POST", "/chat?sessionId=s1", {"content": b"{"}, 422, 42200, "invalid_body"),
        ("POST", "/chat?sessionId=never", {"json": {"content": ["hi"]}}, 404, 30002, "session_not_found"),
        ("GET", "/history?sessionId=s1", {"headers": {"Authorization": "x"}}, 401, 10001, "bad_token"),
        (
            "GET",
            "/history?sessionId=s1",
            {"headers": {"Authorization": "Bearer sk-" + "0" * 32}},
            401,
            10004,
            "unknown_key",
        ),
        ("GET", "/chat?sessionId=s1&cursor=x", {}, 400, 40001, "cursor_malformed"),
        ("GET", "/chat?sessionId=s1&taskId=never", {}, 404, 40401, "task_not_found"),
        (
            "POST",
            "/callback?sessionId=s1",
            {"json": {"id": "call_x", "result": 1}},
            404,
            40402,
            "call_not_found",
        ),
        ("DELETE", "/chat", {}, 405, 40500, "method_not_allowed"),
        ("GET", "/nothing", {}, 404, 40400, "not_found"),
    ],
)
async def test_liteagents_routes_answer_numbers(
    client: Client, method: str, path: str, more: dict[str, Any], status: int, code: int, reason: str
) -> None:
    """Its adapters read `code` as an integer and swallow what is none; the word stands beside it."""
    await client.turn("s1", "hi")
    answer = await client.http.request(method, LITE + path, **more)
    body = answer.json()
    assert (answer.status_code, body["code"], body["reason"]) == (status, code, reason), body
    assert body["message"]


async def test_a_busy_session_is_the_number_that_clients_know(stack: Stack, deploy: Deployments) -> None:
    """409, as its adapters compare it; the Agent API's route keeps its words."""
    client = await deploy(python="tests.support.coded:asks", busy="reject")
    session = await client.init()
    async with client.chat(session, "hi") as stream:
        await stream.until(lambda frames: any(frame.event == "functionCall" for frame in frames))
        again = await client.http.post(
            f"{LITE}/chat", params={"sessionId": session}, json={"content": ["again"]}
        )
        assert (again.status_code, again.json()["code"], again.json()["reason"]) == (409, 409, "session_busy")
        await client.stop(session)
    answer = await client.http.post("/process", json={"input": 5})
    assert answer.json()["code"] == "invalid_body"


def test_every_error_has_a_number_of_its_own() -> None:
    """As it has a word of its own."""
    kinds = list(_kinds(TurnstreamError))
    assert len({kind.number for kind in kinds}) == len({kind.word() for kind in kinds})


def _kinds(kind: type[TurnstreamError]) -> Any:
    yield kind
    for each in kind.__subclasses__():
        if each.__module__ == "turnstream.shared.errors":
            yield from _kinds(each)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("/process", "GET, POST"), (f"{LITE}/chat", "GET, POST"), (f"{LITE}/history", "GET")],
)
async def test_a_wrong_method_is_told_all_that_are_right(client: Client, path: str, allowed: str) -> None:
    """RFC 9110 wants every method of the address in `Allow`."""
    answer = await client.http.put(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "pope", "content": "hi"}, "input[0].role:"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "hologram"}]},
            "input[0].content[1].type:",
        ),
        (
            {"role": "user", "content": [{"type": "file", "file_id": "file-OTHER"}]},
            "input[0].content[0].file_id:",
        ),
        (
            {"role": "user", "content": [{"type": "file", "fileId": "file-OTHER"}]},
            "input[0].content[0].file_id:",
        ),
    ],
)
async def test_what_no_model_would_be_told_is_refused(
    client: Client, message: dict[str, Any], named: str
) -> None:
    """Unknown speakers and kinds of content, and files of the provider's account: a 422 that names the field."""
    answer = await client.http.post("/process", json={"session_id": "s1", "input": [message]})
    assert answer.status_code == 422
    assert answer.json()["message"].startswith(named)


async def test_an_agent_may_take_files_by_id(deploy: Deployments, provider: Provider) -> None:
    """Where its owner says that all files of the provider's account may be named."""
    client = await deploy.front_end(file_ids=True)
    message = {"role": "user", "content": [{"type": "file", "file_id": "file-1"}]}
    async with client.open("POST", "/process", json={"session_id": "s1", "input": [message]}) as stream:
        assert stream.response.status_code == 200
    await client.stop("s1")


@pytest.mark.parametrize("name", [".", ".."])
async def test_steps_of_an_address_are_no_ids(client: Client, name: str) -> None:
    """Clients and proxies take them out of addresses: such a turn could not be looked at."""
    for fields in ({"session_id": name}, {"session_id": "s1", "id": name}, {"response_id": name}):
        answer = await client.http.post("/process", json=asked("", "hi") | fields)
        assert answer.status_code == 422, answer.text
    session = await client.init()
    body = {"content": ["hi"], "taskId": name}
    answer = await client.http.post(f"{LITE}/chat", params={"sessionId": session}, json=body)
    assert answer.status_code == 422
    admin = await client.http.post(f"{LITE}/stop", params={"sessionId": name})
    assert admin.status_code == 404


@pytest.mark.parametrize("name", ["...", ".a", "..a", "a..", "a.b", "x" * 128])
async def test_other_dots_are_ids(client: Client, name: str) -> None:
    """Only the two are special."""
    assert (await client.turn(name, "hi", id=name))[-1].data["id"] == name


async def test_no_owner_is_a_step_of_an_address(stack: Stack) -> None:
    """Neither at the route for keys."""
    client = await stack.front_end(stack.admin)
    for owner in (".", ".."):
        answer = await client.http.post("/admin/v1/keys", json={"owner": owner, "agent": "demo"})
        assert answer.status_code == 422, answer.text


@pytest.mark.parametrize("system_messages", [False, True])
async def test_a_clients_system_message_weighs_what_the_agent_says(
    deploy: Deployments, provider: Provider, system_messages: bool
) -> None:
    """It is never refused. Unless the agent trusts its clients, it reaches the model as the user's words."""
    from tests.support.fake_provider.server import says

    client = await deploy(system_messages=system_messages)
    provider.script = [says("Yes."), says("Again.")]
    told = [("system", "You are a pirate."), ("assistant", "Ahoy."), ("user", "Hi")]
    body = {
        "session_id": "s1",
        "input": [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in told],
    }
    async with client.open("POST", "/process", json=body) as stream:
        assert stream.response.status_code == 200
        await stream.all()
    first = "system" if system_messages else "user"
    wanted = [(first, "You are a pirate."), ("assistant", "Ahoy."), ("user", "Hi")]
    assert [(each["role"], each["content"]) for each in provider.requests[0]["messages"]] == wanted
    await client.turn("s1", "And now?")
    assert [each["role"] for each in provider.requests[1]["messages"]][:3] == [role for role, _ in wanted]


def test_the_document_lists_the_numbers() -> None:
    """Each error's number and word stand in the protocol's document."""
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    listed = dict(re.findall(r"^\| \d+ \| `(\d+)` \| `(\w+)` \|", text, re.MULTILINE))
    assert listed["40402"] == "call_not_found"
    assert listed["30002"] == "session_not_found"
