"""A turn taken again: what its user said, said once more in the same session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from turnstream.api.access.auth import Caller
from turnstream.api.http.body import digest_of
from turnstream.api.turns.submit import RESPONSE_PREFIX, Known, NewTurn, new_task_id, submit
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import BadRequest, CursorGone, NoTask, SessionBusy
from turnstream.shared.protocol import Message, MessageType, Role
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.status import TERMINAL

if TYPE_CHECKING:
    from turnstream.api.services import Services


async def replay(services: Services, ref: TaskRef, idempotency: str) -> TaskRef:
    """Say what a turn's user said once more, as a new turn of the session, for its owner and with its agent; the new turn.

    What else the request brought (settings, tools) is not kept, and not said again. With the ``idempotency`` of an earlier one it
    is the turn that this one made.

    Raises:
        NoTask: there is no such turn (any more).
        SessionBusy: it has not ended.
        CursorGone: what was said in it is no longer kept.
        BadRequest: its agent is no longer configured.
        As `turnstream.api.turns.submit.submit`.
    """
    known = await services.log.task(ref.keys, ref.task)
    meta = await services.log.meta(ref.keys)
    if not known:
        raise NoTask
    if known["status"] not in TERMINAL:
        raise SessionBusy("The turn has not ended: stop it, or wait for its end.")
    if meta is None or not meta.has_epoch(int(known["epoch"])):
        raise CursorGone(CursorGone.turn)
    spec = services.agents.get(meta.agent)
    if spec is None:
        raise BadRequest(f"The agent {meta.agent!r} of this turn is no longer configured here.")
    said: list[Message] = []
    async for entry in services.log.all_kept(ref.keys, Cursor(meta.epoch, int(known["first"]) - 1)):
        if entry.task != ref.task:
            continue
        event = orjson.loads(entry.event)
        if event.get("role") != Role.USER or event.get("type") != MessageType.MESSAGE:
            break
        said.append(Message.model_validate(event))
    if not said:
        raise CursorGone(CursorGone.turn)
    task = new_task_id()
    body = orjson.dumps([message.model_dump(exclude_none=True) for message in said])
    turn = NewTurn(
        ref=TaskRef(ref.owner, ref.session, task),
        response=RESPONSE_PREFIX + task,
        user=meta.user,
        create=False,
        input=said,
        idempotency=idempotency,
        digest=digest_of([str(ref)], b""),
        trace="",
        size=len(body),
    )
    taken = await submit(services, Caller(ref.owner, spec), turn)
    return TaskRef(ref.owner, ref.session, taken.task) if isinstance(taken, Known) else turn.ref
