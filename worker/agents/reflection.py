"""Reflection: critics read a draft before the client does, and the agent tries again until it passes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import BaseModel, Field

from turnstream.shared import metrics, tracing
from turnstream.worker.agents import memory
from turnstream.worker.agents.agent_run import RunResult
from turnstream.worker.agents.library_tasks import LibraryTasks
from turnstream.worker.agents.model_gate import noting
from turnstream.worker.agents.models import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai.messages import ModelMessage, UserContent

    from turnstream.worker.agents.agent_run import Run
    from turnstream.worker.agents.registry import ConfiguredAgent


class Verdict(BaseModel):
    """One critic's opinion of a draft."""

    score: int = Field(ge=0, le=10, description="10 is flawless.")
    description: str = Field("", description="What is good, and what must be better.")


class Reflection:
    """Runs an agent and its critics in rounds.

    Duties:
        1. have the agent draft an answer, unheard unless ``stream_drafts`` is set;
        2. have every critic score it, and show the client what they said;
        3. below ``pass_score`` have the agent try again with their remarks, ``max_count`` rounds at most;
        4. say the draft that passed, or the best one;
        5. keep each round as it ends, so that a crash repeats no round that the client has seen.

    A critic that fails ends the turn: a draft that nobody judged must not pass for one that was.
    """

    def __init__(self, agent: ConfiguredAgent, critics: Sequence[ConfiguredAgent]) -> None:
        self._agent = agent
        self._critics = critics

    async def answer(
        self, run: Run, prompt: str | Sequence[UserContent], history: Sequence[ModelMessage]
    ) -> RunResult:
        """The best answer, said; or where the draft waits for the client."""
        spec = self._agent.spec
        state = self._load(run)
        asked = memory.last_prompt(prompt, history)
        while not state["done"]:
            rounds = int(state["rounds"]) + 1
            drafting = run.draft(rounds, quiet=not spec.stream_drafts)
            draft = await self._agent.draft(drafting, _with_remarks(prompt, state["remarks"]), history)
            if draft.waits:
                return draft
            text = draft.text
            verdicts = await self._judge(run, asked, text)
            score = min(verdict.score for verdict in verdicts)
            passed = score >= spec.pass_score
            self._show(run, asked, text, verdicts, passed=passed, count=rounds)
            if state["best"] is None or score > state["best_score"]:
                completions = draft.completions if draft.structured else drafting.completions()
                state.update(
                    best=text, best_score=score, completions=completions, structured=draft.structured
                )
            state["rounds"] = rounds
            state["remarks"] = [*state["remarks"], *(_remark(text, verdict) for verdict in verdicts)][-6:]
            state["done"] = passed or rounds >= spec.max_count
            seen = draft.structured or (spec.stream_drafts and state["best"] == text)
            if state["done"] and not seen:
                self._say(run, state)
            run.turn.keep(f"reflection:{run.scope}", orjson.dumps(state))
            await run.turn.publisher.flush()
        best = str(state["best"])
        messages = memory.exchange(prompt, best)
        if state.get("structured"):
            output = orjson.loads(best)
            completions = state["completions"]
            return RunResult(messages, output, waits=False, structured=True, completions=completions)
        return RunResult(messages, best, waits=False)

    def _say(self, run: Run, state: dict[str, Any]) -> None:
        speech = run.speaker.message()
        speech.delta(str(state["best"]))
        speech.close(state["completions"])

    def _load(self, run: Run) -> dict[str, Any]:
        kept = run.turn.kept(f"reflection:{run.scope}")
        if kept is not None:
            state: dict[str, Any] = orjson.loads(kept)
            return state
        return {
            "rounds": 0,
            "remarks": [],
            "best": None,
            "best_score": 0,
            "completions": {},
            "done": False,
        }

    async def _judge(self, run: Run, prompt: str | Sequence[UserContent], draft: str) -> list[Verdict]:
        """Every critic's verdict."""
        question = f"The user asked:\n{memory.plain_text(prompt)}\n\nThe draft answer to judge:\n{draft}"
        judged = await asyncio.gather(
            *(self._ask(run, critic, question) for critic in self._critics), return_exceptions=True
        )
        # All are awaited before the first failure is raised, so that none goes on behind the turn's back.
        for each in judged:
            if isinstance(each, BaseException):
                raise each
        return [each for each in judged if isinstance(each, Verdict)]

    async def _ask(self, run: Run, critic: ConfiguredAgent, question: str) -> Verdict:
        try:
            model = run.turn.models.choose(critic.chain)
            async with run.turn.models.asking(model.name, critic.spec.name) as answered:
                deps = await critic.deps()
                with (
                    metrics.answer_seconds.timing(critic.spec.name, run.turn.models.label(model.name)),
                    noting(run.turn, critic.spec.name, run.speaker.path, model.name) as call,
                ):
                    async with LibraryTasks() as tasks:
                        result = await critic.library_agent.run(
                            question,
                            output_type=Verdict,
                            deps=deps,
                            model=model.model,
                            conversation_id=tracing.conversation(run.turn.attempt.ref),
                            capabilities=[tasks],
                        )
                await answered()
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            # Nobody else expects what is no Exception.
            raise RuntimeError(f"the critic {critic.spec.name!r} raised {type(error).__name__}") from error
        count(run.turn, critic.spec.name, model.name, result.usage, call)
        verdict: Verdict = result.output
        return verdict

    def _show(
        self,
        run: Run,
        prompt: str | Sequence[UserContent],
        draft: str,
        verdicts: Sequence[Verdict],
        *,
        passed: bool,
        count: int,
    ) -> None:
        asked = [{"type": "text", "message": memory.plain_text(prompt)}]
        spec = self._agent.spec
        verdict = {
            "isPass": passed,
            "agentId": spec.name,
            "name": spec.name,
            "messageScore": {
                "content": asked,
                "contentList": asked,
                "messageType": "text",
                "message": draft,
                "reflectScoreList": [verdict.model_dump() for verdict in verdicts],
            },
            "passScore": spec.pass_score,
            "score": min(verdict.score for verdict in verdicts),
            "count": count,
            "maxCount": spec.max_count,
        }
        run.speaker.say(
            "component_call_output",
            "tool",
            {"type": "data", "data": {"name": "reflection", "output": verdict}},
        )


def _remark(draft: str, verdict: Verdict) -> str:
    return f"Draft: {draft}\nScore: {verdict.score} of 10. {verdict.description}"


def _with_remarks(prompt: str | Sequence[UserContent], remarks: Sequence[str]) -> str | Sequence[UserContent]:
    if not remarks:
        return prompt
    words = "\n\nYour earlier drafts did not pass. Write a better one.\n\n" + "\n\n".join(remarks)
    return prompt + words if isinstance(prompt, str) else [*prompt, words]
