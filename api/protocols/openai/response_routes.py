"""The routes of responses: ``/v1/responses``."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response

from turnstream.api.http.params import route
from turnstream.api.protocols.openai.listing import inputs_of, listed
from turnstream.api.protocols.openai.resource import ECHO, echo_of
from turnstream.api.protocols.openai.response_requests import parse_response
from turnstream.api.protocols.openai.response_stream import ResponseStream
from turnstream.api.streaming import start_position
from turnstream.api.streaming.dialect import EncodedDialect
from turnstream.api.turns.answers import answered, check_answered
from turnstream.api.turns.callbacks import answers_to, asked_at
from turnstream.api.turns.finding import asks_again, found, is_known, is_retry, newest_task, retry_name
from turnstream.api.turns.follow import Encoded, encoded_document, encoded_stream, following, so_far
from turnstream.api.turns.fork import fork_session
from turnstream.api.turns.ids import ResponseId
from turnstream.api.turns.posted import posted
from turnstream.api.turns.stop import stop
from turnstream.api.turns.submit import (
    RESPONSE_PREFIX,
    NewTurn,
    begin,
    derived_session,
    idempotency_of,
    new_task_id,
    trace_of,
)
from turnstream.shared.broker.keys import SessionKeys, TaskRef
from turnstream.shared.errors import BadRequest, CursorGone, InvalidBody, NoSession, NoTask, UnknownCall
from turnstream.shared.session.entry import Cursor, Entry
from turnstream.shared.session.status import TaskStatus

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import Route

    from turnstream.api.access.auth import Caller
    from turnstream.api.protocols.openai.response_requests import Asked
    from turnstream.api.services import Services
    from turnstream.api.streaming.feed import Feed
    from turnstream.api.streaming.leaving import Left
    from turnstream.api.streaming.sse import EventStream
    from turnstream.api.streaming.whole import WholeDocument

BASE = "/v1/responses"


def _opened(session: str, entry: Entry) -> ResponseStream:
    return ResponseStream(ResponseId(session, entry.task, 0), {}, "agent")


RESPONSES = EncodedDialect("openai-responses", _opened)


class ResponseRoutes:
    """Serves responses."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """To create, and what can be done with one."""
        one = BASE + "/{response_id}"
        return [
            route(BASE, self.create, "POST"),
            route(one, self.retrieve, "GET"),
            route(one, self.delete, "DELETE"),
            route(f"{one}/cancel", self.cancel, "POST"),
            route(f"{one}/input_items", self.input_items, "GET"),
        ]

    async def create(self, request: Request) -> EventStream | WholeDocument | Response:
        """Take a turn, or answers to calls; then follow the response."""
        services = self._services
        _, raw, asked = await posted(services, request, parse_response)
        # What a client's own retry names: answers to calls are found by these.
        is_named = bool(asked.given.answers or idempotency_of(request))
        retry = "" if is_named else retry_name(request, asked.caller, asked.digest)
        keys, repeated = await self._session(request, asked, retry)
        if asked.session and not repeated:
            there, _ = await found(services, keys, asked.caller, asked.user)
            if there.spec.name != asked.caller.spec.name:
                if asked.body.model is not None:
                    raise InvalidBody("model: the session is that of another agent of this API key")
                asked = parse_response(raw, there)
            if not asked.given.answers:
                keys, repeated = await self._goes_on(request, asked, keys)
        async with following(services, keys, asked.caller) as feed:
            if asked.given.answers:
                told = await self._answer(asked, keys)
            elif repeated:
                told = await self._found(asked.caller, ResponseId(keys.session, repeated, 0), stored=True)
            else:
                told = await self._begin(request, asked, keys, len(raw))
            left = None
            if retry and told.start.task:
                ref = TaskRef(keys.owner, keys.session, told.start.task)
                left = partial(services.leaving.left, ref, stops=False, request=retry)
            return await self._respond(
                feed, told, stream=bool(asked.body.stream), background=bool(asked.body.background), left=left
            )

    async def retrieve(self, request: Request) -> EventStream | WholeDocument | Response:
        """The response as it is, or with ``stream`` its events behind ``starting_after``."""
        services = self._services
        caller = await services.auth.caller(request)
        name = ResponseId.parse(request.path_params["response_id"])
        if request.query_params.get("stream", "").lower() not in ("true", "1"):
            told = await self._found(caller, name)
            return _json(await self._so_far(SessionKeys(caller.owner, name.session), told))
        seen = _starting_after(request)
        keys = caller.keys(name.session)
        async with following(services, keys, caller) as feed:
            told = await self._found(caller, name, seen=seen)
            if seen >= 0:
                await self._check_was_told(keys, await self._found(caller, name), seen)
            return await self._respond(feed, told, stream=True)

    async def _check_was_told(self, keys: SessionKeys, told: Encoded[ResponseStream], seen: int) -> None:
        """Refuse a number of no event: the log may have lost its end, and now goes on with other events."""
        await so_far(self._services, keys, told)
        if not told.encoder.has_told(seen):
            raise CursorGone(
                "starting_after: the response has no event of that number. Follow it without starting_after."
            )

    async def delete(self, request: Request) -> Response:
        """Have a response be found no more; if it is the last one so far of a live turn, that is stopped."""
        caller = await self._services.auth.caller(request)
        name = ResponseId.parse(request.path_params["response_id"])
        await self._found(caller, name)
        keys = caller.keys(name.session)
        known = await self._services.log.task(keys, name.task)
        if name.segment >= max(start_position.parks_of(known)) - (_waits_at(known) > 0):
            await stop(self._services, TaskRef(keys.owner, keys.session, name.task), "deleted", who="client")
        if not await self._services.tasks.note(keys, _deleted(name), "1"):
            raise NoSession
        return _json({"id": str(name), "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        """Stop the turn. When this answers, its end is in the log."""
        caller = await self._services.auth.caller(request)
        name = ResponseId.parse(request.path_params["response_id"])
        await self._found(caller, name)
        keys = caller.keys(name.session)
        await stop(self._services, TaskRef(keys.owner, keys.session, name.task), "stop", who="client")
        told = await self._found(caller, name)
        return _json(await self._so_far(keys, told))

    async def input_items(self, request: Request) -> Response:
        """What the turn was asked, or the answers that the response begins with."""
        caller = await self._services.auth.caller(request)
        name = ResponseId.parse(request.path_params["response_id"])
        told = await self._found(caller, name)
        keys = caller.keys(name.session)
        kept = self._services.log.all_kept(keys, told.start.after)
        items = await inputs_of(name.session, (entry async for entry in kept if entry.task == name.task))
        return _json(listed(request, items, order="desc"))

    # ── what is asked ──

    async def _session(self, request: Request, asked: Asked, retry: str) -> tuple[SessionKeys, str]:
        """Where the request goes on: a new session where it names none. And the task, if this is a client's own retry."""
        if (
            retry
            and is_retry(request)
            and (ref := await self._services.leaving.lost(asked.caller.owner, retry))
        ):
            return ref.keys, ref.task
        answers = asked.given.answers
        named = {answer.named.session for answer in answers if answer.named}
        if asked.session:
            named.add(asked.session)
        if len(named) > 1:
            raise UnknownCall
        if named:
            return asked.caller.keys(named.pop()), ""
        if answers:
            raise InvalidBody("previous_response_id: needed to answer a call of this id")
        return _new_session(request, asked), ""

    async def _begin(
        self, request: Request, asked: Asked, keys: SessionKeys, size: int
    ) -> Encoded[ResponseStream]:
        """Take a turn."""
        if not asked.given.messages:
            raise InvalidBody("input: give text, or at least one message")
        caller = asked.caller
        name = ResponseId(keys.session, new_task_id(), 0)
        echo = asked.echo
        if asked.previous:
            echo = {**echo, "previous_response_id": str(asked.previous)}
        turn = NewTurn(
            ref=TaskRef(keys.owner, keys.session, name.task),
            response=RESPONSE_PREFIX + name.task,
            user=asked.user,
            create=asked.session is None,
            input=asked.given.messages,
            idempotency=idempotency_of(request),
            digest=asked.digest,
            trace=trace_of(request),
            overrides=asked.overrides,
            size=size,
            beside={ECHO: echo},
        )
        start, headers = await begin(self._services, caller, turn)
        if start.new:
            return Encoded(start, ResponseStream(name, echo, caller.spec.name), headers)
        # A repeat is answered with the turn that the first request made.
        return await self._found(caller, name._replace(task=start.task or name.task), stored=True)

    async def _goes_on(self, request: Request, asked: Asked, keys: SessionKeys) -> tuple[SessionKeys, str]:
        """Where the turn goes on: its session, or a new one that begins with that up to an earlier response.

        And the task, if this is a repeat: one that names it, or one that the client makes by itself because it got no answer.
        """
        services, log = self._services, self._services.log
        newest = await newest_task(services, keys)
        if await asks_again(services, request, keys, newest, asked.digest):
            return keys, newest
        if await is_known(services, keys, idempotency_of(request)):
            return keys, ""
        previous = asked.previous
        if previous:
            await self._found(asked.caller, previous)
            known = await log.task(keys, previous.task)
            last = max(start_position.parks_of(known))
            if (
                previous.segment < last
                and not _waits_at(known)
                and await self._was_answered(keys, known, previous)
            ):
                raise InvalidBody(
                    "previous_response_id: its calls were answered; go on from the turn's last response,"
                    f" {previous._replace(segment=last)}"
                )
            if newest and newest != previous.task:
                target = _new_session(request, asked)
                await fork_session(services, asked.caller, keys, previous.task, target, asked.user)
                return target, ""
        if newest:
            await check_answered(services, keys, newest, (), "input")
        return keys, ""

    async def _was_answered(self, keys: SessionKeys, known: dict[str, str], name: ResponseId) -> bool:
        """Whether the calls were answered at which a response ended; if not, the turn ended while it waited for that."""
        log = self._services.log
        park, meta = start_position.parks_of(known).get(name.segment + 1), await log.meta(keys)
        if park is None or meta is None:
            # It was too many parks ago.
            return True
        place = Cursor(meta.epoch, park)
        return bool(await answers_to(log, keys, name.task, await asked_at(log, keys, place), place))

    async def _answer(self, asked: Asked, keys: SessionKeys) -> Encoded[ResponseStream]:
        """Answer calls; the response is the one that begins with the answers."""
        services, caller = self._services, asked.caller
        caller, _ = await found(services, keys, caller, asked.user)
        task, number = await answered(services, keys, asked.given.answers, "input")
        return await self._found(caller, ResponseId(keys.session, task, number), stored=True)

    # ── what is answered ──

    async def _found(
        self, caller: Caller, name: ResponseId, *, seen: int = -1, stored: bool = False
    ) -> Encoded[ResponseStream]:
        """A response of the caller's, from its first entry on; ``stored``: also one that is not to be found by its id.

        Raises:
            NoSession, NoTask: there is none, or it is another one's.
            CursorGone: the session was cleared; or ``seen`` is of events that cannot be had again as they were.
        """
        log, keys = self._services.log, caller.keys(name.session)
        caller, meta = await found(self._services, keys, caller)
        part = await start_position.segment(log, keys, meta, name.task, number=name.segment)
        known = await log.task(keys, name.task)
        if name.segment and _waits_at(known) == name.segment:
            # It begins with the answers.
            raise NoTask
        echo = echo_of(await log.at(keys, Cursor(meta.epoch, int(known["first"]) + 1)))
        if not stored and (echo.get("store") is False or await log.note(keys, _deleted(name))):
            raise NoTask
        start = await start_position.start_of(log, keys, meta, part)
        if seen >= 0 and part.after.seq < meta.head - 1:
            raise CursorGone("The events of this response are no longer kept: retrieve it without stream.")
        stream = ResponseStream(
            name, echo, caller.spec.name, submitted=part.submitted, epoch=int(known["epoch"]), seen=seen
        )
        return Encoded(start, stream)

    async def _respond(
        self,
        feed: Feed,
        told: Encoded[ResponseStream],
        *,
        stream: bool,
        background: bool = False,
        left: Left | None = None,
    ) -> EventStream | WholeDocument | Response:
        services = self._services
        if stream:
            return encoded_stream(services, feed, told, RESPONSES, left)
        if background:
            with feed:
                return _json(await self._so_far(feed.keys, told))
        return encoded_document(services, feed, told, left)

    async def _so_far(self, keys: SessionKeys, told: Encoded[ResponseStream]) -> dict[str, Any]:
        """The response as far as the log has it now."""
        await so_far(self._services, keys, told)
        return told.encoder.document()


def _new_session(request: Request, asked: Asked) -> SessionKeys:
    """A session for this request, which a repeat finds again if it has an idempotency key."""
    idempotency = idempotency_of(request)
    return asked.caller.keys(derived_session(asked.caller, idempotency) if idempotency else uuid.uuid4().hex)


def _waits_at(task: dict[str, str]) -> int:
    """The number of the segment that a parked task's answers will begin; 0: it is not parked."""
    return max(start_position.parks_of(task)) if task.get("status") == TaskStatus.PARKED else 0


def _starting_after(request: Request) -> int:
    text = request.query_params.get("starting_after", "")
    if not text:
        return -1
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise BadRequest("starting_after: the sequence_number of the last event that was received")
    return int(text)


def _json(document: dict[str, Any]) -> Response:
    return Response(orjson.dumps(document), media_type="application/json")


def _deleted(name: ResponseId) -> str:
    """What is noted of the session where a response was deleted."""
    return f"deleted:{name.task}~{name.segment}"
