"""The response as an object: it repeats what was asked, and has every field that clients require.

What a request asked stands beside its user's message in the log (`ECHO` of an entry's ``extra``), so that any front end tells
it again, also in the further responses of the same turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping

    from turnstream.shared.session.entry import Entry

# Under this name, in the `extra` of the user's message.
ECHO = "openai"

# A response of which nothing is known but that it is there. Open Responses requires all of these.
_DEFAULTS: dict[str, Any] = {
    "background": False,
    "conversation": None,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}

# The tier tells how a request was served, and there is one.
ECHOED = (*(name for name in _DEFAULTS if name != "service_tier"), "model")


def resource(
    echo: Mapping[str, Any],
    *,
    name: str,
    created_at: int,
    status: str,
    output: list[dict[str, Any]],
    completed_at: int | None = None,
    error: dict[str, Any] | None = None,
    incomplete_details: dict[str, Any] | None = None,
    usage: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The response object."""
    return {
        "id": name,
        "object": "response",
        "created_at": created_at,
        "completed_at": completed_at if status == "completed" else None,
        "status": status,
        "error": error,
        "incomplete_details": incomplete_details,
        "output": output,
        "usage": None if usage is None else _usage(usage),
        **_DEFAULTS,
        **echo,
    }


def _usage(usage: Mapping[str, int]) -> dict[str, Any]:
    given, made = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    return {
        "input_tokens": given,
        "input_tokens_details": {
            name: usage.get(name, 0) for name in ("cached_tokens", "cache_write_tokens")
        },
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": usage.get("reasoning_tokens", 0)},
        "total_tokens": usage.get("total_tokens", given + made),
    }


def echo_of(entry: Entry | None) -> dict[str, Any]:
    """What the request asked whose user's message this is; nothing of one that came through another protocol."""
    if entry is None or not entry.extra:
        return {}
    told = orjson.loads(entry.extra).get(ECHO)
    return told if isinstance(told, dict) else {}
