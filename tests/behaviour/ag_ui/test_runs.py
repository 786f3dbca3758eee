"""AG-UI's runs, by their events: one after the other, answered, connected to."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.behaviour.ag_ui.conftest import Talk, calls_in
from tests.behaviour.conftest import team
from tests.support.agui_events import check_run, events_of, text_of
from tests.support.fake_provider.server import says
from tests.support.scripted import script
from tests.support.stack import Stack
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place
    from tests.support.client import Client
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider

F = {"name": "f", "description": "Ask."}


@pytest.fixture
async def stack(place: Place) -> AsyncIterator[Stack]:
    """The demo agent, and agents that do what their prompts say."""
    agents = team(
        lead={"subagents": ["sub"]},
        sub={"client_tools": [{"name": "g"}], "subagents": ["deep"]},
        deep={},
        guarded={"python": "tests.support.scripted:guarded"},
        old={"parked": "supersede"},
    )
    stack = Stack(place, agents, protocols="default, copilotkit")
    await stack.worker()
    yield stack
    await stack.close()


async def speaking_to(stack: Stack, client: Client, agent: str) -> Client:
    """A client whose key is for another agent."""
    made = await client.http.post(
        "/admin/v1/keys",
        json={"owner": "dev", "agent": agent},
        headers={"Authorization": f"Bearer {stack.admin}"},
    )
    return stack.client(client.base_url, made.json()["token"])


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
@pytest.mark.parametrize("old", [False, True])
async def test_every_kind_of_turn(client: Client, old: bool) -> None:
    """Each event is one of the specification's, in its order; who connects is told the same messages."""
    for said, end in (
        ("hello", "RUN_FINISHED"),
        ("/think", "RUN_FINISHED"),
        ("/tool add 1 2", "RUN_FINISHED"),
        ("/dispatch", "RUN_FINISHED"),
        ("/dispatch /tool add 1 2", "RUN_FINISHED"),
        ("/reflect", "RUN_FINISHED"),
        ("/approve it", "RUN_FINISHED"),
        ("/calls 2", "RUN_FINISHED"),
        ("/dispatch /calls 2", "RUN_FINISHED"),
        ("/dispatch /approve it", "RUN_FINISHED"),
        ("/dispatch /fail badly", "RUN_FINISHED"),
        ("/fail badly", "RUN_ERROR"),
    ):
        talk = Talk(client, old=old)
        events = await talk.run(said)
        assert check_run(events, old=old)["type"] == end
        again = await talk.connect()
        check_run(again, old=old)
        assert again[1]["type"] == "MESSAGES_SNAPSHOT"
        (message,) = again[1]["messages"]
        assert (message["id"], message["content"]) == (talk.messages[0]["id"], said)
        assert [*again[:1], *again[2:]] == events or again[2:] == events[1:]


async def test_a_failed_subagent(talk: Talk) -> None:
    """It is an error of its own; the run goes on."""
    events = await talk.run("/dispatch /fail badly")
    assert check_run(events)["outcome"] == {"type": "success"}
    (error,) = [event for event in events if event["type"] == "SUBAGENT_ERROR"]
    assert "badly" in error["message"]


async def test_subagents_within_subagents(stack: Stack, client: Client) -> None:
    """Two of one name at once, each with one below: everything is somebody's; they go on when their functions are answered."""
    talk = Talk(await speaking_to(stack, client, "lead"))
    inner = [[("g", {})], [("deep", ["deep words"])], "sub {results}"]
    asked = await talk.run(script([("sub", inner), ("sub", inner)], "lead {results}"))
    pending = check_run(asked)["outcome"]["pendingToolCallIds"]
    assert len(pending) == 2
    started = [event["subagentRunId"] for event in asked if event["type"] == "SUBAGENT_STARTED"]
    assert len(started) == len(set(started)) == 2
    owners = {
        event["toolCallId"]: event.get("subagentRunId")
        for event in asked
        if event["type"] == "TOOL_CALL_START"
    }
    assert sorted(owners[call] or "" for call in pending) == sorted(started)
    for call in pending:
        talk.answer(call)
    events = await talk.run()
    assert check_run(events)["outcome"] == {"type": "success"}
    again = [event for event in events if event["type"] == "SUBAGENT_STARTED"]
    assert sorted(event["subagentRunId"] for event in again if event["name"] == "sub") == sorted(started)
    below = [event["parentSubagentRunId"] for event in again if event["name"] == "deep"]
    assert sorted(below) == sorted(started)
    told = await talk.connect()
    check_run(told)
    messages = told[1]["messages"]
    assert {message.get("subagentRunId") for message in messages if message.get("toolCalls")} == {
        None,
        *started,
    }


async def test_a_conversation(talk: Talk, stack: Stack) -> None:
    """Only what is new is taken; the log has the rest. It can be gone on with at another front end."""
    await talk.run("one")
    await talk.run("two")
    talk.client = await stack.front_end()
    await talk.run("three")
    (first, *_) = await talk.connect()
    assert first["threadId"] == talk.thread
    (snapshot,) = [event for event in await talk.connect() if event["type"] == "MESSAGES_SNAPSHOT"]
    said = [message["content"] for message in snapshot["messages"]]
    assert said == ["one", "You said: one", "two", "You said: two", "three"]
    assert [each["id"] for each in snapshot["messages"]] == [each["id"] for each in talk.messages[:-1]]


async def test_a_run_is_taken_once(talk: Talk, stack: Stack) -> None:
    """A repeat is told the same run; another message under its id is refused."""
    body = talk.say("hello").body()
    first = await talk.client.http.post("/ag-ui", json=body)
    other = await stack.front_end()
    assert (await other.http.post("/ag-ui", json=body)).content == first.content
    changed = {**body, "messages": [{"id": "m", "role": "user", "content": "bye"}]}
    assert (await other.http.post("/ag-ui", json=changed)).status_code == 422
    # Names that tasks cannot have are names of runs all the same.
    body = talk.say("again").body(runId="a run / with any name")
    first = await talk.client.http.post("/ag-ui", json=body)
    assert check_run(events_of(first.content))["runId"] == "a run / with any name"
    assert (await other.http.post("/ag-ui", json=body)).content == first.content


async def test_functions_of_the_client(stack: Stack, client: Client) -> None:
    """In parallel, then one more; partial answers are refused, a repeat of the answers finds their run."""
    talk = Talk(await speaking_to(stack, client, "lead"))
    asked = await talk.run(script([("f", {}), ("f", {})], [("f", {})], "done {results}"), tools=[F])
    one, two = check_run(asked)["outcome"]["pendingToolCallIds"]
    assert calls_in(asked) == [one, two]
    (parent,) = {event["parentMessageId"] for event in asked if event["type"] == "TOOL_CALL_START"}
    talk.answer(one)
    partial = await talk.client.http.post("/ag-ui", json=talk.body())
    assert partial.status_code == 422
    assert two.removeprefix("call_") in partial.json()["message"]
    # As CopilotKit has them: each behind its call, an error beside the content.
    talk.messages[-1:-1] = [{"id": parent, "role": "assistant", "toolCalls": []}]
    talk.answer(two, [{"type": "text", "text": "no"}], error="It broke.")
    second = await talk.run()
    (three,) = check_run(second)["outcome"]["pendingToolCallIds"]
    assert not [event for event in second if event["type"] == "TOOL_CALL_RESULT"]
    repeat = await talk.run()
    assert repeat[1:-1] == second[1:-1]
    talk.answer(three)
    third = await talk.run()
    assert text_of(third).split() == ["done", "21", "|", "no", "It", "broke.", "|", "21"]
    (snapshot,) = [event for event in await talk.connect() if event["type"] == "MESSAGES_SNAPSHOT"]
    results = [message["content"] for message in snapshot["messages"] if message["role"] == "tool"]
    assert results == ["21", "no\nIt broke."]


async def test_consent_and_a_function_at_once(stack: Stack, client: Client) -> None:
    """The run ends with an interrupt; the next one brings both."""
    talk = Talk(await speaking_to(stack, client, "guarded"))
    asked = await talk.run(script([("risky", {}), ("f", {})], "{results}"), tools=[F])
    (interrupt,) = check_run(asked)["outcome"]["interrupts"]
    (call,) = [each for each in calls_in(asked) if each != interrupt["toolCallId"]]
    talk.answer(call)
    # CopilotKit tells what was decided as the tool's result, too.
    talk.answer(interrupt["toolCallId"], '{"approved": true}')
    resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
    events = await talk.run(resume=resume)
    check_run(events)
    assert text_of(events).split() == ["done", "|", "21"]
    (result,) = [event for event in events if event["type"] == "TOOL_CALL_RESULT"]
    assert (result["toolCallId"], result["content"]) == (interrupt["toolCallId"], "done")
    # A repeat of the answers is the same run.
    assert (await talk.run(resume=resume))[1:-1] == events[1:-1]


async def test_a_thread_that_waits_takes_answers_only(stack: Stack, client: Client) -> None:
    """Unless its agent takes a new message for a withdrawal of what it asked."""
    blocked = Talk(client)
    await blocked.run("/call f {}")
    refused = await client.http.post("/ag-ui", json=blocked.say("never mind").body())
    assert refused.status_code == 422
    assert refused.json()["message"].startswith("messages: ")
    talk = Talk(await speaking_to(stack, client, "old"))
    await talk.run(script([("f", {})], "done"), tools=[F])
    assert text_of(await talk.run(script("other"))).split() == ["other"]


async def test_a_history_that_was_told_elsewhere(stack: Stack, client: Client) -> None:
    """A thread that is not known begins with all that its client tells."""
    talk = Talk(await speaking_to(stack, client, "lead"))
    talk.messages = [
        {"id": "1", "role": "user", "content": script([("f", {})], "done {results}")},
        {
            "id": "2",
            "role": "assistant",
            "toolCalls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"id": "3", "role": "tool", "toolCallId": "x", "content": "elsewhere"},
        {"id": "4", "role": "reasoning", "content": "hm"},
    ]
    events = await talk.run(tools=[F])
    assert text_of(events).split() == ["done", "elsewhere"]


async def test_a_message_of_a_stopped_turn_is_not_taken_twice(talk: Talk) -> None:
    """The client still has it as the one before; the log has it, too."""
    async with talk.client.open("POST", "/ag-ui", json=talk.say("/slow 60").body()) as stream:
        await stream.until(lambda frames: frames)
        stopped = await talk.client.http.post(f"/ag-ui/stop/{talk.thread}")
        assert stopped.json() == {"stopped": True}
        assert (await stream.all())[-1].data["outcome"] == {"type": "cancelled"}
    assert (await talk.client.http.post(f"/ag-ui/stop/{talk.thread}")).json() == {"stopped": False}
    assert text_of(await talk.run("hi")) == "You said: hi"


async def test_what_the_application_says_besides(provider: Provider, deploy: Deployments) -> None:
    """Its context is a system message, parts are as the model takes them."""
    provider.script = [says("Fine.")]
    client = await deploy(images=True)
    talk = Talk(client)
    picture = {
        "type": "image",
        "source": {"type": "data", "value": "R0lGODlhAQABAAAAACw=", "mimeType": "image/gif"},
    }
    talk.say([{"type": "text", "text": "What is it?"}, picture])
    events = await talk.run(
        context=[{"description": "Page", "value": "Home"}], state={"a": 1}, forwardedProps={}
    )
    check_run(events)
    sent = str(provider.messages())
    assert "Page: Home" in sent
    assert "data:image/gif;base64,R0lGODlhAQABAAAAACw=" in sent
    (snapshot,) = [event for event in await talk.connect() if event["type"] == "MESSAGES_SNAPSHOT"]
    assert snapshot["messages"][0]["content"][1] == picture


async def test_who_stops_what(talk: Talk, stack: Stack) -> None:
    """A run by its id, of a user's message or of answers; one that is over stops nothing else; without an id all of the thread."""
    over = talk.say("hello").body()
    await talk.client.http.post("/ag-ui", json=over)
    other = await stack.front_end()

    async def stop(run: str) -> bool:
        answer = await other.http.post(f"/ag-ui/stop/{talk.thread}", params={"run": run})
        return bool(answer.json()["stopped"])

    running = talk.say("/slow 60").body()
    async with talk.client.open("POST", "/ag-ui", json=running) as stream:
        await stream.until(lambda frames: frames)
        assert not await stop(over["runId"])
        assert not await stop("nobody's"), "what is not known is not all there is"
        assert await stop(running["runId"])
        assert (await stream.all())[-1].data["outcome"] == {"type": "cancelled"}
    asked = await talk.run("/approve it")
    resume = [
        {"interruptId": each["id"], "status": "resolved", "payload": True}
        for each in asked[-1]["outcome"]["interrupts"]
    ]
    body = talk.body(resume=resume)
    await talk.client.http.post("/ag-ui", json=body)
    assert not await stop(body["runId"])


async def test_runs_that_begin_with_answers_are_stopped_by_their_names(stack: Stack, client: Client) -> None:
    """By the one that their client gave them, and by that which who connects is told."""
    speaking = await speaking_to(stack, client, "lead")

    async def stop(talk: Talk, run: str) -> bool:
        answer = await talk.client.http.post(f"/ag-ui/stop/{talk.thread}", params={"run": run})
        return bool(answer.json()["stopped"])

    for connects in (False, True):
        talk = Talk(speaking)
        asked = await talk.run(script([("f", {})], [("f", {})], "done"), tools=[F])
        talk.answer(calls_in(asked)[0])
        body = talk.body(tools=[F])
        await talk.client.http.post("/ag-ui", json=body)
        run = (await talk.connect())[0]["runId"] if connects else body["runId"]
        assert not await stop(talk, f"x{run}")
        if connects:
            assert not await stop(talk, f"{run}9"), "there are not so many of that turn"
        assert await stop(talk, run)
        assert not await stop(talk, run)


async def test_answers_that_come_with_a_new_message(stack: Stack, client: Client) -> None:
    """Are refused with it, so that no word is lost; each by itself is taken."""
    words = [{"id": "new", "role": "user", "content": "and what is your name?"}]
    asking = Talk(client)
    asked = await asking.run("/approve it")
    (interrupt,) = asked[-1]["outcome"]["interrupts"]
    resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": True}]
    talk = Talk(await speaking_to(stack, client, "lead"))
    (call,) = calls_in(await talk.run(script([("f", {})], "done {results}"), tools=[F]))
    mine = {"id": "a", "role": "assistant", "toolCalls": []}
    result = {"id": "r", "role": "tool", "toolCallId": call, "content": "21"}
    for who, messages, more in (
        (asking, [*asking.messages, mine, *words], {"resume": resume}),
        (talk, [*talk.messages, mine, *words, result], {}),
        (talk, [*talk.messages, mine, result, *words], {}),
    ):
        refused = await who.client.http.post("/ag-ui", json=who.body(messages=messages, **more))
        assert refused.status_code == 422
        assert refused.json()["message"].startswith("messages: answers to calls come without"), refused.text
    assert text_of(await asking.run(resume=resume)) == "The result is it is gone."
    # A client that has no more than its own words.
    assert text_of(await talk.run(messages=[*talk.messages, result], tools=[F])).split() == ["done", "21"]
    assert text_of(await asking.run(messages=words)) == "You said: and what is your name?"


async def test_agents_of_a_key(stack: Stack, client: Client) -> None:
    """Info tells them; the address says which; CopilotKit's addresses say the same in two ways."""
    body = {"owner": "o", "agent": "lead", "others": ["sub"]}
    made = await client.http.post(
        "/admin/v1/keys", json=body, headers={"Authorization": f"Bearer {stack.admin}"}
    )
    client = stack.client(client.base_url, made.json()["token"])
    info = (await client.http.get("/copilotkit/info")).json()
    assert [*info["agents"]] == ["lead", "sub"]
    assert info["agents"]["lead"]["capabilities"]["multiAgent"]["subagents"] == [{"name": "sub"}]
    assert (await client.http.get("/ag-ui/info")).json() == info
    assert (await client.http.post("/copilotkit", json={"method": "info"})).json() == info
    for path, status in (
        ("/ag-ui", 200),
        ("/ag-ui?agent=sub", 200),
        ("/ag-ui?agent=demo", 404),
        ("/copilotkit/agent/sub/run", 200),
        ("/copilotkit/agent/demo/run", 404),
    ):
        answer = await client.http.post(path, json=Talk(client).say(script("hi")).body())
        assert answer.status_code == status
    talk = Talk(client, path="/ag-ui")
    await talk.run(script("hi"))
    # A thread is of one agent.
    wrong = await client.http.post("/ag-ui?agent=sub", json=talk.say(script("hi")).body())
    assert wrong.status_code == 404
    call: dict[str, Any] = {"params": {"agentId": "lead", "threadId": talk.thread}}
    connected = await client.http.post(
        "/copilotkit", json={"method": "agent/connect", **call, "body": talk.body()}
    )
    assert events_of(connected.content) == await talk.connect()
    stopped = await client.http.post("/copilotkit", json={"method": "agent/stop", **call})
    assert stopped.json() == {"stopped": False}
    by_path = await client.http.post(
        f"/copilotkit/agent/lead/stop/{talk.thread}", json={"runId": str(uuid.uuid4())}
    )
    assert by_path.json() == {"stopped": False}


async def test_copilotkits_routes_are_not_there_by_default(stack: Stack) -> None:
    """They have to be named."""
    client = await stack.front_end(protocols="default")
    assert (await client.http.get("/copilotkit/info")).status_code == 404
    assert (await client.http.get("/ag-ui/info")).status_code == 200


async def test_a_turn_of_another_protocol(client: Client, stack: Stack) -> None:
    """Begun through the Agent API, followed and answered through AG-UI."""
    async with client.process("s1", "/call f {}") as stream:
        await stream.until(lambda frames: any(frame.data.get("type") == "function_call" for frame in frames))
        talk = Talk(client, "s1")

        async def is_parked() -> bool:
            events = await talk.connect()
            return bool(events[-1]["outcome"].get("pendingToolCallIds"))

        await wait_until(is_parked, "the client to be asked")
        (call,) = calls_in(await talk.connect())
        events = await talk.answer(call, '{"sky":"blue"}').run()
        assert text_of(events) == 'The result is {"sky":"blue"}.'
        assert (await stream.all())[-1].data["status"] == "completed"
