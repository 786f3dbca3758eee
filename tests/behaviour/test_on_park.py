"""Where the client is asked: with `on_park = "complete"` a response ends there, and the answers begin one of its own.

The official web UI works so: each of its POSTs is a card, and a card's output is what its stream ended with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.behaviour.conftest import team
from tests.support.client import asked, calls_of, large_text, terminal, text_of
from tests.support.scripted import script
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream import AsyncClient
from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.agents.config import load as load_agents
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.outcomes import Attempt, Launch, Parked
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place
    from tests.support.client import Client, Frame

COMPLETE = {"on_park": "complete"}
# Two questions, one after the other, then the answer.
TWICE = script([("f", {})], [("f", {})], "done {results}")


@pytest.fixture
async def stack(place: Place) -> AsyncIterator[Stack]:
    """The demo agent, and one that is asked twice."""
    stack = Stack(place, team(lead={"client_tools": [{"name": "f"}], "on_park": "complete"}))
    await stack.worker()
    yield stack
    await stack.close()


@pytest.fixture
async def client(stack: Stack) -> Client:
    """A client of the demo agent."""
    return await stack.front_end()


@pytest.fixture
async def twice(stack: Stack) -> Client:
    """A client of the agent that completes by itself."""
    return await stack.front_end(dev_agent="lead")


def outputs(**results: Any) -> list[dict[str, Any]]:
    """The answers to calls, as an input."""
    return [
        {
            "role": "tool",
            "type": "function_call_output",
            "content": [{"type": "data", "data": {"call_id": call, "output": output}}],
        }
        for call, output in results.items()
    ]


def approval(call: str) -> list[dict[str, Any]]:
    """Consent, as an input."""
    data = {"approval_request_id": call, "approve": True}
    return [{"role": "user", "type": "mcp_approval_response", "content": [{"type": "data", "data": data}]}]


async def post(client: Client, body: dict[str, Any], **params: str) -> list[Frame]:
    """A POST to `/process`, read to its end."""
    async with client.open("POST", "/process", json=body, params=params) as stream:
        assert stream.response.status_code == 200, await stream.response.aread()
        frames: list[Frame] = await stream.all()
        return frames


async def get(client: Client, session: str, response: str, cursor: str = "", **params: str) -> list[Frame]:
    """A response, from its beginning or behind a cursor."""
    async with client.follow(session, response, cursor, **params) as stream:
        assert stream.response.status_code == 200, await stream.response.aread()
        frames: list[Frame] = await stream.all()
        return frames


def check_response(frames: list[Frame], name: str, status: str = "completed") -> dict[str, Any]:
    """Check a stream as a response of its own; its end."""
    assert [frame.data["sequence_number"] for frame in frames] == list(range(len(frames)))
    told = [frame.data for frame in frames if frame.data["object"] == "response"]
    assert {event["id"] for event in told} == {name}
    assert [event["status"] for event in told if event["status"] != "queued"] == [
        "created",
        "in_progress",
        status,
    ]
    assert told[-1] is frames[-1].data
    closed = [
        {key: value for key, value in frame.data.items() if key != "sequence_number"}
        for frame in frames
        if frame.data["object"] == "message" and frame.data["status"] in ("completed", "incomplete")
    ]
    assert told[-1]["output"] == closed
    cursors = [frame.id for frame in frames if frame.id]
    assert len(set(cursors)) == len(cursors)
    end: dict[str, Any] = told[-1]
    return end


def types(event: dict[str, Any]) -> list[str]:
    """What a response's output holds."""
    return [message["type"] for message in event["output"]]


async def test_an_approval_is_shown_once(client: Client) -> None:
    """As the official web UI does it: one card with the request, another one with what came of it."""
    first = await post(client, asked("s1", "/approve files", id="t1"), **COMPLETE)
    assert types(check_response(first, "t1")) == ["mcp_approval_request"]
    (request,) = calls_of(first, "mcp_approval_request")
    body = {"session_id": "s1", "input": approval(request["id"])}
    second = await post(client, body, **COMPLETE)
    assert types(check_response(second, "t1~1")) == ["plugin_call", "plugin_call_output", "message"]


async def test_a_follow_up_does_not_repeat_what_it_did_not_carry(client: Client) -> None:
    """With `follow`, the other one: the answers and what comes of them are the end's output, for their stream alone."""
    async with client.process("s1", "/approve files", id="t1") as stream:
        (request,) = calls_of(
            await stream.until(lambda frames: calls_of(frames, "mcp_approval_request")),
            "mcp_approval_request",
        )
        second = await post(client, {"session_id": "s1", "input": approval(request["id"])})
        first = await stream.all()
    rest = ["mcp_approval_response", "plugin_call", "plugin_call_output", "message"]
    assert types(first[-1].data) == ["mcp_approval_request", *rest]
    assert types(second[-1].data) == rest
    assert {**second[-1].data, "output": []} == {**first[-1].data, "output": []}
    assert [frame.raw for frame in second[:-1]] == [frame.raw for frame in first[-len(second) : -1]]
    # Whoever comes back to the turn has the whole of it.
    assert types((await get(client, "s1", "t1"))[-1].data) == ["mcp_approval_request", *rest]


async def test_each_segment_is_a_response(twice: Client) -> None:
    """A turn that asks twice is three responses, each found by its id, at any time; other ids are not."""
    told = [await post(twice, asked("s1", TWICE, id="t1"))]
    for answer in ("one", "two"):
        (call,) = calls_of(told[-1])
        told.append(await post(twice, {"session_id": "s1", "input": outputs(**{call["call_id"]: answer})}))
    names = ["t1", "t1~1", "t1~2"]
    for name, frames, kinds in zip(
        names, told, (["function_call"], ["function_call"], ["message"]), strict=True
    ):
        assert types(check_response(frames, name)) == kinds
        assert [frame.raw for frame in await get(twice, "s1", name)] == [frame.raw for frame in frames]
    assert text_of(told[2]) == "done one | two "
    for name in ("t1~3", "t1~0", "t1~01", "t1~", "t1~x", "~1", "t1~1~1", "t2~1", f"t1~{'9' * 30}"):
        async with twice.follow("s1", name) as stream:
            assert stream.response.status_code == 404, name
            await stream.response.aread()
            assert stream.response.json()["code"] == "task_not_found"
    whole = await get(twice, "s1", "t1", on_park="follow")
    assert types(whole[-1].data) == [
        *("function_call", "function_call_output"),
        *("function_call", "function_call_output", "message"),
    ]
    assert {frame.data["id"] for frame in whole if frame.data["object"] == "response"} == {"t1"}


async def test_a_segment_is_resumed_from_each_event(client: Client, stack: Stack) -> None:
    """Behind any of its events, at any front end, the rest of it comes with the same bytes."""
    other = await stack.front_end()
    first = await post(client, asked("s1", "/call f {}", id="t1"), **COMPLETE)
    (call,) = calls_of(first)
    body = {"session_id": "s1", "input": outputs(**{call["call_id"]: "noon"})}
    second = await post(client, body, **COMPLETE)
    for name, frames in (("t1", first), ("t1~1", second)):
        for at, frame in enumerate(frames):
            if frame.id:
                rest = await get(other, "s1", name, frame.id, **COMPLETE)
                assert [each.raw for each in rest] == [each.raw for each in frames[at + 1 :]]
    # The lost reply to the answers is asked for again; so is the rest of it, by the whole request.
    assert [frame.raw for frame in await post(other, body, **COMPLETE)] == [frame.raw for frame in second]
    async with other.open(
        "POST", "/process", json=body, params=COMPLETE, headers={"Last-Event-ID": second[4].id}
    ) as stream:
        assert [frame.raw for frame in await stream.all()] == [frame.raw for frame in second[5:]]
    again = {"session_id": "s1", "id": "t1", "reconnect": True}
    assert [frame.raw for frame in await post(other, again, **COMPLETE)] == [frame.raw for frame in first]


async def test_one_json_object_is_a_response(client: Client) -> None:
    """Without a stream: the same ends."""
    first = await client.http.post(
        "/process", json=asked("s1", "/calls 2", id="t1", stream=False), params=COMPLETE
    )
    told = first.json()
    assert (told["status"], told["id"], types(told)) == ("completed", "t1", ["function_call"] * 2)
    assert told == (await get(client, "s1", "t1", **COMPLETE))[-1].data
    one, two = (message["content"][0]["data"]["call_id"] for message in told["output"])
    half = await client.http.post(
        "/process", json={"session_id": "s1", "input": outputs(**{one: 1}), "stream": False}, params=COMPLETE
    )
    # The other one is awaited still.
    assert (half.json()["status"], half.json()["id"], half.json()["output"]) == ("in_progress", "t1~1", [])
    rest = await client.http.post(
        "/process", json={"session_id": "s1", "input": outputs(**{two: 2}), "stream": False}, params=COMPLETE
    )
    assert (rest.json()["status"], rest.json()["id"], types(rest.json())) == (
        "completed",
        "t1~1",
        ["message"],
    )
    assert rest.json() == (await get(client, "s1", "t1~1"))[-1].data


async def test_answers_may_come_one_by_one(client: Client) -> None:
    """They belong to one response: its stream waits for the last of them."""
    first = await post(client, asked("s1", "/calls 2", id="t1"), **COMPLETE)
    one, two = (call["call_id"] for call in calls_of(first))
    async with client.open(
        "POST", "/process", json={"session_id": "s1", "input": outputs(**{one: "1"})}, params=COMPLETE
    ) as stream:
        await stream.until(lambda frames: len(frames) == 2)
        second = await post(client, {"session_id": "s1", "input": outputs(**{two: "2"})}, **COMPLETE)
        assert [frame.raw for frame in await stream.all()] == [frame.raw for frame in second]
    assert types(check_response(second, "t1~1")) == ["message"]


async def test_each_response_has_what_it_cost(twice: Client) -> None:
    """Together they have what the turn had."""
    told = [await post(twice, asked("s1", TWICE, id="t1"))]
    for answer in ("one", "two"):
        (call,) = calls_of(told[-1])
        told.append(await post(twice, {"session_id": "s1", "input": outputs(**{call["call_id"]: answer})}))
    parts = [frames[-1].data["usage"] for frames in told]
    whole = (await get(twice, "s1", "t1", on_park="follow"))[-1].data["usage"]
    assert all(part["output_tokens"] > 0 for part in parts)
    assert {name: sum(part[name] for part in parts) for name in whole} == whole


@pytest.mark.parametrize("on_park", ["complete", "follow"])
async def test_what_was_said_comes_back_unchanged(place: Place, on_park: str) -> None:
    """In what an answering request ends with, too: numbers that not every reader of JSON keeps."""
    specs = {spec.name: spec for spec in load_agents(None)}
    specs["demo"] = AgentSpec(name="demo", python="tests.support.coded:exact")
    stack = Stack(place, Agents(specs))
    await stack.worker()
    client = await stack.front_end()
    async with client.process("s1", "go", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        frames = await post(
            client, {"session_id": "s1", "input": outputs(**{call["call_id"]: 1})}, on_park=on_park
        )
        whole = await stream.all()
    said = b'"data":{"large":1180591620717411303424,"small":1e-7,"zero":-0.0}'
    assert [each.raw.count(said) for each in (frames[-2], frames[-1], whole[-1])] == [1, 1, 1]
    await stack.close()


async def test_a_repeated_answer_ends_as_the_first_one(client: Client) -> None:
    """Behind any cursor of it, with `follow`: its output begins with the answers."""
    async with client.process("s1", "/approve files", id="t1") as stream:
        (request,) = calls_of(
            await stream.until(lambda frames: calls_of(frames, "mcp_approval_request")),
            "mcp_approval_request",
        )
        body = {"session_id": "s1", "input": approval(request["id"])}
        told = await post(client, body)
        first = await stream.all()
    assert [frame.raw for frame in await post(client, body)] == [frame.raw for frame in told]
    for before in (first[-len(told) - 1], told[0], told[5], told[-2]):
        async with client.open("POST", "/process", json=body, headers={"Last-Event-ID": before.id}) as rest:
            assert [frame.raw for frame in await rest.all()] == [
                frame.raw for frame in told if frame.seq > before.seq
            ]


async def test_the_id_of_a_response_leads_to_its_turn(twice: Client, stack: Stack) -> None:
    """To come back to that response, and to stop the turn; nobody else's id does, and none begins a turn."""
    told = [await post(twice, asked("s1", TWICE, id="t1"))]
    (call,) = calls_of(told[0])
    told.append(await post(twice, {"session_id": "s1", "input": outputs(**{call["call_id"]: "one"})}))
    again = {"session_id": "s1", "id": "t1~1", "reconnect": True}
    for word in ("complete", "follow"):
        assert [frame.raw for frame in await post(twice, again, on_park=word)] == [
            frame.raw for frame in told[1]
        ]
    whole = await twice.http.post("/process", json=again | {"stream": False})
    assert whole.json() == told[1][-1].data
    async with twice.open(
        "POST", "/process", json=asked("s1", "", id="t1~1"), headers={"Last-Event-ID": told[1][3].id}
    ) as rest:
        assert [frame.raw for frame in await rest.all()] == [frame.raw for frame in told[1][4:]]
    new = await twice.http.post("/process", json=asked("s1", TWICE, id="t1~1"))
    assert (new.status_code, new.json()["message"]) == (
        422,
        "id: that of a further response of a turn, which only answers begin",
    )
    other = await stack.front_end()
    for name in ("t2~1", "t1~x", "t1~0", "t1~3", "t1~99"):
        assert (await twice.stop("s1", name)).status_code == 404
        params = {"sessionId": "s1", "taskId": name}
        assert (await twice.http.get("/liteAgent/v1/chat", params=params)).status_code == 404
        fork = {"forkOf": "s1", "forkTask": name}
        assert (await twice.http.post("/liteAgent/v1/initSession", params=fork)).status_code == 404
    assert await stack.status("s1", "t1") == "parked", "an id of nothing stops nothing"
    for session, name in (("s2", "t1~1"), ("s1", "t1~3"), ("s1", "t2~1")):
        body = {"session_id": session, "id": name, "reconnect": True}
        assert (await twice.http.post("/process", json=body)).status_code == 404
    assert (await other.stop("s1", "t1~1")).status_code == 404
    assert (await twice.stop("s1", "t1~1")).json() == {"sessionId": "s1", "taskId": "t1"}
    assert await stack.status("s1", "t1") == "canceled"


async def test_who_follows_a_turn_goes_on_with_it(client: Client) -> None:
    """Also when the agent's setting changed in between: the turn's id behind its first response is that of all of it."""
    async with client.process("s1", "/approve files", id="t1") as stream:
        (request,) = calls_of(
            await stream.until(lambda frames: calls_of(frames, "mcp_approval_request")),
            "mcp_approval_request",
        )
        await client.callback("s1", request["id"], {"approve": True})
        frames = await stream.all()
    parks = len(await get(client, "s1", "t1", **COMPLETE)) - 1
    for at in range(parks, len(frames)):
        rest = [frame.raw for frame in frames[at + 1 :]]
        assert [frame.raw for frame in await get(client, "s1", "t1", frames[at].id, **COMPLETE)] == rest
        again = {"session_id": "s1", "id": "t1", "reconnect": True}
        async with client.open(
            "POST", "/process", json=again, params=COMPLETE, headers={"Last-Event-ID": frames[at].id}
        ) as stream:
            assert [frame.raw for frame in await stream.all()] == rest


async def test_of_very_many_parks_the_newest_are_known(twice: Client, stack: Stack) -> None:
    """The others are gone, as is what was cut."""
    await post(twice, asked("s1", TWICE, id="t1"))
    keys = TaskRef("dev", "s1", "t1").keys
    sessions = stack.broker.sessions
    place = int((await command(sessions, "HGET", keys.task("t1"), "parks")).partition(b"-")[0])
    await command(sessions, "HSET", keys.task("t1"), "parks", f"{place - 1}-7 {place}-8")
    for name, status in (
        ("t1", 410),
        ("t1~1", 410),
        ("t1~6", 410),
        ("t1~7", 200),
        ("t1~8", 200),
        ("t1~9", 404),
    ):
        async with twice.follow("s1", name) as stream:
            assert (name, stream.response.status_code) == (name, status)


async def test_a_turn_that_is_stopped_while_it_waits_ends_its_next_response(
    client: Client, stack: Stack
) -> None:
    """The one that asked is completed; what ends the turn is all that is told of the next one."""
    await post(client, asked("s1", "/call f {}", id="t1"), **COMPLETE)
    assert await stack.status("s1", "t1") == "parked"
    async with client.follow("s1", "t1~1") as stream:
        assert (await client.stop("s1", "t1")).status_code == 200
        assert types(check_response(await stream.all(), "t1~1", "canceled")) == []


async def test_the_query_goes_before_the_agent(twice: Client) -> None:
    """A client that follows calls over a park says so; another word is refused."""
    async with twice.open(
        "POST", "/process", json=asked("s1", TWICE, id="t1"), params={"on_park": "follow"}
    ) as stream:
        for answer in (1, 2):
            found = await stream.until(lambda frames, answer=answer: len(calls_of(frames)) == answer)  # type: ignore[misc]
            await twice.callback("s1", calls_of(found)[-1]["call_id"], answer)
        assert terminal(await stream.all())
    wrong = await twice.http.post("/process", json=asked("s1", "hi"), params={"on_park": "wait"})
    assert wrong.status_code == 400
    assert "on_park: give 'follow' or 'complete'" in wrong.json()["message"]


async def test_our_own_client_follows_over_the_calls(twice: Client) -> None:
    """It asks for that, whatever the agent says."""
    async with AsyncClient(twice.base_url, twice.key) as ours:

        @ours.function("f")
        def f() -> str:
            return "yes"

        assert (await ours.chat(TWICE).text()).rstrip().endswith("done yes | yes")


async def test_who_reconnects_without_an_id_gets_the_newest_response(twice: Client) -> None:
    """That of the turn that is live: while it waits, the one that asks, whose stream its client may have lost before that."""
    again = {"session_id": "s1", "reconnect": True}
    told = [await post(twice, asked("s1", TWICE, id="t1"))]
    (call,) = calls_of(told[0])
    assert [frame.raw for frame in await post(twice, again)] == [frame.raw for frame in told[0]]
    told.append(await post(twice, {"session_id": "s1", "input": outputs(**{call["call_id"]: 1})}))
    check_response(told[1], "t1~1")
    assert [frame.raw for frame in await post(twice, again)] == [frame.raw for frame in told[1]]
    whole = await twice.http.post("/process", json=again | {"stream": False})
    assert whole.json() == told[1][-1].data


async def test_long_after_a_response_is_told_whole(place: Place) -> None:
    """When the log has no more of it: from its messages, numbered anew. What a cursor stands for is gone."""
    stack = Stack(place, log_grace_seconds=0, lease_seconds=1)
    await stack.worker()
    client = await stack.front_end()
    first = await post(client, asked("s1", "/approve files", id="t1"), **COMPLETE)
    (request,) = calls_of(first, "mcp_approval_request")
    second = await post(client, {"session_id": "s1", "input": approval(request["id"])}, **COMPLETE)

    async def is_cut() -> bool:
        return not await stack.entries("s1")

    await wait_until(is_cut, "the turn's events to be cut")
    # Another front end has nothing in its ring.
    other = await stack.front_end()
    for name, frames in (("t1", first), ("t1~1", second)):
        again = await get(other, "s1", name, **COMPLETE)
        assert check_response(again, name)["output"] == frames[-1].data["output"]
        assert await get(other, "s1", name, frames[-1].id, **COMPLETE) == []
    async with other.follow("s1", "t1~1", second[3].id) as stream:
        assert stream.response.status_code == 410
    # The first one has the log's own numbers: what is left of it goes on from a cursor, and ends as it did.
    rest = await get(other, "s1", "t1", first[3].id, **COMPLETE)
    assert [frame.raw for frame in rest] == [frame.raw for frame in first[-2:]]
    # So does one JSON object, whoever asks for it.
    reconnect = {"session_id": "s1", "id": "t1", "reconnect": True, "stream": False}
    for body in (reconnect, asked("s1", "/approve files", id="t1", stream=False)):
        whole = await other.http.post("/process", json=body, params=COMPLETE)
        assert whole.json() == first[-1].data
    await stack.close()


async def test_what_cannot_be_told_from_its_beginning_is_refused(place: Place) -> None:
    """Where messages behind the beginning were cut from the history, too, the end could not say what it held."""
    stack = Stack(place, log_grace_seconds=0, lease_seconds=1)
    await stack.worker()
    client = await stack.front_end()
    first = await post(client, asked("s1", "/approve files", id="t1"), **COMPLETE)
    (request,) = calls_of(first, "mcp_approval_request")
    await post(client, {"session_id": "s1", "input": approval(request["id"])}, **COMPLETE)

    async def is_cut() -> bool:
        return not await stack.entries("s1")

    await wait_until(is_cut, "the turn's events to be cut")
    keys = TaskRef("dev", "s1", "t1").keys
    await stack.broker.sessions.xtrim(keys.history, minid=first[-2].id, approximate=False)
    redis: Any = stack.broker.sessions
    await redis.hset(keys.meta, "forgotten", "1")
    other = await stack.front_end()
    async with other.follow("s1", "t1", first[-2].id, **COMPLETE) as stream:
        assert stream.response.status_code == 410
    await stack.close()


async def test_a_turn_that_was_never_parked_goes_on_as_it_was(client: Client, stack: Stack) -> None:
    """With `complete` as with `follow`: what was cut from the log before the cursor does not matter."""
    frames = await post(client, asked("s1", large_text(20), id="t1"), **COMPLETE)
    keys = TaskRef("dev", "s1", "t1").keys
    await stack.broker.sessions.xtrim(keys.log, minid=frames[8].id, approximate=False)
    redis: Any = stack.broker.sessions
    await redis.hset(keys.meta, "head", str(frames[8].seq))
    # Another front end has nothing in its ring.
    other = await stack.front_end()
    rest = await get(other, "s1", "t1", frames[12].id, **COMPLETE)
    assert [frame.raw for frame in rest] == [frame.raw for frame in frames[13:]]


async def _taken(stack: Stack, ref: TaskRef, stream: Any) -> Attempt:
    """The attempt of a turn that was posted, for a test that does what a worker would."""
    await stream.until(len)
    attempt = await stack.tasks.begin(ref, 1, "w", operation())
    assert isinstance(attempt, Attempt)
    return attempt


async def test_a_turn_may_be_parked_between_answers_of_one_request(place: Place) -> None:
    """They get the response that begins with the last of them, and so does their repeat."""
    stack = Stack(place)
    client = await stack.front_end()
    ref = TaskRef("dev", "s1", "t1")
    async with client.open("POST", "/process", json=asked("s1", "hi", id="t1"), params=COMPLETE) as stream:
        attempt = await _taken(stack, ref, stream)
        for call in ("call_1", "call_2"):
            await stack.tasks.append(ref, attempt.claim, _call(call), operation())
        await client.callback("s1", "call_1", "early")
        park = stack.tasks.park(ref, attempt.claim, Batch(), operation(), wait_ms=60_000, policy="block")
        assert await park == Parked()
        asking = ["function_call", "function_call", "function_call_output"]
        assert types((await stream.all())[-1].data) == asking
    body = {"session_id": "s1", "input": outputs(call_1="early", call_2="late")}
    told = []
    for _ in range(2):
        async with client.open("POST", "/process", json=body, params=COMPLETE) as answered:
            told.append([frame.raw for frame in await answered.until(lambda frames: len(frames) == 2)])
            assert {frame.data["id"] for frame in answered.frames} == {"t1~1"}
    assert told[0] == told[1]
    await stack.close()


async def test_an_answer_before_the_park_goes_on_with_the_response_that_asks(place: Place) -> None:
    """There is no other one: nothing was parked."""
    stack = Stack(place)
    client = await stack.front_end()
    ref = TaskRef("dev", "s1", "t1")
    async with client.open("POST", "/process", json=asked("s1", "hi", id="t1"), params=COMPLETE) as stream:
        attempt = await _taken(stack, ref, stream)
        await stack.tasks.append(ref, attempt.claim, _call("call_1"), operation())
        await stream.until(calls_of)
        async with client.open(
            "POST",
            "/process",
            json={"session_id": "s1", "input": outputs(call_1="soon")},
            params=COMPLETE,
        ) as rest:
            await wait_until(lambda: stack.tasks.answered(ref, ["call_1"]), "the answer")
            park = await stack.tasks.park(
                ref, attempt.claim, Batch(), operation(), wait_ms=60_000, policy="block"
            )
            assert park == Launch(2)
            second = await stack.tasks.begin(ref, 2, "w", operation())
            assert isinstance(second, Attempt)
            end = Batch()
            end.end(b'{"object":"response","status":"completed","id":"t1","output":[]}')
            await stack.tasks.finish(
                ref, second.claim, end, operation(), status="completed", why="", memory=b"{}"
            )
            assert [frame.raw for frame in await rest.all()] == [(await stream.all())[-1].raw]
    await stack.close()


def _call(call: str) -> Batch:
    """A call's message that is begun and completed."""
    batch = Batch()
    batch.call(call, b'{"kind":"function","name":"f"}')
    data = {"call_id": call, "name": "f", "arguments": "{}"}
    name = f"m_{call}"
    said = {"object": "message", "status": "completed", "id": name, "type": "function_call"}
    batch.closing(name, "function_call", orjson.dumps({**said, "content": [{"type": "data", "data": data}]}))
    return batch
