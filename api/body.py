"""Request bodies: as large as the agent allows, not for ever, and JSON objects."""

from __future__ import annotations

import asyncio
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any

import orjson

from shared.errors import BadRequest, BodyTooLarge, InvalidBody

if TYPE_CHECKING:
    from starlette.requests import Request

    from shared.agents import AgentSpec
    from shared.settings import Settings

# How long a client may take to send its body: the server itself would wait for ever.
BODY_SECONDS = 60.0


async def read_body(request: Request, settings: Settings, spec: AgentSpec) -> bytes:
    """The whole body.

    Raises:
        BodyTooLarge: it is larger than this agent takes.
        BadRequest: it did not come in time.
    """
    return await read_bytes(
        request, max(settings.max_body, settings.max_image_body) if spec.images else settings.max_body
    )


async def read_bytes(request: Request, most: int) -> bytes:
    """The whole body, of ``most`` bytes at most.

    Raises:
        BodyTooLarge: it is larger.
        BadRequest: it did not come in time.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > most:
        raise _too_large(most)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                size += len(piece)
                if size > most:
                    raise _too_large(most)
                pieces.append(piece)
    except TimeoutError:
        raise BadRequest(f"The body did not arrive within {BODY_SECONDS:.0f} seconds.") from None
    return b"".join(pieces)


def json_object(body: bytes) -> dict[str, Any]:
    """The body's fields. A byte order mark is passed over: some platforms write one by themselves.

    Raises:
        InvalidBody: it is not a JSON object; the text says where it stops being JSON.
    """
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


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than the {most} bytes that are taken here.")
