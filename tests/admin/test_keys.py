"""What operators did to a key stays done: over restarts, and when they do it twice."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from tests.support.waiting import wait_until
from turnstream.api import app
from turnstream.shared.api_keys import TOLD_SECONDS, ApiKeys, digest, make_token
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack


def id_of(token: str) -> str:
    """A key's id."""
    return "key_" + digest(token)[:12]


async def operator(stack: Stack, client: Client) -> Client:
    """An operator at a client's front end, once that knows the setting's key."""
    admin = stack.client(client.base_url, stack.admin)
    await wait_until(lambda: may(admin), "the admin key to be known")
    return admin


async def may(admin: Client) -> bool:
    """Whether the operator's key is taken."""
    return bool((await admin.http.get("/admin/v1/keys")).status_code == 200)


async def rows(admin: Client) -> dict[str, dict[str, Any]]:
    """All keys that are told, by id."""
    return {row["id"]: row for row in (await admin.http.get("/admin/v1/keys")).json()["keys"]}


@pytest.mark.parametrize("change", ["revoke", "rotate"])
async def test_a_key_of_the_settings_that_was_ended_stays_so(stack: Stack, change: str) -> None:
    """A front end that starts with it does not bring it back, and says what to do; another key is made known."""
    admin = await operator(stack, await stack.front_end())
    former = id_of(stack.admin)
    body = {"hours": 0} if change == "rotate" else {}
    assert (await admin.http.post(f"/admin/v1/keys/{former}/{change}", json=body)).status_code == 200
    with capture_logs() as logs:
        client = await stack.front_end()
        await wait_until(lambda: warned(logs), "the front end to say that it left the key alone")
    refused = await stack.client(client.base_url, stack.admin).http.get("/admin/v1/keys")
    assert refused.status_code == 401
    said = warned(logs)[0]
    assert (said["setting"], said["key"]) == ("TURNSTREAM_ADMIN_KEY", former)
    assert said["why"].startswith({"revoke": "revoked", "rotate": "rotated to key_"}[change])
    assert said["todo"] == "set TURNSTREAM_ADMIN_KEY to another key, and restart the front ends"

    stack.admin = make_token()
    admin = await operator(stack, await stack.front_end())
    told = await rows(admin)
    assert id_of(stack.admin) in told
    assert former not in told
    assert (await admin.http.post(f"/admin/v1/keys/{former}/revoke")).status_code == 404


def warned(logs: list[Any]) -> list[Any]:
    """The lines that say that a key was left alone."""
    return [line for line in logs if line["event"] == "key.not_registered"]


async def test_a_rotated_key_of_the_settings_ends_when_it_was_told_to(stack: Stack) -> None:
    """A start within its last day does not prolong it."""
    admin = await operator(stack, await stack.front_end())
    former = id_of(stack.admin)
    await admin.http.post(f"/admin/v1/keys/{former}/rotate", json={"hours": 1})
    before = (await rows(admin))[former]
    assert before["expires_at"] <= time.time() + 3600
    with capture_logs() as logs:
        await stack.front_end()
        await wait_until(lambda: warned(logs), "the front end to say that it left the key alone")
    assert (await rows(admin))[former] == before


async def test_a_key_of_the_settings_follows_them(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dev key speaks to the agent that the settings name now."""
    monkeypatch.setattr("turnstream.api.access.auth.KNOWN_SECONDS", 0.0)
    await stack.front_end()
    client = await stack.front_end(dev_agent="demo-researcher")

    async def moved() -> bool:
        return bool((await client.http.get("/console/key")).json()["agent"] == "demo-researcher")

    await wait_until(moved, "the key to speak to the other agent")


async def test_a_key_is_rotated_once(stack: Stack) -> None:
    """A second time, or after its end, it is refused: a successor would die with it."""
    admin = await operator(stack, await stack.front_end())
    made = (await admin.http.post("/admin/v1/keys", json={"owner": "acme"})).json()
    successor = (await admin.http.post(f"/admin/v1/keys/{made['id']}/rotate", json={})).json()
    assert "expires_at" not in successor
    again = await admin.http.post(f"/admin/v1/keys/{made['id']}/rotate", json={})
    assert (again.status_code, again.json()["code"]) == (409, "key_not_rotatable")
    assert f"rotated to {successor['id']} already" in again.json()["message"]
    next_one = await admin.http.post(f"/admin/v1/keys/{successor['id']}/rotate", json={})
    assert next_one.status_code == 200
    expired = await ApiKeys(stack.broker.primary).register(
        make_token(), owner="acme", agent="demo", expires=int(time.time()) - 1
    )
    late = await admin.http.post(f"/admin/v1/keys/{expired.id}/rotate", json={})
    assert (late.status_code, "has expired: create a new one" in late.json()["message"]) == (409, True)
    assert len(await rows(admin)) == 6


async def test_expired_keys_are_forgotten_after_a_while(stack: Stack) -> None:
    """For a month they are told; then they are gone from the broker, too."""
    admin = await operator(stack, await stack.front_end())
    known = ApiKeys(stack.broker.primary)
    now = int(time.time())
    young = await known.register(make_token(), owner="acme", agent="demo", expires=now - TOLD_SECONDS + 60)
    token = make_token()
    old = await known.register(token, owner="acme", agent="demo", expires=now - TOLD_SECONDS - 60)
    told = await rows(admin)
    assert young.id in told
    assert old.id not in told
    assert not await command(stack.broker.primary, "HEXISTS", keys.API_KEYS, digest(token))


async def test_a_key_that_a_setting_named_is_told_no_more_either(stack: Stack) -> None:
    """Each rotation would leave a row for ever; the record stays, so that the setting does not bring it back."""
    admin = await operator(stack, await stack.front_end())
    known = ApiKeys(stack.broker.primary)
    token = make_token()
    brought = await known.bring(
        token, setting="TURNSTREAM_ADMIN_KEY", owner="admin", agent="", scopes=("admin",)
    )
    assert brought is not None
    past = brought.model_copy(update={"expires": int(time.time()) - TOLD_SECONDS - 60})
    await command(stack.broker.primary, "HSET", keys.API_KEYS, digest(token), past.model_dump_json())
    assert brought.id not in await rows(admin)
    assert await command(stack.broker.primary, "HEXISTS", keys.API_KEYS, digest(token))


async def test_the_settings_keys_outlive_the_brokers_data(stack: Stack) -> None:
    """A broker that comes back empty is told of them again, and not of one that was revoked meanwhile."""
    client = await stack.front_end()
    admin = await operator(stack, client)
    known = ApiKeys(stack.broker.primary)
    redis: Any = stack.broker.primary
    await redis.flushall()
    await wait_until(lambda: redis.hlen(keys.API_KEYS), "the keys to be made known again")

    async def served() -> bool:
        answers = [await client.http.get("/liteAgent/v1/history"), await admin.http.get("/admin/v1/keys")]
        return [answer.status_code for answer in answers] == [400, 200]

    await wait_until(served, "both keys to work")
    (dev,) = [key for key in await known.all() if key.owner == "dev"]
    with capture_logs() as logs:
        await known.revoke(dev.id)
        await wait_until(lambda: warned(logs), "the front end to see that it was revoked")
    await redis.delete(keys.API_KEYS)
    await wait_until(lambda: redis.hlen(keys.API_KEYS), "the admin key to be made known again")
    assert [key.owner for key in await known.all()] == ["admin"]


async def test_when_a_key_was_used_last_is_told(
    client: Client, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before it is used; a later use counts, also where another front end told of an earlier one after it."""
    monkeypatch.setattr(app, "USED_EVERY_SECONDS", 0.05)
    other = await stack.front_end()
    admin = stack.client(other.base_url, stack.admin)
    token = make_token()
    key = await ApiKeys(stack.broker.primary).register(token, owner="acme", agent="demo")

    async def used_at() -> float:
        rows = (await admin.http.get("/admin/v1/keys")).json()["keys"]
        return float(next(row for row in rows if row["id"] == key.id).get("used_at", 0))

    assert await used_at() == 0
    before = int(time.time())
    assert (await stack.client(other.base_url, token).http.get("/console/key")).status_code == 200
    told = await wait_until(used_at, "the use to be told")
    assert before <= told <= time.time()
    await ApiKeys(stack.broker.primary).note_used({key.id: told - 100})
    assert await used_at() == told


async def test_a_note_says_who_a_key_is_for(client: Client, stack: Stack) -> None:
    """It is told with the key and with its successor, also where a key has been kept without one; no log has it."""
    admin = await operator(stack, client)
    note = "Anna's phone <b>&amp; 2\u202e</b> 🦊"
    with capture_logs() as logs:
        made = (await admin.http.post("/admin/v1/keys", json={"owner": "acme", "note": note})).json()
        successor = (await admin.http.post(f"/admin/v1/keys/{made['id']}/rotate", json={})).json()
    assert [made["note"], successor["note"]] == [note, note]
    assert "Anna" not in repr(logs)

    # As a release kept it that knew no notes.
    token = make_token()
    kept = f'{{"id":"{id_of(token)}","owner":"acme","agent":"demo"}}'
    await command(stack.broker.primary, "HSET", keys.API_KEYS, digest(token), kept)
    plain = (await admin.http.post("/admin/v1/keys", json={"owner": "acme", "note": ""})).json()
    told = await rows(admin)
    assert told[made["id"]]["note"] == told[successor["id"]]["note"] == note
    assert "note" not in told[id_of(token)] | told[plain["id"]]
    assert (await stack.client(client.base_url, token).http.get("/console/key")).status_code == 200


@pytest.mark.parametrize("note", ["n" * 201, "one\ntwo", "\x00", "\x1b[31m", "\x85", 5, None])
async def test_a_note_is_one_short_line(client: Client, stack: Stack, note: object) -> None:
    """Another one is refused, in words that name the field and not what was sent; no key is made."""
    admin = await operator(stack, client)
    refused = await admin.http.post("/admin/v1/keys", json={"owner": "acme", "note": note})
    assert (refused.status_code, refused.json()["message"].partition(":")[0]) == (422, "note"), refused.text
    assert "nnn" not in refused.text
    assert not [row for row in (await rows(admin)).values() if row["owner"] == "acme"]
    longest = await admin.http.post("/admin/v1/keys", json={"owner": "acme", "note": "ñ" * 200})
    assert longest.json()["note"] == "ñ" * 200


async def test_what_is_kept_as_a_note_locks_nobody_out(client: Client, stack: Stack) -> None:
    """A note that another release let be longer is told; the key works."""
    admin = await operator(stack, client)
    token, note = make_token(), "n" * 300
    kept = f'{{"id":"{id_of(token)}","owner":"acme","agent":"demo","note":"{note}"}}'
    await command(stack.broker.primary, "HSET", keys.API_KEYS, digest(token), kept)
    assert (await stack.client(client.base_url, token).http.get("/console/key")).status_code == 200
    assert (await rows(admin))[id_of(token)]["note"] == note
