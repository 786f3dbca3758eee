"""The subscriber: which messages reach its listener, and what it does when the connection is lost, silent or refused."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr
from redis.exceptions import NoPermissionError
from structlog.testing import capture_logs

from tests.processes.broker import Broker as OwnBroker
from tests.support.waiting import wait_until
from turnstream.shared.broker import client, subscriber
from turnstream.shared.broker.subscriber import SUBSCRIBE_AT_ONCE, Subscriber
from turnstream.shared.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import pytest
    from redis.asyncio import Redis

    from tests.conftest import Place


class Recorder:
    """A listener that records every call."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes]] = []
        self.acknowledged: list[bytes] = []
        self.losses = 0

    def message_received(self, channel: bytes, message: bytes) -> None:
        """Record a message."""
        self.messages.append((channel, message))

    def subscribed(self, channel: bytes) -> None:
        """Record an acknowledgement."""
        self.acknowledged.append(channel)

    def connection_lost(self) -> None:
        """Record a loss."""
        self.losses += 1


@asynccontextmanager
async def running(redis: Redis, *channels: bytes) -> AsyncIterator[tuple[Subscriber, Recorder]]:
    """A subscriber to these channels."""
    recorder = Recorder()
    made = Subscriber(redis, recorder, lost="test.lost", back="test.back")
    for channel in channels:
        made.subscribe(channel)
    task = asyncio.create_task(made.run())
    try:
        yield made, recorder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_messages_of_the_wanted_channels_are_received(place: Place) -> None:
    """Those that are wanted from the start or later, and not those that are wanted no more."""
    redis = place.connect().primary
    async with running(redis, b"a") as (made, recorder):
        await wait_until(lambda: recorder.acknowledged == [b"a"], "the first acknowledgement")
        made.subscribe(b"b")
        await wait_until(lambda: recorder.acknowledged == [b"a", b"b"], "the second acknowledgement")
        # Left and wanted again in one go: it stays subscribed.
        made.unsubscribe(b"b")
        made.subscribe(b"b")
        made.unsubscribe(b"a")
        await wait_until(lambda: len(recorder.acknowledged) == 3, "the third acknowledgement")
        assert await redis.publish("a", "1") == 0
        assert await redis.publish("b", "2") == 1
        await wait_until(lambda: recorder.messages == [(b"b", b"2")], "the message")
    assert recorder.losses == 0


async def test_a_cut_connection_is_made_again(real: Place) -> None:
    """Every channel is subscribed to again, in batches; the loss and its end are logged once."""
    redis = real.connect().primary
    channels = [b"c%d" % number for number in range(SUBSCRIBE_AT_ONCE + 1)]
    with capture_logs() as logged:
        async with running(redis, *channels) as (_, recorder):
            await wait_until(lambda: recorder.acknowledged == channels, "every acknowledgement")
            await redis.client_kill_filter(_type="pubsub")
            await wait_until(lambda: recorder.acknowledged == channels * 2, "every acknowledgement again")
            assert await redis.publish("c7", "1") == 1
            await wait_until(lambda: recorder.messages == [(b"c7", b"1")], "the message")
    assert recorder.losses == 1
    assert [line["event"] for line in logged] == ["test.lost", "test.back"]


async def test_a_silent_broker_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that holds the connection and replies nothing counts as lost; when it is back, the channel is, too."""
    monkeypatch.setattr(subscriber, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(subscriber, "COMMAND_SECONDS", 0.4)
    home = OwnBroker(tmp_path / "data")
    process = home.start()._process
    broker = client.Broker(Settings(redis_url=SecretStr(f"redis://127.0.0.1:{home.port}/0")))
    try:
        async with running(broker.primary, b"a") as (_, recorder):
            await wait_until(lambda: recorder.acknowledged, "the acknowledgement")
            process.send_signal(signal.SIGSTOP)
            losses = recorder.losses
            await wait_until(lambda: recorder.losses > losses, "the loss")
            acknowledged = len(recorder.acknowledged)
            process.send_signal(signal.SIGCONT)
            await wait_until(lambda: len(recorder.acknowledged) > acknowledged, "the acknowledgement again")
    finally:
        process.send_signal(signal.SIGCONT)
        await broker.close()
        home.stop()


class Refusing:
    """An open connection on which the first ``refusals`` subscriptions of all are refused."""

    heard = 0.0
    unsent = 0
    refusals = 5

    def __init__(self, receive: Callable[[Any], None]) -> None:
        self._receive = receive

    def send(self, *words: str | bytes | float) -> None:
        """Reply in the next turn of the event loop."""
        reply: Any = [b"subscribe", words[1], 1]
        if Refusing.refusals:
            Refusing.refusals -= 1
            reply = NoPermissionError("No permissions to access a channel")
        asyncio.get_running_loop().call_soon(self._receive, reply)

    def send_in_pieces(self, *words: str | bytes | float) -> None:
        """As `send`."""
        self.send(*words)

    def close(self) -> None:
        """There is nothing to close."""


async def test_a_refused_subscription_is_not_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that takes connections and refuses the channels: one loss, which ends with the first acknowledgement."""

    async def open_line(_pool: Any, receive: Callable[[Any], None], _lost: Any) -> Refusing:
        return Refusing(receive)

    monkeypatch.setattr(subscriber, "open_line", open_line)
    monkeypatch.setattr(subscriber, "FIRST_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(Refusing, "refusals", 5)
    with capture_logs() as logged:
        async with running(place.connect().primary, b"a") as (_, recorder):
            await wait_until(lambda: recorder.acknowledged, "the acknowledgement")
    assert recorder.losses == 1
    assert [line["event"] for line in logged] == ["test.lost", "test.back"]
