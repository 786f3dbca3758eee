"""MCP: tools of real servers, over stdio and over streamable HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from deploy.ports import free_port
from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.lost import lose
from tests.support.scripted import Step, script
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVER = str(Path(__file__).parent.parent / "support" / "mcp_server.py")


@pytest.fixture
def noted(tmp_path: Path) -> Any:
    """What the server notes: its process ids and the tools that began."""
    log = tmp_path / "mcp.log"

    def lines() -> list[str]:
        return log.read_text().splitlines() if log.exists() else []

    lines.path = str(log)  # type: ignore[attr-defined]
    return lines


@pytest.fixture
def stdio(noted: Any) -> dict[str, Any]:
    """A server that the worker starts."""
    return {
        "label": "tests",
        "command": sys.executable,
        "args": [SERVER],
        "env": {"MCP_LOG": noted.path, "MCP_SECRET": "42"},
    }


@pytest.fixture
async def http(noted: Any) -> AsyncIterator[dict[str, Any]]:
    """A server that runs already, on 127.0.0.1."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        SERVER,
        "http",
        str(port),
        env={**os.environ, "MCP_LOG": noted.path, "MCP_SECRET": "42"},
    )
    await wait_until(lambda: _listens(port), "the MCP server to listen")
    yield {"label": "tests", "url": f"http://127.0.0.1:{port}/mcp"}
    if process.returncode is None:
        process.terminate()
    await process.wait()


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Either kind of server."""
    given: dict[str, Any] = request.getfixturevalue(request.param)
    return given


async def test_tools_are_listed_once_and_called(serve: Any, server: dict[str, Any]) -> None:
    """One list a turn however often the model is asked; calls and results name the server."""
    client, _ = await serve(lead={"mcp": [server]})
    steps = [("add", {"a": 1, "b": 2})], [("add", {"a": 3, "b": 4}), ("add", {"a": 5, "b": 6})], "{results}"
    frames = await client.turn("s1", script(*steps))
    check_whole(frames)
    (listed,) = calls_of(frames, "mcp_list_tools")
    assert listed["server_label"] == "tests"
    tools = {tool["name"]: tool for tool in listed["tools"]}
    assert tools["add"]["description"] == "Add two numbers."
    assert tools["add"]["input_schema"]["required"] == ["a", "b"]
    calls, outputs = calls_of(frames, "mcp_call"), calls_of(frames, "mcp_call_output")
    assert [call["server_label"] for call in calls] == ["tests"] * 3
    assert [call["call_id"] for call in calls] == [call["id"] for call in calls]
    assert {call["call_id"] for call in calls} == {output["call_id"] for output in outputs}
    assert [output["output"] for output in outputs] == ["3", "7", "11"]
    assert text_of(frames) == "3 | 7 | 11 "
    assert len(calls_of(await client.turn("s1", script("hi")), "mcp_list_tools")) == 1


async def test_a_liteagent_client_sees_mcp_calls_as_tools(serve: Any, stdio: dict[str, Any]) -> None:
    """ToolCalls and toolReturn between toolsStart and toolsDone, as for any tool."""
    client, _ = await serve(lead={"mcp": [stdio]})
    session = await client.init()
    async with client.chat(
        session, script([("add", {"a": 1, "b": 2}), ("fail", {"reason": "no"})], "ok")
    ) as stream:
        frames = [frame.data for frame in await stream.all()]
    types = [
        frame["content"]["status"] if frame["type"] == "taskStatus" else frame["type"]
        for frame in frames
        if frame["type"] in {"taskStatus", "toolCalls", "toolReturn"}
    ]
    assert types == ["start", "toolsStart", *["toolCalls"] * 2, *["toolReturn"] * 2, "toolsDone", "done"]
    results = [frame["content"]["result"] for frame in frames if frame["type"] == "toolReturn"]
    assert {"result": 3} in results
    assert any("Error executing tool fail" in str(result.get("error")) for result in results)


async def test_the_model_is_told_what_went_wrong(serve: Any, server: dict[str, Any], noted: Any) -> None:
    """A failing tool, arguments that do not fit, a server that dies in mid-call: the turn goes on."""
    client, _ = await serve(lead={"mcp": [server]})
    steps: tuple[Step, ...] = (
        [("fail", {"reason": "no"})],
        [("add", {"a": "one"})],
        [("crash", {})],
        "{results}",
    )
    frames = await client.turn("s1", script(*steps))
    check_whole(frames)
    failed, misfit, crashed = [output["error"] for output in calls_of(frames, "mcp_call_output")]
    assert "Error executing tool fail" in failed
    assert "$.a: 'one' is not of type 'integer'" in misfit
    assert "server" in crashed
    assert all(error in text_of(frames) for error in (failed, misfit, crashed))
    assert "add" not in noted()
    assert terminal(frames)["status"] == "completed"  # type: ignore[index]


async def test_a_server_that_died_is_started_anew(serve: Any, stdio: dict[str, Any], noted: Any) -> None:
    """The next call of the same turn gets a fresh server, and so does a turn after it died in between."""
    client, _ = await serve(lead={"mcp": [stdio]})
    frames = await client.turn("s1", script([("crash", {})], [("add", {"a": 1, "b": 1})], "{results}"))
    assert text_of(frames).endswith("| 2 ")
    pids = _pids(noted)
    assert len(pids) == 2
    os.kill(pids[1], 9)
    assert text_of(await client.turn("s1", script([("add", {"a": 2, "b": 2})], "{results}"))) == "4 "
    assert len(_pids(noted)) == 3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"command": "/no/such/program"}, "No such file"),
        ({"command": sys.executable, "args": ["-c", "raise SystemExit(2)"]}, "the connection closed"),
        (
            {"command": sys.executable, "args": ["-c", "input(); input()"], "start_deadline": 0.3},
            "0.3 seconds",
        ),
        ({"url": "http://127.0.0.1:9/mcp"}, "onnection"),
    ],
)
async def test_a_server_that_cannot_start(serve: Any, wrong: dict[str, Any], words: str) -> None:
    """The client and the model are told why there are no tools; the turn goes on with those of other servers."""
    client, _ = await serve(lead={"mcp": [{"label": "gone", **wrong}]})
    frames = await client.turn("s1", script("{instructions}"))
    check_whole(frames)
    (listed,) = calls_of(frames, "mcp_list_tools")
    assert (listed["tools"], listed["server_label"]) == ([], "gone")
    assert words in listed["error"]
    assert "'gone' are not available now" in text_of(frames)
    assert words in text_of(frames)


async def test_a_tool_that_takes_too_long_is_ended(serve: Any, server: dict[str, Any]) -> None:
    """After ``tool_deadline`` the model is told; calls beside it are not touched."""
    client, _ = await serve(lead={"mcp": [server], "tool_deadline": 0.5})
    steps = [("slow", {"seconds": 60}), ("add", {"a": 1, "b": 2})], "{results}"
    frames = await client.turn("s1", script(*steps))
    assert text_of(frames).endswith("longer than 0.5 seconds and was ended. | 3 ")


async def test_consent_is_asked_where_the_configuration_says(
    serve: Any, server: dict[str, Any], noted: Any
) -> None:
    """One tool waits for its yes through `/callback`; the other runs meanwhile, and once only."""
    client, stack = await serve(lead={"mcp": [{**server, "approval": {"tools": ["secret"]}}]})
    steps = [("secret", {"what": "life"}), ("add", {"a": 1, "b": 2})], "{results}"
    async with client.process("s1", script(*steps), id="t1") as stream:
        (asked,) = calls_of(await stream.until(_asked), "mcp_approval_request")
        assert (asked["name"], asked["server_label"]) == ("secret", "tests")
        await wait_until(lambda: _parked(stack), "the turn to park")
        assert "secret" not in noted()
        assert (await client.callback("s1", asked["id"], {"approve": True})).status_code == 200
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames) == "The secret of life is 42. | 3 "
    assert noted().count("add") == noted().count("secret") == 1
    assert len(calls_of(frames, "mcp_list_tools")) == len(calls_of(frames, "mcp_approval_response")) == 1


async def test_a_no_through_process_reaches_the_model(serve: Any, stdio: dict[str, Any], noted: Any) -> None:
    """The reason is told; the tool never runs, even when the server died while the turn was parked."""
    client, stack = await serve(lead={"mcp": [{**stdio, "approval": "always"}]})
    async with client.process("s1", script([("secret", {"what": "x"})], "{results}"), id="t1") as stream:
        (asked,) = calls_of(await stream.until(_asked), "mcp_approval_request")
    await wait_until(lambda: _parked(stack), "the turn to park")
    os.kill(_pids(noted)[0], 9)
    data = {"approval_request_id": asked["id"], "approve": False, "reason": "Not today."}
    answer = {
        "role": "user",
        "type": "mcp_approval_response",
        "content": [{"type": "data", "data": data}],
    }
    async with client.open("POST", "/process", json={"session_id": "s1", "input": [answer]}) as rest:
        frames = await rest.all()
    assert calls_of(frames, "mcp_call_output")[0]["error"] == "The tool call was denied. Not today."
    assert text_of(frames) == "The tool call was denied. Not today. "
    assert "secret" not in noted()


async def test_a_yes_after_the_server_died_gets_a_fresh_one(
    serve: Any, stdio: dict[str, Any], noted: Any
) -> None:
    """A turn may be parked for longer than a server lives."""
    client, stack = await serve(lead={"mcp": [{**stdio, "approval": "always"}]})
    async with client.process("s1", script([("secret", {"what": "x"})], "{results}"), id="t1") as stream:
        (asked,) = calls_of(await stream.until(_asked), "mcp_approval_request")
        await wait_until(lambda: _parked(stack), "the turn to park")
        os.kill(_pids(noted)[0], 9)
        await client.callback("s1", asked["id"], True)
        assert text_of(await stream.all()) == "The secret of x is 42. "


async def test_a_server_gets_the_key_of_a_call(serve: Any, stdio: dict[str, Any]) -> None:
    """Idempotency key, fencing number and deadline stand in the request's ``_meta``."""
    client, _ = await serve(lead={"mcp": [stdio]})
    before = time.time()
    frames = await client.turn("s1", script([("marks", {}), ("marks", {})], "{results}"))
    one, two = (orjson.loads(output["output"]) for output in calls_of(frames, "mcp_call_output"))
    assert one["turnstream/attempt"] == 1
    assert before < one["turnstream/deadline"] < time.time() + 600
    assert uuid.UUID(one["turnstream/idempotency-key"]) != uuid.UUID(two["turnstream/idempotency-key"])


@pytest.mark.parametrize(
    ("tool", "on_lost", "runs"),
    [
        ("stay", {}, 1),
        ("stay", {"stay": "rerun"}, 2),
        ("stay_idempotent", {}, 2),
        ("stay_idempotent", {"stay_idempotent": "tell"}, 1),
    ],
)
async def test_a_lost_call_goes_by_the_servers_hints(
    serve: Any, stdio: dict[str, Any], noted: Any, tool: str, on_lost: dict[str, str], runs: int
) -> None:
    """What it says is idempotent runs again, anything else is told; the configuration overrules it."""
    client, stack = await serve(lead={"mcp": [{**stdio, "on_lost": on_lost}]})
    async with client.process("s1", script([(tool, {})], "{results}"), id="t1") as stream:
        await wait_until(lambda: tool in noted(), "the tool to run")
        await lose(stack)
        frames = await stream.all()
    check_whole(frames)
    assert noted().count(tool) == runs
    assert ("went on" in text_of(frames)) == (runs == 2)
    assert ("unknown" in text_of(frames)) == (runs == 1)


async def test_tools_of_the_same_name_are_told_apart(serve: Any, stdio: dict[str, Any]) -> None:
    """The second server's tool has its label in front; the client reads the tool's own name."""
    client, _ = await serve(lead={"mcp": [stdio, {**stdio, "label": "other"}]})
    frames = await client.turn(
        "s1", script([("add", {"a": 1, "b": 1}), ("other_add", {"a": 2, "b": 2})], "{results}")
    )
    assert text_of(frames) == "2 | 4 "
    assert {(call["name"], call["server_label"]) for call in calls_of(frames, "mcp_call")} == {
        ("add", "tests"),
        ("add", "other"),
    }


async def test_a_tool_in_front_of_a_label_is_told_from_a_requests(serve: Any, stdio: dict[str, Any]) -> None:
    """The name that a label makes may be that of a function which the request brings."""
    client, _ = await serve(lead={"mcp": [stdio, {**stdio, "label": "other"}], "allow_overrides": ["tools"]})
    function = {"name": "other_add", "parameters": {"type": "object", "properties": {}}}
    frames = await client.turn(
        "s1",
        script([("add", {"a": 1, "b": 1}), ("other_add_2", {"a": 2, "b": 2})], "{results}"),
        tools=[{"type": "function", "function": function}],
    )
    assert text_of(frames) == "2 | 4 "


async def test_a_tool_that_cannot_be_described_is_left_out(serve: Any, stdio: dict[str, Any]) -> None:
    """Its schema could not be kept, and so would fail every turn; the server's other tools are offered."""
    client, _ = await serve(lead={"mcp": [stdio]})
    frames = await client.turn("s1", script([("add", {"a": 1, "b": 1})], "{results}"))
    check_whole(frames)
    (listed,) = calls_of(frames, "mcp_list_tools")
    names = {tool["name"] for tool in listed["tools"]}
    assert "add" in names
    assert "unreadable" not in names
    assert text_of(frames) == "2 "


async def test_a_request_may_not_bring_a_tool_of_a_servers_name(serve: Any, stdio: dict[str, Any]) -> None:
    """Only the worker knows the server's tools: the turn ends, and names tool and server."""
    client, _ = await serve(lead={"mcp": [stdio], "allow_overrides": ["tools"]})
    function = {"name": "add", "parameters": {"type": "object", "properties": {}}}
    frames = await client.turn("s1", script("hi"), tools=[{"type": "function", "function": function}])
    check_whole(frames)
    ended = terminal(frames)
    assert ended is not None
    assert ended["error"] == {
        "code": "tool_name_taken",
        "message": "tools: 'add' is a tool of the agent's MCP server 'tests'.",
    }


async def test_an_image_is_told_by_its_kind(serve: Any, stdio: dict[str, Any]) -> None:
    """The log does not carry the bytes; the model gets the image."""
    client, _ = await serve(lead={"mcp": [stdio]})
    frames = await client.turn("s1", script([("picture", {})], "seen"))
    assert calls_of(frames, "mcp_call_output")[0]["output"] == "(image/png, 4 bytes)"
    assert text_of(frames) == "seen "


async def test_turns_share_a_server_and_it_ends_with_the_worker(
    serve: Any, stdio: dict[str, Any], noted: Any
) -> None:
    """One process for a worker's turns, started by the first of them, gone when the worker has drained."""
    client, stack = await serve(lead={"mcp": [stdio]})
    assert not noted()
    turns = (
        client.turn(f"s{number}", script([("add", {"a": 1, "b": 1})], "{results}")) for number in range(5)
    )
    assert {text_of(frames) for frames in await asyncio.gather(*turns)} == {"2 "}
    (pid,) = _pids(noted)
    await stack.stop_worker(stack.workers[0][0])
    await wait_until(lambda: not _lives(pid), "the MCP server to end")


def _asked(frames: Any) -> Any:
    return calls_of(frames, "mcp_approval_request")


async def _parked(stack: Any) -> bool:
    status: str = await stack.status("s1", "t1")
    return status == "parked"


def _pids(noted: Any) -> list[int]:
    return [int(line.removeprefix("pid ")) for line in noted() if line.startswith("pid ")]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_a_servers_own_error_text_stays_with_operators(
    serve: Any, http: dict[str, Any], capsys: Any
) -> None:
    """It may quote addresses and what stands there: client and model read our words, the log has the code."""
    client, _ = await serve(lead={"mcp": [http]})
    frames = await client.turn("s1", script([("refuse", {})], "{results}"))
    check_whole(frames)
    assert "refused the call" in text_of(frames)
    assert "10.0.0.1" not in str([frame.data for frame in frames])
    said = capsys.readouterr()
    assert "10.0.0.1" not in said.out + said.err
    assert "mcp.refused" in said.out
    assert "-32001" in said.out
