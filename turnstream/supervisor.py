"""The supervisor of ``--processes N``: starts as many processes of one role, and keeps them running."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from turnstream.process import on_signals
from turnstream.shared.listening import bind, listen
from turnstream.shared.prometheus import merged
from turnstream.shared.siblings import LINE_BYTES, METRICS, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnstream.shared.settings import Settings

log = structlog.get_logger(__name__)

# Between a process's end and its successor's start: at first, and at most; twice as long each time that one ends young.
AGAIN_SECONDS = 0.5
MOST_AGAIN_SECONDS = 30.0
YOUNG_SECONDS = 60.0

# What a process may take to end beyond the time that its turns get: a worker gives the rest back, a front end answers
# requests, and what is left is ended. Shorter, and it is killed over that; `stop_grace_period` and the like are longer.
END_SECONDS = 18.0


# How long what a process said last may take to be read once it has ended. Its link may stay open for as long as what it
# forked, a pool of an agent's say, holds it.
LAST_WORDS_SECONDS = 1.0


class Child:
    """One process, and the link to it."""

    def __init__(self, process: asyncio.subprocess.Process, link: socket.socket) -> None:
        self.process = process
        self.link = link
        self.begun = time.monotonic()
        self.linked = False
        self.ready = asyncio.Event()
        # What it counted, by question: as it said last.
        self.counted: dict[str, str] = {}
        self.ended: asyncio.Task[int]
        self.reading: asyncio.Task[None]
        self._writer: asyncio.StreamWriter | None = None
        self._replies: dict[int, asyncio.Future[str]] = {}
        self._numbers = itertools.count()

    def begin(self, collect: Callable[[Child, dict[str, Any]], None]) -> None:
        """Watch for its end, and take what it says; ``collect`` gets what it asks of its siblings."""
        self.ended = asyncio.create_task(self.process.wait(), name=f"process {self.process.pid}")
        self.reading = asyncio.create_task(self._read(collect), name=f"link to {self.process.pid}")

    async def _read(self, collect: Callable[[Child, dict[str, Any]], None]) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self.link, limit=LINE_BYTES)
        # A line that has no end: the process was killed while it wrote.
        with closing(self._writer), suppress(OSError, ValueError):
            while line := await reader.readline():
                message = orjson.loads(line)
                if "ask" in message:
                    collect(self, message)
                elif "reply" in message:
                    reply = self._replies.get(message["reply"])
                    if reply is not None and not reply.done():
                        reply.set_result(message["text"])
                elif "last" in message:
                    self.counted |= message["last"]
                elif "ready" in message:
                    self.ready.set()
                else:
                    self.linked = True

    def send(self, message: dict[str, Any]) -> None:
        """Say something to it; to one that has ended, nothing."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(orjson.dumps(message) + b"\n")

    async def ask(self, question: str, seconds: float) -> str | None:
        """Its answer; None if it gave none in time, or ended."""
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        self.send({"question": question, "reply": number})
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait([reply, self.reading], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            return None
        finally:
            del self._replies[number]
        if not reply.done():
            return None
        if question in METRICS:
            self.counted[question] = reply.result()
        return str(reply.result())

    def kill(self) -> None:
        """End it at once."""
        if self.process.returncode is None:
            self.process.kill()


@dataclass(slots=True)
class Slot:
    """The place of one process, now held by ``child``; its sockets outlive it, and keep connections that wait."""

    sockets: dict[str, socket.socket]
    child: Child
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class StartError(Exception):
    """The first process ended before it was ready, after it said why; ``code`` is its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


class Supervisor:
    """Keeps as many processes of one role running as it is told to.

    Duties:
        1. bind the ports; start the first process alone, since one that cannot start is not to be started again;
        2. start another process in the place of one that ended, later each time when they end young;
        3. have all processes answer what one of them is asked, and keep what those counted that have ended;
        4. at SIGHUP replace one process after the other, at SIGTERM or SIGINT have all end; kill those that do not.
    """

    def __init__(self, settings: Settings, role: str, processes: int) -> None:
        self._role = role
        self._processes = processes
        self._host = settings.host
        # Each process has a socket of its own on the port for clients; that for metrics, if there is one, is one for all.
        self._wanted = {} if role == "worker" else {"TURNSTREAM_PORT": settings.port}
        self._wanted_shared = {} if role == "api" else {"TURNSTREAM_METRICS_PORT": settings.metrics_port}
        self._end_seconds = END_SECONDS + (0.0 if role == "api" else settings.drain_seconds)
        self._ports: dict[str, int] = {}
        self._shared: dict[str, socket.socket] = {}
        self._children: set[Child] = set()
        self._counted: dict[str, str] = {}
        self._collecting: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._hung_up = asyncio.Event()

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT.

        Raises:
            ConfigurationError: a port is taken.
            StartError: the first process could not start.
        """
        on_signals(self._stopping.set, self._kill)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hung_up.set)
        log.info("supervisor.started", role=self._role, processes=self._processes, pid=os.getpid())
        stopped = asyncio.create_task(self._stopping.wait(), name="stopped")
        keeping = asyncio.create_task(self._keep_all(), name="keeping")
        try:
            await asyncio.wait([stopped, keeping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            keeping.cancel()
            [outcome] = await asyncio.gather(keeping, return_exceptions=True)
            await self._end(list(self._children))
            log.info("supervisor.stopped", role=self._role)
        if isinstance(outcome, Exception):
            raise outcome

    # ── processes ──

    async def _keep_all(self) -> None:
        for setting, port in self._wanted_shared.items():
            if port is not None:
                self._shared[setting] = listen(self._host, port, setting)
        for setting, port in self._wanted.items():
            # Sockets that share their port would share it with another supervisor's as well.
            listen(self._host, port, setting).close()
        first = await self._fill()
        await self._until_ready(first.child)
        if not first.child.ready.is_set():
            code = await self._has_ended(first.child)
            raise StartError(code if code >= 0 else 128 - code)
        slots = [first, *[await self._fill() for _ in range(1, self._processes)]]
        beside = [self._roll(slots), self._tell_ready(slots)]
        await asyncio.gather(*(self._keep(slot) for slot in slots), *beside)

    async def _fill(self) -> Slot:
        sockets = self._bind()
        return Slot(sockets, await self._spawn(sockets))

    def _bind(self) -> dict[str, socket.socket]:
        """A slot's sockets. On each port it has its own: the kernel spreads connections over them evenly.

        They listen from the first process on that serves with them, and when that one ends, connections wait in them.
        """
        sockets = dict(self._shared)
        for setting, port in self._wanted.items():
            sockets[setting] = bind(self._host, self._ports.get(setting, port), setting, shared=True)
            self._ports[setting] = sockets[setting].getsockname()[1]
        return sockets

    async def _spawn(self, sockets: dict[str, socket.socket]) -> Child:
        """The same command again, in a session of its own: a terminal's Ctrl-C is for the supervisor."""
        ours, theirs = socket.socketpair()
        with theirs:
            numbers = {name: each.fileno() for name, each in {**sockets, "link": theirs}.items()}
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *sys.orig_argv[1:],
                env={**os.environ, VARIABLE: orjson.dumps(numbers).decode()},
                pass_fds=tuple(numbers.values()),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        child = Child(process, ours)
        child.begin(self._collect)
        self._children.add(child)
        return child

    async def _another(self, slot: Slot) -> Child | None:
        """Another process for a slot; None if the system has no room for it now."""
        try:
            return await self._spawn(slot.sockets)
        except OSError as error:
            log.error("supervisor.not_started", error=f"{type(error).__name__}: {error}")
            return None

    async def _keep(self, slot: Slot) -> None:
        """Start another process whenever the slot's own ended, for ever."""
        again = AGAIN_SECONDS
        while True:
            child = slot.child
            code = await self._has_ended(child)
            if slot.child is not child:
                continue
            if time.monotonic() - child.begun > YOUNG_SECONDS:
                again = AGAIN_SECONDS
            log.error("supervisor.process_ended", pid=child.process.pid, code=code, again_in=again)
            if not child.ready.is_set():
                await self._bind_again(slot, child)
            while slot.child is child:
                await asyncio.sleep(again)
                again = min(2 * again, MOST_AGAIN_SECONDS)
                async with slot.lock:
                    if slot.child is child:
                        slot.child = await self._another(slot) or child

    async def _bind_again(self, slot: Slot, child: Child) -> None:
        """Let the connections go that wait for a process that cannot start; new ones go to the others meanwhile."""
        async with slot.lock:
            if slot.child is child:
                for setting in self._wanted:
                    slot.sockets[setting].close()
                slot.sockets = self._bind()

    async def _until_ready(self, child: Child) -> None:
        """Wait until it is ready, or has ended."""
        ready = asyncio.create_task(child.ready.wait())
        await asyncio.wait([ready, child.ended], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()

    async def _tell_ready(self, slots: list[Slot]) -> None:
        for slot in slots:
            await slot.child.ready.wait()
        pids = [slot.child.process.pid for slot in slots]
        log.info("supervisor.ready", role=self._role, pids=pids, ports=self._ports)

    # ── their ends ──

    async def _has_ended(self, child: Child) -> int:
        """Wait for its end, and keep what it counted; its exit code."""
        await asyncio.wait([child.ended])
        if (await asyncio.wait([child.reading], timeout=LAST_WORDS_SECONDS))[1]:
            child.reading.cancel()
        if child in self._children:
            self._children.remove(child)
            for question, text in child.counted.items():
                former = [self._counted[question]] if question in self._counted else []
                self._counted[question] = merged([*former, text], counted_only=True)
        return child.ended.result()

    async def _end(self, children: list[Child]) -> None:
        """Have them end; kill those that do not in their time."""
        if not children:
            return
        for child in children:
            if child.linked:
                child.send({"stop": True})
            else:
                child.kill()
        ending = {asyncio.create_task(self._has_ended(child)): child for child in children}
        _, left = await asyncio.wait(ending, timeout=self._end_seconds)
        for task in left:
            log.error(
                "supervisor.process_killed", pid=ending[task].process.pid, why="it did not end in its time"
            )
            ending[task].kill()
        if left:
            await asyncio.wait(left)

    def _kill(self) -> None:
        for child in self._children:
            child.kill()

    # ── replacing ──

    async def _roll(self, slots: list[Slot]) -> None:
        """At each SIGHUP replace one process after the other, until one of the new ones cannot start."""
        while True:
            await self._hung_up.wait()
            self._hung_up.clear()
            log.info("supervisor.rolling", role=self._role)
            for slot in slots:
                if not await self._replace(slot):
                    log.error(
                        "supervisor.not_rolled", todo="see above why; processes that were not replaced go on"
                    )
                    break
            else:
                log.info("supervisor.rolled", pids=[slot.child.process.pid for slot in slots])

    async def _replace(self, slot: Slot) -> bool:
        """Start the new process, and end the old one once that is ready; whether it could."""
        async with slot.lock:
            new = await self._another(slot)
            if new is None:
                return False
            await self._until_ready(new)
            if not new.ready.is_set():
                await self._has_ended(new)
                return False
            old, slot.child = slot.child, new
        await self._end([old])
        return True

    # ── asking all of them ──

    def _collect(self, asker: Child, message: dict[str, Any]) -> None:
        task = asyncio.create_task(self._answer(asker, message))
        self._collecting.add(task)
        task.add_done_callback(self._collecting.discard)

    async def _answer(self, asker: Child, message: dict[str, Any]) -> None:
        question, asked = message["question"], [each for each in self._children if each.linked]
        texts = await asyncio.gather(*(each.ask(question, message["seconds"]) for each in asked))
        if question in METRICS:
            # What was counted never gets less, nor counts twice: a silent one's as it said last, and that of one that ended
            # meanwhile stands below.
            found = [
                each.counted[question]
                for each in asked
                if each in self._children and question in each.counted
            ]
        else:
            found = [text for text in texts if text is not None]
        if question in self._counted:
            found.append(self._counted[question])
        silent = sum(
            text is None and not each.reading.done() for each, text in zip(asked, texts, strict=True)
        )
        asker.send({"answers": message["ask"], "texts": found, "silent": silent})
