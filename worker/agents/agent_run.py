"""One run of one pydantic-ai agent: its stream into events, its checkpoints, its way back from them.

A checkpoint is the run's messages up to a model's answer. From there the run goes on by running the
answer's tools again: those that had finished give their kept result, those that wait for the client
give its answer, and of one that was in flight its policy decides (`tools/effects.py`). So resuming after
a crash and after parking are the same thing.
"""

from __future__ import annotations

import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
import pydantic_core
from pydantic_ai import Agent, DeferredToolRequests, ModelRetry
from pydantic_ai.messages import (
    FilePart,
    FunctionToolResultEvent,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
)

from turnstream.shared import metrics, tracing
from turnstream.shared.agents.json_depth import MOST_LEVELS, too_deep
from turnstream.shared.session.endings import ANSWERED_BY, CUT_SHORT
from turnstream.worker.agents import memory, models, structured_output
from turnstream.worker.agents.background import BackgroundResponse, keeping
from turnstream.worker.agents.delta_listener import DeltaListener, listening
from turnstream.worker.agents.library_tasks import LibraryTasks
from turnstream.worker.agents.model_gate import noting
from turnstream.worker.agents.structured_output import OutputForm
from turnstream.worker.turn import WITHDRAWN, Group, new_call_id, now_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from pydantic_ai import CallToolsNode, ModelRequestNode
    from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ToolCallPart, UserContent
    from pydantic_ai.run import AgentRun as LibraryRun
    from pydantic_ai.settings import ModelSettings

    from turnstream.shared.session.model_calls import ModelCall
    from turnstream.worker.agents.model_gate import NamedModel
    from turnstream.worker.turn import RunningTurn, Speaker, Speech


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to.

    Attributes:
        messages: all messages of this turn, for memory.
        output: the agent's result; None when it waits for the client.
        structured: the output is JSON that the client has yet to be given; else it has read it as it was streamed.
        completions: for the message that gives it: what it cost.
    """

    messages: list[ModelMessage]
    output: Any
    waits: bool
    structured: bool = False
    completions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The output as another model is given it."""
        if self.structured:
            return orjson.dumps(self.output).decode()
        return self.output if isinstance(self.output, str) else ""


class Run:
    """Runs an agent at one path of a turn.

    Duties:
        1. say what the model streams: text, thinking, images;
        2. give each call our own id, and keep the answer before its tools run;
        3. say what a call was and how it was settled, each once in a task's life;
        4. keep a tool's result as it comes, with the event that says it.

    Args:
        scope: names this run's checkpoints: empty for the session's agent, the call's id for a sub-agent.
        quiet: say no text (a draft that critics will read first); thinking and tools are still said.
    """

    def __init__(self, turn: RunningTurn, speaker: Speaker, scope: str, *, quiet: bool = False) -> None:
        self.turn = turn
        self.speaker = speaker
        self.scope = scope
        self._quiet = quiet
        self._model = ""
        self._form = OutputForm()
        self._speech: Speech | None = None
        self._group: Group | None = None
        # The request that the model answered last.
        self._call: ModelCall | None = None
        self._calls: dict[str, ToolCallPart] = {}
        self._settled: set[str] = set()
        self._completions: dict[str, Any] | None = None
        self._background: BackgroundResponse  # of `answer`
        self._resuming = False
        self._inner: list[Run] = []
        # Name of a tool → the label of the MCP server that has it.
        self.servers: dict[str, str] = {}

    async def answer(
        self,
        agent: Agent[Any, Any],
        prompt: str | Sequence[UserContent],
        history: Sequence[ModelMessage],
        *,
        model: NamedModel,
        settings: ModelSettings | None = None,
        deps: Any = None,
    ) -> RunResult:
        """Run the agent to its answer, or to where it waits for the client.

        ``settings`` stand above the agent's own.
        """
        self._model = model.name
        self._form = structured_output.form_of(agent)
        kept = self.turn.kept(self._checkpoint)
        mine = await self.turn.offload(memory.load, kept) if kept else []
        answers = sum(isinstance(each, ModelResponse) for each in mine)
        self._background = BackgroundResponse(self.turn, self.scope, self.speaker.agent, model.name, answers)
        if mine and isinstance(mine[-1], ModelResponse):
            if mine[-1].tool_calls:
                self._resuming = True
                self._take_up(mine[-1])
            elif mine[-1].text and not self._form.in_text:
                # The answer was complete; only the end of the turn was lost.
                return RunResult(mine, mine[-1].text, waits=False)
            else:
                # The client has read none of it, and whether it is an answer is for the library to find out, in a run.
                mine.pop()
        # Of an input that ends with something else than a prompt, the history's end is what is asked.
        asked = mine or (not prompt and history and isinstance(history[-1], ModelRequest))
        tasks = LibraryTasks()
        iterating: AbstractAsyncContextManager[LibraryRun[Any, Any]] = agent.iter(
            None if asked else prompt,
            message_history=[*history, *mine],
            conversation_id=tracing.conversation(self.turn.attempt.ref),
            output_type=[agent.output_type, DeferredToolRequests],
            model=model.model,
            model_settings=settings,
            deps=deps,
            capabilities=[tasks],
        )
        async with tasks, iterating as run:
            async for node in run:
                if Agent.is_model_request_node(node):
                    await self._say_answer(node, run)
                elif Agent.is_call_tools_node(node):
                    await self._run_tools(node, run, mine)
        result = run.result
        if result is None:
            raise RuntimeError("the agent's run ended without a result")
        messages = [*mine, *run.new_messages()]
        if isinstance(result.output, DeferredToolRequests):
            return RunResult(messages, None, waits=True)
        if not structured_output.is_structured(self._form, result):
            return RunResult(messages, result.output, waits=False)
        output = structured_output.jsonable(result.output)
        return RunResult(messages, output, waits=False, structured=True, completions=self.completions())

    # ── the model's answer ──

    async def _say_answer(self, node: ModelRequestNode[Any, Any], run: LibraryRun[Any, Any]) -> None:
        room = self.turn.publisher.room
        labels = self.speaker.agent, self.turn.models.label(self._model)
        listener = DeltaListener(self._say_delta, self.turn.publisher.window.seconds)
        with listening(listener), keeping(self._background):
            async with AsyncExitStack() as stack:
                answered = await stack.enter_async_context(
                    self.turn.models.asking(self._model, self.speaker.agent)
                )
                stack.enter_context(metrics.answer_seconds.timing(*labels))
                call = stack.enter_context(
                    noting(self.turn, self.speaker.agent, self.speaker.path, self._model)
                )
                self._call = call
                begun = time.monotonic()
                stream = await stack.enter_async_context(node.stream(run.ctx))
                asked = True
                async for event in stream:
                    if asked:
                        # Before, it may be that nothing but the stream is there.
                        asked = False
                        metrics.first_token_seconds.add(time.monotonic() - begun, *labels)
                        call.first_token_ms = now_ms()
                        self.turn.note_calls()
                        await answered()
                    self._say_event(event)
                    await room()

    async def _say_delta(self, event: PartDeltaEvent) -> None:
        self._say_event(event)
        await self.turn.publisher.room()

    def _say_event(self, event: AgentStreamEvent) -> None:
        if isinstance(event, PartDeltaEvent):
            delta = event.delta
            if isinstance(delta, TextPartDelta | ThinkingPartDelta):
                self._say(delta.content_delta or "", thinking=isinstance(delta, ThinkingPartDelta))
        elif isinstance(event, PartStartEvent):
            # A text part may continue in the same message; anything else begins anew.
            if isinstance(event.part, TextPart | ThinkingPart):
                self._close()
                self._say(event.part.content, thinking=isinstance(event.part, ThinkingPart))
            elif isinstance(event.part, FilePart):
                self._close()
                self.speaker.say("message", "assistant", _image(event.part))
        elif isinstance(event, PartEndEvent) and isinstance(event.part, ThinkingPart):
            self._close()

    def _say(self, text: str, *, thinking: bool) -> None:
        if not text or (not thinking and (self._quiet or self._form.in_text)):
            return
        if self._speech is None:
            self._speech = self.speaker.message("reasoning" if thinking else "message")
        self._speech.delta(text)

    def _close(self, extra: dict[str, Any] | None = None) -> bool:
        speech, self._speech = self._speech, None
        if speech is None:
            return False
        speech.close(extra)
        return True

    # ── its tools ──

    async def _run_tools(
        self, node: CallToolsNode[Any, Any], run: LibraryRun[Any, Any], mine: list[ModelMessage]
    ) -> None:
        response = node.model_response
        if self._resuming:
            self._resuming = False
        else:
            self._forget_tools()
            for part in response.tool_calls:
                part.tool_call_id = new_call_id()
            self._take_up(response)
            kept = await self.turn.offload(memory.dump, [*mine, *run.new_messages()])
            self._keep_answer(response, kept)
            if response.tool_calls:
                # What the tools will do must follow from an answer that is kept.
                await self.turn.publisher.flush()
        async with node.stream(run.ctx) as stream:
            async for event in stream:
                if isinstance(event, FunctionToolResultEvent):
                    self._say_unsettled(event)

    def _take_up(self, response: ModelResponse) -> None:
        self._calls = {
            part.tool_call_id: part for part in response.tool_calls if part.tool_name not in self._form.tools
        }
        self._settled = set()
        ids = list(self._calls)
        self._group = Group(ids, begun=any(map(self.called, ids))) if ids else None

    def _forget_tools(self) -> None:
        """The former answer's results are in the messages that are kept next."""
        for call in self._calls:
            self.turn.forget(f"called:{call}")
            self.turn.forget(f"started:{call}")
            self.turn.forget(f"result:{call}")
            self.turn.forget(f"told:{call}")

    def _keep_answer(self, response: ModelResponse, messages: bytes) -> None:
        """Close the answer's text, count it, and keep the messages up to it: one batch, so a crash repeats none of it."""
        if self._form.in_text and response.tool_calls and response.text and not self._quiet:
            # Beside calls it is no output, but what the model said: now it can be told.
            self._close()
            self._speech = self.speaker.message()
            self._speech.delta(response.text)
        usage = response.usage
        self._completions = {
            "usage": {
                "promptTokens": usage.input_tokens,
                "completionTokens": usage.output_tokens,
                "totalTokens": usage.input_tokens + usage.output_tokens,
            },
            "id": response.provider_response_id or f"chatcmpl-{uuid.uuid4().hex}",
            "model": response.model_name or "",
        }
        if self._close({"completions": self._completions}):
            self._completions = None
        if self.turn.spec.fallback and not self.speaker.path:
            self.turn.keep(ANSWERED_BY, self._model.encode())
        if not self.speaker.path:
            self._note_cut(response)
        models.count(self.turn, self.speaker.agent, self._model, usage, self._call)
        self.turn.keep(self._checkpoint, messages)
        self._background.answered()
        if self._group is not None:
            self.turn.batch.group(self._group.id, len(self._group.ids))

    def _note_cut(self, response: ModelResponse) -> None:
        """An answer that its model did not finish is told as such, if it is the turn's last one."""
        if response.finish_reason in ("length", "content_filter") and not response.tool_calls:
            self.turn.keep(CUT_SHORT, response.finish_reason.encode())
        else:
            self.turn.forget(CUT_SHORT)

    @property
    def _checkpoint(self) -> str:
        return f"messages:{self.scope}" if self.scope else "messages"

    def check_arguments(self, call: str) -> None:
        """See to it that a call's arguments are JSON before anything is done with them.

        The library's reader is more generous: it takes NaN, for one, which no client can read.

        Raises:
            ModelRetry: they are not JSON (RFC 8259), or nested too deeply; says so to the model.
        """
        try:
            deep = too_deep(orjson.loads(self.arguments(call)))
        except orjson.JSONDecodeError as error:
            raise ModelRetry(f"The arguments are not JSON: {error.msg}.") from None
        if deep:
            raise ModelRetry(f"The arguments are nested deeper than {MOST_LEVELS} levels.")

    def arguments(self, call: str) -> str:
        """A call's arguments as the model wrote them, JSON text."""
        return self._calls[call].args_as_json_str()

    @property
    def group(self) -> Group:
        """The calls that are being run."""
        if self._group is None:
            raise RuntimeError("no calls are being run")
        return self._group

    def called(self, call: str) -> bool:
        """Whether the call was said already, by this attempt or an earlier one."""
        return self.turn.kept(f"called:{call}") is not None

    def say_call(self, call: str, message_type: str, data: dict[str, Any], role: str = "assistant") -> None:
        """Say that a call is made."""
        extra = {**self.group.called(), **self.completions()}
        self.turn.keep(f"called:{call}", message_type.encode())
        self.speaker.say(message_type, role, _data(data), extra=extra)

    def completions(self) -> dict[str, Any]:
        """What the answer cost, for the first message that can tell it."""
        told, self._completions = self._completions, None
        return {} if told is None else {"completions": told}

    def settle(
        self,
        call: str,
        message_type: str,
        data: dict[str, Any],
        result: Any,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Say how a call was settled, unless an earlier attempt did, and keep its result with that."""
        self._settled.add(call)
        self.turn.keep(f"result:{call}", pydantic_core.to_json(result))
        if not self._was_told(call):
            self.speaker.say(message_type, "tool", _data(data), extra=extra, group=self.group)

    def result(self, call: str) -> tuple[bool, Any]:
        """Whether the call was settled by an earlier attempt, and its result."""
        kept = self.turn.kept(f"result:{call}")
        if kept is None:
            return False, None
        self._settled.add(call)
        return True, pydantic_core.from_json(kept)

    def started(self, call: str) -> int:
        """How often the call was begun without an outcome that is known."""
        return int(self.turn.kept(f"started:{call}") or 0)

    async def start(self, call: str) -> None:
        """Mark that the call begins now; the mark is kept when this returns.

        Raises:
            LostAttempt: it must not begin: another attempt has the task, or it has ended.
        """
        self.turn.keep(f"started:{call}", b"%d" % (self.started(call) + 1))
        await self.turn.publisher.flush()
        # An agent that goes on after its turn was cancelled gets no further.
        await self.turn.publisher.room()

    def not_started(self, call: str) -> None:
        """Take the mark back: the call had no effect."""
        self.turn.forget(f"started:{call}")

    def question(self, call: str) -> str:
        """Names the question whether to run a call again that was lost: another one each time it is lost."""
        return f"{call}_{self.started(call)}"

    def inner(self, call: str, agent: str) -> Run:
        """A sub-agent's run, under a path of its own: an agent called twice in one answer has two."""
        name = self._calls[call].tool_name
        place = [each for each, part in self._calls.items() if part.tool_name == name].index(call)
        # No agent's name has this character, so no other agent's path can be the same.
        step = f"{agent}~{place + 1}" if place else agent
        path = f"{self.speaker.path}/{step}" if self.speaker.path else step
        run = Run(self.turn, self.turn.speaker(path, agent), call)
        self._inner.append(run)
        return run

    def draft(self, number: int, *, quiet: bool) -> Run:
        """A run of the same agent for one draft of its answer."""
        run = Run(self.turn, self.speaker, f"{self.scope}:draft{number}", quiet=quiet)
        self._inner.append(run)
        return run

    async def abandon(self) -> None:
        """Bring to an end what a run that failed has begun: the turn goes on without it.

        What it asked the client is taken back, and the client is told.
        """
        for run in self._inner:
            await run.abandon()
        if self._speech is not None:
            self._speech.break_off()
            self._speech = None
        named = [name for call in self._calls for name in (call, self.question(call))]
        asked = [name for name in named if self.turn.asked(name)]
        answered = await self.turn.withdraw(asked) if asked else set()
        for call in self._calls:
            if call in self._settled or self.turn.kept(f"result:{call}") or self._was_told(call):
                continue
            # The answer to a function's call was said when it came; a consent settles nothing.
            if call in answered and self.called(call):
                continue
            if self.called(call) or call in asked or self.group.begun:
                self._say_settled(call, WITHDRAWN)

    def answered(self, call: str) -> None:
        """The client's answer was said when it came; nothing is left to say about the call."""
        self._settled.add(call)

    def settle_withdrawn(self, call: str) -> None:
        """An earlier attempt took the call back: say so, unless it did."""
        if not self._was_told(call):
            self._say_settled(call, WITHDRAWN)
        self._settled.add(call)

    def _was_told(self, call: str) -> bool:
        """Whether an outcome was said for which no toolset spoke."""
        return self.turn.kept(f"told:{call}") is not None

    def _say_unsettled(self, event: FunctionToolResultEvent) -> None:
        """A call that never reached its tool: unknown name, arguments that do not fit, a tool that asks again."""
        call = event.tool_call_id
        if call in self._settled or call not in self._calls or self._was_told(call):
            return
        self._say_settled(call, event.part.model_response_str())

    def _say_settled(self, call: str, text: str) -> None:
        """Say how a call was settled for which no toolset spoke."""
        name = self._calls[call].tool_name
        about: dict[str, Any] = {"call_id": call, "name": name}
        kind = (self.turn.kept(f"called:{call}") or b"").decode()
        if not kind:
            kind = "mcp_call" if name in self.servers else "plugin_call"
            self.say_call(call, kind, {**about, **self._server(name), "arguments": self.arguments(call)})
        if kind == "component_call":
            about = {"dispatchId": call, "agentId": name, "name": name}
            about["content"] = [{"type": "text", "message": text}]
        else:
            about |= {**self._server(name), ("error" if kind == "mcp_call" else "output"): text}
        self._settled.add(call)
        self.turn.keep(f"told:{call}", b"1")
        self.speaker.say(f"{kind}_output", "tool", _data(about), group=self.group)
        self.turn.publisher.kick()

    def _server(self, tool: str) -> dict[str, Any]:
        return {"server_label": self.servers[tool]} if tool in self.servers else {}


def _data(data: dict[str, Any]) -> dict[str, Any]:
    return {"type": "data", "data": data}


def _image(part: FilePart) -> dict[str, Any]:
    return {"type": "image", "image_url": part.content.data_uri}
