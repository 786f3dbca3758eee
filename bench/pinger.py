"""What others' commands take at a broker meanwhile: a process of its own that sends PING about every millisecond.

``python -m bench.pinger PORT``: at each line it is given it tells percentiles since the line before (ms), and how many they are of.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.table import percentile

if TYPE_CHECKING:
    from collections.abc import Iterator

BETWEEN_SECONDS = 0.001


class Pinger:
    """Asks the process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def told(self) -> tuple[float, float]:
        """The 99th percentile and the longest since this was asked last, in ms."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        p99, most = self._process.stdout.readline().split()
        return float(p99), float(most)


@contextmanager
def pinger(port: int) -> Iterator[Pinger]:
    """Start it, and end it on the way out."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Pinger(process)
        finally:
            assert process.stdin
            process.stdin.close()


def main(port: int) -> None:
    """Ping until standard input ends."""
    times: list[float] = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            begun = time.perf_counter()
            connection.sendall(b"PING\r\n")
            connection.recv(64)
            times.append(1000 * (time.perf_counter() - begun))
            if select.select([sys.stdin], [], [], BETWEEN_SECONDS)[0]:
                if not sys.stdin.readline():
                    return
                print(f"{percentile(times, 0.99):.3f} {max(times):.3f}", flush=True)
                times.clear()


if __name__ == "__main__":
    main(int(sys.argv[1]))
