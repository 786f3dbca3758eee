"""Answers that routes of several packages give: these models build the responses, and describe them in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import Field, GetJsonSchemaHandler
from pydantic_core import core_schema

from turnstream.api.http.answers import Described


class _OrNull:
    """Marks what is written as null: elsewhere such fields are left out, and are described so."""

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "null"}]}


_T = TypeVar("_T")
OrNull = Annotated[_T | None, _OrNull()]


class Version(Described):
    """The server's version."""

    version: str = Field(pattern=r"^\d+\.\d+\.\d+$")
