"""A chat's request: its caller, and its body, parsed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from turnstream.api.access.auth import Caller
    from turnstream.api.services import Services

T = TypeVar("T")


async def posted(
    services: Services, request: Request, parse: Callable[[bytes, Caller], T]
) -> tuple[Caller, bytes, T]:
    """The caller, the body, and what ``parse`` makes of it; a body that is refused counts against the caller's limits.

    Raises:
        BadToken, UnknownKey, Forbidden: there is no caller.
        Others: as `Bodies.read` and ``parse``.
    """
    caller = await services.auth.caller(request)
    async with services.limiter.counting_refusals(caller):
        raw, made = await services.bodies.read(request, caller, lambda body: parse(body, caller))
    return caller, raw, made
