"""Operators' lists where there is very much to list: no reply of the broker grows with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.stack import Stack
from turnstream.shared.api_keys import ApiKeys, make_token
from turnstream.shared.broker import keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

import pytest

if TYPE_CHECKING:
    from tests.conftest import Place

# No reply may be larger: some hundreds of keys, or sessions, are smaller.
MOST_BYTES = 256 * 1024


@pytest.fixture
async def operated(real: Place) -> AsyncIterator[tuple[Any, Any]]:
    """An operator's client, and the broker, which notes replies that are larger than `MOST_BYTES`."""
    stack = Stack(real)
    try:
        client = await stack.front_end()
        redis: Any = real.connect().primary
        await redis.config_set("commandlog-reply-larger-than", MOST_BYTES)
        await redis.execute_command("COMMANDLOG", "RESET", "large-reply")
        yield stack.client(client.base_url, stack.admin).http, redis
        large = await redis.execute_command("COMMANDLOG", "GET", 10, "large-reply")
        assert not large, f"the broker had to send much at once: {[entry[3] for entry in large]}"
    finally:
        await stack.close()


async def test_the_largest_sessions_of_an_owner_of_very_many(operated: tuple[Any, Any]) -> None:
    """The list names the largest ones first, and counts all."""
    http, redis = operated
    sessions = {f"session-with-a-name-of-some-length-{number}": number for number in range(20_000)}
    owned, until = keys.owner_bytes("acme"), keys.owner_sessions("acme")
    await redis.hset(owned, mapping={**sessions, "": sum(sessions.values())})
    await redis.zadd(until, dict.fromkeys(sessions, 2e12))
    for key in (owned, until):
        await redis.pexpire(key, 600_000)
    told = (await http.get("/admin/v1/sessions", params={"owner": "acme", "limit": 3})).json()
    assert (told["bytes"], told["count"]) == (sum(sessions.values()), 20_000)
    assert [each["bytes"] for each in told["sessions"]] == [19_999, 19_998, 19_997]
    assert {each["expires_at"] for each in told["sessions"]} == {2e9}


async def test_very_many_keys(operated: tuple[Any, Any]) -> None:
    """All of them are listed once, and any of them can be revoked."""
    http, redis = operated
    made = [await ApiKeys(redis).register(make_token(), owner="acme", agent="demo") for _ in range(3000)]
    told = (await http.get("/admin/v1/keys")).json()["keys"]
    ids = [each["id"] for each in told]
    assert len(ids) == len(set(ids))
    assert {key.id for key in made} <= set(ids)
    assert (await http.post(f"/admin/v1/keys/{made[7].id}/revoke")).status_code == 200
    assert made[7].id not in {each["id"] for each in (await http.get("/admin/v1/keys")).json()["keys"]}
