"""A broker that lost its newest data, through HTTP: a lagging replica is promoted, or an older file is started with.

Whoever has seen what was lost is told so; whoever has not goes on; nothing is ever told under an id of something else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest
from redis.exceptions import RedisError

from tests.conftest import Place
from tests.processes.broker import Broker
from tests.support.client import Frame, calls_of, check_whole, large_text, terminal, text_of
from tests.support.follower import Follower
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.broker.keys import SessionKeys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class OpenPlace(Place):
    """The broker lets everybody in: its users are not in its file."""

    def credentials(self, user: str) -> dict[str, Any]:
        """None."""
        return {}


class Unlucky:
    """A broker whose data can be lost from one moment on."""

    def __init__(self, broker: Broker, how: str) -> None:
        self._broker = broker
        self._how = how
        self._copy: Path | None = None

    async def prepare(self) -> None:
        """Before anything is asked of it."""
        if self._how == "promoted":
            await asyncio.to_thread(self._broker.replicate)

    async def from_now_on(self) -> None:
        """What is written after this will be lost."""
        if self._how == "promoted":
            await asyncio.to_thread(self._broker.lag)
        else:
            self._copy = await asyncio.to_thread(self._broker.remember)

    async def lose(self) -> None:
        """Lose it."""
        if self._copy is None:
            await asyncio.to_thread(self._broker.promote)
        else:
            await asyncio.to_thread(self._broker.go_back, self._copy)


@pytest.fixture(params=["promoted", "restored"])
async def broker(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Broker, Unlucky]]:
    """A broker, and the way to make it lose its end."""
    broker = Broker(tmp_path / "data")
    broker.start()
    unlucky = Unlucky(broker, request.param)
    await unlucky.prepare()
    yield broker, unlucky
    broker.stop()


@pytest.fixture(params=["one broker", "two brokers"])
async def stack(
    broker: tuple[Broker, Unlucky], tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Stack]:
    """A deployment on it; where there are two brokers, it is the sessions'."""
    given: dict[str, Any] = {"lease_seconds": 2, "heartbeat_seconds": 1}
    url = f"redis://127.0.0.1:{broker[0].port}/0"
    primary = Broker(tmp_path / "primary")
    if request.param == "two brokers":
        given["session_redis_url"] = url
        url = f"redis://127.0.0.1:{primary.start().port}/0"
    place = OpenPlace(url, None)
    # Each piece of text is an event: these are counted.
    stack = Stack(place, flush_seconds=0, **given)
    yield stack
    await stack.close()
    await place.close()
    primary.stop()


@pytest.fixture
def unlucky(broker: tuple[Broker, Unlucky]) -> Unlucky:
    """The way to lose."""
    return broker[1]


async def _seq(stack: Stack, session: str) -> int:
    meta = await stack.log.meta(SessionKeys("dev", session))
    return meta.seq if meta else 0


async def _lose_in_turn(stack: Stack, unlucky: Unlucky, kept: int, lost: int) -> None:
    """Lose what the turn t1 of s1 says from its event ``kept`` on, once it is at ``lost``."""
    for count, what in ((kept, unlucky.from_now_on), (lost, unlucky.lose)):
        await wait_until(lambda count=count: _beyond(stack, count), f"event {count}")  # type: ignore[misc]
        await what()


async def _beyond(stack: Stack, count: int) -> bool:
    try:
        return await _seq(stack, "s1") > count
    except (RedisError, OSError):
        return False


def _answer(frames: list[Frame]) -> str:
    end = terminal(frames)
    assert end is not None
    assert end["status"] == "completed"
    return str(end["output"][-1]["content"][0]["text"])


async def test_a_turn_whose_log_lost_its_end_is_told_under_new_ids(stack: Stack, unlucky: Unlucky) -> None:
    """Clients that stayed or came back get each id for one event, and a whole answer; all front ends agree."""
    fronts = [await stack.front_end(), await stack.front_end()]
    await stack.worker()
    tokens = 250
    async with fronts[0].process("s1", f"/tokens {tokens} 10", id="t1") as stream:
        await stream.until(lambda frames: len(frames) > 1)
        stays = [Follower(front) for front in fronts]
        roams = Follower(*fronts)
        # Whoever pauses comes back when the log is beyond its place again.
        rests = Follower(fronts[1])

        async def later() -> bool:
            return await _seq(stack, "s1") > rests.frames[-1].seq + 30 if rests.frames else True

        async with asyncio.TaskGroup() as group:
            for each in (*stays, roams):
                group.create_task(each.follow("s1", "t1"))
            group.create_task(rests.follow("s1", "t1", pause=later))
            await _lose_in_turn(stack, unlucky, 40, 120)
    everybody = [*stays, roams, rests]
    again = [Follower(front) for front in fronts]
    for each in again:
        await each.follow("s1", "t1")
    told: dict[str, Any] = {}
    for each in (*everybody, *again):
        assert not each.twice
        for cursor, event in each.told.items():
            assert told.setdefault(cursor, event) == event, f"{cursor} means two different events"
    assert all(410 in each.statuses for each in everybody), [each.statuses for each in everybody]
    whole = "".join(f"tok{number} " for number in range(tokens))
    for each in (*everybody, *again):
        assert _answer(each.frames) == whole
        check_whole(each.frames)
    assert again[0].told == again[1].told
    hash_ = await stack.log.task(SessionKeys("dev", "s1"), "t1")
    assert hash_["status"] == "completed"
    redis: Any = stack.broker.sessions
    assert await redis.hget(SessionKeys("dev", "s1").task("t1"), "crashes") == b"0"


async def test_a_client_that_lost_nothing_goes_on(stack: Stack, unlucky: Unlucky) -> None:
    """Its cursor is of the former epoch, and holds: each event of the turn comes once."""
    client = await stack.front_end()
    await stack.worker()
    async with client.process("s1", "/tokens 150 10", id="t1") as stream:
        # A slow reader gets more at once; what it has must not be part of what is lost.
        before = list(await stream.until(lambda frames: len(frames) >= 15))[:15]
    await _lose_in_turn(stack, unlucky, 40, 80)
    follower = Follower(client)
    for frame in before:
        follower.take(frame)
    await wait_until(lambda: _ended(stack, "t1"), "the turn to end")
    await follower.follow("s1", "t1")
    assert follower.statuses[-1] == 200
    assert 410 not in follower.statuses
    check_whole(follower.frames)


async def _ended(stack: Stack, task: str) -> bool:
    try:
        return await stack.status("s1", task) in {"completed", "canceled", "failed"}
    except (RedisError, OSError):
        return False


async def test_a_stop_during_the_loss_ends_the_turn(stack: Stack, unlucky: Unlucky) -> None:
    """What /stop promises holds for the log that is left: the end is in it when it answers."""
    client = await stack.front_end()
    await stack.worker()
    async with client.process("s1", "/tokens 2000 10", id="t1") as stream:
        await stream.until(lambda frames: len(frames) > 1)
    await _lose_in_turn(stack, unlucky, 20, 60)

    async def stopped() -> bool:
        return (await client.stop("s1", "t1")).status_code == 200

    await wait_until(stopped, "the stop to be taken")
    follower = Follower(client)
    await follower.follow("s1", "t1")
    end = terminal(follower.frames)
    assert end is not None
    assert end["status"] == "canceled"
    check_whole(follower.frames)


async def test_an_answer_that_was_lost_is_given_again(stack: Stack, unlucky: Unlucky) -> None:
    """A parked turn went on, and the broker forgot it: the client is told by its cursor, and answers once more."""
    client = await stack.front_end()
    await stack.worker()
    async with client.process("s1", '/call weather {"city": "Bern"}', id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
    await wait_until(lambda: _is(stack, "t1", "parked"), "the turn to park")
    await unlucky.from_now_on()
    assert (await client.callback("s1", call["call_id"], "rain")).status_code == 200
    await wait_until(lambda: _is(stack, "t1", "completed"), "the turn to end")
    first = Follower(client)
    await first.follow("s1", "t1")
    await unlucky.lose()

    async def answered() -> bool:
        return (await client.callback("s1", call["call_id"], "sun")).status_code == 200

    await wait_until(answered, "the answer to be taken")
    second = Follower(client)
    await second.follow("s1", "t1")
    check_whole(second.frames)
    assert "sun" in orjson.dumps(terminal(second.frames)).decode()
    told = {**first.told, **second.told}
    assert all(told[cursor] == event for each in (first, second) for cursor, event in each.told.items())
    async with client.follow("s1", "t1", cursor=first.frames[-1].id) as late:
        assert late.response.status_code == 410


async def _is(stack: Stack, task: str, status: str) -> bool:
    return await stack.status("s1", task) == status


async def test_what_an_idle_session_lost_is_not_told_as_something_else(
    stack: Stack, unlucky: Unlucky
) -> None:
    """Nobody was writing when it happened. The turn before keeps its cursors, the lost one's are refused."""
    client = await stack.front_end()
    await stack.worker()
    kept = await client.turn("s1", "one", id="t1")
    await unlucky.from_now_on()
    lost = await client.turn("s1", "two", id="t2")
    await unlucky.lose()

    async def asked_again() -> list[Frame] | None:
        try:
            frames = await client.turn("s1", large_text(4), id="t3")
        except (AssertionError, httpx.HTTPError):
            return None
        return frames if terminal(frames) else None

    following = await wait_until(asked_again, "the next turn")
    assert text_of(following) == f"You said: {large_text(4)}"
    assert not {frame.id for frame in lost} & {frame.id for frame in following}
    # The next one went beyond where the lost one was: its cursors look as if they were served.
    assert following[-1].seq > lost[-1].seq
    for frame, status in ((lost[-1], 410), (lost[2], 410), (kept[2], 200)):
        async with client.follow("s1", "", cursor=frame.id) as stream:
            assert stream.response.status_code == status
    async with client.follow("s1", "t2") as stream:
        assert stream.response.status_code == 404
    async with client.follow("s1", "t1", cursor=kept[2].id) as stream:
        assert [frame.data for frame in await stream.all()] == [frame.data for frame in kept[3:]]


async def test_a_number_of_a_response_is_never_that_of_two_events(stack: Stack, unlucky: Unlucky) -> None:
    """OpenAI's clients go on by number. Whose last event was lost is told so, also when the log is beyond it again; others go on."""
    client = await stack.front_end()
    await stack.worker()
    tokens = 250
    got: list[dict[str, Any]] = []
    asked = {"input": f"/tokens {tokens} 10", "stream": True}
    async with client.http.stream("POST", "/v1/responses", json=asked) as answer:
        frames = _events(answer)
        while len(got) < 40:
            got.append(await anext(frames))
        name, kept = got[0]["response"]["id"], got[20]["sequence_number"]
        session = name.removeprefix("resp_").partition("~")[0]
        await unlucky.from_now_on()
        while len(got) < 110:
            got.append(await anext(frames))
    path, lost = f"/v1/responses/{name}", got[-1]["sequence_number"]
    await unlucky.lose()

    async def completed() -> bool:
        try:
            there = await client.http.get(path)
        except httpx.HTTPError:
            return False
        return there.status_code == 200 and there.json()["status"] == "completed"

    await wait_until(completed, "the response to be completed")
    assert await _seq(stack, session) > len(got) + 30

    async def behind(number: int | None) -> tuple[int, list[dict[str, Any]]]:
        params: dict[str, Any] = {"stream": "true"} | ({} if number is None else {"starting_after": number})
        async with client.http.stream("GET", path, params=params) as answer:
            return answer.status_code, [event async for event in _events(answer)]

    _, whole = await behind(None)
    assert "".join(each.get("delta", "") for each in whole).endswith(f"tok{tokens - 1} ")
    told = {each["sequence_number"]: each for each in got}
    assert all(told.get(each["sequence_number"], each) == each for each in whole)
    assert (await behind(lost))[0] == 410
    for number in (kept, whole[len(whole) // 2]["sequence_number"], whole[-2]["sequence_number"]):
        assert await behind(number) == (200, [each for each in whole if each["sequence_number"] > number])


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield orjson.loads(line[6:])
