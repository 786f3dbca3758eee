"""Scripts tell by the exit code what became of a command, and read what it lists as JSON."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from deploy.ports import free_port
from tests.support.commands import turnstream
from turnstream.exit_codes import ExitCode

if TYPE_CHECKING:
    from tests.conftest import Place
    from tests.support.client import Client
    from tests.support.stack import Stack


@pytest.mark.parametrize("backend", ["fakeredis"])
async def test_each_outcome_has_its_code(client: Client, stack: Stack) -> None:
    """Operators' commands and the terminal client, both: usage, refused, not found, unreachable."""
    here = {"TURNSTREAM_URL": client.base_url}
    nowhere = {"TURNSTREAM_URL": f"http://127.0.0.1:{free_port()}"}
    admin, stranger = {"TURNSTREAM_ADMIN_KEY": stack.admin}, {"TURNSTREAM_ADMIN_KEY": "sk-" + "0" * 32}
    chat, wrong = {"TURNSTREAM_KEY": stack.key}, {"TURNSTREAM_KEY": "sk-" + "0" * 32}
    expected = {
        (("tasks", "list"), ("admin", "here")): ExitCode.OK,
        (("tasks", "list", "--limit", "none"), ("admin", "here")): ExitCode.USAGE,
        (("tasks", "show", "no-ref"), ("admin", "here")): ExitCode.USAGE,
        (("tasks", "list"), ("stranger", "here")): ExitCode.REFUSED,
        (("models", "hold", "no-model"), ("admin", "here")): ExitCode.NOT_FOUND,
        (("tasks", "show", "dev/s9/t9"), ("admin", "here")): ExitCode.NOT_FOUND,
        (("tasks", "stop", "dev/s9/t9"), ("admin", "here")): ExitCode.NEGATIVE,
        (("agents", "list"), ("admin", "nowhere")): ExitCode.UNREACHABLE,
        (("chat", "hello"), ("chat", "here")): ExitCode.OK,
        (("chat", "/fail x"), ("chat", "here")): ExitCode.NEGATIVE,
        (("chat", "hello", "--agent", "other"), ("chat", "here")): ExitCode.USAGE,
        (("chat", "hello"), ("wrong", "here")): ExitCode.REFUSED,
        (("chat", "hello"), ("chat", "nowhere")): ExitCode.UNREACHABLE,
    }
    variables = {
        "here": here, "nowhere": nowhere, "admin": admin, "stranger": stranger, "chat": chat, "wrong": wrong,
    }  # fmt: skip

    async def code(words: tuple[str, ...], names: tuple[str, ...]) -> ExitCode:
        given: dict[str, str] = {}
        for name in names:
            given |= variables[name]
        return ExitCode((await turnstream(*words, **given)).code)

    codes = await asyncio.gather(*(code(*each) for each in expected))
    assert dict(zip(expected, codes, strict=True)) == expected


@pytest.mark.parametrize("backend", ["valkey"])
async def test_what_is_listed_can_be_read_by_programs(client: Client, stack: Stack, place: Place) -> None:
    """A line of JSON for each: keys, without the keys themselves; findings of the doctor; one task."""
    env = {"TURNSTREAM_ADMIN_KEY": stack.admin, "TURNSTREAM_URL": client.base_url}
    await client.turn("s1", "hello", id="t1")
    await turnstream("keys", "create", "--owner", "acme", TURNSTREAM_REDIS_URL=place.url)
    keys, doctor, task = await asyncio.gather(
        turnstream("keys", "list", "--json", TURNSTREAM_REDIS_URL=place.url),
        turnstream("doctor", "--json", **env),
        turnstream("tasks", "show", "dev/s1/t1", "--json", **env),
    )
    made = [json.loads(line) for line in keys.out.splitlines()]
    assert {each["owner"] for each in made} >= {"dev", "acme"}
    assert all(len(each["shown"]) < 12 for each in made)
    findings = [json.loads(line) for line in doctor.out.splitlines()]
    assert {"level", "what", "seen", "todo"} == set(findings[0])
    assert "front end" in {each["what"] for each in findings}
    assert json.loads(task.out)["status"] == "completed"
