"""Requests of AG-UI's clients."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.agui_events import events_of

if TYPE_CHECKING:
    from tests.support.client import Client


class Talk:
    """A thread as a client has it: all of its messages go with each request."""

    def __init__(self, client: Client, thread: str = "", *, old: bool = False, path: str = "/ag-ui") -> None:
        self.client = client
        self.thread = thread or uuid.uuid4().hex
        self.path = path
        self.messages: list[dict[str, Any]] = []
        self._old = old

    def body(self, **more: Any) -> dict[str, Any]:
        """A request for a new run."""
        version = {} if self._old else {"protocolVersion": "1.0"}
        return {
            "threadId": self.thread,
            "runId": str(uuid.uuid4()),
            "messages": self.messages,
            **version,
            **more,
        }

    def say(self, content: Any) -> Talk:
        """The user says something."""
        self.messages.append({"id": uuid.uuid4().hex, "role": "user", "content": content})
        return self

    def answer(self, call: str, content: Any = "21", **more: Any) -> Talk:
        """The client has a function's result."""
        self.messages.append(
            {"id": uuid.uuid4().hex, "role": "tool", "toolCallId": call, "content": content, **more}
        )
        return self

    async def run(self, text: str = "", **more: Any) -> list[dict[str, Any]]:
        """The events of a run."""
        if text:
            self.say(text)
        answer = await self.client.http.post(self.path, json=self.body(**more))
        assert answer.status_code == 200, answer.text
        events = events_of(answer.content)
        for event in events:
            if event["type"] == "TEXT_MESSAGE_START":
                self.messages.append({"id": event["messageId"], "role": "assistant", "content": "said"})
        return events

    async def connect(self, client: Client | None = None) -> list[dict[str, Any]]:
        """The events that who connects gets."""
        answer = await (client or self.client).http.post(f"{self.path}/connect", json=self.body(messages=[]))
        assert answer.status_code == 200, answer.text
        return events_of(answer.content)


@pytest.fixture
def talk(client: Client) -> Talk:
    """A new thread."""
    return Talk(client)


def calls_in(events: list[dict[str, Any]]) -> list[str]:
    """The ids of the calls that a run has told."""
    return [event["toolCallId"] for event in events if event["type"] == "TOOL_CALL_START"]
