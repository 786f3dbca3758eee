"""A process that holds many streams and reads them as cheaply as it can; it looks at them when all is over."""

from __future__ import annotations

import re
import select
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# Connections that are opened before their first bytes are awaited.
AT_ONCE = 64

OPEN_SECONDS = 20

# Each source address has its own ports.
_SOURCES = 200

_NUMBER = re.compile(rb'"sequence_number":(\d+),')


class _Held:
    """One stream. What was looked at is forgotten; frames are never torn apart by the server's chunks."""

    __slots__ = ("chunks", "count", "first", "last", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.chunks: list[bytes] = []
        self.first, self.last, self.count = -1, -1, 0

    def look(self) -> None:
        """Take account of what came.

        Raises:
            AssertionError: an event is missing, doubled or out of order, or the answer is an error.
        """
        raw = b"".join(self.chunks)
        assert not raw.startswith(b"HTTP/1.1 ") or raw.startswith(b"HTTP/1.1 200"), raw[:300]
        end = 0
        for match in _NUMBER.finditer(raw):
            number, end = int(match[1]), match.end()
            if self.first < 0:
                self.first, self.last = number, number - 1
            assert number == self.last + 1, f"event {number} came after {self.last}"
            self.last = number
            self.count += 1
        self.chunks = [raw[end:]]


def serve(pipe: Connection) -> None:
    """Read, and answer.

    ``("open", port, requests)`` with the number of streams held; each must have begun to answer.
    ``("numbers",)`` for each stream the first and last sequence number and how many there were, dense and in
    order. ``("pause", seconds)``: between two looks at what has come so long a time passes, so that a look
    finds more at once. ``("close",)`` ends the streams.
    """
    held: dict[int, _Held] = {}
    poll = select.epoll()
    poll.register(pipe.fileno(), select.EPOLLIN)
    pause = 0.0
    while True:
        asked = False
        for number, _ in poll.poll(pause or 0.05):
            if number == pipe.fileno():
                asked = True
                continue
            each = held[number]
            try:
                data = each.socket.recv(1 << 18)
            except BlockingIOError:
                continue
            if not data:
                # Its account stays.
                poll.unregister(number)
                each.socket.close()
                continue
            each.chunks.append(data)
        if asked:
            match pipe.recv():
                case ("open", port, requests):
                    for at in range(0, len(requests), AT_ONCE):
                        for each in _open(port, requests[at : at + AT_ONCE], len(held)):
                            held[each.socket.fileno()] = each
                            poll.register(each.socket.fileno(), select.EPOLLIN)
                    pipe.send((True, len(held)))
                case ("numbers",):
                    for each in held.values():
                        each.look()
                    pipe.send((True, [(each.first, each.last, each.count) for each in held.values()]))
                case ("pause", seconds):
                    pause = seconds
                    pipe.send((True, None))
                case ("close",):
                    for each in held.values():
                        each.socket.close()
                    held.clear()
                    pipe.send((True, None))
                case unknown:
                    raise ValueError(unknown)
        if pause:
            time.sleep(pause)


def _open(port: int, requests: list[bytes], already: int) -> list[_Held]:
    """Open streams, and wait until each has begun to answer."""
    opened = []
    for number, request in enumerate(requests, already):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.bind((f"127.0.0.{2 + number % _SOURCES}", 0))
        connection.settimeout(OPEN_SECONDS)
        connection.connect(("127.0.0.1", port))
        connection.sendall(request)
        opened.append(_Held(connection))
    for each in opened:
        each.chunks.append(each.socket.recv(1 << 16))
        each.socket.setblocking(False)
    return opened
