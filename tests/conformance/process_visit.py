"""One visit of an Agent API client: ``/process`` asked once in each of its ways, and what came back."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any

from tests.conformance.visit import Answer, served
from tests.support.client import asked, calls_of
from turnstream.shared.agents.config import AgentSpec

if TYPE_CHECKING:
    from tests.support.client import Client

HELLO = {"role": "user", "type": "message", "content": [{"type": "text", "text": "hello there"}]}

# The documentation's own example requests.
EXAMPLE = {
    "input": [
        {"role": "user", "content": [{"type": "text", "text": "Describe this image"}], "type": "message"}
    ],
    "stream": True,
    "model": "gpt-4-vision",
}
JAVA_EXAMPLE = {
    "input": [{"role": "user", "content": [{"type": "text", "text": "描述这张图片"}], "type": "MESSAGE"}],
    "stream": True,
    "model": "gpt-4-vision",
}
# Every field of a Java request, in its spelling; null where nothing is asked for.
JAVA_WHOLE = {
    "input": [
        {
            "id": "msg_1",
            "type": "USER",
            "role": None,
            "status": "created",
            "object": "message",
            "sequenceNumber": None,
            "error": None,
            "content": [
                {"type": "text", "text": "/tokens 2", "object": "content", "msgId": "msg_1", "delta": False},
                {"type": "image", "imageUrl": "https://example.com/a.png", "index": 1},
            ],
        }
    ],
    "stream": True,
    "model": None,
    "topP": None,
    "temperature": None,
    "frequencyPenalty": None,
    "presencePenalty": None,
    "maxTokens": None,
    "stop": None,
    "n": 1,
    "seed": None,
    "tools": None,
    "userId": "user-1",
    "sessionId": "java-1",
    "responseId": "java-response-1",
}


@cache
def process_visit() -> dict[str, Answer]:
    """The answers, by what was asked."""
    return asyncio.run(_visit())


async def _visit() -> dict[str, Answer]:
    more = (
        AgentSpec(name="witness", python="tests.support.coded:witness", allow_overrides=True),
        AgentSpec(name="rejecting", model="demo", busy="reject"),
    )
    async with served(*more) as (client, witness, rejecting):
        visitor = _Visitor(client)
        await visitor.everything()
        await visitor.example(witness)
        await visitor.busy(rejecting)
        return visitor.answers


class _Visitor:
    def __init__(self, client: Client) -> None:
        self._client = client
        self.answers: dict[str, Answer] = {}

    async def everything(self) -> None:
        for name, body in {
            "stream": {"input": [HELLO], "session_id": "s1"},
            "whole": {"input": [HELLO], "session_id": "s1", "stream": False},
            "no session": {"input": [HELLO]},
            "no session, once more": {"input": [HELLO]},
            "id": {"input": [HELLO], "session_id": "s1", "id": "mine.1"},
            "response_id": {"input": [HELLO], "session_id": "s1", "response_id": "mine.2"},
            "id and response_id": {
                "input": [HELLO],
                "session_id": "s1",
                "id": "mine.3",
                "response_id": "mine.4",
            },
            "id, once more": {"input": [HELLO], "session_id": "s1", "id": "mine.1"},
            "unknown fields": {"input": [HELLO | {"x": 1}], "session_id": "s1", "later": {"a": None}},
            "bare string": {"input": [{"role": "user", "content": "hello there"}], "session_id": "s1"},
            "wrong field": {"input": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "failure": {"input": [{"role": "user", "content": "/fail on purpose"}], "session_id": "s1"},
            "bad session id": {"input": [HELLO], "session_id": "a b"},
            "java request": JAVA_WHOLE,
            "reconnect to nothing": {"reconnect": True, "session_id": "s1"},
        }.items():
            await self._ask(name, json=body)
        java = {"input": [HELLO], "session_id": "s1"}
        await self._ask("java by query", json=java, params={"dialect": "java"})
        await self._ask("java by accept", json=java, headers={"Accept": "text/event-stream;dialect=java"})
        cursor = self.answers["id"].frames[3].id
        await self._ask(
            "resume",
            json={"input": [HELLO], "session_id": "s1", "id": "mine.1"},
            headers={"Last-Event-ID": cursor},
        )
        for ways in ("callback", "process", "approval through process", "several through process"):
            await self._answered(ways)
        await self._reconnected()
        await self._canceled()

    async def example(self, client: Client) -> None:
        """The documentation's examples, word by word, to an agent that lets its clients choose a model."""
        mine, self._client = self._client, client
        await self._ask("example", json=EXAMPLE)
        await self._ask("java example", json=JAVA_EXAMPLE)
        self._client = mine

    async def busy(self, client: Client) -> None:
        mine, self._client = self._client, client
        async with client.process("s-busy", "/call f {}") as stream:
            await stream.until(calls_of)
            await self._ask("busy", json={"input": [HELLO], "session_id": "s-busy", "id": "mine.5"})
            await client.stop("s-busy")
            await stream.all()
        self._client = mine

    async def _answered(self, way: str) -> None:
        client, session = self._client, f"s-{way.replace(' ', '-')}"
        command = {"approval through process": "/approve files", "several through process": "/calls 2"}
        whole = asked(session, command.get(way, "/call f {}"), stream=False)
        await self._ask(f"{way}: parked", json=whole)
        calls = [
            message["content"][0]["data"]
            for message in self.answers[f"{way}: parked"].json["output"]
            if message["type"] in ("function_call", "mcp_approval_request")
        ]
        if way == "callback":
            given = await client.callback(session, calls[0]["call_id"], {"ok": True})
            assert given.status_code == 200
            response = self.answers[f"{way}: parked"].json["id"]
            await self._ask(
                f"{way}: answered", "GET", params={"session_id": session, "response_id": response}
            )
            return
        if way.startswith("approval"):
            data = {"approve": False, "approval_request_id": calls[0]["id"], "id": "mine", "reason": "no"}
            content = [{"type": "data", "data": data}]
            message = {"role": "user", "type": "mcp_approval_response", "content": content}
        else:
            content = [
                {"type": "data", "data": {"call_id": call["call_id"], "output": '{"ok": true}'}}
                for call in calls
            ]
            message = {"role": "tool", "type": "function_call_output", "content": content}
        await self._ask(f"{way}: answered", json={"session_id": session, "input": [message]})

    async def _reconnected(self) -> None:
        client = self._client
        async with client.process("s-reconnect", "/call f {}") as stream:
            await stream.until(calls_of)
            body = {"reconnect": True, "session_id": "s-reconnect"}
            async with client.open("POST", "/process", json=body) as again:
                frames = await again.until(calls_of)
                call = calls_of(frames)[0]["call_id"]
                await client.callback("s-reconnect", call, "done")
                await again.all()
            await stream.all()
        self.answers["reconnected"] = Answer(200, "", again.raw)
        self.answers["to be reconnected"] = Answer(200, "", stream.raw)

    async def _canceled(self) -> None:
        client = self._client
        async with client.process("s-stop", "/tokens 1000 10") as stream:
            await stream.until(lambda frames: len(frames) >= 8)
            await client.stop("s-stop")
            await stream.all()
        self.answers["canceled"] = Answer(200, "", stream.raw)

    async def _ask(self, name: str, method: str = "POST", **given: Any) -> None:
        answer = await self._client.http.request(method, "/process", **given)
        self.answers[name] = Answer(
            answer.status_code, answer.headers.get("content-type", ""), answer.content
        )
