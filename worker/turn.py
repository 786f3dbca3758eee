"""One turn as its agent sees it: what was asked, what is known, and how to speak."""

from __future__ import annotations

import time
import uuid
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
import structlog

from turnstream.shared.protocol import MessageType, ResponseBuilder, canonical
from turnstream.shared.session.batch import MODEL_CALLS
from turnstream.shared.session.endings import response_event
from turnstream.shared.session.entry import OTHER
from turnstream.shared.session.model_calls import ModelCalls
from turnstream.worker.agent_versions import VERSION
from turnstream.worker.publisher import LostAttempt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from turnstream.shared.agents.config import AgentSpec
    from turnstream.shared.protocol import Content, ContentBuilder, MessageBuilder
    from turnstream.shared.session.batch import Batch
    from turnstream.shared.session.cancellation import Reason
    from turnstream.shared.session.model_calls import ModelCall
    from turnstream.worker.agents.model_gate import TurnModels
    from turnstream.worker.lease import Held
    from turnstream.worker.publisher import Publisher

log = structlog.get_logger(__name__)

T = TypeVar("T")

_TYPES = frozenset(MessageType)

# What becomes of a call that was taken back, for the model and the client.
WITHDRAWN = "The agent failed before this was done."

_current: ContextVar[RunningTurn] = ContextVar("turnstream_turn")


def current_turn() -> RunningTurn:
    """The turn that runs here, for tools that speak to the client themselves.

    Raises:
        LookupError: called outside a turn.
    """
    return _current.get()


def now_ms() -> int:
    """Unix milliseconds, by this worker's clock."""
    return int(time.time() * 1000)


def new_call_id() -> str:
    """Our own id for a call: providers repeat theirs, and parallel sub-agents collide."""
    return f"call_{uuid.uuid4().hex}"


class RunningTurn:
    """What an agent has in hand while it answers.

    Duties:
        1. know the request, the calls the client answered, the checkpoints of earlier attempts;
        2. hand out a `Speaker` for each agent path;
        3. gather checkpoints with the events they belong to, atomically;
        4. count tokens;
        5. note requests to models, for operators.
    """

    def __init__(
        self, held: Held, spec: AgentSpec, publisher: Publisher, request: dict[str, Any], models: TurnModels
    ) -> None:
        """``request`` is the attempt's, read; ``models`` are those that it may ask."""
        attempt = held.attempt
        self.attempt = attempt
        self.spec = spec
        self.publisher = publisher
        self.models = models
        self._held = held
        self.request = request
        self.input: list[dict[str, Any]] = self.request["input"]
        self.user: str = self.request.get("user", "")
        # What the request asks of the model, and the functions that its client offers for this turn.
        self.overrides: dict[str, Any] = self.request.get("overrides", {})
        self.client_tools: list[dict[str, Any]] = self.request.get("tools", [])
        # What the answer is to fit, if the request says so.
        self.output_schema: dict[str, Any] | None = self.request.get("output_schema")
        # Tools for which its client can be asked for consent; None: for all.
        self._approvals: list[str] | None = self.request.get("approvals")
        self.results: dict[str, Any] = {
            call: orjson.loads(result) for call, result in attempt.results.items()
        }
        # What is made of that, time and again, is done beside the event loop if it is much.
        self._bytes = sum(map(len, (attempt.task["request"], *attempt.memory, *attempt.state.values())))
        self.usage: dict[str, Any] = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
        if kept := attempt.state.get("usage"):
            self.usage = orjson.loads(kept)
        self._model_calls = ModelCalls(attempt.state.get(MODEL_CALLS))
        # Whether every completed message of the task passed through this object. If so the end needs
        # no reading; a message of an earlier attempt, or a client's answer, is only in the history.
        self._all_seen = attempt.fresh
        self._completed: dict[int, bytes] = {}
        self._begun = 0
        # Whoever writes the end finds what is kept here, too.
        self._state = attempt.state
        self._calls = set(attempt.calls)
        self.builder = ResponseBuilder(
            session_id=attempt.ref.session,
            response_id=attempt.response,
            created_at=attempt.submitted // 1000,
            status="in_progress",
            numbered=False,
        )

    @property
    def cancelled(self) -> Reason | None:
        """Why the turn was taken from this worker, if it was."""
        return self._held.reason

    @property
    def ends(self) -> float:
        """Unix seconds of the turn's deadline, by this host's clock."""
        return self._held.ends

    @property
    def session(self) -> str:
        """The session's id."""
        return self.attempt.ref.session

    async def offload(self, work: Callable[..., T], *given: object) -> T:
        """What ``work(*given)`` returns or raises, which reads or writes all that the turn was given."""
        return await self.publisher.offload.run_large(self.attempt.ref.owner, self._bytes, work, *given)

    def earlier(self) -> list[bytes]:
        """The memory of earlier turns, once: what is made of it is several times as large, and lasts as long as the turn."""
        memory = self.attempt.memory.copy()
        self.attempt.memory.clear()
        return memory

    @property
    def batch(self) -> Batch:
        """What gathers for the next append."""
        return self.publisher.batch

    @property
    def output(self) -> list[bytes] | None:
        """The closed messages in the order in which they were begun, or None when they must be read."""
        return [self._completed[place] for place in sorted(self._completed)] if self._all_seen else None

    def enter(self) -> None:
        """Make this the current turn, and say that it runs (once in a task's life)."""
        _current.set(self)
        if int(self.attempt.task["number"]) <= 1:
            self.batch.status(response_event(self.attempt, "created"))
            self.batch.status(response_event(self.attempt, "in_progress"))
            self.publisher.kick()

    def begin_version(self, version: str) -> None:
        """Keep which version of the agent writes the turn from here on."""
        begun = self.kept(VERSION)
        if begun != version.encode():
            if begun is not None:
                log.warning("attempt.moved", agent=self.spec.name, begun=begun.decode(), version=version)
            self.keep(VERSION, version.encode())

    def speaker(self, path: str = "", agent: str = "") -> Speaker:
        """A voice for the agent at ``path``; ``agent`` is a sub-agent's name."""
        return Speaker(self, path, agent)

    def begun(self) -> int:
        """A message of this turn begins; its place among them."""
        self._begun += 1
        return self._begun

    def completed(self, place: int, body: bytes) -> None:
        """The message at that place was completed."""
        self._completed[place] = body

    # ── checkpoints ──

    def kept(self, name: str) -> bytes | None:
        """A checkpoint, of this attempt or an earlier one."""
        return self._state.get(name)

    def keep(self, name: str, value: bytes) -> None:
        """Checkpoint with the events gathered right now: both are kept, or none."""
        self._state[name] = value
        self.batch.keep(name, value)
        self.publisher.kick()

    def forget(self, name: str) -> None:
        """Drop a checkpoint."""
        if self._state.pop(name, None) is not None:
            self.batch.drop(name)
            self.publisher.kick()

    def spent(
        self, input_tokens: int, output_tokens: int, cost: float | None = None, **among_them: int
    ) -> None:
        """Count the tokens of one model call; ``among_them``: those of these that were read from a cache, say.

        ``cost``: USD. The turn's is told while that of all its calls is known.
        """
        known = not self.usage["total_tokens"] or "cost_usd" in self.usage
        before = self.usage.pop("cost_usd", 0.0)
        if known and cost is not None:
            self.usage["cost_usd"] = round(before + cost, 9)
        self.usage["input_tokens"] += input_tokens
        self.usage["output_tokens"] += output_tokens
        self.usage["total_tokens"] += input_tokens + output_tokens
        for name, tokens in among_them.items():
            if tokens:
                self.usage[name] = self.usage.get(name, 0) + tokens
        self.keep("usage", orjson.dumps(self.usage))

    # ── requests to models, for operators ──

    def begin_call(self, agent: str, path: str, model: str) -> ModelCall:
        """A request to a model is made now. Whoever changes what this gives notes it (`note_calls`)."""
        call = self._model_calls.begin(agent, path, model, now_ms())
        self.note_calls()
        return call

    def note_calls(self) -> None:
        """Checkpoint the requests with what is written next: nothing is written for them alone."""
        kept = self._model_calls.dump()
        self._state[MODEL_CALLS] = kept
        self.batch.keep(MODEL_CALLS, kept)

    # ── calls to the client ──

    def asked(self, call: str) -> bool:
        """Whether the client was asked already, by this attempt or an earlier one."""
        return call in self._calls

    @property
    def waits(self) -> bool:
        """Whether some call is not answered yet, as far as this attempt knows."""
        return bool(self._calls - self.results.keys())

    def approves(self, tool: str) -> bool:
        """Whether the client can be asked for consent to that tool."""
        return self._approvals is None or tool in self._approvals

    def ask(self, call: str, record: Mapping[str, Any]) -> None:
        """Register a call with the events that announce it. See api/turns/callbacks.py for the record's keys."""
        self._calls.add(call)
        self._all_seen = False
        self.batch.call(call, orjson.dumps(record))
        self.publisher.kick()

    def withdrawn(self, call: str) -> bool:
        """Whether a call was taken back, by this attempt or an earlier one: nobody is asked it again."""
        return self.kept(f"withdrawn:{call}") is not None

    async def withdraw(self, calls: Sequence[str]) -> set[str]:
        """Take calls back that nobody waits for any more; those that were answered by then.

        What becomes of them is said later, perhaps by another attempt.
        """
        for call in calls:
            self.keep(f"withdrawn:{call}", b"1")
        answered = await self.publisher.withdraw(calls)
        self._calls.difference_update(calls)
        return answered


class Speaker:
    """The voice of one agent path: turns what it says into events.

    Several may speak at once (parallel sub-agents); each has one message open at a time.
    """

    def __init__(self, turn: RunningTurn, path: str, agent: str) -> None:
        self._turn = turn
        self.path = path
        self.agent = agent or turn.spec.name
        self._origin: dict[str, Any] = {"agent": {"id": agent, "name": agent}} if path else {}

    def message(
        self, message_type: str = "message", role: str = "assistant", about: Mapping[str, Any] | None = None
    ) -> Speech:
        """Begin a message; ``about`` is what it tells beside its parts: an error's code, metadata and so on."""
        return Speech(self._turn, self, message_type, role, about)

    def say(
        self,
        message_type: str,
        role: str,
        *parts: Mapping[str, Any] | Content,
        extra: Mapping[str, Any] | None = None,
        group: Group | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Say a whole message at once; with ``group`` it is a result that settles one of its calls."""
        speech = self.message(message_type, role, about)
        for part in parts:
            speech.part(part)
        speech.close(extra, group)

    def extra(self, more: Mapping[str, Any] | None) -> bytes:
        """What dialects need beside the event."""
        extra = {**self._origin, **(more or {})}
        return orjson.dumps(extra) if extra else b""


class Group:
    """The calls of one answer of a model: clients are told when they begin and when all are settled."""

    def __init__(self, ids: list[str], *, begun: bool) -> None:
        self.ids = ids
        self.begun = begun

    @property
    def id(self) -> str:
        """Names the group in the task's hash."""
        return self.ids[0]

    def called(self) -> dict[str, Any]:
        """The extra of a call's message; the first one says so."""
        first, self.begun = not self.begun, True
        return {"group": {"ids": self.ids, "first": True} if first else {"ids": self.ids}}

    def settled(self) -> dict[str, Any]:
        """The extra of a result's message."""
        return {"group": {"ids": self.ids}}

    def settled_last(self) -> dict[str, Any]:
        """The extra of the last result's message."""
        return {"group": {"ids": self.ids, "last": True}}


class Speech:
    """One message on its way: opened, spoken in pieces or parts, closed."""

    def __init__(
        self,
        turn: RunningTurn,
        speaker: Speaker,
        message_type: str,
        role: str,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self._turn = turn
        self._speaker = speaker
        self._message: MessageBuilder = turn.builder.create_message_builder(
            role=role, message_type=message_type, about=about
        )
        # An agent may call a message what it likes, the log's own kinds among it.
        given = self._message.message_type
        self._kind: str = given if given in _TYPES else OTHER
        self._text: ContentBuilder | None = None
        self._place = turn.begun()
        batch, path, extra = turn.batch, speaker.path, speaker.extra(None)
        batch.opening(self.id, self._kind, canonical(self._message.created()), path=path, extra=extra)
        batch.event(self._kind, canonical(self._message.in_progress()), path=path, extra=extra)
        turn.publisher.kick()

    @property
    def id(self) -> str:
        """The message's id."""
        return self._message.message_id

    def delta(self, text: str) -> None:
        """Say a piece of text. `Publisher.room` must be awaited now and then."""
        if self._text is None:
            self._text = self._message.create_content_builder("text")
        self._turn.batch.delta(self._kind, *self._text.text_delta_json(text), path=self._speaker.path)
        self._turn.publisher.kick(text=True)

    def part(self, part: Mapping[str, Any] | Content) -> None:
        """Say a part that is whole already."""
        self._end_text()
        text = _text_of(part)
        if text is not None:
            # As one piece: clients that join pieces would not hear it otherwise.
            self.delta(text)
            self._end_text()
            return
        event = self._message.add_content(part)
        self._turn.batch.event(self._kind, canonical(event), path=self._speaker.path)

    def close(self, extra: Mapping[str, Any] | None = None, group: Group | None = None) -> None:
        """Complete the message; with ``group`` it settles one of the group's calls."""
        self._end_text()
        body = canonical(self._message.complete())
        speaker, batch = self._speaker, self._turn.batch
        if group is None:
            batch.closing(self.id, self._kind, body, path=speaker.path, extra=speaker.extra(extra))
        else:
            batch.settling(
                self.id,
                self._kind,
                body,
                path=speaker.path,
                extra=speaker.extra({**(extra or {}), **group.settled()}),
                group=group.id,
                last=speaker.extra({**(extra or {}), **group.settled_last()}),
            )
        self._turn.completed(self._place, body)
        self._turn.publisher.kick()

    def break_off(self) -> None:
        """Close the message as incomplete: its agent cannot go on."""
        self._text = None
        body = canonical(self._message.incomplete())
        speaker = self._speaker
        self._turn.batch.closing(self.id, self._kind, body, path=speaker.path, extra=speaker.extra(None))
        self._turn.completed(self._place, body)
        self._turn.publisher.kick()

    def _end_text(self) -> None:
        if self._text is not None:
            batch = self._turn.batch
            batch.event(self._kind, canonical(self._text.complete()), path=self._speaker.path)
            self._text = None


def _text_of(part: Mapping[str, Any] | Content) -> str | None:
    """The text of a text part that has any."""
    fields = part if isinstance(part, dict) else dict(part)
    text = fields.get("text") if fields.get("type") == "text" else None
    # Anything else but text is refused where parts are checked.
    return text or None if isinstance(text, str) else None


__all__ = [
    "Group",
    "LostAttempt",
    "RunningTurn",
    "Speaker",
    "Speech",
    "current_turn",
    "new_call_id",
    "now_ms",
]
