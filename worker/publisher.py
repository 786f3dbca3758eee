"""From an agent's events to the log: batches that grow by themselves.

While one append is in flight, what the agent says gathers; the next append takes all of it, neighbouring pieces of a
text as one event. When the process is busy, text waits some milliseconds more for what follows it
(`turnstream.worker.flush_window`); all else is appended at once, and takes the text before it along. So an idle system
appends each event at once, a busy one fewer, larger batches, and a broker that is slow or away slows the agent, not memory.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from turnstream.shared import metrics
from turnstream.shared.session.batch import Batch, TooLarge
from turnstream.shared.session.outcomes import Appended, Fenced
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnstream.shared.offload import ThreadOffload
    from turnstream.shared.session.outcomes import Attempt, Refusal
    from turnstream.shared.session.tasks import Tasks
    from turnstream.worker.flush_window import FlushWindow

log = structlog.get_logger(__name__)

# What may gather before the agent has to wait. Smaller, and a fast agent is slowed by every round
# trip; larger, and a broker that is away costs memory, and one append holds the broker for long.
MOST_GATHERED = 256
MOST_GATHERED_BYTES = 256 * 1024


class LostAttempt(Exception):  # noqa: N818 - it is not an error to lose one
    """The log refused this attempt: a newer one has the task, or it has ended."""


class TurnTooLarge(TooLarge):
    """The turn made more events than it may. A live turn's events are never trimmed, so they are bounded here."""


class Publisher:
    """Appends one attempt's events.

    Duties:
        1. gather events in `batch`, bounded (`room`);
        2. append them in order, each batch once, whatever replies are lost;
        3. tell when all is in the log (`flush`);
        4. tell when the log refused (``on_refusal``), and accept nothing after that, nor after `seal`.
    """

    def __init__(
        self,
        tasks: Tasks,
        attempt: Attempt,
        on_refusal: Callable[[Refusal], None],
        offload: ThreadOffload,
        window: FlushWindow,
        *,
        most_bytes: int,
    ) -> None:
        """``offload`` is where large data is taken out of what is appended, ``window`` how long text may wait."""
        self.offload = offload
        self.batch = Batch(largest=most_bytes, known=attempt.files)
        self._tasks = tasks
        self._attempt = attempt
        self._on_refusal = on_refusal
        # Whether `LostAttempt` was raised to somebody who waited to write more.
        self.raised = False
        self._refused = False
        self._sealed = False
        self._most_bytes = most_bytes
        self._bytes = 0
        self.window = window
        # When the last append was begun, and the timer of the text that waits for the next.
        self._begun = 0.0
        # Whether a checkpoint of this attempt is in the log's store.
        self.progressed = False
        self._text_timer: asyncio.TimerHandle | None = None
        self._gathered = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        # Set when the append that takes what gathers now is done.
        self._landed = asyncio.Event()
        # Set while no append is in flight.
        self._between = asyncio.Event()
        self._between.set()
        self._held_back = False
        # Messages that are open in the log → seq of their first entry.
        self.open: dict[str, int] = dict(attempt.open)
        self._loop = asyncio.create_task(self._publish(), name=f"publisher {attempt.ref}")

    def kick(self, *, text: bool = False) -> None:
        """Say that something was put into `batch`; ``text``: nothing but a piece of text, which may wait for more."""
        if self._sealed:
            return
        if text and (window := self.window.seconds()):
            if self._text_timer is None:
                loop = asyncio.get_running_loop()
                self._text_timer = loop.call_at(self._begun + window, self._gathered.set)
        else:
            self._gathered.set()

    async def room(self) -> None:
        """Wait until there is room for more; returns at once when there is.

        Raises:
            LostAttempt: nothing may be written any more.
            TurnTooLarge: this turn has written all it may.
        """
        self._check()
        if self._bytes + self.batch.size > self._most_bytes:
            raise TurnTooLarge
        while self.batch.count >= MOST_GATHERED or self.batch.size >= MOST_GATHERED_BYTES:
            self._emptied.clear()
            self._gathered.set()
            await self._emptied.wait()
            self._check()

    def _check(self, *, sealed: bool = True) -> None:
        if self._refused or (sealed and self._sealed):
            self.raised = True
            raise LostAttempt

    async def seal(self) -> None:
        """Put what was said so far into the log, and take nothing more, whoever still says something.

        Raises:
            LostAttempt: nothing may be written any more.
        """
        self._sealed = True
        self._emptied.set()
        await self._drain()
        await self.close()

    async def flush(self) -> None:
        """Wait until everything gathered so far is in the log, not for what is said meanwhile.

        Raises:
            LostAttempt: it never will be.
        """
        if not self._sealed:
            await self._drain()

    async def _drain(self) -> None:
        self._check(sealed=False)
        self._held_back = False
        landed = self._landed
        self._gathered.set()
        await landed.wait()
        self._check(sealed=False)

    async def withdraw(self, calls: Sequence[str]) -> set[str]:
        """Take calls to the client back; those of them that it had answered by then.

        Raises:
            LostAttempt: nothing may be written any more.
        """
        for call in calls:
            self.batch.withdraw(call)
        await self.flush()
        return await self._tasks.answered(self._attempt.ref, calls)

    async def settle(self) -> None:
        """Wait until no append is in flight; what gathered meanwhile stays in `batch`.

        Raises:
            LostAttempt: nothing may be written any more.
        """
        self._held_back = True
        self._gathered.set()
        await self._between.wait()
        self._check(sealed=False)

    async def keep(self, name: str, value: bytes) -> None:
        """Keep a checkpoint by itself, after `seal`.

        Raises:
            LostAttempt: nothing may be written any more.
        """
        batch = Batch(largest=self._most_bytes, known=self._attempt.files)
        batch.keep(name, value)
        if (refusal := await self._append(batch)) is not None:
            self._lose(refusal)
            raise LostAttempt

    def take(self) -> Batch:
        """What has gathered, for a script that takes it along (after `settle`)."""
        batch = self.batch
        self.batch = Batch(largest=self._most_bytes, known=self._attempt.files)
        return batch

    async def close(self) -> None:
        """Stop, without waiting for what is not in the log yet."""
        self._sealed = True
        self._stop_timer()
        self._loop.cancel()
        self._emptied.set()
        self._landed.set()
        await asyncio.gather(self._loop, return_exceptions=True)

    async def _publish(self) -> None:
        while True:
            await self._gathered.wait()
            self._gathered.clear()
            self._stop_timer()
            if self._held_back:
                continue
            batch = self.take()
            landed, self._landed = self._landed, asyncio.Event()
            self._bytes += batch.size
            self._emptied.set()
            refusal: Refusal | None = None
            try:
                if batch:
                    self._between.clear()
                    self._begun = asyncio.get_running_loop().time()
                    refusal = await self._append(batch)
                    self._between.set()
            finally:
                landed.set()
            if refusal is not None:
                self._lose(refusal)
                return

    def _lose(self, refusal: Refusal) -> None:
        """Nothing may be written any more: it is raised to those that wait, and the turn is cancelled."""
        self._refused = True
        self._landed.set()
        self._emptied.set()
        self._on_refusal(refusal)

    def _stop_timer(self) -> None:
        if self._text_timer is not None:
            self._text_timer.cancel()
            self._text_timer = None

    async def _append(self, batch: Batch) -> Refusal | None:
        ref, claim = self._attempt.ref, self._attempt.claim
        op = operation()
        begun = time.monotonic()
        outcome: Appended | Refusal
        try:
            if batch.uncut:
                await self.offload.run(ref.owner, batch.cut_all)
            outcome = await self._tasks.append(ref, claim, batch, op)
        except Exception:
            # The broker refuses the batch itself. Going on without it would leave a hole.
            log.exception("publisher.failed", ref=str(ref), attempt=claim.number)
            outcome = Fenced()
        if isinstance(outcome, Appended):
            metrics.append_seconds.add(time.monotonic() - begun)
            metrics.events_appended.n += batch.count
            self.progressed |= batch.progress
            self._attempt.files.update(batch.files)
            first = outcome.seq - batch.count + 1
            self.open.update({message: first + at for message, at in batch.opened.items()})
            for message in batch.closed:
                self.open.pop(message, None)
            return None
        return outcome
