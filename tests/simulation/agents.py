"""Agents that are cheap to simulate: generators that answer the demo agent's commands as it does, without a model.

And commands more for the demo agents' models, which ask their client while a tool runs; and an agent whose model's provider
and whose bank are of the simulation.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent, Tool
from pydantic_ai.models.function import FunctionModel

from tests.simulation.outside import MODEL, outside
from turnstream import AgentError, Call, ClientCall, Thinking, Turn, agent
from turnstream.worker.agents import demo
from turnstream.worker.agents.calls import effects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models.function import AgentInfo


# What a coded agent counts before it asks its client, and again when it goes on.
SPENT = (3, 2)


@agent
async def coded(turn: Turn) -> AsyncIterator[Any]:
    """Answers the commands that need neither server tools nor other agents."""
    outside().look_at_version()
    command, *rest = turn.text.split()
    match command:
        case "/recall":
            yield json.dumps([each["text"] for each in turn.history if each["role"] == "user"])
        case "/tokens":
            for number in range(int(rest[0])):
                await asyncio.sleep(float(rest[1]) / 1000)
                yield f"tok{number} "
        case "/think":
            yield Thinking("Let me think about that ")
            yield Thinking("for a moment.")
            yield "I thought about it: "
            yield "it is fine."
        case "/slow":
            await asyncio.sleep(float(rest[0]))
            yield f"The result is That took {float(rest[0]):g} seconds."
        case "/fail":
            yield "I try. "
            raise AgentError("demo_failure", " ".join(rest))
        case "/call" | "/calls":
            keys = [f"call {number}" for number in range(int(rest[0]) if command == "/calls" else 1)]
            if not turn.results.keys() >= set(keys):
                if not turn.state.get("asked"):
                    turn.state["asked"] = True
                    turn.count(*SPENT)
                    yield "Let me ask. "
                yield [ClientCall("client_function", {"key": key}, key=key) for key in keys]
            turn.count(*SPENT)
            yield f"The results are {[turn.results[key] for key in keys]}."
        case _:
            yield "You said: "
            yield turn.text


_demo = demo._demo

# What is told of a sub-agent that has failed.
BROKEN_DOWN = "I broke down."


async def demo_script(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[demo.Said]:
    """As the demo agents'.

    ``/call beside`` asks the client, who may have answered before the tool is done. ``/call lost``, which is for the sub-agent,
    asks while a tool runs that raises: the call is taken back, unless it was answered by then. ``/call apart`` has the
    sub-agent do that, and asks beside it.
    """
    prompt, returns = demo._situation(messages)
    command, name, arguments = (*prompt.split(maxsplit=2), "", "", "")[:3]
    tools = {
        "beside": ("slow", arguments),
        "lost": ("break_down", arguments),
        "apart": ("demo-researcher", json.dumps({"task": f"/call lost {arguments}"})),
    }
    if command == "/call" and name in tools and not returns:
        yield demo._call(0, name, arguments)
        yield demo._call(1, *tools[name])
        return
    async for said in _demo(messages, info):
        yield said


@effects(read_only=True)
async def break_down(seconds: float) -> str:
    """Fail after so many seconds, and with it the agent whose tool it is."""
    await asyncio.sleep(seconds)
    raise AgentError("broken_down", BROKEN_DOWN)


def _ask_provider(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """``/ask N`` is answered in so many pieces, ``/book TOOL AMOUNT`` with what the tool returned."""
    prompt, returns = demo._situation(messages)
    command, *rest = prompt.split()
    said: list[Any] = ["The bank says: ", *(part.model_response_str() for part in returns)]
    if not returns:
        said = [f"tok{number} " for number in range(int(rest[0]))] if command == "/ask" else []
        if command == "/book":
            said = ["I book it. ", demo._call(1, rest[0], json.dumps({"amount": int(rest[1])}))]
    return outside().provider.stream(said)


async def book(amount: int) -> str:
    """Book an amount."""
    return await outside().bank.book(amount)


async def find(call: Call, arguments: dict[str, Any]) -> Any:
    """What became of a booking whose worker was lost."""
    return await outside().bank.find(call.key)


# A tool of that name → what is done about a lost call of it.
ON_LOST = {"rerun": "rerun", "tell": "tell", "ask": "ask", "find": "tests.simulation.agents:find"}

teller: Agent[None, str] = Agent(
    FunctionModel(stream_function=_ask_provider, model_name=MODEL),
    tools=[Tool(book, name=name) for name in ON_LOST],
)
