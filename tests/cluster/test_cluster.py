"""What users and operators do, through the shipped nginx.conf, with the shipped broker configuration and its users."""

from __future__ import annotations

import asyncio
import errno
import select
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import psutil
import pytest
import pytest_asyncio
import redis
from openai import APIConnectionError, AsyncOpenAI

from tests.support.client import Frame, asked, check_whole, terminal, text_of
from tests.support.openai_events import check_events
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from deploy.cluster import Cluster
    from deploy.process import Part
    from tests.support.client import Client

# What the system allows.
MOST_WAITING = int(Path("/proc/sys/net/core/somaxconn").read_text())

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def to_the_end(client: Client, session: str, task: str, seen: list[Frame]) -> list[Frame]:
    """Follow the turn until its end, coming back with the last cursor as often as the stream is cut."""

    async def followed() -> bool:
        try:
            async with client.follow(session, task, seen[-1].id) as stream:
                if stream.response.status_code == 200:
                    try:
                        await stream.until(lambda _: False)
                    finally:
                        seen.extend(stream.frames)
        except (httpx.TransportError, AssertionError):
            # Cut off, perhaps within a frame, which is not counted as received.
            pass
        return terminal(seen) is not None

    await wait_until(followed, f"the end of {task}", 40)
    return seen


def holder(cluster: Cluster, task: str) -> Part:
    """The worker that runs the task."""
    workers = [part for name, part in cluster.parts.items() if name.startswith("worker")]
    return next(part for part in workers if part.said("attempt.began", f"/{task}"))


async def answers(part: Part) -> bool:
    """Whether a front end serves again."""
    try:
        async with httpx.AsyncClient(trust_env=False) as http:
            return (await http.get(f"http://127.0.0.1:{part.port}/readyz")).status_code == 200
    except httpx.TransportError:
        return False


async def test_a_turn_is_followed_resumed_and_stopped(client: Client) -> None:
    """Events pass as they come; a second reader with a cursor gets exactly the rest; stop ends both."""
    async with client.process("s1", "/tokens 100000 10", id="t1") as own:
        begun = list(await own.until(lambda frames: len(frames) >= 20))
        assert "x-accel-buffering" not in own.response.headers, "nginx has understood it, and keeps it"
        async with client.follow("s1", "t1", begun[9].id) as again:
            await again.until(lambda frames: len(frames) >= 20)
            assert (await client.stop("s1", "t1")).status_code == 200
            mine, rest = await own.all(), await again.all()
    check_whole(mine)
    ended = terminal(mine)
    assert ended is not None
    assert ended["status"] == "canceled"
    assert [frame.raw for frame in mine[10:]] == [frame.raw for frame in rest]


async def test_the_console_is_there(client: Client) -> None:
    """Its redirect names the address that the browser used, port and all."""
    answer = await client.http.get("/console", follow_redirects=True)
    assert answer.status_code == 200
    assert str(answer.url).startswith(client.base_url)


async def test_a_worker_dies_and_then_a_front_end(cluster: Cluster, client: Client) -> None:
    """The turn goes on at the other worker, on the same connection; and through any front end, with the cursor."""
    seen: list[Frame] = []
    try:
        async with client.process("s2", "/tokens 300 20", id="t2") as own:
            await own.until(lambda frames: len(frames) >= 20)
            holder(cluster, "t2").signal(signal.SIGKILL)
            await own.until(
                lambda frames: [frame for frame in frames if frame.data.get("status") == "incomplete"]
            )
            seen = list(await own.until(lambda frames: text_of(frames).count("tok0 ") > 1))
            used = [part for name, part in cluster.parts.items() if name.startswith("api")]
            for part in used:
                part.signal(signal.SIGKILL)
            seen = list(await own.until(lambda _: False))
    except (httpx.TransportError, AssertionError):
        seen = own.frames
    for part in used:
        await wait_until(lambda part=part: answers(part), "the front end to be back")  # type: ignore[misc]
    assert terminal(seen) is None, "the turn has ended before its front end died"
    check_whole(await to_the_end(client, "s2", "t2", seen))
    ended = terminal(seen)
    assert ended is not None
    assert [message["status"] for message in ended["output"]] == ["incomplete", "completed"]
    assert ended["output"][1]["content"][0]["text"] == "".join(f"tok{number} " for number in range(300))


@pytest_asyncio.fixture(loop_scope="module")
async def openai(cluster: Cluster) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's own client, which knows nginx only."""
    async with AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key=cluster.key, max_retries=0) as openai:
        yield openai


async def test_openais_client_outlives_all_of_them(cluster: Cluster, openai: AsyncOpenAI) -> None:
    """The worker is killed in mid-item, then the front end: the client resumes by its number, and has each event once."""
    got: list[Any] = []

    async def gathered(stream: Any, enough: Callable[[], bool]) -> None:
        async for event in stream:
            got.append(event)
            if enough():
                return

    def begun() -> int:
        return sum(event.type == "response.output_item.added" for event in got)

    def told() -> int:
        return sum(event.type == "response.output_text.delta" for event in got)

    stream = await openai.responses.create(model="demo", input="/tokens 300 20", stream=True)
    await gathered(stream, lambda: told() >= 5)
    name = got[0].response.id
    task = name.split("~")[1]
    workers = [part for each, part in cluster.parts.items() if each.startswith("worker")]
    await wait_until(
        lambda: any(part.said("attempt.began", f"/{task}") for part in workers), "the worker that has it"
    )
    holder(cluster, task).signal(signal.SIGKILL)
    await gathered(stream, lambda: begun() == 2)
    used = [part for each, part in cluster.parts.items() if each.startswith("api")]
    for part in used:
        part.signal(signal.SIGKILL)
    with pytest.raises(APIConnectionError):
        await gathered(stream, lambda: False)
    await stream.close()
    for part in used:
        await wait_until(lambda part=part: answers(part), "the front end to be back")  # type: ignore[misc]
    assert got[-1].type != "response.completed"
    rest = await openai.responses.retrieve(name, stream=True, starting_after=got[-1].sequence_number)
    await gathered(rest, lambda: False)
    last = check_events([orjson.loads(event.to_json()) for event in got])
    assert [item["status"] for item in last["output"]] == ["incomplete", "completed"]
    assert last["output"][1]["content"][0]["text"] == "".join(f"tok{number} " for number in range(300))
    assert orjson.loads((await openai.responses.retrieve(name)).to_json()) == last


async def test_front_ends_are_replaced_one_by_one(cluster: Cluster, client: Client) -> None:
    """SIGTERM to each in turn: every request is answered, and a turn is followed to its end without a gap."""
    async with client.process("s3", "/tokens 400 20", id="t3") as own:
        seen = list(await own.until(lambda frames: len(frames) >= 10))
    following = asyncio.create_task(to_the_end(client, "s3", "t3", seen))
    statuses: list[int] = []
    for part in (part for name, part in cluster.parts.items() if name.startswith("api")):
        former = part.pid
        part.signal(signal.SIGTERM)

        async def replaced(part: Part = part, former: int = former) -> bool:
            statuses.append((await client.http.get("/liteAgent/v1/version")).status_code)
            return part.pid != former and await answers(part)

        await wait_until(replaced, "the front end to be replaced", 40)
    check_whole(await following)
    assert set(statuses) == {200}
    assert len(statuses) > 10


async def test_without_any_front_end_clients_are_told_to_come_back(cluster: Cluster, client: Client) -> None:
    """503 in the front end's own shape, with Retry-After; the same Idempotency-Key then makes one turn."""
    front_ends = [part for name, part in cluster.parts.items() if name.startswith("api")]
    for part in front_ends:
        part.signal(signal.SIGKILL)
    again = {"Idempotency-Key": "k1"}
    answer = await client.http.post("/process", json=asked("s4", "hi"), headers=again)
    assert answer.status_code == 503
    assert answer.json()["code"] == "unavailable"
    assert int(answer.headers["retry-after"]) > 0
    version = b"GET /liteAgent/v1/version HTTP/1.1\r\nHost: x\r\n\r\n"
    _check_refusal(await _refusal(cluster, version), "/liteAgent/v1/version", 503, "unavailable")

    async def accepted() -> bool:
        answer = await client.http.post("/process", json=asked("s4", "hi"), headers=again)
        return answer.status_code == 200

    await wait_until(accepted, "a front end to be back", 40)
    for part in front_ends:
        await wait_until(lambda part=part: answers(part), "both front ends to be back", 40)  # type: ignore[misc]


async def test_thousands_may_come_at_once(cluster: Cluster) -> None:
    """Connections that nobody has the time to accept wait, at nginx and at a front end: none has to come again."""
    count = min(3000, MOST_WAITING)
    for part in (cluster.parts["nginx"], cluster.parts["api-1"]):
        process = psutil.Process(part.pid)
        frozen = [process, *process.children()]
        with ExitStack() as held:
            for each in frozen:
                each.suspend()
                held.callback(each.resume)
            poll = select.poll()
            for _ in range(count):
                connection = held.enter_context(socket.socket())
                connection.setblocking(False)
                assert connection.connect_ex(("127.0.0.1", part.port)) in (0, errno.EINPROGRESS)
                poll.register(connection, select.POLLOUT)
            await wait_until(lambda poll=poll: len(poll.poll(0)) == count, "all connections to stand")  # type: ignore[misc]
        await wait_until(lambda part=part: answers(part), "it to serve again", 40)  # type: ignore[misc]


async def test_bodies_that_are_too_large_are_refused_in_one_shape(client: Client) -> None:
    """What the agent does not take is refused by the front end, what nobody takes by nginx: the same JSON."""
    frames = await client.turn("s5", "x" * 200_000)
    assert "x" * 200_000 in text_of(frames), "a body that comes in pieces is passed on whole"
    for size, words in ((10_600_000, "10485760"), (12_000_000, "11 MiB")):
        answer = await client.http.post("/process", json=asked("s5", "x" * size))
        assert answer.status_code == 413
        assert answer.json()["code"] == "body_too_large"
        assert words in answer.json()["message"]


async def test_bodies_without_a_key_are_not_gathered(cluster: Cluster, client: Client) -> None:
    """Who has no key is answered before the body has come, which is kept nowhere, and is cut soon, drip as it may."""
    head = b"POST /process HTTP/1.1\r\nHost: x\r\nContent-Length: 11000000\r\n"
    key = f"Authorization: Bearer {cluster.key}\r\n".encode()
    opened = []
    for sent in [head + b"\r\n"] * 8 + [head + key + b"\r\n"] * 2:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port)
        writer.write(sent + b"x" * 1_000_000)
        await writer.drain()
        opened.append((reader, writer))
    for reader, _ in opened[:8]:
        assert b" 401 " in await asyncio.wait_for(reader.readline(), 20)
    assert not [
        path for path in (cluster.folder / "run").rglob("*") if path.is_file() and path.stat().st_size > 1000
    ]
    assert text_of(await client.turn("s7", "x" * 200_000))

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                async with asyncio.timeout(1):
                    if not await reader.read(65536):
                        return
        except TimeoutError:
            await drip(reader, writer)
        except ConnectionError:
            return

    async with asyncio.timeout(60):
        await asyncio.gather(*(drip(*each) for each in opened[:8]))
    for _, writer in opened:
        writer.close()


async def _refusal(cluster: Cluster, sent: bytes) -> tuple[int, bytes, dict[str, Any]]:
    """Status, head and body of the answer to what is sent on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port)
    writer.write(sent)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    body = await asyncio.wait_for(reader.readexactly(length), 20)
    writer.close()
    assert b"content-type: application/json" in head.lower()
    return int(head.split(b" ")[1]), head, orjson.loads(body)


def _check_refusal(found: tuple[int, bytes, dict[str, Any]], path: str, status: int, word: str) -> None:
    """The shape of the front end's own refusals, which LiteAgent's clients read by number."""
    was, head, body = found
    assert was == status, found
    if path.startswith("/v1/"):
        assert set(body) == {"error"}
        error = body["error"]
        kinds = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}
        assert error["message"]
        assert error["param"] is None
        assert error["type"] == kinds.get(status, "invalid_request_error")
        body = {"code": {"rate_limit_exceeded": "too_many"}.get(error["code"], error["code"])}
    if path.startswith("/a2a/"):
        error = body["error"]
        if path.count("/") == 2:
            assert (body["jsonrpc"], body["id"]) == ("2.0", None)
            assert error["code"] == (-32603 if status >= 500 else -32600)
        else:
            assert error["code"] == status
        (info,) = error["data" if path.count("/") == 2 else "details"]
        assert error["message"]
        body = {"code": info["reason"].lower()}
    assert set(body) - {"message"} == ({"code", "reason"} if path.startswith("/liteAgent/") else {"code"})
    assert body.get("reason", body["code"]) == word
    if path.startswith("/liteAgent/"):
        assert body["code"] == status * 100
    assert (b"\r\nretry-after: " in head.lower()) is (status in {429, 500, 503})


@pytest.mark.parametrize(
    "path", ["/process", "/liteAgent/v1/chat", "/v1/responses", "/a2a/demo", "/a2a/demo/message:send"]
)
async def test_what_nginx_refuses_has_the_documented_shape(cluster: Cluster, path: str) -> None:
    """JSON with code and message, whatever it is that nginx itself says no to; numbers on LiteAgent's routes."""
    line, long = f"POST {path} HTTP/1.1\r\n".encode(), b"y" * 9000
    for sent, status, word in (
        (line + b"\r\n", 400, "bad_request"),
        (line + b"Host: x\r\nX: " + long + b"\r\n\r\n", 400, "bad_request"),
        (line.replace(b" HTTP", b"?" + long + b" HTTP") + b"Host: x\r\n\r\n", 414, "bad_request"),
        (line.replace(b"POST", b"TRACE") + b"Host: x\r\n\r\n", 405, "method_not_allowed"),
        (line + b"Host: x\r\nTransfer-Encoding: gzip\r\n\r\n", 400, "bad_request"),
        (line + b"Host: x\r\nContent-Length: 12000000\r\n\r\n", 413, "body_too_large"),
    ):
        _check_refusal(await _refusal(cluster, sent), path, status, word)
    _check_refusal(await _refusal(cluster, b"RUBBISH\r\n\r\n"), "", 400, "bad_request")


async def test_one_address_holds_so_many_connections(cluster: Cluster, client: Client) -> None:
    """Beyond them it is refused, in the shape of each protocol, until some are closed."""
    await client.turn("s8", "hi")
    follow = b"GET /process?session_id=s8 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n"
    held = []

    async def hold() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port)
        writer.write(follow % cluster.key.encode())
        held.append(writer)
        assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 200 ")

    try:
        await asyncio.gather(*(hold() for _ in range(512)))
        for path in ("/process", "/liteAgent/v1/chat", "/v1/responses"):
            sent = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            _check_refusal(await _refusal(cluster, sent), path, 429, "too_many")
    finally:
        for writer in held:
            writer.close()

    async def taken() -> bool:
        return (await _refusal(cluster, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 200

    await wait_until(taken, "room to come back")


async def test_half_sent_requests_are_cut_off(cluster: Cluster) -> None:
    """A head or a body that never ends holds a connection for ten seconds."""

    async def cut(sent: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port)
        writer.write(sent)
        async with asyncio.timeout(30):
            try:
                return await reader.read()
            except ConnectionResetError:
                return b""
            finally:
                writer.close()

    key = f"Authorization: Bearer {cluster.key}\r\n".encode()
    head = b"POST /process HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n" + key
    answers_to = await asyncio.gather(cut(head), cut(head + b"\r\n{"))
    assert answers_to[0] == b""
    assert answers_to[1] == b"" or answers_to[1].startswith(b"HTTP/1.1 408")


async def test_no_secret_is_written_while_processes_begin(cluster: Cluster) -> None:
    """One that read it in between would take it for empty, and be refused by the broker."""
    # It names the front ends: all that need secrets had begun before it was written.
    begun = (cluster.folder / "nginx/turnstream/servers.conf").stat().st_mtime_ns
    files = [*cluster.folder.glob("secrets/*/turnstream_*")]
    assert {file.parent.name for file in files} == {"api", "worker"}
    assert not [file for file in files if file.stat().st_mtime_ns > begun]


async def test_each_side_is_its_own_user_at_the_broker(cluster: Cluster, client: Client) -> None:
    """Nobody connects as `default`, and nothing that front ends and workers asked was refused."""
    assert text_of(await client.turn("s6", "hi")) == "You said: hi"
    password = cluster.passwords["operator"]
    url = f"redis://operator:{password}@127.0.0.1:{cluster.broker_port}"
    # Without the client library's own CLIENT SETINFO.
    with redis.Redis.from_url(url, lib_name="", lib_version="") as broker:
        users = {each["user"] for each in broker.client_list()}
        refused = [(each["username"], each["object"]) for each in broker.acl_log()]
        assert broker.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert broker.config_get("appendfsync") == {"appendfsync": "everysec"}
    assert users == {"api", "worker", "operator"}
    assert refused == []
