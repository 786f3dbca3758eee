"""Webhooks are told of tasks, whoever is killed; and nothing is sent where it must not be."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from a2a.types import (
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    SendMessageConfiguration,
    StreamResponse,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError

from tests.support.a2a import VERSION, published, request, said, strictly
from tests.support.receiver import Receiver, receiving
from tests.support.waiting import wait_until
from turnstream.worker import webhooks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.client import Client
    from tests.support.stack import Stack


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Receiver]:
    """One, of workers that are in a hurry."""
    monkeypatch.setattr(webhooks, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(webhooks, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(webhooks, "SOONEST_MS", 100)
    monkeypatch.setattr(webhooks, "FIRST_RETRY_MS", 100)
    async with receiving() as receiver:
        yield receiver


def told(receiver: Receiver, count: int) -> Any:
    """Wait until it was told so often."""
    return wait_until(lambda: len(receiver.told) >= count, f"the receiver to be told {count} times")


async def test_being_asked_and_the_end_are_told(
    client: Client, a2a_at: Any, binding: str, receiver: Receiver
) -> None:
    """Signed, with what the client has asked to stand in the headers."""
    a2a = await a2a_at(client, binding, streaming=False)
    asked = request("/call weather {}")
    config = TaskPushNotificationConfig(
        url=receiver.url, token="whsec_" + base64.b64encode(b"k" * 24).decode()
    )
    config.authentication.scheme, config.authentication.credentials = "Bearer", "abc"
    asked.configuration.CopyFrom(SendMessageConfiguration(task_push_notification_config=config))
    (answer,) = [each async for each in a2a.send_message(asked)]
    assert answer.task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    await told(receiver, 1)
    reply = request("sunny", taskId=answer.task.id)
    (end,) = [each async for each in a2a.send_message(reply)]
    assert end.task.status.state == TaskState.TASK_STATE_COMPLETED
    await told(receiver, 2)
    assert receiver.states == ["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED"]
    for message, headers, body in zip(receiver.told, receiver.headers, receiver.bodies, strict=True):
        update = strictly(message, StreamResponse()).status_update
        assert (update.task_id, update.context_id) == (answer.task.id, answer.task.context_id)
        assert headers["authorization"] == "Bearer abc"
        assert headers["content-type"] == "application/a2a+json"
        assert "x-a2a-notification-token" not in headers, "a secret to sign with is not sent"
        text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        mac = base64.b64encode(hmac.digest(b"k" * 24, text, hashlib.sha256)).decode()
        assert headers["webhook-signature"] == f"v1,{mac}"


async def test_configs_are_kept_with_their_task(client: Client, a2a_at: Any, binding: str) -> None:
    """Made, told, listed, deleted; a second deletion is no error."""
    a2a = await a2a_at(client, binding, polling=True, streaming=False)
    (answer,) = [each async for each in a2a.send_message(request("/slow 60"))]
    task = answer.task.id
    given = TaskPushNotificationConfig(task_id=task, id="mine", url="https://example.com/told", token="t")
    made = await a2a.create_task_push_notification_config(given)
    assert made == given
    other = await a2a.create_task_push_notification_config(
        TaskPushNotificationConfig(task_id=task, url="https://example.com/other")
    )
    assert other.id
    assert other.token.startswith("whsec_"), "who brings no token is given one"
    one = GetTaskPushNotificationConfigRequest(task_id=task, id="mine")
    assert await a2a.get_task_push_notification_config(one) == given
    all_of = ListTaskPushNotificationConfigsRequest(task_id=task)
    assert list((await a2a.list_task_push_notification_configs(all_of)).configs) == [given, other]
    for _ in range(2):
        await a2a.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(task_id=task, id="mine")
        )
    with pytest.raises(TaskNotFoundError):
        await a2a.get_task_push_notification_config(one)
    assert list((await a2a.list_task_push_notification_configs(all_of)).configs) == [other]
    await client.stop(answer.task.context_id)


async def test_what_was_not_taken_is_sent_again(client: Client, receiver: Receiver) -> None:
    """As the same message; a redirect is not followed, and what is refused too often is given up."""
    receiver.statuses = [500, 302]
    config = {"taskPushNotificationConfig": {"url": receiver.url, "token": "plain"}}
    answer = await client.http.post(
        "/a2a/demo/message:send", json=said("hi", configuration=config), headers=VERSION
    )
    assert answer.status_code == 200, answer.text
    await told(receiver, 3)
    assert len({headers["webhook-id"] for headers in receiver.headers}) == 1
    assert receiver.headers[0]["x-a2a-notification-token"] == "plain"
    assert receiver.states == ["TASK_STATE_COMPLETED"] * 3


async def test_another_worker_tells_when_one_is_gone(
    stack: Stack, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker had taken to tell is due again; and what it had told is not told twice."""
    monkeypatch.setattr(webhooks, "AGAIN_MS", 300)
    first = await stack.worker()
    client = await stack.front_end()
    taken = asyncio.Event()

    async def dies(*_: Any) -> str:
        taken.set()
        await asyncio.Event().wait()
        return ""

    with monkeypatch.context() as patch:
        patch.setattr(webhooks.Courier, "_sent", dies)
        config = {"taskPushNotificationConfig": {"url": receiver.url}}
        await client.http.post(
            "/a2a/demo/message:send", json=said("hi", configuration=config), headers=VERSION
        )
        await taken.wait()
        await stack.stop_worker(first)
    await stack.worker()
    await told(receiver, 1)

    async def settled() -> bool:
        return not await stack.broker.primary.zcard("ts:webhooks")

    await wait_until(settled, "the hint to be dropped")
    assert receiver.states == ["TASK_STATE_COMPLETED"]


async def test_an_end_from_outside_is_told(client: Client, receiver: Receiver) -> None:
    """A stop through another protocol."""
    config = {"taskPushNotificationConfig": {"url": receiver.url}, "returnImmediately": True}
    answer = await client.http.post(
        "/a2a/demo/message:send", json=said("/slow 60", configuration=config), headers=VERSION
    )
    assert (await client.stop(answer.json()["task"]["contextId"])).status_code == 200
    await told(receiver, 1)
    assert receiver.states == ["TASK_STATE_CANCELED"]


async def test_nothing_is_sent_where_it_must_not_be(stack: Stack, receiver: Receiver) -> None:
    """Workers that may not reach this machine try, and give up; names are checked by what they lead to."""
    await stack.worker(webhook_networks="10.0.0.0/8")
    client = await stack.front_end()
    port = receiver.url.rpartition(":")[2]
    for url in (receiver.url, f"http://localhost:{port}", f"http://[::ffff:127.0.0.1]:{port}"):
        config = {"taskPushNotificationConfig": {"url": url}}
        answer = await client.http.post(
            "/a2a/demo/message:send", json=said("hi", configuration=config), headers=VERSION
        )
        assert answer.status_code == 200, answer.text

    async def settled() -> bool:
        return not await stack.broker.primary.zcard("ts:webhooks")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webhooks, "MOST_TRIES", 2)
        await wait_until(settled, "every try to be over")
    assert not receiver.told


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "https://127.0.0.1/",
        "https://10.1.2.3/",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[2002:7f00:1::]/",
        "https://[fec0::1]/",
        "https://user:password@example.com/",
        "https://example.com/#part",
        "https://example.com/a\nb",
        "ftp://example.com/",
        "https:///path",
        "https://example.com:99999/",
        "https://example.com:0/",
        "https://0.0.0.0/",
        "https://[::]/",
        "https://[::ffff:169.254.169.254]/",
        "https://[::127.0.0.1]/",
        "https://100.64.0.1/",
        "https://example.com\\@127.0.0.1/",
        "nonsense",
    ],
)
async def test_addresses_that_are_refused(stack: Stack, a2a_at: Any, url: str) -> None:
    """At once, where that can be seen."""
    await stack.worker()
    client = await stack.front_end(webhook_networks=None)
    a2a = await a2a_at(client, polling=True, streaming=False)
    asked = request("hi")
    asked.configuration.task_push_notification_config.url = url
    with pytest.raises(InvalidParamsError, match="url"):
        [each async for each in a2a.send_message(asked)]


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_by_tls(
    client: Client, stack: Stack, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are sent where the certificate is of a known authority and for the name in the URL, and nowhere else."""
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    # Proxies of the environment are not used.
    monkeypatch.setenv("HTTPS_PROXY", receiver.url)
    monkeypatch.setattr(webhooks, "MOST_TRIES", 2)
    async with receiving(context) as other:
        asked = said("/call f {}", configuration={"taskPushNotificationConfig": {"url": other.url}})
        answer = await client.http.post("/a2a/demo/message:send", json=asked, headers=VERSION)
        task = answer.json()["task"]
        named = {"url": other.url.replace("127.0.0.1", "localhost"), "id": "named"}
        path = f"/a2a/demo/tasks/{task['id']}/pushNotificationConfigs"
        assert (await client.http.post(path, json=named, headers=VERSION)).status_code == 200
        await told(other, 1)
        await client.stop(task["contextId"])

        async def settled() -> bool:
            return not await stack.broker.primary.zcard("ts:webhooks")

        await wait_until(settled, "every try to be over")
    assert other.states == ["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_CANCELED"]
    assert {headers["host"] for headers in other.headers} == {named["url"].split("/")[2]}
    assert not receiver.told


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_names_that_nobody_resolves(
    client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hold up neither what else a worker does in threads, model providers' names for one, nor other owners' webhooks."""
    real, stuck, silent = socket.getaddrinfo, [], threading.Event()

    def resolve(host: str, *given: Any, **more: Any) -> Any:
        if str(host).endswith(".example"):
            stuck.append(host)
            silent.wait(60)
        return real(host, *given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    try:
        for number in range(2):
            config = {"taskPushNotificationConfig": {"url": f"https://silent{number}.example/"}}
            answer = await client.http.post(
                "/a2a/demo/message:send", json=said("/call f {}", configuration=config), headers=VERSION
            )
            path = f"/a2a/demo/tasks/{answer.json()['task']['id']}/pushNotificationConfigs"
            for more in range(7):
                await client.http.post(
                    path, json={"url": f"https://silent{number}-{more}.example/"}, headers=VERSION
                )
        await wait_until(lambda: len(stuck) >= 8, "names to be looked up")
        async with asyncio.timeout(20):
            await asyncio.to_thread(int)
    finally:
        silent.set()


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_names_whose_meaning_changes(
    client: Client, stack: Stack, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Are resolved once for each message, and what was looked at is connected to; one that means also another address is not told."""
    real, asked = socket.getaddrinfo, []
    port = receiver.url.rpartition(":")[2]

    def resolve(host: Any, *given: Any, **more: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if not name.endswith(".example"):
            return real(host, *given, **more)
        asked.append(name)
        # The second answer is what a rebinding name has after the check.
        means = ["127.0.0.1", "10.1.2.3"] if name == "both.example" else ["127.0.0.1"]
        if asked.count(name) > 1:
            means = ["10.1.2.3"]
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (each, 1)) for each in means]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(webhooks, "MOST_TRIES", 1)
    told_of = []
    for name in ("both.example", "once.example"):
        config = {"taskPushNotificationConfig": {"url": f"http://{name}:{port}"}}
        answer = await client.http.post(
            "/a2a/demo/message:send", json=said("hi", configuration=config), headers=VERSION
        )
        told_of.append(answer.json()["task"]["id"])
    await told(receiver, 1)

    async def settled() -> bool:
        return not await stack.broker.primary.zcard("ts:webhooks")

    await wait_until(settled, "every try to be over")
    assert sorted(asked) == ["both.example", "once.example"]
    assert [each["statusUpdate"]["taskId"] for each in receiver.told] == told_of[1:]
    assert receiver.headers[0]["host"] == f"once.example:{port.partition('/')[0]}"


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_receivers_that_hold_one_up(
    client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that never answers, one that answers a little now and then, endless heads: given up in time. Of an endless body nothing is read."""
    monkeypatch.setattr(webhooks, "SEND_SECONDS", 1.0)
    monkeypatch.setattr(webhooks, "MOST_TRIES", 1)
    begins = {
        "never": (b"", b""),
        "slowly": (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
        "heads": (b"HTTP/1.1 200 OK\r\n", b"X: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 1000),
        "body": (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n", b"a" * 65536),
    }

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = (await reader.readuntil(b"\r\n\r\n")).split(b"/", 1)[1].split(b" ")[0].decode()
        first, again = begins[name]
        try:
            writer.write(first)
            while again:
                await writer.drain()
                writer.write(again)
                # As slowly as the name says; the others as fast as they are read.
                await asyncio.sleep(0.05 if name == "slowly" else 0)
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        answer = await client.http.post("/a2a/demo/message:send", json=said("/call f {}"), headers=VERSION)
        path = f"/a2a/demo/tasks/{answer.json()['task']['id']}/pushNotificationConfigs"
        secret = {"token": "hush-token", "authentication": {"scheme": "Bearer", "credentials": "hush-word"}}
        for name in begins:
            config = {"id": name, "url": f"http://127.0.0.1:{port}/{name}", **secret}
            assert (await client.http.post(path, json=config, headers=VERSION)).status_code == 200
        await client.http.post(path, json={"id": "good", "url": receiver.url}, headers=VERSION)
        await told(receiver, 1)
        lines = ""

        def refused() -> set[str]:
            nonlocal lines
            lines += capsys.readouterr().out
            return {
                name for name in begins for line in lines.splitlines() if "not_told" in line and name in line
            }

        await wait_until(lambda: len(refused()) >= 3, "three to be given up")
    assert refused() == {"never", "slowly", "heads"}
    assert "hush" not in lines
    assert f":{port}" not in lines, "an address may hold what is secret, too"


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_a_task_tells_so_many(client: Client) -> None:
    """Eight; another one in the place of one of them is taken, and one more when one was deleted."""
    answer = await client.http.post("/a2a/demo/message:send", json=said("/call f {}"), headers=VERSION)
    path = f"/a2a/demo/tasks/{answer.json()['task']['id']}/pushNotificationConfigs"

    async def keep(name: str) -> int:
        config = {"id": name, "url": "https://nobody.example/"}
        return (await client.http.post(path, json=config, headers=VERSION)).status_code

    assert [await keep(f"c{number}") for number in range(9)] == [200] * 8 + [400]
    assert await keep("c3") == 200
    await client.http.delete(f"{path}/c0", headers=VERSION)
    assert (await keep("c8"), await keep("c9")) == (200, 400)


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_a_config_that_is_sent_again(client: Client, receiver: Receiver) -> None:
    """Keeps its secret; another address under its id gets the present state, too."""
    config = {"taskPushNotificationConfig": {"url": receiver.url, "id": "mine"}}
    asked = said("/call f {}", configuration=config)
    tokens = []
    for _ in range(2):
        answer = await client.http.post("/a2a/demo/message:send", json=asked, headers=VERSION)
        path = f"/a2a/demo/tasks/{answer.json()['task']['id']}/pushNotificationConfigs"
        tokens.append((await client.http.get(f"{path}/mine", headers=VERSION)).json()["token"])
    assert tokens[0] == tokens[1]
    await told(receiver, 1)
    async with receiving() as other:
        answer = await client.http.post(path, json={"url": other.url, "id": "mine"}, headers=VERSION)
        assert answer.json()["token"] not in tokens
        await told(other, 1)
    for token in ("whsec_%", "whsec_", " t"):
        answer = await client.http.post(path, json={"url": receiver.url, "token": token}, headers=VERSION)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("token: ")
    assert len(receiver.told) == 1


async def test_an_agent_that_tells_nobody(place: Any) -> None:
    """Its card says so, and configs are refused."""
    from tests.support.stack import Stack

    stack = Stack(place, published(push_notifications=False), protocols="default,a2a")
    try:
        client = await stack.front_end()
        card = (await client.http.get("/.well-known/agent-card.json")).json()
        assert card["capabilities"]["pushNotifications"] is False
        answer = await client.http.get("/a2a/demo/tasks/a~b/pushNotificationConfigs", headers=VERSION)
        assert answer.status_code == 400
        assert answer.json()["error"]["details"][0]["reason"] == "PUSH_NOTIFICATION_NOT_SUPPORTED"
    finally:
        await stack.close()
