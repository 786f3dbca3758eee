"""JSON responses built by the models that describe them in the OpenAPI document.

A route cannot answer a field that the document does not have: the model refuses it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Mapping


class Described(BaseModel):
    """The base of all models of responses."""

    model_config = ConfigDict(extra="forbid")


def answer(
    model: type[Described],
    fields: dict[str, Any],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A JSON response of these fields; defaults that were not given are left out.

    Raises:
        pydantic.ValidationError: the fields are not the model's: a defect of ours.
    """
    body = model.model_validate(fields).model_dump_json(exclude_unset=True)
    return Response(body, status, headers, media_type="application/json")


def ordered(model: type[Described], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields in the model's order, their values not validated: for a stream's events, of which there are many.

    Raises:
        ValueError: one is not the model's: a defect of ours.
    """
    made = {name: fields[name] for name in _names(model) if name in fields}
    if len(made) != len(fields):
        raise ValueError(f"{model.__name__} does not describe {', '.join(sorted(fields.keys() - made))}")
    return made


@cache
def _names(model: type[Described]) -> tuple[str, ...]:
    return tuple(model.model_fields)
