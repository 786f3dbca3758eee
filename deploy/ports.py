"""Ports of this machine, for servers that other processes are to be told of before they start."""

from __future__ import annotations

import os
import socket
from itertools import count

# Below what a system gives to outgoing connections (Linux: 32768 up, IANA: 49152 up): else one of those may have taken
# the port before its server starts.
FIRST, COUNT = 16384, 16384

# Processes that ask at the same time, their ids near to each other, begin far from each other.
_STRIDE = 257

_numbers = count(os.getpid() * _STRIDE)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, and that this process was not given before.

    Raises:
        OSError: every port is taken.
    """
    for _ in range(COUNT):
        port = FIRST + next(_numbers) % COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port from {FIRST} to {FIRST + COUNT - 1} of 127.0.0.1 is free")
