"""What an attacker with an ordinary key does, each kind of attack as one coroutine that goes on until it is cancelled.

A process of its own, at the lowest weight, so that the machine's time goes to the deployment, not to the attacker:
``python -m tests.security.siege.attacks NAME --url … --key … --parallel-key …``
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import orjson

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MIB = 2**20

# By then the events of a turn that ended are cut, in a siege.
CUT_SECONDS = 8


@dataclass
class Attacker:
    """One attacker: an HTTP client that expects nothing, and raw sockets.

    Attributes:
        url: where the deployment listens (its proxy).
        direct: a front end itself, past the proxy.
        key: an ordinary chat key of the demo agent.
        parallel_key: the same owner's key for an agent whose sessions run turns side by side.
        answers: status → how many requests got it; 0: no answer.
    """

    url: str
    direct: str
    key: str
    parallel_key: str
    answers: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.http = httpx.AsyncClient(
            timeout=60,
            trust_env=False,
            verify=False,
            limits=httpx.Limits(max_connections=400, max_keepalive_connections=50),
        )

    async def send(
        self, method: str, path: str, body: bytes | None = None, **given: Any
    ) -> httpx.Response | None:
        """One request, its whole answer; None when there is none."""
        key = given.pop("key", self.key)
        base = given.pop("base", self.url)
        headers = {"Authorization": f"Bearer {key}", **given.pop("headers", {})}
        try:
            answer = await self.http.request(method, base + path, content=body, headers=headers, **given)
        except httpx.HTTPError:
            self.answers[0] = self.answers.get(0, 0) + 1
            return None
        self.answers[answer.status_code] = self.answers.get(answer.status_code, 0) + 1
        return answer

    async def turn(self, session: str | None, content: Any, **given: Any) -> httpx.Response | None:
        """One turn, not streamed."""
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        body = {"input": [{"role": "user", "content": parts}], "stream": False}
        if session is not None:
            body["session_id"] = session
        return await self.send("POST", "/process", orjson.dumps(body), **given)

    async def begin(self, session: str | None, text: str, **given: Any) -> None:
        """Begin a turn and leave at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self.turn(session, text, **given)

    async def raw(self, base: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection."""
        parts = urlsplit(base or self.url)
        return await asyncio.open_connection(parts.hostname, parts.port)

    async def drip(self, head: bytes, base: str = "", seconds: float = 5.0) -> None:
        """Send a head, then a byte now and then, until the other side has enough."""
        with suppress(OSError):
            _, writer = await self.raw(base)
            try:
                writer.write(head)
                while True:
                    await writer.drain()
                    await asyncio.sleep(seconds)
                    writer.write(b"x")
            finally:
                writer.close()


async def at_once(width: int, action: Callable[[], Awaitable[Any]]) -> None:
    """Do it again and again, ``width`` at once."""

    async def lane() -> None:
        while True:
            await action()
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as lanes:
        for _ in range(width):
            lanes.create_task(lane())


def asked(text: str, **more: Any) -> bytes:
    """A body of `/process`."""
    return orjson.dumps({"input": [{"role": "user", "content": [{"type": "text", "text": text}]}], **more})


def image(size: int) -> list[dict[str, str]]:
    """An image part of about ``size`` bytes, unlike any other."""
    data = base64.b64encode(secrets.token_bytes(size * 3 // 4)).decode()
    return [{"type": "image", "image_url": f"data:image/png;base64,{data}"}]


# ── bodies that are dear to read ──


async def names(attacker: Attacker) -> None:
    """Long names with null, at the top and within."""
    sizes = itertools.cycle([16_000, 64_000, 1_000_000])

    async def one() -> None:
        name = "A" * next(sizes)
        for body in (b'{"%s":null}' % name.encode(), b'{"input":[{"%s":null}]}' % name.encode()):
            await attacker.send("POST", "/process", body)

    await at_once(3, one)


async def lists(attacker: Attacker) -> None:
    """Lists of what is wrong, or merely many."""
    half = 2**19 - 100
    bodies = itertools.cycle(
        [
            asked("x", tools=[1] * (half // 2)),
            asked("x", stop=[1] * (half // 2)),
            orjson.dumps({"input": [1] * (half // 2)}),
            orjson.dumps({"input": [{"role": "user", "content": [{"type": "text"}] * (half // 16)}]}),
            b'{"input":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
            b"{" + b",".join(b'"k%d":%d' % (n, n) for n in range(60_000)) + b"}",
        ]
    )
    await at_once(3, lambda: attacker.send("POST", "/process", next(bodies)))


async def large_bodies(attacker: Attacker) -> None:
    """Bodies as large as an agent with images allows, full of small things."""
    keys = (
        b'{"input":[{"role":"user","content":[{"type":"text","text":"x"}]}],'
        + b",".join(b'"k%d":%d' % (n, n) for n in range(450_000))
        + b"}"
    )
    numbers = orjson.dumps({"input": [1] * (4 * MIB)})
    bodies = itertools.cycle([keys, numbers])
    await at_once(2, lambda: attacker.send("POST", "/process", next(bodies)))


async def schemas(attacker: Attacker) -> None:
    """Tools whose schemas are dear to check, and the last of which is wrong."""

    def tool(number: int, parameters: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": f"f{number}", "parameters": parameters}}

    patterns = {
        "type": "object",
        "properties": {
            f"p{n}": {"type": "string", "pattern": f"^(a|b){{1,{n + 2}}}[a-z]*{n}$"} for n in range(16)
        },
    }
    deep = {"type": "object", "properties": {f"p{n}": {"type": "object"} for n in range(900)}}
    bodies = itertools.cycle(
        [
            asked("x", tools=[*(tool(n, patterns) for n in range(100)), tool(100, {"type": "nothing"})]),
            asked("x", tools=[*(tool(n, deep) for n in range(5)), tool(5, {"type": "nothing"})]),
        ]
    )
    await at_once(3, lambda: attacker.send("POST", "/process", next(bodies)))


# ── what is kept ──


async def fat_memory(attacker: Attacker) -> None:
    """One session with large images, then words that make a worker load what was said before."""
    session = f"fat-{secrets.token_hex(4)}"
    while True:
        for _ in range(6):
            await attacker.turn(session, image(7 * MIB))
        for _ in range(3):
            await attacker.turn(session, "word")


async def fill(attacker: Attacker) -> None:
    """New sessions with large images, and empty ones, until nothing more is taken."""

    async def large() -> None:
        answer = await attacker.turn(None, image(7 * MIB))
        if answer is None or answer.status_code != 200:
            await asyncio.sleep(0.2)

    async def empty() -> None:
        await attacker.send("POST", "/liteAgent/v1/initSession", b"{}")

    async with asyncio.TaskGroup() as both:
        both.create_task(at_once(2, large))
        both.create_task(at_once(2, empty))


async def histories(attacker: Attacker) -> None:
    """A session with a long history, asked for by many at once."""
    session = f"long-{secrets.token_hex(4)}"
    for _ in range(16):
        await attacker.turn(session, "word " * 150_000)
    await at_once(
        8,
        lambda: attacker.send("GET", f"/liteAgent/v1/history?sessionId={session}", headers={"Accept": "*/*"}),
    )


# ── turns ──


async def slots(attacker: Attacker) -> None:
    """As many slow turns as there are slots, and more."""
    for number in itertools.count():
        await asyncio.gather(*(attacker.begin(None, "/slow 25") for _ in range(20)))
        if number >= 12:
            await asyncio.sleep(5)


async def backlog(attacker: Attacker) -> None:
    """Short turns, as many as are taken."""
    await at_once(24, lambda: attacker.turn(None, "/tokens 5"))


async def siblings(attacker: Attacker) -> None:
    """Parked turns in one session that runs them side by side, then one stop for all of them."""
    while True:
        session = f"many-{secrets.token_hex(4)}"
        for _ in range(60):
            await asyncio.gather(
                *(attacker.turn(session, "/call f {}", key=attacker.parallel_key) for _ in range(16))
            )
        await attacker.send("POST", f"/liteAgent/v1/stop?sessionId={session}", key=attacker.parallel_key)


async def pairs(attacker: Attacker) -> None:
    """The same new id twice at once, one of them under a key that stands for another turn."""
    await attacker.send("POST", "/process", asked("first", stream=False), headers={"Idempotency-Key": "old"})

    async def pair() -> None:
        name = secrets.token_hex(6)
        body = asked("/slow 5", stream=False, id=name, session_id=f"p-{name}")
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.gather(
                    attacker.send("POST", "/process", body, headers={"Idempotency-Key": "old"}),
                    attacker.send("POST", "/process", body),
                )

    await at_once(4, pair)


# ── readers ──


async def stalled(attacker: Attacker) -> None:
    """Readers of a full log who do not read."""
    session = f"full-{secrets.token_hex(4)}"
    for _ in range(4):
        await attacker.turn(session, "/tokens 4000")
    head = f"GET /process?session_id={session} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {attacker.key}\r\n\r\n"

    async def reader() -> None:
        with suppress(OSError):
            stream, writer = await attacker.raw()
            writer.write(head.encode())
            with suppress(TimeoutError):
                async with asyncio.timeout(15):
                    while await stream.read(1024):
                        await asyncio.sleep(3)
            writer.close()

    await at_once(120, reader)


async def fan_out(attacker: Attacker) -> None:
    """Many followers of one session in which large events are made."""
    session = f"wide-{secrets.token_hex(4)}"
    await attacker.turn(session, "hello")

    async def follow() -> None:
        with suppress(httpx.HTTPError):
            async with attacker.http.stream(
                "GET",
                f"{attacker.url}/process?session_id={session}",
                headers={"Authorization": f"Bearer {attacker.key}"},
            ) as stream:
                async for _ in stream.aiter_raw():
                    pass
        await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as both:
        both.create_task(at_once(150, follow))
        both.create_task(at_once(1, lambda: attacker.turn(session, "word " * 150_000)))


async def returning(attacker: Attacker) -> None:
    """Coming back to turns whose events were cut long ago."""
    names = [secrets.token_hex(4) for _ in range(6)]
    cursors = {}
    for name in names:
        answer = await attacker.send(
            "POST", "/process", asked("hello there", session_id=f"r-{name}", id=name)
        )
        if answer is not None:
            ids = [line[4:] for line in answer.text.splitlines() if line.startswith("id: ")]
            cursors[name] = ids[len(ids) // 2] if ids else ""
    await asyncio.sleep(CUT_SECONDS)

    async def back() -> None:
        name = secrets.choice(names)
        cursor = secrets.choice(["", cursors.get(name, "")])
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                await attacker.send(
                    "GET",
                    f"/process?session_id=r-{name}&response_id={name}",
                    headers={"Last-Event-ID": cursor} if cursor else {},
                )

    await at_once(6, back)


# ── connections ──


async def uploads(attacker: Attacker) -> None:
    """Large bodies without a key that never end, at the proxy."""
    head = b"POST /process HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n" + b"x" * 2_000_000
    await at_once(60, lambda: attacker.drip(head))


async def drips(attacker: Attacker) -> None:
    """Half a head, half a body, and bytes after an answer, at the proxy and past it."""
    heads = itertools.cycle(
        [
            b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ",
            b"POST /process HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        ]
    )
    async with asyncio.TaskGroup() as both:
        both.create_task(at_once(80, lambda: attacker.drip(next(heads), attacker.url, 3)))
        both.create_task(at_once(80, lambda: attacker.drip(next(heads), attacker.direct, 3)))


async def heads(attacker: Attacker) -> None:
    """Huge heads, at the proxy and past it."""
    many = {f"X-{number}": "y" * 50 for number in range(20_000)}
    huge = {"X-Large": "y" * (8 * MIB)}
    kinds = itertools.cycle([many, huge])
    bases = itertools.cycle([attacker.url, attacker.direct])
    await at_once(2, lambda: attacker.send("GET", "/healthz", base=next(bases), headers=next(kinds)))


ATTACKS: dict[str, Callable[[Attacker], Awaitable[None]]] = {
    attack.__name__: attack
    for attack in (
        names,
        lists,
        large_bodies,
        schemas,
        heads,
        drips,
        uploads,
        pairs,
        returning,
        stalled,
        fan_out,
        histories,
        siblings,
        slots,
        backlog,
        fat_memory,
        fill,
    )
}


# What they send never comes to an end, or is not counted.
WITHOUT_ANSWERS = {"drips", "uploads"}


async def _attack(name: str, attacker: Attacker, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ATTACKS[name](attacker)


def _step_back() -> None:
    """Take a tenth of the weight of any other process: an attacker has a machine of its own.

    Not less: a deployment that is busy would leave it nothing, and the attack would not take place.
    """
    os.nice(10)
    # Where the kernel weighs sessions, a process' own weight counts within its session only.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("10")


def main() -> None:
    """Say when it begins, attack for a time, then print what was answered."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=ATTACKS)
    for option in ("url", "direct", "key", "parallel-key"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    _step_back()
    attacker = Attacker(given.url, given.direct, given.key, given.parallel_key)
    print("begins", flush=True)
    try:
        asyncio.run(_attack(given.name, attacker, given.seconds))
    finally:
        print(
            orjson.dumps({str(status): count for status, count in sorted(attacker.answers.items())}).decode()
        )


if __name__ == "__main__":
    main()
