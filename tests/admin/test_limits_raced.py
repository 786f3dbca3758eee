"""Limits under races: a request that is refused takes back what it counted itself, and nothing of another's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.admin.test_limits import ask, limited
from tests.behaviour.test_order import agents_with
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.api.turns.durable_submit import accept
from turnstream.shared.broker import keys

if TYPE_CHECKING:
    from tests.conftest import Place
    from tests.support.client import Client

LONG = "/tokens 100000 5"


class Gate:
    """Holds submits of one response until two of them are counted; then lets the refused one go first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
        self._accept = accept
        self._task = task
        self.counted = 0
        self.second = asyncio.Event()
        monkeypatch.setattr("turnstream.api.turns.submit.accept", self._held)

    async def both(self) -> None:
        """Wait until both requests are counted."""
        await wait_until(lambda: self.counted == 2, "both requests to be counted")

    async def _held(self, services: Any, ref: Any, *given: Any, **more: Any) -> Any:
        if ref.task == self._task:
            self.counted += 1
            mine = self.counted
            await self.both()
            if mine == 2:
                await self.second.wait()
        return await self._accept(services, ref, *given, **more)


async def _same(client: Client) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The first request has an idempotency key that was used for another body."""
    headers = {"Idempotency-Key": "used"}
    asked = {"session_id": "s1", "stream": False, "input": [{"role": "user", "content": "hello"}]}
    assert (
        await client.http.post("/process", json={**asked, "id": "old"}, headers=headers)
    ).status_code == 200
    return 422, {"headers": headers}, {}


async def _foreign(client: Client) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The first request names another user than the session's."""
    assert (await ask(client, "s1", "hello", id="old", user_id="alice")).status_code == 200
    return 404, {"user_id": "mallory"}, {"user_id": "alice"}


async def _busy(client: Client) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """While the first request comes in, another turn of the session runs."""
    async with client.process("s1", LONG, id="old") as stream:
        await stream.until(lambda frames: len(frames) > 3)
    return 409, {}, {}


@pytest.mark.parametrize("refused", [_same, _foreign, _busy])
async def test_a_refused_request_does_not_take_another_ones_turn_out_of_the_count(
    place: Place, monkeypatch: pytest.MonkeyPatch, refused: Any
) -> None:
    """Two requests for one new response: one is refused after the other was let in; the turn counts."""
    configured = agents_with(busy="reject")
    stack = Stack(place, configured)
    try:
        await stack.worker()
        (client,) = await limited(stack, await stack.front_end(), rate=9, concurrency=3)
        status, first, second = await refused(client)
        gate = Gate(monkeypatch, "new")
        wrong = asyncio.create_task(ask(client, "s1", LONG, id="new", **first))
        await wait_until(lambda: gate.counted == 1, "the first request to be counted")
        right = asyncio.create_task(ask(client, "s1", LONG, id="new", **second))
        assert (await wrong).status_code == status
        await client.stop("s1", "old")
        gate.second.set()
        await wait_until(lambda: _running(stack), "the turn to run")
        primary = stack.broker.primary
        assert await primary.zcard(keys.owner_turns("acme")) == 1
        assert await primary.zcard(keys.owner_rate("acme")) == 2
        assert (await client.stop("s1", "new")).status_code == 200
        assert (await right).status_code == 200
        assert await primary.zcard(keys.owner_turns("acme")) == 0
    finally:
        await stack.close()


async def _running(stack: Stack) -> bool:
    return await stack.status("s1", "new", "acme") == "running"
