"""Errors of the Python client say what was wrong, where, and what to do, and never hold the key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING

import pytest

from turnstream import AsyncClient
from turnstream.client import BadAnswer, ClientError, InvalidRequest, KeyRefused
from turnstream.client.retrying import Backoff, asked_wait

if TYPE_CHECKING:
    from tests.support import client as plain
    from tests.unit.turnstream.client.conftest import Clients
    from tests.unit.turnstream.client.scripted import ScriptedServer


async def test_a_wrong_key_is_told_at_once(client: plain.Client, clients: Clients) -> None:
    """No retries, and the key itself is not in the text."""
    stranger = clients.make(client.base_url, key="sk-0123456789abcdef0123456789abcdef")
    with pytest.raises(
        KeyRefused, match=r"not known here.*POST /process: 401.*turnstream keys create"
    ) as error:
        await stranger.chat("hi").text()
    assert "0123456789abcdef" not in str(error.value)
    assert (error.value.status, error.value.code) == (401, 10004)


async def test_a_wrong_field_is_named(ours: AsyncClient) -> None:
    """What the server refuses is told in its words; what cannot be said at all is refused before."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "nothing"}}}
    with pytest.raises(InvalidRequest, match=r"tools\[0\].*POST /process: 422"):
        await ours.chat("hi", tools=[tool]).text()
    with pytest.raises(ValueError, match="max_tokens"):
        ours.chat("hi", max_tokens=0)


async def test_what_is_no_front_end_is_recognised(clients: Clients, scripted_server: ScriptedServer) -> None:
    """A page instead of a stream, or text instead of JSON, is told with the URL as the likely cause."""
    scripted_server.content_type = "text/html"
    scripted_server.answers = [b"<html>welcome</html>"]
    ours = clients.make(scripted_server.url)
    with pytest.raises(BadAnswer, match="Check the URL"):
        await ours.chat("hi").text()
    with pytest.raises(BadAnswer, match=r"not JSON.*GET /liteAgent/v1/history"):
        await ours.session("s").history()
    scripted_server.answers = [404]
    scripted_server.explains = False
    with pytest.raises(BadAnswer, match=r"404.*POST /process.*Check the URL"):
        await ours.chat("hi").text()
    scripted_server.content_type = "text/event-stream"
    scripted_server.answers = [b"data: [1]\n\n"]
    with pytest.raises(BadAnswer, match="not a JSON object"):
        await ours.chat("hi").text()


@pytest.mark.parametrize(
    ("url", "key", "named"),
    [
        ("127.0.0.1:8090", "sk-x", "url"),
        ("ftp://host", "sk-x", "url"),
        ("http://host", "", "key"),
        ("http://host", "sk-geheim\n", "key"),
        ("http://host", "sk-schlüssel", "key"),
    ],
)
def test_what_cannot_be_is_refused_at_once(url: str, key: str, named: str) -> None:
    """A URL without its scheme, or a key with a line break, is named; the key is not shown."""
    with pytest.raises(ValueError, match=f"{named} = ") as error:
        AsyncClient(url, key)
    assert "geheim" not in str(error.value)


def test_every_error_of_the_client_has_one_base() -> None:
    """`except ClientError` catches them all."""
    from turnstream import client

    errors = [
        each for each in vars(client).values() if isinstance(each, type) and issubclass(each, Exception)
    ]
    assert {each.__name__ for each in errors if not issubclass(each, ClientError)} == {"FunctionError"}
    assert len(errors) > 10


def test_waits_grow_are_bounded_and_differ() -> None:
    """Up to twice as long each time until the most, and anything below: who is cut together does not come back together."""
    backoff = Backoff(first=1, most=8)
    for tries, whole in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 8), (5000, 8)):
        waits = sorted(backoff.wait(tries) for _ in range(500))
        assert waits[0] < whole / 20
        assert whole * 0.95 < waits[-1] <= whole
        assert all(abs(wait / whole - number / 500) < 0.15 for number, wait in enumerate(waits))


def test_what_a_server_asks_for_is_read() -> None:
    """Seconds, fractions and dates; nonsense is no wish, and a day is too long."""
    assert asked_wait("7") == 7
    assert asked_wait("0.5") == 0.5
    assert asked_wait("86400") == 300
    assert asked_wait("-3") == 0
    assert asked_wait(None) is asked_wait("soon") is asked_wait("nan") is None
    soon = asked_wait(format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True))
    assert soon is not None
    assert 25 < soon <= 30


async def test_a_path_that_no_front_end_serves_is_told_with_the_url(
    client: plain.Client, clients: Clients
) -> None:
    """It is not the session that is not there."""
    lost = clients.make(f"{client.base_url}/elsewhere")
    with pytest.raises(BadAnswer, match=r"404.*Check the URL"):
        await lost.session("s1").history()
