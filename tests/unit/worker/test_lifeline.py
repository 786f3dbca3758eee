"""What a worker notes of itself: that it hears its own channel, on which connection it speaks, and what it holds."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from structlog.testing import capture_logs

from tests.support.waiting import wait_until
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command
from turnstream.shared.lifelines import Lifelines
from turnstream.worker.lifeline import Lifeline
from turnstream.worker.signals import SignalListener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place

NAME = "host-1-abc"


class Worker:
    """As far as its lifeline is concerned: what it holds, a broker, and who hears of its losses."""

    def __init__(self, place: Place) -> None:
        self.redis: Any = place.connect().primary
        self.outside: Any = place.connect().primary
        self.jobs: set[str] = set()
        self.disturbed = 0
        self.lifeline = Lifeline(self.redis, NAME, lambda: self.jobs, self._disturbed)

    def _disturbed(self) -> None:
        self.disturbed += 1

    def renew_now(self) -> None:
        """It stands for its leases, too."""

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Subscribed, and noted."""
        listener = SignalListener(
            self.redis,
            self,  # type: ignore[arg-type]
            asyncio.Event(),
            lambda *_: None,
            lambda _: None,
            lambda: None,
            self.lifeline,
        )
        tasks = [asyncio.create_task(each) for each in (listener.listen(), self.lifeline.tend())]
        try:
            await listener.listening.wait()
            await wait_until(self.noted, "the process to be noted")
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def noted(self) -> bytes | None:
        """The connection with which it is noted."""
        connection: bytes | None = await self.outside.hget(keys.SUBSCRIBED, NAME)
        return connection

    async def held(self) -> set[str]:
        """What it is noted to hold."""
        return {
            entry.decode().removeprefix(f"{NAME} ") for entry in await self.outside.zrange(keys.HELD, 0, -1)
        }

    async def was_disturbed(self) -> bool:
        """Whether the broker was told of a lost connection."""
        return bool(await self.outside.hexists(keys.WATCH, "disturbed"))


async def test_it_is_noted_with_the_connection_of_its_commands(real: Place) -> None:
    """Somebody hears its channel, and that connection is there; once it ends, it is noted no more."""
    worker = Worker(real)
    async with worker.living():
        assert await worker.outside.pubsub_numsub(keys.ALIVE + NAME) == [((keys.ALIVE + NAME).encode(), 1)]
        assert await worker.noted() == str(await command(worker.redis, "CLIENT", "ID")).encode()
        assert await Lifelines(worker.outside).is_connected((await worker.noted() or b"").decode())
        assert not await worker.was_disturbed()
    await worker.lifeline.end()
    assert await worker.noted() is None


async def test_a_lost_subscription_is_told_and_made_again(real: Place) -> None:
    """While it is not there the process is not noted, so that nobody can miss it; and all are told that something cuts."""
    worker = Worker(real)
    async with worker.living():
        await worker.outside.client_kill_filter(_type="pubsub")
        await wait_until(worker.was_disturbed, "the loss to be told")
        assert worker.disturbed == 1
        await wait_until(worker.noted, "the process to be noted again")


async def test_another_connection_for_its_commands_is_noted(real: Place) -> None:
    """The former one is gone, which would look like its end."""
    worker = Worker(real)
    async with worker.living():
        former = await worker.noted()
        await worker.outside.client_kill_filter(_id=former.decode() if former else "", skipme=False)
        await wait_until(lambda: _speaks(worker), "another connection")
        await wait_until(lambda: _changed(worker, former), "another connection to be noted")
        assert await worker.was_disturbed()


async def _speaks(worker: Worker) -> bool:
    try:
        return bool(await command(worker.redis, "PING"))
    except RedisConnectionError:
        return False


async def _changed(worker: Worker, former: bytes | None) -> bool:
    return await worker.noted() not in (None, former)


async def test_what_has_ended_is_held_no_more(real: Place) -> None:
    """Also what a broker with an older file says that it holds; what it was offered is held."""
    worker = Worker(real)
    await worker.outside.zadd(
        keys.HELD, {f"{NAME} o/s/t1:1": 0, f"{NAME} o/s/t2:1": 0, f"{NAME} o/s/old:1": 0}
    )
    worker.jobs = {"o/s/t1:1", "o/s/t2:1"}
    async with worker.living():
        await wait_until(lambda: _holds(worker, "o/s/t1:1", "o/s/t2:1"), "the old entry to go")
        worker.jobs = {"o/s/t2:1", "o/s/t3:1"}
        worker.lifeline.took("o/s/t3:1")
        worker.lifeline.ended("o/s/t1:1")
        await wait_until(lambda: _holds(worker, "o/s/t2:1", "o/s/t3:1"), "what it holds to be true")
    # It leaves turns behind: others are to notice its end.
    await worker.lifeline.end()
    assert await worker.noted()


async def _holds(worker: Worker, *jobs: str) -> bool:
    return await worker.held() == set(jobs)


async def test_what_it_may_not_note_is_not_kept(real: Place) -> None:
    """A broker without the new rights is said so once, and asked seldom; what has ended meanwhile does not gather here."""
    admin: Any = real.connect().primary
    await admin.execute_command("ACL", "SETUSER", "worker", "-client|id")
    worker = Worker(real)
    worker.lifeline = Lifeline(
        real.connect(real.settings(**real.credentials("worker"))).primary,
        NAME,
        lambda: worker.jobs,
        lambda: None,
    )
    tending = asyncio.create_task(worker.lifeline.tend())
    try:
        worker.lifeline.ended("o/s/t1:1")
        with capture_logs() as logs:
            worker.lifeline.subscribed()
            await wait_until(lambda: logs, "the refusal to be told")
        assert [each["event"] for each in logs] == ["rescuer.cannot_take_over"]
        assert not worker.lifeline._ended
    finally:
        tending.cancel()
        await asyncio.gather(tending, return_exceptions=True)
        await admin.execute_command("ACL", "SETUSER", "worker", "+client|id")
        await admin.execute_command("ACL", "LOG", "RESET")


async def test_the_embedded_broker_is_told_nothing(place: Place) -> None:
    """There is no other process that could take anything over."""
    if not place.real:
        worker = Worker(place)
        assert worker.lifeline.process == ""
        worker.lifeline.ended("o/s/t1:1")
        await worker.lifeline.end()
        assert await worker.held() == set()
