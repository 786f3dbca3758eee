"""What every protocol model shares: it keeps unknown fields and reads both spellings."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import AliasChoices, AliasGenerator, BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel


def _spellings(name: str) -> str | AliasChoices:
    return AliasChoices(name, to_camel(name)) if "_" in name else name


@cache
def _known(model: type[BaseModel]) -> frozenset[str]:
    """Every spelling of the model's fields."""
    return frozenset(spelling for name in model.model_fields for spelling in (name, to_camel(name)))


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
        # Looked up as they are: to convert a client's names would cost what the client likes.
        known = _known(cls)
        return {key: value for key, value in fields.items() if value is not None or key not in known}
