"""Deadlines: of a whole turn, of a server tool, of the client's answers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.fake_provider import tools
from tests.support.fake_provider.server import Call, calls, says
from tests.support.waiting import wait_until
from turnstream.shared.broker.keys import SessionKeys
from turnstream.worker.agents.tools import server
from turnstream.worker.agents.tools.threads import ToolThreads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.client import Frame
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider

# The shortest lease there is: rescuers wait for one before they judge.
QUICK = {"lease_seconds": 1}


@pytest.fixture(autouse=True)
def _hanging_threads_end() -> Iterator[None]:
    tools.called.clear()
    tools.release.clear()
    yield
    tools.release.set()


def error_of(frames: list[Frame]) -> dict[str, Any]:
    """The error that the turn ended with."""
    check_whole(frames)
    event = terminal(frames)
    assert event is not None
    error: dict[str, Any] = event["error"]
    return error


async def test_a_turn_that_runs_too_long_is_ended(deploy: Deployments, provider: Provider) -> None:
    """In the middle of the model's answer; what was said stays, and the worker is free again."""
    client = await deploy(deadline=0.3)
    provider.script = [says("Once upon", until=asyncio.Event())]
    frames = await client.turn("s1", "A story")
    assert error_of(frames)["code"] == "deadline"
    assert text_of(frames) == "Once upon"
    worker = deploy.stack.workers[0][0]
    await wait_until(lambda: not len(worker.leases), "the worker to give up the turn")


async def test_a_turn_that_is_parked_too_long_is_ended(deploy: Deployments, provider: Provider) -> None:
    """The whole turn's deadline holds while it waits for its client, too."""
    client = await deploy(deployment=QUICK, deadline=0.5, client_tools=[{"name": "ask"}])
    provider.script = [calls(Call("ask"))]
    async with client.process("s1", "Hi", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        assert error_of(await stream.all())["code"] == "deadline"
    late = await client.callback("s1", call["call_id"], 1)
    assert late.status_code in {409, 410}


async def test_a_client_that_does_not_answer_in_time(deploy: Deployments, provider: Provider) -> None:
    """`callback_deadline` ends the turn with a code of its own, and a late answer is told so."""
    client = await deploy(deployment=QUICK, callback_deadline=0.2, client_tools=[{"name": "ask"}])
    provider.script = [calls(Call("ask"))]
    async with client.process("s1", "Hi", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        assert error_of(await stream.all())["code"] == "call_expired"
    assert (await client.callback("s1", call["call_id"], 1)).status_code == 410


async def test_a_turn_that_never_begins_is_ended(deploy: Deployments) -> None:
    """A turn that no worker took in time is ended, not begun."""
    client = await deploy.front_end(deployment=QUICK, deadline=0.3)
    async with client.process("s1", "Hi", id="t1") as stream:
        await stream.until(len)
        # Nobody took it in time; a worker that comes now must not begin it.
        await wait_until(lambda: _overdue(deploy), "the deadline to pass")
        await deploy.stack.worker()
        assert error_of(await stream.all())["code"] == "deadline"


async def _time_of(deploy: Deployments, field: str) -> int:
    """A time in the task's hash, milliseconds by the broker's clock."""
    task = SessionKeys("dev", "s1").task("t1")
    return int(await deploy.stack.broker.sessions.hget(task, field) or 0)  # type: ignore[misc]


async def _overdue(deploy: Deployments) -> bool:
    seconds, microseconds = await deploy.stack.broker.primary.time()
    return int(seconds) * 1000 + int(microseconds) // 1000 > await _time_of(deploy, "deadline")


@pytest.mark.parametrize("tool", ["never_ends", "hangs"])
async def test_a_tool_that_takes_too_long_is_told_to_the_model(
    deploy: Deployments, provider: Provider, tool: str
) -> None:
    """Whether it awaits or hangs in a thread, the model is told and goes on."""
    client = await deploy(tools=[f"tests.support.fake_provider.tools:{tool}"], tool_deadline=0.1)
    provider.script = [calls(Call(tool)), says("It hangs.")]
    frames = await client.turn("s1", "Go")
    check_whole(frames)
    assert tools.called == [tool]
    (output,) = calls_of(frames, "plugin_call_output")
    assert output["output"] == "The tool took longer than 0.1 seconds and was ended."
    assert provider.messages()[-1]["content"] == output["output"]
    assert text_of(frames) == "It hangs."


async def test_a_tool_that_hangs_in_a_thread_neither_blocks_nor_loses_the_turn(
    deploy: Deployments, provider: Provider
) -> None:
    """Other turns run meanwhile, the lease is kept for longer than it lasts, and a stop ends it at once."""
    client = await deploy(deployment=QUICK, tools=["tests.support.fake_provider.tools:hangs"])
    provider.script = [calls(Call("hangs")), says("Hello.")]
    async with client.process("s1", "Go", id="t1") as stream:
        await stream.until(lambda frames: calls_of(frames, "plugin_call"))
        await wait_until(lambda: tools.called, "the tool to begin")
        assert text_of(await client.turn("s2", "Hi")) == "Hello."
        first = await _time_of(deploy, "lease")
        await wait_until(lambda: _renewed(deploy, first + 1000), "the lease to be renewed for its own length")
        await client.stop("s1")
        event = terminal(await stream.all())
    assert event is not None
    assert event["status"] == "canceled"
    worker = deploy.stack.workers[0][0]
    await wait_until(lambda: not len(worker.leases), "the worker to give up the turn")


async def test_tools_that_hang_in_threads_block_nobody(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty hang: their model is told, other turns and their threads run; over the bound none is begun."""
    threads = ToolThreads(most=50, most_lost=60)
    monkeypatch.setattr(server, "THREADS", threads)
    client = await deploy(
        tools=["tests.support.fake_provider.tools:hangs", "tests.support.fake_provider.tools:lookup"],
        tool_deadline=1,
    )

    async def hang(session: str, count: int) -> None:
        provider.script.insert(0, calls(*(Call("hangs", "{}", str(number)) for number in range(count))))
        frames = await client.turn(session, "Go")
        check_whole(frames)
        outputs = [each["output"] for each in calls_of(frames, "plugin_call_output")]
        assert outputs == ["The tool took longer than 1 seconds and was ended."] * count

    async def look_up(session: str) -> str:
        provider.script = [calls(Call("lookup", '{"word": "sun"}')), says("Alas.")]
        frames = await client.turn(session, "Go")
        return str(calls_of(frames, "plugin_call_output")[0]["output"])

    provider.script = [says("Hello."), says("Alas.")]
    hanging = asyncio.create_task(hang("s1", 50))
    await wait_until(lambda: len(tools.called) == 50, "all fifty to hang")
    assert text_of(await client.turn("s2", "Hi")) == "Hello."
    await hanging
    assert threads.lost == 50
    assert await look_up("s3") == "sun: True"
    provider.script = [says("Alas.")]
    await hang("s4", 10)
    assert await look_up("s5") == "The tool was not run: too many calls of tools hang in this worker."
    tools.release.set()
    await wait_until(lambda: threads.lost == 0, "the threads to end")
    assert await look_up("s6") == "sun: True"


def test_a_tool_that_hangs_does_not_keep_the_process() -> None:
    """A process ends though a thread of its tools never does."""
    program = (
        "import asyncio, time\n"
        "from turnstream.worker.agents.tools.threads import ToolThreads\n"
        "async def main():\n"
        "    run = asyncio.get_running_loop().run_in_executor(ToolThreads(), time.sleep, 3600)\n"
        "    await asyncio.wait([run], timeout=0.1)\n"
        "    run.cancel()\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True)


async def _renewed(deploy: Deployments, after: int) -> bool:
    return await _time_of(deploy, "lease") > after
