"""What the agent asks of its client, and the functions that answer."""

from __future__ import annotations

import asyncio
import inspect
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic_core import PydanticSerializationError, from_json

from turnstream.shared.protocol import DataContent, Message, MessageType, RunStatus
from turnstream.shared.protocol.data import plain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

log = logging.getLogger("turnstream.client")


@dataclass(frozen=True, slots=True)
class Call:
    """The agent calls a function of the client, and waits.

    Attributes:
        id: what the answer refers to.
        name: the function.
        arguments: as the model wrote them; anything but an object is given as ``{"value": …}``.
    """

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Approval:
    """The agent wants to use a tool, and somebody must consent.

    Attributes:
        id: what the answer refers to.
        name: the tool.
        arguments: what it would be called with.
        server: the MCP server of the tool; empty for the agent's own.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    server: str = ""


Consent: TypeAlias = "bool | tuple[bool, str]"
"""Yes or no, with a reason for the agent if there is one."""


class FunctionError(Exception):
    """Raised by a function of the client: its text is told to the agent as the call's outcome."""


def calls_in(message: Message) -> Iterator[Call | Approval]:
    """The calls that a completed message makes."""
    if message.status != RunStatus.Completed:
        return
    for part in message.content or []:
        data = part.data if isinstance(part, DataContent) else None
        if data is None:
            continue
        name, arguments = str(data.get("name", "")), _arguments(data.get("arguments"))
        if message.type == MessageType.FUNCTION_CALL and data.get("call_id"):
            yield Call(str(data["call_id"]), name, arguments)
        elif message.type == MessageType.MCP_APPROVAL_REQUEST and data.get("id"):
            yield Approval(str(data["id"]), name, arguments, str(data.get("server_label") or ""))


def answered_in(message: Message) -> set[str]:
    """The calls that a message answers."""
    if message.type not in (MessageType.FUNCTION_CALL_OUTPUT, MessageType.MCP_APPROVAL_RESPONSE):
        return set()
    datas = [part.data or {} for part in message.content or [] if isinstance(part, DataContent)]
    return {str(data.get("approval_request_id") or data.get("call_id") or "") for data in datas}


class Functions:
    """The client's functions by name. Plain ones run in a thread, so that they hold up nobody."""

    def __init__(self) -> None:
        self._named: dict[str, Callable[..., Any]] = {}
        self._others: Callable[[Call], Any] | None = None
        self._approval: Callable[[Approval], Any] | None = None

    def add(self, name: str, function: Callable[..., Any]) -> None:
        """Let ``function`` answer calls of ``name``."""
        self._named[name] = function

    def answer_others(self, function: Callable[[Call], Any]) -> None:
        """Let ``function`` answer calls of any other name; it gets the `Call`."""
        self._others = function

    def answer_approvals(self, function: Callable[[Approval], Any]) -> None:
        """Let ``function`` decide on approvals."""
        self._approval = function

    def covers(self, call: Call | Approval) -> bool:
        """Whether somebody is there for it."""
        if isinstance(call, Approval):
            return self._approval is not None
        return call.name in self._named or self._others is not None

    async def answer(self, call: Call | Approval) -> Any:
        """The answer to send. A function that fails is an answer too: the agent is told, and can go on."""
        if isinstance(call, Approval):
            return await self._decide(call)
        function = self._named.get(call.name)
        try:
            if function is not None:
                inspect.signature(function).bind(**call.arguments)
                return plain(await _run(function, **call.arguments))
            if self._others is not None:
                return plain(await _run(self._others, call))
        except FunctionError as error:
            return {"error": str(error)}
        except PydanticSerializationError:
            log.error("the result of function %r has no JSON form", call.name)
            return {"error": f"{call.name}: its result cannot be written as JSON"}
        except Exception as error:
            log.exception("function %r failed", call.name)
            return {"error": f"{call.name} failed: {type(error).__name__}"}
        raise LookupError(call.name)

    async def _decide(self, approval: Approval) -> dict[str, Any]:
        if self._approval is None:
            raise LookupError(approval.name)
        try:
            consent = await _run(self._approval, approval)
        except Exception as error:
            log.exception("the approval handler failed for %r", approval.name)
            consent = (False, f"The approval could not be decided: {type(error).__name__}")
        if isinstance(consent, tuple):
            approve, reason = consent
            return {"approve": approve is True, "reason": str(reason)}
        return {"approve": consent is True}


async def _run(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    call: Awaitable[Any] = (
        function(*given, **named) if _is_async(function) else asyncio.to_thread(function, *given, **named)
    )
    result = await call
    return await result if inspect.isawaitable(result) else result


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - its own nature is asked for, not whether it is there
    )


def _arguments(text: object) -> dict[str, Any]:
    try:
        value = from_json(text) if isinstance(text, str) and text else {}
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"value": value}
