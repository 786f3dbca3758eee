"""Sessions on a Redis Cluster whose slots move and whose nodes come and go, through HTTP.

A turn goes on, and whoever follows it gets each event once, or is told that what it saw is gone.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.conftest import Place
from tests.processes.broker import Broker
from tests.processes.servers import RedisCluster
from tests.support.client import check_whole, large_text, terminal, text_of
from tests.support.follower import Follower
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared import metrics
from turnstream.shared.broker.client import command, takes_writes
from turnstream.shared.broker.keys import SessionKeys, TaskRef
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.session.outcomes import Attempt
from turnstream.shared.session.queue import LaunchQueue
from turnstream.shared.session.tasks import Tasks, operation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.processes.servers import ClusterNode
    from tests.support.client import Client, Frame

KEYS = SessionKeys("dev", "s1")


class OpenPlace(Place):
    """The brokers let everybody in."""

    def credentials(self, user: str) -> dict[str, Any]:
        """None."""
        return {}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RedisCluster]:
    """A cluster of the test's own, whose nodes can be cut off from each other."""
    async with RedisCluster(tmp_path / "cluster", linked=True) as cluster:
        yield cluster


@pytest.fixture
async def stack(cluster: RedisCluster, tmp_path: Path) -> AsyncIterator[Stack]:
    """A deployment on it, and on a primary."""
    primary = Broker(tmp_path / "primary")
    # One address is enough to know the others by.
    sessions = f"redis+cluster://127.0.0.1:{cluster.replicas[2].port}"
    place = OpenPlace(f"redis://127.0.0.1:{primary.start().port}/0", None, sessions)
    # Each piece of text is an event: these are counted.
    stack = Stack(place, flush_seconds=0, lease_seconds=5, heartbeat_seconds=1)
    yield stack
    await stack.close()
    await place.close()
    primary.stop()


async def _seq(stack: Stack) -> int:
    try:
        meta = await stack.log.meta(KEYS)
    except Exception as error:
        if not is_transient(error):
            raise
        return 0
    return meta.seq if meta else 0


async def _beyond(stack: Stack, count: int) -> None:
    async def beyond() -> bool:
        return await _seq(stack) > count

    await wait_until(beyond, f"event {count} of the turn", 60)


async def _whereabouts(cluster: RedisCluster) -> tuple[int, ClusterNode, list[ClusterNode]]:
    """The session's slot, the node that has it, and the other primaries."""
    slot = await cluster.slot(KEYS.meta)
    owner = await cluster.owner(slot)
    return slot, owner, [node for node in cluster.primaries if node is not owner]


@asynccontextmanager
async def _turn(stack: Stack, tokens: int) -> AsyncIterator[list[Follower]]:
    """A turn of so many tokens, and who follows it at two front ends; within, it has begun, and behind, it has ended."""
    fronts = [await stack.front_end(), await stack.front_end()]
    await stack.worker()
    followers = [Follower(fronts[0]), Follower(fronts[1]), Follower(*fronts)]
    async with fronts[0].process("s1", f"/tokens {tokens} 10", id="t1") as stream:
        await stream.until(lambda frames: len(frames) > 5)
        async with asyncio.TaskGroup() as group:
            for each in followers:
                group.create_task(each.follow("s1", "t1"))
            await wait_until(lambda: all(each.frames for each in followers), "the followers")
            yield followers
    again = Follower(fronts[1])
    await again.follow("s1", "t1")
    told: dict[str, Any] = {}
    for each in (*followers, again):
        check_whole(each.frames)
        assert _answer(each.frames) == "".join(f"tok{number} " for number in range(tokens))
        assert not each.twice
        for cursor, event in each.told.items():
            assert told.setdefault(cursor, event) == event, f"{cursor} means two different events"
    patient = stack.broker.retrying(10).sessions
    assert await command(patient, "HGET", KEYS.task("t1"), "crashes") in {None, b"0"}


def _answer(frames: list[Frame]) -> str:
    end = terminal(frames)
    assert end is not None
    assert end["status"] == "completed", end
    return str(end["output"][-1]["content"][0]["text"])


@pytest.mark.parametrize("how", ["key by key", "at once"])
async def test_a_slot_moves_while_a_turn_speaks(stack: Stack, cluster: RedisCluster, how: str) -> None:
    """There, on to a third node, and back to the first: nobody who follows has to begin anew."""
    slot, first, (second, third) = await _whereabouts(cluster)
    losses = metrics.tail_losses.n
    async with _turn(stack, 400) as followers:
        for number, node in enumerate((second, third, first)):
            if how == "at once":
                await cluster.move_at_once(slot, node)
            else:
                source = await cluster.begin_move(slot, node)
                # The session's keys are at both nodes for a while.
                assert await cluster.move_keys(slot, source, node, 2)
                while await cluster.move_keys(slot, source, node):
                    pass
                await cluster.end_move(slot, source, node)
            await _beyond(stack, 40 * (number + 1))
    assert all(set(each.statuses) == {200} for each in followers), [each.statuses for each in followers]
    assert metrics.tail_losses.n >= losses + 3


async def test_a_node_dies_while_a_turn_speaks(stack: Stack, cluster: RedisCluster) -> None:
    """Its replica, which has everything, takes its place. The turn waits for that and goes on."""
    _, owner, _ = await _whereabouts(cluster)
    replica = cluster.replicas[cluster.primaries.index(owner)]
    async with _turn(stack, 600) as followers:
        await _beyond(stack, 60)
        # What is under way to the replica at this moment may be lost.
        owner.kill()
        await cluster.failed_over(replica)
    # Somebody may have seen what was lost, and began anew.
    assert all(set(each.statuses) <= {200, 410} for each in followers), [each.statuses for each in followers]


async def test_a_node_without_a_replica_comes_back(stack: Stack, cluster: RedisCluster) -> None:
    """With its file. Nobody took its place meanwhile, so the turn waits for it."""
    _, owner, _ = await _whereabouts(cluster)
    cluster.replicas[cluster.primaries.index(owner)].kill()
    async with _turn(stack, 400):
        await _beyond(stack, 40)
        owner.kill()
        await cluster.restart(owner)


async def test_a_node_that_reads_its_file_for_long_is_waited_for(stack: Stack, cluster: RedisCluster) -> None:
    """It says LOADING to who subscribes meanwhile, CLUSTERDOWN to others, and is the only one that has the turn."""
    slot, owner, _ = await _whereabouts(cluster)
    cluster.replicas[cluster.primaries.index(owner)].kill()
    # It answers others each 1,024 commands of its file, that is each tenth of a second.
    with (owner.folder / "server.conf").open("a") as configuration:
        configuration.write("key-load-delay 100\n")
    fill = "for number = 1, 40000 do redis.call('SET', KEYS[1], number) end"
    async with _turn(stack, 400):
        await _beyond(stack, 40)
        await owner.ask("EVAL", fill, 1, f"{{{KEYS.owner}/{KEYS.session}}}:filler")
        await owner.ask("WAITAOF", 1, 0, 5000)
        owner.kill()
        await cluster.restart(owner)
        # To be asked who it is proves nothing.
        _, _, away = await takes_writes(stack.broker.once.sessions)
        assert [port for _, port in away] == [owner.address.port]
        # Who starts it asks PING.
        pings = re.search(r"cmdstat_ping:.*rejected_calls=(\d+)", await owner.ask("INFO", "commandstats"))
        assert await _refused(owner, "LOADING") > int(pings[1] if pings else 0)
    assert await cluster.owner(slot) is owner


async def test_a_node_whose_slot_is_down_is_waited_for(stack: Stack, cluster: RedisCluster) -> None:
    """It says CLUSTERDOWN, as it would where too many others are gone."""
    slot, owner, _ = await _whereabouts(cluster)
    async with _turn(stack, 400) as followers:
        await _beyond(stack, 40)
        await owner.ask("CLUSTER", "DELSLOTS", slot)

        async def refused() -> bool:
            return await _refused(owner, "CLUSTERDOWN") > 5

        await wait_until(refused, "the node to refuse commands")
        await owner.ask("CLUSTER", "ADDSLOTS", slot)
        await _beyond(stack, 80)
    assert all(set(each.statuses) == {200} for each in followers), [each.statuses for each in followers]


async def _refused(node: ClusterNode, why: str) -> int:
    """How many commands a node has refused for that reason."""
    _, _, count = (await node.ask("INFO", "errorstats")).partition(f"errorstat_{why}:count=")
    return int(count.split()[0]) if count else 0


async def test_a_replica_that_lagged_takes_over(stack: Stack, cluster: RedisCluster) -> None:
    """Who has seen what it lacks is told so, and nothing is told under an id of something else."""
    _, owner, _ = await _whereabouts(cluster)
    replica = cluster.replicas[cluster.primaries.index(owner)]
    async with _turn(stack, 400) as followers:
        await _beyond(stack, 40)
        await cluster.lag(replica)
        kept = await _seq(stack)
        await _beyond(stack, kept + 60)
        owner.kill()
        await cluster.failed_over(replica)
    assert all(410 in each.statuses for each in followers), [each.statuses for each in followers]


async def test_a_node_that_stood_still_is_replaced(stack: Stack, cluster: RedisCluster) -> None:
    """It goes on as a replica, with its connections, and says nothing of what it missed."""
    _, owner, _ = await _whereabouts(cluster)
    replica = cluster.replicas[cluster.primaries.index(owner)]
    async with _turn(stack, 500):
        await _beyond(stack, 40)
        owner.freeze()
        try:
            await cluster.failed_over(replica, but=owner)
        finally:
            owner.thaw()


async def test_a_node_that_is_cut_off_from_the_others_is_replaced(
    stack: Stack, cluster: RedisCluster
) -> None:
    """Front ends and workers still reach it. What it takes before it notices is lost, and told to be."""
    _, owner, _ = await _whereabouts(cluster)
    replica = cluster.replicas[cluster.primaries.index(owner)]
    others = [each for each in cluster.nodes if each is not owner]
    async with _turn(stack, 600) as followers:
        await _beyond(stack, 40)
        owner.part(*others)
        await cluster.failed_over(replica, but=owner)
        owner.join(*others)
        await cluster.whole()
        assert await owner.role() == "slave"
    assert all(set(each.statuses) <= {200, 410} for each in followers), [each.statuses for each in followers]


async def test_a_node_that_is_cut_off_for_a_moment_stays(stack: Stack, cluster: RedisCluster) -> None:
    """For less than the node timeout. Nobody has to begin anew."""
    _, owner, _ = await _whereabouts(cluster)
    others = [each for each in cluster.nodes if each is not owner]
    async with _turn(stack, 200) as followers:
        await _beyond(stack, 40)
        owner.part(*others)
        await _beyond(stack, 80)
        owner.join(*others)
        await cluster.whole()
        assert await owner.role() == "master"
    assert all(set(each.statuses) == {200} for each in followers), [each.statuses for each in followers]


async def test_a_node_is_added_and_another_one_removed(stack: Stack, cluster: RedisCluster) -> None:
    """The session goes to the new node; when that leaves, to one that was there before."""
    slot, first, _ = await _whereabouts(cluster)
    async with _turn(stack, 500) as followers:
        added = await cluster.add()
        await cluster.move(slot, added)
        await _beyond(stack, 100)
        await cluster.remove(added, first)
        await _beyond(stack, 200)
    assert all(set(each.statuses) == {200} for each in followers), [each.statuses for each in followers]


async def test_a_slot_that_is_left_half_moved_holds_up_nobody_else(
    stack: Stack, cluster: RedisCluster
) -> None:
    """Two turns have lost their worker. The one whose keys are at two nodes waits until that is mended; the other one does not."""
    client = await stack.front_end()
    launches = LaunchQueue(stack.broker.primary)
    slot, _, (target, _) = await _whereabouts(cluster)
    async with client.process("s1", "hi", id="t1") as stuck, client.process("s2", "hi", id="t1") as other:
        # The second one is noticed when rescuers have long met the first.
        for session, stream, lease in (("s1", stuck, 1), ("s2", other, 8)):
            await stream.until(bool)
            assert await wait_until(lambda: launches.claim(1), "the launch")
            ref = TaskRef("dev", session, "t1")
            dying = Tasks(stack.broker.sessions, stack.settings(lease_seconds=lease))
            assert isinstance(await dying.begin(ref, 1, "dead-1-abc", operation()), Attempt)
        assert await cluster.slot(SessionKeys("dev", "s2").meta) != slot
        source = await cluster.begin_move(slot, target)
        assert await cluster.move_keys(slot, source, target, 1)
        rescuer = (await stack.worker(lease_seconds=4))._rescuer
        since = rescuer.outages.whole_since
        check_whole(await asyncio.wait_for(other.all(), 30))
        assert rescuer.outages.whole_since == since, "it was taken for an outage"
        while await cluster.move_keys(slot, source, target):
            pass
        await cluster.end_move(slot, source, target)
        frames = await asyncio.wait_for(stuck.all(), 30)
    check_whole(frames)
    assert text_of(frames) == "You said: hi"


async def test_a_node_that_stays_away_holds_up_nobody_else(stack: Stack, cluster: RedisCluster) -> None:
    """It has no replica. A turn at another node that has lost its worker is noticed; its own goes on when it is back."""
    client = await stack.front_end()
    launches = LaunchQueue(stack.broker.primary)
    _, owner, _ = await _whereabouts(cluster)
    here = "s1"
    for number in range(2, 100):
        there = f"s{number}"
        if await cluster.owner(await cluster.slot(SessionKeys("dev", there).meta)) is not owner:
            break
    cluster.replicas[cluster.primaries.index(owner)].kill()
    async with client.process(here, "hi", id="t1") as stuck, client.process(there, "hi", id="t1") as other:
        for session, stream in ((here, stuck), (there, other)):
            await stream.until(bool)
            assert await wait_until(lambda: launches.claim(1), "the launch")
            dying = Tasks(stack.broker.sessions, stack.settings(lease_seconds=2))
            ref = TaskRef("dev", session, "t1")
            assert isinstance(await dying.begin(ref, 1, "dead-1-abc", operation()), Attempt)
        owner.kill()
        rescuer = (await stack.worker(lease_seconds=3))._rescuer
        since = rescuer.outages.whole_since
        check_whole(await asyncio.wait_for(other.all(), 30))
        assert rescuer.outages.whole_since == since, "it was taken for an outage of all"
        await cluster.restart(owner)
        frames = await asyncio.wait_for(stuck.all(), 30)
    check_whole(frames)
    assert text_of(frames) == "You said: hi"


async def test_replicas_of_the_sessions_node_are_waited_for(stack: Stack, cluster: RedisCluster) -> None:
    """Each of its own; where the session goes, there is another one."""
    client = await stack.front_end(wait_replicas=1, wait_replicas_ms=2000)
    await stack.worker()

    async def taken(session: str) -> str:
        async with client.process(session, "hi") as stream:
            await stream.all()
            return str(stream.response.headers["turnstream-replicas"])

    assert {await taken(f"s{number}") for number in range(8)} == {"1"}
    slot, first, (second, _) = await _whereabouts(cluster)
    await cluster.move(slot, second)
    assert await taken("s1") == "1"
    cluster.replicas[cluster.primaries.index(second)].kill()
    assert await taken("s1") == "0"
    await cluster.move(slot, first)
    assert await taken("s1") == "1"


@pytest.mark.parametrize("written", [True, False])
async def test_a_session_that_comes_back_without_its_end(
    stack: Stack, cluster: RedisCluster, *, written: bool
) -> None:
    """It was at another node, which lost its newest data, and is where it was before: under the name that it knows.

    It was written there before (``written``), or only what is lost was. Nobody writes when it happens.
    """
    slot, first, (second, _) = await _whereabouts(cluster)
    replica = cluster.replicas[cluster.primaries.index(second)]
    client = await stack.front_end()
    await stack.worker()
    turns = [await client.turn("s1", "one", id="t1")]
    await cluster.move(slot, second)
    if written:
        turns.append(await client.turn("s1", "two", id="t2"))
    # All that it has so far.
    await wait_until(lambda: _same(second, replica), "the replica to have what was moved")
    await cluster.lag(replica)
    lost = await client.turn("s1", "three", id="t3")
    second.kill()
    await cluster.failed_over(replica)
    await cluster.move(slot, first)
    following = await _turn_when_possible(client, "s1", large_text(4), "t4")
    assert text_of(following) == f"You said: {large_text(4)}"
    assert not {frame.id for frame in lost} & {frame.id for frame in following}
    assert following[-1].seq > lost[-1].seq
    for frame, status in ((lost[-1], 410), (lost[2], 410), (turns[-1][-1], 200), (turns[0][2], 200)):
        async with client.follow("s1", "", cursor=frame.id) as stream:
            assert stream.response.status_code == status, frame


async def _same(primary: ClusterNode, replica: ClusterNode) -> bool:
    offsets = []
    for node in (primary, replica):
        told = dict(
            line.split(":", 1) for line in (await node.ask("INFO", "replication")).splitlines() if ":" in line
        )
        offsets.append(told["master_repl_offset"])
    return len(set(offsets)) == 1


async def _turn_when_possible(client: Client, session: str, text: str, task: str) -> list[Frame]:
    async def answered() -> list[Frame] | None:
        try:
            frames = await client.turn(session, text, id=task)
        except (AssertionError, httpx.HTTPError):
            return None
        return frames if terminal(frames) else None

    frames: list[Frame] = await wait_until(answered, f"the turn {task}")
    return frames
