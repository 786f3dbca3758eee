"""OpenAI's Agents SDK: its own loop calls our agent as a model, and remembers everything itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from agents import (
    Agent,
    HostedMCPTool,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)

from tests.behaviour.conftest import team
from tests.support.scripted import script
from tests.support.stack import Stack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place
    from tests.support.client import Client

QUIET = RunConfig(tracing_disabled=True)
TWICE = script(
    [("sky", {"city": "Oslo"}), ("sky", {"city": "Rome"})], [("sky", {"city": "Bonn"})], "seen {results}"
)


@pytest.fixture
async def stack(place: Place) -> AsyncIterator[Stack]:
    """An agent that does what its prompt says, and the demo."""
    stack = Stack(place, team(lead={}), dev_agent="lead")
    await stack.worker()
    yield stack
    await stack.close()


@function_tool
def sky(city: str) -> str:
    """Say what the sky is like."""
    return f"blue over {city}"


@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_of_the_sdk(openai: Any, kind: type[Any], streamed: bool) -> None:
    """Called in parallel and again, answered with the whole history and no id but the calls'; then the next turn."""
    agent = Agent(name="a", model=kind("lead", openai), tools=[sky])
    if streamed:
        run = Runner.run_streamed(agent, TWICE, run_config=QUIET)
        kinds = [event.type async for event in run.stream_events()]
        assert kinds.count("raw_response_event") > 10
        result: Any = run
    else:
        result = await Runner.run(agent, TWICE, run_config=QUIET)
    seen = "seen blue over Oslo | blue over Rome | blue over Bonn"
    assert result.final_output.strip() == seen
    said = [*result.to_input_list(), {"role": "user", "content": script("again")}]
    assert (await Runner.run(agent, said, run_config=QUIET)).final_output.strip() == "again"


async def test_an_approval_of_the_sdk(stack: Stack, client: Client, openai_at: Any) -> None:
    """As one of a hosted MCP server, whose label is the agent's name."""
    del client
    openai = openai_at(await stack.front_end(dev_agent="demo"))
    asked = []

    def consent(request: Any) -> Any:
        asked.append(request.data.name)
        return {"approve": True}

    tool: Any = HostedMCPTool(
        tool_config={"type": "mcp", "server_label": "demo", "server_url": "https://demo.invalid"},
        on_approval_request=consent,
    )
    agent = Agent(name="a", model=OpenAIResponsesModel("demo", openai), tools=[tool])
    result = await Runner.run(agent, "/approve files", run_config=QUIET)
    assert asked == ["delete_everything"]
    assert "files is gone" in result.final_output


async def test_the_sdk_goes_on_from_a_response(openai: Any) -> None:
    """With the id of the last response instead of the history."""
    agent = Agent(name="a", model=OpenAIResponsesModel("lead", openai))
    first = await Runner.run(agent, script("one"), run_config=QUIET)
    second = await Runner.run(
        agent, script("two"), run_config=QUIET, previous_response_id=first.last_response_id
    )
    assert second.final_output.strip() == "two"
