"""pydantic-ai agents that return something else than text: it is said as a data part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import check_whole, terminal

if TYPE_CHECKING:
    from tests.support.fake_provider.deployment import Deployments


@pytest.mark.parametrize(
    ("agent", "data"),
    [
        ("structured", {"city": "Rome", "degrees": 21}),
        ("listing", {"output": ["Rome", "Oslo"]}),
    ],
)
async def test_structured_output_is_a_data_part(
    deploy: Deployments, agent: str, data: dict[str, Any]
) -> None:
    """The last message of the turn; an object as it is, anything else under `output`."""
    client = await deploy(python=f"tests.support.coded:{agent}")
    frames = await client.turn("s1", "How is the weather?", id="t1")
    check_whole(frames)
    event = terminal(frames)
    assert event is not None
    assert event["status"] == "completed"
    (message,) = event["output"]
    assert (message["type"], message["role"]) == ("message", "assistant")
    assert [part["data"] for part in message["content"]] == [data]
    history = await client.http.get("/liteAgent/v1/history", params={"sessionId": "s1"})
    assert [each["role"] for each in history.json()] == ["user", "assistant"]
