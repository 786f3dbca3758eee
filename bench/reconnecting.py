"""What coming back costs after ten missed events, with a short log and with a long one."""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import time
from typing import TYPE_CHECKING

import uvloop

from bench import feeder, streams
from bench.accounts import BrokerSpent
from bench.processes import helper
from bench.table import Row
from bench.topology import OWNER
from turnstream.api.streaming.followed import LINGER_SECONDS
from turnstream.shared.broker.keys import SessionKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scale import Scale
    from bench.topology import Topology

SHORT, LONG = 100, 100_000
MISSED = 10

# Sessions of each kind, and how often each is come back to. A log that somebody followed a moment ago is
# still at hand in the front end: each comes back after that has passed.
SESSIONS = 5
ROUNDS = 3

# Numbers of more digits make larger frames.
SAME = 1.1

_NUMBER = re.compile(rb'"sequence_number":(\d+),')


# What `run` is given, where it is not one front end and one worker.
NEEDS = {"workers": 0}


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """Broker commands, broker bytes and time, of the long log beside the short one."""
    long = scale.many(LONG, 2000)
    with helper(feeder.serve, built.url) as feed:
        kinds = {}
        for name, count in (("warm", SHORT), ("short", SHORT), ("long", long)):
            sessions = [session for session, _ in feed.ask("sessions", name, SESSIONS, "echo")]
            feed.ask("say", name, count)
            kinds[name] = [(session, _last(built, session)) for session in sessions]
        _come_back(built, kinds["warm"])
        times: dict[str, list[float]] = {"short": [], "long": []}
        # The least of all rounds: now and then a front end asks whether the key is still good.
        commands: dict[str, dict[str, int]] = {name: {"": sys.maxsize} for name in times}
        sent = dict.fromkeys(times, 0)
        for _ in range(scale.count(ROUNDS)):
            for name in times:
                time.sleep(LINGER_SECONDS + 0.3)
                broker = BrokerSpent(built.client)
                times[name] += _come_back(built, kinds[name])
                commands[name], sent[name] = min(
                    (commands[name], sent[name]), broker.until_now(), key=lambda spent: sum(spent[0].values())
                )
        what = f"reconnect, {MISSED} missed, log of {long:,} beside {SHORT}: "
        calls = {name: sum(each.values()) for name, each in commands.items()}
        yield Row(
            f"{what}broker commands",
            calls["long"] / SESSIONS,
            "",
            calls["short"] / SESSIONS,
            "short log",
            note=", ".join(
                f"{name} {count / SESSIONS:g}" for name, count in sorted(commands["long"].items())
            ),
        ).ratio_at_most(1.0)
        yield Row(
            f"{what}broker bytes", sent["long"] / SESSIONS, "B", sent["short"] / SESSIONS, "short log"
        ).ratio_at_most(SAME)
        yield Row(
            f"{what}time",
            statistics.median(times["long"]),
            "ms",
            statistics.median(times["short"]),
            "short log",
        ).ratio_at_most(1.3)


def _last(built: Topology, session: str) -> str:
    """The cursor of a log's last entry."""
    cursor: bytes = built.client.xrevrange(SessionKeys(OWNER, session).log, count=1)[0][0]
    return cursor.decode()


def _come_back(built: Topology, sessions: list[tuple[str, str]]) -> list[float]:
    """Milliseconds from the request to the last missed event, session after session."""
    times = []
    key = built.key("echo")
    for session, last in sessions:
        epoch, _, seq = last.partition("-")
        ask = streams.head(
            "GET", f"/process?session_id={session}", key, Last_Event_ID=f"{epoch}-{int(seq) - MISSED}"
        )
        stream = uvloop.run(_missed(built.port, ask, last))
        numbers = [int(each) for each, _ in stream.arrivals(_NUMBER)]
        assert len(numbers) == MISSED, f"{len(numbers)} events came"
        assert numbers == list(range(numbers[0], numbers[0] + MISSED))
        times.append(1000 * (stream.marked - stream.sent))
    return times


async def _missed(port: int, ask: bytes, last: str) -> streams.Stream:
    """Read up to the last one; the turn goes on, so the server would not end it."""
    stream = streams.Stream()
    reading = asyncio.create_task(streams.stream(port, ask, f"id: {last}\n".encode(), stream))
    await asyncio.wait(
        [reading, asyncio.create_task(stream.reached.wait())], return_when=asyncio.FIRST_COMPLETED
    )
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return stream
