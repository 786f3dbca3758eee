"""A key that may speak with several agents: the model says with which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai import BadRequestError, NotFoundError

from tests.behaviour.conftest import team
from tests.support.scripted import script
from tests.support.stack import Stack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place
    from tests.support.client import Client


@pytest.fixture
async def stack(place: Place) -> AsyncIterator[Stack]:
    """Three agents."""
    stack = Stack(place, team(one={"description": "One."}, two={}, three={"allow_overrides": []}))
    await stack.worker()
    yield stack
    await stack.close()


@pytest.fixture
async def openai(stack: Stack, client: Client, openai_at: Any) -> Any:
    """A client with a key for two of them."""
    body = {"owner": "o", "agent": "one", "others": ["two"]}
    made = await client.http.post(
        "/admin/v1/keys", json=body, headers={"Authorization": f"Bearer {stack.admin}"}
    )
    assert made.json()["others"] == ["two"]
    return openai_at(client, made.json()["token"])


async def test_the_model_selects(openai: Any) -> None:
    """Both are listed, and answer; another one is not found."""
    assert [model.id async for model in openai.models.list()] == ["one", "two"]
    for name in ("one", "two"):
        answer = await openai.responses.create(model=name, input=script("hi"))
        assert (answer.model, answer.output_text.strip()) == (name, "hi")
        said: list[Any] = [{"role": "user", "content": script("hi")}]
        assert (await openai.chat.completions.create(model=name, messages=said)).model == name
    for name in ("three", "demo"):
        with pytest.raises(NotFoundError):
            await openai.responses.create(model=name, input="hi")


async def test_a_session_keeps_its_agent(openai: Any) -> None:
    """Whoever goes on with it need not say with which; another one is refused."""
    first = await openai.responses.create(model="two", input=script("hi"))
    more: Any = {"input": script("there"), "previous_response_id": first.id}
    with pytest.raises(BadRequestError) as error:
        await openai.responses.create(model="one", **more)
    assert error.value.param == "model"
    second = await openai.responses.create(**more)
    assert second.model == "two"
    conversation = await openai.conversations.create(extra_body={"model": "two"})
    third = await openai.responses.create(model="two", input=script("hi"), conversation=conversation.id)
    assert third.status == "completed"
    for each in (first, second, third):
        assert (await openai.responses.retrieve(each.id)).model == "two"


async def test_another_agent_in_a_chat(openai: Any) -> None:
    """A client that changes the model in mid-chat tells the other one all that was said."""
    header = {"X-OpenWebUI-Chat-Id": "chat1"}
    said: list[Any] = [{"role": "user", "content": script("hi")}]
    for name in ("one", "two"):
        answer = await openai.chat.completions.create(model=name, messages=said, extra_headers=header)
        assert (answer.model, answer.choices[0].message.content.strip()) == (name, "hi")
        said += [
            {"role": "assistant", "content": answer.choices[0].message.content},
            {"role": "user", "content": script("hi")},
        ]
