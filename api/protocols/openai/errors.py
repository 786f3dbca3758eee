"""Errors as OpenAI's clients read them, and whether they are to try again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import orjson

from turnstream.shared.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnstream.api.http.error_shape import Problem
    from turnstream.api.http.operation import Json

# A text that begins with the path of a field is about it.
_FIELD = re.compile(r"([A-Za-z_][\w-]*(?:\.\w+|\[\d+\])*): ")

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_CODES = {
    "bad_token": "invalid_api_key",
    "unknown_key": "invalid_api_key",
    "too_many": "rate_limit_exceeded",
}
# Unknown responses, calls and conversations have one answer, whatever they are.
_UNKNOWN = ("session_not_found", "task_not_found", "call_not_found")
# Of no route.
_UNSERVED = ("not_found", "method_not_allowed")
_NOT_SERVED = (
    "This part of OpenAI's API is not served here. GET /openapi.json has the routes and methods that are."
)
_NOT_FOUND = "Not found: no such response, conversation or call, or it has expired."


class NotServed(Refused):
    """A part of OpenAI's API that is not served; the text says what to do instead."""

    code = "not_supported"
    number = 40015
    text = "This part of OpenAI's API is not served here."


class OpenAiErrors:
    """``{"error": {"message", "type", "param", "code"}}``."""

    content_type = "application/json"

    def status(self, problem: Problem) -> int:
        """What is wrong with a body is a 400 there; and what these clients would send again by themselves must not be a 409."""
        return 400 if problem.status in (409, 422) else problem.status

    def headers(self, problem: Problem) -> dict[str, str]:
        """Whether to send the request again: their clients obey it."""
        return {"x-should-retry": "true" if problem.retry else "false"}

    def body(self, problem: Problem) -> bytes:
        """The body of the answer."""
        return orjson.dumps(self._object(problem))

    def schema(self, problems: Sequence[Problem]) -> Json:
        """The JSON Schema of the bodies of these problems, with an example of each."""
        told = [self._object(problem) for problem in problems]
        fields: Json = {
            "message": {"type": "string"},
            "type": {"enum": sorted({each["error"]["type"] for each in told})},
            "param": {"type": ["string", "null"]},
            "code": {"enum": sorted({each["error"]["code"] for each in told})},
        }
        error = {"type": "object", "required": list(fields), "properties": fields}
        return {"type": "object", "required": ["error"], "properties": {"error": error}, "examples": told}

    def _object(self, problem: Problem) -> Json:
        unknown = problem.word in _UNKNOWN
        code = "not_found" if unknown else _CODES.get(problem.word, problem.word)
        status = self.status(problem)
        kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        field = _FIELD.match(problem.text)
        text = _NOT_FOUND if unknown else _NOT_SERVED if problem.word in _UNSERVED else problem.text
        return {"error": {"message": text, "type": kind, "param": field and field[1], "code": code}}
