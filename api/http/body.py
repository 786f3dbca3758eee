"""Request bodies: as large as the agent allows, not for ever, and JSON that can be read in a moment."""

from __future__ import annotations

import asyncio
import hashlib
from codecs import BOM_UTF8
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from turnstream.shared.errors import BodyTooLarge, BodyTooSlow, InvalidBody, Overloaded, TooMany

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from turnstream.api.access.auth import Caller
    from turnstream.shared.agents.config import AgentSpec
    from turnstream.shared.offload import ThreadOffload
    from turnstream.shared.settings import Settings

T = TypeVar("T")

# How long a client may take to send its body: the server itself would wait for ever.
BODY_SECONDS = 60.0

# Bodies that are being gathered and read, together: an owner's, and everybody's.
MOST_HELD_OF_OWNER = 64 * 1024 * 1024
MOST_HELD = 256 * 1024 * 1024

# Values in one body. To read, check and write one takes a microsecond or two each time, whatever it holds.
MOST_VALUES = 50_000
# Bytes of a name in an object.
MOST_NAME = 1024


class Bodies:
    """Takes the bodies of chats.

    Duties:
        1. each as large as its agent allows, and in its time;
        2. together within a number of bytes, of each owner and of all, until they have been read;
        3. read beside the event loop when they are large, an owner's one after the other.
    """

    def __init__(self, settings: Settings, offload: ThreadOffload) -> None:
        self._settings = settings
        self._aside = offload
        self._held: Counter[str] = Counter()

    def most(self, spec: AgentSpec) -> int:
        """The bytes that a body for this agent may have."""
        settings = self._settings
        return max(settings.max_body, settings.max_image_body) if spec.images else settings.max_body

    async def read(self, request: Request, caller: Caller, parse: Callable[[bytes], T]) -> tuple[bytes, T]:
        """The whole body, and what ``parse`` makes of it.

        Raises:
            BodyTooLarge: it is larger than the caller's agent takes.
            BodyTooSlow: it did not come in time.
            TooMany, Overloaded: too much is being read already.
            Others: as ``parse``.
        """
        owner = caller.owner
        most = self.most(caller.spec)
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            held += size
            self._held[owner] += size
            if self._held[owner] > MOST_HELD_OF_OWNER:
                raise TooMany("Too many large requests of this API key's owner arrive at once. Send fewer.")
            if self._held.total() > MOST_HELD:
                raise Overloaded

        try:
            body = await read_bytes(request, most, hold)
            return body, await self._aside.run_large(owner, len(body), parse, body)
        finally:
            self._held[owner] -= held
            if not self._held[owner]:
                del self._held[owner]


async def read_bytes(request: Request, most: int, hold: Callable[[int], None] = lambda _: None) -> bytes:
    """The whole body, of ``most`` bytes at most; ``hold`` is told of each piece.

    Raises:
        BodyTooLarge: it is larger.
        BodyTooSlow: it did not come in time.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > most:
        raise _too_large(most)
    # One buffer: a client that sends single bytes must not make an object of each.
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                if len(body) + len(piece) > most:
                    raise _too_large(most)
                hold(len(piece))
                body += piece
    except TimeoutError:
        raise BodyTooSlow(f"The body did not arrive within {BODY_SECONDS:.0f} seconds.") from None
    return bytes(body)


def json_object(body: bytes) -> dict[str, Any]:
    """The body's fields. A byte order mark is passed over: some platforms write one by themselves.

    Raises:
        InvalidBody: it is not a JSON object, or one of too many values; the text says where it stops being JSON.
    """
    _bounded(body)
    try:
        fields = orjson.loads(body.removeprefix(BOM_UTF8))
    except orjson.JSONDecodeError as error:
        if not body.strip():
            raise InvalidBody("The body is empty: send a JSON object.") from None
        raise InvalidBody(
            f"The body is not JSON in UTF-8: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    if not isinstance(fields, dict):
        raise InvalidBody("The body is not a JSON object.")
    return fields


def digest_of(asked: Any, body: bytes) -> str:
    """A digest of what is asked, the same however its JSON is written; of the body where that is nested too deeply."""
    try:
        text = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        text = body
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _bounded(body: bytes) -> None:
    """Refuse what would take long to read, having counted what stands between the strings.

    Some passes over the bytes: whatever they are, ten mebibytes take some tens of milliseconds. Most bodies have fewer
    bytes than a body may have values, or a name.
    """
    if len(body) <= MOST_NAME:
        return
    flat = body.replace(rb"\\", b"__").replace(rb"\"", b"__") if b"\\" in body else body
    if flat.count(b'"') > 4 * MOST_VALUES:
        raise _too_many_values()
    pieces = flat.split(b'"')
    strings, between = pieces[1::2], pieces[::2]
    if len(body) > MOST_VALUES:
        structure = b"".join(between)
        if sum(map(structure.count, (b",", b"[", b"{"))) > MOST_VALUES:
            raise _too_many_values()
    if strings and max(map(len, strings)) > MOST_NAME:
        for string, after in zip(strings, between[1:], strict=False):
            if len(string) > MOST_NAME and after.lstrip()[:1] == b":":
                raise InvalidBody(f"The body has a field whose name is longer than {MOST_NAME} bytes.")


def _too_many_values() -> InvalidBody:
    return InvalidBody(
        f"The body has more than {MOST_VALUES} JSON values: send less at once, or large data as one string."
    )


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than the {most} bytes that are taken here.")
