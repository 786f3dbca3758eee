"""The names of keys, at whichever servers a client's are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstream.shared.broker.client import at_each

if TYPE_CHECKING:
    from redis.asyncio import Redis


async def names_of(redis: Redis, pattern: str) -> list[bytes]:
    """The names that match a pattern."""
    found: list[list[bytes]] = await at_each(redis, lambda each: each.keys(pattern))
    return [name for names in found for name in names]
