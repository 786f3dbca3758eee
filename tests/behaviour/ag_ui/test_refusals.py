"""What is refused: fields that are wrong, ids that are not one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.behaviour.ag_ui.conftest import Talk
from turnstream.shared.api_keys import ApiKeys, make_token

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack

SAID: dict[str, Any] = {"id": "m", "role": "user", "content": "hi"}


def part(**fields: Any) -> dict[str, Any]:
    """A message with one part of these fields."""
    return {"messages": [{**SAID, "content": [fields]}]}


def answer(**fields: Any) -> dict[str, Any]:
    """An answer to an interrupt."""
    return {"resume": [{"interruptId": "call_1", "status": "resolved", **fields}]}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"threadId": ""}, "threadId"),
    ({"runId": None}, "runId"),
    ({"messages": "hi"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"id": "m", "role": "assistant", "content": "hi"}]}, "messages"),
    ({"messages": [{**SAID, "role": "nobody"}]}, "messages[0].role"),
    ({"messages": [{**SAID, "content": None}]}, "messages[0].content"),
    ({"messages": [{**SAID, "content": 5}]}, "messages[0].content"),
    (part(type="video"), "messages[0].content[0].type"),
    (part(type="image", source={"type": "url", "value": ""}), "messages[0].content[0].source.value"),
    (part(type="image", source={"type": "file", "value": "f"}), "messages[0].content[0].source"),
    (
        {"messages": [SAID, {"id": "t", "role": "tool", "content": {}, "toolCallId": "x"}]},
        "messages[1].content",
    ),
    ({"messages": [SAID, {"id": "t", "role": "tool", "content": "x"}]}, "messages[1].toolCallId"),
    ({"tools": [{"description": "no name"}]}, "tools[0].function.name"),
    ({"tools": [{"name": "f", "parameters": {"type": "nonsense"}}]}, "tools[0].function.parameters"),
    ({"context": [{"description": "d"}]}, "context[0]"),
    ({"resume": [{"interruptId": "call_1", "status": "maybe"}]}, "resume[0].status"),
    (answer(), "resume[0].payload"),
    (answer(payload={"yes": True}), "resume[0].payload.approved"),
    (answer(payload={"approved": True, "editedArgs": {}}), "resume[0].payload.editedArgs"),
    (answer(payload={"approved": False, "reason": 5}), "resume[0].payload.reason"),
]


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_a_field_that_is_wrong_is_named(client: Client) -> None:
    """In the error's text, at its beginning."""
    good = {"threadId": "t", "runId": "r", "messages": [SAID]}
    for wrong, field in WRONG:
        for path, place, body in (
            ("/ag-ui", "", {**good, **wrong}),
            ("/ag-ui/connect", "", {**good, **wrong}),
        ):
            refused = await client.http.post(path, json=body)
            if path.endswith("connect") and field == "messages" and isinstance(wrong["messages"], list):
                assert refused.status_code == 200
                continue
            assert refused.status_code == 422, (wrong, refused.text)
            assert refused.json()["message"].startswith(f"{place}{field}"), refused.text


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_copilotkits_one_route(stack: Stack) -> None:
    """It names what is wrong in its envelope, too."""
    await stack.worker()
    client = await stack.front_end(protocols="copilotkit")
    for body, field in (
        ({}, "method"),
        ({"method": "threads/list"}, "method"),
        ({"method": "agent/stop"}, "params.threadId"),
        ({"method": "agent/run", "params": {"agentId": "demo"}}, "threadId"),
        ({"method": "agent/stop", "params": {"threadId": "t"}, "body": {"runId": 5}}, "body.runId"),
    ):
        refused = await client.http.post("/copilotkit", json=body)
        assert refused.status_code == 422
        assert refused.json()["message"].startswith(field), refused.text


async def test_an_answer_in_time_only(talk: Talk) -> None:
    """What an interrupt's client has not heard: the turn was stopped, or the call answered otherwise."""
    asked = await talk.run("/approve it")
    (interrupt,) = asked[-1]["outcome"]["interrupts"]
    await talk.client.http.post(f"/ag-ui/stop/{talk.thread}")
    late = [{"interruptId": interrupt["id"], "status": "resolved", "payload": True}]
    refused = await talk.client.http.post("/ag-ui", json=talk.body(resume=late))
    assert (refused.status_code, refused.json()["code"]) == (409, "call_ended")


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_ids_of_nobody_and_of_others(stack: Stack) -> None:
    """Wherever an id can stand: the same, whether there is none or it is another owner's or agent's; and nothing is done."""
    await stack.worker()
    client = await stack.front_end(protocols="default, copilotkit")
    asking, running = Talk(client), Talk(client)
    interrupt = (await asking.run("/approve it"))[-1]["outcome"]["interrupts"][0]["id"]
    keys = ApiKeys(stack.broker.primary)
    others = []
    for owner, agent in (("eve", "demo"), ("dev", "demo-critic")):
        token = make_token()
        await keys.register(token, owner=owner, agent=agent)
        others.append((stack.client(client.base_url, token), agent))
    body = running.say("/slow 60").body()
    async with client.open("POST", "/ag-ui", json=body) as stream:
        await stream.until(lambda frames: frames)
        for other, agent in others:
            for runs, stops in (
                ("/ag-ui", "/ag-ui/stop/{}"),
                (f"/copilotkit/agent/{agent}/run", f"/copilotkit/agent/{agent}/stop/{{}}"),
            ):
                for path in (stops, f"{stops}?run={body['runId']}"):
                    theirs, nobodys = [
                        await other.http.post(path.format(thread)) for thread in (running.thread, "nobody")
                    ]
                    assert (theirs.status_code, theirs.content) == (404, nobodys.content)
                resume = [{"interruptId": interrupt, "status": "resolved", "payload": True}]
                more = [{**SAID, "role": "assistant"}, {"id": "t", "role": "tool", "toolCallId": interrupt}]
                for given in ({"resume": resume}, {"resume": resume, "messages": [SAID, *more]}):
                    theirs, nobodys = [
                        await other.http.post(
                            runs, json={**asking.body(messages=[SAID]), "threadId": each, **given}
                        )
                        for each in (asking.thread, "nobody")
                    ]
                    assert (theirs.status_code, theirs.content) == (404, nobodys.content)
            connects = "/ag-ui/connect"
            assert (await other.http.post(connects, json=asking.body(messages=[]))).content == b""
            assert (await other.http.post("/ag-ui?agent=nobody", json=asking.body())).status_code == 404
        eve, _ = others[0]
        named = (
            f"call_{asking.thread}~{(await asking.connect())[0]['runId']}~{interrupt.removeprefix('call_')}"
        )
        for who in (client, eve):
            mine = Talk(who)
            await mine.run("hi")
            for call in (interrupt, named, "call_none", "a~b~c"):
                resume = [{"interruptId": call, "status": "resolved", "payload": True}]
                result = {"id": "t", "role": "tool", "toolCallId": call, "content": "x"}
                for given in ({"resume": resume}, {"messages": [*mine.messages, result]}):
                    refused = await who.http.post("/ag-ui", json=mine.body(**given))
                    assert (refused.status_code, refused.json()["code"]) == (404, "call_not_found"), call
        # What is not stopped here goes on.
        assert (await client.http.post(f"/ag-ui/stop/{running.thread}?run={body['runId']}")).json() == {
            "stopped": True
        }
        assert (await stream.all())[-1].data["outcome"] == {"type": "cancelled"}
    assert (await asking.connect())[-1]["outcome"]["type"] == "interrupt"
