"""The operators' view of tasks, through HTTP: list, filter, page, look at, follow, stop."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from tests.support.client import Client, calls_of, check_whole, terminal
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.api.turns.stop import stop
from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.api_keys import ApiKeys, Limits, digest, make_token
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import SessionKeys, TaskRef
from turnstream.shared.errors import BrokerAway
from turnstream.shared.session.outcomes import Claim
from turnstream.worker.live_list import LiveList

if TYPE_CHECKING:
    from tests.conftest import Place


@pytest.fixture
async def admin(client: Client, stack: Stack) -> Client:
    """An operator of a deployment with one front end and one worker."""
    return stack.client(client.base_url, stack.admin)


async def listed(admin: Client, **query: Any) -> list[dict[str, Any]]:
    """All tasks that fit, over all pages."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        answer = await admin.http.get(
            "/admin/v1/tasks", params=query | ({"cursor": cursor} if cursor else {})
        )
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["tasks"]
        if page["next"] is None:
            return found
        cursor = page["next"]


async def park(client: Client, session: str, task: str) -> None:
    """Leave a turn waiting for its client."""
    async with client.process(session, "/call f {}", id=task) as stream:
        await stream.until(calls_of)


async def test_tasks_are_listed_newest_first_and_filtered(
    admin: Client, client: Client, stack: Stack
) -> None:
    """Each filter alone and together finds what it says, and what a row tells is so."""
    token = make_token()
    await ApiKeys(stack.broker.primary).register(token, owner="acme", agent="demo")
    other = stack.client(client.base_url, token)
    await client.turn("s1", "hello", id="t1", user_id="u1")
    await park(client, "s2", "t2")
    await other.turn("s1", "/fail boom", id="t3")
    await wait_until(lambda: status_is(admin, "dev/s2/t2", "parked"), "the task to be parked")

    rows = await listed(admin)
    assert [row["ref"] for row in rows] == ["acme/s1/t3", "dev/s2/t2", "dev/s1/t1"]
    failed, parked, done = rows
    assert (done["status"], done["user"], done["agent"], done["attempt"]) == ("completed", "u1", "demo", 1)
    assert done["submitted_at"] <= done["started_at"] <= done["ended_at"]
    assert (parked["status"], parked["pending_calls"], "ended_at" in parked) == ("parked", 1, False)
    assert parked["parked_until"] > parked["submitted_at"]
    assert failed["status"] == "failed"
    assert failed["why"]

    async def refs(**query: Any) -> list[str]:
        return [row["task"] for row in await listed(admin, **query)]

    assert await refs(status="live") == ["t2"]
    assert await refs(status="parked,failed") == ["t3", "t2"]
    assert await refs(status=["parked", "completed"]) == ["t2", "t1"]
    assert await refs(owner="acme") == ["t3"]
    assert await refs(session="s1") == ["t3", "t1"]
    assert await refs(session="s1", owner="dev") == ["t1"]
    assert await refs(user="u1") == ["t1"]
    assert await refs(agent="nobody") == []
    assert await refs(older_than=3600) == []
    assert await refs(younger_than=3600, status="completed") == ["t1"]
    assert await refs(limit=1) == ["t3", "t2", "t1"]
    worker = stack.workers[0][0].id
    assert await refs(worker=worker) == ["t3", "t2", "t1"]
    assert await refs(worker=worker[:-1]) == []
    assert await refs(why=failed["why"]) == ["t3"]
    for text in ("BOOM", "acme/s1", failed["why"][:5]):
        assert await refs(search=text) == ["t3"], text
    assert await refs(search="u1") == ["t1"]
    assert await refs(search=worker[1:], status="completed") == ["t1"]
    assert failed["error"] == "boom"
    assert "error" not in done
    for wrong in ({"status": "asleep"}, {"limit": "0"}, {"cursor": "x"}, {"older_than": "-1"}):
        answer = await admin.http.get("/admin/v1/tasks", params=wrong)
        assert answer.status_code == 400
        assert answer.json()["message"].startswith(next(iter(wrong)))
    await client.stop("s2")


async def status_is(admin: Client, ref: str, status: str) -> bool:
    """Whether the task is in that status."""
    return bool((await admin.http.get(f"/admin/v1/tasks/{ref}")).json().get("status") == status)


async def test_a_row_says_when_how_long_who_ran_it_and_who_ended_it(
    admin: Client, client: Client, stack: Stack
) -> None:
    """A stop takes neither the worker that ran the turn nor how often it was begun, and names whose it was."""
    worker = stack.workers[0][0].id
    await client.turn("s1", "hello", id="t1")
    async with (
        client.process("s2", "/tokens 100000 5", id="t2") as running,
        client.process("s2", "hello", id="t4") as waiting,
        client.process("s3", "/call f {}", id="t3") as parked,
    ):
        await running.until(lambda frames: len(frames) > 3)
        await parked.until(calls_of)
        await waiting.until(len)
        rows = {row["task"]: row for row in await listed(admin)}
        assert "ended_by" not in rows["t2"]
        await admin.http.post("/admin/v1/stop", json={"refs": ["dev/s2/t4"]})
        await admin.http.post("/admin/v1/stop", json={"refs": ["dev/s2/t2"]})
        await client.stop("s3")
    an_hour = 3_600_000
    for session, task in (("s1", "t1"), ("s2", "t2")):
        for name in ("submitted", "started", "ended"):
            key = SessionKeys("dev", session).task(task)
            await command(stack.broker.sessions, "HINCRBY", key, name, -an_hour)
    rows = {row["task"]: row for row in await listed(admin)}
    told = {
        task: (row["attempt"], row.get("worker"), row.get("ended_by", "").partition("_")[0])
        for task, row in rows.items()
    }
    assert told == {
        "t1": (1, worker, ""),
        "t2": (1, worker, "admin key"),
        "t3": (1, worker, "client"),
        "t4": (0, None, "admin key"),
    }
    for task in ("t1", "t2"):
        row = rows[task]
        assert 3600 <= row["age"] < 3700
        assert row["took"] == pytest.approx(row["ended_at"] - row["started_at"], abs=0.002)
    assert "took" not in rows["t4"]


async def test_pages_tell_each_task_once_though_many_came_in_one_millisecond(
    admin: Client, stack: Stack
) -> None:
    """More tasks than are read at once, with the same time: none is left out, none told twice."""
    primary, sessions = stack.broker.primary, stack.broker.sessions
    names = [f"t{number:04}" for number in range(1100)]
    await primary.zadd(keys.RECENT, {f"o/s/{name}": 1_000_000 for name in names})
    fields = dict.fromkeys(("launch", "attempt", "crashes", "pending", "number", "submitted", "ended"), "1")
    for name in names:
        key = SessionKeys("o", "s").task(name)
        task = {**fields, "status": "completed", "agent": "demo", "response": "r"}
        await command(sessions, "HSET", key, *itertools.chain(*task.items()))
        await sessions.expire(key, 60)
    found = [row["task"] for row in await listed(admin, limit=200)]
    assert found == names[::-1]
    # A filter that nothing fits is answered in pages as well, since each looks at so many only.
    answer = await admin.http.get("/admin/v1/tasks", params={"agent": "other"})
    assert answer.json()["tasks"] == []
    assert answer.json()["next"]
    assert await listed(admin, agent="other") == []


async def test_a_task_is_shown_with_its_calls_and_events(admin: Client, client: Client) -> None:
    """The open call is named without its arguments; events come page by page, and are those of the stream."""
    async with client.process("s1", '/call weather {"city": "Ulm"}', id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        shown = (await admin.http.get("/admin/v1/tasks/dev/s1/t1")).json()
        assert shown["calls"] == [
            {"call": call["call_id"], "kind": "function", "name": "weather", "path": ""}
        ]
        first = (await admin.http.get("/admin/v1/tasks/dev/s1/t1/events?limit=3")).json()
        assert len(first["events"]) == 3
        assert first["live"]
        async with admin.open("GET", "/admin/v1/tasks/dev/s1/t1/follow") as watching:
            await client.callback("s1", call["call_id"], "sunny")
            frames, watched = await stream.all(), await watching.all()
    check_whole(watched)
    assert [frame.raw for frame in watched] == [frame.raw for frame in frames]
    told, page = first["events"], first
    while page["next"]:
        page = (
            await admin.http.get(
                "/admin/v1/tasks/dev/s1/t1/events", params={"limit": 5, "cursor": page["next"]}
            )
        ).json()
        told += page["events"]
    assert not page["live"]
    numbered = [event["event"] for event in told if "sequence_number" in event["event"]]
    assert numbered == [frame.data for frame in frames]
    assert told[-1]["kind"] == "end"
    for path in ("/admin/v1/tasks/dev/s1/nothing", "/admin/v1/tasks/dev/s1/nothing/events"):
        assert (await admin.http.get(path)).status_code == 404


async def test_each_attempt_is_told_with_its_worker_and_reason(stack: Stack) -> None:
    """One for the answer to a call; one that took over from a worker that went; none before the first."""
    client = await stack.front_end()
    admin = stack.client(client.base_url, stack.admin)

    async def attempts(ref: str) -> list[dict[str, Any]]:
        shown = (await admin.http.get(f"/admin/v1/tasks/{ref}")).json()
        found: list[dict[str, Any]] = shown["attempts"]
        return found

    async with client.process("s1", "/call f {}", id="t1") as stream:
        await stream.until(len)
        assert await attempts("dev/s1/t1") == []
        first = await stack.worker()
        await stream.until(calls_of)
        told = await attempts("dev/s1/t1")
        assert [(each["attempt"], each["worker"], each.get("because")) for each in told] == [
            (1, first.id, None)
        ]
        call = calls_of(stream.frames)[0]["call_id"]
        await wait_until(lambda: status_is(admin, "dev/s1/t1", "parked"), "the task to be parked")
        answered = await client.http.post(
            "/liteAgent/v1/callback", params={"sessionId": "s1"}, json={"id": call, "result": 1}
        )
        assert answered.status_code == 200
        await stream.all()
    told = await attempts("dev/s1/t1")
    assert [(each["attempt"], each.get("because")) for each in told] == [(1, None), (2, "answered")]
    assert told[0]["began_at"] <= told[1]["began_at"]
    async with client.process("s2", "/tokens 300 20", id="t2") as stream:
        await stream.until(lambda frames: len(frames) > 3)
        second = await stack.worker()
        await stack.stop_worker(first)
        await stream.all()
    told = await attempts("dev/s2/t2")
    assert [(each["worker"], each.get("because")) for each in told] == [
        (first.id, None),
        (second.id, "released"),
    ]


async def test_a_turn_is_replayed_once_in_its_session(admin: Client, client: Client) -> None:
    """It says the same to the same agent, for the same owner; a repeat makes no second one; what has not ended is not replayed."""
    await client.turn("s1", "hello", id="t1", user_id="ada")
    path, named = "/admin/v1/tasks/dev/s1/t1/replay", {"Idempotency-Key": "k1"}
    first, again = [(await admin.http.post(path, headers=named)).json() for _ in range(2)]
    assert first == again
    ref = first["made"]
    assert ref.startswith("dev/s1/")
    await wait_until(lambda: status_is(admin, ref, "completed"), "the new turn to end")
    shown = (await admin.http.get(f"/admin/v1/tasks/{ref}")).json()
    assert (shown["agent"], shown["user"]) == ("demo", "ada")
    history = await client.http.get("/liteAgent/v1/history", params={"sessionId": "s1"})
    said = [each["content"] for each in history.json() if each["role"] == "user"]
    assert len(said) == 2
    assert said[0] == said[1]
    await park(client, "s2", "t2")
    assert (await admin.http.post("/admin/v1/tasks/dev/s2/t2/replay")).status_code == 409
    await client.stop("s2")
    assert (await admin.http.post("/admin/v1/tasks/dev/s2/none/replay")).status_code == 404
    await client.http.post("/liteAgent/v1/clear", params={"sessionId": "s1"})
    assert (await admin.http.post(path)).status_code == 410
    assert (await client.http.post(path)).status_code == 403


async def test_operators_who_watch_take_nobodys_place(stack: Stack) -> None:
    """Neither of the streams that the owner's key may have, nor of those of one owner at a front end."""
    await stack.worker()
    client = await stack.front_end(max_followers_per_owner=1)
    admin = stack.client(client.base_url, stack.admin)
    token = make_token()
    limits = Limits(followers=1)
    await ApiKeys(stack.broker.primary).register(token, owner="acme", agent="demo", limits=limits)
    holder = stack.client(client.base_url, token)
    async with holder.process("s1", "/call f {}", id="t1") as stream:
        await stream.until(calls_of)
        follow = "/admin/v1/tasks/acme/s1/t1/follow"
        async with admin.open("GET", follow) as first, admin.open("GET", follow) as second:
            for watching in (first, second):
                assert watching.response.status_code == 200
                await watching.until(calls_of)
            assert stack.hubs[0].followers == 3
            refused = await holder.http.get("/process", params={"session_id": "s1"})
            assert refused.status_code == 429
    await wait_until(lambda: stack.hubs[0].followers == 0, "all streams to be closed")
    async with admin.open("GET", follow) as watching:
        await watching.until(calls_of)
        async with holder.follow("s1", "t1") as again:
            assert again.response.status_code == 200
            await holder.stop("s1", "t1")
            assert terminal(await again.all())


async def test_events_that_were_trimmed_are_told_whole(stack: Stack) -> None:
    """What the log no longer has comes from the history, each message once."""
    await stack.worker(log_max_events=100)
    client = await stack.front_end(log_max_events=100)
    admin = stack.client(client.base_url, stack.admin)
    for number in range(1, 14):
        await client.turn("s1", "hi", id=f"t{number}")
    answer = (await admin.http.get("/admin/v1/tasks/dev/s1/t1/events?limit=500")).json()
    kinds = [(event["kind"], event["event"].get("status")) for event in answer["events"]]
    assert kinds == [("message", "completed"), ("message", "completed"), ("end", "completed")]


async def test_an_operator_stops_one_task_and_is_named_in_the_log(
    admin: Client, client: Client, stack: Stack
) -> None:
    """The follower sees the turn canceled; the log says whose key did it; a second stop says that it had ended."""
    with capture_logs() as logs:
        async with client.process("s1", "/tokens 100000 5", id="t1") as stream:
            await stream.until(lambda frames: len(frames) >= 5)
            answer = await admin.http.post("/admin/v1/tasks/dev/s1/t1/stop")
            assert answer.json() == {"ref": "dev/s1/t1", "outcome": "stopped"}
            end = terminal(await stream.all())
    assert end is not None
    assert end["status"] == "canceled"
    (said,) = [line for line in logs if line["event"] == "admin.stopped"]
    assert said["key"] == "key_" + digest(stack.admin)[:12]
    assert said["ref"] == "dev/s1/t1"
    assert (await admin.http.post("/admin/v1/tasks/dev/s1/t1/stop")).json()["outcome"] == "ended"
    assert (await admin.http.post("/admin/v1/tasks/dev/s1/t9/stop")).status_code == 404


async def test_an_operator_stops_what_fits(admin: Client, client: Client, stack: Stack) -> None:
    """By session, with what waits there for its turn; by ref; and never without a condition."""
    async with client.process("s1", "/tokens 100000 5", id="t1") as running:
        await running.until(lambda frames: len(frames) >= 5)
        async with client.process("s1", "hello", id="t2") as waiting:
            await park(client, "s2", "t3")
            (queued,) = await listed(admin, status="queued")
            assert queued["waits_for_turn"]
            answer = await admin.http.post("/admin/v1/stop", json={"owner": "dev", "session": "s1"})
            assert answer.json() == {
                "stopped": ["dev/s1/t2", "dev/s1/t1"],
                "ended": [],
                "missing": [],
                "more": False,
            }
            for stream in (running, waiting):
                end = terminal(await stream.all())
                assert end is not None
                assert end["status"] == "canceled"
    assert await stack.status("s2", "t3") in ("running", "parked")
    named = await admin.http.post("/admin/v1/stop", json={"refs": ["dev/s2/t3", "dev/s1/t1", "dev/s9/t9"]})
    assert named.json() == {
        "stopped": ["dev/s2/t3"],
        "ended": ["dev/s1/t1"],
        "missing": ["dev/s9/t9"],
        "more": False,
    }
    for body in ({}, {"refs": ["x"]}, {"refs": ["a/b/c"], "owner": "a"}, {"owners": "a"}):
        assert (await admin.http.post("/admin/v1/stop", json=body)).status_code == 422


async def test_what_waits_is_stopped_before_what_it_waits_for(admin: Client, client: Client) -> None:
    """In whatever order they are named: a turn that is to be stopped does not begin meanwhile."""
    async with client.process("s1", "/tokens 100000 5", id="t1") as running:
        await running.until(lambda frames: len(frames) >= 5)
        async with client.process("s1", "hello", id="t2") as waiting:
            await waiting.until(lambda frames: frames)
            answer = await admin.http.post("/admin/v1/stop", json={"refs": ["dev/s1/t1", "dev/s1/t2"]})
            assert answer.json()["stopped"] == ["dev/s1/t2", "dev/s1/t1"]
            assert all(frame.data["status"] in ("queued", "canceled") for frame in await waiting.all())


async def test_a_broker_that_leaves_in_the_middle_is_told_as_such(
    admin: Client, client: Client, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 with `Retry-After`, as everywhere; what could be stopped is, and the rest when it is asked again."""
    for session in ("s1", "s2"):
        await park(client, session, "t1")

    async def stop_or_not(services: Any, ref: Any, why: str, *, who: str) -> Any:
        if ref.session == "s1":
            raise BrokerAway
        return await stop(services, ref, why, who=who)

    with monkeypatch.context() as patched:
        patched.setattr("turnstream.api.admin.tasks.stop", stop_or_not)
        answer = await admin.http.post("/admin/v1/stop", json={"owner": "dev"})
    assert (answer.status_code, answer.json()["code"]) == (503, "broker_away")
    assert answer.headers["retry-after"]
    again = await admin.http.post("/admin/v1/stop", json={"owner": "dev"})
    assert again.json()["stopped"] == ["dev/s1/t1"]


async def test_a_live_task_stays_listed_whatever_comes_after_it(
    admin: Client, client: Client, stack: Stack
) -> None:
    """A parked turn is found though the list of recent tasks has long forgotten it, and gone when it has ended."""
    await park(client, "s1", "t1")
    await wait_until(lambda: status_is(admin, "dev/s1/t1", "parked"), "the task to be parked")
    await stack.broker.primary.zrem(keys.RECENT, "dev/s1/t1")
    assert [row["task"] for row in await listed(admin)] == ["t1"]
    assert [row["task"] for row in await listed(admin, status="live")] == ["t1"]
    await client.stop("s1", "t1")
    assert await listed(admin, status="live") == []
    assert await stack.broker.primary.zcard(keys.LIVE) == 0


async def test_what_ended_unnoticed_leaves_the_list_of_live_tasks(client: Client, stack: Stack) -> None:
    """Entries whose tasks have ended or expired are taken off; those of live ones stay."""
    await client.turn("s1", "hello", id="t1")
    await park(client, "s2", "t2")
    primary = stack.broker.primary
    await primary.zadd(keys.LIVE, {"dev/s1/t1": 1, "dev/s9/expired": 1})
    await LiveList(stack.broker).look()
    assert await primary.zrange(keys.LIVE, 0, -1) == [b"dev/s2/t2"]
    await client.stop("s2", "t2")


async def test_operators_routes_want_an_operators_key(client: Client) -> None:
    """No key: 401; a chat key: 403, on every route."""
    paths = [
        "tasks",
        "tasks/dev/s1/t1",
        "tasks/dev/s1/t1/events",
        "tasks/dev/s1/t1/follow",
        "workers",
        "stats",
    ]
    for path in [*paths, "keys", "agents"]:
        assert (await client.http.get(f"/admin/v1/{path}")).status_code == 403
    for path in ("tasks/dev/s1/t1/stop", "stop", "keys", "keys/key_1/rotate", "keys/key_1/revoke"):
        assert (await client.http.post(f"/admin/v1/{path}", json={})).status_code == 403
    assert (await client.http.get("/admin/v1/tasks", headers={"Authorization": ""})).status_code == 401


async def test_a_traceback_is_shown_though_the_broker_failed_over_in_mid_turn(place: Place) -> None:
    """A worker in debug mode keeps it with the turn's end, which stands in a later epoch than its beginning."""
    breaks = AgentSpec(name="demo", python="tests.support.coded:breaks")
    stack = Stack(place, Agents({"demo": breaks}), debug=True)
    try:
        client = await stack.front_end()
        async with client.process("s1", "hi", id="t1") as stream:
            await stream.until(len)
            meta = await stack.log.meta(SessionKeys("dev", "s1"))
            assert meta is not None
            # A writer comes that has seen more than there is.
            seen = Claim(1, "", meta.epoch, meta.seq + 1)
            await stack.tasks.renew(TaskRef("dev", "s1", "t1"), seen)
            await stack.worker()
            assert terminal(await stream.all())
        admin = stack.client(client.base_url, stack.admin)
        shown = (await admin.http.get("/admin/v1/tasks/dev/s1/t1")).json()
        assert "RuntimeError: the password is hunter2" in shown["traceback"]
    finally:
        await stack.close()
