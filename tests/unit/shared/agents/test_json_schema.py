"""Schemas of strangers: what they may cost, and what a model's slip in an argument may not."""

from __future__ import annotations

from typing import Any

import pytest

from turnstream.shared.agents import json_schema


def _function(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "object", "anyOf": [{}] * 10_000}, "too complicated"),
        (_function(**{f"p{n}": {"pattern": f"a{n}"} for n in range(17)}), "more than 16 patterns"),
        (_function(p={"patternProperties": {f"a{n}": {} for n in range(17)}}), "more than 16 patterns"),
        (_function(p={"pattern": "a" * 201}), "more than 200 characters"),
    ],
)
def test_a_schema_that_costs_too_much_is_refused(schema: dict[str, Any], why: str) -> None:
    """Again and again in the same words: a refusal is remembered, too."""
    for _ in range(2):
        with pytest.raises(ValueError, match=why):
            json_schema.check(schema)


def test_what_people_write_is_taken() -> None:
    """A large form with some patterns is fine."""
    json_schema.check(
        _function(**{f"field{n}": {"type": "string", "description": "x" * 60} for n in range(150)})
        | {"patternProperties": {f"^x{n}-[a-z0-9-]{{1,64}}$": {"type": "number"} for n in range(16)}}
    )


@pytest.mark.parametrize("price", [10**310, float("nan"), float("inf")])
def test_a_number_beyond_the_libraries_is_a_misfit(price: float) -> None:
    """The model is told; nothing is raised."""
    assert json_schema.misfits(_function(price={"type": "number", "multipleOf": 0.01}), {"price": price})
