"""Errors as A2A has them: of its own, and how all are written for each of its two bindings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from turnstream.shared.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnstream.api.http.error_shape import Problem
    from turnstream.api.http.operation import Json


class NoAgent(Refused):
    """No agent of that name is published, or it is none of the key's: one answer."""

    status = 404
    code = "agent_not_found"
    number = 40410
    text = "No such agent: none of this name is published, or it is none of this API key's."


class UnsupportedOperation(Refused):
    """The task, or the agent, is not one with which that can be done."""

    code = "unsupported_operation"
    number = 40010
    text = "That cannot be done with this task, or this agent."


class NotCancelable(Refused):
    """The task has ended."""

    code = "task_not_cancelable"
    number = 40011
    text = "The task has ended already."


class NoPushNotifications(Refused):
    """The agent's table does not let clients have any."""

    code = "push_notification_not_supported"
    number = 40012
    text = "This agent sends no push notifications."


class UnknownMediaType(Refused):
    """A part of the message is of a kind that is not taken."""

    code = "content_type_not_supported"
    number = 40013
    text = "A part of the message is of a media type that is not taken."


class UnknownVersion(Refused):
    """Only one version of the protocol is served."""

    code = "version_not_supported"
    number = 40014
    text = "Only version 1.0 of A2A is served: send the header A2A-Version: 1.0."


class _Kind(NamedTuple):
    """How an error is called: by JSON-RPC, by HTTP, by google.rpc, and by A2A."""

    rpc: int
    http: int
    status: str
    reason: str


_NOT_FOUND = _Kind(-32001, 404, "NOT_FOUND", "TASK_NOT_FOUND")
_UNSUPPORTED = _Kind(-32004, 400, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION")
_INVALID = _Kind(-32602, 400, "INVALID_ARGUMENT", "INVALID_PARAMS")

_KINDS = {
    # Unknown tasks, contexts and calls have one answer, whatever they are.
    **dict.fromkeys(("task_not_found", "session_not_found", "call_not_found"), _NOT_FOUND),
    **dict.fromkeys(
        ("unsupported_operation", "session_busy", "call_ended", "call_withdrawn", "call_expired"),
        _UNSUPPORTED,
    ),
    **dict.fromkeys(
        ("invalid_body", "bad_request", "cursor_malformed", "cursor_gone", "idempotency_mismatch"), _INVALID
    ),
    "task_not_cancelable": _Kind(-32002, 400, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE"),
    "push_notification_not_supported": _Kind(
        -32003, 400, "FAILED_PRECONDITION", "PUSH_NOTIFICATION_NOT_SUPPORTED"
    ),
    "content_type_not_supported": _Kind(-32005, 400, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED"),
    "version_not_supported": _Kind(-32009, 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED"),
}
_NO_SUCH_TASK = "Not found: no such task, context or call, or it has expired."

_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    413: "OUT_OF_RANGE",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}

# A text that begins with the path of a field is about it.
_FIELD = re.compile(r"([A-Za-z_][\w-]*(?:\.\w+|\[\d+\])*): (.+)", re.DOTALL)


class A2aErrors:
    """``{"error": {"code", "status", "message", "details"}}``, google.rpc's status: the binding of HTTP and JSON."""

    content_type = "application/json"

    def status(self, problem: Problem) -> int:
        """As A2A's table of errors has it, else its own."""
        kind = _KINDS.get(problem.word)
        return kind.http if kind else problem.status

    def headers(self, problem: Problem) -> dict[str, str]:  # noqa: ARG002 - another shape has some
        """None."""
        return {}

    def body(self, problem: Problem) -> bytes:
        """The body of the answer."""
        return orjson.dumps(self._object(problem))

    def schema(self, problems: Sequence[Problem]) -> Json:
        """The JSON Schema of the bodies of these problems, with an example of each."""
        told = [self._object(problem) for problem in problems]
        fields: Json = {
            "code": {"enum": sorted({each["error"]["code"] for each in told})},
            "status": {"enum": sorted({each["error"]["status"] for each in told})},
            "message": {"type": "string"},
            "details": {"type": "array", "items": {"type": "object", "required": ["@type"]}},
        }
        error = {"type": "object", "required": list(fields), "properties": fields}
        return {"type": "object", "required": ["error"], "properties": {"error": error}, "examples": told}

    def _object(self, problem: Problem) -> Json:
        status = self.status(problem)
        kind = _KINDS.get(problem.word)
        name = (
            kind.status
            if kind
            else _STATUSES.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
        )
        return {
            "error": {
                "code": status,
                "status": name,
                "message": _text(problem),
                "details": _details(problem),
            }
        }


class RpcErrors(A2aErrors):
    """``{"jsonrpc", "id", "error"}``: the binding of JSON-RPC, whose one address has every error in that shape.

    Errors of a method have status 200. What stands in the way of a request has its HTTP status, and no id: the call was not read.
    """

    def status(self, problem: Problem) -> int:
        """200 where the request itself was in order."""
        return 200 if is_of_the_method(problem) else problem.status

    def schema(self, problems: Sequence[Problem]) -> Json:
        """The JSON Schema of the bodies of these problems, with an example of each."""
        told = [self._object(problem) for problem in problems]
        error: Json = {
            "type": "object",
            "required": ["code", "message", "data"],
            "properties": {
                "code": {"enum": sorted({each["error"]["code"] for each in told})},
                "message": {"type": "string"},
                "data": {"type": "array", "items": {"type": "object", "required": ["@type"]}},
            },
        }
        return {
            "type": "object",
            "required": ["jsonrpc", "id", "error"],
            "properties": {
                "jsonrpc": {"const": "2.0"},
                "id": {"type": ["string", "number", "null"]},
                "error": error,
            },
            "examples": told,
        }

    def _object(self, problem: Problem) -> Json:
        return {"jsonrpc": "2.0", "id": None, "error": rpc_error(problem)}


def is_of_the_method(problem: Problem) -> bool:
    """Whether JSON-RPC answers it as the method's error; what stands in the way of the request itself has its HTTP status."""
    return problem.word in _KINDS or problem.word == NoAgent.code


def rpc_error(problem: Problem) -> Json:
    """An error as JSON-RPC writes it; one that A2A has no code for is an invalid request, or internal."""
    kind = _KINDS.get(problem.word)
    code = kind.rpc if kind else -32603 if problem.status >= 500 else -32600
    return {"code": code, "message": _text(problem), "data": _details(problem)}


def _text(problem: Problem) -> str:
    return _NO_SUCH_TASK if _KINDS.get(problem.word) is _NOT_FOUND else problem.text


def _details(problem: Problem) -> list[dict[str, Any]]:
    kind = _KINDS.get(problem.word)
    details: list[dict[str, Any]] = [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": kind.reason if kind else problem.word.upper(),
            "domain": "a2a-protocol.org" if kind else "turnstream",
        }
    ]
    field = _FIELD.match(problem.text) if kind is _INVALID else None
    if field:
        violation = {"field": field[1], "description": field[2]}
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]})
    return details
