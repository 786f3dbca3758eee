"""One turn of a test: begun by the client, looked at in the log."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import TYPE_CHECKING, Any

from turnstream.client.speech import answers, text_of
from turnstream.shared.session.status import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnstream.client import AgentResponse, Approval, Call, Message
    from turnstream.client.sync import Reply
    from turnstream.testing.record import Record, RecordedCall

# How long a test waits for anything before it fails, whatever it waits for; and between two looks.
PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.02


class Turn:
    """A turn that was begun; what is asserted of it is read from the deployment when it is asked for.

    Attributes:
        reply: the client's reply, for its events and for whatever this class does not have.
        id: the task's id.
        session: the session's id.
    """

    def __init__(self, reply: Reply, look: Callable[[str, str], tuple[dict[str, Any], Record]]) -> None:
        self.reply = reply
        self.id = reply.id
        self.session = reply.session.id
        self._look = look
        self._end: AgentResponse | None = None

    # ── how it goes on ──

    def parked(self) -> list[Call | Approval]:
        """Wait until the turn is parked: no worker has it, and it waits for its client. Returns the calls that are open.

        Raises:
            AssertionError: it ended instead, or was not parked in time.
        """
        ends = time.monotonic() + PATIENCE_SECONDS
        while (status := self.status) != "parked":
            if status in TERMINAL:
                raise AssertionError(f"the turn was not parked: {self}")
            if time.monotonic() > ends:
                raise AssertionError(
                    f"waited {PATIENCE_SECONDS:g} s in vain for the turn to be parked: {self}"
                )
            time.sleep(LOOK_SECONDS)
        while not self.reply.open_calls:
            next(iter(self.reply))
        return self.reply.open_calls

    def answer(self, call: str | Call | Approval, result: Any) -> None:
        """Answer an open call, by itself or by its name. An approval: true, false, or one of them with a reason.

        Raises:
            AssertionError: no open call has this name.
        """
        if isinstance(call, str):
            named = [each for each in self.reply.open_calls if each.name == call]
            if not named:
                raise AssertionError(f"no call of {call!r} is open: {self}")
            call = named[0]
        self.reply.answer(call, result)

    def end(self) -> Turn:
        """Wait for the end, whatever it is. The client's functions answer meanwhile.

        Raises:
            UnansweredCall: it waits for a function of the client that is not registered: register it, or see `parked`.
            AssertionError: it did not end in time.
        """
        done: Future[AgentResponse] = Future()

        def finish() -> None:
            try:
                done.set_result(self.reply.finished())
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=finish, daemon=True).start()
        try:
            self._end = done.result(PATIENCE_SECONDS)
        except NotInTime:
            if done.done():
                raise
            raise AssertionError(
                f"waited {PATIENCE_SECONDS:g} s in vain for the turn to end: {self}"
            ) from None
        return self

    # ── what is known of it ──

    @property
    def text(self) -> str:
        """The agent's answer, once the turn has ended.

        Raises:
            TurnFailed, TurnCanceled: it ended so; says why.
        """
        return self.reply.text()

    @property
    def error(self) -> str:
        """Why it failed, as the client reads it; empty if it did not."""
        error = self._ended.error
        return f"{error.message} ({error.code})" if error is not None else ""

    @property
    def messages(self) -> list[Message]:
        """All that was said, calls and results among it, once the turn has ended."""
        return list(self._ended.output or [])

    @property
    def answers(self) -> list[str]:
        """The texts that the agent itself said to the user, one for each message."""
        return [text_of(message) for message in answers(self.messages)]

    @property
    def status(self) -> str:
        """``queued``, ``running``, ``parked``, ``completed``, ``failed`` or ``canceled``."""
        return str(self._look(self.session, self.id)[0]["status"])

    @property
    def calls(self) -> list[RecordedCall]:
        """Its calls, in the order in which they were made."""
        return self._look(self.session, self.id)[1].calls

    def called(self, name: str, **arguments: Any) -> RecordedCall:
        """The call of that name; with ``arguments`` the one that has these, whatever others it has.

        Raises:
            AssertionError: there is none, or several; names all calls.
        """
        fitting = [
            call for call in self.calls if call.name == name and arguments.items() <= call.arguments.items()
        ]
        if len(fitting) == 1:
            return fitting[0]
        made = "; ".join(map(str, self.calls)) or "none"
        raise AssertionError(
            f"{len(fitting)} calls of {name!r} with {arguments} were made. All calls: {made}"
        )

    @property
    def parks(self) -> int:
        """How often it was parked. A client that answers at once may be faster than that: then it is 0."""
        return self._look(self.session, self.id)[1].parks

    @property
    def resumes(self) -> int:
        """How often a worker took it up again: after a park, and after a crash."""
        return max(0, int(self._look(self.session, self.id)[0]["attempt"]) - 1)

    @property
    def crashes(self) -> int:
        """How many workers it has lost."""
        return int(self._look(self.session, self.id)[0]["crashes"])

    def __repr__(self) -> str:
        try:
            row, record = self._look(self.session, self.id)
        except Exception as error:
            return f"<Turn {self.id}: {type(error).__name__}>"
        made = "; ".join(map(str, record.calls)) or "none"
        why = f" {self._end.error.message}" if self._end is not None and self._end.error is not None else ""
        return f"<Turn {self.id}: {row['status']}{why}; calls: {made}; parks: {record.parks}; crashes: {row['crashes']}>"

    @property
    def _ended(self) -> AgentResponse:
        if self._end is None:
            raise AssertionError("the turn has not ended: call end()")
        return self._end
