"""Tasks through A2A's own client, by both bindings: every feature, each document as the specification has it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict

from tests.behaviour.conftest import team
from tests.support.a2a import VERSION, Seen, request, said, seen_in, strictly
from tests.support.scripted import script
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.api.turns.ids import TaskId
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.session import event_log

if TYPE_CHECKING:
    from tests.conftest import Place
    from tests.support.client import Client


async def followed(a2a: Any, text: str = "", **more: Any) -> Seen:
    """What the client sees of a message, to its task's end or until it is asked."""
    seen = Seen()
    stream = a2a.send_message(request(text, **more))
    async for event in stream:
        seen.take(MessageToDict(event))
        if seen.status["state"] == "TASK_STATE_INPUT_REQUIRED":
            break
    await stream.aclose()
    return seen


async def sent(a2a: Any, text: str = "", **more: Any) -> Any:
    """What a message is answered with, by a client that does not stream."""
    (answer,) = [each async for each in a2a.send_message(request(text, **more))]
    return answer.task


def calls_of(task: Any) -> list[str]:
    """The calls for whose answers a task waits."""
    parts = MessageToDict(task)["status"]["message"]["parts"]
    return [part["data"]["callId"] for part in parts if "data" in part]


async def test_a_message_is_answered_when_its_task_ends(client: Client, a2a_at: Any, binding: str) -> None:
    """The task has all that was said, also when it is got later, with so many messages as are asked for."""
    a2a = await a2a_at(client, binding, streaming=False)
    task = await sent(a2a, "/tokens 3", name="m1", contextId="mine")
    strictly(MessageToDict(task), Task())
    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    assert [part.text for part in task.artifacts[0].parts] == ["tok0 tok1 tok2 "]
    assert [(message.message_id, message.context_id) for message in task.history] == [("m1", "mine")]
    assert await a2a.get_task(GetTaskRequest(id=task.id)) == task
    without = await a2a.get_task(GetTaskRequest(id=task.id, history_length=0))
    assert not without.history
    assert await sent(a2a, "/tokens 3", name="m1", contextId="mine") == task, "the same message, sent again"
    with pytest.raises(InvalidParamsError):
        await sent(a2a, "another", name="m1", contextId="mine")


async def test_streams(client: Client, a2a_at: Any, binding: str) -> None:
    """Begin with the task; thoughts, tools and sub-agents are not told."""
    a2a = await a2a_at(client, binding)
    for text, says in (
        ("/tokens 5", "tok0 tok1 tok2 tok3 tok4 "),
        ("/think", None),
        ("/tool add 1 2", "The result is 3."),
        ("/dispatch", None),
        ("/reflect", None),
    ):
        seen = await followed(a2a, text)
        assert seen.states[-1] == "TASK_STATE_COMPLETED"
        assert set(seen.states) <= {"TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"}
        assert seen.text == says or (says is None and seen.text)
        for name in seen.texts:
            updates = [each["artifactUpdate"] for each in seen.events if "artifactUpdate" in each]
            last = [
                each.get("lastChunk", False) for each in updates if each["artifact"]["artifactId"] == name
            ]
            assert last == [False] * (len(last) - 1) + [True] * bool(last), "who waits for it has it all"
        task = await a2a.get_task(GetTaskRequest(id=seen.task["id"]))
        assert "".join(part.text for each in task.artifacts for part in each.parts) == seen.text
        assert MessageToDict(task)["status"] == seen.status


async def test_other_parts(client: Client, a2a_at: Any, binding: str) -> None:
    """A picture is a part of its own; what is sent comes back in the history."""
    a2a = await a2a_at(client, binding)
    seen = await followed(a2a, "/image https://example.com/a.png")
    task = await a2a.get_task(GetTaskRequest(id=seen.task["id"]))
    assert [part.url for each in task.artifacts for part in each.parts if part.url] == [
        "https://example.com/a.png"
    ]
    parts = [
        {"text": "hi"},
        {"raw": "aGk=", "mediaType": "text/plain", "filename": "a.txt"},
        {"data": {"a": [1]}},
        {"url": "https://example.com/b.png", "mediaType": "image/png"},
    ]
    seen = await followed(a2a, parts=parts)
    told = MessageToDict(await a2a.get_task(GetTaskRequest(id=seen.task["id"])))["history"][0]["parts"]
    assert [sorted(set(part) - {"mediaType"}) for part in told] == [
        ["text"],
        ["filename", "raw"],
        ["data"],
        ["url"],
    ]


async def test_a_task_that_fails(client: Client, a2a_at: Any, binding: str) -> None:
    """Says why."""
    a2a = await a2a_at(client, binding)
    seen = await followed(a2a, "/fail boom")
    assert seen.states[-1] == "TASK_STATE_FAILED"
    assert seen.status["message"]["parts"][0]["text"]


async def test_a_function_of_the_client(client: Client, a2a_at: Any, binding: str) -> None:
    """Asked with its arguments, answered by data or in words; the same task goes on."""
    a2a = await a2a_at(client, binding)
    for number, answer in enumerate(("data", "words")):
        seen = await followed(a2a, '/call weather {"city": "Oslo"}', contextId=f"c{number}")
        words, asked = seen.status["message"]["parts"]
        assert words["text"] == 'Run weather({"city":"Oslo"}), and answer with its result.'
        assert (asked["data"]["name"], asked["data"]["arguments"]) == ("weather", {"city": "Oslo"})
        task = seen.task["id"]
        assert (
            await a2a.get_task(GetTaskRequest(id=task))
        ).status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        reply = {"data": {"callId": asked["data"]["callId"], "result": "snow"}} if answer == "data" else {}
        rest = await followed(a2a, "" if reply else "snow", taskId=task, **reply)
        assert rest.states[-1] == "TASK_STATE_COMPLETED"
        assert rest.text == "The result is snow."
        assert rest.task["id"] == task
        roles = [each.role for each in (await a2a.get_task(GetTaskRequest(id=task))).history]
        assert roles == [1, 2, 1], "the message, the question, the answer"
        with pytest.raises(UnsupportedOperationError):
            await followed(a2a, "more", taskId=task)


async def test_several_functions_at_once(client: Client, a2a_at: Any, binding: str) -> None:
    """Answered one by one; what still waits is told again; a repeat changes nothing."""
    a2a = await a2a_at(client, binding, streaming=False)
    task = await sent(a2a, "/calls 3")
    calls = calls_of(task)
    assert len(calls) == 3
    with pytest.raises(InvalidParamsError, match="several calls"):
        await sent(a2a, "one for all", taskId=task.id)
    for _ in range(2):
        again = await sent(a2a, data={"callId": calls[0], "result": 1}, taskId=task.id)
        assert again.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        assert calls_of(again) == calls[1:]
    parts = [{"data": {"callId": call, "result": 2}} for call in calls[1:]]
    end = await sent(a2a, parts=parts, taskId=task.id, contextId=task.context_id)
    assert end.status.state == TaskState.TASK_STATE_COMPLETED
    assert await sent(a2a, parts=parts, taskId=task.id) == end, "sent again, when all is over"


async def test_consent(client: Client, a2a_at: Any, binding: str) -> None:
    """Is asked for in words, and given so."""
    a2a = await a2a_at(client, binding, streaming=False)
    for word, approves in (("Yes.", True), ("no", False)):
        task = await sent(a2a, "/approve")
        words, asked = MessageToDict(task)["status"]["message"]["parts"]
        assert words["text"].endswith("Answer yes or no.")
        assert asked["data"]["type"] == "approval_request"
        with pytest.raises(InvalidParamsError, match="yes or no"):
            await sent(a2a, "perhaps", taskId=task.id)
        end = await sent(a2a, word, taskId=task.id)
        assert end.status.state == TaskState.TASK_STATE_COMPLETED
        assert MessageToDict(end.history[-1])["parts"][0]["data"]["approve"] is approves


async def test_a_task_in_the_background(client: Client, a2a_at: Any, binding: str) -> None:
    """Told at once, followed, stopped: the stream ends as canceled, and that cannot be done twice."""
    a2a = await a2a_at(client, binding, streaming=False, polling=True)
    task = await sent(a2a, "/slow 60")
    assert task.status.state in (TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)
    with pytest.raises(UnsupportedOperationError, match="asks nothing"):
        await sent(a2a, "faster", taskId=task.id)
    seen = Seen()
    follower = await a2a_at(client, binding)

    async def follow() -> None:
        async for event in follower.subscribe(SubscribeToTaskRequest(id=task.id)):
            seen.take(MessageToDict(event))

    following = asyncio.create_task(follow())
    await wait_until(lambda: seen.events, "the follower to have the task")
    end = await a2a.cancel_task(CancelTaskRequest(id=task.id))
    assert end.status.state == TaskState.TASK_STATE_CANCELED
    await following
    assert seen.states[-1] == "TASK_STATE_CANCELED"
    with pytest.raises(TaskNotCancelableError):
        await a2a.cancel_task(CancelTaskRequest(id=task.id))
    with pytest.raises(UnsupportedOperationError):
        [each async for each in follower.subscribe(SubscribeToTaskRequest(id=task.id))]


async def test_a_stream_goes_on_when_its_client_was_asked(client: Client, a2a_at: Any) -> None:
    """Others see it too, whichever protocol answers."""
    a2a = await a2a_at(client)
    seen = Seen()

    async def follow() -> None:
        async for event in a2a.send_message(request("/call f {}")):
            seen.take(MessageToDict(event))

    following = asyncio.create_task(follow())
    await wait_until(lambda: "TASK_STATE_INPUT_REQUIRED" in seen.states, "the client to be asked")
    call = seen.status["message"]["parts"][1]["data"]["callId"]
    assert (await client.callback(seen.task["contextId"], call, "x")).status_code == 200
    await following
    assert seen.states[-3:] == ["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]


async def test_contexts_go_on(client: Client, a2a_at: Any, binding: str) -> None:
    """A context is a session: its tasks are listed together, the newest first."""
    a2a = await a2a_at(client, binding, streaming=False)
    tasks = [await sent(a2a, f"hello {number}", contextId="together") for number in range(3)]
    alone = await sent(a2a, "hello")
    assert alone.context_id != "together"
    asked = await sent(a2a, "/call f {}")
    listed = await a2a.list_tasks(ListTasksRequest())
    assert [each.id for each in listed.tasks] == [asked.id, alone.id, *(each.id for each in reversed(tasks))]
    assert not any(each.artifacts or each.history for each in listed.tasks)
    assert listed.tasks[0].status == asked.status
    first = await a2a.list_tasks(ListTasksRequest(context_id="together", page_size=2, history_length=1))
    assert (len(first.tasks), first.page_size, first.total_size) == (2, 2, 3)
    assert all(each.history for each in first.tasks)
    rest = await a2a.list_tasks(
        ListTasksRequest(
            context_id="together", page_size=2, page_token=first.next_page_token, include_artifacts=True
        )
    )
    assert [each.id for each in (*first.tasks, *rest.tasks)] == [each.id for each in reversed(tasks)]
    assert (rest.next_page_token, rest.tasks[0].artifacts) == ("", tasks[0].artifacts)
    waiting = await a2a.list_tasks(ListTasksRequest(status=TaskState.TASK_STATE_INPUT_REQUIRED))
    assert [each.id for each in waiting.tasks] == [asked.id]
    since = ListTasksRequest(status_timestamp_after=alone.status.timestamp)
    assert alone.id in [each.id for each in (await a2a.list_tasks(since)).tasks]


async def test_cards(client: Client, stack: Stack) -> None:
    """Need no key, are as the specification has them, and may be kept for a while."""
    client.http.headers.pop("authorization")
    for path in ("/.well-known/agent-card.json", "/a2a/demo/.well-known/agent-card.json"):
        answer = await client.http.get(path)
        card = strictly(answer.json(), AgentCard())
        assert [each.url for each in card.supported_interfaces] == [f"{client.base_url}/a2a/demo"] * 2
        assert card.capabilities.push_notifications
        assert "max-age" in answer.headers["cache-control"]
        kept = await client.http.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (kept.status_code, kept.content) == (304, b"")
    assert (await client.http.get("/a2a/demo-critic/.well-known/agent-card.json")).status_code == 404
    known = await stack.front_end(public_url="https://agents.example/base/")
    card = (await known.http.get("/.well-known/agent-card.json")).json()
    assert card["supportedInterfaces"][0]["url"] == "https://agents.example/base/a2a/demo"
    off = await stack.front_end(protocols="default")
    assert (await off.http.get("/.well-known/agent-card.json")).status_code == 404
    assert (await off.http.post("/a2a/demo", json={})).status_code == 404


async def test_there_is_no_other_card(client: Client, a2a_at: Any, binding: str) -> None:
    """The client knows from the card that there is none, and so does who asks all the same."""
    a2a = await a2a_at(client, binding)
    card = await a2a.get_extended_agent_card(GetExtendedAgentCardRequest())
    assert card.name == "demo"
    answer = await client.http.get("/a2a/demo/extendedAgentCard", headers=VERSION)
    assert answer.json()["error"]["details"][0]["reason"] == "UNSUPPORTED_OPERATION"


async def test_media_types(client: Client) -> None:
    """A2A's own is given to who asks for it."""
    for accept, media_type in (
        ("*/*", "application/json"),
        ("application/a2a+json, application/json", "application/a2a+json"),
    ):
        headers = {**VERSION, "Accept": accept}
        for how in (None, {"returnImmediately": True}):
            answer = await client.http.post(
                "/a2a/demo/message:send", json=said("hi", configuration=how), headers=headers
            )
            assert answer.headers["content-type"] == media_type
        assert (await client.http.get("/a2a/demo/tasks", headers=headers)).headers[
            "content-type"
        ] == media_type


async def test_a_raw_stream(client: Client) -> None:
    """By HTTP and JSON, frames hold events alone."""
    answer = await client.http.post("/a2a/demo/message:stream", json=said("/tokens 3"), headers=VERSION)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert seen_in(answer.content).text == "tok0 tok1 tok2 "


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_words_that_are_sent_again(place: Place) -> None:
    """Answer what they answered, and never what the task asks next."""
    agents = team(asks={"python": "tests.support.scripted:guarded", "a2a": {}})
    stack = Stack(place, agents, protocols="default,a2a", dev_agent="asks")
    try:
        await stack.worker()
        client = await stack.front_end()

        async def say(text: str, **more: Any) -> Any:
            answer = await client.http.post(
                "/a2a/asks/message:send", json=said(text, **more), headers=VERSION
            )
            assert answer.status_code == 200, answer.text
            return answer.json()["task"]

        first = await say(script([("risky", {})], [("risky", {})], "all done"))
        yes = {"name": "yes-1", "taskId": first["id"]}
        second = await say("yes", **yes)
        assert second["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        asked = second["status"]["message"]["parts"][1]["data"]["callId"]
        assert asked != first["status"]["message"]["parts"][1]["data"]["callId"]
        again = await say("yes", **yes)
        assert again["status"] == second["status"], "the second call was not consented to"
        end = await say("yes", name="yes-2", taskId=first["id"])
        assert end["status"]["state"] == "TASK_STATE_COMPLETED"
        assert await say("yes", **yes) == end, "sent again, when all is over"
    finally:
        await stack.close()


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_what_came_after_a_task_is_not_read_for_it(
    client: Client, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To get a task, or to send its message again, costs what the task has, not what its context has."""
    pages = 0
    page = event_log.Log.page

    async def counted(log: Any, keys: Any, after: Any, most: int = 0, written: Any = None) -> Any:
        nonlocal pages
        # Followers give a size.
        pages += not most
        return await page(log, keys, after, most or 2000, written)

    monkeypatch.setattr(event_log.Log, "page", counted)
    body = said("/tokens 3", name="m1", contextId="long")
    task = (await client.http.post("/a2a/demo/message:send", json=body, headers=VERSION)).json()["task"]

    async def cost() -> int:
        nonlocal pages
        pages = 0
        path = f"/a2a/demo/tasks/{task['id']}"
        assert (await client.http.get(path, headers=VERSION)).json() == task
        again = await client.http.post("/a2a/demo/message:send", json=body, headers=VERSION)
        assert again.json() == {"task": task}
        return pages

    alone = await cost()
    for _ in range(6):
        await client.turn("long", "/think")
    assert await cost() <= alone


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_a_message_beside_a_task_that_asks(place: Place) -> None:
    """It begins no task that waits without a word, nor is it an answer."""
    agents = team(asks={"python": "tests.support.scripted:guarded", "a2a": {}})
    stack = Stack(place, agents, protocols="default,a2a", dev_agent="asks")
    try:
        await stack.worker()
        client = await stack.front_end()

        async def say(text: str, **more: Any) -> Any:
            path = "/a2a/asks/message:send"
            return (await client.http.post(path, json=said(text, **more), headers=VERSION)).json()

        risky = script([("risky", {})], "done")
        first = {"name": "m1", "contextId": "c1"}
        asked = (await say(risky, **first))["task"]
        error = (await say("yes", contextId="c1"))["error"]
        assert error["details"][0]["reason"] == "UNSUPPORTED_OPERATION"
        assert asked["id"] in error["message"]
        assert (await say(risky, **first))["task"]["id"] == asked["id"], "sent again"
        ended = (await say("yes", taskId=asked["id"]))["task"]
        assert ended["status"]["state"] == "TASK_STATE_COMPLETED"
        other = (await say(script("well"), contextId="c1"))["task"]
        assert other["status"]["state"] == "TASK_STATE_COMPLETED"
    finally:
        await stack.close()


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_a_list_reads_what_its_page_shows(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each task on the page its messages, with one read, and not the pieces in which they came."""
    tasks = []
    for number in range(10):
        body = said("/tokens 40", contextId=f"c{number % 2}")
        answer = await client.http.post("/a2a/demo/message:send", json=body, headers=VERSION)
        tasks.append(answer.json()["task"])
    reads: list[int] = []
    read = event_log.Log._read

    async def counted(*asked: Any) -> Any:
        page = await read(*asked)
        reads.append(len(page.entries) if page is not None else 0)
        return page

    monkeypatch.setattr(event_log.Log, "_read", counted)
    path = "/a2a/demo/tasks?includeArtifacts=true&historyLength=5&pageSize="
    first = (await client.http.get(f"{path}3", headers=VERSION)).json()
    assert first["tasks"] == tasks[:-4:-1]
    assert len(reads) == 3
    assert max(reads) <= 4, "the messages, and the end"
    more = f"{path}100&pageToken={first['nextPageToken']}"
    rest = (await client.http.get(more, headers=VERSION)).json()
    assert (rest["tasks"], rest["nextPageToken"]) == (tasks[-4::-1], "")
    assert len(reads) == len(tasks)


@pytest.mark.parametrize("backend", ["valkey"], indirect=True)
async def test_a_page_costs_what_it_shows(client: Client, stack: Stack) -> None:
    """However long the list is: the broker is asked for the page's tasks, and not for the others; each is told once."""
    path = "/a2a/demo/tasks"
    for _ in range(4):
        made = (said("hi", contextId=f"c{number}") for number in range(30))
        await asyncio.gather(
            *(client.http.post("/a2a/demo/message:send", json=body, headers=VERSION) for body in made)
        )
    await stack.stop_worker(stack.workers[0][0])
    # Who lists first after so many ends puts them in their order.
    first = (await client.http.get(path, params={"pageSize": 10}, headers=VERSION)).json()
    assert (len(first["tasks"]), first["totalSize"]) == (10, 120)
    redis: Any = stack.broker.primary
    tasks: list[dict[str, Any]] = []
    token = ""
    while token or not tasks:
        before = await redis.info("commandstats")
        page = (await client.http.get(f"{path}?pageSize=10&pageToken={token}", headers=VERSION)).json()
        after = await redis.info("commandstats")
        read = sum(
            each["calls"] - before.get(name, {"calls": 0})["calls"]
            for name, each in after.items()
            if name in ("cmdstat_hmget", "cmdstat_hgetall", "cmdstat_hget")
        )
        assert read <= 15, "those of the page, and whether there are more"
        assert page["totalSize"] == 120
        tasks += page["tasks"]
        token = page["nextPageToken"]
    assert tasks[:10] == first["tasks"]
    assert len({task["id"] for task in tasks}) == len(tasks) == 120
    times = [task["status"]["timestamp"] for task in tasks]
    assert times == sorted(times, reverse=True)


async def test_a_list_of_tasks_that_are_no_longer_so(client: Client, stack: Stack) -> None:
    """One that was forgotten is not told, nor counted; one whose end was lost is told as one that goes on."""
    made = [
        (await client.http.post("/a2a/demo/message:send", json=body, headers=VERSION)).json()["task"]
        for body in [said("hi", contextId=f"c{number}") for number in range(5)]
    ]
    path = "/a2a/demo/tasks"
    assert (await client.http.get(path, headers=VERSION)).json()["totalSize"] == 5
    redis: Any = stack.broker.sessions
    gone, lost = [TaskId.parse(made[number]["id"]) for number in (1, 3)]
    await redis.delete(SessionKeys("dev", gone.session).task(gone.task))
    await redis.hset(SessionKeys("dev", lost.session).task(lost.task), "status", "running")
    told = (await client.http.get(path, headers=VERSION)).json()
    assert (len(told["tasks"]), told["totalSize"]) == (4, 4)
    states = {task["id"]: task["status"]["state"] for task in told["tasks"]}
    assert states == {
        task["id"]: "TASK_STATE_WORKING" if task is made[3] else "TASK_STATE_COMPLETED"
        for task in made
        if task is not made[1]
    }
    ended = {"status": "TASK_STATE_COMPLETED", "contextId": "c4"}
    (only,) = (await client.http.get(path, params=ended, headers=VERSION)).json()["tasks"]
    assert only["id"] == made[4]["id"]
