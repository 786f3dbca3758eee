"""Errors with numbers as codes: LiteAgent's clients compare them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnstream.api.http.error_shape import Problem
    from turnstream.api.http.operation import Json


class NumberedErrors:
    """``{"code": …, "reason": …, "message": …}``: the number, the word for it, and the text."""

    content_type = "application/json"

    def body(self, problem: Problem) -> bytes:
        """The three fields."""
        return orjson.dumps(self._fields(problem))

    def schema(self, problems: Sequence[Problem]) -> Json:
        """Numbers and words are closed sets."""
        return {
            "type": "object",
            "required": ["code", "reason", "message"],
            "properties": {
                "code": {"enum": [problem.number for problem in problems]},
                "reason": {"enum": [problem.word for problem in problems]},
                "message": {"type": "string"},
            },
            "examples": [self._fields(problem) for problem in problems],
        }

    @staticmethod
    def _fields(problem: Problem) -> Json:
        return {"code": problem.number, "reason": problem.word, "message": problem.text}
