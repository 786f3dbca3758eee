"""``turnstream replay``: a turn that was recorded is said again to an agent, and the differences are shown."""

from __future__ import annotations

import difflib
import json
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from turnstream.client.calls import Approval, FunctionError
from turnstream.client.errors import ClientError
from turnstream.client.speech import text_of
from turnstream.client.sync import Client
from turnstream.shared.errors import ConfigurationError
from turnstream.shared.protocol import DataContent, Fold, Message, MessageType, Role, RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from turnstream.admin import Admin
    from turnstream.client.calls import Call

# Whose the turns are that are said again: operators find them, and delete them, by this name.
OWNER = "replay"

# Events in one answer of the front end.
PAGE = 500

_CALLS = frozenset(
    {
        MessageType.PLUGIN_CALL,
        MessageType.FUNCTION_CALL,
        MessageType.MCP_TOOL_CALL,
        MessageType.MCP_APPROVAL_REQUEST,
        MessageType.COMPONENT_CALL,
    }
)
_RESULTS = frozenset(
    {
        MessageType.PLUGIN_CALL_OUTPUT,
        MessageType.FUNCTION_CALL_OUTPUT,
        MessageType.MCP_TOOL_CALL_OUTPUT,
        MessageType.MCP_APPROVAL_RESPONSE,
        MessageType.COMPONENT_CALL_OUTPUT,
    }
)


@dataclass(frozen=True, slots=True)
class Recording:
    """A turn as its log has it.

    Attributes:
        agent: who answered.
        status: how it ended.
        said: the user's messages, to be said again.
        lines: calls, results and texts, a line each.
        answers: what the client answered to the calls of a name, in their order.
    """

    agent: str
    status: str
    said: list[Message]
    lines: list[str]
    answers: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two turns side by side.

    Attributes:
        ref: the new one.
        diff: what differs, as a unified diff; empty: nothing does.
    """

    ref: str
    agent: str
    before: Recording
    after: Recording
    diff: list[str]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "ref": self.ref,
            "agent": self.agent,
            "same": not self.diff,
            "status": {"before": self.before.status, "after": self.after.status},
            "before": self.before.lines,
            "after": self.after.lines,
            "diff": self.diff,
        }


def replay(admin: Admin, url: str, ref: str, agent: str) -> Comparison:
    """Say a recorded turn's input to an agent (empty: the one that answered), with the answers that its client gave, and compare.

    Raises:
        Refusal: the front end does not answer, or there is no such task or agent.
        ConfigurationError: the turn has not ended, or what was said is forgotten.
        ClientError: the new turn cannot be followed.
    """
    before = record(admin, ref)
    if not before.said:
        raise ConfigurationError(f"{ref}: what the user said is not in the session's log any more")
    agent = agent or before.agent
    with _key(admin, agent) as token, Client(url, token) as client:
        _answer_as_before(client, before.answers)
        reply = client.chat(before.said)
        try:
            reply.finished()
        except ClientError:
            reply.stop()
            raise
        made = f"{OWNER}/{reply.session.id}/{reply.id.removeprefix('response_')}"
    after = record(admin, made)
    diff = difflib.unified_diff(
        [*before.lines, f"it was {before.status}"],
        [*after.lines, f"it was {after.status}"],
        f"{ref} ({before.agent})",
        f"{made} ({agent})",
        lineterm="",
    )
    return Comparison(made, agent, before, after, list(diff))


def record(admin: Admin, ref: str) -> Recording:
    """Read a task that has ended.

    Raises:
        Refusal: the front end does not answer, or there is no such task.
        ConfigurationError: the task has not ended.
    """
    task = admin.ask("GET", f"tasks/{ref}")
    if task["status"] not in ("completed", "failed", "canceled"):
        raise ConfigurationError(f"{ref} is {task['status']}: only turns that have ended can be replayed")
    fold, cursor = Fold(), ""
    while cursor is not None:
        given = {"headers": {"Last-Event-ID": cursor}} if cursor else {}
        page = admin.ask("GET", f"tasks/{ref}/events", params={"limit": PAGE}, **given)
        for each in page["events"]:
            fold.feed(each["event"])
        cursor = page["next"]
    messages = [each for each in fold.messages.values() if each.status == RunStatus.Completed]
    said = [each for each in messages if each.role == Role.USER and each.type == MessageType.MESSAGE]
    return Recording(task["agent"], task["status"], said, list(_lines(messages)), _answers(messages))


def _lines(messages: Iterable[Message]) -> Iterator[str]:
    """What is compared: who called what with which arguments, what came of it, and what was said. No ids, no thoughts, no times."""
    for message in messages:
        for data in _datas(message):
            if message.type in _CALLS:
                yield f"calls {data.get('name', '')} {_in_order(_given(data))}"
            elif message.type in _RESULTS:
                result = data.get("output", data.get("approve", data.get("content")))
                yield f"  → {_in_order(result)}"
            elif message.type == MessageType.MESSAGE:
                yield f"answers {_in_order(data)}"
        if message.type == MessageType.MESSAGE and message.role == Role.ASSISTANT:
            yield from (f"says {line}" for line in text_of(message).splitlines())


def _answers(messages: Iterable[Message]) -> dict[str, list[Any]]:
    """What the client answered, by the names of the functions, and of the tools that needed consent."""
    names: dict[str, str] = {}
    found: dict[str, list[Any]] = defaultdict(list)
    for message in messages:
        for data in _datas(message):
            if message.type in (MessageType.FUNCTION_CALL, MessageType.MCP_APPROVAL_REQUEST):
                names[str(data.get("call_id") or data.get("id"))] = str(data.get("name", ""))
            elif message.type == MessageType.FUNCTION_CALL_OUTPUT:
                found[names.get(str(data.get("call_id")), "")].append(data.get("output"))
            elif message.type == MessageType.MCP_APPROVAL_RESPONSE:
                consent = data.get("approve") is True, str(data.get("reason") or "")
                found[names.get(str(data.get("approval_request_id")), "")].append(consent)
    return dict(found)


def _answer_as_before(client: Client, answers: dict[str, list[Any]]) -> None:
    left = {name: list(each) for name, each in answers.items()}

    @client.other_functions
    def answered(call: Call) -> Any:
        if not left.get(call.name):
            raise FunctionError("This call was not made in the recorded turn: nobody knows its result.")
        return left[call.name].pop(0)

    @client.approval
    def consented(approval: Approval) -> Any:
        if not left.get(approval.name):
            return False, "This was not asked in the recorded turn."
        return left[approval.name].pop(0)


@contextmanager
def _key(admin: Admin, agent: str) -> Iterator[str]:
    """A chat key for the agent, which is revoked afterwards."""
    made = admin.ask("POST", "keys", json={"owner": OWNER, "agent": agent, "days": 1})
    try:
        yield made["token"]
    finally:
        admin.ask("POST", f"keys/{made['id']}/revoke")


def _datas(message: Message) -> list[dict[str, Any]]:
    return [part.data or {} for part in message.content or [] if isinstance(part, DataContent)]


def _given(data: dict[str, Any]) -> Any:
    given = data.get("arguments", data.get("content", {}))
    try:
        return from_json(given) if isinstance(given, str) else given
    except ValueError:
        return given


def _in_order(value: Any) -> str:
    """JSON that is the same whatever order its fields came in."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
