"""JSON responses built by the models that describe them in the OpenAPI document.

A route cannot answer a field that the document does not have: the model refuses it.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response


class Described(BaseModel):
    """The base of all models of responses."""

    model_config = ConfigDict(extra="forbid")


def answer(model: type[Described], fields: dict[str, Any], status: int = 200) -> Response:
    """A JSON response of these fields; defaults that were not given are left out.

    Raises:
        pydantic.ValidationError: the fields are not the model's: a defect of ours.
    """
    body = model.model_validate(fields).model_dump_json(exclude_unset=True)
    return Response(body, status, media_type="application/json")
