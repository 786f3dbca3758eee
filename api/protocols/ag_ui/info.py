"""What agents can do, as AG-UI says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnstream.shared.version import VERSION

if TYPE_CHECKING:
    from turnstream.api.access.auth import Caller
    from turnstream.shared.agents.config import AgentSpec

Json = dict[str, Any]


def info_of(caller: Caller) -> Json:
    """The agents of a key."""
    specs = {spec.name: spec for spec in (caller.spec, *caller.agents)}
    return {
        "version": VERSION,
        "agents": {
            name: {
                "name": name,
                "description": spec.description,
                "className": "HttpAgent",
                "capabilities": _capabilities(spec),
            }
            for name, spec in specs.items()
        },
        "mode": "sse",
        "audioFileTranscriptionEnabled": False,
        "telemetryDisabled": True,
    }


def _capabilities(spec: AgentSpec) -> Json:
    can: Json = {
        "identity": {"name": spec.name, "type": "turnstream"},
        "transport": {"streaming": True},
        "tools": {
            "supported": True,
            "parallelCalls": True,
            "clientProvided": "tools" in spec.allow_overrides,
        },
        "output": {"structuredOutput": spec.output_schema is not None},
        "state": {"snapshots": False, "deltas": False, "persistentState": False},
        "reasoning": {"supported": True, "streaming": True},
        "multimodal": {"input": {"image": spec.images}},
        "humanInTheLoop": {
            "supported": True,
            "approvals": True,
            "interrupts": True,
            "approveWithEdits": False,
        },
    }
    if spec.subagents:
        can["multiAgent"] = {
            "supported": True,
            "delegation": True,
            "subagents": [{"name": name} for name in spec.subagents],
        }
    return can
