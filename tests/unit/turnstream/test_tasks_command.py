"""`turnstream tasks`: operators list, look at, watch and stop tasks from a terminal."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import orjson
import pytest

from tests.support.client import calls_of
from tests.support.commands import turnstream
from turnstream.shared.agents.versions import versions

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack

# The commands speak HTTP; what is behind it is tested elsewhere.
on_one_broker = pytest.mark.parametrize("backend", ["fakeredis"])


@on_one_broker
async def test_tasks_are_listed_shown_watched_and_stopped(client: Client, stack: Stack) -> None:
    """A day of an operator: see what runs, look at it, watch it while somebody stops it."""
    env = {"TURNSTREAM_ADMIN_KEY": stack.admin, "TURNSTREAM_URL": client.base_url}
    await client.turn("s0", "hello", id="t0")
    async with (
        client.process("s1", "/tokens 100000 50", id="t1") as stream,
        client.process("s2", "/call weather {}", id="t2") as other,
    ):
        await stream.until(lambda frames: len(frames) > 3)
        (call,) = calls_of(await other.until(calls_of))
        listed, filtered, shown, wrong, nothing = await asyncio.gather(
            turnstream("tasks", "list", **env),
            turnstream("tasks", "list", "--status", "completed", "--json", **env),
            turnstream("tasks", "show", "dev/s2/t2", **env),
            turnstream("tasks", "show", "dev/s9/t9", **env),
            turnstream("tasks", "stop", **env),
        )
        assert [line.split()[0] for line in listed.out.splitlines()] == ["TASK", "dev/s2/t2", "dev/s1/t1"]
        assert "running" in listed.out
        version = versions(stack.agents)["demo"]
        assert (listed.out.count(version), shown.out.count(version)) == (2, 1)
        assert [orjson.loads(line)["ref"] for line in filtered.out.splitlines()] == ["dev/s0/t0"]
        assert f"waits for function weather ({call['call_id']})" in shown.out
        assert (wrong.code, "404: No such task" in wrong.err) == (4, True)
        assert (nothing.code, "--status live means all" in nothing.err) == (2, True)

        dry = await turnstream("tasks", "stop", "--owner", "dev", "--dry-run", **env)
        assert sorted(dry.out.splitlines()) == ["would stop  dev/s1/t1", "would stop  dev/s2/t2"]
        dry = await turnstream(
            "tasks", "stop", "dev/s1/t1", "dev/s0/t0", "dev/s9/t9", "--dry-run", "--json", **env
        )
        assert (dry.code, [orjson.loads(line)["outcome"] for line in dry.out.splitlines()]) == (
            1,
            ["would stop", "ended", "missing"],
        )
        watching = asyncio.create_task(turnstream("tasks", "tail", "dev/s1/t1", **env))
        stopped = await turnstream("tasks", "stop", "dev/s1/t1", "dev/s0/t0", "dev/s9/t9", **env)
        assert stopped.out.split() == ["stopped", "dev/s1/t1", "ended", "dev/s0/t0", "missing", "dev/s9/t9"]
        assert stopped.code == 1
        watched = await watching
        assert watched.code == 0
        lines = watched.out.splitlines()
        assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
        assert lines[-1].endswith("response canceled")
        rest = await turnstream("tasks", "stop", "--status", "live", "--json", **env)
        assert (rest.code, orjson.loads(rest.out)) == (0, {"ref": "dev/s2/t2", "outcome": "stopped"})
        ended = await turnstream("tasks", "list", "--status", "canceled", **env)
        heads, *_, first = ended.out.splitlines()
        assert "ENDED BY" in heads
        attempt, worker, *who, why = first.split()[6:]
        assert (attempt, worker, why) == ("1", stack.workers[0][0].id, "stop")
        assert " ".join(who).startswith("admin key_")


@on_one_broker
async def test_tasks_are_found_as_at_the_route(client: Client, stack: Stack) -> None:
    """By worker, by code, by a part of what is told of them, by age; what the route refuses is refused in its words."""
    env = {"TURNSTREAM_ADMIN_KEY": stack.admin, "TURNSTREAM_URL": client.base_url}
    await client.turn("s1", "hello", id="t1")
    await client.turn("s2", "/fail no", id="t2")
    admin = stack.client(client.base_url, stack.admin)
    failed, _ = (await admin.http.get("/admin/v1/tasks")).json()["tasks"]
    worker, why = failed["worker"], failed["why"]

    async def found(*options: str) -> list[str]:
        done = await turnstream("tasks", "list", "--json", *options, **env)
        assert done.code == 0, done.err
        return [orjson.loads(line)["task"] for line in done.out.splitlines()]

    ended = ("--status", "completed,failed")
    assert await asyncio.gather(
        # Only what has ended has a code, so none has to be asked for that.
        found("--why", why),
        found("--why", why, "--status", "completed"),
        found("--worker", worker, *ended),
        found("--worker", worker[:-1], *ended),
        found("--search", "DEV/S1", *ended),
        found("--younger-than", "3600", *ended),
        found("--younger-than", "0.001", *ended),
        found("--younger-than", "3600"),
    ) == [["t2"], [], ["t2", "t1"], [], ["t1"], ["t2", "t1"], [], []]
    negative, endless = await asyncio.gather(
        turnstream("tasks", "list", "--younger-than", "-1", **env),
        turnstream("tasks", "list", "--younger-than", "1e9", **env),
    )
    for done in (negative, endless):
        assert (done.code, "younger_than: give seconds, from 0 to 31536000" in done.err) == (3, True), (
            done.err
        )


@on_one_broker
async def test_what_is_missing_is_said(client: Client) -> None:
    """Without a key, with one that may not, and without a front end: said in words, each with its exit code."""
    chat_key = client.http.headers["authorization"].removeprefix("Bearer ")
    without, forbidden, away = await asyncio.gather(
        turnstream("tasks", "list"),
        turnstream("tasks", "list", "--url", client.base_url, TURNSTREAM_ADMIN_KEY=chat_key),
        turnstream("tasks", "list", "--url", "http://127.0.0.1:9", TURNSTREAM_ADMIN_KEY=chat_key),
    )
    assert [done.code for done in (without, forbidden, away)] == [2, 3, 5]
    assert "Set TURNSTREAM_ADMIN_KEY" in without.err
    assert "403: This route needs an API key with the scope admin." in forbidden.err
    assert "http://127.0.0.1:9: ConnectError" in away.err
    assert chat_key not in forbidden.err + away.err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *itertools.product(["stop", "list"], ["session", "owner", "agent", "status"]),
        *itertools.product(["list"], ["worker", "why", "search"]),
    ],
)
async def test_an_empty_option_does_not_mean_everything(command: str, option: str) -> None:
    """As from a variable of a script that is not set: it is refused before anything is asked."""
    env = {
        "TURNSTREAM_ADMIN_KEY": "sk-00000000000000000000000000000000",
        "TURNSTREAM_URL": "http://127.0.0.1:9",
    }
    other = ("--older-than", "60") if command == "stop" else ()
    done = await turnstream("tasks", command, f"--{option}", "", *other, **env)
    assert (done.code, f"--{option} is empty" in done.err) == (2, True), done.err


@on_one_broker
async def test_what_was_said_moves_no_cursor(client: Client, stack: Stack) -> None:
    """Control characters and marks of direction are shown as escapes; as JSON they mean the same."""
    env = {"TURNSTREAM_ADMIN_KEY": stack.admin, "TURNSTREAM_URL": client.base_url}
    hostile = "x\x1b[2J\x9b31m\u202eabc\u2066\u200f\x85!"
    await client.turn("s1", hostile, id="t1")
    lines, as_json = await asyncio.gather(
        turnstream("tasks", "tail", "dev/s1/t1", **env),
        turnstream("tasks", "tail", "dev/s1/t1", "--json", **env),
    )
    for done in (lines, as_json):
        assert done.code == 0, done.err
        assert not set(hostile) - set("x[2J31mabc!") & set(done.out)
    assert "\\u202eabc\\u2066" in lines.out
    events = [orjson.loads(line) for line in as_json.out.split("\n") if line]
    assert f"You said: {hostile}" in [event.get("text") for event in events]


@pytest.mark.parametrize(
    ("command", "option"), [("stop", "older-than"), ("list", "older-than"), ("list", "younger-than")]
)
@pytest.mark.parametrize("age", ["nan", "inf"])
async def test_an_age_must_be_a_number_of_seconds(command: str, option: str, age: str) -> None:
    """What JSON has no word for is refused before anything is asked."""
    env = {
        "TURNSTREAM_ADMIN_KEY": "sk-00000000000000000000000000000000",
        "TURNSTREAM_URL": "http://127.0.0.1:9",
    }
    done = await turnstream("tasks", command, f"--{option}", age, **env)
    assert (done.code, "give a number of seconds" in done.err) == (2, True), done.err
