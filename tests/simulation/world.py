"""What a program learns of the world, under a seed: time, random numbers, identifiers, and the machine that it is on."""

from __future__ import annotations

import itertools
import os
import random
import socket
import time
import uuid
from contextlib import contextmanager
from datetime import datetime, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

import pydantic_ai._utils
from anyio._backends._asyncio import AsyncIOBackend, CancelScope

from tests.simulation.agents import demo_script
from tests.simulation.loop import Process, current
from turnstream.shared.session import tasks
from turnstream.worker import flush_window
from turnstream.worker.agents import demo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.loop import SimulatedLoop


class _Operations:
    """Operation ids: each process counts its own, from anywhere on."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._of: dict[Process, Iterator[int]] = {}

    def __next__(self) -> int:
        process = current()
        if process not in self._of:
            self._of[process] = itertools.count(self._rng.getrandbits(52))
        return next(self._of[process])


def _same_hash(_: object) -> int:
    return 0


class _Datetime(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls.fromtimestamp(time.time(), tz)


# Where virtual time begins, Unix seconds.
BEGIN = 1_750_000_000.0

# The machine's name: in ids of processes, which go over the wire, and whose length and order matter there.
HOST = "vm"


@contextmanager
def seeded(loop: SimulatedLoop, seed: int) -> Iterator[None]:
    """While it lasts: virtual time, random numbers of the seed, and nothing of this machine."""
    rng = random.Random(f"world {seed}")
    state = random.getstate()
    random.seed(f"module {seed}")
    clock: Any = loop.time
    load = rng.choice([0.0, 0.35, 1.0])

    def wanted() -> float:
        return load * loop.time()

    def unix() -> float:
        return BEGIN + loop.time() + current().ahead

    def unix_ns() -> int:
        return int(unix() * 1e9)

    def clock_ns() -> int:
        return int(clock() * 1e9)

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    async def beside(function: Callable[..., Any], args: tuple[Any, ...], **_: Any) -> Any:
        return await loop.run_in_executor(None, partial(function, *args))

    patched: list[Any] = [
        mock.patch.object(time, "time", unix),
        mock.patch.object(time, "monotonic", clock),
        mock.patch.object(time, "perf_counter", clock),
        mock.patch.object(time, "time_ns", unix_ns),
        mock.patch.object(time, "monotonic_ns", clock_ns),
        mock.patch.object(os, "urandom", rng.randbytes),
        mock.patch.object(random, "_urandom", rng.randbytes),
        # They stand in sets, which are gone through by where they lie in memory.
        mock.patch.object(CancelScope, "__hash__", _same_hash),
        # As `SimulatedLoop.run_in_executor`: a real thread comes back when it likes.
        mock.patch.object(AsyncIOBackend, "run_sync_in_worker_thread", beside),
        # In the messages of the agent library.
        mock.patch.object(pydantic_ai._utils, "datetime", _Datetime),
        mock.patch.object(tasks, "_operations", _Operations(rng)),
        mock.patch.object(demo, "_demo", demo_script),
        # In some runs processes are idle, in others so busy that text waits for more.
        mock.patch.object(flush_window, "cpu_wanted", wanted),
        mock.patch.object(os, "getpid", return_value=1),
        mock.patch.object(socket, "gethostname", return_value=HOST),
        # Settings are read from it that are not given, by names in letters of any size.
        mock.patch.dict(os.environ, clear=True),
        mock.patch.object(uuid, "uuid4", uuid4),
    ]
    for each in patched:
        each.start()
    try:
        yield
    finally:
        for each in reversed(patched):
            each.stop()
        random.setstate(state)
