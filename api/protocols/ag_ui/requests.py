"""What AG-UI's clients send: a ``RunAgentInput``, read and checked."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnstream.api.http.body import digest_of, json_object
from turnstream.api.turns.answers import Answer, answer_to
from turnstream.api.turns.ids import MARK
from turnstream.api.turns.messages import earlier_call, earlier_result, message_of, words_in
from turnstream.api.turns.overrides import MOST_TOOLS, overrides_of, take_out
from turnstream.api.turns.submit import derived_session
from turnstream.shared.errors import InvalidBody
from turnstream.shared.names import IDENTIFIER
from turnstream.shared.protocol import AgentRequest, explain

if TYPE_CHECKING:
    from turnstream.api.access.auth import Caller
    from turnstream.api.turns.overrides import Overrides
    from turnstream.shared.agents.config import AgentSpec
    from turnstream.shared.protocol import Message

MOST_MESSAGES = 10_000
MOST_CONTEXT = 1000

# A task's name has no more characters.
_MOST_TASK = 36

# What only the client shows, or what the session knows by itself.
_PASSED = ("activity", "reasoning")
_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}

Json = dict[str, Any]

Name = Annotated[str, Field(min_length=1, max_length=1024)]


class ResumeEntry(BaseModel):
    """The answer to an interrupt."""

    model_config = ConfigDict(extra="allow")

    interruptId: Name  # noqa: N815 - the wire's name, so that errors name it too
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunAgentInput(BaseModel):
    """A user's message, or answers, with the thread that they belong to."""

    model_config = ConfigDict(extra="allow")

    threadId: Name = Field(description="The session.")  # noqa: N815
    runId: Name = Field(description="A repeat with the same id finds the run that the first one made.")  # noqa: N815
    protocolVersion: Annotated[str, Field(max_length=64)] | None = Field(  # noqa: N815
        None, description="Without one the client is told nothing that 0.0.x does not know."
    )
    messages: list[Json] = Field(
        max_length=MOST_MESSAGES,
        description="The conversation. Of a thread that is known only what stands behind the last answer is taken.",
    )
    tools: Annotated[list[Json], Field(max_length=MOST_TOOLS)] | None = Field(
        None, description="Functions of the client."
    )
    context: Annotated[list[Json], Field(max_length=MOST_CONTEXT)] | None = Field(
        None, description="What the application says besides: a system message of the turn."
    )
    resume: list[ResumeEntry] | None = Field(
        None, max_length=1000, description="Answers to interrupts, all at once."
    )


@dataclass(frozen=True, slots=True)
class Run:
    """One request, read.

    Attributes:
        caller: who asks, with the agent that the address names.
        thread, run: as the client calls them.
        session, task: what we call them.
        is_old: the client is a 0.0.x one.
        newest: what stands behind the last answer, each with its id; empty when that is the last.
        messages: the whole conversation, as it was sent.
        context: what the application says, as a message, if it says anything.
        resume: answers to interrupts.
        results: results of functions, behind the user's last message.
        passed: those between the last answer and the user's last message.
        overrides: what it asks of the model.
        digest: of what is asked.
    """

    caller: Caller
    thread: str
    run: str
    session: str
    task: str
    is_old: bool
    newest: list[tuple[str, Message]]
    messages: list[Json]
    context: list[Message]
    resume: list[Answer]
    results: list[Answer]
    passed: list[Answer]
    overrides: Overrides
    digest: str

    def history(self) -> list[Message]:
        """The whole conversation.

        Raises:
            InvalidBody: a message is wrong; the text names the field.
        """
        return [
            message for _, message in _messages(self.messages, range(len(self.messages)), self.caller.spec)
        ]


def session_of(caller: Caller, thread: str) -> str:
    """The session that is a thread; its own name, where it can be one."""
    return thread if IDENTIFIER.fullmatch(thread) else derived_session(caller, f"thread {thread}")


def task_of(thread: str, run: str) -> str:
    """The task that a run makes; its own name, where it can be one."""
    if len(run) <= _MOST_TASK and IDENTIFIER.fullmatch(run):
        return run
    return str(uuid.UUID(hashlib.blake2b(f"{thread}\x00{run}".encode(), digest_size=16).hexdigest()))


def parse_run(raw: bytes, caller: Caller) -> Run:
    """Read a ``RunAgentInput``.

    Raises:
        InvalidBody: it is not a JSON object, or a field is wrong; the text names the field.
        UnknownCall: the id of an interrupt or a call cannot be one.
    """
    return read_run(json_object(raw), raw, caller)


def read_run(fields: Json, raw: bytes, caller: Caller) -> Run:
    """Read the fields of a ``RunAgentInput``; ``raw`` is what they came in.

    Raises:
        As `parse_run`.
    """
    try:
        body = RunAgentInput.model_validate(fields)
    except ValidationError as error:
        raise InvalidBody(explain(error)) from None
    spec = caller.spec
    messages = body.messages
    for at, message in enumerate(messages):
        if message.get("role") not in (*_ROLES, "tool", *_PASSED):
            raise InvalidBody(f"messages[{at}].role: must be one of {', '.join((*_ROLES, 'tool', *_PASSED))}")
    asked = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=-1)
    told = max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    resume = [_resumed(entry, f"resume[{at}]") for at, entry in enumerate(body.resume or [])]
    consents = {answer.call for answer in resume}
    results = [
        answer
        for answer in _results(messages, range(asked + 1, len(messages)))
        if answer.call not in consents
    ]
    newest = range(told + 1, len(messages)) if asked > told else range(0)
    return Run(
        caller=caller,
        thread=body.threadId,
        run=body.runId,
        session=session_of(caller, body.threadId),
        task=task_of(body.threadId, body.runId),
        is_old=body.protocolVersion is None,
        newest=[each for each in _messages(messages, newest, spec) if each[1].role != "tool"],
        messages=messages,
        context=_context(body.context or []),
        resume=resume,
        results=results,
        passed=_results(messages, range(told + 1, asked)),
        overrides=_overrides(body.tools or [], spec),
        digest=digest_of(fields, raw),
    )


def _resumed(entry: ResumeEntry, place: str) -> Answer:
    """Consent or not: `{"approved": …}`, or a bare truth value; who cancels does not consent."""
    if entry.status == "cancelled":
        return answer_to(
            entry.interruptId, {"approve": False, "reason": "Cancelled."}, f"{place}.interruptId"
        )
    payload = {"approved": entry.payload} if isinstance(entry.payload, bool) else entry.payload
    if not isinstance(payload, dict):
        raise InvalidBody(f'{place}.payload: send {{"approved": true}} or {{"approved": false}}')
    approved = payload.get("approved", payload.get("approve"))
    if not isinstance(approved, bool):
        raise InvalidBody(f"{place}.payload.approved: send true or false")
    if payload.get("editedArgs") is not None:
        raise InvalidBody(f"{place}.payload.editedArgs: arguments cannot be edited here; leave it out")
    reason = payload.get("reason")
    if not (reason is None or isinstance(reason, str)):
        raise InvalidBody(f"{place}.payload.reason: send text, or nothing")
    return answer_to(entry.interruptId, {"approve": approved, "reason": reason}, f"{place}.interruptId")


def _results(messages: list[Json], places: range) -> list[Answer]:
    return [_result(messages[at], f"messages[{at}]") for at in places if messages[at]["role"] == "tool"]


def _result(message: Json, place: str) -> Answer:
    text = _words(message.get("content"), f"{place}.content")
    error = message.get("error")
    if isinstance(error, str) and error not in text:
        text = f"{text}\n{error}".strip()
    call = message.get("toolCallId")
    if not isinstance(call, str) or not call:
        raise InvalidBody(f"{place}.toolCallId: Field required")
    # One that cannot be ours is of a conversation elsewhere.
    ours = IDENTIFIER.fullmatch(call) or MARK in call
    return answer_to(call, text, f"{place}.toolCallId") if ours else Answer(call, None, text)


def _context(given: list[Json]) -> list[Message]:
    """What the application says of itself, as one message."""
    lines = []
    for at, item in enumerate(given):
        description, value = item.get("description"), item.get("value")
        if not isinstance(description, str) or not isinstance(value, str):
            raise InvalidBody(f"context[{at}]: needs a description and a value, both text")
        lines.append(f"{description}: {value}")
    if not lines:
        return []
    return [message_of("system", [{"type": "text", "text": "\n".join(lines)}], "context")]


def _messages(messages: list[Json], places: range, spec: AgentSpec) -> list[tuple[str, Message]]:
    """Messages of ours, each with the id of that which it is made of."""
    made: list[tuple[str, Message]] = []
    for at in places:
        message, place = messages[at], f"messages[{at}]"
        role, content, name = message["role"], message.get("content"), str(message.get("id") or "")
        if role in _PASSED:
            continue
        if role == "tool":
            text = _words(content, f"{place}.content")
            made.append((name, earlier_result(message.get("toolCallId"), text, place)))
            continue
        parts = _parts(content, f"{place}.content", spec)
        if parts:
            made.append((name, message_of(_ROLES[role], parts, place)))
        elif role != "assistant":
            raise InvalidBody(f"{place}.content: give text, or a list of parts")
        calls = message.get("toolCalls") if role == "assistant" else None
        for number, call in enumerate(calls if isinstance(calls, list) else ()):
            where = f"{place}.toolCalls[{number}]"
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                raise InvalidBody(f"{where}.function: Field required")
            said = function.get("name"), function.get("arguments")
            made.append((name, earlier_call(call.get("id"), *said, where)))
    return made


def _parts(content: Any, place: str, spec: AgentSpec) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if content is None:
        return []
    if not isinstance(content, list):
        raise InvalidBody(f"{place}: give text, or a list of parts")
    return [_part(part, f"{place}[{at}]", spec) for at, part in enumerate(content)]


def _part(part: Any, place: str, spec: AgentSpec) -> Json:
    """A part of a user's message as one of ours."""
    if not isinstance(part, dict):
        raise InvalidBody(f"{place}: Input should be an object")
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": part.get("text") or ""}
    # Parts before 1.0 are of one type.
    kind, source = _old_source(part) if kind == "binary" else (kind, part.get("source"))
    if kind not in ("image", "audio", "video", "document") or not isinstance(source, dict):
        raise InvalidBody(f"{place}.type: text, or image, audio, video or document with a source")
    value = source.get("value")
    if not isinstance(value, str) or not value:
        raise InvalidBody(f"{place}.source.value: Field required")
    media = str(source.get("mimeType") or "application/octet-stream")
    if source.get("type") == "file":
        if not spec.file_ids:
            raise InvalidBody(
                f"{place}.source: this agent takes no files by id; send the file, or a link to it"
            )
        return {"type": "file", "file_id": value}
    link = f"data:{media};base64,{value}" if source.get("type") == "data" else value
    name = part.get("filename")
    match kind:
        case "image":
            return {"type": "image", "image_url": link}
        case "video":
            return {"type": "video", "video_url": link}
        case "audio":
            sound = value if source.get("type") == "data" else link
            return {"type": "audio", "data": sound, "format": media.rpartition("/")[2]}
        case _:
            field = "file_data" if source.get("type") == "data" else "file_url"
            return {
                "type": "file",
                field: link,
                **({"filename": name} if isinstance(name, str) and name else {}),
            }


def _old_source(part: Json) -> tuple[Any, Any]:
    media = str(part.get("mimeType") or "")
    kind = media.partition("/")[0]
    where = next(
        (
            (type_, part[name])
            for type_, name in (("data", "data"), ("url", "url"), ("file", "id"))
            if part.get(name)
        ),
        ("data", None),
    )
    source = {"type": where[0], "value": where[1], "mimeType": media}
    return kind if kind in ("image", "audio", "video") else "document", source


def _overrides(tools: list[Json], spec: AgentSpec) -> Overrides:
    functions = [
        {
            "type": "function",
            "function": {name: tool.get(name) for name in ("name", "description", "parameters")},
        }
        for tool in tools
    ]
    fields: Json = {"input": [], "reconnect": True, "tools": functions}
    ignored = take_out(fields, spec)
    try:
        return overrides_of(AgentRequest.model_validate(fields), spec, ignored)
    except ValidationError as error:
        raise InvalidBody(explain(error)) from None


def _words(content: Any, place: str) -> str:
    return "" if content is None else words_in(content, place)
