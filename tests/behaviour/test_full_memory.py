"""A broker whose memory fills: admission stops before it is full, cleaning works when it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.support.client import asked, calls_of, terminal, text_of
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.api_keys import ApiKeys, make_token

if TYPE_CHECKING:
    from tests.support.client import Client


def _used(redis: Any) -> int:
    return int(redis.info("memory")["used_memory"])


async def test_a_full_broker_recovers_by_itself(small: tuple[Stack, Any]) -> None:
    """Full to the last byte, it is cleaned when graces elapse: the turn that ran ends, and new ones are taken."""
    stack, redis = small
    await stack.worker()
    client = await stack.front_end()
    for number in range(6):
        await client.turn(f"eve-{number}", "x" * 900_000)
    async with client.process("alice", "/tokens 150 10", id="t1") as stream:
        await stream.until(lambda frames: len(frames) > 10)
        redis.config_set("maxmemory", _used(redis))
        async with asyncio.timeout(40):
            frames = await stream.all()
    assert terminal(frames)
    assert text_of(frames) == "".join(f"tok{number} " for number in range(150))
    assert await stack.status("alice", "t1") == "completed"
    assert redis.hget("ts:{dev/alice}:task:t1", "crashes") == b"0"
    # What is left of eve's sessions is below the mark by now.
    await wait_until(lambda: _used(redis) < 0.85 * redis.info("memory")["maxmemory"], "the logs to be cut")

    # Another owner's: this one holds its share of what the broker has.
    token = make_token()
    await ApiKeys(stack.broker.primary).register(token, owner="bob", agent="demo")
    bob = stack.client(client.base_url, token)

    async def taken() -> bool:
        return (await bob.http.post("/process", json=asked("bob", "hi"))).status_code == 200

    await wait_until(taken, "new turns to be taken")


async def test_admission_stops_before_memory_is_full(small: tuple[Stack, Any], monkeypatch: Any) -> None:
    """At 90 % nothing new is taken, with 503 and `Retry-After`; turns that were taken run to their end."""
    monkeypatch.setattr("turnstream.api.access.limits.TELL_SECONDS", 0.05)
    stack, redis = small
    await stack.worker()
    client = await stack.front_end()
    session = await client.init()
    async with (
        client.process("parked", "/call f {}", id="t1") as parked,
        client.process("running", "/tokens 100 10", id="t1") as running,
    ):
        (call,) = calls_of(await parked.until(calls_of))
        await running.until(lambda frames: len(frames) > 5)
        redis.config_set("maxmemory", int(_used(redis) / 0.95))
        await wait_until(lambda: _refused(client), "new turns to be refused")
        for path, body in (
            ("/process", asked("new", "hi")),
            ("/liteAgent/v1/initSession", None),
            (f"/liteAgent/v1/chat?sessionId={session}", {"content": [{"type": "text", "message": "hi"}]}),
            ("/liteAgent/v1/callback?sessionId=parked", {"id": call["call_id"], "result": "x"}),
        ):
            answer = await client.http.post(path, json=body)
            assert answer.status_code == 503, (path, answer.text)
            assert int(answer.headers["retry-after"]) > 0
            assert "memory is almost full" in answer.text
        # A repeat begins nothing: its client wants to know what became of the turn.
        again = await client.http.get("/process", params={"session_id": "running", "response_id": "t1"})
        assert again.status_code == 200
        assert text_of(await running.all()) == "".join(f"tok{number} " for number in range(100))
        assert (await client.stop("parked", "t1")).status_code == 200
        redis.config_set("maxmemory", 2 * _used(redis))
        await wait_until(lambda: _taken(client), "new turns to be taken")


async def _refused(client: Client) -> bool:
    return (await client.http.post("/process", json=asked("new", "hi"))).status_code == 503


async def _taken(client: Client) -> bool:
    return (await client.http.post("/process", json=asked("new", "hi"))).status_code == 200
