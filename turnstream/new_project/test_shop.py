"""The agent as its users meet it. The model follows a script; all else is real: tools, queue, log, client."""

from __future__ import annotations

from turnstream.testing import Served, calls, crash


def test_the_tool_lowers_the_price(served: Served) -> None:
    """The model calls the tool, and says what came of it."""
    served.script(calls("discount", a=80, b=25), lambda seen: f"That makes {seen.results[0]}.")
    turn = served.turn("What is 80 with a quarter off?")
    assert turn.called("discount", a=80).result == "60.0"
    assert turn.text == "That makes 60.0."


def test_the_turn_waits_for_the_customer(served: Served) -> None:
    """A call of a function of the client parks the turn; the answer resumes it."""
    served.script(
        calls("pick_colour", choices=["red", "blue"]), lambda seen: f"It will be {seen.results[0]}."
    )
    turn = served.begin("I want a shirt.")
    assert [call.name for call in turn.parked()] == ["pick_colour"]
    turn.answer("pick_colour", "blue")
    assert turn.end().text == "It will be blue."
    assert (turn.parks, turn.resumes) == (1, 1)


def test_a_crash_loses_nothing(served: Served) -> None:
    """The worker is killed in the middle of its answer; another one goes on."""
    served.script(calls("discount", a=80, b=25), crash("That makes sixty."))
    turn = served.turn("What is 80 with a quarter off?")
    assert turn.text == "That makes sixty."
    assert len(turn.calls) == turn.crashes == 1
