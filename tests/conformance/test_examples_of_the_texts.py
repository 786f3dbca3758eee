"""The example requests of the four editions of the Agent API protocol, byte for byte, to a server as installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.client import terminal

if TYPE_CHECKING:
    from tests.support.client import Client

# As each edition prints it: the newest, the Java edition, the two older ones.
NEWEST = """{
  "input": [{
    "role": "user",
    "content": [{"type": "text", "text": "Describe this image"}],
    "type": "message"
  }],
  "stream": true,
  "model": "gpt-4-vision"
}"""
JAVA = """{
  "input": [{
    "role": "user",
    "content": [{"type": "text", "text": "描述这张图片"}],
    "type": "MESSAGE"
  }],
  "stream": true,
  "model": "gpt-4-vision"
}"""
OLDER = """{
  "input": [{
    "role": "user",
    "content": [{"type": "text", "text": "Describe this image"}],
    "type": "message"
  }],
  "stream": true,
  "model": "gpt-4-vision"
}"""
OLDER_CHINESE = """{
  "input": [{
    "role": "user",
    "content": [{"type": "text", "text": "描述这张图片"}],
    "type": "message"
  }],
  "stream": true,
  "model": "gpt-4-vision"
}"""


@pytest.mark.parametrize("dialect", ["agentscope", "java"])
@pytest.mark.parametrize(
    "body", [NEWEST, JAVA, OLDER, OLDER_CHINESE], ids=["newest", "java", "older", "older_chinese"]
)
async def test_an_editions_own_example_is_answered(client: Client, body: str, dialect: str) -> None:
    """It names a model, which is the agent's to choose: the response says that it was not applied."""
    async with client.open(
        "POST",
        "/process",
        content=body.encode(),
        params={"dialect": dialect},
        headers={"Content-Type": "application/json"},
    ) as stream:
        assert stream.response.status_code == 200, await stream.response.aread()
        event = terminal(await stream.all())
    assert event is not None
    assert event["status"] == "completed"
    assert event["metadata"] == {"ignored": ["model"]}
    text = "描述这张图片" if "描述" in body else "Describe this image"
    assert event["output"][-1]["content"][0]["text"] == f"You said: {text}"


async def test_strict_java_says_only_what_was_published(client: Client) -> None:
    """Asked for by query or by `Accept`; a strict enumeration reads every event of a turn that thinks."""
    types = "CHUNK MESSAGE SYSTEM USER ASSISTANT FUNCTION_CALL FUNCTION_CALL_OUTPUT PLUGIN_CALL PLUGIN_CALL_OUTPUT "
    types += "COMPONENT_CALL COMPONENT_CALL_OUTPUT MCP_LIST_TOOLS MCP_APPROVAL_REQUEST MCP_TOOL_CALL "
    types += "MCP_APPROVAL_RESPONSE HEARTBEAT ERROR"
    statuses = {"created", "in_progress", "completed", "canceled", "failed", "rejected", "unknown"}
    body = {"session_id": "s1", "id": "t1", "input": [{"role": "user", "content": "/think"}]}
    seen = []
    for given in (
        {"params": {"dialect": "java", "strict": "001"}},
        {"headers": {"Accept": "text/event-stream;dialect=java;strict=001"}},
    ):
        async with client.open("POST", "/process", json=body, **given) as stream:
            assert stream.response.status_code == 200
            seen.append([frame.raw for frame in await stream.all()])
        for frame in stream.frames:
            assert frame.data["status"] in statuses
            if frame.data["object"] == "message":
                assert frame.data["type"] in types.split()
    assert seen[0] == seen[1]
    whole = await client.http.post(
        "/process", json=body | {"stream": False}, params={"dialect": "java", "strict": "001"}
    )
    assert whole.json()["output"][0]["type"] == "MESSAGE"
    for wrong in ({"strict": "001"}, {"dialect": "java", "strict": "2"}):
        assert (await client.http.post("/process", json=body, params=wrong)).status_code == 400
