"""Limits of keys and of the deployment: what is too much is refused, everywhere, and not for longer than needed."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import calls_of, terminal
from tests.support.waiting import wait_until
from turnstream.shared.api_keys import ApiKeys, Limits, make_token
from turnstream.shared.broker import keys
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.metrics import unreadable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.client import Client
    from tests.support.stack import Stack


async def limited(stack: Stack, *front_ends: Client, **limits: int) -> list[Client]:
    """Clients with one key of these limits, one for each front end."""
    token = make_token()
    await ApiKeys(stack.broker.primary).register(token, owner="acme", agent="demo", limits=Limits(**limits))
    return [stack.client(each.base_url, token) for each in front_ends]


def refused(answer: Any, code: str = "too_many", status: int = 429) -> bool:
    """Whether the answer to `/process` is a response that was over before it began."""
    assert answer.status_code == status, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    body = answer.json()
    assert body["object"] == "response"
    assert body["status"] == "rejected"
    return bool(body["error"]["code"] == code)


async def ask(client: Client, session: str, text: str, **more: Any) -> Any:
    """A turn without a stream."""
    headers = more.pop("headers", None)
    body = {"session_id": session, "stream": False, "input": [{"role": "user", "content": text}], **more}
    return await client.http.post("/process", json=body, headers=headers)


async def test_turns_a_minute_are_limited_over_all_front_ends(stack: Stack) -> None:
    """What is too much within a minute is refused through either protocol, sessions too; a repeat of a turn is not."""
    await stack.worker()
    a, b = await limited(stack, await stack.front_end(), await stack.front_end(), rate=3)
    session = await b.init()
    assert (await ask(a, "s1", "hello", id="t1")).status_code == 200
    async with b.chat(session, "hello") as stream:
        assert await stream.all()
    for client in (a, b):
        answer = await ask(client, "s2", "hello")
        assert refused(answer)
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert "3 turns a minute" in answer.json()["error"]["message"]
    async with b.chat(session, "again") as stream:
        answer = stream.response
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert orjson_code(await answer.aread()) == "too_many"
    assert (await a.http.post("/liteAgent/v1/initSession")).status_code == 429
    repeated = await ask(b, "s1", "hello", id="t1")
    assert repeated.status_code == 200
    assert repeated.json()["status"] == "completed"
    assert (await a.http.get("/process", params={"session_id": "s1", "response_id": "t1"})).status_code == 200


def orjson_code(body: bytes) -> Any:
    """The word for a LiteAgent error in its body; its code is a number."""
    import orjson

    return orjson.loads(body)["reason"]


async def test_what_is_refused_for_its_body_counts_as_a_turn(stack: Stack) -> None:
    """Through either protocol: to read a wrong body costs as much as a right one."""
    await stack.worker()
    (client,) = await limited(stack, await stack.front_end(), rate=2)
    session = await client.init()
    assert (await client.http.post("/process", content=b'{"input": [{"role": 5}]}')).status_code == 422
    path, params = "/liteAgent/v1/chat", {"sessionId": session}
    assert (await client.http.post(path, params=params, content=b"{")).status_code == 422
    assert refused(await ask(client, "s1", "hello"))


async def test_room_comes_back_as_the_minute_passes(stack: Stack) -> None:
    """What was begun more than a minute ago does not count."""
    await stack.worker()
    (client,) = await limited(stack, await stack.front_end(), rate=1)
    assert (await ask(client, "s1", "hello", id="t1")).status_code == 200
    assert refused(await ask(client, "s1", "hello", id="t2"))
    (begun,) = await stack.broker.primary.zrange(keys.owner_rate("acme"), 0, -1)
    await stack.broker.primary.zincrby(keys.owner_rate("acme"), -59_000, begun)
    assert (await ask(client, "s1", "hello", id="t2")).headers["retry-after"] == "1"
    await stack.broker.primary.zincrby(keys.owner_rate("acme"), -1_001, begun)
    assert (await ask(client, "s1", "hello", id="t2")).status_code == 200


async def test_turns_at_once_are_limited_over_all_front_ends(stack: Stack) -> None:
    """Queued and running ones count, over sessions and front ends; one that ends makes room at once."""
    await stack.worker()
    a, b = await limited(stack, await stack.front_end(), await stack.front_end(), concurrency=2)
    async with (
        a.process("s1", "/tokens 100000 5", id="t1") as first,
        b.process("s2", "/tokens 100000 5", id="t2"),
    ):
        await first.until(lambda frames: len(frames) > 3)
        for client in (a, b):
            assert refused(await ask(client, "s3", "hello"))
        answers = await asyncio.gather(*(ask(a, f"s{number}", "hello") for number in range(3, 13)))
        assert all(refused(answer) for answer in answers)
        # Who only asks again for what runs already is not refused.
        async with b.process("s1", "/tokens 100000 5", id="t1") as again:
            assert again.response.status_code == 200
        assert (await a.stop("s1", "t1")).status_code == 200
        assert (await ask(b, "s3", "hello")).status_code == 200
        assert (await ask(a, "s3", "hello")).status_code == 200
        await a.stop("s2", "t2")


async def test_a_turn_that_waits_for_its_client_does_not_count(stack: Stack) -> None:
    """It holds no worker; when it goes on it counts again."""
    await stack.worker()
    (client,) = await limited(stack, await stack.front_end(), concurrency=1)
    async with client.process("s1", "/call f {}", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        await wait_until(lambda: parked(stack, "s1", "t1"), "the turn to be parked")
        assert (await ask(client, "s2", "hello")).status_code == 200
        assert (await ask(client, "s2", "hello")).status_code == 200
        await client.callback("s1", call["call_id"], "x")
        assert terminal(await stream.all())


async def test_a_turn_that_goes_on_counts_again(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is let on whatever the count is; new turns are refused until there is room for it, too."""
    monkeypatch.setattr("turnstream.api.access.limits.SLACK_SECONDS", 0.1)
    await stack.worker()
    (client,) = await limited(stack, await stack.front_end(), concurrency=1)

    async def full() -> bool:
        return bool((await ask(client, "s9", "hello")).status_code == 429)

    async with client.process("s1", "/call f {}", id="t1") as first:
        (call,) = calls_of(await first.until(calls_of))
        await wait_until(lambda: parked(stack, "s1", "t1"), "the turn to be parked")
        async with client.process("s2", "/tokens 100000 5", id="t2") as second:
            await second.until(lambda frames: len(frames) > 5)
            # Two of them, with a limit of one: the first one was let in long ago.
            assert (await client.callback("s1", call["call_id"], "x")).status_code == 200
            assert terminal(await first.all())
            await wait_until(full, "new turns to be refused")
            await client.stop("s2", "t2")
        assert (await ask(client, "s3", "hello")).status_code == 200
    async with client.process("s4", "/call f {}", id="t4") as third:
        (call,) = calls_of(await third.until(calls_of))
        await wait_until(lambda: parked(stack, "s4", "t4"), "the turn to be parked")
        await stack.stop_worker(stack.workers[0][0])
        await client.callback("s4", call["call_id"], "x")
        # It waits for a worker, and counts; no other may begin.
        await wait_until(full, "new turns to be refused")
        await client.stop("s4", "t4")


async def parked(stack: Stack, session: str, task: str) -> bool:
    """Whether the owner's task is parked."""
    return await stack.status(session, task, "acme") == "parked"


async def test_counts_do_not_leak(stack: Stack) -> None:
    """What ended unnoticed, expired, or was never made takes nobody's place for long."""
    await stack.worker()
    (client,) = await limited(stack, await stack.front_end(), concurrency=2)
    assert (await ask(client, "s1", "hello", id="t1")).status_code == 200
    counted = keys.owner_turns("acme")
    assert await stack.broker.primary.zcard(counted) == 0
    # Their enders died before they took them out; the second one's session is long gone.
    await stack.broker.primary.zadd(counted, {"acme/s1/t1 1": 1, "acme/s9/t9 1": 1})
    assert (await ask(client, "s2", "hello")).status_code == 200
    assert await stack.broker.primary.zcard(counted) == 0
    # A turn that its session refuses is not counted either.
    for _ in range(3):
        assert (await ask(client, "s1", "hello", id="t1")).status_code == 200
    async with client.chat("unknown", "hello") as stream:
        assert stream.response.status_code == 404
    assert await stack.broker.primary.zcard(counted) == 0


async def _odd_members(redis: Any) -> None:
    # As many as the key allows, and more: some of no turn, some from a time that is yet to come.
    now = 1000 * int((await redis.time())[0])
    turns = {b"\xff": now, "x": now, "a/b/c/d 1": now, "acme/s1/t0 1": math.inf, "acme/odd/t 1": now}
    await redis.zadd(keys.owner_turns("acme"), turns)
    await redis.set(SessionKeys("acme", "odd").task("t"), "no hash", px=60_000)
    await redis.zadd(keys.owner_rate("acme"), {b"\xff": -math.inf})
    await redis.hset(keys.owner_bytes("acme"), mapping={b"\xff": b"\xff", "s3": "x"})
    await redis.zadd(keys.owner_sessions("acme"), {b"\xff": 1, "s3": 1})
    await redis.hset(keys.owner_followers("acme"), mapping={b"\xff": b"\xff", "front": "", "end": "1"})


async def _odd_numbers(redis: Any) -> None:
    await redis.hset(keys.owner_bytes("acme"), mapping={"": "x", "s1": "y"})
    await redis.zadd(keys.owner_sessions("acme"), {"s1": 1e14})
    await redis.hset(keys.owner_followers("acme"), mapping={"front": "1 x", "end": "x 1"})


async def _odd_types(redis: Any) -> None:
    for name in _COUNTS:
        await redis.delete(name("acme"))
        await redis.set(name("acme"), "x")


_COUNTS = (
    keys.owner_turns, keys.owner_rate, keys.owner_bytes, keys.owner_sessions, keys.owner_followers,
)  # fmt: skip


@pytest.mark.parametrize("spoil", [_odd_members, _odd_numbers, _odd_types])
async def test_counts_that_cannot_be_read_stop_nobody(stack: Stack, spoil: Callable[[Any], Any]) -> None:
    """Whatever stands among an owner's counts: turns are let in and end, operators see what is held, and it is counted."""
    await stack.worker()
    front_end = await stack.front_end()
    (client,) = await limited(stack, front_end, concurrency=2, rate=100, followers=10, storage=10_000_000)
    redis: Any = stack.broker.primary

    async def spoilt() -> None:
        await spoil(redis)
        for name in _COUNTS:
            await redis.pexpire(name("acme"), 600_000)

    operator = stack.client(front_end.base_url, stack.admin)
    before = unreadable.by["count"]
    await spoilt()
    answer = await operator.http.get("/admin/v1/sessions", params={"owner": "acme"})
    assert answer.status_code == 200 or spoil is _odd_types, answer.text
    assert (await ask(client, "s1", "hello", id="t1")).status_code == 200
    async with client.process("s2", "/tokens 100000 20", id="t2") as stream:
        await stream.until(len)
        # It is stopped, and its end is reported, among the same things.
        await spoilt()
        assert (await client.stop("s2", "t2")).status_code == 200
        assert terminal(await stream.all())
    assert (await ask(client, "s3", "hello", id="t3")).status_code == 200
    await client.turn("s4", "hello", id="t4")
    assert unreadable.by["count"] > before

    async def none() -> bool:
        return not await redis.zcard(keys.owner_turns("acme"))

    await wait_until(none, "nothing to be counted any more")
    answer = await operator.http.get("/admin/v1/sessions", params={"owner": "acme"})
    assert answer.status_code == 200, answer.text


async def test_followers_are_limited_over_all_front_ends(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third stream is refused at either front end; one that is closed makes room."""
    monkeypatch.setattr("turnstream.api.access.limits.TELL_SECONDS", 0.05)
    await stack.worker()
    a, b = await limited(stack, await stack.front_end(), await stack.front_end(), followers=2)
    await a.turn("s1", "hello", id="t1")
    async with AsyncExitStack() as streams:
        # Whoever drops a stream closes it.
        held = [await streams.enter_async_context(client.follow("s1")) for client in (a, b)]
        for stream in held:
            assert stream.response.status_code == 200
            await stream.until(lambda frames: frames)
        for client in (a, b):
            answer = await client.http.get("/process", params={"session_id": "s1"})
            assert answer.status_code == 429
            assert answer.json()["code"] == "too_many"
            assert refused(await ask(client, "s1", "hello"))

    async def room() -> bool:
        return bool((await ask(b, "s1", "hello")).status_code == 200)

    await wait_until(room, "the closed streams to make room")


async def test_followers_who_come_together_are_counted_one_by_one(stack: Stack) -> None:
    """Of thirty who come at once at two front ends, by keys of two limits, as many are let in as may be, and no more."""
    await stack.worker()
    front_ends = [await stack.front_end(), await stack.front_end()]
    few, many = [await limited(stack, *front_ends, followers=most) for most in (6, 8)]
    await few[0].turn("s1", "hello")
    leave = asyncio.Event()

    async def come(client: Client) -> int:
        async with client.follow("s1") as stream:
            status: int = stream.response.status_code
            if status == 200:
                await leave.wait()
            return status

    async def settled(coming: list[asyncio.Task[int]], refused: int) -> bool:
        return sum(each.done() for each in coming) >= refused

    with_few = [asyncio.create_task(come(few[number % 2])) for number in range(30)]
    await wait_until(lambda: settled(with_few, 24), "all but six to be refused")
    with_many = [asyncio.create_task(come(many[number % 2])) for number in range(30)]
    await wait_until(lambda: settled(with_many, 28), "all but two more to be refused")
    leave.set()
    answers = [await asyncio.gather(*coming) for coming in (with_few, with_many)]
    assert [each.count(200) for each in answers] == [6, 2]
    assert [each.count(429) for each in answers] == [24, 28]


async def test_a_full_queue_refuses_new_turns_of_everybody(stack: Stack) -> None:
    """503 with `Retry-After`, in each protocol's shape; repeats find their turn, and a worker makes room."""
    client = await stack.front_end(max_queued=1)
    session = await client.init()
    async with client.process("s1", "hello", id="t1") as first:
        await first.until(lambda frames: frames)
        assert refused(await ask(client, "s2", "hello"), "overloaded", 503)
        async with client.chat(session, "hello") as stream:
            assert stream.response.status_code == 503
            assert orjson_code(await stream.response.aread()) == "overloaded"
        async with client.process("s1", "hello", id="t1") as again:
            assert again.response.status_code == 200
            await stack.worker()
            assert terminal(await again.all())
    assert (await ask(client, "s2", "hello")).status_code == 200


async def test_a_full_front_end_sends_followers_elsewhere(stack: Stack) -> None:
    """503 `overloaded` when it holds as many streams as it may, 429 when one owner does."""
    await stack.worker()
    client = await stack.front_end(max_followers=2, max_followers_per_owner=1)
    (other,) = await limited(stack, client)
    await client.turn("s1", "hello")
    await other.turn("s1", "hello")
    async with client.follow("s1") as first:
        await first.until(lambda frames: frames)
        assert (await client.http.get("/process", params={"session_id": "s1"})).status_code == 429
        async with other.follow("s1") as second:
            await second.until(lambda frames: frames)
            answer = await other.http.get("/process", params={"session_id": "s1"})
            assert answer.status_code == 503
            assert answer.json()["code"] == "overloaded"


@pytest.mark.parametrize("change", ["revoke", "rotate"])
async def test_a_changed_key_is_changed_everywhere_soon(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Revoked or rotated over HTTP, a key that front ends know is refused without a restart; its successor works."""
    monkeypatch.setattr("turnstream.api.access.auth.KNOWN_SECONDS", 0.1)
    client = await stack.front_end()
    admin = stack.client(client.base_url, stack.admin)
    made = (await admin.http.post("/admin/v1/keys", json={"owner": "acme", "rate": 7, "days": 1})).json()
    holder = stack.client(client.base_url, made["token"])
    assert (await holder.http.post("/liteAgent/v1/initSession")).status_code == 200
    (row,) = [
        key for key in (await admin.http.get("/admin/v1/keys")).json()["keys"] if key["id"] == made["id"]
    ]
    assert row == {name: value for name, value in made.items() if name != "token"}
    assert (row["rate"], row["owner"], row["shown"]) == (7, "acme", made["token"][:7])
    if change == "rotate":
        new = (await admin.http.post(f"/admin/v1/keys/{made['id']}/rotate", json={"hours": 0})).json()
        assert {**new, "id": "", "shown": "", "token": "", "created_at": 0} == {
            **made, "id": "", "shown": "", "token": "", "created_at": 0,
        }  # fmt: skip
        successor = stack.client(client.base_url, new["token"])
        assert (await successor.http.post("/liteAgent/v1/initSession")).status_code == 200
    else:
        assert (await admin.http.post(f"/admin/v1/keys/{made['id']}/revoke")).json()["revoked"]

    async def refused_everywhere() -> bool:
        return bool((await holder.http.post("/liteAgent/v1/initSession")).status_code == 401)

    await wait_until(refused_everywhere, "the former key to be refused")
    assert (await admin.http.post(f"/admin/v1/keys/{made['id']}/revoke")).status_code == 404
