"""The checker finds what it is there for: a good record passes, and each way to spoil it is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.chaos.checker import RULES, check, failures_are_told
from tests.chaos.records import Account, Row, Session, Turn, View, rows
from tests.conftest import Place
from tests.support.client import calls_of, read_frame
from tests.support.stack import Stack
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.client import Frame

# Ordinary turns, one that is answered, and one that two workers said: what the rules speak of is in them.
PROMPTS = ("/tokens 5", "/tool add 1 2", "/dispatch look", "/call f {}")

Spoil = Callable[[Account], None]


@pytest.fixture
async def account(place: Place) -> Account:
    """The records of a small, undisturbed run, with one turn in which a second attempt went on."""
    stack = Stack(place)
    try:
        await stack.worker()
        client = await stack.front_end()
        account = Account(sessions={"s1": Session("s1")})
        for number, prompt in enumerate(PROMPTS):
            turn = Turn("s1", f"t{number}", prompt, accepted=True, views=[View(), View()])
            async with client.process("s1", prompt, id=turn.task) as stream:
                for call in calls_of(await stream.until(calls_of)):
                    await wait_until(lambda: _is_parked(stack, "t3"), "the turn to park")
                    name = call["call_id"]
                    turn.given[name] = [f"answer {each} of {name}" for each in (1, 2)]
                    turn.first[name] = turn.given[name][0]
                    await client.callback("s1", name, turn.first[name])
                for frame in await stream.all():
                    turn.own.take(frame)
            async with client.follow("s1", turn.task) as again:
                for frame in await again.all():
                    turn.views[1].take(frame)
            account.turns.append(turn)
        session = account.sessions["s1"]
        redis: Any = stack.broker.sessions
        session.log = rows(await redis.xrange("ts:{dev/s1}:log"))
        session.history = rows(await redis.xrange("ts:{dev/s1}:history"))
        session.epochs = {int(row.cursor.partition("-")[0]): row.seq for row in session.log}
        for turn in account.turns:
            task = await redis.hgetall(f"ts:{{dev/s1}}:task:{turn.task}")
            session.tasks[turn.task] = {name.decode(): value.decode() for name, value in task.items()}
        answer = await client.http.get("/liteAgent/v1/history", params={"sessionId": "s1"})
        session.told = answer.json()
    finally:
        await stack.close()
    return account


async def _is_parked(stack: Stack, task: str) -> bool:
    return await stack.status("s1", task) == "parked"


def _log(account: Account) -> list[Row]:
    return account.sessions["s1"].log


def _place(account: Account, status: str, kind: str = "message", task: str = "t0") -> int:
    """Where the task's first entry of that status is."""
    return next(
        place
        for place, row in enumerate(_log(account))
        if (row.task, row.kind) == (task, kind) and row.numbered and row.event.get("status") == status
    )


def _frames(account: Account) -> list[Frame]:
    return account.turns[0].own.frames


def _again(frame: Frame, **changed: Any) -> Frame:
    """A frame that says something else."""
    data = orjson.dumps({**frame.data, **changed})
    return read_frame(b"id: " + frame.id.encode() + b"\ndata: " + data)


def _renumber(account: Account) -> None:
    """Make the log dense again, so that only what was meant is wrong with it."""
    session = account.sessions["s1"]
    epoch = session.log[0].cursor.partition("-")[0]
    session.log[:] = [replace(row, cursor=f"{epoch}-{at}") for at, row in enumerate(session.log, 1)]


# ── ways to spoil ──


def _lose_an_entry(account: Account) -> None:
    del _log(account)[_place(account, "in_progress") + 2]


def _double_an_entry(account: Account) -> None:
    at = _place(account, "in_progress") + 2
    _log(account).insert(at, _log(account)[at])
    _renumber(account)


def _mix_epochs(account: Account) -> None:
    last = _log(account)[-1]
    _log(account)[-1] = replace(last, cursor=f"1-{last.seq}")


def _end_twice(account: Account) -> None:
    _log(account).append(_log(account)[-1])
    _renumber(account)


def _say_more_after_the_end(account: Account) -> None:
    delta = _log(account)[_place(account, "in_progress", task="t2") + 1]
    _log(account).append(delta)
    _renumber(account)


def _never_end(account: Account) -> None:
    _log(account).pop()


def _hash_says_otherwise(account: Account) -> None:
    account.sessions["s1"].tasks["t0"]["status"] = "running"


def _begin_the_last_one_first(account: Account) -> None:
    log = _log(account)
    waits = [row for row in log if row.task == "t2"][:1]
    log[:] = [*waits, *(row for row in log if row is not waits[0])]
    _renumber(account)


def _begin_beside_another(account: Account) -> None:
    log = _log(account)
    end = next(at for at, row in enumerate(log) if row.task == "t0" and row.event.get("status") == "created")
    at = _place(account, "created", "response", "t1")
    log.insert(end + 1, log.pop(at))
    log.insert(0, next(row for row in log if row.task == "t1"))
    _renumber(account)


def _go_on_with_a_closed_message(account: Account) -> None:
    log = _log(account)
    delta = log[_place(account, "in_progress") + 2]
    log.insert(_place(account, "completed") + 2, delta)
    _renumber(account)


def _leave_a_message_open(account: Account) -> None:
    log = _log(account)
    place = next(at for at, row in enumerate(log) if row.numbered and _closes(row))
    del log[place]
    _renumber(account)


def _closes(row: Row) -> bool:
    return row.event.get("object") == "message" and row.event.get("status") == "completed"


def _interleave(account: Account) -> None:
    log = _log(account)
    at = _place(account, "in_progress") + 2
    other = copy.deepcopy(log[_place(account, "created")])
    other.event["id"] = "msg_of_another_attempt"
    log.insert(at, other)
    _renumber(account)


def _forget_output(account: Account) -> None:
    _log(account)[-1].event["output"].pop()


def _call_twice(account: Account) -> None:
    log = _log(account)
    at = next(at for at, row in enumerate(log) if row.kind == "plugin_call" and _closes(row))
    log.insert(at, log[at])
    _renumber(account)


def _never_answer(account: Account) -> None:
    log = _log(account)
    at = next(at for at, row in enumerate(log) if row.kind == "plugin_call_output" and _closes(row))
    del log[at]
    _renumber(account)


def _take_an_answer_back(account: Account) -> None:
    turn = account.turns[3]
    turn.taken = dict.fromkeys((calls_of(turn.own.frames)[0]["call_id"],), False)


def _take_the_second_answer(account: Account) -> None:
    turn = account.turns[3]
    turn.first = {call: given[1] for call, given in turn.given.items()}


def _take_what_nobody_answered(account: Account) -> None:
    turn = account.turns[3]
    turn.given, turn.first = {call: ["answer 3"] for call in turn.given}, {}


def _go_on_with_another_answer(account: Account) -> None:
    end = account.session_of(account.turns[3]).of("t3")[-1].event
    end["output"][-1]["content"][0]["text"] = "The result is something else."


def _forget_history(account: Account) -> None:
    del account.sessions["s1"].history[1]


def _forget_a_park(account: Account) -> None:
    for stream in (_log(account), account.sessions["s1"].history):
        stream[:] = [row for row in stream if row.kind != "parked"]
    _renumber(account)


def _park_for_nothing(account: Account) -> None:
    next(row for row in _log(account) if row.kind == "parked").event["calls"].clear()


def _count_parks_wrongly(account: Account) -> None:
    next(row for row in _log(account) if row.kind == "parked").event["park"] = 2


def _tell_otherwise(account: Account) -> None:
    account.sessions["s1"].told.reverse()


def _unended_for_the_client(account: Account) -> None:
    account.turns[0].own.ended = False
    _frames(account).pop()


def _swap_frames(account: Account) -> None:
    frames = _frames(account)
    frames[4], frames[5] = frames[5], frames[4]


def _double_a_frame(account: Account) -> None:
    _frames(account).insert(5, _frames(account)[5])


def _lose_a_frame(account: Account) -> None:
    del account.turns[0].views[1].frames[5]


def _change_a_frame(account: Account) -> None:
    frames = _frames(account)
    frames[6] = _again(frames[6], text="something else ")


def _be_of_a_lost_epoch(account: Account) -> None:
    account.sessions["s1"].epochs = {1: 1000}


def _be_told_gone(account: Account) -> None:
    view = account.turns[0].own
    view.lost, view.gone = True, "410"


def _give_an_id_twice(account: Account) -> None:
    account.turns[0].own.forgotten.append(_again(_frames(account)[6], text="something else "))


def _miss_what_the_history_has(account: Account) -> None:
    view = account.turns[0].views[1]
    view.frames[:] = [frame for frame in view.frames if not _closes_message(frame)]
    account.sessions["s1"].head = view.frames[-1].seq


def _closes_message(frame: Frame) -> bool:
    return (frame.data.get("object"), frame.data.get("status")) == ("message", "completed")


def _tell_something_else_behind_the_cut(account: Account) -> None:
    view = account.turns[0].views[1]
    del view.frames[5]
    view.frames[-2] = _again(view.frames[-2], id="another")
    account.sessions["s1"].head = view.frames[-1].seq


def _lose_a_turn(account: Account) -> None:
    _log(account)[:] = [row for row in _log(account) if row.task != "t2"]
    del account.sessions["s1"].tasks["t2"]


def _frame_after_the_end(account: Account) -> None:
    frames = _frames(account)
    frames.append(_again(frames[5], sequence_number=len(frames)))


def _answer_wrongly(account: Account) -> None:
    account.turns[1].prompt = "/tool add 1 3"


def _fail_by_itself(account: Account) -> None:
    account.sessions["s1"].tasks["t0"].update(status="failed", why="internal")


def _cancel_by_itself(account: Account) -> None:
    account.sessions["s1"].tasks["t0"].update(status="canceled", why="stop")


def _complete_what_fails(account: Account) -> None:
    account.turns[0].prompt = "/fail now"


def _fail_without_a_word(account: Account) -> None:
    account.session_of(account.turns[0]).tasks["t0"].update(status="failed", why="demo_failure")
    frames = _frames(account)
    error = {"code": "demo_failure", "message": ""}
    frames[-1] = _again(frames[-1], status="failed", error=error)
    account.turns[0].prompt = "/fail now"


def _fail_in_other_words(account: Account) -> None:
    account.session_of(account.turns[0]).tasks["t0"].update(status="failed", why="deadline")
    frames = _frames(account)
    error = {"code": "deadline", "message": "Something went wrong."}
    frames[-1] = _again(frames[-1], status="failed", error=error)


def _show_nothing(account: Account) -> None:
    account.turns[1].prompt = "/image here"


def _forsake(account: Account) -> None:
    account.turns[3].forsaken.add("one")


def _be_refused(account: Account) -> None:
    account.turns[0].refusals.append("POST 404")


SPOILT: dict[str, tuple[Spoil, ...]] = {
    "logs_are_dense": (_lose_an_entry, _mix_epochs),
    "numbers_are_dense": (_lose_an_entry, _double_an_entry),
    "tasks_end_once": (_end_twice, _never_end, _say_more_after_the_end, _hash_says_otherwise),
    "turns_take_turns": (_begin_the_last_one_first, _begin_beside_another),
    "messages_live_legally": (_go_on_with_a_closed_message, _leave_a_message_open),
    "attempts_do_not_interleave": (_interleave,),
    "ends_hold_the_output": (_forget_output,),
    "calls_are_made_and_answered_once": (_call_twice, _never_answer),
    "answers_are_taken_or_not": (_take_an_answer_back,),
    "the_first_answer_counts": (
        _take_the_second_answer,
        _take_what_nobody_answered,
        _go_on_with_another_answer,
    ),
    "history_is_what_was_streamed": (_forget_history,),
    "parks_are_in_the_log": (_forget_a_park, _park_for_nothing, _count_parks_wrongly),
    "history_is_told": (_tell_otherwise,),
    "accepted_turns_end": (_never_end, _unended_for_the_client, _lose_a_turn),
    "cursors_increase": (_swap_frames, _double_a_frame),
    "each_event_comes_once": (_double_a_frame, _lose_a_frame),
    "streams_are_the_log": (
        _change_a_frame,
        _lose_a_frame,
        _lose_an_entry,
        _lose_a_turn,
        _be_of_a_lost_epoch,
        _be_told_gone,
    ),
    "who_is_behind_the_cut_gets_the_rest": (
        _miss_what_the_history_has,
        _tell_something_else_behind_the_cut,
    ),
    "ids_mean_one_event": (_give_an_id_twice,),
    "nothing_follows_the_end": (_frame_after_the_end,),
    "wires_are_spoken": (_change_a_frame,),
    "answers_are_right": (_answer_wrongly, _show_nothing),
    "failures_are_told": (_complete_what_fails, _fail_without_a_word, _fail_in_other_words),
    "nothing_completes_unanswered": (_forsake,),
    "nothing_fails_by_itself": (_fail_by_itself, _cancel_by_itself),
    "nobody_is_refused": (_be_refused,),
}


def test_every_rule_is_tried() -> None:
    """No rule is without a way to break it."""
    assert {each.__name__ for each in RULES} == set(SPOILT)


async def test_a_failure_that_was_lost_may_have_ended_otherwise(account: Account) -> None:
    """Who heard of it before was told the truth."""
    frames = _frames(account)
    frames[-1] = _again(frames[-1], status="failed", error={"code": "demo_failure", "message": "now"})
    account.turns[0].prompt = "/fail now"
    account.session_of(account.turns[0]).tasks["t0"].update(status="canceled", why="interrupt")
    assert list(failures_are_told(account)) == []
    account.session_of(account.turns[0]).tasks["t0"].update(status="failed", why="deadline")
    assert len(list(failures_are_told(account))) == 1


async def test_each_corruption_is_caught(account: Account) -> None:
    """The good record passes; each spoilt copy breaks the rule that is there for it."""
    assert check(account) == []
    for rule, ways in SPOILT.items():
        for spoil in ways:
            spoilt = copy.deepcopy(account)
            spoil(spoilt)
            broken = {violation.rule for violation in check(spoilt)}
            assert rule in broken, f"{spoil.__name__} breaks {broken}, not {rule}"


async def test_what_came_back_with_a_former_primary_is_no_finding(account: Account) -> None:
    """Who was told of a loss by a server that was the primary for a while was told the truth, as long as it was one."""
    account.turns[0].own.lost = True
    assert check(account) == []
