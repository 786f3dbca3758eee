"""API keys: made once, shown once, kept only as a hash.

A key is ``sk-`` and 128 random bits. Because it is random, a plain SHA-256 cannot be searched
backwards, and looking the hash up leaks nothing through time.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared import keys
from shared.broker import command

if TYPE_CHECKING:
    from redis.asyncio import Redis

_TOKEN = re.compile(r"sk-[A-Za-z0-9_-]{16,128}", re.ASCII)

# Owners, sessions and users: what may stand in a key's name and in a task's ref.
IDENTIFIER = re.compile(r"[A-Za-z0-9_.:@-]{1,128}", re.ASCII)

Scope = Literal["chat", "admin"]


class ApiKey(BaseModel):
    """What is kept of a key.

    Attributes:
        id: names the key to operators; its first characters.
        owner: who the key speaks for; several keys may share one.
        agent: the agent that the key selects.
        scopes: ``chat`` for the protocols, ``admin`` for the operator's routes.
        created, expires: Unix seconds; ``expires`` 0 is never.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    owner: str = Field(pattern=r"^[A-Za-z0-9_.:@-]{1,128}$")
    agent: str
    scopes: tuple[Scope, ...] = ("chat",)
    created: int = 0
    expires: int = 0

    def valid(self, now: float) -> bool:
        """Whether it may still be used at ``now`` (Unix seconds)."""
        return not self.expires or now < self.expires


def well_formed(token: str) -> bool:
    """Whether the text can be a key of ours at all."""
    return _TOKEN.fullmatch(token) is not None


def digest(token: str) -> str:
    """What is kept instead of the key."""
    return hashlib.sha256(token.encode()).hexdigest()


def make_token() -> str:
    """A new key: ``sk-`` and 32 hexadecimal digits."""
    return "sk-" + secrets.token_hex(16)


class ApiKeys:
    """The keys that the broker knows."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def register(
        self, token: str, *, owner: str, agent: str, scopes: tuple[Scope, ...] = ("chat",), expires: int = 0
    ) -> ApiKey:
        """Make ``token`` known; an existing one is replaced."""
        key = ApiKey(
            id=token[:9], owner=owner, agent=agent, scopes=scopes, created=int(time.time()), expires=expires
        )
        await command(self._redis, "HSET", keys.API_KEYS, digest(token), key.model_dump_json())
        return key

    async def find(self, token: str) -> ApiKey | None:
        """What the key stands for, or None when it is unknown or has expired."""
        found: bytes | None = await command(self._redis, "HGET", keys.API_KEYS, digest(token))
        if found is None:
            return None
        key = ApiKey.model_validate_json(found)
        return key if key.valid(time.time()) else None
