"""Agents that are plain async generators: what they yield becomes events.

@agent
async def weather(turn):
    if "where" not in turn.results:
        yield ClientCall("get_location", key="where")  # parks; the generator is called anew
    else:
        yield f"It is sunny in {turn.results['where']}."
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from pydantic import ValidationError

from turnstream.shared import metrics, tracing
from turnstream.shared.protocol import Content, Message, Role, explain
from turnstream.shared.protocol.content import BY_TYPE
from turnstream.worker.agents.memory import within
from turnstream.worker.agents.run_outcome import AgentMistake, Done, NeedsClient
from turnstream.worker.turn import Group, new_call_id

if TYPE_CHECKING:
    from turnstream.shared.agents.config import AgentSpec
    from turnstream.worker.turn import RunningTurn, Speaker, Speech

# Checkpoint: what an author keeps in `Turn.state`, and which calls were made under which keys.
_STATE = "generator"

Function = TypeVar("Function", bound=Callable[..., AsyncIterator[Any]])


class Thinking(str):
    """Text that is the agent's reasoning, not its answer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ClientCall:
    """Yielded to have the client run a function. It ends the run; the next one finds the answer in `Turn.results`.

    Several at once: yield a list of them.

    Attributes:
        name: the function.
        arguments: what it is called with; JSON.
        key: what the answer is found under; the function's name unless given.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""

    @property
    def handle(self) -> str:
        """What the answer is found under."""
        return self.key or self.name


class Turn:
    """A turn as a generator agent sees it.

    Attributes:
        session, task, user: ids; ``user`` may be empty.
        attempt: how often this turn was begun, from 1; more than the runs it needs after a crash.
        input: the turn's messages, canonical JSON objects.
        overrides: what the request asks of a model, where the spec allows it: ``{"temperature": 0.2}``.
        tools: functions that the client offers for this turn: name, description, parameters.
        history: earlier turns, oldest first: ``{"role": "user" or "assistant", "text": …}``.
        results: key of a `ClientCall` → the client's answer.
        state: yours to change; kept when the turn parks and when a message is complete.
    """

    def __init__(self, running: RunningTurn) -> None:
        self._running = running
        kept = orjson.loads(running.kept(_STATE) or b"{}")
        self.state: dict[str, Any] = kept.get("state", {})
        self.calls: dict[str, str] = kept.get("calls", {})
        self.session = running.session
        self.task = running.attempt.ref.task
        self.user = running.user
        self.attempt = running.attempt.number
        self.input = running.input
        self.overrides = running.overrides
        self.tools = running.client_tools
        self.history = _history(within(running.earlier(), running.spec.memory))
        self.results: dict[str, Any] = {
            key: running.results[call] for key, call in self.calls.items() if call in running.results
        }

    @property
    def text(self) -> str:
        """What the user said last."""
        said = [message for message in self.input if message.get("role") == "user"]
        return _text(said[-1]) if said else ""

    def count(self, input_tokens: int, output_tokens: int, cost_usd: float | None = None) -> None:
        """Add what a model's answer took to the turn's usage; its cost is told if that of all of them is known."""
        agent = self._running.spec.name
        metrics.tokens.add(agent, metrics.OTHER, "input", n=input_tokens)
        metrics.tokens.add(agent, metrics.OTHER, "output", n=output_tokens)
        if cost_usd is not None:
            metrics.cost.add(agent, metrics.OTHER, n=cost_usd)
        self._running.spent(input_tokens, output_tokens, cost_usd)

    def kept(self) -> bytes:
        """What is checkpointed."""
        try:
            return orjson.dumps({"state": self.state, "calls": self.calls})
        except TypeError:
            raise AgentMistake(
                "turn.state must be JSON: text, numbers, lists, dicts with text keys"
            ) from None


def agent(function: Function) -> Function:
    """Mark an async generator function as an agent.

    Raises:
        TypeError: it is none.
    """
    given: object = function
    if not inspect.isasyncgenfunction(given):
        raise TypeError(f"{function!r} must be an async generator function: async def with a yield in it")
    return function


class GeneratorAgent:
    """Runs a generator for one turn after the other."""

    def __init__(self, spec: AgentSpec, function: Callable[[Turn], AsyncIterator[Any]]) -> None:
        self.spec = spec
        self._function = function

    async def run(self, turn: RunningTurn) -> Done | NeedsClient:
        """Say what the generator yields, until it ends or asks the client."""
        turn.models.check(self.spec.name)
        with tracing.invoking(turn.attempt.ref, self.spec.name, turn.usage):
            return await self._run(turn)

    async def _run(self, turn: RunningTurn) -> Done | NeedsClient:
        mine = Turn(turn)
        voice = _Voice(turn, mine)
        room = turn.publisher.room
        said: list[str] = []
        generator = self._function(mine)
        try:
            async for each in generator:
                if type(each) is str:
                    voice.text(each, "message")
                    said.append(each)
                elif isinstance(each, str):
                    voice.text(str(each), "reasoning" if isinstance(each, Thinking) else "message")
                elif calls := _calls(each):
                    if voice.ask(calls, mine):
                        return NeedsClient()
                    raise AgentMistake(
                        f"ClientCall {calls[0].handle!r} was answered already: read turn.results, or give another key"
                    )
                else:
                    voice.whole(_checked(each, generator))
                await room()
        finally:
            close = getattr(generator, "aclose", None)
            if close is not None:
                await close()
        voice.close()
        return Done(orjson.dumps({"input": turn.input, "said": "".join(said)}))


class _Voice:
    """Puts what is yielded into messages: pieces of one kind into one, anything else into its own."""

    def __init__(self, turn: RunningTurn, mine: Turn) -> None:
        self._turn = turn
        self._mine = mine
        self._speaker: Speaker = turn.speaker()
        self._speech: Speech | None = None
        self._kind = ""

    def text(self, text: str, kind: str) -> None:
        if self._speech is None or self._kind != kind:
            self.close()
            if not text:
                return
            self._speech = self._speaker.message(kind)
            self._kind = kind
        self._speech.delta(text)

    def whole(self, each: Message | Content) -> None:
        if isinstance(each, Message):
            self.close()
            about = each.model_dump(exclude_none=True)
            self._speaker.say(each.type, each.role or "assistant", *(each.content or []), about=about)
        else:
            if self._speech is None or self._kind != "message":
                self.close()
                self._speech = self._speaker.message()
                self._kind = "message"
            self._speech.part(each)
        self._keep()

    def ask(self, calls: Sequence[ClientCall], mine: Turn) -> bool:
        """Announce the calls that the client was not asked yet; False when all are answered."""
        self.close()
        handles = [call.handle for call in calls]
        if not all(handles) or len(set(handles)) < len(handles):
            raise AgentMistake("each ClientCall needs a name, and calls of one name need a key each")
        ids = [mine.calls.setdefault(call.handle, new_call_id()) for call in calls]
        group = Group(ids, begun=any(self._turn.asked(call) for call in ids))
        if not group.begun:
            self._turn.batch.group(group.id, len(ids))
        for call, each in zip(ids, calls, strict=True):
            if self._turn.asked(call):
                continue
            record = {"kind": "function", "name": each.name, "path": "", "group": group.id, "ids": ids}
            self._turn.ask(call, record)
            data = {"call_id": call, "name": each.name, "arguments": _json(each)}
            self._speaker.say(
                "function_call", "assistant", {"type": "data", "data": data}, extra=group.called()
            )
        self._keep()
        return any(call not in self._turn.results for call in ids)

    def close(self) -> None:
        speech, self._speech = self._speech, None
        if speech is not None:
            speech.close()
            self._keep()

    def _keep(self) -> None:
        kept = self._mine.kept()
        if kept != self._turn.kept(_STATE) and (self._mine.state or self._mine.calls):
            self._turn.keep(_STATE, kept)


def _checked(each: Any, generator: AsyncIterator[Any]) -> Message | Content:
    """What was yielded as the protocol's model of it: clients drop a whole response for one part that they do not know.

    Raises:
        AgentMistake: it is neither a message nor a content part; names the line that yielded it.
    """
    try:
        if isinstance(each, Mapping) and each.keys() & {"type", "content"}:
            each = _read(dict(each))
        if isinstance(each, Message):
            if each.role is not None and each.role not in _ROLES:
                raise AgentMistake(f"a message's role must be one of {', '.join(_ROLES)}")
            for part in each.content or []:
                _known(part)
            return each
        if isinstance(each, Content):
            return _known(each)
        raise AgentMistake(f"an agent yields {_YIELDED}, not {type(each).__name__}")
    except ValidationError as error:
        raise AgentMistake(f"{_line(generator)}this is no {_kind(each)}: {explain(error)}") from None
    except AgentMistake as mistake:
        raise AgentMistake(f"{_line(generator)}{mistake}") from None


def _read(fields: dict[str, Any]) -> Message | Content:
    """A dict as the message or content part that it is the shape of."""
    if _kind(fields) == "message":
        return Message.model_validate(fields)
    return _known(BY_TYPE.get(str(fields.get("type")), Content).model_validate(fields))


def _kind(each: Any) -> str:
    message = isinstance(each, Mapping) and (each.get("object") == "message" or "content" in each)
    return "message" if message else "content part"


def _known(part: Content) -> Content:
    if part.type not in BY_TYPE:
        raise AgentMistake(f"a content part's type must be one of {', '.join(BY_TYPE)}")
    return part


def _line(generator: AsyncIterator[Any]) -> str:
    """Where the agent's code stands, in its author's file: ``weather.py:12: ``; empty for what is no plain generator."""
    frame = getattr(generator, "ag_frame", None)
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}: "


_YIELDED = "text, Thinking, Content, Message or ClientCall"
_ROLES = tuple(role.value for role in Role)


def _json(call: ClientCall) -> str:
    try:
        return json.dumps(dict(call.arguments))
    except (TypeError, ValueError):
        raise AgentMistake(f"the arguments of ClientCall {call.handle!r} must be a dict of JSON") from None


def _calls(each: Any) -> list[ClientCall]:
    if isinstance(each, ClientCall):
        return [each]
    if isinstance(each, Sequence) and each and all(isinstance(item, ClientCall) for item in each):
        return list(each)
    return []


def _history(memory: Sequence[bytes]) -> list[dict[str, str]]:
    history: list[dict[str, str]] = []
    for element in memory:
        turn = orjson.loads(element)
        asked = turn.get("input", [])
        history += [{"role": str(each.get("role", "user")), "text": _text(each)} for each in asked]
        if turn.get("said"):
            history += [{"role": "assistant", "text": turn["said"]}]
    return history


def _text(message: Mapping[str, Any]) -> str:
    parts = message.get("content") or []
    return "".join(part.get("text") or "" for part in parts if part.get("type") == "text")
