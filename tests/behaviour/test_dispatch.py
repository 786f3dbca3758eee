"""Dispatch: an agent hands work to others, in parallel and in depth."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson

from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.scripted import script
from tests.support.waiting import wait_until
from turnstream.shared.broker.keys import SessionKeys
from turnstream.worker.publisher import Publisher
from turnstream.worker.turn import WITHDRAWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

ASK = {"name": "where", "parameters": {"type": "object", "properties": {}}}


async def test_sub_agents_work_side_by_side_each_under_its_own_path(serve: Any) -> None:
    """Two kinds at once, and one kind twice in the same answer: four paths, four answers, none mixed."""
    client, stack = await serve(lead={"subagents": ["left", "right"]}, left={}, right={})
    steps = (
        [(name, [f"I am {name} {number}"]) for number in (1, 2) for name in ("left", "right")],
        "{results}",
    )
    frames = await client.turn("s1", script(*steps))
    check_whole(frames)
    assert text_of(frames).endswith("I am left 1  | I am right 1  | I am left 2  | I am right 2  ")
    paths: dict[str, str] = {}
    for entry in await stack.entries("s1"):
        if entry.path:
            paths[entry.path] = paths.get(entry.path, "") + _delta(entry.event)
    assert paths == {
        "left": "I am left 1 ",
        "right": "I am right 1 ",
        "left~2": "I am left 2 ",
        "right~2": "I am right 2 ",
    }
    outputs = {output["dispatchId"]: output for output in calls_of(frames, "component_call_output")}
    for call in calls_of(frames, "component_call"):
        assert outputs[call["dispatchId"]]["agentId"] == call["agentId"]
    assert len(outputs) == 4


async def test_sub_agents_have_sub_agents(serve: Any) -> None:
    """Each level speaks under a longer path, and its answer goes one level up."""
    client, stack = await serve(lead={"subagents": ["middle"]}, middle={"subagents": ["deep"]}, deep={})
    inner = [[["deep", ["the bottom"]]], "from below: {results}"]
    frames = await client.turn("s1", script([("middle", inner)], "heard {results}"))
    check_whole(frames)
    assert text_of(frames).endswith("heard from below: the bottom   ")
    assert {entry.path for entry in await stack.entries("s1")} == {"", "middle", "middle/deep"}


async def test_the_depth_has_a_limit(serve: Any) -> None:
    """At the greatest depth an agent is offered no others; what it calls all the same does not run."""
    client, stack = await serve(lead={"subagents": ["self"]}, self={"subagents": ["self"]})
    task: list[Any] = ["never reached"]
    for _ in range(6):
        task = [[["self", task]], "got {results}"]
    frames = await client.turn("s1", script([("self", task)], "{results}"))
    check_whole(frames)
    assert max(entry.path.count("/") for entry in await stack.entries("s1")) == 3
    assert "never reached" not in text_of(frames)
    assert terminal(frames)["status"] == "completed"  # type: ignore[index]


async def test_their_number_has_a_limit(serve: Any) -> None:
    """Over `max_dispatches`, counted over all depths, the model is told instead."""
    client, _ = await serve(
        lead={"subagents": ["helper"], "max_dispatches": 3}, helper={"subagents": ["helper"]}
    )
    inner = [[["helper", ["second"]]], "first"]
    calls = [("helper", inner)], [("helper", ["third"])], [("helper", ["fourth"])], "{results}"
    frames = await client.turn("s1", script(*calls))
    check_whole(frames)
    assert text_of(frames).endswith("first  | third  | No more than 3 agents may be asked in one turn. ")
    assert "fourth" not in text_of(frames)
    assert len(calls_of(frames, "component_call")) == len(calls_of(frames, "component_call_output")) == 4


async def test_the_turn_waits_for_a_sub_agents_model(serve: Any) -> None:
    """A failure that passes is told no model: the turn waits, and the sub-agent goes on; another's answer is kept."""
    client, _ = await serve(lead={"subagents": ["helper"]}, helper={})
    first = [("helper", ["fine"])]
    away = [("helper", [{"away_at_attempt": 1, "say": "at last"}])]
    frames = await client.turn("s1", script(first, away, "{results}"))
    check_whole(frames)
    assert text_of(frames).endswith("fine  | at last  ")
    kinds = ("component_call", "component_call_output")
    assert [len(calls_of(frames, kind)) for kind in kinds] == [2, 2]


async def test_a_failing_sub_agent_does_not_end_the_turn(serve: Any) -> None:
    """The model that asked is told the code and the public text; what the sub-agent had begun is closed."""
    client, _ = await serve(lead={"subagents": ["helper"]}, helper={})
    steps = (
        [("helper", [{"fail": "There is none left."}]), ("helper", ["fine"])],
        [("helper", [[["broken", {}], ["hang_once", {}]], "never"])],
        "{results}",
    )
    again = await client.turn("s1", script(*steps))
    check_whole(again)
    said = text_of(again)
    assert said.endswith(
        "There is none left. (scripted_failure) | fine  | The agent failed (RuntimeError). (agent_error) "
    )
    assert "hunter2" not in "".join(str(frame.data) for frame in again)
    ended = terminal(again)
    assert ended is not None
    assert ended["status"] == "completed"
    assert {message["status"] for message in ended["output"]} == {"completed"}
    outputs = [output["output"] for output in calls_of(again, "plugin_call_output")]
    assert outputs == ["The agent failed before this was done."] * 2
    session = await client.init()
    async with client.chat(session, script(*steps)) as stream:
        frames = await stream.all()
    statuses = [frame.data["content"]["status"] for frame in frames if frame.data["type"] == "taskStatus"]
    assert statuses.count("toolsStart") == statuses.count("toolsDone") == 3


async def test_a_sub_agents_call_parks_the_turn_and_it_goes_on_first(serve: Any) -> None:
    """Two of three sub-agents ask the client; nobody runs twice, and the answers find their askers."""
    client, stack = await serve(
        lead={"subagents": ["asker", "worker"]}, asker={"client_tools": [ASK]}, worker={}
    )
    inner = [[["where", {}]], "I was told {results}"]
    steps = [("asker", inner), ("asker", inner), ("worker", ["done"])], "{results}"
    async with client.process("s1", script(*steps), id="t1") as stream:
        first, second = calls_of(await stream.until(lambda frames: len(calls_of(frames)) == 2))
        await wait_until(lambda: _parked(stack), "the turn to park")
        assert (await client.callback("s1", second["call_id"], "Oslo")).status_code == 200
        assert (await client.callback("s1", first["call_id"], "Rome")).status_code == 200
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames).endswith("I was told Rome  | I was told Oslo  | done  ")
    assert [len(calls_of(frames, kind)) for kind in ("component_call", "component_call_output")] == [3, 3]
    paths = {entry.path for entry in await stack.entries("s1") if entry.kind == "function_call_output"}
    assert paths == {"asker", "asker~2"}


async def test_what_a_failing_sub_agent_asked_is_taken_back(serve: Any) -> None:
    """A function and a consent: the client is told, a late answer is gone, and the turn goes on and ends."""
    client, _ = await serve(
        lead={"subagents": ["helper"]},
        helper={"client_tools": [ASK], "python": "tests.support.scripted:guarded"},
    )
    asks: list[Any] = [("where", {}), ("risky", {}), ("broken", {})]
    frames = await client.turn("s1", script([("helper", [asks, "never"])], "{results}"))
    check_whole(frames)
    ended = terminal(frames)
    assert ended is not None
    assert ended["status"] == "completed"
    (call,) = calls_of(frames)
    (output,) = calls_of(frames, "function_call_output")
    said = "The agent failed before this was done."
    assert output == {"call_id": call["call_id"], "name": "where", "output": said}
    (consent,) = calls_of(frames, "mcp_approval_request")
    told = {each["call_id"]: each["output"] for each in calls_of(frames, "plugin_call_output")}
    assert told[consent["id"]] == said
    for late in (call["call_id"], consent["id"]):
        answer = await client.callback("s1", late, True)
        assert (answer.status_code, answer.json()["reason"]) == (410, "call_withdrawn")


async def test_a_call_that_was_taken_back_is_gone_while_the_turn_goes_on(serve: Any) -> None:
    """Another sub-agent still asks: its call parks the turn, the failed one's call takes no answer."""
    client, stack = await serve(
        lead={"subagents": ["asker", "helper"]}, asker={"client_tools": [ASK]}, helper={"client_tools": [ASK]}
    )
    failing = [[["where", {}], ["broken", {}]], "never"]
    steps = [("helper", failing), ("asker", [[["where", {}]], "in {results}"])], "{results}"
    async with client.process("s1", script(*steps), id="t1") as stream:
        frames = await stream.until(lambda all_: len(calls_of(all_)) == 2)
        await wait_until(lambda: _parked(stack), "the turn to park")
        frames = await stream.until(lambda all_: calls_of(all_, "function_call_output"))
        (gone,) = [output["call_id"] for output in calls_of(frames, "function_call_output")]
        (open_,) = {call["call_id"] for call in calls_of(frames)} - {gone}
        answer = await client.callback("s1", gone, "Oslo")
        assert (answer.status_code, answer.json()["reason"]) == (410, "call_withdrawn")
        assert (await client.callback("s1", open_, "Rome")).status_code == 200
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames).endswith("The agent failed (RuntimeError). (agent_error) | in Rome  ")


async def test_what_was_taken_back_is_not_asked_again_by_the_next_attempt(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker goes between taking the calls back and saying what becomes of them: the client has been told that they are gone."""
    client, stack = await serve(
        lead={"subagents": ["helper"]},
        helper={"client_tools": [ASK], "python": "tests.support.scripted:guarded"},
    )
    withdraw, withdrawn = Publisher.withdraw, asyncio.Event()

    async def withdraw_and_wait(publisher: Publisher, calls: Sequence[str]) -> set[str]:
        answered = await withdraw(publisher, calls)
        if not withdrawn.is_set():
            withdrawn.set()
            await asyncio.Event().wait()
        return answered

    monkeypatch.setattr(Publisher, "withdraw", withdraw_and_wait)
    asks: list[Any] = [("where", {}), ("risky", {}), ("broken", {})]
    async with client.process("s1", script([("helper", [asks, "never"])], "{results}"), id="t1") as stream:
        await withdrawn.wait()
        await stack.worker()
        await stack.stop_worker(stack.workers[0][0])
        # It would wait for the client, if that were asked again.
        async with asyncio.timeout(30):
            frames = await stream.all()
    check_whole(frames)
    ended = terminal(frames)
    assert ended is not None
    assert ended["status"] == "completed"
    assert (await stack.log.task(SessionKeys("dev", "s1"), "t1"))["attempt"] == "2"
    (call,) = calls_of(frames)
    (consent,) = calls_of(frames, "mcp_approval_request")
    (output,) = calls_of(frames, "function_call_output")
    assert output == {"call_id": call["call_id"], "name": "where", "output": WITHDRAWN}
    told = [each for each in calls_of(frames, "plugin_call_output") if each["call_id"] == consent["id"]]
    assert len(told) == 1
    assert WITHDRAWN in told[0]["output"]
    for late in (call["call_id"], consent["id"]):
        answer = await client.callback("s1", late, True)
        assert (answer.status_code, answer.json()["reason"]) == (410, "call_withdrawn")


def _delta(event: bytes) -> str:
    body = orjson.loads(event)
    return str(body.get("text", "")) if body.get("delta") else ""


async def _parked(stack: Any) -> bool:
    status: str = await stack.status("s1", "t1")
    return status == "parked"
