"""`turnstream.testing`: agents are served in process on scripted models, and what became of a turn is asserted."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from turnstream import AsyncClient
from turnstream.client import TurnFailed, UnansweredCall
from turnstream.shared.errors import ConfigurationError
from turnstream.testing import Seen, Served, calls, crash, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AGENTS = """
[agents.shop]
model = "openai:gpt-5-mini"
instructions = "Be kind."
tools = ["testing_shop:discount", "testing_shop:charge", "testing_shop:broken"]
subagents = ["buyer"]

[agents.shop.on_lost]
charge = "rerun"

[[agents.shop.client_tools]]
name = "pick_colour"
description = "Lets the customer pick a colour."
parameters = { type = "object", properties = { choices = { type = "array" } } }

[agents.buyer]
model = "openai:gpt-5"

[agents.form]
model = "openai:gpt-5"
output_schema = { type = "object", properties = { size = { type = "integer" } }, required = ["size"] }

[agents.draft]
model = "openai:gpt-5"
critics = ["judge"]

[agents.judge]
model = "openai:gpt-5"

[agents.coded]
python = "testing_shop:coded"
"""

SHOP = '''
from turnstream import agent

charged = []

async def discount(a: float, b: float) -> float:
    """Lower a price."""
    return a * (100 - b) / 100

def charge(amount: float) -> str:
    """Charge the customer."""
    charged.append(amount)
    return f"charged {amount:g}"

def broken() -> str:
    """Raise."""
    raise RuntimeError("out of stock")

@agent
async def coded(turn):
    yield "coded says hello"
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the agents are."""
    (tmp_path / "agents.toml").write_text(AGENTS)
    (tmp_path / "testing_shop.py").write_text(SHOP)
    monkeypatch.setattr(sys, "path", list(sys.path))
    # No key is needed for scripted models, and no setting of the developer's shell counts.
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("TURNSTREAM_MAX_LIVE", "no number")
    yield tmp_path
    sys.modules.pop("testing_shop", None)


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    """They are served."""
    with serve(folder / "agents.toml") as served:
        yield served


def test_a_script_is_followed(served: Served) -> None:
    """Calls with their results, texts, functions of what the model was given; each turn begins with the first reply."""
    seen: list[Seen] = []

    def last(given: Seen) -> str:
        seen.append(given)
        return f"{' and '.join(given.results)} francs."

    served.script(calls("discount", a=80, b=25) + calls("discount", a=10, b=50), last)
    turns = [served.turn("How much?"), served.turn("Once more?")]
    for turn in turns:
        assert (turn.status, turn.text, turn.parks, turn.resumes, turn.crashes) == (
            "completed", "60.0 and 5.0 francs.", 0, 0, 0,
        )  # fmt: skip
        assert [(call.kind, str(call), call.result) for call in turn.calls] == [
            ("tool", "discount(a=80, b=25)", "60.0"),
            ("tool", "discount(a=10, b=50)", "5.0"),
        ]
        assert turn.called("discount", b=50).result == "5.0"
    assert [each.prompt for each in seen] == ["How much?", "Once more?"]
    assert {"discount", "charge", "pick_colour", "buyer"} <= set(seen[0].tools)
    assert seen[0].instructions == "Be kind."
    with pytest.raises(AssertionError, match=r"2 calls of 'discount' .* discount\(a=80, b=25\)"):
        turn.called("discount")
    with pytest.raises(AssertionError, match="0 calls of 'charge'"):
        turn.called("charge")


def test_a_session_goes_on(served: Served) -> None:
    """The next turn of a session has its memory."""
    served.script("Hello, Ann.")
    first = served.turn("I am Ann.")
    served.script(lambda seen: f"{len(seen.messages)} messages")
    assert served.turn("Who am I?", session=first.session).text == "3 messages"


def test_a_turn_parks_and_resumes(served: Served) -> None:
    """Step by step; an answer that has no open call is refused, and a turn that ends is not parked."""
    served.script(calls("pick_colour", choices=["red", "blue"]), lambda seen: f"It is {seen.results[0]}.")
    turn = served.begin("A shirt, please.")
    (call,) = turn.parked()
    assert (call.name, call.arguments, turn.status) == ("pick_colour", {"choices": ["red", "blue"]}, "parked")
    with pytest.raises(AssertionError, match=r"no call of .pick_color. is open"):
        turn.answer("pick_color", "blue")
    turn.answer("pick_colour", "blue")
    assert turn.end().text == "It is blue."
    assert (turn.parks, turn.resumes, turn.crashes) == (1, 1, 0)
    assert (turn.called("pick_colour").kind, turn.called("pick_colour").result) == ("client", "blue")
    served.script("No need to ask.")
    with pytest.raises(AssertionError, match=r"was not parked: <Turn .* completed"):
        served.begin("Any shirt.").parked()


def test_the_client_answers(served: Served) -> None:
    """Its functions are those of a real client; without one the turn's end is not waited for in vain."""
    served.script(calls("pick_colour", choices=["red"]), lambda seen: f"It is {seen.results[0]}.")
    with pytest.raises(UnansweredCall, match="pick_colour"):
        served.turn("A shirt, please.")

    @served.client().function("pick_colour")
    def pick_colour(choices: list[str]) -> str:
        return choices[0]

    assert served.turn("A shirt, please.").text == "It is red."


def test_a_crash_in_the_middle_of_a_text(served: Served) -> None:
    """The half message is closed as incomplete, and the whole one said by another worker."""
    served.script(calls("discount", a=80, b=25), crash("That makes sixty francs."))
    turn = served.turn("How much?")
    assert (turn.text, turn.crashes, turn.resumes, len(turn.calls)) == ("That makes sixty francs.", 1, 1, 1)
    assert [message.status for message in turn.messages if message.type == "message"][-2:] == [
        "incomplete",
        "completed",
    ]


def test_a_crash_while_a_tool_runs(served: Served) -> None:
    """Its effect took place, and its result was lost: what becomes of the call is up to its policy."""
    served.script(crash(calls("charge", amount=5)), lambda seen: seen.results[0])
    turn = served.turn("Charge me.")
    charged = sys.modules["testing_shop"].charged
    assert (turn.text, turn.crashes, charged) == ("charged 5", 1, [5, 5])
    served.script(crash(calls("discount", a=80, b=25)), lambda seen: seen.results[0])
    turn = served.turn("How much?")
    assert "whether it took effect is unknown" in turn.text


def test_a_worker_is_killed_between_two_turns(served: Served) -> None:
    """The turn that is parked goes on at the next one."""
    served.script(calls("pick_colour"), "Thank you.")
    turn = served.begin("A shirt, please.")
    turn.parked()
    served.kill_worker()
    turn.answer("pick_colour", "red")
    assert (turn.end().text, turn.crashes, turn.resumes) == ("Thank you.", 0, 1)


def test_all_kinds_of_agents(served: Served) -> None:
    """Sub-agents, structured output, critics and coded agents, each with a key of its own."""
    served.script(calls("buyer", task="find silk"), lambda seen: f"Bought: {seen.results[0]}")
    served.script("silk", agent="buyer")
    turn = served.turn("Buy.")
    assert turn.text == "Bought: silk"
    assert [(call.kind, str(call), call.result) for call in turn.calls] == [
        ("agent", "buyer(task='find silk')", "silk")
    ]
    served.script({"size": 42}, agent="form")
    assert "42" in str(served.turn("My size?", agent="form").messages[-1].content)
    served.script("A draft.", agent="draft")
    served.script({"score": 9, "description": "Good."}, agent="judge")
    assert served.turn("Write.", agent="draft").text == "A draft."
    assert served.turn("Hello.", agent="coded").text == "coded says hello"
    with pytest.raises(ValueError, match=r"there is no agent 'shoe'; there are .*shop"):
        served.turn("Hello.", agent="shoe")


def test_a_failure_says_why(served: Served) -> None:
    """A script that is too short, an error in it, and a tool that raises."""
    served.script(calls("discount", a=80, b=25))
    turn = served.turn("How much?")
    assert turn.error == (
        "The model of 'shop' was asked 2 times in this turn, and its script has 1 replies: "
        "served.script(…, agent='shop'). (script_ended)"
    )
    with pytest.raises(TurnFailed, match="its script has 1 replies"):
        turn.text  # noqa: B018 - it raises
    served.script(RuntimeError("no luck"))
    assert served.turn("Again?").error == "The agent failed (RuntimeError). (agent_error)"
    served.script(calls("broken"), "Never said.")
    assert "RuntimeError" in served.turn("Buy.").error


def test_a_crash_that_does_not_happen_fails_the_test(folder: Path) -> None:
    """A test about a crash must not pass without one."""
    with serve(folder / "agents.toml") as served:
        served.script("Hello.", crash("Never asked for."))
        assert served.turn("Hi.").text == "Hello."
        with pytest.raises(AssertionError, match="the script of 'shop' has a crash that did not happen"):
            served.check()
        served.script()


def test_a_wrong_file_is_named(folder: Path) -> None:
    """As every role names it: with its line."""
    (folder / "agents.toml").write_text('[agents.shop]\nmodel = "demo"\ntools = ["testing_shop:nothing"]\n')
    with (
        pytest.raises(ConfigurationError, match=r"agents.toml:3: agents.shop.tools"),
        serve(folder / "agents.toml"),
    ):
        pass
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml"), serve(folder / "nowhere.toml"):
        pass


async def test_clients_of_ones_own(served: Served) -> None:
    """Any client may speak to it, from any loop."""
    served.script("Hello.")
    async with AsyncClient(served.url, served.key()) as client:
        replies = await asyncio.gather(*(client.chat("Hi.").text() for _ in range(3)))
    assert replies == ["Hello."] * 3
