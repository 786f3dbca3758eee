"""How much of its memory a broker uses, by its own account; of a cluster, the node that is nearest to its limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstream.shared.broker.client import PipedRedis, answers, command
from turnstream.shared.broker.cluster import ClusterRedis

if TYPE_CHECKING:
    from redis.asyncio import Redis

# From this share of `maxmemory` on nothing new is taken: the rest is for turns that were taken before.
MARK = 0.9


class Memory:
    """One broker's memory.

    Attributes:
        most: its ``maxmemory`` in bytes; 0: it has none, or makes room by itself.
        used: bytes that count against it.
        servers: how many there are.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.most = 0
        self.used = 0
        self.servers = 1

    @property
    def almost_full(self) -> bool:
        """Whether it was so when it was looked at last."""
        return bool(self.most) and self.used >= MARK * self.most

    async def look(self) -> None:
        """Ask the broker.

        Raises:
            redis.exceptions.RedisError, OSError: see `turnstream.shared.broker.retry.is_transient`.
        """
        if isinstance(self._redis, PipedRedis | ClusterRedis):
            # A node that is away takes nothing, whatever it has left.
            replies, away = await answers(self._redis, _memory)
            self.servers = len(replies) + len(away)
            self.used, self.most = max(replies, key=lambda each: each[0] / each[1] if each[1] else 0)


async def _memory(redis: Redis, _: object) -> tuple[int, int]:
    """A server's `Memory.used` and `Memory.most`."""
    info = await command(redis, "INFO", "memory")
    evicts = info.get("maxmemory_policy", "noeviction") != "noeviction"
    most = 0 if evicts else int(info.get("maxmemory", 0))
    return int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0)), most
