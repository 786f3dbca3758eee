"""What a delta costs a front end in each protocol, beside the Agent API: one POST a chat, one follower each.

The same agent says the same number of tokens at the same pace, in turns through each protocol. Counted are the frames that
bring text, so that it does not matter how many tokens came together; a long turn leaves little of what its beginning costs.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import uvloop

from bench import streams
from bench.accounts import Spent
from bench.table import Row, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.scale import Scale
    from bench.topology import Topology

CHATS = 40
TOKENS = 200
PER_SECOND = 50
ROUNDS = 4

_TOKEN = re.compile(rb"at\d{6,}")


class Protocol(NamedTuple):
    """How a protocol's client asks for a turn, and what a frame that brings text has."""

    name: str
    request: Callable[[str, str], bytes]
    delta: re.Pattern[bytes]


def _post(path: str, made: Callable[[str, str], Any], **headers: str) -> Callable[[str, str], bytes]:
    """A request whose body is made of the text and of a new name."""

    def request(key: str, text: str) -> bytes:
        return streams.head("POST", path, key, orjson.dumps(made(text, uuid.uuid4().hex)), **headers)

    return request


def _said(text: str, **more: Any) -> list[Any]:
    return [{"role": "user", "content": text, **more}]


# The first is what the others are compared with.
PROTOCOLS = (
    Protocol("Agent API", streams.post, re.compile(rb'"delta":true')),
    Protocol(
        "OpenAI's responses",
        _post("/v1/responses", lambda text, _: {"input": _said(text), "stream": True}),
        re.compile(rb"event: response\.output_text\.delta\n"),
    ),
    Protocol(
        "OpenAI's chat completions",
        _post("/v1/chat/completions", lambda text, _: {"messages": _said(text), "stream": True}),
        re.compile(rb'"delta":\{"content":"at'),
    ),
    Protocol(
        "AI SDK",
        _post(
            "/ai-sdk/chat",
            lambda text, name: {
                "id": name,
                "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": text}]}],
            },
        ),
        re.compile(rb'"type":"text-delta"'),
    ),
    Protocol(
        "AG-UI",
        _post(
            "/ag-ui",
            lambda text, name: {"threadId": name, "runId": name, "messages": _said(text, id="m")},
        ),
        re.compile(rb'"type":"TEXT_MESSAGE_CONTENT"'),
    ),
    Protocol(
        "A2A",
        _post(
            "/a2a/paced/message:stream",
            lambda text, name: {
                "message": {"messageId": name, "role": "ROLE_USER", "parts": [{"text": text}]}
            },
            a2a_version="1.0",
        ),
        # The task that a stream begins with may have the first text.
        re.compile(rb'\{"(?:artifactUpdate|task)":.*"text":"at'),
    ),
)

# For `bench.topology`.
NEEDS = {"TURNSTREAM_PROTOCOLS": "default,a2a"}


class _Cost:
    """What some rounds through one protocol came to."""

    def __init__(self, built: Topology, protocol: Protocol) -> None:
        self._built = built
        self._protocol = protocol
        self.seconds = 0.0
        self.deltas = 0
        self.bytes = 0

    def round(self, chats: int, tokens: int) -> None:
        """Have so many chats at once.

        Raises:
            AssertionError: a token is missing, or there are too many.
        """
        key = self._built.key("paced")
        asked = [self._protocol.request(key, f"{tokens} {PER_SECOND}") for _ in range(chats)]
        spent = Spent({"api": self._built.pids["api"]})
        arrived, _ = uvloop.run(streams.closed_loop(self._built.port, chats, asked))
        self.seconds += sum(spent.seconds().values())
        for each in arrived:
            body = streams.body_of(b"".join(each.chunks))
            frames = [frame for frame in body.split(b"\n\n") if self._protocol.delta.search(frame + b"\n")]
            brought = sum(len(_TOKEN.findall(frame)) for frame in frames)
            assert brought == tokens, (
                f"{self._protocol.name}: {brought} tokens, not {tokens}: {body[-300:]!r}"
            )
            self.deltas += len(frames)
            self.bytes += len(body)

    @property
    def micros(self) -> float:
        """CPU for each delta."""
        return 1e6 * self.seconds / self.deltas


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """The front end's CPU for each delta, through each protocol."""
    chats, tokens = scale.many(CHATS), TOKENS if scale.size == 1 else 10
    for protocol in PROTOCOLS:
        _Cost(built, protocol).round(min(chats, 4), 10)
    costs = [_Cost(built, protocol) for protocol in PROTOCOLS]
    for _ in range(scale.count(ROUNDS)):
        for cost in costs:
            cost.round(chats, tokens)
    for protocol, cost in zip(PROTOCOLS[1:], costs[1:], strict=True):
        row = Row(
            f"{protocol.name}: front end's CPU per delta, {chats} chats × {PER_SECOND}/s",
            cost.micros,
            "µs",
            costs[0].micros,
            PROTOCOLS[0].name,
            note=f"{number(cost.bytes / cost.deltas)} B a delta, of the Agent API {number(costs[0].bytes / costs[0].deltas)}",
        )
        yield row.ratio_at_most(1.3)
