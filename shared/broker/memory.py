"""How much of its memory a broker uses, as it says itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstream.shared.broker.client import PipedRedis, command

if TYPE_CHECKING:
    from redis.asyncio import Redis

# From this share of `maxmemory` on nothing new is taken: the rest is for turns that were taken before.
MARK = 0.9


class Memory:
    """One broker's memory.

    Attributes:
        most: its ``maxmemory`` in bytes; 0: it has none, or makes room by itself.
        used: bytes that count against it.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.most = 0
        self.used = 0

    @property
    def almost_full(self) -> bool:
        """Whether it was so when it was looked at last."""
        return bool(self.most) and self.used >= MARK * self.most

    async def look(self) -> None:
        """Ask the broker.

        Raises:
            redis.exceptions.RedisError, OSError: see `turnstream.shared.broker.retry.is_transient`.
        """
        if not isinstance(self._redis, PipedRedis):
            return
        told = await command(self._redis, "INFO", "memory")
        evicts = told.get("maxmemory_policy", "noeviction") != "noeviction"
        self.most = 0 if evicts else int(told.get("maxmemory", 0))
        self.used = int(told.get("used_memory", 0)) - int(told.get("mem_not_counted_for_evict", 0))
