"""How data grows, and how it is copied."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.shared.protocol.data import grow, merge, plain, valid
from turnstream.shared.protocol.tools import FunctionCall

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("whole", "delta", "merged"),
    [
        ({"a": "x"}, {"a": "y"}, {"a": "xy"}),
        ({"a": [1]}, {"a": [2]}, {"a": [1, 2]}),
        ({"a": {"b": "x"}}, {"a": {"b": "y", "c": 1}}, {"a": {"b": "xy", "c": 1}}),
        ({"a": 1}, {"a": 2}, {"a": 3}),
        ({"a": 1}, {"a": 0.5}, {"a": 1.5}),
        ({"a": True}, {"a": False}, {"a": False}),
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": "x"}, {"a": 1}, {"a": 1}),
        ({"a": "x"}, {"a": None}, {"a": "x"}),
        ({"a": None}, {"a": "x"}, {"a": "x"}),
        ({}, {"a": None}, {"a": None}),
        ({"a": 1}, {}, {"a": 1}),
    ],
)
def test_merge(whole: dict[str, Any], delta: dict[str, Any], merged: dict[str, Any]) -> None:
    """Strings concatenate, lists extend, objects recurse, numbers add, null is silent, the rest replaces."""
    merge(whole, delta)
    assert whole == merged


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_merge_into_nothing_is_the_delta(delta: dict[str, Any]) -> None:
    """The first delta of a part is the part."""
    whole: dict[str, Any] = {}
    merge(whole, delta)
    assert whole == delta


def test_only_the_growing_field_of_a_part_grows() -> None:
    """A repeated format is not spelled twice; the sound continues."""
    whole = {"data": "AA", "format": "mp3"}
    grow("audio", whole, {"data": "BB", "format": "mp3"})
    assert whole == {"data": "AABB", "format": "mp3"}


@given(JSON)
def test_plain_copies_json_exactly(value: Any) -> None:
    """A JSON value is copied as it is, big integers included."""
    before = copy.deepcopy(value)
    assert plain(value) == before


def test_plain_makes_json_of_what_is_not() -> None:
    """Models, tuples, dates, NaN and half an emoji become JSON."""
    value = {
        "call": FunctionCall(call_id="c"),
        "when": dt.datetime(2025, 1, 2, tzinfo=dt.UTC),
        "nan": float("nan"),
        "pair": (1, 2),
        "broken": "a\ud83d",
    }
    copied = plain(value)
    assert copied["call"]["call_id"] == "c"
    assert copied["when"].startswith("2025-01-02T00:00:00")
    assert copied["nan"] is None
    assert copied["pair"] == [1, 2]
    assert copied["broken"] == "a\ufffd"


def test_a_split_emoji_is_joined() -> None:
    """A surrogate pair in one text is the character; a lone half is replaced."""
    assert valid("\ud83d\ude00") == "😀"
    assert valid("x\ude00") == "x\ufffd"
    assert valid("é") == "é"
