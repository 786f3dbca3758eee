"""The states of models at the broker: the breaker, permits and holds, whatever worker asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import wait_until
from turnstream.shared import model_states
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command
from turnstream.shared.model_states import Closed, Go, IsBusy, IsHeld, IsOpen, ModelStates, Opened

if TYPE_CHECKING:
    from tests.conftest import Place

MODEL = "openai:some model"
PERMIT_MS = 15_000


@pytest.fixture
def long_ago(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Three failures open the breaker, for the blink of an eye."""
    monkeypatch.setattr(model_states, "MOST_FAILURES", 3)
    monkeypatch.setattr(model_states, "FIRST_OPEN_MS", 1)
    return monkeypatch


async def fail(states: ModelStates, times: int, call: str = "f") -> Opened | Closed | None:
    """So many requests fail, one after the other."""
    change: Opened | Closed | None = None
    for _ in range(times):
        change = await states.report(MODEL, call, "failed", over=True)
    return change


async def enter(states: ModelStates, call: str, limit: int = 0) -> Go | IsHeld | IsOpen | IsBusy:
    """A request asks."""
    return await states.enter(MODEL, call, f"o/s/{call}", limit)


async def entered(states: ModelStates, call: str, limit: int = 0) -> None:
    """A request asks until it may be made."""

    async def may() -> bool:
        return isinstance(await enter(states, call, limit), Go)

    await wait_until(may, "the request to be let in")


async def name_of(states: ModelStates) -> str:
    """The model's state."""
    rows = await states.listed([MODEL], {})
    return str(rows[0]["state"])


async def test_failures_in_a_row_open_the_breaker(place: Place) -> None:
    """So many of them; an answer in between begins the count anew."""
    states = ModelStates(place.connect().primary, PERMIT_MS)
    assert await fail(states, model_states.MOST_FAILURES - 1) is None
    assert await states.report(MODEL, "a", "answered", over=True) is None
    assert await fail(states, model_states.MOST_FAILURES - 1) is None
    assert await name_of(states) == "closed"
    assert await fail(states, 1) == Opened(model_states.FIRST_OPEN_MS)
    assert await name_of(states) == "open"
    assert isinstance(await enter(states, "b"), IsOpen)
    # Those that began before say nothing new.
    assert await fail(states, 5) is None
    assert await states.resume(MODEL)


async def test_one_request_at_a_time_probes(place: Place, long_ago: pytest.MonkeyPatch) -> None:
    """A probe that fails opens for twice the time; one that is broken off leaves it to the next; an answer closes."""
    states = ModelStates(place.connect().primary, PERMIT_MS)
    await fail(states, 3)
    await entered(states, "a")
    assert await name_of(states) == "probing"
    assert await enter(states, "b") == IsOpen(0)
    assert await enter(states, "a") == Go(), "a repeat whose reply was lost"
    assert await states.report(MODEL, "a", "failed", over=True) == Opened(2)
    await entered(states, "b")
    assert await states.report(MODEL, "b", "none", over=True) is None
    assert await enter(states, "c") == Go()
    assert await states.report(MODEL, "c", "answered", over=False) == Closed()
    assert await name_of(states) == "closed"
    assert await command(states._redis, "HLEN", keys.MODELS) == 0


async def test_a_probe_that_is_lost_is_made_again(place: Place, long_ago: pytest.MonkeyPatch) -> None:
    """Its worker died: after a while another request is let through."""
    long_ago.setattr(model_states, "PROBE_MS", 1)
    states = ModelStates(place.connect().primary, PERMIT_MS)
    await fail(states, 3)
    await entered(states, "a")
    await entered(states, "b")
    assert await states.resume(MODEL)


async def test_the_breaker_is_open_no_longer_than_its_most(place: Place) -> None:
    """Nor does a provider's Retry-After close it for longer; within that it is obeyed."""
    states = ModelStates(place.connect().primary, PERMIT_MS)
    await fail(states, model_states.MOST_FAILURES - 1)
    opened = await states.report(MODEL, "f", "failed", over=True, asked_ms=5_000)
    assert opened == Opened(5_000)
    assert await states.resume(MODEL)
    await fail(states, model_states.MOST_FAILURES - 1)
    opened = await states.report(MODEL, "f", "failed", over=True, asked_ms=3_600_000)
    assert opened == Opened(model_states.MOST_OPEN_MS)
    assert await states.resume(MODEL)


async def test_permits_are_counted_and_expire(place: Place) -> None:
    """No more requests than the limit; one that ends makes room, and so does one whose worker died."""
    states = ModelStates(place.connect().primary, PERMIT_MS)
    assert [await enter(states, call, 2) for call in "ab"] == [Go(), Go()]
    assert await enter(states, "c", 2) == IsBusy(1)
    assert await enter(states, "c", 2) == IsBusy(1), "it waits once"
    assert await enter(states, "d", 2) == IsBusy(2)
    (row,) = await states.listed([MODEL], {MODEL: 2})
    assert (row["running"], row["limit"]) == (2, 2)
    await states.report(MODEL, "a", "none", over=True)
    states = ModelStates(place.connect().primary, 1)
    assert await enter(states, "c", 2) == Go()
    now, _ = await states.read()
    await states.extend(MODEL, ["b", "unknown"], now)
    await entered(states, "d", 2)
    await entered(states, "e", 2)


async def test_a_hold_stands_above_all(place: Place) -> None:
    """It is for ever, and a resume ends it with the breaker."""
    states = ModelStates(place.connect().primary, PERMIT_MS)
    await fail(states, model_states.MOST_FAILURES)
    assert [await states.hold(MODEL), await states.hold(MODEL)] == [True, False]
    assert await name_of(states) == "held"
    assert isinstance(await enter(states, "a", 1), IsHeld)
    assert await command(states._redis, "PTTL", keys.MODELS) == -1
    assert [await states.resume(MODEL), await states.resume(MODEL)] == [True, False]
    assert await enter(states, "a") == Go()


async def test_what_another_release_notes_is_passed_over(place: Place) -> None:
    """Fields that are unknown or no numbers take nothing from what is known."""
    states = ModelStates(place.connect().primary, PERMIT_MS)
    await states.hold(MODEL)
    fields = ("colour m", "1", "until m", "soon", "nothing", "1")
    await command(states._redis, "HSET", keys.MODELS, *fields)
    _, found = await states.read()
    assert set(found) == {MODEL}
    await command(states._redis, "DEL", keys.MODELS)


async def test_workers_hear_of_the_first_failure(place: Place) -> None:
    """Of a model of which nothing was noted; of further ones they know by looking."""
    redis: Any = place.connect().primary
    pubsub = redis.pubsub(ignore_subscribe_messages=True)
    await pubsub.subscribe(keys.DOORBELL)
    await fail(ModelStates(redis, PERMIT_MS), 2)
    await redis.publish(keys.DOORBELL, b"last")
    heard: list[bytes] = []
    while b"last" not in heard:
        if message := await pubsub.get_message(timeout=5):
            heard.append(message["data"])
    assert heard == [model_states.NOTED, b"last"]
    await pubsub.aclose()
