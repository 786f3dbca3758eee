"""One process of the local cluster: started, watched, shown, and ended by its own id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# A process that dies is started again after this, as a container would be.
AGAIN_SECONDS = 1.0

# One that dies sooner than this after its start will do so again.
YOUNG_SECONDS = 3.0

# Fields of a log line that the prefix or the clock on the wall tells already.
_KNOWN = {"event", "level", "timestamp", "at"}


@dataclass
class Part:
    """A process by its name in the cluster.

    Duties:
        1. start it in a process group of its own, so that Ctrl-C reaches us alone and the end has an order;
        2. show what it says, with its name in front;
        3. start it again when it dies, unless it never really lived.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    say: Callable[[str, str], None]
    # What it is told to end with, and how long it may take.
    ending: signal.Signals = signal.SIGTERM
    grace: float = 10.0
    port: int = 0
    gave_up: asyncio.Event = field(default_factory=asyncio.Event)
    _process: asyncio.subprocess.Process | None = None
    _watching: asyncio.Task[None] | None = None
    _ending: bool = False
    _heard: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """Its process id; another one after it was started again."""
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Start it, and watch it from now on."""
        await self._spawn()
        self._watching = asyncio.create_task(self._watch(), name=f"watch {self.name}")

    def said(self, *words: str) -> bool:
        """Whether one of its lines since its last start has all of these words."""
        return any(all(word in line for word in words) for line in self._heard)

    def signal(self, number: int) -> None:
        """Send it a signal; to one that has just ended, nothing."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def end(self) -> None:
        """Tell it to end, and make it end when it does not in its time."""
        self._ending = True
        self.signal(self.ending)
        if self._process is not None:
            try:
                async with asyncio.timeout(self.grace):
                    await self._process.wait()
            except TimeoutError:
                self.say(self.name, f"did not end within {self.grace:.0f} s: killed")
                self.signal(signal.SIGKILL)
        if self._watching is not None:
            await self._watching

    async def _spawn(self) -> None:
        self._heard.clear()
        self._process = await asyncio.create_subprocess_exec(
            *self.command,
            env=dict(self.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=2**20,
        )

    async def _watch(self) -> None:
        while True:
            begun = time.monotonic()
            process = self._process
            if process is None or process.stdout is None:
                raise RuntimeError(f"{self.name} was not started")
            async for line in process.stdout:
                text = readable(line.decode(errors="replace").rstrip())
                self._heard = [*self._heard[-200:], text]
                self.say(self.name, text)
            code = await process.wait()
            if self._ending:
                return
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            if time.monotonic() - begun < YOUNG_SECONDS and code > 0:
                self.say(self.name, f"ended right after its start ({how})")
                self.gave_up.set()
                return
            self.say(self.name, f"pid {process.pid} ended ({how}); it is started again")
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(AGAIN_SECONDS)
            if self._ending:
                return
            await self._spawn()
            self.say(self.name, f"is pid {self.pid} now")


def readable(line: str) -> str:
    """A line of a log: JSON as its event and ``name=value``, anything else as it is."""
    try:
        told: Any = json.loads(line)
    except ValueError:
        return line
    if not isinstance(told, dict):
        return line
    level = told.get("level", "info")
    words = [] if level == "info" else [level.upper()]
    if "event" in told:
        words.append(str(told["event"]))
    words += [
        f"{name}={value}" for name, value in told.items() if name not in _KNOWN and value not in ("", "-")
    ]
    return " ".join(words)
