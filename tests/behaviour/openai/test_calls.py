"""Calls: a response ends where its client is asked, and the answers begin another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from openai import BadRequestError, NotFoundError

from tests.behaviour.conftest import team
from tests.support.openai_events import strictly
from tests.support.scripted import script
from tests.support.stack import Stack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place

F = {
    "type": "function",
    "name": "f",
    "description": "Ask.",
    "parameters": {"type": "object", "properties": {}},
}
TWICE = script([("f", {}), ("f", {})], [("f", {})], "done {results}")


@pytest.fixture
async def stack(place: Place) -> AsyncIterator[Stack]:
    """An agent that does what its prompt says."""
    stack = Stack(
        place,
        team(lead={"subagents": ["sub"]}, sub={"client_tools": [{"name": "g"}]}),
        dev_agent="lead",
    )
    await stack.worker()
    yield stack
    await stack.close()


def calls_in(response: Any) -> list[str]:
    """The ids of the calls that a response asks for."""
    return [item.call_id for item in response.output if item.type == "function_call"]


def outputs(*calls: str, output: str = "21") -> list[dict[str, Any]]:
    """The answers to calls."""
    return [{"type": "function_call_output", "call_id": call, "output": output} for call in calls]


async def test_going_on_from_a_canceled_call(openai: Any) -> None:
    """Its calls were not answered, and never will be: the client knows of no later response."""
    first = await openai.responses.create(model="lead", input=TWICE, tools=[F])
    await openai.responses.cancel(first.id)
    with pytest.raises(BadRequestError):
        await openai.responses.create(model="lead", input=outputs(*calls_in(first)))
    second = await openai.responses.create(model="lead", input=script("well"), previous_response_id=first.id)
    assert (second.status, second.output_text.strip()) == ("completed", "well")


async def test_deleting_an_earlier_response_of_a_turn(openai: Any) -> None:
    """Its next one goes on."""
    first = await openai.responses.create(model="lead", input=TWICE, tools=[F])
    second = await openai.responses.create(model="lead", input=outputs(*calls_in(first)))
    await openai.responses.delete(first.id)
    with pytest.raises(NotFoundError):
        await openai.responses.retrieve(first.id)
    third = await openai.responses.create(model="lead", input=outputs(*calls_in(second)))
    assert third.status == "completed"
    assert third.output_text.split()[0] == "done"


async def test_a_call_answered_twice_at_once(openai: Any) -> None:
    """It cannot be told which of them is meant."""
    first = await openai.responses.create(model="lead", input=script([("f", {})], "done"), tools=[F])
    (call,) = calls_in(first)
    with pytest.raises(BadRequestError, match="twice"):
        await openai.responses.create(
            model="lead", input=[*outputs(call, output="1"), *outputs(call, output="2")]
        )


async def test_an_answer_of_another_kind(openai: Any, stack: Stack, openai_at: Any) -> None:
    """Consent is no function's result, nor the other way round: there is no such call, and it waits on."""
    first = await openai.responses.create(
        model="lead", input=script([("f", {})], "done {results}"), tools=[F]
    )
    (call,) = calls_in(first)
    with pytest.raises(NotFoundError):
        await openai.responses.create(model="lead", input=[consent(call)])
    second = await openai.responses.create(model="lead", input=outputs(call))
    assert second.output_text.split() == ["done", "21"]
    openai = openai_at(await stack.front_end(dev_agent="demo"))
    first = await openai.responses.create(model="demo", input="/approve files")
    (request,) = first.output
    with pytest.raises(NotFoundError):
        await openai.responses.create(model="demo", input=outputs(request.id))
    second = await openai.responses.create(model="demo", input=[consent(request.id)])
    assert "files is gone" in second.output_text


def consent(request: str) -> dict[str, Any]:
    """The answer to a request for it."""
    return {"type": "mcp_approval_response", "approval_request_id": request, "approve": True}


async def test_functions_of_the_client(openai: Any, stack: Stack, openai_at: Any) -> None:
    """Two in parallel, then one: three responses, of which each is found; answered at another front end, with a stream and without."""
    first = await openai.responses.create(model="lead", input=TWICE, tools=[F])
    strictly(orjson.loads(first.to_json()))
    assert first.status == "completed"
    calls = calls_in(first)
    assert len(calls) == 2
    other = openai_at(await stack.front_end())
    answers = {"model": "lead", "previous_response_id": first.id, "tools": [F]}
    async with other.responses.stream(input=outputs(*calls), **answers) as stream:
        second = await stream.get_final_response()
    assert second.previous_response_id == first.id
    listed = (await other.responses.input_items.list(second.id, order="asc")).data
    assert [item.call_id for item in listed] == calls
    (call,) = calls_in(second)
    third = await openai.responses.create(model="lead", input=outputs(call))
    assert third.output_text.split() == ["done", "21", "|", "21", "|", "21"]
    for each in (first, second, third):
        told = orjson.loads((await other.responses.retrieve(each.id)).to_json())
        strictly(told)
        assert (told["id"], told["status"]) == (each.id, "completed")
        assert [item["id"] for item in told["output"]] == [item.id for item in each.output]
        again = [event async for event in await other.responses.retrieve(each.id, stream=True)]
        assert orjson.loads(again[-1].response.to_json()) == told
    items = (await openai.responses.input_items.list(second.id, order="asc")).data
    assert [item.call_id for item in items] == calls
    # A repeat of the answers finds the same response; so does the id in the history of a client that remembers all itself.
    assert (await other.responses.create(model="lead", input=outputs(*calls))).id == second.id
    history = [
        {"role": "user", "content": TWICE},
        *({"type": "function_call", "call_id": each, "name": "f", "arguments": "{}"} for each in calls),
        *outputs(*calls),
    ]
    assert (await other.responses.create(model="lead", input=history)).id == second.id


async def test_all_calls_are_answered_at_once(openai: Any) -> None:
    """A part of them is refused, as is a message; nothing is lost by it."""
    first = await openai.responses.create(model="lead", input=TWICE, tools=[F])
    one, two = calls_in(first)
    for given in (outputs(one), "never mind"):
        with pytest.raises(BadRequestError, match="No tool output found for function call") as error:
            await openai.responses.create(model="lead", input=given, previous_response_id=first.id)
        assert error.value.param == "input"
    second = await openai.responses.create(model="lead", input=outputs(one, two))
    assert second.id.endswith("~1")


async def test_a_message_does_not_come_with_answers(openai: Any) -> None:
    """It would be lost, before them as behind them: it is refused, and the calls wait on."""
    first = await openai.responses.create(model="lead", input=TWICE, tools=[F])
    answers, message = outputs(*calls_in(first)), {"role": "user", "content": "never mind"}
    for given, place in (([message, *answers], "input[0]"), ([*answers, message], "input[2]")):
        with pytest.raises(BadRequestError) as error:
            await openai.responses.create(model="lead", input=given, previous_response_id=first.id)
        assert error.value.param == place
    second = await openai.responses.create(model="lead", input=answers, previous_response_id=first.id)
    assert second.id.endswith("~1")


async def test_a_subagent_asks(openai: Any) -> None:
    """Its words are not told, its call is; what it answered stands in the response after."""
    first = await openai.responses.create(
        model="lead", input=script([("sub", [[("g", {})], "sub {results}"])], "lead {results}")
    )
    assert [item.type for item in first.output] == ["mcp_call", "function_call"]
    assert first.output[0].status == "incomplete"
    second = await openai.responses.create(model="lead", input=outputs(*calls_in(first)))
    assert [item.type for item in second.output] == ["mcp_call", "message"]
    assert second.output[0].output.strip() == "sub 21"
    assert second.output_text.split() == ["lead", "sub", "21"]


@pytest.mark.parametrize("approve", [True, False])
async def test_an_approval(stack: Stack, openai_at: Any, approve: bool) -> None:
    """A request for consent, answered by its id alone."""
    openai = openai_at(await stack.front_end(dev_agent="demo"))
    first = await openai.responses.create(model="demo", input="/approve files")
    (request,) = first.output
    assert (request.type, request.name, request.server_label) == (
        "mcp_approval_request",
        "delete_everything",
        "demo",
    )
    answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
    second = await openai.responses.create(model="demo", input=[answer])
    strictly(orjson.loads(second.to_json()))
    assert ("files is gone" in second.output_text) == approve
    (item,) = (await openai.responses.input_items.list(second.id)).data
    assert (item.approval_request_id, item.approve) == (request.id, approve)


async def test_a_conversation(openai: Any) -> None:
    """A session by name: responses go on in it, their items are its items."""
    conversation = await openai.conversations.create(metadata={"topic": "demo"})
    assert conversation.metadata == {"topic": "demo"}
    first = await openai.responses.create(model="lead", input=script("one"), conversation=conversation.id)
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    second = await openai.responses.create(
        model="lead", input=script([("f", {})], "two"), conversation={"id": conversation.id}, tools=[F]
    )
    assert second.previous_response_id is None
    third = await openai.responses.create(
        model="lead", input=outputs(*calls_in(second)), conversation=conversation.id
    )
    assert third.conversation is not None
    assert third.previous_response_id is None
    items = [item async for item in openai.conversations.items.list(conversation.id, order="asc", limit=2)]
    kinds = ["message", "message", "message", "function_call", "function_call_output", "message"]
    assert [item.type for item in items] == kinds
    assert (
        await openai.conversations.items.retrieve(items[1].id, conversation_id=conversation.id)
    ).id == items[1].id
    changed = await openai.conversations.update(conversation.id, metadata={"topic": "other"})
    assert changed.created_at == conversation.created_at
    assert (await openai.conversations.retrieve(conversation.id)).metadata == {"topic": "other"}
    assert (await openai.conversations.delete(conversation.id)).deleted
    with pytest.raises(NotFoundError):
        await openai.conversations.retrieve(conversation.id)
