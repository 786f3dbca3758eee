"""What an owner's sessions may hold: counted over all front ends, refused when it is too much, freed by operators."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.admin.test_limits import ask, limited
from tests.support.client import calls_of, terminal, text_of
from tests.support.commands import turnstream
from tests.support.names import names_of
from tests.support.waiting import wait_until
from turnstream.api.turns.stop import clear
from turnstream.shared.api_keys import ApiKeys, make_token
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import SessionKeys, TaskRef
from turnstream.shared.session import storage
from turnstream.shared.session.storage import SESSION_BYTES, TURN_BYTES, Storage, count
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from tests.support.stack import Stack

LARGE = "x" * 300_000


async def held(stack: Stack, owner: str = "acme") -> int:
    """The bytes that are counted for an owner."""
    return (await Storage(stack.broker.primary, stack.broker.sessions).of(owner, 1))[0]


async def there(stack: Stack, session: str, owner: str = "acme") -> int:
    """The bytes that stand in a session's log, history, memory and requests, counted one by one."""
    redis: Any = stack.broker.sessions
    prefix = f"ts:{{{owner}/{session}}}:"
    sums = 0
    for stream in ("log", "history"):
        for _, fields in await redis.xrange(prefix + stream):
            sums += sum(map(len, fields.values()))
    sums += sum(len(each) for each in await redis.lrange(prefix + "memory", 0, -1))
    for key in await names_of(redis, f"{prefix}task:*"):
        sums += len(await redis.hget(key, "request") or b"")
    return sums


async def test_what_sessions_hold_is_counted(stack: Stack) -> None:
    """The count is what is there, and little more; a cleared session holds nothing that was said."""
    await stack.worker()
    (client,) = await limited(stack, await stack.front_end(), storage=100_000_000)
    for number in range(3):
        await client.turn("s1", LARGE, id=f"t{number}")
    await client.turn("s2", "hello")
    for session in ("s1", "s2"):
        await Storage(stack.broker.primary, stack.broker.sessions).report(SessionKeys("acme", session))
    counted = await held(stack)
    real = await there(stack, "s1") + await there(stack, "s2")
    assert real > 6 * len(LARGE)
    assert real <= counted <= real * 1.05 + 2 * SESSION_BYTES + 4 * TURN_BYTES + 100_000
    assert (await client.http.post("/liteAgent/v1/clear", params={"sessionId": "s1"})).status_code == 200
    assert await held(stack) < 100_000


async def test_a_report_that_was_held_up_takes_no_newer_ones_place(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who read what a session holds, stood still and reported only then, reports again."""
    await stack.worker()
    (client,) = await limited(stack, await stack.front_end(), storage=100_000_000)
    await client.turn("s1", "hello")
    read, go_on = asyncio.Event(), asyncio.Event()

    async def held_up(*given: Any, **named: Any) -> Any:
        if asyncio.current_task() is report and not read.is_set():
            read.set()
            await go_on.wait()
        return await count(*given, **named)

    monkeypatch.setattr(storage, "count", held_up)
    begun = asyncio.get_running_loop().time()
    report = asyncio.create_task(
        Storage(stack.broker.primary, stack.broker.sessions).report(SessionKeys("acme", "s1"))
    )
    await read.wait()
    await client.turn("s1", LARGE, id="t2")
    await wait_until(lambda: _holds(stack, len(LARGE)), "the turn to be reported")
    late = begun + storage.LATE_SECONDS
    await wait_until(lambda: asyncio.get_running_loop().time() > late, "the report to be late")
    go_on.set()
    await report
    assert await held(stack) > len(LARGE)


async def _holds(stack: Stack, size: int) -> bool:
    return await held(stack) > size


async def test_who_holds_too_much_is_refused(stack: Stack) -> None:
    """429 through every front end, naming what to do; clearing makes room; a neighbour does not notice."""
    await stack.worker()
    first, second = await stack.front_end(), await stack.front_end()
    a, b = await limited(stack, first, second, storage=4_000_000)
    statuses = [(await ask(a, f"s{number}", LARGE)).status_code for number in range(12)]
    assert statuses[0] == 200
    assert statuses[-1] == 429
    for client in (a, b):
        refused = await ask(client, "other", LARGE * 3)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert "of the 4000000 bytes that they may" in refused.text
    # What a turn that was taken says comes on top: here its own words, several times.
    assert await held(stack) <= 4_000_000 + 8 * len(LARGE)
    assert (await ask(first, "s0", LARGE)).status_code == 200
    for number in range(12):
        await a.http.post("/liteAgent/v1/clear", params={"sessionId": f"s{number}"})
    assert (await ask(b, "other", LARGE)).status_code == 200


async def test_what_a_turn_will_take_is_counted_when_it_is_let_in(stack: Stack) -> None:
    """Turns that wait for a worker have reported nothing yet: the next one is refused all the same."""
    (client,) = await limited(stack, await stack.front_end(), storage=3_000_000)
    taken = 0
    async with AsyncExitStack() as streams:
        for number in range(12):
            stream = await streams.enter_async_context(client.process(f"s{number}", LARGE))
            if stream.response.status_code == 429:
                break
            taken += 1
    assert 0 < taken < 12
    assert await held(stack) >= taken * len(LARGE)


async def test_what_never_fits_is_refused_for_good(stack: Stack) -> None:
    """A turn that is larger than all that an owner may hold: 413 with both sizes, and no time to come again."""
    await stack.worker()
    (client,) = await limited(stack, await stack.front_end(), storage=500_000)
    assert (await ask(client, "s1", "hello", id="t1")).status_code == 200
    session = await client.init()
    before = await held(stack)
    content = [{"type": "text", "message": LARGE}]
    for refused in (
        await ask(client, "s1", LARGE),
        await client.http.post(
            "/liteAgent/v1/chat", params={"sessionId": session}, json={"content": content}
        ),
    ):
        assert refused.status_code == 413, refused.text
        assert "retry-after" not in refused.headers
        assert refused.json()["code"] in {"body_too_large", 41300}
        assert "may hold 500000: it never fits" in refused.json()["message"]
    assert await held(stack) == before


async def test_refused_turns_hold_nothing(stack: Stack) -> None:
    """A repeat, and one whose idempotency key was used otherwise, leave the count as it was."""
    await stack.worker()
    (client,) = await limited(stack, await stack.front_end(), storage=100_000_000)
    key = {"headers": {"Idempotency-Key": "k"}}
    assert (await ask(client, "s1", "hello", id="t1", **key)).status_code == 200
    # As the worker does when it has written the end.
    await Storage(stack.broker.primary, stack.broker.sessions).report(SessionKeys("acme", "s1"))
    before = await held(stack)
    assert (await ask(client, "s1", "hello", id="t1")).status_code == 200
    assert (await ask(client, "s1", LARGE, id="t2", **key)).status_code == 422
    assert await held(stack) == before


async def test_sessions_in_which_nobody_speaks_are_few_and_short_lived(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They live for minutes, and no key makes any number of them."""
    monkeypatch.setattr("turnstream.api.access.limits.SESSIONS_A_MINUTE", 3)
    await stack.worker()
    client = await stack.front_end()
    session = await client.init()
    meta = f"ts:{{dev/{session}}}:meta"
    assert 0 < await stack.broker.sessions.pttl(meta) <= 15 * 60_000
    async with client.chat(session, "hello") as stream:
        assert await stream.all()
    assert await stack.broker.sessions.pttl(meta) > 60 * 60_000
    for _ in range(2):
        await client.init()
    refused = await client.http.post("/liteAgent/v1/initSession")
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    # Turns of such a key are not limited.
    assert (await ask(client, "s1", "hello")).status_code == 200


async def test_an_owner_is_deleted(stack: Stack) -> None:
    """Listed and deleted from a terminal, one session or all: live turns end first, and nothing is left."""
    await stack.worker()
    front_end = await stack.front_end()
    (client,) = await limited(stack, front_end, storage=100_000_000)
    await client.turn("s1", LARGE)
    await client.turn("s2", "hello", headers={"Idempotency-Key": "k"})
    await front_end.turn("s1", "hello")
    env = {"TURNSTREAM_ADMIN_KEY": stack.admin, "TURNSTREAM_URL": front_end.base_url}
    async with client.process("s3", "/tokens 100000 5", id="t3") as stream:
        await stream.until(lambda frames: len(frames) > 3)
        listed = await turnstream("sessions", "list", "--owner", "acme", **env)
        lines = listed.out.splitlines()
        assert [line.split()[0] for line in lines[:2]] == ["SESSION", "s1"], listed
        assert "in 3 sessions" in lines[-1]
        one = await turnstream("sessions", "delete", "--owner", "acme", "--session", "s1", **env)
        assert one.out.split() == ["deleted", "acme/s1"], one
        everything = await turnstream("sessions", "delete", "--owner", "acme", **env)
        assert sorted(everything.out.split()) == ["acme/s2", "acme/s3", "deleted", "deleted"], everything
    assert await names_of(stack.broker.sessions, "ts:{acme/*") == []
    assert await held(stack) == 0
    assert (await client.http.get("/process", params={"session_id": "s3"})).status_code == 404
    # A rescuer that looks for a turn that is not there leaves a mark.
    await stack.tasks.sweep(TaskRef("acme", "s1", "t1"), operation())
    # So does a turn that was to be kept by replicas.
    await command(stack.broker.sessions, "SET", SessionKeys("acme", "s1").mark, "", "PX", 60_000)
    assert len(await names_of(stack.broker.sessions, "ts:{acme/*")) == 2
    nothing = await turnstream("sessions", "delete", "--owner", "acme", "--session", "s1", **env)
    assert (nothing.code, "404: No such session" in nothing.err) == (4, True)
    await command(stack.broker.sessions, "DEL", SessionKeys("acme", "s1").mark)
    # What is not even a turn is deleted, too, and so is what is left of a session that was lost.
    await command(stack.broker.sessions, "SET", SessionKeys("acme", "s1").task("t1"), "x", "PX", 60_000)
    await command(stack.broker.sessions, "RPUSH", SessionKeys("acme", "s2").memory, "x")
    everything = await turnstream("sessions", "delete", "--owner", "acme", **env)
    assert sorted(everything.out.split()) == ["acme/s1", "acme/s2", "deleted", "deleted"], everything
    assert await names_of(stack.broker.sessions, "ts:{acme/*") == []
    assert text_of(await front_end.turn("s1", "hi")) == "You said: hi"


async def test_who_speaks_while_a_session_is_deleted_is_answered(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that comes when the session has just been ended is in a new one, and nothing takes that away."""
    await stack.worker()
    client = await stack.front_end()
    await client.turn("s1", "hello")
    operator = stack.client(client.base_url, stack.admin)

    async def then_speaks(*given: Any, **more: Any) -> None:
        await clear(*given, **more)
        async with client.process("s1", "/call f {}", id="next") as stream:
            assert calls_of(await stream.until(calls_of))

    monkeypatch.setattr("turnstream.api.admin.sessions.clear", then_speaks)
    told = await operator.http.post("/admin/v1/sessions/delete", json={"owner": "dev", "session": "s1"})
    assert told.json() == {"deleted": ["s1"], "more": False}
    async with client.follow("s1", "next") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        assert (await client.callback("s1", call["call_id"], "x")).status_code == 200
        assert (terminal(await stream.all()) or {})["status"] == "completed"
    history = (await client.http.get("/liteAgent/v1/history", params={"sessionId": "s1"})).json()
    assert "hello" not in str(history)


async def test_one_owner_cannot_fill_the_broker(small: tuple[Stack, Any]) -> None:
    """Eve fills sessions until she is refused, which is long before the broker is full; Alice goes on; Eve is deleted."""
    stack, redis = small
    redis.delete("ballast")
    redis.config_set("maxmemory", 100_000_000)
    await stack.worker()
    front_end = await stack.front_end()
    keys = ApiKeys(stack.broker.primary)
    clients = {}
    for owner in ("eve", "alice"):
        token = make_token()
        await keys.register(token, owner=owner, agent="demo")
        clients[owner] = stack.client(front_end.base_url, token)
    statuses = []
    for number in range(60):
        statuses.append((await ask(clients["eve"], f"s{number}", "x" * 900_000)).status_code)
        if statuses[-1] != 200:
            break
    assert statuses[-1] == 429, statuses
    assert len(statuses) > 3
    assert await held(stack, "eve") <= 25_000_000 + 8 * 900_000
    async with clients["alice"].process("s1", "/tokens 50 1") as stream:
        assert terminal(await stream.all())
    # However it came to that, cleaning works when nothing else does.
    redis.config_set("maxmemory", 1_000_000)
    await wait_until(lambda: _status(clients["alice"], 503), "new turns to be refused")
    before = int(redis.info("memory")["used_memory"])
    env = {"TURNSTREAM_ADMIN_KEY": stack.admin, "TURNSTREAM_URL": front_end.base_url}
    deleted = await turnstream("sessions", "delete", "--owner", "eve", **env)
    assert len(deleted.out.splitlines()) == len(statuses) - 1, deleted
    await wait_until(lambda: int(redis.info("memory")["used_memory"]) < before / 2, "memory to be free")
    redis.config_set("maxmemory", 100_000_000)
    await wait_until(lambda: _status(clients["eve"], 200), "new turns to be taken")


async def _status(client: Any, status: int) -> bool:
    return bool((await ask(client, "new", "hi")).status_code == status)
