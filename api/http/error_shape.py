"""The shape of an error's body: each wire protocol has one; where no protocol is asked for, `CODE_AND_MESSAGE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnstream.api.http.operation import Json
    from turnstream.shared.errors import TurnstreamError


class Problem(NamedTuple):
    """What is wrong with a request, apart from its shape.

    Attributes:
        status: the HTTP status.
        code: a stable name; a number for some errors.
        number: a stable number.
        word: the name in words.
        text: what was wrong, where, and what to do.
    """

    status: int
    code: str | int
    number: int
    word: str
    text: str

    @classmethod
    def of(cls, error: TurnstreamError) -> Self:
        """One of our own errors."""
        return cls(error.status, error.code, error.number, error.word(), error.public_text)

    @classmethod
    def refused(cls, status: int, word: str, text: str) -> Self:
        """What is refused before it reaches a route: an unknown address, a request that is none."""
        return cls(status, word, status * 100, word, text)


class ErrorShape(Protocol):
    """How problems are written, and how /openapi.json describes them."""

    @property
    def content_type(self) -> str:
        """The ``Content-Type`` of such a body."""
        ...

    def body(self, problem: Problem) -> bytes:
        """The body of the answer."""
        ...

    def schema(self, problems: Sequence[Problem]) -> Json:
        """The JSON Schema of the bodies of these problems, with an example of each."""
        ...


class CodeAndMessage:
    """``{"code": …, "message": …}``."""

    content_type = "application/json"

    def body(self, problem: Problem) -> bytes:
        """The two fields."""
        return orjson.dumps(self._fields(problem))

    def schema(self, problems: Sequence[Problem]) -> Json:
        """The codes are a closed set."""
        return {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": {"enum": [problem.code for problem in problems]},
                "message": {"type": "string"},
            },
            "examples": [self._fields(problem) for problem in problems],
        }

    @staticmethod
    def _fields(problem: Problem) -> Json:
        return {"code": problem.code, "message": problem.text}


CODE_AND_MESSAGE = CodeAndMessage()
