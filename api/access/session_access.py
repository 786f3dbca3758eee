"""Session access: whether a caller may see a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnstream.shared.errors import NoSession

if TYPE_CHECKING:
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.event_log import Log, SessionMeta


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who wants to see a session: the agent of the key, and the user that the request named, or ``""``."""

    agent: str
    user: str = ""


async def visible_session(log: Log, keys: SessionKeys, visitor: Visitor) -> SessionMeta:
    """The session, if this visitor may see it.

    Raises:
        NoSession: it is unknown, or belongs to another agent or user.
        BrokerAway: the broker did not answer.
    """
    return visible(await log.sure_meta(keys), visitor)


def visible(meta: SessionMeta | None, visitor: Visitor) -> SessionMeta:
    """The session with this meta, if this visitor may see it.

    Raises:
        NoSession: as `visible_session`.
    """
    if meta is None or meta.agent != visitor.agent:
        raise NoSession
    if visitor.user and meta.user and meta.user != visitor.user:
        raise NoSession
    return meta
