"""Tells webhooks of their tasks: that the client is asked, and that the task has ended.

Every worker does so. They share the hints in ``ts:webhooks``; taking one dates it anew, later than a message may take, so that
two rarely tell the same, and nothing is lost with a worker that is killed. What is told is the state that the task has when
somebody looks (`turnstream.shared.session.webhooks`), and it is told until the receiver has taken it, or has refused it too often.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpcore
import orjson
import structlog

from turnstream.shared import metrics
from turnstream.shared.broker.client import now_ms
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.errors import BrokerAway
from turnstream.shared.session.status import TaskStatus
from turnstream.shared.session.webhooks import Told, Webhooks
from turnstream.shared.version import VERSION
from turnstream.shared.webhooks import SECRET, Address, is_reachable, networks_of, signed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis.asyncio import Redis

    from turnstream.shared.session.tasks import Tasks
    from turnstream.shared.session.webhooks import Look, State, Webhook
    from turnstream.shared.settings import Settings
    from turnstream.shared.webhooks import Networks

log = structlog.get_logger(__name__)

# Between two looks at the hints; while there are none, it is longer.
LOOK_SECONDS = 1.0
IDLE_SECONDS = 3.0

# Tasks looked at side by side.
LOOKS = 512

# Messages under way at once, in all and of one owner: receivers may take their time, and it is not others' time.
AT_ONCE = 256
OF_ONE_OWNER = 16

# Names looked up at once, in all and of one owner: a name whose servers are silent takes longer than anyone waits for it.
LOOKUPS = 128
LOOKUPS_OF_ONE_OWNER = 16

# For one message.
SEND_SECONDS = 10.0

# Addresses of one name that are tried.
MOST_ADDRESSES = 3

# A hint that was taken is due again after this, should the worker die with it: when all that it began is over.
AGAIN_MS = 15_000

# How soon a message that failed is sent again, each wait three times the one before, and how often it is tried at all: for 25
# minutes or so.
FIRST_RETRY_MS = 2_000
MOST_RETRY_MS = 600_000
MOST_TRIES = 8

# Between two looks at a task that goes on: a tenth of the time for which it has, within these.
SOONEST_MS = 1_000
LATEST_MS = 15_000

_STATES = {
    TaskStatus.PARKED.value: "TASK_STATE_INPUT_REQUIRED",
    TaskStatus.COMPLETED.value: "TASK_STATE_COMPLETED",
    TaskStatus.FAILED.value: "TASK_STATE_FAILED",
    TaskStatus.CANCELED.value: "TASK_STATE_CANCELED",
}


class UnreachableError(Exception):
    """Nothing may be sent there."""


class Courier:
    """Looks at the tasks that are due, and tells."""

    def __init__(self, primary: Redis, tasks: Tasks, settings: Settings) -> None:
        self._webhooks = Webhooks(primary, tasks).once
        self._primary = primary
        self._networks = networks_of(settings.webhook_networks or "")
        self._attending: dict[bytes, asyncio.Task[None]] = {}
        # By owner: messages under way, and tasks for which there was no room since the latest look.
        self._sending: Counter[str] = Counter()
        self._passed_over: Counter[str] = Counter()
        self._lookups = Lookups()
        self._context: ssl.SSLContext | None = None

    async def tend(self) -> None:
        """Do so for ever; to be run as a task."""
        try:
            while True:
                try:
                    seconds = await self._look()
                except Exception as error:
                    seconds = IDLE_SECONDS
                    if not _is_the_brokers(error):
                        log.exception("webhooks.failed")
                await asyncio.sleep(seconds)
        finally:
            attending = [*self._attending.values()]
            for each in attending:
                each.cancel()
            await asyncio.gather(*attending, return_exceptions=True)

    async def _look(self) -> float:
        """Begin to attend to what is due; seconds until the next look."""
        if not await self._webhooks.any():
            return IDLE_SECONDS
        self._passed_over.clear()
        room = LOOKS - len(self._attending)
        if room > 0:
            taken, due = await self._webhooks.due(room, AGAIN_MS)
            for hint in due:
                if hint not in self._attending:
                    self._attending[hint] = asyncio.create_task(self._attend(hint, taken), name="webhook")
        return LOOK_SECONDS

    async def _attend(self, hint: bytes, taken: int) -> None:
        """See to one task; nothing is raised, whatever is wrong with it."""
        try:
            try:
                ref = TaskRef.parse(hint)
            except ValueError:
                metrics.unreadable.add("webhook hint")
                await self._webhooks.forget(hint)
                return
            await self._webhooks.redate(ref, await self._tell(ref), taken)
        except Exception as error:
            if not _is_the_brokers(error):
                log.exception("webhooks.task_failed", hint=repr(hint[:80]))
        finally:
            del self._attending[hint]

    async def _tell(self, ref: TaskRef) -> int:
        """Tell whom there is to tell of a task; ms until it is to be looked at again, negative: never."""
        look = await self._webhooks.look(ref)
        if look is None:
            return -1
        now = await now_ms(self._primary)
        waits: list[int] = []
        if look.state is not None:
            owed, waits = _owed(look.webhooks, look.state, now)
            if wait := self._no_room(ref.owner, len(owed)):
                return wait
            waits += await self._told_all(ref, owed, look.state, now)
        if soonest := [wait for wait in waits if wait > 0]:
            return min(soonest)
        return -1 if look.over else _patience(look, now)

    def _no_room(self, owner: str, count: int) -> int:
        """0 if so many messages may be sent for an owner now; else in how many ms to see again.

        Its tasks for which there is none come back one after the other, so that they do not take all looks.
        """
        fits = self._sending[owner] + count <= OF_ONE_OWNER and self._sending.total() + count <= AT_ONCE
        if not count or fits:
            return 0
        self._passed_over[owner] += 1
        return SOONEST_MS * (1 + self._passed_over[owner] // OF_ONE_OWNER)

    async def _told_all(
        self, ref: TaskRef, owed: list[tuple[Webhook, int]], state: State, now: int
    ) -> list[int]:
        """Tell them, side by side; ms until the next try of each, 0: there is none."""
        self._sending[ref.owner] += len(owed)
        try:
            waits = await asyncio.gather(
                *(self._told(ref, webhook, tries, state, now) for webhook, tries in owed),
                return_exceptions=True,
            )
        finally:
            self._sending -= Counter({ref.owner: len(owed)})
        for wait in waits:
            if isinstance(wait, BaseException):
                raise wait
        return [wait for wait in waits if not isinstance(wait, BaseException)]

    async def _told(self, ref: TaskRef, webhook: Webhook, tries: int, state: State, now: int) -> int:
        """Tell one of them, which was tried so often; ms until the next try, 0: there is none."""
        problem = await self._sent(ref, webhook, state)
        if not problem:
            metrics.webhooks.add("told")
            await self._webhooks.note(ref, webhook.id, Told(state.mark))
            return 0
        tries += 1
        wait = min(FIRST_RETRY_MS * 3 ** (tries - 1), MOST_RETRY_MS) if tries < MOST_TRIES else 0
        metrics.webhooks.add("failed" if wait else "given_up")
        # The address is the client's word, and may hold what is secret.
        log.info(
            "webhook.not_told",
            ref=str(ref),
            webhook=webhook.id,
            problem=problem,
            tries=tries,
            again=bool(wait),
        )
        await self._webhooks.note(ref, webhook.id, Told(state.mark, tries, now + wait if wait else 0))
        return wait

    async def _sent(self, ref: TaskRef, webhook: Webhook, state: State) -> str:
        """Send a message; empty, or why it was not taken."""
        body = orjson.dumps(_message(ref, state))
        name = f"{ref.task}.{webhook.id}.{state.mark}"
        headers = {
            "content-type": "application/a2a+json",
            "user-agent": f"turnstream/{VERSION}",
            "a2a-version": "1.0",
            **({} if webhook.token.startswith(SECRET) else {"x-a2a-notification-token": webhook.token}),
            **signed(webhook.token, name, int(time.time()), body),
        }
        if webhook.scheme:
            headers["authorization"] = f"{webhook.scheme} {webhook.credentials}".strip()
        try:
            address = Address.parse(webhook.url, self._networks)
            async with asyncio.timeout(SEND_SECONDS):
                status = await self._posted(ref.owner, address, headers, body)
        except (UnreachableError, ValueError):
            return "the address is not one where anything may be sent"
        except TimeoutError:
            return "no answer in time"
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            return type(error).__name__
        # A redirect would lead to an address that nobody has checked.
        return "" if 200 <= status < 300 else f"status {status}"

    async def _posted(self, owner: str, address: Address, headers: dict[str, str], body: bytes) -> int:
        """Send a request; its status. Of the answer's body nothing is read."""
        if address.tls and self._context is None:
            self._context = await asyncio.to_thread(ssl.create_default_context)
        url = httpcore.URL(
            scheme=b"https" if address.tls else b"http",
            host=address.host.encode(),
            port=address.port,
            target=address.target.encode(),
        )
        fields = [(b"host", address.authority.encode())]
        fields += [(name.encode(), value.encode()) for name, value in headers.items()]
        fields.append((b"content-length", str(len(body)).encode()))
        # One for each message: a connection that is kept might be to what the name meant before.
        async with (
            httpcore.AsyncHTTPConnection(
                url.origin,
                ssl_context=self._context if address.tls else None,
                network_backend=Checked(self._networks, self._lookups, owner, tls=address.tls),
            ) as connection,
            connection.stream("POST", url, headers=fields, content=body) as response,
        ):
            return response.status


class Lookups:
    """Resolves names, each in a thread of its own, which neither the worker's other work nor its end waits for."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()

    async def addresses(self, owner: str, host: str, port: int) -> list[str]:
        """What a name resolves to.

        Raises:
            OSError, UnicodeError: it does not.
            TimeoutError: too many of the owner's names are being resolved.
        """
        if self._running[owner] >= LOOKUPS_OF_ONE_OWNER or self._running.total() >= LOOKUPS:
            raise TimeoutError
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[str]] = loop.create_future()

        def settle(found: list[str] | OSError | UnicodeError) -> None:
            self._running -= Counter([owner])
            if done.done():
                return
            if isinstance(found, list):
                done.set_result(found)
            else:
                done.set_exception(found)

        def resolve() -> None:
            found: list[str] | OSError | UnicodeError
            try:
                infos = socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)
                found = list(dict.fromkeys(str(each[4][0]) for each in infos))
            except (OSError, UnicodeError) as error:
                found = error
            # The loop may have ended.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, found)

        self._running[owner] += 1
        threading.Thread(target=resolve, name="webhook lookup", daemon=True).start()
        return await done


class Checked(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were looked at: a name is resolved once, and what it resolved to is connected to."""

    def __init__(self, networks: Networks, lookups: Lookups, owner: str, *, tls: bool) -> None:
        self._networks = networks
        self._lookups = lookups
        self._owner = owner
        self._tls = tls
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to where the name leads.

        Raises:
            UnreachableError: it leads, also, to where nothing may be sent.
        """
        addresses = await self._lookups.addresses(self._owner, host, port)
        if not addresses or not all(is_reachable(each, self._networks, tls=self._tls) for each in addresses):
            raise UnreachableError
        # One that does not answer, as where the machine has no IPv6, is no reason not to ask the next one.
        *others, last = addresses[:MOST_ADDRESSES]
        for address in others:
            with suppress(httpcore.ConnectError):
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
        return await self._inner.connect_tcp(last, port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


def _message(ref: TaskRef, state: State) -> dict[str, Any]:
    """What is said of a task, as A2A has it: what it is now. The rest is got with a key."""
    at = (
        datetime.fromtimestamp(state.at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
    status = {"state": _STATES[state.status], "timestamp": at}
    return {
        "statusUpdate": {"taskId": f"{ref.session}~{ref.task}", "contextId": ref.session, "status": status}
    }


def _owed(
    webhooks: list[tuple[Webhook, Told]], state: State, now: int
) -> tuple[list[tuple[Webhook, int]], list[int]]:
    """Webhooks to send a state to now, and how often that failed before; in how many ms the others are to be tried again."""
    owed: list[tuple[Webhook, int]] = []
    waits: list[int] = []
    for webhook, told in webhooks:
        if told.mark != state.mark:
            owed.append((webhook, 0))
        elif told.at > now:
            waits.append(told.at - now)
        elif told.at:
            owed.append((webhook, told.tries))
    return owed, waits


def _patience(look: Look, now: int) -> int:
    return max(SOONEST_MS, min(LATEST_MS, (now - look.since) // 10))


def _is_the_brokers(error: Exception) -> bool:
    return is_transient(error) or isinstance(error, BrokerAway)
