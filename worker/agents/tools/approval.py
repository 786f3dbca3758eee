"""Consent: a tool that a person must agree to, asked for through the client and answered by ``/callback``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnstream.worker.turn import WITHDRAWN

if TYPE_CHECKING:
    from turnstream.worker.agents.agent_run import Run

_DENIED = "The tool call was denied."


def decided(
    run: Run, name: str, call: str, server_label: str, *, question: str = "", reason: str | None = None
) -> Any:
    """The client's decision; None: it was asked, now or before. A no, where it cannot be asked, or its question was taken back. Otherwise as `ask`."""
    decision = run.turn.results.get(question or call)
    if decision is None and run.turn.withdrawn(question or call):
        return {"approve": False, "reason": WITHDRAWN}
    if decision is None and not run.turn.approves(name):
        return {"approve": False, "reason": "This client cannot be asked."}
    if decision is None:
        ask(run, name, call, server_label, question=question, reason=reason)
    return decision


def ask(
    run: Run, name: str, call: str, server_label: str, *, question: str = "", reason: str | None = None
) -> None:
    """Ask the client for consent, once in a task's life; ``server_label`` names the MCP server, or the agent.

    ``question`` is what the answer refers to, where that is not the call itself; ``reason`` why it is asked.
    """
    turn, question = run.turn, question or call
    if turn.asked(question):
        return
    data = {"id": question, "name": name, "server_label": server_label, "arguments": run.arguments(call)}
    if reason:
        data["reason"] = reason
    turn.ask(question, {"kind": "approval", "name": name, "path": run.speaker.path})
    run.speaker.say(
        "mcp_approval_request", "assistant", {"type": "data", "data": data}, extra=run.completions()
    )


def approves(decision: Any) -> bool:
    """Whether the answer is a yes."""
    return decision is True or (isinstance(decision, dict) and decision.get("approve") is True)


def denial(decision: Any) -> str:
    """What the model is told of a no."""
    reason = decision.get("reason") if isinstance(decision, dict) else None
    return f"{_DENIED} {reason}" if reason else _DENIED
