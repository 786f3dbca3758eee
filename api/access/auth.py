"""Who is asking: API keys, looked up once in a while and kept for a few seconds."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from turnstream.api.access.session_access import Visitor
from turnstream.shared.api_keys import Limits, digest, well_formed
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.errors import BadToken, Forbidden, UnknownKey

if TYPE_CHECKING:
    from starlette.requests import Request

    from turnstream.shared.agents.config import Agents, AgentSpec
    from turnstream.shared.api_keys import ApiKey, ApiKeys

# How long a key is believed without asking again: a revoked one works for as long. Operators are promised 10 s.
KNOWN_SECONDS = 5.0
# A new key is refused for as long if it was tried before it was made.
UNKNOWN_SECONDS = 1.0

# Tokens remembered of each kind; unknown ones are apart, so that guessing cannot push out those in use.
MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Caller:
    """A chat key's holder: for whom it speaks, with which agent, and how much it may do.

    ``agents`` are all that the key may speak with, where they are several.
    """

    owner: str
    spec: AgentSpec
    limits: Limits = field(default_factory=Limits)
    agents: tuple[AgentSpec, ...] = ()

    def keys(self, session: str) -> SessionKeys:
        """The keys of one of the owner's sessions."""
        return SessionKeys(self.owner, session)

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, the one that is spoken to by default first."""
        return (self.spec.name, *(spec.name for spec in self.agents if spec.name != self.spec.name))

    def speaking_to(self, agent: str) -> Caller | None:
        """The holder speaking with that agent; None when the key may not."""
        if agent == self.spec.name:
            return self
        return next((replace(self, spec=spec) for spec in self.agents if spec.name == agent), None)

    def visitor(self, user: str = "") -> Visitor:
        """The holder as a visitor of sessions."""
        return Visitor(self.spec.name, user)


class Auth:
    """Checks the ``Authorization`` header."""

    def __init__(self, api_keys: ApiKeys, agents: Agents) -> None:
        self._api_keys = api_keys
        self._agents = agents
        self._known: dict[str, tuple[float, ApiKey]] = {}
        self._unknown: dict[str, float] = {}
        self._used: dict[str, float] = {}

    async def tell_used(self) -> None:
        """Note at the broker which keys were used since the last time; what is not noted is noted the next time.

        Raises:
            redis.exceptions.RedisError, OSError: see `turnstream.shared.broker.retry.is_transient`.
        """
        used, self._used = self._used, {}
        try:
            await self._api_keys.once.note_used(used)
        except BaseException:
            self._used = used | self._used
            raise

    async def key(self, request: Request) -> ApiKey:
        """The key that came with the request.

        Raises:
            BadToken: there is none, or it cannot be one.
            UnknownKey: it is unknown, revoked or expired.
            BrokerAway: the broker did not answer.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not well_formed(token):
            raise BadToken
        name = digest(token)
        now = asyncio.get_running_loop().time()
        until, key = self._known.get(name, (0.0, None))
        if key is None or until < now:
            if self._unknown.get(name, 0.0) >= now:
                raise UnknownKey
            key = await self._api_keys.find(token)
            self._remember(name, key)
        if key is None or not key.valid(time.time()):
            raise UnknownKey
        self._used[key.id] = time.time()
        return key

    async def caller(self, request: Request) -> Caller:
        """The holder of a chat key.

        Raises:
            Forbidden: the key is not for chats, or its agent is no longer configured.
            Others: as `key`.
        """
        key = await self.key(request)
        if "chat" not in key.scopes:
            raise Forbidden
        spec = self._agents.get(key.agent)
        if spec is None:
            raise Forbidden(f"The agent {key.agent!r} of this API key is no longer configured here.")
        others = (self._agents.get(name) for name in key.others)
        return Caller(
            key.owner, spec, key.limits, tuple(filter(None, (spec if key.others else None, *others)))
        )

    async def admin(self, request: Request) -> ApiKey:
        """An operator's key.

        Raises:
            Forbidden: the key is not for operators.
            Others: as `key`.
        """
        key = await self.key(request)
        if "admin" not in key.scopes:
            raise Forbidden("This route needs an API key with the scope admin.")
        return key

    def _remember(self, name: str, key: ApiKey | None) -> None:
        now = asyncio.get_running_loop().time()
        self._known.pop(name, None)
        self._unknown.pop(name, None)
        if key is None:
            self._unknown[name] = now + UNKNOWN_SECONDS
        else:
            self._known[name] = (now + KNOWN_SECONDS, key)
        for remembered in (self._known, self._unknown):
            if len(remembered) > MOST_REMEMBERED:
                del remembered[next(iter(remembered))]
