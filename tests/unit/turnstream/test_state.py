"""What the embedded broker holds outlives its process: turns, sessions and keys; and what a killed one loses is detected."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from fakeredis import FakeStrictRedis

from tests.support.client import Client, calls_of
from tests.support.serving import serve
from tests.support.waiting import wait_until
from turnstream import state as state_module
from turnstream.state import State

if TYPE_CHECKING:
    from pathlib import Path


def contents(redis: Any) -> dict[bytes, object]:
    """All that a broker holds, with its times."""
    read = {
        b"string": redis.get,
        b"hash": redis.hgetall,
        b"set": redis.smembers,
        b"zset": lambda key: redis.zrange(key, 0, -1, withscores=True),
        b"list": lambda key: redis.lrange(key, 0, -1),
        b"stream": redis.xrange,
    }
    return {key: (redis.pexpiretime(key), read[redis.type(key)](key)) for key in redis.keys("*")}


def fill(redis: Any) -> None:
    """Keys of all types, with bytes that are no text, of a session and of the deployment."""
    redis.hset("ts:{dev/s1}:meta", mapping={"epoch": "7", b"\x00\xff": b"\xfe\n"})
    redis.xadd("ts:{dev/s1}:log", {"t": "x", "e": "ä"}, id="1764000000000001-1")
    redis.xadd("ts:{dev/s1}:log", {"t": b"\x80"}, id="1764000000000001-2")
    redis.rpush("ts:{dev/s1}:waiting", "b", "a", "b")
    redis.pexpire("ts:{dev/s1}:log", 3_600_000)
    redis.zadd("ts:due", {"dev/s1/t1": 1764000000123.0, "*": float("inf")})
    redis.sadd("some:set", b"\xff", "one")
    redis.set("ts:{dev/s2}:idem:k", "")


def test_all_of_it_comes_back(tmp_path: Path) -> None:
    """Each type, to the byte, with its expiry; not what was said of processes; and what is deleted stays so."""
    state = State(tmp_path)
    redis = FakeStrictRedis(server=state.server)
    fill(redis)
    before = contents(redis)
    redis.hset("ts:workers", "w1", "here")
    state.close()

    second = State(tmp_path)
    redis = FakeStrictRedis(server=second.server)
    assert contents(redis) == before
    assert second.incarnation == state.incarnation
    redis.delete("ts:{dev/s1}:log", "ts:{dev/s1}:meta", "ts:{dev/s1}:waiting")
    second.close()

    third = State(tmp_path)
    redis = FakeStrictRedis(server=third.server)
    assert sorted(contents(redis)) == [
        b"some:set",
        b"ts:due",
        b"ts:{dev/s2}:idem:k",
    ]
    third.close()


async def test_what_changes_is_written_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed leaves what was written before; the next one is another incarnation. While turns run, it is put off."""
    monkeypatch.setattr(state_module, "SECONDS", 0.01)
    state = State(tmp_path)
    redis = FakeStrictRedis(server=state.server)
    fill(redis)
    busy = True
    asked = 0

    def is_busy() -> bool:
        nonlocal asked
        asked += 1
        return busy

    tending = asyncio.create_task(state.tend(is_busy))
    await wait_until(lambda: asked > 3, "some looks")
    assert not state._written
    busy = False
    await wait_until(lambda: b"dev/s1" in state._written, "the session to be written")
    redis.hset("ts:{dev/s1}:meta", "epoch", "8")
    redis.delete("ts:{dev/s2}:idem:k")
    mark = state._written[b"dev/s1"]
    await wait_until(lambda: state._written.get(b"dev/s1") != mark, "the change to be written")
    before = contents(redis)
    tending.cancel()
    await asyncio.gather(tending, return_exceptions=True)
    # As a process that is killed leaves it.
    assert state._file is not None
    state._file.close()
    os.close(state._lock)

    second = State(tmp_path)
    assert contents(FakeStrictRedis(server=second.server)) == before
    assert second.incarnation != state.incarnation
    second.close()


def test_one_process_has_it(tmp_path: Path) -> None:
    """Another one in the same folder keeps nothing, and says so; a folder that cannot be made, too."""
    first = State(tmp_path)
    second = State(tmp_path)
    assert (first.kept, second.kept) == (True, False)
    second.close()
    first.close()
    third = State(tmp_path)
    assert third.kept
    third.close()
    (tmp_path / "file").touch()
    nowhere = State(tmp_path / "file" / "state")
    assert not nowhere.kept
    nowhere.close()


async def test_turns_go_on_after_a_restart(tmp_path: Path) -> None:
    """One that waits for its client is answered, one that was running goes on, and the session remembers."""
    async with serve(tmp_path) as first:
        assert "Sessions are kept in .turnstream/" in first.said
        client = Client(first.url, first.keys[0])
        assert (await client.turn("s1", "/think", id="t1"))[-1].data["status"] == "completed"
        async with client.process("s2", "/call weather {}", id="t2") as stream:
            (call,) = calls_of(await stream.until(calls_of))
        async with client.process("s3", "/tokens 400 20", id="t3") as stream:
            await stream.until(lambda frames: len(frames) > 8)
        await client.close()
    async with serve(tmp_path) as second:
        client = Client(second.url, second.keys[0])
        history = await client.http.get("/liteAgent/v1/history", params={"sessionId": "s1"})
        assert "/think" in history.text
        answer = {"id": call["call_id"], "result": "rain"}
        done = await client.http.post("/liteAgent/v1/callback", params={"sessionId": "s2"}, json=answer)
        assert done.status_code == 200, done.text
        for session, task in (("s2", "t2"), ("s3", "t3")):
            async with client.follow(session, task) as stream:
                followed = await stream.all()
            assert followed[-1].data["status"] == "completed"
        assert "tok399" in str(followed[-1].data)
        await client.close()


async def test_what_a_killed_process_lost_is_detected(tmp_path: Path) -> None:
    """After a SIGKILL the session goes on in a new epoch: no event's id is given twice."""
    async with serve(tmp_path) as first:
        client = Client(first.url, first.keys[0])
        await client.turn("s1", "hello", id="t1")
        file = tmp_path / ".turnstream" / "state.sqlite"
        await wait_until(lambda: b"dev/s1" in _groups(file), "the session to be written")
        epoch = (await client.turn("s1", "again", id="t2"))[-1].id.partition("-")[0]
        first.process.send_signal(signal.SIGKILL)
        await wait_until(lambda: first.process.poll() is not None, "the process to end")
        await client.close()
    async with serve(tmp_path) as second:
        client = Client(second.url, second.keys[0])
        frames = await client.turn("s1", "once more", id="t3")
        assert frames[-1].data["status"] == "completed"
        assert int(frames[-1].id.partition("-")[0]) > int(epoch)
        await client.close()


def _groups(file: Path) -> set[bytes]:
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as reader:
        return {bytes(name) for (name,) in reader.execute("SELECT name FROM groups")}
