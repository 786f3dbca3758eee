"""How does an agent hand work to others?

Its ``subagents`` are offered to its model as tools that take a task. It may ask several at once: they
work side by side, what they say streams under their own names, and their answers come back to it.

    python examples/research_team.py
"""

from __future__ import annotations

from offline import Call, model
from pydantic_ai import Agent


def edit(prompt: str, returned: list[str]) -> str | list[Call]:
    """What the offline editor does: ask both experts at once, then join their answers."""
    if returned:
        return "Together: " + " ".join(returned)
    return [
        ("historian", {"task": f"The history of: {prompt}"}),
        ("economist", {"task": f"The cost of: {prompt}"}),
    ]


editor = Agent(model(edit), instructions="You ask the experts, and write one answer from theirs.")
historian = Agent(model(lambda task, _: f"{task} It was begun in 1869."))
economist = Agent(model(lambda task, _: f"{task} It cost 433 million francs."))

if __name__ == "__main__":
    from talking import data_of, serving

    with serving("research_team.toml", "editor") as chat:
        for event in chat.say("the Suez Canal."):
            if call := data_of(event, "component_call"):
                print(f"\n[{call['name']} is asked]", end=" ")
            if answer := data_of(event, "component_call_output"):
                print(f"\n[{answer['name']} answered: {answer['content'][0]['message']}]")
