"""Session access: a session is visible to its agent and its user; every other caller gets the answer of an unknown one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from turnstream.api.access.session_access import Visitor, visible_session
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.errors import NoSession
from turnstream.shared.session.event_log import Log
from turnstream.shared.session.tasks import Tasks

if TYPE_CHECKING:
    from tests.conftest import Place

KEYS = SessionKeys("acme", "s1")


@pytest.mark.parametrize(
    ("user", "visitor", "visible"),
    [
        ("", Visitor("demo"), True),
        ("", Visitor("demo", "ann"), True),
        ("ann", Visitor("demo", "ann"), True),
        ("ann", Visitor("demo"), True),
        ("ann", Visitor("demo", "bob"), False),
        ("", Visitor("other"), False),
        ("ann", Visitor("other", "ann"), False),
    ],
)
async def test_a_session_is_visible_to_its_agent_and_user(
    place: Place, user: str, visitor: Visitor, *, visible: bool
) -> None:
    """A visitor that names no user sees those of all users; a session without a user is seen by all."""
    broker = place.connect()
    log = Log(broker.sessions)
    await Tasks(broker.sessions, place.settings()).create(KEYS, "demo", user)
    if visible:
        assert (await visible_session(log, KEYS, visitor)).agent == "demo"
    else:
        with pytest.raises(NoSession):
            await visible_session(log, KEYS, visitor)


async def test_an_unknown_session_is_not_visible(place: Place) -> None:
    """The refusal is the same as for a foreign one."""
    with pytest.raises(NoSession):
        await visible_session(Log(place.connect().sessions), KEYS, Visitor("demo"))
