"""How does a person agree to what an agent is about to do?

A tool made with ``requires_approval=True`` does not run before somebody said yes. Until then the turn is
parked. A no, and its reason, are told to the model.

    python examples/approval.py
"""

from __future__ import annotations

from offline import Call, model
from pydantic_ai import Agent, Tool


async def delete_account(name: str) -> str:
    """Delete an account for good."""
    return f"The account {name} is gone."


def rule(prompt: str, returned: list[str]) -> str | list[Call]:
    """What the offline model does: delete whom it is told to, then report."""
    return returned[0] if returned else [("delete_account", {"name": prompt.rsplit(maxsplit=1)[-1]})]


agent = Agent(model(rule), tools=[Tool(delete_account, requires_approval=True)])

if __name__ == "__main__":
    from talking import data_of, serving

    with serving("approval.toml", "admin") as chat:
        for text, approve in (("Delete the account bob", False), ("Delete the account mallory", True)):
            for event in chat.say(text):
                if asked := data_of(event, "mcp_approval_request"):
                    print(f"[{asked['name']} {asked['arguments']}: {'yes' if approve else 'no'}]", end=" ")
                    chat.answer(asked["id"], {"approve": approve, "reason": "Bob is on leave."})
