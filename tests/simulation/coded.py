"""What must hold of turns of coded agents, beside what all agents are held to: they tell what they know, and count what they spend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from tests.chaos.checker import _is_end, _status, _text, end_of
from tests.simulation.agents import SPENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.chaos.records import Account, Session, Turn


def wrong_turns(account: Account) -> Iterator[str]:
    """What turns that completed have told of their session's memory, or spent, and is not so."""
    for turn in account.turns:
        session = account.session_of(turn)
        end = end_of(session.of(turn.task))
        if not end:
            continue
        if turn.prompt == "/recall" and session.serial:
            text = "".join(_text(each) for each in end["output"][-1:])
            yield from _wrong_memory(account, session, turn, orjson.loads(text))
        if "The results are" in str(end["output"][-1:]):
            yield from _wrong_usage(session, turn, end["usage"])


def _wrong_memory(account: Account, session: Session, turn: Turn, known: Sequence[str]) -> Iterator[str]:
    """The agent knows what was said before, in its order; all turns that have completed are among that."""
    at = next(
        (
            at
            for at, row in enumerate(session.log)
            if row.task == turn.task and _status(row.event) == ("response", "created")
        ),
        0,
    )
    said = {each.task: each.prompt for each in account.turns if each.session == turn.session}
    ended = [row for row in session.log[:at] if _is_end(row.event) and row.task in said]
    rest = iter([said[row.task] for row in ended])
    if not all(any(one == each for one in rest) for each in known):
        yield f"memory_is_what_was_said: {turn}: {known}, not of {[said[row.task] for row in ended]}"
    completed = {said[row.task] for row in ended if row.event["status"] == "completed"}
    if not completed <= set(known):
        yield f"memory_is_what_was_said: {turn}: {known}, not {sorted(completed)}"


def _wrong_usage(session: Session, turn: Turn, usage: dict[str, int]) -> Iterator[str]:
    """What was counted before the client was asked, and after that; what an attempt counted that was lost may be added."""
    task = session.tasks.get(turn.task, {})
    spent = (usage["input_tokens"], usage["output_tokens"])
    runs = 1 + len(task.get("parks", "").split())
    least = (2 * SPENT[0], 2 * SPENT[1])
    if spent < least or (int(task.get("attempt", 0)) == runs and spent != least):
        yield f"what_is_spent_is_counted: {turn}: {spent}, not {least}, in {task.get('attempt')} attempts"
