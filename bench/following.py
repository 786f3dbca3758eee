"""The front end's CPU for each event it delivers, beside a bare relay's (see bench/relay.py).

200 sessions that somebody follows, 50 events a second each, one event a batch; then with five followers
each. Both deliver from the same broker, in turns, to the same readers; the frames are of about one size. What
is published was recorded from the product's own script, whose cost would take the core that they need.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench import feeder, readers, relay, streams
from bench.accounts import Spent
from bench.processes import helper
from bench.table import Row, number
from bench.topology import OWNER
from turnstream.shared.broker.keys import SessionKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.processes import Helper
    from bench.scale import Scale
    from bench.topology import Topology

SESSIONS = 200
RATE = 50 * SESSIONS
SECONDS = 1.0
ROUNDS = 5
MORE_FOLLOWERS = 4

# One follower each: readers are woken by every frame, which the sender pays for. Five: 50,000 frames a second
# would take all that is left of two cores, so readers look at their sockets only so often.
PAUSES = {1: 0.0, 1 + MORE_FOLLOWERS: 0.05}
PAUSE_SECONDS = 0.2

# When all is sent, what is still on its way arrives within this.
ARRIVAL_SECONDS = 20


class Delivery:
    """One deliverer under load, of one process or several: what it spent, and for how many events."""

    def __init__(
        self, feed: Helper, read: Helper, pids: list[int], sessions: str, *, recorded: bool = False
    ) -> None:
        self._feed = feed
        self._read = read
        self._pids = {str(pid): pid for pid in pids}
        self._sessions = sessions
        self._how = "recorded" if recorded else "prepare"
        self._counted = 0
        self.seconds = 0.0
        self.events = 0
        self.late = 0.0

    def round(self, rate: float, seconds: float, followers: int) -> None:
        """Feed for so long.

        Raises:
            AssertionError: an event is missing, doubled or out of order.
        """
        self._feed.ask(self._how, self._sessions, rate, seconds)
        spent = Spent(self._pids)
        sent, took = self._feed.ask("feed")
        expected = self._counted + sent * followers
        until = time.monotonic() + ARRIVAL_SECONDS
        while self.count() < expected and time.monotonic() < until:
            pass
        self.seconds += sum(spent.seconds().values())
        assert self._counted == expected, f"{self._counted} events arrived, not {expected}"
        self.late = max(self.late, took / seconds)
        self.events += sent * followers

    def count(self) -> int:
        """Count what has come until nothing more comes for a moment."""
        before = -1
        while before != self._counted:
            before = self._counted
            time.sleep(PAUSE_SECONDS)
            self._counted = sum(count for _, _, count in self._read.ask("numbers"))
        return self._counted

    @property
    def micros(self) -> float:
        """CPU for each delivered event."""
        return 1e6 * self.seconds / self.events


# What `run` is given, where it is not one front end and one worker.
NEEDS = {"workers": 0, "program": "bench.unlooking"}


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """CPU per delivered event, with one and with five followers a session."""
    sessions = scale.many(SESSIONS)
    seconds, rounds = SECONDS if scale.size == 1 else 0.2, scale.count(ROUNDS)
    rate = RATE * sessions / SESSIONS
    with ExitStack() as stack:
        bare = stack.enter_context(helper(relay.serve, built.broker.port))
        relay_port = bare.answer()
        feed = stack.enter_context(helper(feeder.serve, built.url))
        read = [stack.enter_context(helper(readers.serve)) for _ in range(2)]
        for followers in (1, 1 + MORE_FOLLOWERS):
            # Each row has sessions of its own: what was only published is in no log, so nobody could follow it later.
            names = (f"ours-{followers}", f"bare-{followers}")
            ours_made, bare_made = (feed.ask("sessions", name, sessions, "echo") for name in names)
            for name in names:
                feed.ask("record", name, 2 * rounds * round(rate * seconds))
            ours_asks = follow_requests(built, ours_made)
            bare_asks = [f"{SessionKeys(OWNER, session).tail}\n".encode() for session, _ in bare_made]
            ours = Delivery(feed, read[0], [built.pids["api"]], names[0], recorded=True)
            theirs = Delivery(feed, read[1], [bare.pid], names[1], recorded=True)
            for each, port, asks in ((ours, built.port, ours_asks), (theirs, relay_port, bare_asks)):
                reader = read[0] if each is ours else read[1]
                reader.ask("open", port, asks * followers)
                reader.ask("pause", PAUSES[followers])
                each.count()
            for _ in range(rounds):
                for each in (ours, theirs):
                    each.round(rate, seconds, followers)
            row = Row(
                f"front end's CPU per delivered event, {sessions} sessions × {rate / sessions:.0f}/s, "
                f"{followers} follower{'s' if followers > 1 else ''} each",
                ours.micros,
                "µs",
                theirs.micros,
                "relay",
                note=f"events late by {number(max(ours.late, theirs.late) - 1)} of the time"
                if ours.late > 1.05
                else "",
            )
            yield row.ratio_at_most(1.5) if followers == 1 else row.at_most(12)


def follow_requests(built: Topology, made: list[tuple[str, str]]) -> list[bytes]:
    """What a client sends to follow each of the responses."""
    key = built.key("echo")
    return [
        streams.head("GET", f"/process?session_id={session}&response_id={response}", key)
        for session, response in made
    ]
