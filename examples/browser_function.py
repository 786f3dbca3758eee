"""How does an agent use a function that only the client can run?

The model calls `get_location`; the turn parks, which holds no worker; the browser answers through
``/callback``, on any front end; the turn goes on, and so does the stream that the browser reads.

    python examples/browser_function.py
"""

from __future__ import annotations

import json

from offline import Call, model
from pydantic_ai import Agent


def rule(prompt: str, returned: list[str]) -> str | list[Call]:  # noqa: ARG001
    """What the offline model does: ask where, then answer."""
    if not returned:
        return [("get_location", {"precise": False})]
    return f"In {json.loads(returned[0])['city']} it is sunny."


agent = Agent(model(rule), instructions="You tell the weather where the user is.")

if __name__ == "__main__":
    from talking import data_of, serving

    with serving("browser_function.toml", "weather") as chat:
        for event in chat.say("How is the weather here?"):
            if call := data_of(event, "function_call"):
                print(f"[the browser runs {call['name']}]", end=" ")
                chat.answer(call["call_id"], {"city": "Lisbon"})
