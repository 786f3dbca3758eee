"""Followers that are cut all at once: each is back soon, has all that was said meanwhile once, and the log was not read for each.

``STORM_FOLLOWERS`` followers of ``STORM_SESSIONS`` sessions, each of which says a word every ``STORM_PACE_MS``. In full: 5000, 500
and 3000. The deployment is the shipped one: a broker, a worker, two front ends, nginx. With ``-s`` the figures are shown.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import psutil
import pytest
import redis

from bench.accounts import family
from bench.processes import helper
from deploy.cluster import Cluster, ClusterError, find_nginx
from tests.processes import crowd
from tests.support.client import asked
from tests.support.waiting import wait_until
from turnstream.client.retrying import Backoff
from turnstream.shared.broker.keys import SessionKeys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from bench.processes import Helper
    from deploy.process import Part
    from tests.processes.crowd import View

FOLLOWERS = int(os.environ.get("STORM_FOLLOWERS", "600"))
SESSIONS = int(os.environ.get("STORM_SESSIONS", "30"))
PACE_MS = int(os.environ.get("STORM_PACE_MS", "1000"))

# How soon all are back, and how soon the front ends' memory is.
BACK_SECONDS = 20
MEMORY_SECONDS = 60

# What the front ends may have more than before, together: one that had to take all followers keeps what it took for them.
MOST_MORE = FOLLOWERS * 12 * 1024 + 16 * 2**20

# Of a storm, in steady state: how long commands are counted.
USUAL_SECONDS = 2.0

# How long nginx lets streams of its former workers go on.
SHUTDOWN = "1s"

STORMER = "storm"


class Said(NamedTuple):
    """An event in a session's log; ``at``: Unix time."""

    cursor: bytes
    event: bytes
    at: float


class Town:
    """The deployment, its followers, and what is measured of both."""

    def __init__(self, cluster: Cluster, key: str, followers: Helper) -> None:
        self.cluster = cluster
        self._key = key
        self._followers = followers
        self._broker: Any = redis.Redis(
            port=cluster.broker_port, username=STORMER, password=STORMER, lib_name="", lib_version=""
        )

    def close(self) -> None:
        """Leave the broker."""
        self._broker.close()

    async def ask(self, *question: Any) -> Any:
        """Ask the followers."""
        return await asyncio.to_thread(self._followers.ask, *question)

    @property
    def front_ends(self) -> list[Part]:
        """Both front ends."""
        return [part for name, part in self.cluster.parts.items() if name.startswith("api")]

    async def gather(self) -> None:
        """Have all sessions speak, and all followers come."""
        common = f"Host: x\r\nAuthorization: Bearer {self._key}\r\n"
        requests = []
        for number in range(FOLLOWERS):
            session, task = f"s{number % SESSIONS}", f"t{number % SESSIONS}"
            # Some follow the turn, some the whole session.
            named = "" if number // SESSIONS % 2 else f"&response_id={task}"
            again = f"GET /process?session_id={session}{named} HTTP/1.1\r\n{common}"
            first = f"{again}\r\n"
            if number < SESSIONS:
                body = json.dumps(asked(session, f"/tokens 100000 {PACE_MS}", id=task))
                first = (
                    f"POST /process HTTP/1.1\r\n{common}Content-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n{body}"
                )
            requests.append((first.encode(), again.encode(), [self.cluster.port]))
        await self.ask("come", requests[:SESSIONS])
        await self.ask("come", requests[SESSIONS:])

    async def all_serve(self) -> bool:
        """Whether both front ends are up."""
        async with httpx.AsyncClient(trust_env=False, verify=False) as http:
            for each in self.front_ends:
                try:
                    await http.get(f"http://127.0.0.1:{each.port}/readyz")
                except httpx.TransportError:
                    return False
        return True

    async def all_hear(self, attached: int = 0) -> bool:
        """Whether so many have come again, and each has a stream that showed it something since it was last asked to record."""
        state = await self.ask("state")
        return bool(state["hearing"] == FOLLOWERS and state["attached"] >= attached)

    def commands(self) -> Counter[str]:
        """How often each command ran at the broker."""
        stats = self._broker.info("commandstats")
        return Counter({name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()})

    def drop_tails(self) -> None:
        """Cut all pub/sub connections at the broker."""
        assert self._broker.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

    def rss(self) -> int:
        """Bytes of memory that both front ends have."""
        return sum(psutil.Process(each.pid).memory_info().rss for each in self.front_ends)

    def cpu(self) -> dict[tuple[str, int], float]:
        """Seconds that each part has spent, by its name and pid, and those who follow; not of one that was killed."""
        pids = {name: part.pid for name, part in self.cluster.parts.items()}
        spent = {}
        for name, pid in (*pids.items(), ("followers", self._followers.pid)):
            with suppress(psutil.NoSuchProcess):
                spent[name, pid] = family(psutil.Process(pid))
        return spent

    def logs(self) -> list[list[Said]]:
        """What each session's log says to its followers."""
        return [
            [
                Said(cursor, fields[b"e"], _written(cursor, int(fields[b"c"])) / 1000)
                for cursor, fields in self._broker.xrange(SessionKeys("dev", f"s{number}").log)
                if fields[b"e"].startswith(b'{"sequence_number":')
            ]
            for number in range(SESSIONS)
        ]


def _written(cursor: bytes, created: int) -> int:
    """Unix milliseconds; see `turnstream.shared.session.event_log`."""
    return created if created >= 10**12 else int(cursor.partition(b"-")[0]) // 1000 + created


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    """The shipped deployment, with followers of sessions that all speak."""
    try:
        find_nginx()
    except ClusterError as error:
        pytest.skip(str(error))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # nginx has two for each.
    needed = 2 * FOLLOWERS + 1_000
    assert hard == resource.RLIM_INFINITY or hard >= needed, f"RLIMIT_NOFILE must be {needed} at least"
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    # Not pytest's folder, which only its owner may enter: nginx's workers, when root starts it, are nobody.
    with tempfile.TemporaryDirectory(prefix="turnstream-") as folder:
        cluster = Cluster(
            Path(folder),
            workers=1,
            TURNSTREAM_MAX_JOBS=str(SESSIONS),
            TURNSTREAM_OWNER_SHARE="1",
            TURNSTREAM_DRAIN_SECONDS="0",
        )
        try:
            async with cluster:
                _let_kill(cluster)
                _cut_at_reload(cluster)
                with helper(crowd.serve) as followers:
                    town = Town(cluster, await _limited_key(cluster), followers)
                    try:
                        await town.gather()
                        yield town
                    finally:
                        town.close()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _let_kill(cluster: Cluster) -> None:
    """Make a user who may cut connections; no shipped one may."""
    with (cluster.folder / "users.acl").open("a") as users:
        users.write(f"user {STORMER} on >{STORMER} +@all allkeys allchannels\n")
    password = cluster.passwords["operator"]
    url = f"redis://operator:{password}@127.0.0.1:{cluster.broker_port}"
    with redis.Redis.from_url(url, lib_name="", lib_version="") as operator:
        operator.execute_command("ACL", "LOAD")


def _cut_at_reload(cluster: Cluster) -> None:
    """Have reloads cut streams soon, from the next one on: nginx reads this with the one before."""
    conf = cluster.folder / "nginx" / "nginx.conf"
    text = conf.read_text()
    conf.write_text(re.sub(r"worker_shutdown_timeout \S+;", f"worker_shutdown_timeout {SHUTDOWN};", text))
    cluster.parts["nginx"].signal(signal.SIGHUP)


async def _limited_key(cluster: Cluster) -> str:
    """A key whose followers are counted. A front end that was killed still has its own for some seconds."""
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:
        answer = await http.post(
            f"{cluster.url}/admin/v1/keys",
            json={"owner": "dev", "followers": 3 * FOLLOWERS},
            headers={"Authorization": f"Bearer {cluster.admin}"},
        )
    assert answer.status_code == 200, answer.text
    token: str = answer.json()["token"]
    return token


# ── storms: each tells how many followers it cuts at least ──


def _front_end_killed(town: Town) -> int:
    """The one with most connections; it is started again."""
    held = [(len(psutil.Process(each.pid).net_connections("tcp")), each) for each in town.front_ends]
    count, front_end = max(held, key=lambda each: each[0])
    front_end.signal(signal.SIGKILL)
    # Some are nginx's, and one is the broker's.
    return count - 100


def _nginx_reloaded(town: Town) -> int:
    town.cluster.parts["nginx"].signal(signal.SIGHUP)
    return FOLLOWERS


def _tails_dropped(town: Town) -> int:
    town.drop_tails()
    return 0


# Followers come back as our own client does, or at once.
STORMS = (
    (_front_end_killed, Backoff()),
    (_front_end_killed, None),
    (_nginx_reloaded, Backoff()),
    (_nginx_reloaded, None),
    (_tails_dropped, None),
)


async def test_all_are_back(town: Town) -> None:
    """Within 20 s of the cut all hear what was said, once, and of the log was read what a session missed, not what each did."""
    for storm, backoff in STORMS:
        await _endure(town, storm, backoff)


async def _endure(town: Town, storm: Callable[[Town], int], backoff: Backoff | None) -> None:
    await town.ask("record", None)
    usual, since = town.commands(), time.time()
    await wait_until(lambda: time.time() > since + USUAL_SECONDS, "a usual time to pass")
    await wait_until(town.all_hear, "all to hear something", BACK_SECONDS)
    usual, usual_seconds = town.commands() - usual, time.time() - since

    await town.ask("record", backoff)
    memory, commands, begun = town.rss(), town.commands(), time.time()
    spent = town.cpu()
    cut = storm(town)
    await wait_until(lambda: town.all_hear(cut), "all to be back", BACK_SECONDS)
    seconds = time.time() - begun
    busy = {key[0]: now - spent[key] for key, now in town.cpu().items() if key in spent}
    commands = town.commands() - commands
    more = {name: count - usual[name] * seconds / usual_seconds for name, count in commands.items()}

    views, logs = await town.ask("views"), town.logs()
    print(
        f"\n{storm.__name__}, {backoff}: all hear again after {seconds:.1f} s; load {os.getloadavg()[0]:.1f}"
    )
    print("cores busy:", {name: round(used / seconds, 2) for name, used in busy.items()})
    _show(begun, more, views, logs)
    _check_whole(views, logs)
    # Each front end reads from a place once for all who come back with it; who may come is asked once for all who come at once.
    places = SESSIONS + sum(begun < said.at < begun + seconds for log in logs for said in log)
    assert more.get("xrange", 0) < min(len(town.front_ends) * places, FOLLOWERS)
    assert more.get("hgetall", 0) < FOLLOWERS * (0.5 if backoff is None else 1.1)
    await wait_until(town.all_serve, "both front ends to be there", MEMORY_SECONDS)
    await wait_until(lambda: town.rss() < memory + MOST_MORE, "the memory to be back", MEMORY_SECONDS)
    print(f"memory {memory >> 20} MiB, {town.rss() >> 20} MiB {time.time() - begun:.0f} s after the cut")


def _check_whole(views: list[View], logs: list[list[Said]]) -> None:
    """What each saw is the log, up to where it is."""
    digests = [
        list(accumulate(log, lambda digest, said: crowd.extended(digest, said.cursor, said.event), initial=0))
        for log in logs
    ]
    for number, view in enumerate(views):
        assert not view.fault, view.fault
        assert view.digest == digests[number % SESSIONS][view.last + 1], f"follower {number} saw another log"


def _show(begun: float, more: dict[str, float], views: list[View], logs: list[list[Said]]) -> None:
    """The figures of the full size."""
    of_session = [(view, logs[number % SESSIONS]) for number, view in enumerate(views)]
    attaches = [(each, log) for view, log in of_session for each in view.attaches]
    last = max((each.head for each, _ in attaches), default=begun) - begun
    refusals = dict(Counter(each for view in views for each in view.refusals))
    print(f"{len(attaches)} came back, the last after {last:.1f} s; refused: {refusals}")
    _quantiles("head", (each.head - each.begun for each, _ in attaches))
    # What was said after it had come could not be shown to it before.
    _quantiles(
        "attach",
        (each.new - max(each.begun, log[each.number].at) for each, log in attaches if each.number >= 0),
    )
    _quantiles("late", (at - log[number].at for view, log in of_session for number, at in view.arrivals))
    counts = {name: round(count / SESSIONS, 1) for name, count in more.items() if count >= SESSIONS / 10}
    print(f"more commands a session than usual: {counts}")


def _quantiles(name: str, seconds: Iterable[float]) -> None:
    found = sorted(1000 * each for each in seconds)
    if found:
        at = [found[min(len(found) - 1, int(len(found) * share))] for share in (0.5, 0.9, 0.99, 1)]
        print(f"{name}: " + "p50 {:.0f} ms, p90 {:.0f}, p99 {:.0f}, most {:.0f}".format(*at))
