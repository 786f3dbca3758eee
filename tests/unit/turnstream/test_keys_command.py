"""`turnstream keys`: made once, shown once, listed without the key, rotated, revoked."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import orjson
import pytest

from tests.support.commands import turnstream, turnstream_in
from tests.support.waiting import wait_until
from turnstream.shared.api_keys import ApiKeys, make_token
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Place
    from tests.support.stack import Stack


@pytest.mark.parametrize("backend", ["valkey"])
async def test_a_keys_life(stack: Stack, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes effect at a running front end without a restart; the broker never holds the key itself."""
    monkeypatch.setattr("turnstream.api.access.auth.KNOWN_SECONDS", 0.1)
    env = {"TURNSTREAM_REDIS_URL": place.url}
    await stack.worker()
    client = await stack.front_end()
    limits = ("--rate", "60", "--concurrency", "5", "--followers", "9", "--days", "1")
    made = await turnstream("keys", "create", "--owner", "acme", *limits, **env)
    token = made.out.strip()
    holder = stack.client(client.base_url, token)
    await holder.turn("s1", "hello")

    table = (await turnstream("keys", "list", **env)).out
    row = next(line for line in table.splitlines() if " acme " in line)
    assert row.split()[:8] == [row.split()[0], f"{token[:7]}…", "acme", "demo", "chat", "60", "5", "9"]
    assert token not in table
    kept = b"".join(await command(stack.broker.primary, "HVALS", keys.API_KEYS))
    assert token.encode() not in kept

    # Later than any use of it by then: the latest counts.
    await ApiKeys(stack.broker.primary).note_used({row.split()[0]: 4_000_000_000})
    table = (await turnstream("keys", "list", **env)).out
    found = next(line for line in table.splitlines() if " acme " in line)
    today = datetime.now(UTC)
    assert re.search(
        rf" {today:%Y}-\d\d-\d\d \d\d:\d\d UTC  2096-10-02 07:06 UTC  {today + timedelta(days=1):%Y}", found
    ), found
    lines = (await turnstream("keys", "list", "--json", **env)).out.splitlines()
    used = {key["id"]: key["used"] for key in map(orjson.loads, lines) if key["owner"] == "acme"}
    assert used == {row.split()[0]: 4_000_000_000}

    rotated = await turnstream("keys", "rotate", row.split()[0], **env)
    successor = stack.client(client.base_url, rotated.out.strip())
    await successor.turn("s1", "hello")
    await holder.turn("s1", "hello")
    table = (await turnstream("keys", "list", **env)).out
    new = next(line for line in table.splitlines() if rotated.out[:7] in line).split()[0]
    assert f"replaced by {new}" in table
    twice = await turnstream("keys", "rotate", row.split()[0], **env)
    assert (twice.code, twice.out, f"was rotated to {new} already" in twice.err) == (3, "", True)

    assert (await turnstream("keys", "revoke", row.split()[0], **env)).code == 0
    again = await turnstream("keys", "revoke", row.split()[0], **env)
    assert (again.code, "No such API key" in again.err) == (4, True)

    async def refused() -> bool:
        return bool((await holder.http.post("/liteAgent/v1/initSession")).status_code == 401)

    await wait_until(refused, "the revoked key to be refused")
    await successor.turn("s1", "hello")

    made, rotated = [
        orjson.loads((await turnstream("keys", *words, "--json", **env)).out)
        for words in (("create", "--owner", "other"), ("rotate", new))
    ]
    assert made["key"].startswith("sk-")
    revoked = await turnstream("keys", "revoke", rotated["id"], "--json", **env)
    assert orjson.loads(revoked.out) == {"id": rotated["id"], "outcome": "revoked"}


@pytest.mark.parametrize("backend", ["valkey"])
async def test_a_key_that_outlives_the_calendar(stack: Stack, place: Place) -> None:
    """More than a century is refused; a record of such a key does not take the list away."""
    env = {"TURNSTREAM_REDIS_URL": place.url}
    assert (await turnstream("keys", "create", "--owner", "acme", "--days", "3000000", **env)).code == 2
    await ApiKeys(stack.broker.primary).register(
        make_token(), owner="acme", agent="demo", expires=300_000_000_000
    )
    listed = await turnstream("keys", "list", **env)
    assert (listed.code, "never" in listed.out) == (0, True), listed.err


@pytest.mark.parametrize("backend", ["valkey"])
async def test_the_note_of_a_key(stack: Stack, place: Place) -> None:
    """A column where a key has one, the last; always in JSON. A successor has it, too, and no terminal obeys it."""
    env = {"TURNSTREAM_REDIS_URL": place.url}
    await turnstream("keys", "create", "--owner", "acme", **env)
    table = (await turnstream("keys", "list", **env)).out
    assert table.splitlines()[0].split()[-1] == "EXPIRES"
    lines = (await turnstream("keys", "list", "--json", **env)).out.splitlines()
    assert [key["note"] for key in map(orjson.loads, lines)] == [""]

    note = "Anna's phone \u202e 🦊"
    made = await turnstream("keys", "create", "--owner", "anna", "--note", note, "--json", **env)
    assert made.code == 0, made.err
    assert (await turnstream("keys", "rotate", orjson.loads(made.out)["id"], **env)).code == 0
    heading, *rows = (await turnstream("keys", "list", **env)).out.splitlines()
    at = heading.index("NOTE")
    assert heading.split()[-1] == "NOTE"
    assert [row[at:] for row in rows] == ["", *["Anna's phone \\u202e 🦊"] * 2]
    lines = (await turnstream("keys", "list", "--json", **env)).out.splitlines()
    assert [key["note"] for key in map(orjson.loads, lines)] == ["", note, note]

    for refused in ("n" * 201, "one\ntwo", "\x1b[31m", "\udcff"):
        answer = await turnstream("keys", "create", "--owner", "bob", "--note", refused, **env)
        assert (answer.code, answer.out) == (2, "")
        assert "--note: give 200 characters at most, in one line" in answer.err
    assert " bob " not in (await turnstream("keys", "list", **env)).out


async def test_the_embedded_brokers_keys_are_elsewhere(tmp_path: Path) -> None:
    """No other process reaches that broker: who asks for its keys is told where they are."""
    refused = await turnstream_in(tmp_path, "keys", "list")
    assert (refused.code, "the operator's page of `turnstream serve`" in refused.err) == (2, True), (
        refused.err
    )
