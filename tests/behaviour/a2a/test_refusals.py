"""What is refused, and how: by both bindings, with the codes and reasons of the specification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.support.a2a import BY_HTTP, VERSION, published, said
from tests.support.stack import Stack
from turnstream.shared.agents.config import Agents
from turnstream.shared.api_keys import ApiKeys, make_token

if TYPE_CHECKING:
    from tests.conftest import Place
    from tests.support.client import Client

NOT_FOUND = (-32001, 404, "TASK_NOT_FOUND")
UNSUPPORTED = (-32004, 400, "UNSUPPORTED_OPERATION")
INVALID = (-32602, 400, "INVALID_PARAMS")


async def called(client: Client, method: str, params: Any = None, **headers: str) -> Any:
    """The answer of JSON-RPC."""
    call = {"jsonrpc": "2.0", "id": "7", "method": method} | ({} if params is None else {"params": params})
    answer = await client.http.post("/a2a/demo", json=call, headers={**VERSION, **headers})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["jsonrpc"], told["id"]) == ("2.0", "7")
    return told


async def refused(client: Client, method: str, params: dict[str, Any]) -> tuple[int, int, str]:
    """The code, status and reason with which both bindings refuse the same."""
    error = (await called(client, method, params))["error"]
    verb, path = BY_HTTP[method]
    rest = dict(params)
    for name in ("id", "taskId"):
        if "{" + name + "}" in path:
            path = path.replace("{" + name + "}", str(rest.pop(name)))
    given: Any = {"params": rest} if verb == "GET" else {} if verb == "DELETE" else {"json": rest}
    answer = await client.http.request(verb, "/a2a/demo" + path, headers=VERSION, **given)
    told = answer.json()["error"]
    assert told["code"] == answer.status_code
    assert told["message"] == error["message"]
    assert told["details"] == error["data"]
    (info,) = [each for each in error["data"] if each["@type"].endswith("google.rpc.ErrorInfo")]
    assert info["domain"] == "a2a-protocol.org"
    return error["code"], answer.status_code, info["reason"]


async def another(stack: Stack, client: Client, owner: str, agent: str) -> Client:
    """A client with a key of its own."""
    token = make_token()
    await ApiKeys(stack.broker.primary).register(token, owner=owner, agent=agent)
    return stack.client(client.base_url, token)


async def test_ids_of_nobody_and_of_others(client: Client, stack: Stack) -> None:
    """Wherever an id can stand: the same, whether there is none or it is another owner's or agent's."""
    answer = await client.http.post("/a2a/demo/message:send", json=said("/call f {}"), headers=VERSION)
    task = answer.json()["task"]
    call = task["status"]["message"]["parts"][1]["data"]["callId"]
    stranger = await another(stack, client, "eve", "demo")
    critic = await another(stack, client, "dev", "demo-critic")
    frames = await critic.turn("s9", "hi")
    theirs = f"s9~{frames[0].data['id'].removeprefix('response_')}"
    ids = {"nobody~nothing", "nonsense", f"{task['contextId']}~nothing", "~", "a~b~c", "../x~y"}
    for who, named in [(client, each) for each in (*ids, theirs)] + [(stranger, task["id"])]:
        if "/" in named:
            assert (await called(who, "GetTask", {"id": named}))["error"]["code"] == -32001
            continue
        for method in ("GetTask", "CancelTask", "SubscribeToTask"):
            assert await refused(who, method, {"id": named}) == NOT_FOUND, (method, named)
        config = {"taskId": named, "id": "x"}
        for method in ("GetTaskPushNotificationConfig", "DeleteTaskPushNotificationConfig"):
            assert await refused(who, method, config) == NOT_FOUND, (method, named)
        assert await refused(who, "ListTaskPushNotificationConfigs", {"taskId": named}) == NOT_FOUND
        config = {"taskId": named, "url": "https://example.com/"}
        assert await refused(who, "CreateTaskPushNotificationConfig", config) == NOT_FOUND
        for method in ("SendMessage", "SendStreamingMessage"):
            assert await refused(who, method, said("x", taskId=named)) == NOT_FOUND, (method, named)
            data = {"callId": call, "result": 1}
            assert await refused(who, method, said(data=data, taskId=named)) == NOT_FOUND, (method, named)
    assert (
        await refused(client, "SendMessage", said(data={"callId": "x", "result": 1}, taskId=task["id"]))
        == NOT_FOUND
    )
    listed = (await called(stranger, "ListTasks"))["result"]
    assert listed == {"tasks": [], "nextPageToken": "", "pageSize": 0, "totalSize": 0}
    # Another one's context is one's own of that name.
    mine = await stranger.http.post(
        "/a2a/demo/message:send", json=said("hi", contextId=task["contextId"]), headers=VERSION
    )
    assert mine.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert len((await called(client, "ListTasks"))["result"]["tasks"]) == 1


async def test_a_task_of_another_agent_of_the_key(client: Client, stack: Stack) -> None:
    """An address is its agent's: what the same key has with another one is not found there."""
    critic = await another(stack, client, "dev", "demo-critic")
    async with critic.process("theirs", "hi", id="t1") as turn:
        await turn.all()
    token = make_token()
    await ApiKeys(stack.broker.primary).register(token, owner="dev", agent="demo", others=("demo-critic",))
    both = stack.client(client.base_url, token)
    for method in ("GetTask", "CancelTask", "SubscribeToTask"):
        theirs, nobodys = [await refused(both, method, {"id": name}) for name in ("theirs~t1", "nobodys~t1")]
        assert theirs == nobodys == (-32001, 404, "TASK_NOT_FOUND")
    told = await called(both, "SendMessage", said("hi", taskId="theirs~t1"))
    assert told["error"]["code"] == -32001
    assert (await called(both, "ListTasks"))["result"]["tasks"] == []


async def test_messages_that_are_wrong(client: Client) -> None:
    """The field is named, also apart from the words."""
    message = said("hi")["message"]
    for wrong, field in (
        ({}, "message"),
        ({"message": {"messageId": "123"}}, "message.role"),
        ({"message": {**message, "parts": []}}, "message.parts"),
        ({"message": {**message, "parts": [{}]}}, "message.parts[0]"),
        ({"message": {**message, "parts": [{"text": "a", "url": "b"}]}}, "message.parts[0]"),
        ({"message": {**message, "parts": [{"raw": "%"}]}}, "message.parts[0].raw"),
        ({"message": {**message, "parts": [{"raw": "é"}]}}, "message.parts[0].raw"),
        ({"message": {**message, "parts": [{"text": 1}]}}, "message.parts[0].text"),
        ({"message": {**message, "role": "ROLE_AGENT"}}, "message.role"),
        ({"message": {**message, "role": "user"}}, "message.role"),
        ({"message": {**message, "messageId": ""}}, "message.messageId"),
        ({"message": {**message, "contextId": "a b"}}, "message.contextId"),
        ({"message": {**message, "contextId": "c", "taskId": "d~e"}}, "message.contextId"),
        ({"message": message, "configuration": {"historyLength": -1}}, "configuration.historyLength"),
    ):
        assert await refused(client, "SendMessage", wrong) == INVALID, wrong
        error = (await called(client, "SendMessage", wrong))["error"]
        (violation,) = error["data"][1]["fieldViolations"]
        assert violation["field"] == field
    video = {**message, "parts": [{"url": "https://example.com/a.mp4", "mediaType": "video/mp4"}]}
    assert await refused(client, "SendMessage", {"message": video}) == (
        -32005,
        400,
        "CONTENT_TYPE_NOT_SUPPORTED",
    )


async def test_parts_that_say_nothing(client: Client) -> None:
    """A link that is none, and data that nobody can read through, are taken by both bindings, and the task can be got."""
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    picture = {"url": "é", "mediaType": "image/png"}
    body = said(parts=[{"text": "hi"}, picture], metadata={"deep": deep})
    told = (await called(client, "SendMessage", body))["result"]["task"]
    assert told["status"]["state"] == "TASK_STATE_COMPLETED"
    again = await client.http.post("/a2a/demo/message:send", json=said(parts=[picture]), headers=VERSION)
    assert again.status_code == 200
    listed = (await called(client, "ListTasks", {"historyLength": 5}))["result"]
    assert [each["id"] for each in listed["tasks"]] == [again.json()["task"]["id"], told["id"]]


async def test_answers_that_would_lose_something(client: Client) -> None:
    """Are refused whole: what comes besides, two answers to one call, answers of which one is to no call of the task."""
    tasks = []
    for _ in range(2):
        answer = await client.http.post("/a2a/demo/message:send", json=said("/calls 2"), headers=VERSION)
        tasks.append(answer.json()["task"])
    asked, other = (
        [part["data"]["callId"] for part in each["status"]["message"]["parts"][1::2]] for each in tasks
    )
    task = tasks[0]["id"]
    one, two = ({"data": {"callId": call, "result": call}} for call in asked)
    picture = {"url": "https://example.com/a.png", "mediaType": "image/png"}
    for parts, refusal in (
        ([one, two, {"text": "and hurry"}], INVALID),
        ([one, two, picture], INVALID),
        ([one, {"data": {"callId": asked[0], "result": 2}}], INVALID),
        ([one, {"data": {"callId": "call_none", "result": 2}}], NOT_FOUND),
        ([one, {"data": {"callId": other[0], "result": 2}}], NOT_FOUND),
    ):
        assert await refused(client, "SendMessage", said(parts=parts, taskId=task)) == refusal, parts
    kept = (await called(client, "GetTask", {"id": task}))["result"]
    assert kept["status"] == tasks[0]["status"], "nothing was answered"
    told = (await called(client, "SendMessage", said(parts=[one, two], taskId=task)))["result"]["task"]
    assert told["status"]["state"] == "TASK_STATE_COMPLETED"
    answer = await client.http.post("/a2a/demo/message:send", json=said("/call f {}"), headers=VERSION)
    task = answer.json()["task"]["id"]
    words = said(parts=[{"text": "snow"}, picture], taskId=task)
    assert await refused(client, "SendMessage", words) == INVALID


async def test_lists_that_are_wrong(client: Client) -> None:
    """Bounds are refused, not taken for others."""
    for wrong in (
        {"pageToken": "invalid-token-xyz"},
        {"pageToken": "1:x"},
        {"status": "INVALID_STATUS"},
        {"pageSize": -1},
        {"pageSize": 0},
        {"pageSize": 101},
        {"historyLength": -1},
        {"statusTimestampAfter": "-1"},
    ):
        assert await refused(client, "ListTasks", wrong) == INVALID, wrong
    nothing = (await called(client, "ListTasks", {"contextId": "none"}))["result"]
    assert nothing == {"tasks": [], "nextPageToken": "", "pageSize": 0, "totalSize": 0}


async def test_what_an_ended_task_takes(client: Client) -> None:
    """Nothing more."""
    answer = await client.http.post(
        "/a2a/demo/",
        json={"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": said("hi")},
        headers=VERSION,
    )
    task = answer.json()["result"]["task"]["id"]
    assert await refused(client, "SendMessage", said("more", taskId=task)) == UNSUPPORTED
    assert await refused(client, "SubscribeToTask", {"id": task}) == UNSUPPORTED
    assert await refused(client, "CancelTask", {"id": task}) == (-32002, 400, "TASK_NOT_CANCELABLE")
    assert await refused(client, "GetExtendedAgentCard", {}) == UNSUPPORTED


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
@pytest.mark.parametrize(
    ("body", "code", "number"),
    [
        (b"{", -32700, None),
        (b'{"jsonrpc": "2.0", "method": "GetTask", "params": "x", "id": 1', -32700, None),
        (b"[]", -32600, None),
        (b'"x"', -32600, None),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}', -32600, 1),
        (b'{"id": "a", "method": "GetTask"}', -32600, "a"),
        (b'{"jsonrpc": "2.0", "id": "a", "params": {}}', -32600, "a"),
        (b'{"jsonrpc": "2.0", "id": {"a": 1}, "method": "GetTask"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": true, "method": "GetTask"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": "a", "method": "message/send"}', -32601, "a"),
        (b'{"jsonrpc": "2.0", "id": 2, "method": "GetTask", "params": "x"}', -32602, 2),
        (b'{"jsonrpc": "2.0", "id": 2, "method": "GetTask", "params": {"id": 5}}', -32602, 2),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "GetTask", "params": {"id": "x"}}', -32001, 1.5),
    ],
)
async def test_calls_that_are_none(client: Client, body: bytes, code: int, number: Any) -> None:
    """JSON-RPC's own codes, with the id as far as there is one."""
    headers = {**VERSION, "Content-Type": "application/json"}
    for path in ("/a2a/demo", "/a2a/demo/"):
        answer = await client.http.post(path, content=body, headers=headers)
        assert answer.status_code == 200
        told = answer.json()
        assert (told["error"]["code"], told["id"]) == (code, number)
        assert "result" not in told


async def test_versions(client: Client) -> None:
    """Only 1.0; who names none speaks 0.3."""
    for version, taken in (
        ("1.0", True),
        ("1.0.1", True),
        ("", False),
        ("0.3", False),
        ("1.1", False),
        ("2", False),
    ):
        error = (await called(client, "GetTask", {"id": "a~b"}, **{"A2A-Version": version}))["error"]
        assert error["code"] == (-32001 if taken else -32009), version
        if not taken:
            # What an older version calls its methods is not looked at.
            error = (await called(client, "message/send", {}, **{"A2A-Version": version}))["error"]
            assert error["code"] == -32009, version
        answer = await client.http.get("/a2a/demo/tasks/a~b", headers={"A2A-Version": version})
        reason = answer.json()["error"]["details"][0]["reason"]
        assert reason == ("TASK_NOT_FOUND" if taken else "VERSION_NOT_SUPPORTED")
    asked = await client.http.get("/a2a/demo/tasks", params={"A2A-Version": "1.0"})
    assert asked.status_code == 200


async def test_keys_and_agents(client: Client, stack: Stack) -> None:
    """Without a key nothing but the card; an agent that is not published, or not the key's, is not there."""
    body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "ListTasks"})
    for path, verb in (("/a2a/demo", "POST"), ("/a2a/demo/tasks", "GET"), ("/a2a/demo/message:send", "POST")):
        answer = await client.http.request(verb, path, content=body, headers={**VERSION, "Authorization": ""})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        if path == "/a2a/demo":
            told = answer.json()
            assert (told["jsonrpc"], told["id"], told["error"]["code"]) == ("2.0", None, -32600)
            assert told["error"]["data"][0]["reason"] == "BAD_TOKEN"
        else:
            assert answer.json()["error"]["status"] == "UNAUTHENTICATED"
    for agent in ("demo-critic", "nobody"):
        answer = await client.http.get(f"/a2a/{agent}/tasks", headers=VERSION)
        assert answer.status_code == 404
        assert answer.json()["error"]["details"][0]["reason"] == "AGENT_NOT_FOUND"
        answer = await client.http.post(f"/a2a/{agent}", content=body, headers=VERSION)
        told = answer.json()
        assert (answer.status_code, told["jsonrpc"], told["id"]) == (200, "2.0", 1)
        assert (told["error"]["code"], told["error"]["data"][0]["reason"]) == (-32600, "AGENT_NOT_FOUND")
    other = await another(stack, client, "eve", "demo-critic")
    assert (await other.http.get("/a2a/demo/tasks", headers=VERSION)).status_code == 404
    assert (await client.http.get("/a2a/demo/nothing", headers=VERSION)).json()["error"][
        "status"
    ] == "NOT_FOUND"


async def test_what_the_agent_does_not_take_is_no_input_mode(place: Place) -> None:
    """The card does not offer it, and a message that has it is refused by the error of A2A's for that."""
    agents = published()
    spec = agents["demo"].model_copy(update={"attachments": ("file",), "images": True})
    stack = Stack(
        place, Agents({**{each.name: each for each in agents}, "demo": spec}), protocols="default,a2a"
    )
    try:
        client = await stack.front_end()
        card = (await client.http.get("/a2a/demo/.well-known/agent-card.json")).json()
        assert "image/*" not in card["defaultInputModes"]
        part = {"raw": "iVBORw0KGgo=", "mediaType": "image/png"}
        for method in ("SendMessage", "SendStreamingMessage"):
            body = said("look")
            body["message"]["parts"].append(part)
            assert await refused(client, method, body) == (-32005, 400, "CONTENT_TYPE_NOT_SUPPORTED")
    finally:
        await stack.close()
