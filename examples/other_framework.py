"""How is an agent served that another framework runs?

Whatever gives an async iterator can be wrapped: `wrapped`, below, is the whole wrapper. ``Graph`` stands
in for a LangGraph app, so that the example needs no further library; with the real thing, leave ``Graph``
out and write ``app = builder.compile()``: ``astream(…, stream_mode=["messages", "updates"])`` gives the
same pairs.

    python examples/other_framework.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnstream import Thinking, Turn, agent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass
class Chunk:
    """A piece of a message, as the stand-in's model gives it."""

    content: str


class Graph:
    """A stand-in: streams pairs of a mode and what that mode tells, as ``CompiledGraph.astream`` does."""

    async def astream(self, state: dict[str, Any], stream_mode: list[str]) -> AsyncIterator[tuple[str, Any]]:  # noqa: ARG002
        """Run the graph."""
        yield "updates", {"plan": {"steps": 2}}
        for word in f"You asked {len(state['messages'])} time(s), last: {state['messages'][-1][1]}".split(
            " "
        ):
            yield "messages", (Chunk(word + " "), {"langgraph_node": "answer"})
        yield "updates", {"answer": {"usage": {"input_tokens": 12, "output_tokens": 7}}}


app = Graph()


@agent
async def wrapped(turn: Turn) -> AsyncIterator[Any]:
    """The wrapper: the history in, text and thinking out, tokens counted."""
    messages = [(each["role"], each["text"]) for each in turn.history if each["role"] == "user"]
    messages.append(("user", turn.text))
    async for mode, told in app.astream({"messages": messages}, stream_mode=["messages", "updates"]):
        if mode == "messages":
            chunk, _ = told
            yield chunk.content
            continue
        for node, update in told.items():
            if usage := update.get("usage"):
                turn.count(usage["input_tokens"], usage["output_tokens"])
            else:
                yield Thinking(f"{node}: {update}\n")


if __name__ == "__main__":
    from talking import serving

    with serving("other_framework.toml", "graph") as chat:
        for text in ("hello", "hello again"):
            for event in chat.say(text):
                if event["object"] == "response" and event["status"] == "completed":
                    print(f"[{event['usage']['total_tokens']} tokens]", end="")
