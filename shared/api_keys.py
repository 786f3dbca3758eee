"""API keys: made once, shown once, kept only as a hash.

A key is ``sk-`` and 128 random bits. Because it is random, a plain SHA-256 cannot be searched
backwards, and looking the hash up leaks nothing through time.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import structlog
from pydantic import BaseModel, ConfigDict, Field, field_validator

from turnstream.shared import metrics
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command, fields_of
from turnstream.shared.broker.retry import Retrying, whole
from turnstream.shared.broker.scripts import Script
from turnstream.shared.errors import NoKey, NotRotatable
from turnstream.shared.names import NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.asyncio import Redis

log = structlog.get_logger(__name__)

_swap = Script("swap_key", keys=("records",), args=("digest", "former", "record"), rest="more", once=True)

# An expired key is told in lists for so long, and then forgotten.
TOLD_SECONDS = 30 * 86_400

# For so long it is known when a key was used last.
USED_SECONDS = 400 * 86_400

_TOKEN = re.compile(r"sk-[A-Za-z0-9_-]{16,128}", re.ASCII)

Scope = Literal["chat", "admin"]

ID_PREFIX = "key_"

MOST_OF_A_NOTE = 200

# What operators may write beside a key: one line, without control characters.
Note = Annotated[
    str,
    Field(max_length=MOST_OF_A_NOTE, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", description="Who the key is for."),
]


class Limits(BaseModel):
    """What a key may do at most; 0: no limit of its own.

    What is counted are its owner's turns and followers, so that a second key for the same owner (a
    rotation) does not double what may be done.

    Attributes:
        rate: turns that may begin in any minute.
        concurrency: turns that may be queued or running; those that wait for their client do not count.
        followers: streams at once, over all front ends.
        storage: bytes that sessions may hold; with 0 the default applies, a share of the broker's memory.
    """

    model_config = ConfigDict(frozen=True)

    rate: int = Field(0, ge=0, le=100_000)
    concurrency: int = Field(0, ge=0, le=100_000)
    followers: int = Field(0, ge=0, le=100_000)
    storage: int = Field(0, ge=0, le=2**50)

    @property
    def turns(self) -> bool:
        """Whether turns have to be counted."""
        return bool(self.rate or self.concurrency)


class ApiKey(BaseModel):
    """What is kept of a key.

    Attributes:
        id: names the key to operators; the beginning of its hash.
        shown: the key's first characters, by which its holder knows it.
        owner: who the key speaks for; several keys may share one.
        agent: the agent that the key selects; ``others``: those that a request may name instead, where its protocol can.
        scopes: ``chat`` for the protocols, ``admin`` for the operator's routes.
        created, expires: Unix seconds; ``expires`` 0 is never.
        replaced_by: the id of the key that this one was rotated to; it works until it expires.
        setting: the setting that names it, if one does: the next front end that starts will, too.
        revoked: kept only so that its setting does not bring it back.
        limits: what it may do at most.
        note: who it is for, in an operator's words; empty: nobody said. It is never logged. New ones are a `Note`;
            whatever is kept is read, so that no holder is locked out for it.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    shown: str = ""
    owner: str = Field(pattern=f"^{NAME}$")
    agent: str
    others: tuple[str, ...] = ()
    scopes: tuple[Scope, ...] = ("chat",)
    created: int = 0
    expires: int = 0
    replaced_by: str = ""
    setting: str = ""
    revoked: bool = False
    limits: Limits = Limits()
    note: str = ""

    @field_validator("scopes", mode="before")
    @classmethod
    def _known(cls, scopes: Any) -> Any:
        """What another release lets a key do besides is left out."""
        if isinstance(scopes, list):
            return [scope for scope in scopes if scope in get_args(Scope)]
        return scopes

    def valid(self, now: float) -> bool:
        """Whether it may still be used at ``now`` (Unix seconds)."""
        return not self.revoked and (not self.expires or now < self.expires)


def well_formed(token: str) -> bool:
    """Whether the text can be a key of ours at all."""
    return _TOKEN.fullmatch(token) is not None


def digest(token: str) -> str:
    """What is kept instead of the key."""
    return hashlib.sha256(token.encode()).hexdigest()


def make_token() -> str:
    """A new key: ``sk-`` and 32 hexadecimal digits."""
    return "sk-" + secrets.token_hex(16)


class ApiKeys(Retrying):
    """The keys that the broker knows."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def register(
        self,
        token: str,
        *,
        owner: str,
        agent: str,
        others: tuple[str, ...] = (),
        scopes: tuple[Scope, ...] = ("chat",),
        expires: int = 0,
        limits: Limits | None = None,
        note: str = "",
    ) -> ApiKey:
        """Make ``token`` known; an existing one is replaced."""
        key = _made(
            token,
            owner=owner,
            agent=agent,
            others=others,
            scopes=scopes,
            expires=expires,
            limits=limits,
            note=note,
        )
        await command(self._redis, "HSET", keys.API_KEYS, digest(token), key.model_dump_json())
        return key

    @whole
    async def bring(
        self, token: str, *, setting: str, owner: str, agent: str, scopes: tuple[Scope, ...]
    ) -> ApiKey | None:
        """Make known a key that a setting names, and what it is for now; what is kept of it.

        One that an operator revoked or rotated, or that has expired, stays so. None: what is kept of it cannot be
        read, so it may be such a one.
        """
        name = digest(token)
        while True:
            kept: bytes | None = await command(self._redis, "HGET", keys.API_KEYS, name)
            key = _made(token, owner=owner, agent=agent, scopes=scopes)
            if kept is not None:
                known = _read(kept)
                if known is None:
                    return None
                key = known
                if key.valid(time.time()) and not key.replaced_by:
                    key = key.model_copy(update={"owner": owner, "agent": agent, "scopes": scopes})
            key = key.model_copy(update={"setting": setting})
            if kept == key.model_dump_json().encode():
                return key
            if await self._swap(name, kept or b"", key):
                return key

    async def find(self, token: str) -> ApiKey | None:
        """What the key stands for, or None when it is unknown or has expired."""
        found: bytes | None = await command(self._redis, "HGET", keys.API_KEYS, digest(token))
        key = _read(found) if found is not None else None
        return key if key is not None and key.valid(time.time()) else None

    @whole
    async def all(self) -> list[ApiKey]:
        """Every key that is kept, expired ones too, in the order in which they were made.

        Those that expired `TOLD_SECONDS` ago are told no more, and forgotten unless a setting could bring them back.
        """
        kept = await self._named()
        old = time.time() - TOLD_SECONDS
        ended = {name: key for name, _, key in kept if key.expires and key.expires < old}
        gone = [name for name, key in ended.items() if not key.setting]
        if gone:
            await command(self._redis, "HDEL", keys.API_KEYS, *gone)
        found = [key for name, _, key in kept if not key.revoked and name not in ended]
        return sorted(found, key=lambda key: (key.created, key.id))

    async def note_used(self, used: Mapping[str, float]) -> None:
        """Note when keys were used last (Unix seconds), by their ids.

        Raises:
            redis.exceptions.RedisError, OSError: see `turnstream.shared.broker.retry.is_transient`.
        """
        if not used:
            return
        pairs = [part for name, at in used.items() for part in (int(at), name)]
        oldest = int(time.time() - USED_SECONDS)
        # Front ends tell at different times; the latest counts.
        await command(self._redis, "ZADD", keys.KEYS_USED, "GT", *pairs)
        await command(self._redis, "ZREMRANGEBYSCORE", keys.KEYS_USED, "-inf", oldest)
        await command(self._redis, "PEXPIRE", keys.KEYS_USED, USED_SECONDS * 1000)

    async def used(self) -> dict[str, float]:
        """When keys were used last (Unix seconds), by their ids: of those that were within `USED_SECONDS`.

        Raises:
            BrokerAway: the broker did not answer.
        """
        flat: list[bytes] = await command(self._redis, "ZRANGE", keys.KEYS_USED, 0, -1, "WITHSCORES")
        return {
            name.decode(errors="replace"): float(at) for name, at in zip(flat[::2], flat[1::2], strict=True)
        }

    async def revoke(self, key_id: str) -> ApiKey:
        """Forget a key; front ends that know it may believe it for some seconds more.

        Raises:
            NoKey: there is none of that id.
        """
        while True:
            name, kept, key = await self._of(key_id)
            if await self._swap(name, kept, _ended(key)):
                return key

    async def rotate(self, key_id: str, seconds: int) -> tuple[str, ApiKey]:
        """Make a key that may do what another one may, which works for ``seconds`` more; the new token and key.

        Raises:
            NoKey: there is none of that id.
            NotRotatable: it was rotated before, or has expired.
        """
        while True:
            name, kept, former = await self._of(key_id)
            if former.replaced_by:
                raise NotRotatable(
                    f"The API key {key_id} was rotated to {former.replaced_by} already: rotate that one, or create a "
                    "new key."
                )
            if not former.valid(time.time()):
                raise NotRotatable(f"The API key {key_id} has expired: create a new one.")
            token = make_token()
            key = _made(
                token,
                owner=former.owner,
                agent=former.agent,
                others=former.others,
                scopes=former.scopes,
                expires=former.expires,
                limits=former.limits,
                note=former.note,
            )
            ends = int(time.time()) + seconds
            expires = min(former.expires, ends) if former.expires else ends
            former = former.model_copy(update={"expires": expires, "replaced_by": key.id})
            if await self._swap(name, kept, former if seconds else _ended(former), token, key):
                return token, key

    async def _of(self, key_id: str) -> tuple[str, bytes, ApiKey]:
        for name, kept, key in await self._named():
            if key.id == key_id and not key.revoked:
                return name, kept, key
        raise NoKey

    async def _named(self) -> list[tuple[str, bytes, ApiKey]]:
        found: dict[str, tuple[str, bytes, ApiKey]] = {}
        async for some in fields_of(self._redis, keys.API_KEYS):
            for field, kept in some.items():
                name = field.decode(errors="replace")
                if (key := _read(kept)) is not None:
                    found[name] = name, kept, key
        return list(found.values())

    async def _swap(
        self, name: str, kept: bytes, key: ApiKey | None, token: str = "", more: ApiKey | None = None
    ) -> bool:
        """Keep ``key`` from now on, and ``more`` with it; False: what was kept is not ``kept`` any more."""
        along = (digest(token), more.model_dump_json()) if more else ()
        record = key.model_dump_json() if key else ""
        return bool(
            await _swap(
                self._redis, records=keys.API_KEYS, digest=name, former=kept, record=record, more=along
            )
        )


def _read(kept: bytes) -> ApiKey | None:
    """A key as it is kept; None when it cannot be read, which is the same as unknown: nobody is let in by it."""
    try:
        return ApiKey.model_validate_json(kept)
    except ValueError:
        metrics.unreadable.add("API key")
        log.warning("key.unreadable")
        return None


def _made(
    token: str,
    *,
    owner: str,
    agent: str,
    others: tuple[str, ...] = (),
    scopes: tuple[Scope, ...],
    expires: int = 0,
    limits: Limits | None = None,
    note: str = "",
) -> ApiKey:
    return ApiKey(
        id=ID_PREFIX + digest(token)[:12],
        shown=token[:7],
        owner=owner,
        agent=agent,
        others=others,
        scopes=scopes,
        created=int(time.time()),
        expires=expires,
        limits=limits or Limits(),
        note=note,
    )


def _ended(key: ApiKey) -> ApiKey | None:
    """What is kept of a revoked key: nothing, unless a setting would bring it back."""
    if not key.setting:
        return None
    # A release that does not know `revoked` understands that it has expired.
    return key.model_copy(update={"revoked": True, "expires": int(time.time())})
