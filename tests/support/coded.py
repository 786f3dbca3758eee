"""Coded agents that tests put to work."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from turnstream import AgentError, ClientCall, Thinking, Turn, agent
from turnstream.shared.protocol import (
    AudioContent,
    Content,
    DataContent,
    FileContent,
    FunctionCall,
    ImageContent,
    Message,
    MessageType,
    RefusalContent,
    TextContent,
    VideoContent,
)
from turnstream.worker.agents.demo import _demo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pydantic_ai.messages import ModelMessage


@agent
async def everything(turn: Turn) -> AsyncIterator[Any]:
    """Says one of each kind of content."""
    yield Thinking("hm, ")
    yield Thinking("well")
    yield "Hello, "
    yield "world."
    yield ImageContent(image_url="https://example.com/a.png")
    yield DataContent(data={"answer": 42})
    yield AudioContent(data="aGVsbG8=", format="wav")
    yield FileContent(file_url="https://example.com/a.pdf", filename="a.pdf")
    yield VideoContent(video_url="https://example.com/a.mp4")
    yield RefusalContent(refusal="I would rather not.")
    yield Message(type="message", role="assistant", content=[TextContent(text="Another message.")])


@agent
async def every_message(turn: Turn) -> AsyncIterator[Any]:
    """Says a message of each type, an error with its code, and tells which types it was given."""
    for kind in MessageType:
        call = FunctionCall(call_id="call_1", name="f", arguments="{}")
        yield Message(type=kind, role="assistant", content=[DataContent.model_validate({"data": call})])
    yield Message(
        type="error", role="assistant", code="out_of_stock", message="None left.", metadata={"a": None}
    )
    yield DataContent(data={"given": [message["type"] for message in turn.input]})


@agent
async def echo(turn: Turn) -> AsyncIterator[Any]:
    """Fifty tokens, nothing else."""
    for number in range(50):
        await asyncio.sleep(0)
        yield f"tok{number} "


@agent
async def guide(turn: Turn) -> AsyncIterator[Any]:
    """Asks the client for two things at once, then a third, and remembers in its state."""
    if not {"where", "when"} <= turn.results.keys():
        yield "Let me ask. "
        turn.state["asked"] = turn.state.get("asked", 0) + 1
        yield [ClientCall("get_place", {"exact": True}, key="where"), ClientCall("get_time", key="when")]
    if "sure" not in turn.results:
        turn.state["asked"] += 1
        yield ClientCall("confirm", {"place": turn.results["where"]}, key="sure")
    yield f"{turn.results['where']} at {turn.results['when']}: {turn.results['sure']}, {turn.state['asked']} rounds."


@agent
async def recalls(turn: Turn) -> AsyncIterator[Any]:
    """Tells what it knows of earlier turns."""
    turn.count(3, 4)
    yield "; ".join(f"{each['role']}: {each['text']}" for each in turn.history) or "nothing"


@agent
async def obeys(turn: Turn) -> AsyncIterator[Any]:
    """Tells what the request asks of it."""
    names = ", ".join(tool["name"] for tool in turn.tools)
    yield f"{turn.overrides['model']} at {turn.overrides['temperature']} with {names}"


@agent
async def breaks(turn: Turn) -> AsyncIterator[Any]:
    """Fails in one of several ways, in mid-sentence."""
    yield "Before. "
    if turn.text == "known":
        raise AgentError("out_of_stock", "There is none left.")
    if turn.text.startswith("quote "):
        raise AgentError(f"no {turn.text}", "There is none left.")
    if turn.text == "odd":
        yield 42
    raise RuntimeError("the password is hunter2")


@agent
async def witness(turn: Turn) -> AsyncIterator[Any]:
    """Shows the parts that it was given."""
    yield DataContent(data={"given": [part for message in turn.input for part in message["content"]]})


scripted: Agent[None, str] = Agent(FunctionModel(stream_function=_demo, model_name="scripted"))


@scripted.tool
async def add(ctx: RunContext[None], a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


validated: Agent[None, str] = Agent(FunctionModel(stream_function=_demo, model_name="scripted"))


@validated.output_validator
async def _never(output: str) -> str:
    return output


not_an_agent = 42


async def cancels_itself(a: float, b: float) -> str:
    """A tool whose own helper task is cancelled."""
    helper = asyncio.create_task(asyncio.Event().wait())
    helper.cancel()
    await helper
    return "never"


async def exits(a: float, b: float) -> str:
    """A tool that tries to end the process."""
    raise SystemExit(3)


async def leaks(a: float, b: float) -> str:
    """A tool that fails with a secret in its locals and its text."""
    secret = "hunter2"
    raise RuntimeError(f"the password is {secret}")


class Unheard(BaseException):
    """An exception that nobody catches."""


async def raises_unheard(a: float, b: float) -> str:
    """A tool that raises what is no `Exception`."""
    raise Unheard("hunter2")


def exits_in_a_thread(a: float, b: float) -> str:
    """A plain function that tries to end the process."""
    raise SystemExit(3)


unheard: Agent[None, str] = Agent(FunctionModel(stream_function=_demo, model_name="scripted"))


@unheard.instructions
def _raise() -> str:
    raise Unheard("hunter2")


@agent
async def silent(turn: Turn) -> AsyncIterator[Any]:
    """Says nothing at all."""
    return
    yield


@agent
async def stubborn(turn: Turn) -> AsyncIterator[Any]:
    """Does not take a cancellation for an end."""
    yield "Here. "
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        yield "Still here. "
    yield "And here. "


@agent
async def odd(turn: Turn) -> AsyncIterator[Any]:
    """Yields what nobody can say."""
    yield "Before. "
    match turn.text:
        case "nothing":
            yield None
        case "bytes":
            yield b"text"
        case "untyped":
            yield {"text": "no type"}
        case "wrong fields":
            yield {"type": "text", "text": 42}
        case "no json":
            yield ClientCall("f", {"a": object()})
        case "no name":
            yield ClientCall("")
        case "twice":
            yield [ClientCall("f"), ClientCall("f")]
        case "mixed":
            yield [ClientCall("f"), "text"]
        case "state":
            turn.state["it"] = object()
            yield ClientCall("f")
        case "surrogate":
            yield "half \ud83d"
        case "base":
            raise Unheard("hunter2")
        case "huge":
            yield "x" * 20_000_000


class Weather(BaseModel):
    """What `structured` returns."""

    city: str
    degrees: int


def _returns(arguments: dict[str, Any]) -> Any:
    async def model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        yield {0: DeltaToolCall(name=info.output_tools[0].name, json_args=json.dumps(arguments))}

    return FunctionModel(stream_function=model, model_name="returns")


structured: Agent[None, Weather] = Agent(_returns({"city": "Rome", "degrees": 21}), output_type=Weather)

listing: Agent[None, list[str]] = Agent(_returns({"response": ["Rome", "Oslo"]}), output_type=list[str])


class Shop:
    """What `needy` wants of somebody."""


needy: Agent[Shop, str] = Agent(FunctionModel(stream_function=_demo, model_name="scripted"), deps_type=Shop)

_YIELDED: dict[str, Any] = {
    "message": {
        "object": "message",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "I am a message"}],
    },
    "part": {"type": "image", "image_url": "https://example.com/a.png"},
    "hologram": {"type": "hologram", "x": 1},
    "wrong": {"type": "text", "text": 5},
    "inside": {"object": "message", "role": "assistant", "content": [{"type": "hologram"}]},
    "pope": {"object": "message", "role": "pope", "content": "hi"},
    "object": Message(role="assistant", content=[Content(type="hologram")]),
    "nothing": {},
}


@agent
async def yields(turn: Turn) -> AsyncIterator[Any]:
    """Yields what it is asked for."""
    yield _YIELDED[turn.text]


@agent
async def asks(turn: Turn) -> AsyncIterator[Any]:
    """Waits for its client."""
    yield ClientCall("where")


@agent
async def own_types(turn: Turn) -> AsyncIterator[Any]:
    """Says messages of types that nobody else has, among them words that the log uses itself."""
    for kind in OWN_TYPES:
        yield Message(type=kind, role="assistant", content=[TextContent(text=kind)])
    if "f" not in turn.results:
        yield ClientCall("f")
    yield "done"


OWN_TYPES = ("response", "end", "parked", "status_update", "a\tb\nc", "")


@agent
async def exact(turn: Turn) -> AsyncIterator[Any]:
    """Asks, then says numbers that not every reader of JSON keeps."""
    if "f" not in turn.results:
        yield ClientCall("f")
    yield DataContent(data={"large": 2**70, "small": 1e-7, "zero": -0.0})


@agent
async def charges(turn: Turn) -> AsyncIterator[Any]:
    """Tells what its two calls of a model cost: of both, or of the one that the user wants to know."""
    turn.count(1000, 100, cost_usd=0.0035 if turn.text != "last" else None)
    turn.count(2000, 200, cost_usd=0.007 if turn.text in ("both", "last") else None)
    yield "That was it."
