"""One conversation, from the client's side."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from turnstream.client.following import AsyncFollowing
from turnstream.client.reply import AsyncReply
from turnstream.shared.protocol import AgentRequest, Content, Message, MessageType, Role, explain
from turnstream.shared.protocol.content import part_of

if TYPE_CHECKING:
    from turnstream.client.calls import Functions
    from turnstream.client.connection import Connection

Said: TypeAlias = (
    "str | Message | Content | dict[str, Any] | Sequence[str | Content | dict[str, Any] | Message]"
)
"""What a user says: a text, parts of one message (texts and images), or whole messages (objects with a ``role``)."""

RESPONSE_PREFIX = "response_"
_LITEAGENT = "/liteAgent/v1"


class Remembered(BaseModel):
    """One thing that was said in a session, as its history has it.

    Attributes:
        task: the turn it belongs to.
        role: who said it: ``user``, ``assistant``, ``tool``, ``subagent``, ``reflection`` …
        type: ``text``, ``contentList``, ``toolCalls``, ``toolReturn``, ``imageUrl``, ``dispatch`` …
        content: what ``type`` says: a text, an object or a list of objects.
        created: when.
        agent: the sub-agent that said it; None for the agent itself.
    """

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    task: str = Field(alias="taskId")
    role: str
    type: str
    content: Any
    created: datetime = Field(alias="createTime")
    agent: str | None = Field(None, alias="agentId")

    @field_validator("created", mode="before")
    @classmethod
    def _zone(cls, value: object) -> object:
        """Zones come as +0800, which ISO 8601 allows and many readers do not."""
        if isinstance(value, str) and len(value) > 5 and value[-5] in "+-" and value[-3] != ":":
            return f"{value[:-2]}:{value[-2:]}"
        return value

    @property
    def text(self) -> str:
        """The text of it; empty when it is something else."""
        if isinstance(self.content, str):
            return self.content if self.type in ("text", "reasoningContent") else ""
        if self.type != "contentList" or not isinstance(self.content, list):
            return ""
        parts = [part for part in self.content if isinstance(part, dict)]
        return "".join(str(part.get("message", "")) for part in parts if part.get("type") == "text")


_HISTORY = TypeAdapter(list[Remembered])


class AsyncSession:
    """One conversation. The server keeps it for as long as it is used, a day longer, or as an operator said.

    Attributes:
        id: its name; the same key finds it again under it.
    """

    def __init__(self, connection: Connection, functions: Functions, session: str, user: str | None) -> None:
        self.id = session
        self._connection = connection
        self._functions = functions
        self._user = user

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} at {self._connection.address}>"

    def chat(self, said: Said, *, id: str | None = None, **settings: Any) -> AsyncReply:  # noqa: A002 - the field's name
        """Say something; the turn begins when the reply is first looked at.

        Args:
            said: what the user says.
            id: names the turn, so that it can be found again; a known one is followed, not begun anew. Said with
                something else, the server refuses it (``idempotency_mismatch``).
            settings: other fields of the request (``metadata``, ``tools``, ``temperature`` …), where the
                agent allows them.

        Raises:
            ValueError: a setting, or what was said, cannot be; the text names the field.
        """
        response = id or f"{RESPONSE_PREFIX}{uuid.uuid4()}"
        try:
            request = AgentRequest(
                input=_messages(said),
                session_id=self.id,
                id=response,
                user_id=self._user,
                stream=True,
                **settings,
            )
        except ValidationError as error:
            raise ValueError(explain(error)) from None
        body = request.model_dump_json(exclude_none=True).encode()
        following = AsyncFollowing(self._connection, self.id, response, body=body, user=self._user)
        return AsyncReply(self, response, following, self._functions, known=id is not None)

    def follow(self, id: str, *, cursor: str = "") -> AsyncReply:  # noqa: A002
        """The reply of a turn that was begun before, by whomever; after ``cursor`` if it is given.

        Calls that still wait for an answer are answered by the client's functions.
        """
        following = AsyncFollowing(self._connection, self.id, id, user=self._user, cursor=cursor)
        return AsyncReply(self, id, following, self._functions, known=True)

    def watch(self, *, cursor: str = "") -> AsyncFollowing:
        """The events of all turns of the session, from its beginning or after ``cursor``, for ever.

        Iterate over it; its ``cursor`` says how far it has come, ``close`` ends it.

        Raises:
            NotFound: the session is unknown; it begins with its first turn.
            Others: as iterating over a reply.
        """
        return AsyncFollowing(self._connection, self.id, user=self._user, cursor=cursor)

    async def answer(self, call: str, result: Any) -> None:
        """Answer a call of the agent by its id; a repeat changes nothing.

        Raises:
            NotFound, Conflict, Gone: the call is unknown, its turn has ended, or its deadline has passed.
            Others: as iterating over a reply.
        """
        await self._call("POST", "callback", json={"id": call, "result": result})

    async def stop(self, id: str | None = None) -> None:  # noqa: A002
        """End one turn, or all of the session. When this returns they have ended.

        Raises:
            NotFound: the session or the turn is unknown.
            Others: as iterating over a reply.
        """
        await self._call("POST", "stop", **({"taskId": id.removeprefix(RESPONSE_PREFIX)} if id else {}))

    async def history(self) -> list[Remembered]:
        """What was said in the session so far, by everybody, in order.

        Raises:
            NotFound: the session is unknown.
            Others: as iterating over a reply.
        """
        return _HISTORY.validate_python(await self._call("GET", "history"))

    async def clear(self) -> None:
        """End what runs, then forget everything that was said; the session can be used again.

        Raises:
            As `stop`.
        """
        # One that comes twice, the second time late, must not clear what was said since.
        await self._call("POST", "clear", key=str(uuid.uuid4()))

    async def _call(self, method: str, what: str, *, json: Any = None, key: str = "", **params: str) -> Any:
        given: dict[str, Any] = {"params": {"sessionId": self.id, **params}}
        if key:
            given["headers"] = {"Idempotency-Key": key}
        if json is not None:
            given["json"] = json
        return await self._connection.call(method, f"{_LITEAGENT}/{what}", **given)


def _messages(said: Said) -> list[Any]:
    if isinstance(said, Message):
        return [said]
    parts = [said] if isinstance(said, str | Content | dict) else list(said)
    whole = [
        part for part in parts if isinstance(part, Message) or (isinstance(part, dict) and "role" in part)
    ]
    if whole:
        if len(whole) < len(parts):
            raise ValueError("said: give parts of one message, or whole messages, not both")
        return whole
    return [
        {
            "role": Role.USER.value,
            "type": MessageType.MESSAGE.value,
            "content": [part_of(each) for each in parts],
        }
    ]
