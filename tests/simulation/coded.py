"""What must hold of turns of coded agents, beside what all agents are held to: they tell what they know, and count what they spend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from tests.chaos.checker import _status, _text, end_of
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
    begun = [row.task for row in session.log if _status(row.event) == ("response", "created")]
    if turn.task not in begun:
        return
    said = {each.task: each.prompt for each in account.turns if each.session == turn.session}
    before = begun[: begun.index(turn.task)]
    rest = iter([said[task] for task in before if task in said])
    if not all(any(one == each for one in rest) for each in known):
        yield f"memory_is_what_was_said: {turn}: {known}, not of {[said.get(task) for task in before]}"
    completed = {
        said[task]
        for task in before
        if task in said and session.tasks.get(task, {}).get("status") == "completed"
    }
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
