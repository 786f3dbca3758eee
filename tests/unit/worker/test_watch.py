"""When a process's turns are taken over before their leases end, and when not."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from tests.support.waiting import wait_until
from tests.unit.shared.session.support import Desk, ref
from turnstream.shared import metrics
from turnstream.shared.broker import keys
from turnstream.shared.lifelines import Lost, Seen
from turnstream.shared.session.tasks import QUIET_MS
from turnstream.worker import watch as watching
from turnstream.worker.rescuer import Rescuer
from turnstream.worker.watch import Watch

if TYPE_CHECKING:
    from tests.conftest import Place

# The worker of a desk's attempts.
GONE = "w1"


class Seeing:
    """Stands for the broker's looks: always sees the same, and which connections are there."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.looks = 0
        self.connected: set[str] = set()
        self.settled: list[str] = []

    async def look(self, server: str, calm_ms: int) -> Seen:
        """Look."""
        assert isinstance(server, str)
        assert calm_ms > 0
        self.looks += 1
        return self.seen

    async def is_connected(self, connection: str) -> bool:
        """Whether it is there."""
        return connection in self.connected

    async def let_go(self, process: str, jobs: list[str]) -> None:
        """What is not held any more."""
        assert process == GONE or not jobs
        self.settled += jobs


class Post:
    """A watch over one turn, which runs at a process that nobody hears of."""

    def __init__(self, desk: Desk, *jobs: str) -> None:
        self.desk = desk
        self.rescuer = Rescuer(desk.ender, desk.settings)
        self.rescuer.outages.whole_since = time.monotonic() - 60
        self.watch = Watch(desk.primary, self.rescuer, desk.settings)
        self.sees = Seeing(Seen(lost=(Lost(GONE, "7", jobs or (f"{ref()}:1",)),)))
        self.watch._lifelines = self.sees  # type: ignore[assignment]

    async def silent(self) -> None:
        """The turn's worker said nothing for a while."""
        lease = int(await self.desk.field(ref(), "lease") or 0)
        await self.desk.put(ref(), lease=lease - QUIET_MS - 100)


@pytest.fixture
async def post(place: Place) -> Post:
    """Its turn is running."""
    desk = Desk(place)
    await desk.running()
    return Post(desk)


async def test_a_killed_workers_turn_is_taken_over_at_once(post: Post) -> None:
    """Long before its lease is over; it counts as a crash."""
    await post.silent()
    before = metrics.rescues.by["taken_over"]
    with capture_logs() as logs:
        await post.watch._look()
    assert [(each["event"], each["worker"], each["turns"]) for each in logs if "worker" in each] == [
        ("rescuer.worker_dead", GONE, 1)
    ]
    assert metrics.rescues.by["taken_over"] == before + 1
    assert list(await post.desk.launches.claim(8)) == [f"{ref()}:2"]
    assert await post.desk.field(ref(), "crashes") == "1"
    assert post.sees.settled == [f"{ref()}:1"]


async def test_one_that_was_heard_of_just_now_keeps_its_turn(post: Post) -> None:
    """Its lease was renewed, or it said something. It is looked at again when it was silent for a while."""
    for _ in range(3):
        await post.watch._look()
    assert await post.desk.field(ref(), "status") == "running"
    assert post.sees.settled == []
    await post.silent()
    await post.watch._look()
    assert await post.desk.field(ref(), "status") == "queued"


async def test_one_whose_commands_are_connected_keeps_its_turn(post: Post) -> None:
    """Only its subscription was cut, and it stands still: it cannot make another one."""
    post.sees.connected.add("7")
    await post.silent()
    await post.watch._look()
    assert await post.desk.field(ref(), "status") == "running"
    assert post.sees.settled == []


async def test_what_was_seen_is_not_acted_on_later(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rescuer stood still in between: by now the worker may be there again."""
    monkeypatch.setattr(watching, "TRUE_SECONDS", 0.0)
    await post.silent()
    await post.watch._look()
    assert await post.desk.field(ref(), "status") == "running"
    assert post.sees.settled == []


async def test_nobody_is_judged_after_trouble(post: Post) -> None:
    """After an outage, or a lost connection of its own, a rescuer does not even look."""
    await post.silent()
    post.rescuer.outages.trouble()
    await post.watch._look()
    assert post.sees.looks == 0
    post.watch.rang()
    post.watch.disturbed()
    assert not post.watch._is_worth_while()


async def test_a_turn_that_went_on_is_left_alone(post: Post) -> None:
    """Another worker has it, its end was begun, it has ended, or is gone: what the index says is a hint."""
    desk = post.desk
    await desk.put(ref(), worker="w2")
    await post.silent()
    await post.watch._look()
    assert await desk.field(ref(), "status") == "running"
    assert post.sees.settled == [f"{ref()}:1"]
    await desk.put(ref(), worker=GONE, ending="canceled stop")
    await post.watch._look()
    assert await desk.field(ref(), "status") == "running"
    await desk.put(ref(), status="completed")
    await post.watch._look()
    await desk.redis.delete(ref().keys.task("t1"))
    await post.watch._look()
    assert await desk.launches.depth() == 0


async def test_what_was_claimed_and_not_begun_is_launched_at_once(place: Place) -> None:
    """Under its own number; and only if that is still what the task waits for."""
    desk = Desk(place)
    await desk.submit(ref())
    await desk.submit(ref("t1", "s2"))
    await desk.tasks.begin(ref("t1", "s2"), 1, "w2", "1")
    post = Post(desk, f"{ref()}:1", f"{ref()}:9", f"{ref('t1', 's2')}:1", "junk", "a/b/c:x")
    await post.watch._look()
    assert list(await desk.launches.claim(8)) == [f"{ref()}:1"]
    assert await desk.field(ref(), "crashes") == "0"
    assert len(post.sees.settled) == 5


async def test_a_turn_that_cannot_be_read_delays_no_other(post: Post) -> None:
    """It is left to its hint, and tried ever more rarely."""
    desk = post.desk
    await desk.redis.set(ref("bad").keys.task("bad"), "x", ex=600)
    post.sees.seen = Seen(lost=(Lost(GONE, "7", (f"{ref('bad')}:1", f"{ref()}:1")),))
    await post.silent()
    await post.watch._look()
    assert post.sees.settled == [f"{ref('bad')}:1", f"{ref()}:1"]
    assert await desk.field(ref(), "status") == "queued"


async def test_it_says_once_that_the_broker_refuses(post: Post) -> None:
    """An operator who has not loaded the new rights reads what to do, and leases do it meanwhile."""
    post.sees.seen = Seen(refused="no permissions to run the 'pubsub|numsub' command")
    with capture_logs() as logs:
        for _ in range(3):
            await post.watch._look()
    (said,) = [each for each in logs if each["event"] == "rescuer.cannot_take_over"]
    assert "redis.acl" in said["todo"]


async def test_the_rights_that_are_missing_are_told(real: Place) -> None:
    """By a broker whose operator has not loaded them."""
    desk = Desk(real)
    await desk.primary.execute_command("ACL", "SETUSER", "worker", "-pubsub|numsub")
    try:
        theirs = real.connect(real.settings(**real.credentials("worker")))
        post = Post(desk)
        post.watch = Watch(theirs.primary, post.rescuer, desk.settings)
        await desk.primary.hset(keys.SUBSCRIBED, GONE, "7")
        await desk.primary.zadd(keys.HELD, {f"{GONE} {ref()}:1": 0})
        with capture_logs() as logs:
            await post.watch._look()
        assert [each["event"] for each in logs] == ["rescuer.cannot_take_over"]
    finally:
        await desk.primary.execute_command("ACL", "SETUSER", "worker", "+pubsub|numsub")
        await desk.primary.execute_command("ACL", "LOG", "RESET")


async def test_it_looks_while_there_may_be_something_to_look_at(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a doorbell, and while somebody holds something; not after it has stood still."""
    monkeypatch.setattr(watching, "AFTER_BELL_SECONDS", 0.3)
    post.watch.disturbed = lambda: None  # type: ignore[method-assign]
    post.watch._looked_at = asyncio.get_running_loop().time()
    post.sees.seen = Seen(idle=True)
    tending = asyncio.create_task(post.watch.tend())
    try:
        since = asyncio.get_running_loop().time()
        await wait_until(
            lambda: asyncio.get_running_loop().time() - since > 2 * watching.PUNCTUAL_SECONDS, "time to pass"
        )
        assert post.sees.looks == 0, "nobody rang"
        post.sees.seen = Seen()
        monkeypatch.setattr(watching, "AFTER_BELL_SECONDS", 5.0)
        post.watch.rang()
        await wait_until(lambda: post.sees.looks >= 2, "looks")
        # A process that stands still judges nobody right after that.
        time.sleep(watching.LOOK_SECONDS + 2 * watching.LATE_SECONDS)  # noqa: ASYNC251
        looks, stood = post.sees.looks, asyncio.get_running_loop().time()
        await wait_until(lambda: post.sees.looks > looks, "it to look again")
        assert asyncio.get_running_loop().time() - stood > watching.PUNCTUAL_SECONDS
        post.sees.seen = Seen(idle=True)
        monkeypatch.setattr(watching, "AFTER_BELL_SECONDS", 0.0)
        await wait_until(lambda: not post.watch._is_used, "it to see that no turn is running")
        assert not post.watch._is_worth_while()
    finally:
        tending.cancel()
        await asyncio.gather(tending, return_exceptions=True)
