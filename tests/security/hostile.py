"""Bodies that are made to cost a front end as much as they can, and a watch that tells what they cost others."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import orjson

from tests.support.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1024 * 1024

# Between two questions of the watch.
LOOK_SECONDS = 0.01

# How long anybody waits for an answer before the test gives up.
PATIENCE_SECONDS = 60


class Watch:
    """Asks a front end for its health, over and over, on a connection and a thread of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._worst = 0.0
        self._asked = 0.0
        self._answers = 0
        self._answered = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join()

    def at_rest(self) -> float:
        """The longest of a hundred answers while nothing is done."""
        enough = self._answers + 100
        return self.worst(lambda: block_until(lambda: self._answers >= enough, "answers", PATIENCE_SECONDS))

    def worst(self, during: Callable[[], object]) -> float:
        """The longest that an answer took while something was done, and a moment after."""
        self._worst = 0.0
        during()
        ended = time.monotonic()
        with self._answered:
            # The question that was on its way may take as long as the next one.
            answered = self._answered.wait_for(lambda: self._asked >= ended, 2 * PATIENCE_SECONDS)
        assert answered, f"no answer within {PATIENCE_SECONDS} s"
        return self._worst

    def _run(self) -> None:
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_SECONDS)
        with connection:
            while not self._stopping:
                begun = time.monotonic()
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                answer = b""
                while b'{"status":"up"}' not in answer:
                    answer += connection.recv(65536)
                self._worst = max(self._worst, time.monotonic() - begun)
                with self._answered:
                    self._asked = begun
                    self._answers += 1
                    self._answered.notify()
                time.sleep(LOOK_SECONDS)


def send(port: int, path: str, key: str, body: bytes) -> int:
    """Send a body; the answer's status. What comes after its head is not read."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as connection:
        # Refused before it was all there, perhaps; why is in the answer.
        with suppress(ConnectionError):
            connection.sendall(head.encode() + body)
        return int(connection.makefile("rb").readline().split()[1])


def turn(*parts: Any, **fields: Any) -> bytes:
    """A body of ``/process`` with one message of these parts."""
    return orjson.dumps({"input": [{"role": "user", "content": list(parts) or ["hi"]}], **fields})


def around(inner: bytes) -> bytes:
    """A body of ``/process`` with one data part that holds this JSON."""
    return b'{"input":[{"role":"user","content":[{"type":"data","data":{"a":%b}}]}]}' % inner


def tool(name: str, properties: Any) -> dict[str, Any]:
    """A client's function."""
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }


def named(count: int, value: Any = None) -> dict[str, Any]:
    """An object of so many short names."""
    return {f"k{number}": value for number in range(count)}


TEXT = {"type": "text", "text": "hi"}
WRONG = {
    "type": "text",
    "text": 1,
    "status": 1,
    "index": "x",
    "delta": 5,
    "msg_id": 1,
    "object": 1,
    "error": 1,
}

# What each of them once cost, or would: from half a second to hours.
KNOWN: dict[str, Callable[[], bytes]] = {
    "a long name of a null": lambda: turn(**{"A" * MIB: None}),
    "a long name in a part": lambda: turn({**TEXT, "Ab" * (MIB // 2): None}),
    "many names of nulls": lambda: turn(**named(600_000)),
    "many nulls in parts": lambda: turn(*({**TEXT, **named(300)} for _ in range(1500))),
    "tools of nothing": lambda: turn(tools=[1] * 1_000_000),
    "tools of nothing, ten mebibytes": lambda: turn(tools=[1] * 5_000_000),
    "tools of nothing, as many as are read": lambda: turn(tools=[1] * 49_000),
    "many stops": lambda: turn(stop=[1] * 1_000_000),
    "many stops, as many as are read": lambda: turn(stop=[1] * 49_000),
    "stops that are texts": lambda: turn(stop=["x"] * 1_000_000),
    "what a tool requires": lambda: turn(
        tools=[{"type": "function", "function": {"name": "f", "description": "", "parameters": {
            "type": "object", "properties": {}, "required": [1] * 45_000}}}]
    ),
    "many schemas": lambda: turn(tools=[tool(f"f{n}", named(900, {})) for n in range(5)] + [tool("x x", {})]),
    "many schemas, a little less": lambda: turn(
        tools=[tool(f"f{n}", named(380, {"type": "string"})) for n in range(5)] + [tool("x x", {})]
    ),
    "many patterns": lambda: turn(
        tools=[
            tool(f"f{n}", {f"p{at}": {"pattern": f"[a-z]{{{n},{200 + at}}}.{{900}}"} for at in range(16)})
            for n in range(100)
        ]
        + [tool("x x", {})]
    ),
    "small names, eight mebibytes": lambda: turn({"type": "data", "data": named(700_000, 1)}),
    "the same name again": lambda: b'{"input":["hi"],' + b'"a":1,' * (MIB * 8 // 6) + b'"a":1}',
    "deep": lambda: around(b"[" * 4 * MIB + b"]" * 4 * MIB),
    "deep objects": lambda: around(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "wide": lambda: around(b"[" + b"[]," * (3 * MIB) + b"[]]"),
    "wide, as much as passes": lambda: around(b"[" + b"{}," * 24_000 + b"{}]"),
    "a long number": lambda: around(b"1" * (10 * MIB - 200)),
    "a long fraction": lambda: around(b"0." + b"1" * (10 * MIB - 200)),
    "many numbers": lambda: around(b"[" + b"1," * (5 * MIB - 200) + b"1]"),
    "many parts": lambda: turn(*[TEXT] * 2000),
    "too many parts": lambda: turn(*[TEXT] * 200_000),
    "many messages": lambda: orjson.dumps({"input": [{"role": "user", "content": [TEXT, TEXT]}] * 1000}),
    "many wrong parts": lambda: turn(*[WRONG] * 2000),
    "many wrong messages": lambda: orjson.dumps({"input": [1] * 1000}),
    "an image": lambda: turn({"type": "image", "image_url": "data:image/png;base64," + "QUJD" * (5 * MIB // 2 - 100)}),
    "escapes": lambda: b'{"input":["' + rb"\u00e9" * (10 * MIB // 6 - 20) + b'"]}',
    "backslashes": lambda: b'{"input":["' + rb"\\" * (5 * MIB - 20) + b'"]}',
    "quotes": lambda: b'{"input":["' + rb"\"" * (5 * MIB - 20) + b'"]}',
    "bare quotes": lambda: b'"' * (10 * MIB - 1),
    "other letters": lambda: turn({"type": "text", "text": "\u00e9" * (5 * MIB - 200)}),
    "spaces": lambda: b" " * (10 * MIB - 10) + b"{}",
    "spaces after strings": lambda: b'{"a":["' + b'x"          ,"' * (10 * MIB // 14) + b'"]}',
}  # fmt: skip

CHAT: dict[str, Callable[[], bytes]] = {
    "many wrong contents": lambda: orjson.dumps({"content": [1] * 1_000_000}),
    "many contents": lambda: orjson.dumps({"content": ["x"] * 2000}),
    "a long name": lambda: orjson.dumps({"content": ["x"], "A" * MIB: None}),
    "a long task": lambda: orjson.dumps({"content": ["x"], "taskId": "x" * 4 * MIB}),
}


def generated(chance: random.Random) -> Iterator[bytes]:
    """Bodies of random shape that grow to the largest that is taken, for ever."""
    while True:
        budget = int(2 ** chance.uniform(14, 23.3))
        field = chance.choice(
            (
                "input",
                "tools",
                "stop",
                "metadata",
                "model",
                "A" * chance.randrange(1, 2000),
                "parts",
                "messages",
            )
        )
        value = _value(chance, budget)
        if field == "parts":
            yield b'{"input":[{"role":"user","content":[%b]}]}' % value
        elif field == "messages":
            yield b'{"input":[{"role":"user","content":"x"},%b]}' % value
        else:
            yield b'{"input":[{"role":"user","content":"x"}],"%b":%b}' % (
                field.encode(),
                value,
            )


def _value(chance: random.Random, budget: int) -> bytes:
    """JSON of about so many bytes: few large things, or many small ones of one or two kinds."""
    kind = chance.randrange(9)
    if kind == 0:
        return (
            b'"'
            + chance.choice((b"x", b"A", rb"\n", rb"\u00e9", "\u20ac".encode(), b"aB")) * (budget // 3)
            + b'"'
        )
    if kind == 1:
        return chance.choice((b"", b"-", b"0.", b"1e")) + b"1" * budget
    if kind == 2:
        levels = chance.choice((10, 60, 200, 1000, budget // 2))
        return b"[" * levels + b"]" * levels
    atom = chance.choice(
        (
            b"1", b"null", b'""', b"{}", b"[]", b"1.5", b'"AbC"', b'{"type":"text","text":5}', b'{"type":"text"}',
            b'{"type":"data","data":{"a":null}}', b'{"role":"user","content":["x"]}', b'{"a":[null,1]}',
            b'{"type":"function","function":{"name":"a","parameters":{"type":"object","properties":{"a":{}}}}}',
        )
    )  # fmt: skip
    if kind < 6:
        count = max(1, budget // (len(atom) + 1))
        return b"[" + b",".join([atom] * chance.choice((count, min(count, 2000), min(count, 16000)))) + b"]"
    count = max(1, budget // (len(atom) + 10))
    style = chance.choice(("k%d", "aB%dCd", "AAAAAAAA%d", "a_b_%d"))
    names = (style % number for number in range(chance.choice((count, min(count, 12_000)))))
    return b"{" + b",".join(b'"%b":%b' % (name.encode(), atom) for name in names) + b"}"
