"""One turn's answer, as it comes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from turnstream.client.calls import Approval, Call, answered_in, calls_in, log
from turnstream.client.errors import ClientError, Refused, TurnCanceled, TurnFailed, UnansweredCall
from turnstream.client.events import is_end
from turnstream.client.speech import Speech, Voice, answers, text_of
from turnstream.shared.protocol import AgentResponse, Fold, Message, RunStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from turnstream.client.calls import Functions
    from turnstream.client.events import TurnEvent
    from turnstream.client.following import AsyncFollowing
    from turnstream.client.session import AsyncSession

BETWEEN_MESSAGES = "\n\n"

# A turn that is followed from its past brings calls together with their answers: what is not answered
# after so long a silence waits for us.
SETTLED_SECONDS = 0.25


class AsyncReply:
    """What the agent answers to one turn.

    Iterate over it for events, or ask for what you want of them::

        async for event in reply: …             every event, typed
        async for piece in reply.deltas(): …    the answer's text, piece by piece
        async for message in reply.messages():  whole messages: texts, calls, results
        text = await reply.text()               the whole text
        response = await reply.finished()       the terminal event, whatever the outcome

    Duties:
        1. follow the turn to its end, whatever happens to connections and front ends;
        2. have the client's functions answer the agent's calls meanwhile;
        3. keep what was said so far, and the cursor to come back with.

    Iteration can be left and taken up again. Leaving stops nothing: the turn goes on at the server. The
    connection is held until the reply's end, or until the reply or its client is closed.
    """

    def __init__(
        self,
        session: AsyncSession,
        response: str,
        following: AsyncFollowing,
        functions: Functions,
        *,
        known: bool,
    ) -> None:
        self.id = response
        self.session = session
        self._following = following
        self._functions = functions
        self._known = known
        self._fold = Fold()
        self._end: AgentResponse | None = None
        self._calls: dict[str, Call | Approval] = {}
        self._answered: set[str] = set()
        self._answering: set[asyncio.Task[None]] = set()

    # ── state ──

    def __repr__(self) -> str:
        state = self._end.status if self._end else "not ended, as far as was read"
        return f"<{type(self).__name__} {self.id!r} of session {self.session.id!r}: {state}>"

    @property
    def cursor(self) -> str:
        """Where this reply stands; give it to `AsyncSession.follow` to go on in another process."""
        return self._following.cursor

    @property
    def messages_so_far(self) -> list[Message]:
        """All messages, the open ones as far as they have come."""
        return list(self._fold.messages.values())

    @property
    def open_calls(self) -> list[Call | Approval]:
        """The calls that came and are not answered yet."""
        return [call for name, call in self._calls.items() if name not in self._answered]

    @property
    def ended(self) -> bool:
        """Whether the terminal event has come."""
        return self._end is not None

    # ── what it tells ──

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TurnEvent:
        """The next event.

        Raises:
            Refused, Unavailable, BadAnswer: see `turnstream.client.errors`.
        """
        if self._end is not None:
            raise StopAsyncIteration
        try:
            event = await anext(self._following)
        except ClientError:
            await self.close()
            raise
        self._fold.feed(event)
        if isinstance(event, Message):
            self._answered |= answered_in(event)
            for call in calls_in(event):
                self._take(call)
        if is_end(event, self.id) and isinstance(event, AgentResponse):
            self._end = event
            await self.close()
        return event

    async def deltas(self) -> AsyncIterator[str]:
        """The answer's text in pieces; joined, they are what `text` gives.

        What sub-agents say is left out. An answer that a lost worker cut off is written anew after it, and
        then comes twice, the first time not to its end.

        Raises:
            TurnFailed, TurnCanceled: the turn ended so.
            UnansweredCall: the agent waits for a function that nobody registered.
            Others: as iterating.
        """
        speech = Speech()
        last = ""
        async for event in self._attended():
            for piece in speech.pieces(event):
                if piece.voice is Voice.ANSWER:
                    if last not in ("", piece.message):
                        yield BETWEEN_MESSAGES
                    last = piece.message
                    yield piece.text
        self._check()

    async def messages(self) -> AsyncIterator[Message]:
        """Each message when it is complete: answers, thoughts, calls and their results, of sub-agents too.

        Raises:
            As `deltas`.
        """
        async for event in self._attended():
            if isinstance(event, Message) and event.status in (RunStatus.Completed, RunStatus.Incomplete):
                yield event
        self._check()

    async def text(self) -> str:
        """The agent's whole answer, its messages parted by an empty line.

        Raises:
            As `deltas`.
        """
        end = await self.finished()
        self._check()
        return BETWEEN_MESSAGES.join(text_of(message) for message in answers(end.output or []))

    async def finished(self) -> AgentResponse:
        """The terminal event: completed, failed or canceled, with the whole output and the tokens used.

        Raises:
            UnansweredCall: the agent waits for a function that nobody registered.
            Others: as iterating.
        """
        async for _ in self._attended():
            pass
        if self._end is None:
            raise RuntimeError("the reply was closed before its end")
        return self._end

    # ── what can be done ──

    async def answer(self, call: str | Call | Approval, result: Any) -> None:
        """Answer a call; a repeat changes nothing. For an approval: true, false, or with a reason.

        Raises:
            NotFound, Conflict, Gone: the call is unknown, its turn has ended, or its deadline has passed.
            Others: as iterating.
        """
        await self.session.answer(call if isinstance(call, str) else call.id, result)

    async def stop(self) -> None:
        """End the turn. When this returns it has ended; what was said stays said.

        Raises:
            NotFound: it was never accepted, or is forgotten.
            Others: as iterating.
        """
        await self.session.stop(self.id)

    async def close(self) -> None:
        """Leave: connections are closed, the turn goes on."""
        answering, self._answering = self._answering, set()
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        await self._following.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # ── within ──

    async def _attended(self) -> AsyncIterator[TurnEvent]:
        """The events; a call that nobody is there for is an error, since nobody else sees it."""
        while True:
            unattended = [call for call in self.open_calls if not self._functions.covers(call)]
            try:
                event = await (self._next_within(SETTLED_SECONDS) if unattended else anext(self))
            except StopAsyncIteration:
                return
            except TimeoutError:
                await self.close()
                call = unattended[0]
                raise UnansweredCall(call.name, approval=isinstance(call, Approval)) from None
            yield event

    async def _next_within(self, seconds: float) -> TurnEvent:
        reading = asyncio.ensure_future(anext(self))
        try:
            await asyncio.wait({reading}, timeout=seconds)
            if reading.done():
                return reading.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        raise TimeoutError

    def _take(self, call: Call | Approval) -> None:
        known = call.id in self._calls
        self._calls[call.id] = call
        if known or not self._functions.covers(call):
            return
        task = asyncio.create_task(self._answer(call), name=f"answer {call.id}")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, call: Call | Approval) -> None:
        if self._known:
            await asyncio.sleep(SETTLED_SECONDS)
            if call.id in self._answered:
                return
        result = await self._functions.answer(call)
        try:
            await self.session.answer(call.id, result)
        except Refused as error:
            if error.status == 413:
                await self.session.answer(call.id, {"error": f"{call.name}: its result is too large"})
                return
            # Somebody else answered, or the turn has ended: the stream tells.
            log.warning("the answer to %r was not taken: %s", call.name, error)
        except ClientError:
            log.exception("the answer to %r could not be delivered", call.name)

    def _check(self) -> None:
        if self._end is None or self._end.status == RunStatus.Completed:
            return
        raise (TurnCanceled if self._end.status == RunStatus.Canceled else TurnFailed)(self._end)
