"""What every protocol model shares: it keeps unknown fields and reads both spellings."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, AliasGenerator, BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel, to_snake


def _spellings(name: str) -> str | AliasChoices:
    return AliasChoices(name, to_camel(name)) if "_" in name else name


class ProtocolModel(BaseModel):
    """Base of the Agent API protocol's objects.

    Fields are read in snake_case and in the camelCase of the Java edition, and written in snake_case.
    Null in a field means that it was not given: many clients write every field they know.
    Fields this edition does not know are kept as they came.
    """

    model_config = ConfigDict(
        extra="allow",
        alias_generator=AliasGenerator(validation_alias=_spellings),
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_given(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or None not in fields.values():
            return fields
        return {
            key: value
            for key, value in fields.items()
            if value is not None or to_snake(key) not in cls.model_fields
        }
