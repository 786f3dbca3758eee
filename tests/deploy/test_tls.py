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
from tests.support import users
from tests.support.client import text_of
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.broker.client import Broker
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


@pytest.fixture
def broker(authority: trustme.CA, tmp_path: Path) -> Iterator[int]:
    """A broker that speaks TLS only, as localhost, with the users of deploy/redis.acl; its port."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip(
            "redis-server is not installed: apt-get install redis-server (the tests' own Valkey has no TLS)"
        )
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
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
