"""What Agent API clients send."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from turnstream.api.protocols.agent_api.requests import parse_process
from turnstream.shared.agents import config
from turnstream.shared.errors import InvalidBody

DEMO = config.load(None)[config.DEMO]


def parse(**fields: Any) -> Any:
    """Read a request that is right but for these fields."""
    return parse_process(orjson.dumps({"input": [{"role": "user", "content": "hi"}], **fields}), DEMO).request


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"n": 6}, "n:"),
        ({"user_id": "x" * 300}, "user_id:"),
        ({"session_id": "a/b"}, "session_id:"),
        ({"input": []}, "input:"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    """A field that cannot be honoured is refused, and the text begins with its name."""
    with pytest.raises(InvalidBody) as refused:
        parse(**fields)
    assert refused.value.public_text.startswith(named)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"text"', b"\xff"])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    """A body that is not a JSON object is a 422, whatever it is."""
    with pytest.raises(InvalidBody):
        parse_process(body, DEMO)


def test_fields_that_ask_for_nothing_are_accepted() -> None:
    """Nulls, empty lists, n = 1 and unknown fields pass."""
    assert parse(n=1, tools=[], model=None, temperature=None, anything={"a": 1}).n == 1
