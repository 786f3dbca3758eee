"""The protocol reference says what the server does."""

from __future__ import annotations

import re
from collections import Counter

from docs.capture import DOCUMENT, Names, document
from tests.conformance.checker import RULES

HOW = "docs/protocol.md is not what the server answers: run `make protocol` and read what changed"

_ID = "3d1f8d0e-7d2c-4f0e-9f63-0a3b6f0f3c11"


async def test_the_reference_is_what_is_captured() -> None:
    """Capturing the reference anew gives exactly what is committed."""
    captured, committed = (await document()).splitlines(), DOCUMENT.read_text().splitlines()
    # A whole document would drown the difference.
    pairs = zip(captured, committed, strict=False)
    assert [pair for pair in pairs if pair[0] != pair[1]][:3] == [], HOW
    assert len(captured) == len(committed), HOW


def test_names_stay_the_same_and_tell_ids_apart() -> None:
    """An id has one name wherever it stands; a turn's response and task have the same number; times are fixed."""
    other = _ID.replace("3", "4")
    text = f'response_{_ID} msg_{_ID} msg_{other} {_ID} {"ab" * 16} 1795176543624000-12 "created_at":1795176543 msg_{_ID}'
    named = 'response_1 msg_1 msg_2 task_1 session_1 1700000000000000-12 "created_at":1700000000 msg_1'
    assert Names().given(text) == named


def test_the_reference_holds_no_id_of_a_run() -> None:
    """What differs from run to run was replaced: no uuid, no key."""
    text = DOCUMENT.read_text()
    assert not re.search(r"[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-|sk-[0-9a-f]{8}", text)


def test_the_reference_shows_every_message_type_of_ours() -> None:
    """Each type that an agent of ours can say stands in a captured stream."""
    shown = Counter(re.findall(r'"type":"([A-Za-z_]+)"', DOCUMENT.read_text()))
    wanted = {
        "message",
        "reasoning",
        "plugin_call",
        "plugin_call_output",
        "function_call",
        "function_call_output",
    }
    wanted |= {"mcp_approval_request", "mcp_approval_response", "component_call", "component_call_output"}
    wanted |= {"mcp_list_tools", "mcp_call", "mcp_call_output", "error"}
    wanted |= {"text", "image", "data", "audio", "file", "video", "refusal"}
    wanted |= {
        "taskStatus",
        "contentList",
        "toolCalls",
        "functionCall",
        "toolReturn",
        "dispatch",
        "reflection",
    }
    wanted |= {"reasoningContent", "imageUrl", "PLUGIN_CALL", "FUNCTION_CALL_OUTPUT"}
    assert wanted - shown.keys() == set()
    assert RULES.keys() == {"agentscope", "java", "liteagent"}, "a wire was added: the reference needs it too"
