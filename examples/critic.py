"""How is an answer made better before anybody reads it?

Critics score each draft from 0 to 10. Below ``pass_score`` the writer tries again with their remarks, at
most ``max_count`` times; if no draft passes, the best one is used. The client sees the verdicts.

    python examples/critic.py
"""

from __future__ import annotations

from offline import Call, model
from pydantic_ai import Agent


def write(prompt: str, returned: list[str]) -> str | list[Call]:  # noqa: ARG001
    """What the offline writer does: a poor draft first, a better one once it has read the remarks."""
    return "Snow falls, the pond sleeps; a frog waits." if "Score:" in prompt else "There is some snow."


def judge(prompt: str, returned: list[str]) -> str | list[Call]:  # noqa: ARG001
    """What the offline critic does: it likes frogs."""
    good = "frog" in prompt
    remark = "A frog at last." if good else "Where is the frog?"
    return [("verdict", {"score": 9 if good else 4, "description": remark})]


writer = Agent(model(write), instructions="You write haiku.")
critic = Agent(model(judge), instructions="You judge haiku: is there a season, and an animal?")

if __name__ == "__main__":
    from talking import data_of, serving

    with serving("critic.toml", "writer") as chat:
        for event in chat.say("A haiku on winter, please."):
            if said := data_of(event, "component_call_output"):
                verdict = said["output"]
                remarks = verdict["messageScore"]["reflectScoreList"]
                print(
                    f"\n[round {verdict['count']}: {verdict['score']} of 10. {remarks[0]['description']}]",
                    end=" ",
                )
