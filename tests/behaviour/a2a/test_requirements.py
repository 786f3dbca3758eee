"""What the specification asks of both bindings and no other test looks at: by one table after the other, over plain HTTP."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from a2a.types import Task

from tests.support.a2a import BY_HTTP, VERSION, frames_of, said, seen_in, strictly

if TYPE_CHECKING:
    from collections.abc import Iterable

    import httpx

    from tests.support.client import Client

pytestmark = pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)

INVALID, NOT_FOUND, UNSUPPORTED, NOT_CANCELABLE = -32602, -32001, -32004, -32002
REASONS = {
    "INVALID_PARAMS": INVALID,
    "TASK_NOT_FOUND": NOT_FOUND,
    "UNSUPPORTED_OPERATION": UNSUPPORTED,
    "TASK_NOT_CANCELABLE": NOT_CANCELABLE,
}
BOTH = ("JSONRPC", "HTTP+JSON")


async def asked(
    client: Client, binding: str, method: str, params: dict[str, Any] | None = None, **headers: Any
) -> httpx.Response:
    """The answer of one of the bindings, as it comes."""
    named = {**VERSION, **headers}
    if binding == "JSONRPC":
        call = {"jsonrpc": "2.0", "id": method, "method": method, "params": params or {}}
        return await client.http.post("/a2a/demo", json=call, headers=named)
    verb, path = BY_HTTP[method]
    rest = dict(params or {})
    for name in re.findall(r"{(\w+)}", path):
        path = path.replace("{" + name + "}", str(rest.pop(name)))
    given: Any = {"params": rest} if verb == "GET" else {} if verb == "DELETE" else {"json": rest}
    return await client.http.request(verb, "/a2a/demo" + path, headers=named, **given)


async def told(
    client: Client, binding: str, method: str, params: dict[str, Any] | None = None, **headers: Any
) -> Any:
    """What a method is answered with; of an error its code, as JSON-RPC has it."""
    answer = (await asked(client, binding, method, params, **headers)).json()
    if binding == "JSONRPC":
        assert (answer["jsonrpc"], answer["id"]) == ("2.0", method)
        return answer["result"] if "result" in answer else answer["error"]["code"]
    return REASONS[answer["error"]["details"][0]["reason"]] if "error" in answer else answer


async def sent(client: Client, binding: str, text: str = "", **more: Any) -> Any:
    """The task that a message is answered with."""
    task = (await told(client, binding, "SendMessage", said(text, **more)))["task"]
    strictly(task, Task())
    return task


def texts(messages: Iterable[dict[str, Any]]) -> list[str]:
    """What messages say."""
    return [part.get("text", "") for message in messages for part in message["parts"]]


# ── messages ──


async def test_what_a_message_may_have(client: Client, binding: str) -> None:
    """Fields that are null or unknown, references, any characters, and every kind of part: taken, and told as they came."""
    before = await sent(client, binding, "hi")
    unicode = "你好, здравствуйте, مرحبا, こんにちは \U0001f600\n\t\b\f\r\x7f\u2028"
    nothing = dict.fromkeys(("taskId", "contextId", "metadata", "extensions", "referenceTaskIds"))
    hello = {"text": "hello"}
    taken: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
        ([hello], nothing),
        ([hello], {"_of_a_later_version": {"a": [1]}, "kind": "message"}),
        ([hello], {"referenceTaskIds": [before["id"]]}),
        ([hello], {"referenceTaskIds": ["none~such", ""]}),
        ([hello], {"extensions": ["https://example.com/e/v1"], "metadata": {"https://example.com/e/v1": 1}}),
        ([hello], {"configuration": {"acceptedOutputModes": ["application/x-none"], "later": True}}),
        ([hello], {"configuration": {"historyLength": None, "returnImmediately": None}}),
        ([{"text": unicode}], {}),
        ([{"text": "hello", "metadata": None, "filename": None, "mediaType": None}], {}),
        ([{"text": "hello", "url": None, "raw": None}], {}),
        ([hello, {"text": "world"}], {}),
        ([hello, {"data": [{"name": "Alice"}, {"name": "Bob"}], "mediaType": "application/json"}], {}),
        ([hello, {"data": None}], {}),
        ([hello, {"url": "https://example.com/a.txt", "filename": "a.txt", "mediaType": "text/plain"}], {}),
        ([hello, {"url": "https://example.com/a.txt", "filename": "a.txt"}], {}),
        ([hello, {"url": "invalid://example.com/a.txt", "filename": "a.txt"}], {}),
        ([hello, {"raw": "AAEC", "mediaType": "application/octet-stream"}], {}),
        ([{"data": {"a": 1}}], {}),
    ]
    for parts, more in taken:
        task = await sent(client, binding, parts=parts, **more)
        assert task["status"]["state"] == "TASK_STATE_COMPLETED", parts
        (message,) = task["history"]
        # What is no link is taken, and not told.
        assert len(message["parts"]) == len(parts) - str(parts).count("invalid://")
        assert [part["text"] for part in message["parts"] if "text" in part] == [
            part["text"] for part in parts if "text" in part
        ]
        assert task == await told(client, binding, "GetTask", {"id": task["id"]})


async def test_the_media_types_of_files(client: Client, binding: str) -> None:
    """Are what their client said, also of files that have no name to guess by."""
    for media_type in (
        "application/pdf",
        "text/plain",
        "application/vnd.ms-excel",
        "application/octet-stream",
    ):
        task = await sent(client, binding, parts=[{"text": "hi"}, {"raw": "aGk=", "mediaType": media_type}])
        _, part = task["history"][0]["parts"]
        assert part == {"raw": "aGk=", "mediaType": media_type}


async def test_a_large_message(client: Client, binding: str) -> None:
    """Is told whole."""
    task = await sent(client, binding, "A" * 1_100_000)
    assert len(texts(task["history"])[0]) == 1_100_000


async def test_media_types_of_requests_and_answers(client: Client, binding: str) -> None:
    """A2A's own is taken by both; JSON-RPC answers with JSON's, whatever is accepted."""
    own = "application/a2a+json"
    for body in (said("hi"), {}):
        answer = await asked(client, binding, "SendMessage", body, **{"Content-Type": own, "Accept": own})
        kind = answer.headers["content-type"]
        is_json = binding == "JSONRPC" or "error" in answer.json()
        assert kind == ("application/json" if is_json else own)


async def test_extensions_in_several_headers(client: Client, binding: str) -> None:
    """Are as those of one; what is not known is not activated."""
    cursors = "urn:turnstream:a2a:cursor:v1"
    for lines, active in (
        (["urn:other", cursors], cursors),
        ([f"urn:other,{cursors}"], cursors),
        (["urn:other"], None),
        (["urn:turnstream:a2a:cursor:v2"], None),
    ):
        verb, path = ("POST", "") if binding == "JSONRPC" else BY_HTTP["SendMessage"]
        call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": said("hi")}
        headers = [*VERSION.items(), *(("A2A-Extensions", line) for line in lines)]
        answer = await client.http.request(
            verb, "/a2a/demo" + path, json=call if binding == "JSONRPC" else said("hi"), headers=headers
        )
        assert answer.status_code == 200
        assert answer.headers.get("a2a-extensions") == active, lines


# ── tasks ──


async def test_so_many_messages(client: Client, binding: str) -> None:
    """The newest ones, by whatever method a task is told; none at all for 0, and no bound above what there is."""
    task = await sent(client, binding, "/call f {}")
    call = task["status"]["message"]["parts"][1]["data"]["callId"]
    answer = {"data": {"callId": call, "result": "x"}}
    whole = (await sent(client, binding, parts=[answer], name="a", taskId=task["id"]))["history"]
    assert [message["role"] for message in whole] == ["ROLE_USER", "ROLE_AGENT", "ROLE_USER"]
    for most in (0, 1, 2, 3, 99, 2**31 - 1):
        wanted = whole[max(len(whole) - most, 0) :]
        got = await told(client, binding, "GetTask", {"id": task["id"], "historyLength": most})
        (listed,) = (await told(client, binding, "ListTasks", {"historyLength": most}))["tasks"]
        again = await sent(
            client,
            binding,
            parts=[answer],
            name="a",
            taskId=task["id"],
            configuration={"historyLength": most},
        )
        for each in (got, listed, again):
            assert each.get("history", []) == wanted
            assert most or "history" not in each
    for wrong in (-1, 2**31, "x"):
        assert await told(client, binding, "GetTask", {"id": task["id"], "historyLength": wrong}) == INVALID
        assert await told(client, binding, "ListTasks", {"historyLength": wrong}) == INVALID
        body = said("hi", configuration={"historyLength": wrong})
        for method in ("SendMessage", "SendStreamingMessage"):
            assert await told(client, binding, method, body) == INVALID


async def test_lists(client: Client) -> None:
    """Filters together, the newest first, 50 where no number is given; the artifacts where they are asked for; by both bindings."""
    background = {"configuration": {"returnImmediately": True}}
    await asyncio.gather(*(sent(client, BOTH[0], "hi", contextId="many") for _ in range(51)))
    done = await sent(client, BOTH[0], "hi", contextId="few")
    asks = await sent(client, BOTH[1], "/call f {}", contextId="few")
    slow = await sent(client, BOTH[1], "/slow 60", contextId="far", **background)
    for params, tasks in (
        ({"contextId": "few"}, [asks, done]),
        ({"contextId": "far"}, [slow]),
        ({"contextId": "few", "status": "TASK_STATE_COMPLETED"}, [done]),
        ({"contextId": "few", "status": "TASK_STATE_INPUT_REQUIRED"}, [asks]),
        ({"contextId": "few", "status": "TASK_STATE_REJECTED"}, []),
        ({"contextId": "many", "status": "TASK_STATE_INPUT_REQUIRED"}, []),
        ({"contextId": "few", "statusTimestampAfter": asks["status"]["timestamp"]}, [asks]),
        ({"contextId": "few", "statusTimestampAfter": done["status"]["timestamp"]}, [asks, done]),
        ({"contextId": "few", "statusTimestampAfter": "2999-01-01T00:00:00Z"}, []),
    ):
        listed = [await told(client, binding, "ListTasks", params) for binding in BOTH]
        assert listed[0] == listed[1]
        found = [task["id"] for task in listed[0]["tasks"]]
        assert sorted(found) == sorted(task["id"] for task in tasks), params
        assert (listed[0]["nextPageToken"], listed[0]["totalSize"]) == ("", len(listed[0]["tasks"]))
        for task in listed[0]["tasks"]:
            strictly(task, Task())
            assert "artifacts" not in task
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", task["status"]["timestamp"])
    for binding in BOTH:
        page = await told(client, binding, "ListTasks", {"contextId": "many"})
        assert (len(page["tasks"]), page["pageSize"], page["totalSize"]) == (50, 50, 51)
        rest = await told(
            client, binding, "ListTasks", {"contextId": "many", "pageToken": page["nextPageToken"]}
        )
        assert (len(rest["tasks"]), rest["pageSize"], rest["nextPageToken"]) == (1, 1, "")
        assert len({task["id"] for task in page["tasks"] + rest["tasks"]}) == 51
        for params in ({"includeArtifacts": False}, {}):
            (task,) = (await told(client, binding, "ListTasks", {"pageSize": 1, **params}))["tasks"]
            assert "artifacts" not in task
        full = await told(client, binding, "ListTasks", {"contextId": "few", "includeArtifacts": "true"})
        assert all(isinstance(task["artifacts"], list) for task in full["tasks"])
        assert [each["artifacts"] for each in full["tasks"] if each["id"] == done["id"]] == [
            done["artifacts"]
        ]
    await told(client, BOTH[0], "CancelTask", {"id": slow["id"]})


async def test_times_of_lists(client: Client, binding: str) -> None:
    """What is older than the time, by however little, is not told; a time is a text, and nothing else is taken for one."""
    task = await sent(client, binding, "hi")
    at = task["status"]["timestamp"].removesuffix("Z")
    for time, count in (
        (f"{at}Z", 1),
        (f"{at}+00:00", 1),
        (f"{at}000000Z", 1),
        (f"{at}001Z", 0),
        (f"{at}999Z", 0),
        (f"{at}+01:00", 1),
        (f"{at}-01:00", 0),
        ("1970-01-01T00:00:00Z", 1),
    ):
        listed = await told(client, binding, "ListTasks", {"statusTimestampAfter": time})
        assert listed["totalSize"] == count, time
    for wrong in (5, "5", "yesterday", True):
        assert await told(client, binding, "ListTasks", {"statusTimestampAfter": wrong}) == INVALID, wrong


async def test_the_other_binding_has_the_same_task(client: Client) -> None:
    """Whichever one made it, and whichever one ends it."""
    for one, other in (BOTH, BOTH[::-1]):
        task = await sent(client, one, "/slow 60", configuration={"returnImmediately": True})
        assert task["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
        ends = await asyncio.gather(
            *(told(client, each, "CancelTask", {"id": task["id"]}) for each in (one, other) * 2),
            *(told(client, each, "GetTask", {"id": task["id"]}) for each in (one, other) * 2),
        )
        assert [each["status"]["state"] for each in ends[:4] if each != NOT_CANCELABLE] == [
            "TASK_STATE_CANCELED"
        ]
        assert {each["id"] for each in ends[4:]} == {task["id"]}
        told_by = [await told(client, each, "GetTask", {"id": task["id"]}) for each in (one, other)]
        assert told_by[0] == told_by[1]
        assert told_by[0]["status"]["state"] == "TASK_STATE_CANCELED"
        for each in (one, other):
            assert await told(client, each, "SubscribeToTask", {"id": task["id"]}) == UNSUPPORTED
            more = said("more", taskId=task["id"])
            assert await told(client, each, "SendStreamingMessage", more) == UNSUPPORTED


async def test_messages_at_once(client: Client) -> None:
    """As many tasks as there are messages: one for each, however often and by which binding it is sent."""
    bodies = [said(f"/tokens {number + 1}", name=f"m{number}", contextId=f"c{number}") for number in range(5)]
    answers = await asyncio.gather(
        *(told(client, binding, "SendMessage", body) for body in bodies for binding in BOTH)
    )
    assert len({answer["task"]["id"] for answer in answers}) == len(bodies)
    for number, (one, other) in enumerate(zip(answers[::2], answers[1::2], strict=True)):
        assert one == other
        assert "".join(texts(one["task"]["artifacts"])) == "".join(
            f"tok{each} " for each in range(number + 1)
        )


# ── streams ──


async def test_frames(client: Client, binding: str) -> None:
    """Are server-sent events, each with the id of its call; a stream streams, also where an answer at once is asked for."""
    for configuration in (None, {"returnImmediately": True}, {"historyLength": 0}):
        body = said("/tokens 3", configuration=configuration)
        answer = await asked(client, binding, "SendStreamingMessage", body, Accept="text/event-stream")
        assert answer.headers["content-type"].split(";")[0] == "text/event-stream"
        assert answer.headers["cache-control"] in ("no-store", "no-cache")
        for line in answer.content.splitlines():
            assert not line or line.split(b":")[0] in (b"", b"id", b"data"), line
            if binding == "JSONRPC" and line.startswith(b"data: "):
                event = orjson.loads(line[6:])
                assert (event["jsonrpc"], event["id"]) == ("2.0", "SendStreamingMessage")
        seen = seen_in(answer.content)
        assert (seen.text, seen.states[-1]) == ("tok0 tok1 tok2 ", "TASK_STATE_COMPLETED")
        assert bool(seen.task.get("history")) is (configuration != {"historyLength": 0})
        for _, event in frames_of(answer.content)[1:]:
            (update,) = event.values()
            assert (update["taskId"], update["contextId"]) == (seen.task["id"], seen.task["contextId"])
    task = await sent(client, binding, "/slow 60", configuration={"returnImmediately": True})
    following = asyncio.create_task(asked(client, binding, "SubscribeToTask", {"id": task["id"]}))
    while not isinstance(await told(client, binding, "CancelTask", {"id": task["id"]}), int):
        pass
    ended = await following
    if ended.headers["content-type"].startswith("text/event-stream"):
        assert seen_in(ended.content).states[-1] == "TASK_STATE_CANCELED"


# ── what is refused ──


async def test_fields_that_are_missing(client: Client) -> None:
    """Each method names what it needs; what is of another type is none."""
    for method, needed in (
        ("SendMessage", ("message",)),
        ("SendStreamingMessage", ("message",)),
        ("GetTask", ("id",)),
        ("CancelTask", ("id",)),
        ("SubscribeToTask", ("id",)),
        ("CreateTaskPushNotificationConfig", ("taskId", "url")),
        ("GetTaskPushNotificationConfig", ("taskId", "id")),
        ("ListTaskPushNotificationConfigs", ("taskId",)),
        ("DeleteTaskPushNotificationConfig", ("taskId", "id")),
    ):
        for missing in needed:
            there = {name: "https://example.com/" for name in needed if name != missing}
            wrongs: list[dict[str, Any]] = [
                {},
                {missing: 12345},
                {missing: ""},
                {missing: None},
                {missing: []},
            ]
            for wrong in wrongs:
                assert await told(client, BOTH[0], method, {**there, **wrong}) == INVALID, (method, wrong)
    message = said("hi")["message"]
    for binding in BOTH:
        for name in ("messageId", "role", "parts"):
            wrongs = [{}, {name: None}, {name: 12345}, {name: {}}]
            for wrong in wrongs:
                rest = {field: value for field, value in message.items() if field != name}
                assert await told(client, binding, "SendMessage", {"message": {**rest, **wrong}}) == INVALID
        for role in ("ROLE_UNSPECIFIED", "ROLE_NONE", "agent", 2, 0):
            wrong_role = {"message": {**message, "role": role}}
            assert await told(client, binding, "SendStreamingMessage", wrong_role) == INVALID


async def test_keys(client: Client) -> None:
    """Every method needs one, of the scheme that the card names, whatever else is wrong."""
    card = (await client.http.get("/.well-known/agent-card.json", headers={"Authorization": ""})).json()
    (requirement,) = card["securityRequirements"]
    (name,) = requirement["schemes"]
    assert card["securitySchemes"][name]["httpAuthSecurityScheme"]["scheme"] == "Bearer"
    assert client.key not in str(card)
    params = {"id": "x", "taskId": "y", "url": "https://example.com/", **said("hi")}
    for header in ("", "Bearer", "Bearer sk-none", f"Basic {client.key}", client.key):
        for binding in BOTH:
            for method in BY_HTTP:
                answer = await asked(client, binding, method, params, Authorization=header)
                assert answer.status_code == 401, (binding, method, header)
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert answer.json()["error"]["message"]


async def test_addresses_that_are_none(client: Client) -> None:
    """Another verb, or another path: google.rpc's status below the agent's address, and JSON-RPC's shape at it."""
    for verb, path, status in (
        ("GET", "/message:send", 405),
        ("PUT", "/tasks", 405),
        ("POST", "/tasks/a~b", 405),
        ("GET", "/tasks/a~b:cancel", 404),
        ("GET", "/message:none", 404),
        ("POST", "/tasks/a~b:pause", 405),
    ):
        answer = await client.http.request(verb, "/a2a/demo" + path, headers=VERSION)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, status), (verb, path)
        assert error["status"] == {404: "NOT_FOUND", 405: "UNIMPLEMENTED"}[status]
        assert error["details"][0]["@type"].endswith("google.rpc.ErrorInfo")
    answer = await client.http.get("/a2a/demo", headers=VERSION)
    assert (answer.status_code, answer.json()["jsonrpc"], answer.json()["id"]) == (405, "2.0", None)
    call = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}
    asked_so = await client.http.post("/a2a/demo", params=VERSION, json=call)
    assert asked_so.json()["result"]["tasks"] == []


# ── who is told ──


async def test_configs(client: Client, binding: str) -> None:
    """Of a task that has ended, too; of one that was sent with a stream; and none where there are none."""
    ended = await sent(client, binding, "hi")
    here = {"taskId": ended["id"]}
    nothing = {"configs": [], "nextPageToken": ""}
    assert await told(client, binding, "ListTaskPushNotificationConfigs", here) == nothing
    for _ in range(2):
        gone = await told(client, binding, "DeleteTaskPushNotificationConfig", {**here, "id": "none"})
        assert gone == {}
    given = {**here, "id": "mine", "url": "https://nobody.example/", "token": "t"}
    scheme = {"authentication": {"scheme": "Basic", "credentials": "dTpw"}}
    for config in (given, given | scheme):
        assert await told(client, binding, "CreateTaskPushNotificationConfig", config) == config
        one = {**here, "id": "mine"}
        assert await told(client, binding, "GetTaskPushNotificationConfig", one) == config
        listed = await told(client, binding, "ListTaskPushNotificationConfigs", here)
        assert listed == {"configs": [config], "nextPageToken": ""}
    assert await told(client, binding, "DeleteTaskPushNotificationConfig", one) == {}
    assert await told(client, binding, "GetTaskPushNotificationConfig", one) == NOT_FOUND
    assert await told(client, binding, "ListTaskPushNotificationConfigs", here) == nothing
    config = {"url": "https://nobody.example/", "id": "its"}
    for method in ("SendMessage", "SendStreamingMessage"):
        body = said("hi", name=method, configuration={"taskPushNotificationConfig": config})
        await asked(client, binding, method, body)
        task = (await told(client, binding, "SendMessage", body))["task"]
        (kept,) = (await told(client, binding, "ListTaskPushNotificationConfigs", {"taskId": task["id"]}))[
            "configs"
        ]
        assert (kept["url"], kept["id"], kept["taskId"]) == (config["url"], "its", task["id"])


async def test_credentials_of_no_scheme(client: Client, binding: str) -> None:
    """Are refused, and not left out where they are needed."""
    task = await sent(client, binding, "hi")
    config = {"url": "https://nobody.example/"}
    for authentication in (
        {"credentials": "abc"},
        {"scheme": "", "credentials": "abc"},
        {"scheme": None, "credentials": "abc"},
        {"schemes": ["Bearer"], "credentials": "abc"},
        {},
    ):
        wrong = {**config, "authentication": authentication}
        create = {**wrong, "taskId": task["id"]}
        assert await told(client, binding, "CreateTaskPushNotificationConfig", create) == INVALID
        body = said("hi", configuration={"taskPushNotificationConfig": wrong})
        assert await told(client, binding, "SendMessage", body) == INVALID
    fine = {**config, "taskId": task["id"], "authentication": None}
    made = await told(client, binding, "CreateTaskPushNotificationConfig", fine)
    assert "authentication" not in made
