"""The bound of JSON's nesting: exact, for arrays, objects and both, whatever is beside them."""

from __future__ import annotations

from typing import Any

import pytest

from turnstream.shared.agents.json_depth import MOST_LEVELS, too_deep


def nested(levels: int, *, objects: bool = False) -> Any:
    """A value of so many arrays, or objects, inside one another."""
    value: Any = 1
    for _ in range(levels):
        value = {"x": value} if objects else [value]
    return value


@pytest.mark.parametrize("objects", [False, True])
def test_the_bound_is_exact(objects: bool) -> None:
    """As many levels as may be pass, one more does not."""
    assert not too_deep(nested(MOST_LEVELS, objects=objects))
    assert too_deep(nested(MOST_LEVELS + 1, objects=objects))


def test_the_deepest_branch_counts() -> None:
    """One deep value among shallow ones is enough; many shallow ones are not."""
    assert too_deep({"a": 1, "b": [0, {"c": nested(3)}]}, most=4)
    assert not too_deep({"a": 1, "b": [0, {"c": nested(3)}]}, most=6)
    assert not too_deep([[1]] * 1000, most=2)


@pytest.mark.parametrize("value", [None, 1, "[[[[", True])
def test_scalars_have_no_depth(value: Any) -> None:
    """What is in a text is not nesting."""
    assert not too_deep(value, most=0)


def test_empty_containers_count() -> None:
    """An empty array is a level to those who read it."""
    assert too_deep([], most=0)
    assert too_deep([[]], most=1)
    assert not too_deep([[]], most=2)
