"""How does an agent use tools that run on the server?

A support agent looks orders up. A tool is a function with a docstring; the model reads both.

    python examples/support.py
"""

from __future__ import annotations

import re

from offline import Call, model
from pydantic_ai import Agent

ORDERS = {"A17": "a red bicycle, shipped yesterday", "B2": "two tyres, waiting for stock"}


async def find_order(number: str) -> str:
    """Look an order up by its number."""
    return ORDERS.get(number, "There is no such order.")


def opening_hours(day: str) -> str:
    """Tell when the shop is open. A plain function is run in a thread, so that it blocks nobody."""
    return "closed" if day == "Sunday" else "9 to 18"


def rule(prompt: str, returned: list[str]) -> str | list[Call]:
    """What the offline model does: look up every order that is named, then tell."""
    if returned:
        return "I looked it up: " + "; ".join(returned) + "."
    orders = re.findall(r"\b[A-Z]\d+\b", prompt)
    if orders:
        return [("find_order", {"number": order}) for order in orders]
    return [("opening_hours", {"day": "Sunday" if "Sunday" in prompt else "Monday"})]


agent = Agent(
    model(rule),
    instructions="You help the customers of a bicycle shop. Look orders up before you answer.",
    tools=[find_order, opening_hours],
)

if __name__ == "__main__":
    from talking import data_of, serving

    with serving("support.toml", "support") as chat:
        for text in ("Where are A17 and B2?", "Are you open on Sunday?"):
            for event in chat.say(text):
                if call := data_of(event, "plugin_call"):
                    print(f"[{call['name']} {call['arguments']}]", end=" ")
