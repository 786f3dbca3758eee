"""TLS to the broker: rediss:// with a certificate authority of one's own, and only to whom it was issued."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import trustme
from pydantic import ValidationError

from deploy.ports import free_port
from tests.conftest import Place
from tests.processes.servers import Node, RedisCluster, Sentinels, Tls
from tests.support import users
from tests.support.client import check_whole, text_of
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.broker.client import Broker
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    """Whoever issues the broker's certificate; its own is in ca.pem."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return authority


def _program() -> str:
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip(
            "redis-server is not installed: apt-get install redis-server (the tests' own Valkey has no TLS)"
        )
    return found


def _issue(authority: trustme.CA, folder: Path, *names: str) -> None:
    issued = authority.issue_cert(*names)
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")


@pytest.fixture
def tls(authority: trustme.CA, tmp_path: Path) -> Tls:
    """Several Redis servers that know each other by their address."""
    program = _program()
    _issue(authority, tmp_path, "localhost", "127.0.0.1")
    return Tls(program, tmp_path)


@pytest.fixture
def broker(authority: trustme.CA, tmp_path: Path) -> Iterator[int]:
    """A broker that speaks TLS only, as localhost, with the users of deploy/redis.acl; its port."""
    program = _program()
    _issue(authority, tmp_path, "localhost")
    (tmp_path / "users.acl").write_text(users.acl_file())
    port = free_port()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program, "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--save", "",
                "--tls-cert-file", "cert.pem", "--tls-key-file", "key.pem", "--tls-ca-cert-file", "ca.pem",
                "--tls-auth-clients", "no", "--aclfile", "users.acl",
            ],
            cwd=tmp_path, stdout=log, stderr=log,
        )  # fmt: skip
    yield port
    process.terminate()
    process.wait(15)


async def ready(**given: object) -> bool:
    """Whether a process with these settings reaches its broker."""
    broker = Broker(Settings(redis_password=users.password("operator"), **given))  # type: ignore[arg-type]
    try:
        return await broker.ready()
    finally:
        await broker.close()


async def test_a_chat_over_tls(broker: int, tmp_path: Path) -> None:
    """With the authority named, front end and worker trust the broker, its subscriptions included."""
    url, ca = f"rediss://localhost:{broker}/0", tmp_path / "ca.pem"
    operator = url.replace("//", "//operator@")
    await wait_until(lambda: ready(redis_url=operator, redis_ca=ca), "the broker to answer")
    stack = Stack(Place(url, None), redis_ca=ca)
    try:
        await stack.worker()
        client = await stack.front_end()
        assert text_of(await client.turn("s1", "hi")) == "You said: hi"
    finally:
        await stack.close()
        await stack.place.close()


async def test_sentinels_over_tls(tls: Tls, tmp_path: Path) -> None:
    """Sentinels, primary and replica: who is promoted is trusted, too."""
    async with Sentinels(tmp_path / "servers", with_users=True, tls=tls) as watched:
        stack = Stack(Place(watched.url, None), redis_ca=tls.authority, lease_seconds=2)
        try:
            await stack.worker()
            client = await stack.front_end()
            assert text_of(await client.turn("s1", "one", id="t1")) == "You said: one"
            await watched.failover()

            async def taken() -> bool:
                return (await client.http.get("/readyz")).status_code == 200

            await wait_until(taken, "the front end to find the new primary")
            assert text_of(await client.turn("s1", "two", id="t2")) == "You said: two"
        finally:
            await stack.close()
            await stack.place.close()
        assert not await ready(redis_url=watched.url.replace("//", "//operator@"))


async def test_a_cluster_over_tls(tls: Tls, tmp_path: Path) -> None:
    """Sessions of every node, and one that moves to another node."""
    primary = Node(tmp_path / "primary", with_users=True, tls=tls)
    try:
        async with RedisCluster(tmp_path / "cluster", with_users=True, tls=tls, replicas=False) as cluster:
            await primary.start()
            place = Place(f"rediss://127.0.0.1:{primary.port}/0", None, cluster.url)
            stack = Stack(place, redis_ca=tls.authority)
            try:
                await stack.worker()
                client = await stack.front_end()
                for number in range(6):
                    assert text_of(await client.turn(f"s{number}", "hi", id="t1")) == "You said: hi"
                slot = await cluster.slot(SessionKeys("dev", "s1").meta)
                owner = await cluster.owner(slot)
                async with client.process("s1", "/tokens 200 10", id="t2") as stream:
                    await stream.until(lambda frames: len(frames) > 20)
                    await cluster.move(slot, next(each for each in cluster.primaries if each is not owner))
                    check_whole(await stream.all())
            finally:
                await stack.close()
                await place.close()
    finally:
        primary.close()


async def test_nobody_else_is_trusted(broker: int, tmp_path: Path) -> None:
    """Without the authority, or under another name than the certificate's, there is no connection."""
    ca = tmp_path / "ca.pem"
    await wait_until(
        lambda: ready(redis_url=f"rediss://operator@localhost:{broker}/0", redis_ca=ca),
        "the broker to answer",
    )
    assert not await ready(redis_url=f"rediss://operator@localhost:{broker}/0")
    assert not await ready(redis_url=f"rediss://operator@127.0.0.1:{broker}/0", redis_ca=ca)


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    """A wrong TURNSTREAM_REDIS_CA is told at the start, not at the first connection."""
    for content in (None, "no certificate"):
        path = tmp_path / "ca.pem"
        if content is not None:
            path.write_text(content)
        with pytest.raises(ValidationError, match="PEM file of certificates"):
            Settings(redis_ca=path)
