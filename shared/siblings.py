"""Siblings: the processes that one supervisor started (``--processes``). What one is asked is answered by all of them.

The link to the supervisor is a socket pair of JSON lines. To the supervisor: ``{"linked": true}``, ``{"ready": true}``,
``{"ask": n, "question": …, "seconds": …}``, ``{"reply": n, "text": …}`` and, before the end, ``{"last": {question: text}}``;
from it: ``{"stop": true}``, ``{"question": …, "reply": n}`` and ``{"answers": n, "texts": […], "silent": k}``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from turnstream.shared.prometheus import exposition, merged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

log = structlog.get_logger(__name__)

# In the environment of a process that a supervisor started: the link, and the sockets to listen on by their settings.
VARIABLE = "TURNSTREAM_SUPERVISED"

# Room for a line: the metrics of all siblings.
LINE_BYTES = 16 * 2**20

# How long the siblings' answers are waited for. Longer than a command to a broker that is away takes (5 s): that is an
# answer, too.
ANSWER_SECONDS = 6.0

# A process whose event loop takes longer than this to answer does not look healthy.
ALIVE_SECONDS = 2.0

# Between two looks whether this process has become ready.
READY_LOOK_SECONDS = 0.1


class Question(StrEnum):
    """What a process is asked. To the ones about readiness the answer is what is wrong, empty if nothing is."""

    ALIVE = "alive"
    FRONT_END_READY = "front end ready"
    WORKER_READY = "worker ready"
    FRONT_END_METRICS = "front end metrics"
    WORKER_METRICS = "worker metrics"


_READINESS = (Question.FRONT_END_READY, Question.WORKER_READY)
METRICS = (Question.FRONT_END_METRICS, Question.WORKER_METRICS)

# What the processes behind one port are together; else it is what is wrong.
UP, READY = "up", "ready"


@dataclass(frozen=True, slots=True)
class Answers:
    """What this process and its siblings answered; of METRICS also what those counted that have ended.

    ``silent``: how many siblings gave no answer in time.
    """

    texts: list[str]
    silent: int = 0


class Siblings:
    """A process among its siblings; without a supervisor it has none, and answers for itself alone.

    Duties:
        1. answer what siblings are asked, and have them answer what this process is asked;
        2. tell the supervisor when this process is ready, and at its end what it has counted;
        3. stop this process when the supervisor wants that, or is gone.
    """

    def __init__(
        self, link: socket.socket | None = None, sockets: dict[str, socket.socket] | None = None
    ) -> None:
        self._link = link
        self._sockets = sockets or {}
        self._answer: dict[Question, Callable[[], Awaitable[str]]] = {Question.ALIVE: _alive}
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[Answers]] = {}
        self._numbers = itertools.count()
        self._replying: set[asyncio.Task[None]] = set()

    @classmethod
    def of_environment(cls) -> Siblings:
        """As the supervisor said, if one started this process."""
        # Not for the programs that this one may start.
        given = os.environ.pop(VARIABLE, "")
        if not given:
            return cls()
        numbers: dict[str, int] = orjson.loads(given)
        for number in numbers.values():
            os.set_inheritable(number, False)
        sockets = {name: socket.socket(fileno=number) for name, number in numbers.items()}
        return cls(sockets.pop("link"), sockets)

    @property
    def supervised(self) -> bool:
        """Whether a supervisor started this process."""
        return self._link is not None

    def listening(self, setting: str) -> socket.socket | None:
        """The socket to listen on instead of one of our own, by the setting of its port."""
        return self._sockets.pop(setting, None)

    def answer(self, question: Question, answer: Callable[[], Awaitable[str]]) -> None:
        """Have this function answer for this process."""
        self._answer[question] = answer

    async def ask(self, question: Question, seconds: float = ANSWER_SECONDS) -> Answers:
        """The answers of all; of this process alone where the supervisor does not collect them in time."""
        if self._writer is not None:
            number = next(self._numbers)
            answers: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
            self._asked[number] = answers
            self._send({"ask": number, "question": question, "seconds": seconds})
            try:
                async with asyncio.timeout(seconds + 1.0):
                    if (found := await answers).texts:
                        return found
            except TimeoutError:
                log.warning("siblings.supervisor_silent", question=question)
            finally:
                del self._asked[number]
        return Answers([await self._answer[question]()])

    async def alive(self) -> str:
        """UP while the event loop of every process turns, else ``silent``."""
        return "silent" if (await self.ask(Question.ALIVE, ALIVE_SECONDS)).silent else UP

    async def ready(self, question: Question) -> str:
        """READY while one process is, else what is wrong."""
        texts = (await self.ask(question)).texts
        return READY if "" in texts else texts[0]

    async def metrics(self, question: Question) -> str:
        """What all processes tell, as one exposition."""
        texts = (await self.ask(question)).texts
        return texts[0] if len(texts) == 1 else merged(texts)

    @asynccontextmanager
    async def linked(self, stop: Callable[[], None]) -> AsyncIterator[None]:
        """Keep the link to the supervisor, if there is one, while this process serves; ``stop`` has it end."""
        if self._link is None:
            yield
            return
        reader, self._writer = await asyncio.open_connection(sock=self._link, limit=LINE_BYTES)
        self._send({"linked": True})
        beside = [
            asyncio.create_task(self._read(reader, stop), name="supervisor"),
            asyncio.create_task(self._become_ready(), name="becoming ready"),
        ]
        try:
            yield
        finally:
            for task in (*beside, *self._replying):
                task.cancel()
            with suppress(OSError):
                # The broker is not asked any more: what was counted, without gauges.
                self._send({"last": {each.value: exposition({}) for each in METRICS if each in self._answer}})
                await self._writer.drain()
            self._writer.close()
            self._writer = None

    async def _become_ready(self) -> None:
        asked = [self._answer[each] for each in _READINESS if each in self._answer]
        while any([await answer() for answer in asked]):
            await asyncio.sleep(READY_LOOK_SECONDS)
        self._send({"ready": True})

    async def _read(self, reader: asyncio.StreamReader, stop: Callable[[], None]) -> None:
        # A line that has no end: the supervisor was killed while it wrote.
        with suppress(OSError, ValueError):
            while line := await reader.readline():
                message = orjson.loads(line)
                if "stop" in message:
                    stop()
                elif "question" in message:
                    task = asyncio.create_task(self._reply(message["reply"], message["question"]))
                    self._replying.add(task)
                    task.add_done_callback(self._replying.discard)
                else:
                    answers = self._asked.get(message["answers"])
                    if answers is not None and not answers.done():
                        answers.set_result(Answers(message["texts"], message["silent"]))
        log.error("siblings.supervisor_lost", todo="this process ends, as at SIGTERM; start all of it again")
        stop()

    async def _reply(self, number: int, question: str) -> None:
        try:
            # After a roll siblings may be of another release, and ask what this one does not know.
            self._send({"reply": number, "text": await self._answer[Question(question)]()})
        except Exception:
            log.exception("siblings.not_answered", question=question)

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(orjson.dumps(message) + b"\n")


async def _alive() -> str:
    return ""
