"""The invariants: what must hold of every record and every log, whatever was killed. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson

from tests.chaos.records import ENDS, Account, Row, Session, Turn, View
from tests.conformance.capture import Capture
from tests.conformance.checker import check as check_wire
from turnstream.api.streaming.start_position import BEGINNING
from turnstream.shared.session.entry import PARKED

Rule = Callable[[Account], Iterator[str]]

RULES: list[Rule] = []

CLOSED = frozenset({"completed", "incomplete"})

# What tells a client's call and its answer.
CALLS = {"function_call": "function_call_output", "plugin_call": "plugin_call_output"}

# What is said of a call that was taken back.
ABANDONED = "The agent failed before this was done."

# Why a turn fails that was told to.
DEMO_FAILURE = "demo_failure"

# What is said of the other ways to fail.
FAILURES = {
    "worker_lost": "The turn was lost with its worker, more than once. Send it again.",
    "deadline": "The turn took longer than its agent allows.",
    "call_expired": "The client did not answer a call in time.",
    "agent_version_gone": "The agent has changed since this turn was begun. Send it again.",
}

# An answer to a function call, wherever it is told.
ANSWER = re.compile(r"answer \d+ of [\w-]+")

# What the client is asked, and how it answers.
ASKED = {"function_call": "function_call_output", "mcp_approval_request": "mcp_approval_response"}


@dataclass(frozen=True)
class Violation:
    """A rule that does not hold, and where."""

    rule: str
    where: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}"


def rule(function: Rule) -> Rule:
    """Add a rule; it yields where it does not hold."""
    RULES.append(function)
    return function


def check(account: Account, rules: Sequence[Rule] = RULES) -> list[Violation]:
    """Everything that does not hold."""
    return [Violation(each.__name__, where) for each in rules for where in each(account)]


# ── the log ──


@rule
def logs_are_dense(account: Account) -> Iterator[str]:
    """A log begins at 1 and leaves no place out; the ids of all entries begin with its first epoch."""
    for session in account.sessions.values():
        if [row.seq for row in session.log] != list(range(1, len(session.log) + 1)):
            yield session.name
        if len({row.cursor.partition("-")[0] for row in session.log}) > 1:
            yield f"{session.name}: two epochs"


@rule
def numbers_are_dense(account: Account) -> Iterator[str]:
    """A task's sequence numbers count from 0 across attempts and parking."""
    for session, task, rows in _tasks(account):
        numbers = [row.event["sequence_number"] for row in rows if row.numbered]
        if numbers != list(range(len(numbers))):
            yield f"{session.name}/{task}: {_first_gap(numbers)}"


@rule
def tasks_end_once(account: Account) -> Iterator[str]:
    """Every task has one terminal event, its last one, and its hash says the same."""
    for session, task, rows in _tasks(account):
        ends = [place for place, row in enumerate(rows) if _is_end(row.event)]
        if len(ends) != 1:
            yield f"{session.name}/{task}: {len(ends)} terminal events"
        elif ends[0] != len(rows) - 1:
            yield f"{session.name}/{task}: {len(rows) - 1 - ends[0]} entries after the end"
        elif session.tasks.get(task, {}).get("status") != rows[-1].event["status"]:
            yield f"{session.name}/{task}: the hash says {session.tasks.get(task, {}).get('status')}"


@rule
def turns_take_turns(account: Account) -> Iterator[str]:
    """Turns of a session that wait for each other begin in the order in which they were sent, each behind the end of the last."""
    for session in account.sessions.values():
        rows = session.log if session.serial else []
        sent = list(dict.fromkeys(row.task for row in rows))
        begun = [row.task for row in rows if _status(row.event) == ("response", "created")]
        if begun != [task for task in sent if task in begun]:
            yield f"{session.name}: {begun}, sent were {sent}"
        running = ""
        for row in rows:
            if _status(row.event) == ("response", "created"):
                if running:
                    yield f"{session.name}: {row.task} begins while {running} runs"
                running = row.task
            elif _is_end(row.event) and row.task == running:
                running = ""


@rule
def messages_live_legally(account: Account) -> Iterator[str]:
    """A message is created, in progress, said, closed: each once, nothing after, and closed before the end."""
    for session, task, rows in _tasks(account):
        for name, steps in _steps(rows).items():
            where = f"{session.name}/{task} {name}"
            if steps[:2] != ["created", "in_progress"] or steps[-1] not in CLOSED:
                yield f"{where}: {' '.join(steps[:3])} … {steps[-1]}"
            elif any(step != "content" for step in steps[2:-1]):
                yield f"{where}: {' '.join(steps)[:200]}"


@rule
def attempts_do_not_interleave(account: Account) -> Iterator[str]:
    """Of one agent no two texts are open at once: what a lost attempt was saying is closed first."""
    for session, task, rows in _tasks(account):
        speaking: dict[str, str] = {}
        for row in rows:
            if row.kind not in ("message", "reasoning") or not row.numbered:
                continue
            message = _message_of(row.event)
            open_one = speaking.setdefault(row.path, message)
            if open_one != message:
                yield f"{session.name}/{task}: {message} while {open_one} is open"
                break
            if row.event.get("object") == "message" and row.event.get("status") in CLOSED:
                del speaking[row.path]


@rule
def ends_hold_the_output(account: Account) -> Iterator[str]:
    """The terminal event holds every closed message, in the order in which they were begun."""
    for session, task, rows in _tasks(account):
        if not rows or not _is_end(rows[-1].event):
            continue
        begun = [_message_of(row.event) for row in rows if _status(row.event) == ("message", "created")]
        closed = {_message_of(row.event): _bare(row.event) for row in _closings(rows) if row.numbered}
        expected = [closed[name] for name in begun if name in closed]
        if [_bare(message) for message in rows[-1].event["output"]] != expected:
            yield f"{session.name}/{task}"


@rule
def calls_are_made_and_answered_once(account: Account) -> Iterator[str]:
    """Whatever was rerun, a call is said once, and answered once; none is left when a turn completes."""
    for session, task, rows in _tasks(account):
        done = [row.event for row in _closings(rows) if row.event["status"] == "completed"]
        for call, output in CALLS.items():
            made = [_call_of(event) for event in done if event.get("type") == call]
            answered = [_call_of(event) for event in done if event.get("type") == output]
            if len(made) != len(set(made)) or len(answered) != len(set(answered)):
                yield f"{session.name}/{task}: {call} twice"
            if rows[-1].event.get("status") == "completed" and set(made) != set(answered):
                yield f"{session.name}/{task}: {len(made)} {call}, {len(answered)} answers"


@rule
def answers_are_taken_or_not(account: Account) -> Iterator[str]:
    """An answer that was taken is in the log; where the client was told that the call was withdrawn, the log says so, too."""
    for turn in account.turns:
        for row in _closings(account.session_of(turn).of(turn.task)):
            if row.kind in CALLS.values() and not account.losses:
                data = row.event["content"][0]["data"]
                withdrawn = data.get("output") == ABANDONED
                if turn.taken.get(str(data["call_id"]), not withdrawn) == withdrawn:
                    yield f"{turn}: {data}"


@rule
def the_first_answer_counts(account: Account) -> Iterator[str]:
    """A call's answer in the log is one that its client gave, and no later one than that which was taken; the agent goes on with it."""
    for turn in account.turns:
        taken, rows = set(), account.session_of(turn).of(turn.task)
        for row in _closings(rows):
            data = row.event["content"][0].get("data", {}) if row.kind == "function_call_output" else {}
            call = str(data.get("call_id"))
            if call in turn.given and data["output"] != ABANDONED:
                known = turn.given[call]
                if call in turn.first and not account.losses:
                    known = [turn.first[call]]
                said = ANSWER.findall(str(data["output"]))
                taken.update(said)
                if len(said) != 1 or said[0] not in known:
                    yield f"{turn}: {said}, not of {known}"
        end = end_of(rows)
        if end and turn.prompt.startswith("/call") and not turn.withdraws:
            texts = [_text(message) for message in end["output"] if message.get("type") == "message"]
            if set(ANSWER.findall("".join(texts[-1:]))) != taken:
                yield f"{turn}: {texts[-1:]}, not {sorted(taken)}"


@rule
def parks_are_in_the_log(account: Account) -> Iterator[str]:
    """A task's parks are counted from 1, its hash has their places, and each names calls that wait for their answers."""
    for session, task, rows in _tasks(account):
        places = session.tasks.get(task, {}).get("parks", "").split()
        parks = [row for row in rows if row.kind == PARKED]
        if [row.event["park"] for row in parks] != list(range(1, len(parks) + 1)):
            yield f"{session.name}/{task}: {[row.event['park'] for row in parks]}"
        if [str(row.seq) for row in parks] != [place.partition("-")[0] for place in places]:
            yield f"{session.name}/{task}: {len(parks)} in the log, the hash has {places}"
        waiting: set[str] = set()
        for row in rows:
            if row.kind == PARKED and not set() < set(row.event["calls"]) <= waiting:
                yield f"{session.name}/{task}: {row.seq} names {row.event['calls']}, not {sorted(waiting)}"
            if row.kind in ASKED and _status(row.event) == ("message", "completed"):
                waiting.add(_asked_of(row.event))
            if row.kind in ASKED.values() and _status(row.event) == ("message", "completed"):
                waiting.discard(_asked_of(row.event))


@rule
def history_is_what_was_streamed(account: Account) -> Iterator[str]:
    """The history holds the user's messages, the closed messages and the ends, each at its place in the log."""
    for session in account.sessions.values():
        closing = set(map(id, _closings(session.log)))
        kept = [row for row in session.log if id(row) in closing or not row.numbered or _is_end(row.event)]
        if session.history != kept:
            yield f"{session.name}: {len(session.history)} kept, {len(kept)} streamed"


@rule
def history_is_told(account: Account) -> Iterator[str]:
    """``/history`` tells the user's and the agent's texts, in the order of the log; data as text."""
    for session in account.sessions.values():
        said = [
            text
            for row in _closings(session.log)
            if row.kind == "message" and (text := _text(row.event) or _data(row.event))
        ]
        told = [text for each in session.told for text in _told_texts(each)]
        if said != told:
            yield f"{session.name}: {len(said)} texts streamed, {len(told)} told"


# ── what clients saw ──


@rule
def accepted_turns_end(account: Account) -> Iterator[str]:
    """A turn that was accepted ends, in the log and before its client's eyes, or its client is told that it is gone."""
    for turn in account.turns:
        session = account.session_of(turn)
        gone = turn.own.lost and turn.task not in session.tasks
        if turn.accepted and not gone and not any(_is_end(row.event) for row in session.of(turn.task)):
            yield f"{turn}: not in the log"
        if turn.accepted and not all(view.ended or view.lost for view in turn.views):
            yield f"{turn}: its followers never saw it"


@rule
def cursors_increase(account: Account) -> Iterator[str]:
    """Over all its connections a follower's cursors increase."""
    for turn, view in _views(account):
        if any(other.seq <= one.seq for one, other in pairwise(view.frames)):
            yield str(turn)


@rule
def each_event_comes_once(account: Account) -> Iterator[str]:
    """A follower gets each of the turn's events once, none left out."""
    for turn, view in _whole_views(account):
        numbers = [frame.data.get("sequence_number") for frame in view.frames]
        if numbers != list(range(len(numbers))):
            yield f"{turn}: {_first_gap(numbers)}"


@rule
def streams_are_the_log(account: Account) -> Iterator[str]:
    """A follower sees what is in the log, at the place where it is; what the log has lost it is told to be gone."""
    for turn, view in _whole_views(account):
        session = account.session_of(turn)
        rows = [row for row in session.of(turn.task) if row.numbered]
        same = [(row.seq, _told(session, row.event)) for row in rows[: len(view.frames)]] == [
            (frame.seq, _told(session, frame.data)) for frame in view.frames
        ]
        same = same and all(session.has(frame) for frame in view.frames)
        if view.lost and any(session.may_have(frame) for frame in view.frames):
            continue
        if view.frames and same and view.gone:
            yield f"{turn}: told to be gone {view.gone}"
        elif view.frames and not (same or view.lost):
            yield str(turn)
        elif view.ended and not view.lost and len(rows) != len(view.frames):
            yield f"{turn}: {len(rows) - len(view.frames)} more in the log"


@rule
def who_is_behind_the_cut_gets_the_rest(account: Account) -> Iterator[str]:
    """A follower that comes back behind a cut of the log gets what the history has of it, each as it was, and numbers that grow."""
    for turn, view in _views(account):
        if not _is_behind(account, turn, view):
            continue
        session = account.session_of(turn)
        kept = {row.seq for row in session.history}
        for row in _missed(session, turn, view):
            if row.seq in kept:
                yield f"{turn}: {row.seq} is in the history"
        rows = {row.seq: row.event for row in session.of(turn.task)}
        # How the turn began is told anew, at places of its own.
        said = [frame for frame in view.frames if not _begins(frame.data)]
        for frame in said:
            if frame.seq not in rows or _bare(rows[frame.seq]) != _bare(frame.data):
                yield f"{turn}: {frame.seq}: {str(frame.data)[:80]}, not {str(rows.get(frame.seq))[:80]}"
        numbers = [frame.data["sequence_number"] for frame in view.frames]
        if any(other <= one for one, other in pairwise(numbers)):
            yield f"{turn}: {numbers}"


@rule
def ids_mean_one_event(account: Account) -> Iterator[str]:
    """Whatever was lost, no two events of a session were ever told under one id."""
    told: dict[tuple[str, str], Any] = {}
    for turn, view in _whole_views(account):
        for frame in (*view.forgotten, *view.frames):
            event = _told(account.session_of(turn), frame.data)
            if told.setdefault((turn.session, frame.id), event) != event:
                yield f"{turn}: {frame.id}"
                break


@rule
def nothing_follows_the_end(account: Account) -> Iterator[str]:
    """The terminal event is the last thing that a follower is told."""
    for turn, view in _views(account):
        ends = [place for place, frame in enumerate(view.frames) if _is_end(frame.data)]
        if view.ended and ends != [len(view.frames) - 1]:
            yield f"{turn}: ends at {ends} of {len(view.frames)}"


@rule
def wires_are_spoken(account: Account) -> Iterator[str]:
    """What a client received, joined, is a stream that the rules of its wire allow."""
    for turn in account.turns:
        if turn.own.ended and not _is_behind(account, turn, turn.own):
            body = b"".join(frame.raw + b"\n\n" for frame in turn.own.frames)
            chosen = frozenset({turn.task, f"response_{turn.task}"})
            for violation in check_wire(Capture("agentscope", (body,), chosen=chosen)):
                yield f"{turn}: {violation}"


@rule
def answers_are_right(account: Account) -> Iterator[str]:
    """A completed turn says all that it should, whatever happened to the workers that said it."""
    for turn in account.turns:
        end = turn.own.frames[-1].data if turn.own.ended else {}
        if end.get("status") != "completed":
            continue
        texts = [_text(message) for message in end["output"] if message.get("type") == "message"]
        expected = turn.answer or expected_text(turn)
        if expected is not None and (not texts or texts[-1] != expected):
            yield f"{turn}: {texts[-1:]} instead of {expected!r}"
        parts = [part for message in end["output"] for part in message.get("content") or ()]
        shown = expected_part(turn)
        if shown and not any(shown == {name: part.get(name) for name in shown} for part in parts):
            yield f"{turn}: {shown} is not shown"


@rule
def failures_are_told(account: Account) -> Iterator[str]:
    """A turn that has to fail does, and says why, word by word."""
    for turn in account.turns:
        end = turn.own.frames[-1].data if turn.own.ended else {}
        command, _, text = turn.prompt.partition(" ")
        if command == "/fail" and end.get("status") == "completed":
            yield f"{turn}: completed"
        elif end.get("status") == "failed":
            error = end["error"]
            # What the broker has lost may be told by nobody else, and it may have ended otherwise since.
            record = account.session_of(turn).tasks.get(turn.task, {})
            why = record["why"] if record.get("status") == "failed" else error["code"]
            told = {"code": why, "message": text if why == DEMO_FAILURE else FAILURES.get(why)}
            if error != told:
                yield f"{turn}: {error}, not {told}"


@rule
def nothing_completes_unanswered(account: Account) -> Iterator[str]:
    """A turn ends otherwise whose client leaves a call unanswered."""
    for turn in account.turns:
        end = turn.own.frames[-1].data if turn.own.ended else {}
        if turn.forsaken and end.get("status") == "completed" and not account.losses:
            yield str(turn)


@rule
def nothing_fails_by_itself(account: Account) -> Iterator[str]:
    """A turn is canceled only by its client, and fails only when three workers were lost with it, or as it may."""
    for turn in account.turns:
        task = account.session_of(turn).tasks.get(turn.task, {})
        status, why = task.get("status"), task.get("why", "")
        if status == "canceled" and not turn.stopped:
            yield f"{turn}: canceled, {why}"
        # The third one may be among what the broker has lost.
        lost = why == "worker_lost" and (account.losses or int(task.get("crashes", 0)) >= 3)
        may = why and (why == turn.may_fail or (why == DEMO_FAILURE and turn.prompt.startswith("/fail")))
        if status == "failed" and not (lost or may):
            yield f"{turn}: failed, {why}"


@rule
def nobody_is_refused(account: Account) -> Iterator[str]:
    """Clients get 503 or lose their connection, but are never told that what they ask is wrong."""
    for turn in account.turns:
        for refusal in turn.refusals:
            yield f"{turn}: {refusal}"


def expected_text(turn: Turn) -> str | None:
    """The last text of the demo agent's answer; None where it depends on what the client answered."""
    command, *rest = turn.prompt.split()
    match command:
        case "/tokens":
            return "".join(f"tok{number} " for number in range(int(rest[0])))
        case "/tool":
            return f"The result is {int(rest[1]) + int(rest[2])}."
        case "/slow":
            return f"The result is That took {float(rest[0]):g} seconds."
        case "/think":
            return "I thought about it: it is fine."
        case "/approve":
            gone = f"{' '.join(rest) or 'everything'} is gone"
            return f"The result is {gone if turn.approves else 'The tool call was denied'}."
        case "/image":
            return "The result is The user sees the image."
        case (
            "/fail" | "/output" | "/call" | "/calls" | "/dispatch" | "/reflect" | "/ask" | "/book" | "/recall"
        ):
            return None
    return f"You said: {turn.prompt}"


def end_of(rows: Sequence[Row]) -> dict[str, Any]:
    """The terminal event with which a turn has completed, by its entries in the log; empty where it has not."""
    end = rows[-1].event if rows else {}
    return end if _is_end(end) and end["status"] == "completed" else {}


def expected_part(turn: Turn) -> dict[str, Any]:
    """What a part of the demo agent's answer is, beside texts; empty where there is none."""
    command, _, rest = turn.prompt.partition(" ")
    match command:
        case "/image":
            return {"type": "image", "image_url": rest}
        case "/output":
            return {"type": "data", "data": orjson.loads(rest)}
    return {}


# ── parts of the rules ──


def _views(account: Account) -> Iterator[tuple[Turn, View]]:
    return ((turn, view) for turn in account.turns for view in turn.views)


def _whole_views(account: Account) -> Iterator[tuple[Turn, View]]:
    return ((turn, view) for turn, view in _views(account) if not _is_behind(account, turn, view))


def _is_behind(account: Account, turn: Turn, view: View) -> bool:
    """Whether a follower lacks something, and all of that was cut from the log."""
    session = account.session_of(turn)
    missed = _missed(session, turn, view) if session.head > 1 else []
    return bool(missed) and all(row.seq < session.head for row in missed)


def _missed(session: Session, turn: Turn, view: View) -> list[Row]:
    """The turn's entries that a follower has not been told, of those before the last one that it has."""
    told = {frame.seq for frame in view.frames}
    last = max(told, default=0)
    return [row for row in session.of(turn.task) if row.numbered and row.seq < last and row.seq not in told]


def _begins(event: dict[str, Any]) -> bool:
    return event.get("object") == "response" and event.get("status") in BEGINNING


def _tasks(account: Account) -> Iterator[tuple[Session, str, list[Row]]]:
    for session in account.sessions.values():
        tasks: dict[str, list[Row]] = {}
        for row in session.log:
            tasks.setdefault(row.task, []).append(row)
        for task, rows in tasks.items():
            yield session, task, rows


def _closings(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.event.get("object") == "message" and row.event.get("status") in CLOSED]


def _steps(rows: list[Row]) -> dict[str, list[str]]:
    steps: dict[str, list[str]] = {}
    for row in rows:
        if row.numbered and row.event.get("object") == "message":
            steps.setdefault(row.event["id"], []).append(row.event["status"])
        elif row.numbered and row.event.get("object") == "content":
            steps.setdefault(row.event["msg_id"], []).append("content")
    return steps


def _status(event: dict[str, Any]) -> tuple[Any, Any]:
    return event.get("object"), event.get("status")


def _is_end(event: dict[str, Any]) -> bool:
    return event.get("object") == "response" and event.get("status") in ENDS


def _message_of(event: dict[str, Any]) -> str:
    return str(event["id"] if event.get("object") == "message" else event.get("msg_id"))


def _bare(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != "sequence_number"}


def _call_of(event: dict[str, Any]) -> str:
    return str(event["content"][0]["data"]["call_id"])


def _asked_of(event: dict[str, Any]) -> str:
    data = event["content"][0]["data"]
    return str(data.get("call_id") or data.get("approval_request_id") or data["id"])


def _text(message: dict[str, Any]) -> str:
    parts = message.get("content") or []
    return "".join(part.get("text", "") for part in parts if part.get("type") == "text")


def _data(message: dict[str, Any]) -> str:
    parts = message.get("content") or []
    return "".join(orjson.dumps(part["data"]).decode() for part in parts if part.get("type") == "data")


def _told(session: Session, event: Any) -> Any:
    """What followers are told alike: how a turn began that was cut is told by its broker's clock, before by a front end's."""
    if session.head > 1 and _begins(event):
        return {name: value for name, value in event.items() if name != "created_at"}
    return event


def _first_gap(numbers: list[Any]) -> str:
    for place, number in enumerate(numbers):
        if number != place:
            return f"{number} where {place} is due"
    return ""


def _told_texts(told: dict[str, Any]) -> Iterator[str]:
    if told.get("type") == "text":
        yield str(told["content"])
    elif told.get("type") == "contentList":
        yield "".join(str(part["message"]) for part in told["content"])
