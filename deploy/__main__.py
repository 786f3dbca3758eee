"""``python -m deploy``: the local cluster in the foreground, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from deploy.cluster import Cluster, ClusterError
from deploy.welcome import welcome

_COLOURS = {"broker": 35, "sessions": 35, "replica": 35, "worker": 33, "api": 36, "nginx": 32, "cluster": 1}


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy", description=__doc__)
    parser.add_argument("--port", type=int, default=8080, help="where nginx listens (8080)")
    parser.add_argument("--front-ends", type=int, default=2, help="how many (2)")
    parser.add_argument("--workers", type=int, default=2, help="how many (2)")
    parser.add_argument(
        "--brokers",
        type=int,
        default=1,
        help="how many have the sessions (1); from 3 on they are a Redis Cluster, each with a replica, beside the broker",
    )
    parser.add_argument(
        "--folder", type=Path, help="keeps keys, passwords and data; without it they are gone at the end"
    )
    given = parser.parse_args()
    folder = (
        tempfile.TemporaryDirectory(prefix="turnstream-")
        if given.folder is None
        else nullcontext(given.folder)
    )
    try:
        with folder as where:
            cluster = Cluster(
                Path(where).absolute(),
                front_ends=given.front_ends,
                workers=given.workers,
                brokers=given.brokers,
                port=given.port,
                say=say,
            )
            asyncio.run(run(cluster))
    except ClusterError as error:
        sys.stderr.write(f"cluster: {error}\n")
        return 2
    return 0


async def run(cluster: Cluster) -> None:
    """Start, tell how to begin, and wait for Ctrl-C."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    starting = asyncio.create_task(cluster.__aenter__())
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, _end, asked, starting)
    begun = time.monotonic()
    try:
        await starting
    except asyncio.CancelledError:
        if asked.is_set():
            return
        raise
    try:
        say("cluster", f"ready after {time.monotonic() - begun:.1f} s")
        sys.stdout.write(await welcome(cluster))
        sys.stdout.flush()
        await asked.wait()
    finally:
        say("cluster", "ending: workers, front ends, nginx, broker")
        await cluster.end()
        say("cluster", "ended")


def _end(asked: asyncio.Event, starting: asyncio.Task[Cluster]) -> None:
    asked.set()
    starting.cancel()


def say(name: str, line: str) -> None:
    """One line of one process."""
    text = f"{name:<10}│ "
    if sys.stdout.isatty():
        text = f"\x1b[{_COLOURS.get(name.partition('-')[0], 0)}m{text}\x1b[0m"
    sys.stdout.write(f"{text}{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
