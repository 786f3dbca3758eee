"""A bank over HTTP that commits, then stalls, if a test says so; and the agents whose tools use it.

``POST /`` books an amount; with a known ``Idempotency-Key`` it books nothing, if the bank honours keys, and answers as
it did. ``GET /KEY`` tells whether something was booked with a key.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.function import FunctionModel

from tests.support.scripted import _play
from turnstream import Outcome, current_call, effects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from turnstream import Call, Turn

ADDRESS = "TEST_BANK"


class Bank:
    """Books amounts.

    Attributes:
        bookings: the key of each booking.
        requests: key and attempt of each request to book.
        asked, booked: amount → how often it was to be booked, and was.
        stalls: how many of the next requests to book get no answer.
        stalls_first: whether the first request of each amount gets none either.
        stalled: amount whose request gets no answer → the process that made it.
        honours: whether it books once only with the same key.
        silent: whether it refuses to tell what was booked.
    """

    def __init__(self) -> None:
        self.bookings: list[str] = []
        self.requests: list[tuple[str, int]] = []
        self.asked: Counter[int] = Counter()
        self.booked: Counter[int] = Counter()
        self.stalls = 0
        self.stalls_first = False
        self.stalled: dict[int, int] = {}
        self.honours = True
        self.silent = False
        self._server: asyncio.Server | None = None
        self._closed = asyncio.Event()

    async def open(self) -> str:
        """Serve on a free port; the address."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Stop serving; requests that stall get no answer any more."""
        self._closed.set()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, path, _ = first.split(" ")
            status, text = await self._booked(headers, body) if method == "POST" else self._known(path[1:])
            if status:
                writer.write(
                    f"HTTP/1.1 {status} x\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()
                )
        finally:
            writer.close()

    async def _booked(self, headers: dict[str, str], body: bytes) -> tuple[int, str]:
        key, amount = headers["idempotency-key"], json.loads(body)["amount"]
        self.requests.append((key, int(headers["x-attempt"])))
        self.asked[amount] += 1
        if not (self.honours and key in self.bookings):
            self.bookings.append(key)
            self.booked[amount] += 1
        if self.stalls or (self.stalls_first and self.asked[amount] == 1):
            self.stalls = max(0, self.stalls - 1)
            self.stalled[amount] = int(headers["x-process"])
            await self._closed.wait()
            return 0, ""
        return 200, f"booked {amount}"

    def _known(self, key: str) -> tuple[int, str]:
        if self.silent:
            return 503, ""
        return (200, "found the booking") if key in self.bookings else (404, "")


async def _book(call: Call, amount: int, key: str = "") -> str:
    headers = {
        "Idempotency-Key": key or call.key,
        "X-Attempt": str(call.attempt),
        "X-Process": str(os.getpid()),
    }
    async with httpx.AsyncClient(timeout=None) as http:
        return (await http.post(os.environ[ADDRESS], json={"amount": amount}, headers=headers)).text


async def find(call: Call, arguments: dict[str, Any]) -> Any:
    """Ask the bank what became of a call."""
    assert (call.name, arguments) == ("book", {"amount": 5})
    return await find_any(call, arguments)


async def find_any(call: Call, arguments: dict[str, Any]) -> Any:
    """The same of any call."""
    async with httpx.AsyncClient() as http:
        found = await http.get(f"{os.environ[ADDRESS]}/{call.key}")
    if found.status_code == 503:
        return Outcome.UNKNOWN
    return found.text if found.status_code == 200 else Outcome.NOT_DONE


def find_in_a_thread(call: Call, arguments: dict[str, Any]) -> Any:
    """The same, as a plain function."""
    return f"{call.name} {arguments['amount']} was found by {call.step('look').name}"


async def find_nothing(call: Call, arguments: dict[str, Any]) -> Any:
    """Fail."""
    raise RuntimeError("the bank is closed")


teller: Agent[None, str] = Agent(FunctionModel(stream_function=_play, model_name="scripted"))


@teller.tool_plain
async def book(amount: int) -> str:
    """Book an amount."""
    return await _book(current_call(), amount)


@teller.tool_plain(requires_approval=True)
async def book_if_allowed(amount: int) -> str:
    """Book an amount, if somebody agrees."""
    return await _book(current_call(), amount)


@teller.tool_plain
@effects(on_lost="rerun")
async def book_again(amount: int) -> str:
    """Book an amount; declared as safe to repeat."""
    return await _book(current_call(), amount)


@teller.tool_plain
@effects(read_only=True)
async def look(amount: int) -> str:
    """Book an amount, and say that it does not."""
    return await _book(current_call(), amount)


@teller.tool_plain
async def book_twice(amount: int) -> str:
    """Book an amount in two steps, each with its key."""
    await _book(current_call("fee"), 1)
    return await _book(current_call("amount"), amount)


@teller.tool_plain
async def pick(amount: int) -> str:
    """Send the model back after a look at what it wants."""
    if amount == 1:
        raise ModelRetry("one is too little")
    return await _book(current_call(), amount)


# Its tools are named by what is configured for a call that was lost. Those without a key book twice whenever they run twice.
cashier: Agent[None, str] = Agent(FunctionModel(stream_function=_play, model_name="scripted"))


@cashier.tool_plain
async def rerun(amount: int) -> str:
    """Book an amount, with the call's key."""
    return await _book(current_call(), amount)


@cashier.tool_plain
async def find_out(amount: int) -> str:
    """Book an amount, with the call's key."""
    return await _book(current_call(), amount)


async def _book_without_key(amount: int) -> str:
    """Book an amount, with another key each time."""
    return await _book(current_call(), amount, secrets.token_hex(8))


for _name in ("rerun_without_key", "tell", "ask"):
    cashier.tool_plain(name=_name)(_book_without_key)


async def clerk(turn: Turn) -> AsyncIterator[Any]:
    """A coded agent that books by itself."""
    yield await _book(current_call("book"), int(turn.text))
