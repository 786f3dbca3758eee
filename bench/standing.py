"""What a broker's commands take where very much stands at it: parked turns, owners, turns that ended, a long queue.

The broker has the shipped configuration, but for its memory, and, where we may, precedence over the other processes of
this machine: what a command takes is then its own time. Front ends and workers do their work; of each kind of it the row tells the
slowest command (SLOWLOG), and what a PING took meanwhile that was sent every millisecond.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from bench.crowd import LARGE, Crowd, until
from bench.pinger import Pinger, pinger
from bench.table import Row, number
from bench.topology import HOST, ROOT
from turnstream.shared.broker import keys
from turnstream.shared.broker.scripts import Script
from turnstream.shared.session.queue import ALL
from turnstream.shared.settings import load
from turnstream.worker.recall import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.scale import Scale
    from bench.topology import Topology
    from turnstream.shared.broker.keys import TaskRef

# What `run` is given, where it is not one front end and one worker.
NEEDS = {"workers": 0, "shipped": True}

PARKED = 100_000
OWNERS = 10_000
ENDED = 1_000_000

IDLE_SECONDS = 10.0

FILTERS: tuple[dict[str, str], ...] = (
    {"status": "parked"}, {"status": "completed"}, {"status": "failed"}, {"owner": "owner-7"}, {"owner": LARGE},
    {"agent": "asking"}, {"user": "nobody"}, {"session": "parked-77"}, {"older_than": "1"}, {"younger_than": "1"},
)  # fmt: skip

# No command is to take more, in ms: others wait as long.
MOST_MS = 5

# How often a thing is done at most, where a command took more: this machine may have stood still.
TIMES = 3

# What SLOWLOG keeps, in µs.
SLOW_MICROS = 500


class Watch:
    """Tells what commands took while something was done."""

    def __init__(self, client: Any, others: Pinger) -> None:
        self._client = client
        self._others = others
        self._names = {script.sha: f"{script.name}.lua" for script in _scripts()}
        client.config_set("slowlog-log-slower-than", SLOW_MICROS)
        client.config_set("slowlog-max-len", 10_000)

    def row(self, what: str, do: Callable[[], None]) -> Row:
        """One row for what is done; up to `TIMES`, until nothing was slow.

        A command that is slow by itself is so each time: of each, the longest that it took in its quietest time is told.
        """
        slowest: dict[str, int] = {}
        for round_ in range(TIMES):
            found, note = self._once(do)
            slowest = {
                name: min(micros, slowest.get(name, micros))
                for name, micros in found.items()
                if not round_ or name in slowest
            }
            if max(slowest.values(), default=0) <= 1000 * MOST_MS:
                break
        named = sorted(slowest.items(), key=lambda each: -each[1])[:3]
        told = ", ".join(f"{name} {number(micros / 1000)} ms" for name, micros in named)
        took = named[0][1] / 1000 if named else SLOW_MICROS / 1000
        note = f"{told or f'none over {SLOW_MICROS / 1000} ms'}; {note}"
        return Row(f"{what}: slowest command", took, "ms", note=note).at_most(MOST_MS)

    def _once(self, do: Callable[[], None]) -> tuple[dict[str, int], str]:
        self._client.config_resetstat()
        self._client.slowlog_reset()
        self._others.told()
        begun = time.monotonic()
        do()
        seconds = time.monotonic() - begun
        p99, most = self._others.told()
        stats = self._client.info("commandstats")
        scripts = stats.get("cmdstat_evalsha", {"calls": 0, "usec_per_call": 0.0})
        return self._slowest(), (
            f"{number(seconds)} s; {scripts['calls']:,} scripts of {number(float(scripts['usec_per_call']))} µs; "
            f"PING p99 {number(p99)} ms, longest {number(most)}"
        )

    def _slowest(self) -> dict[str, int]:
        """The longest that each command took, in µs, where that was long; without what we ask for ourselves."""
        found: dict[str, int] = {}
        for entry in self._client.slowlog_get(10_000):
            words = entry["command"].decode(errors="replace").split(" ")
            name = words[0].lower()
            if name == "evalsha":
                name = self._names.get(words[1], words[1])
            if name not in {"slowlog", "config", "info"}:
                found[name] = max(found.get(name, 0), entry["duration"])
        return found


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """Fill it; then what is due, what is lost, what operators ask for, what waits in the queue."""
    client = built.client
    with suppress(PermissionError):
        os.sched_setscheduler(built.pids["broker"], os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    client.config_set("maxmemory", "16gb")
    with pinger(built.broker.port) as others:
        crowd = Crowd(built)
        worker = built.start("worker")
        ended, parked = crowd.turn("stream", "completed"), crowd.turn("asking", "parked")
        until(lambda: client.zcard(keys.LIVE) == 1, "the turn's end")
        built.end(worker)
        begun = time.monotonic()
        client.config_set("auto-aof-rewrite-percentage", 0)
        owners = [f"owner-{number}" for number in range(scale.many(OWNERS))]
        standing = parked.others(_in_turn([LARGE, *owners], scale.many(PARKED)), "parked")
        gone = ended.others(_in_turn([LARGE, *owners], scale.many(ENDED)), "ended")
        crowd.copy(parked, standing)
        crowd.copy(ended, gone)
        crowd.ended(gone, load().log_grace_seconds)
        crowd.keys(owners, "stream")
        admin = crowd.admin_key()
        crowd.parked(standing)
        print(
            f"    filled in {time.monotonic() - begun:.0f} s: {client.dbsize():,} keys, "
            f"{client.info('memory')['used_memory'] / 2**20:,.0f} MiB",
            flush=True,
        )
        watch = Watch(client, others)
        workers = [built.start("worker") for _ in range(2)]
        # They first wait for a lease, then recall all: no rescuer has looked before.
        until(lambda: (client.zscore(keys.DUE, ALL) or 0) > NEVER_MS / 10, "the first look")
        until(lambda: _due_now(client) < len(standing) / 100, "the first sweeps")
        yield from _due(built, watch, crowd, standing, max(1.0, IDLE_SECONDS * scale.length))
        yield from _asked(built, watch, admin)
        yield from _limited(watch, crowd, sum(ref.owner == LARGE for ref in standing))
        yield from _queue(built, watch, crowd, workers, owners)


def _in_turn(owners: list[str], count: int) -> Iterator[str]:
    """So many of them; the large one every tenth time."""
    others = [owner for owner in owners if owner != LARGE]
    large = LARGE in owners
    return (LARGE if large and number % 10 == 0 else others[number % len(others)] for number in range(count))


def _due(built: Topology, watch: Watch, crowd: Crowd, parked: list[TaskRef], idle: float) -> Iterator[Row]:
    client = built.client

    def sweeps() -> None:
        crowd.due(parked)
        until(lambda: _due_now(client) < len(parked) / 100, "the sweeps")

    yield watch.row(f"{len(parked):,} parked turns due at once, two workers", sweeps)
    yield watch.row("two workers, nothing due", lambda: time.sleep(idle))

    def back() -> None:
        ahead = 1000 * client.time()[0] + 60_000
        client.set(keys.CLOCK, ahead)
        until(lambda: int(client.get(keys.CLOCK).split()[0]) < ahead, "a look")
        recalled()

    def lost() -> None:
        client.unlink(keys.DUE)
        recalled()

    def recalled() -> None:
        until(lambda: (client.zscore(keys.DUE, ALL) or 0) > NEVER_MS / 10, "the recall")
        until(lambda: _due_now(client) < len(parked) / 100, "the sweeps")

    yield watch.row("the broker's clock goes back, all sessions gone through", back)
    yield watch.row("all hints lost, all sessions gone through", lost)


def _asked(built: Topology, watch: Watch, admin: str) -> Iterator[Row]:
    def ask(path: str, **query: Any) -> Any:
        request = urllib.request.Request(
            f"http://{HOST}:{built.port}{path}?{urllib.parse.urlencode(query)}",
            headers={"Authorization": f"Bearer {admin}"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            told = answer.read()
        return orjson.loads(told) if path != "/metrics" else told

    def pages(most: int, **query: Any) -> None:
        cursor = ""
        for _ in range(most):
            cursor = ask("/admin/v1/tasks", limit=200, cursor=cursor, **query)["next"]
            if not cursor:
                return

    def filtered() -> None:
        for query in FILTERS:
            pages(10, **query)

    def commands() -> None:
        _command(built, admin, "tasks", "list")
        _command(built, admin, "sessions", "list", "--owner", LARGE)

    def overview() -> None:
        for _ in range(5):
            for path in ("/admin/v1/stats", "/admin/v1/workers", "/metrics"):
                ask(path)
            time.sleep(1)

    yield watch.row("tasks, 200 pages of all", lambda: pages(200))
    yield watch.row("tasks, 10 pages of each filter", filtered)
    yield watch.row("turnstream tasks list, sessions list", commands)
    yield watch.row("sessions of the owner of a tenth", lambda: ask("/admin/v1/sessions", owner=LARGE))
    yield watch.row("stats, workers, metrics", overview)
    yield watch.row("list of keys", lambda: ask("/admin/v1/keys"))


def _limited(watch: Watch, crowd: Crowd, parked: int) -> Iterator[Row]:
    """Who has as many turns as it may is let in, as they wait for their clients: these are asked first."""
    key = crowd.limited_key(LARGE, "stream", parked)
    yield watch.row(
        f"turns of an owner with {parked:,} parked ones, which is its limit", lambda: crowd.taken(key, 50)
    )


def _queue(
    built: Topology, watch: Watch, crowd: Crowd, workers: list[subprocess.Popen[bytes]], owners: list[str]
) -> Iterator[Row]:
    client = built.client

    def stop() -> None:
        while workers:
            built.end(workers.pop())

    stop()
    pattern = crowd.turn("stream", "queued")
    backlogs = [pattern.others(owners, f"queued-{number}") for number in range(TIMES)]
    for refs in backlogs:
        crowd.copy(pattern, refs)

    def run() -> None:
        stop()
        refs = backlogs.pop()
        crowd.launched(refs)
        workers.extend(built.start("worker") for _ in range(2))
        until(lambda: client.zcard(keys.QUEUE) == 0 and _live(client, refs) == 0, "the turns to end")

    yield watch.row(f"queue: turns of {len(owners):,} owners put there, claimed and run, two workers", run)


def _live(client: Any, refs: list[TaskRef]) -> int:
    """How many of the turns have not ended, of the last few."""
    statuses = [client.hget(ref.keys.task(ref.task), "status") for ref in refs[-20:]]
    return sum(status in {b"queued", b"running"} for status in statuses)


def _command(built: Topology, admin: str, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "turnstream", *words, "--url", f"http://{HOST}:{built.port}"],
        cwd=ROOT,
        env={**os.environ, "TURNSTREAM_ADMIN_KEY": admin},
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _due_now(client: Any) -> int:
    return int(client.zcount(keys.DUE, 1, 1000 * client.time()[0]))


def _scripts() -> list[Script]:
    """Every script that front ends and workers run."""
    import turnstream.api.app
    import turnstream.worker.worker  # noqa: F401

    modules = [module for name, module in sys.modules.items() if name.startswith("turnstream.")]
    return [value for module in modules for value in list(vars(module).values()) if isinstance(value, Script)]
