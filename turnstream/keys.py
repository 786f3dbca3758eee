"""API keys from the command line, at the broker: it works before any front end runs."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from turnstream.escaping import escaped
from turnstream.shared.agents import config
from turnstream.shared.api_keys import MOST_OF_A_NOTE, ApiKeys, Note, make_token
from turnstream.shared.broker.client import Broker, let_in
from turnstream.shared.broker.retry import retry
from turnstream.shared.errors import ConfigurationError
from turnstream.shared.names import IDENTIFIER
from turnstream.sizes import shown
from turnstream.table import aligned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from turnstream.shared.api_keys import ApiKey, Limits, Scope
    from turnstream.shared.settings import Settings

T = TypeVar("T")

# How long the command retries what it asks of a broker that does not answer.
RETRY_SECONDS = 3.0

_HEADINGS = (
    "ID",
    "KEY",
    "OWNER",
    "AGENT",
    "SCOPES",
    "TURNS/MIN",
    "AT ONCE",
    "STREAMS",
    "STORAGE",
    "MADE",
    "LAST USED",
    "EXPIRES",
)


async def create(
    settings: Settings,
    owner: str,
    agents: list[str],
    scopes: tuple[Scope, ...],
    days: int,
    limits: Limits,
    note: str,
) -> tuple[str, ApiKey]:
    """Make and register a key, which selects the first of the agents; returns it, and what is kept of it.

    Raises:
        ConfigurationError: the owner cannot be spelled so, there is no such agent, or the note is no `Note`.
        BrokerAway: the broker did not answer.
    """
    if IDENTIFIER.fullmatch(owner) is None:
        raise ConfigurationError(f"--owner {owner!r}: use letters, digits and _ . : @ - (128 at most)")
    try:
        TypeAdapter(Note).validate_python(note)
    except ValidationError:
        raise ConfigurationError(
            f"--note: give {MOST_OF_A_NOTE} characters at most, in one line, without control characters"
        ) from None
    configured = config.load(settings.agents)
    for name in agents:
        if name not in configured:
            known = ", ".join(spec.name for spec in configured)
            raise ConfigurationError(f"--agent {name!r}: no such agent; there are {known}")
    agent, *others = agents
    token = make_token()
    expires = int(time.time()) + days * 86_400 if days else 0
    key = await _ask(
        settings,
        lambda keys: keys.register(
            token,
            owner=owner,
            agent=agent,
            others=tuple(others),
            scopes=scopes,
            expires=expires,
            limits=limits,
            note=note,
        ),
    )
    return token, key


def made(token: str, key: ApiKey, *, as_json: bool) -> str:
    """A new key as it is shown, once."""
    return orjson.dumps({"key": token, "id": key.id}).decode() if as_json else token


async def listed(settings: Settings, *, as_json: bool = False) -> list[str]:
    """All keys: a table, or a line of JSON each.

    Raises:
        BrokerAway: the broker did not answer.
    """

    async def ask(keys: ApiKeys) -> tuple[list[ApiKey], dict[str, float]]:
        return await keys.all(), await keys.used()

    found, used = await _ask(settings, ask)
    if as_json:
        told = [{**key.model_dump(), "used": int(used.get(key.id, 0))} for key in found]
        return [escaped(orjson.dumps(each).decode()) for each in told]
    rows = [_HEADINGS, *(_row(key, used.get(key.id, 0)) for key in found)]
    if any(key.note for key in found):
        notes = ["NOTE", *(escaped(key.note) for key in found)]
        rows = [(*row, note) for row, note in zip(rows, notes, strict=True)]
    return [aligned(rows)]


async def revoke(settings: Settings, key_id: str) -> None:
    """Forget a key.

    Raises:
        NoKey: there is none of that id.
        BrokerAway: the broker did not answer.
    """
    await _ask(settings, lambda keys: keys.revoke(key_id), seconds=0)


async def rotate(settings: Settings, key_id: str, hours: float) -> tuple[str, ApiKey]:
    """Make a key's successor, and return it, and what is kept of it; the former one works for ``hours`` more.

    Raises:
        NoKey: there is none of that id.
        NotRotatable: it was rotated before, or has expired.
        BrokerAway: the broker did not answer.
    """
    return await _ask(settings, lambda keys: keys.rotate(key_id, int(hours * 3600)), seconds=0)


async def _ask(
    settings: Settings, ask: Callable[[ApiKeys], Awaitable[T]], seconds: float = RETRY_SECONDS
) -> T:
    """Ask the broker, with retries for so long: none, where a second request would do it twice.

    Raises:
        ConfigurationError: it refuses us.
    """
    broker = Broker(settings)
    keys = ApiKeys(broker.primary)
    try:
        return await retry(lambda: let_in(settings, lambda: ask(keys)), seconds=seconds, what="keys")
    finally:
        await broker.close()


def _row(key: ApiKey, used: float) -> tuple[str, ...]:
    limits = key.limits
    caps = [str(limit) if limit else "any" for limit in (limits.rate, limits.concurrency, limits.followers)]
    caps.append(shown(limits.storage) if limits.storage else "default")
    return (
        key.id,
        f"{key.shown}…",
        key.owner,
        ",".join((key.agent or "–", *key.others)),
        ",".join(key.scopes),
        *caps,
        _at(key.created) if key.created else "–",
        _at(used) if used else "–",
        _expiry(key),
    )


# What a calendar can say; one who asks for more means never.
_LAST = datetime.max.replace(tzinfo=UTC).timestamp()


def _at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _expiry(key: ApiKey) -> str:
    if not key.expires or key.expires > _LAST:
        return "never"
    when = _at(key.expires)
    replaced = f", replaced by {key.replaced_by}" if key.replaced_by else ""
    return when + replaced if key.valid(time.time()) else f"expired {when}{replaced}"
