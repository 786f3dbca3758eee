"""A process that is thousands of followers: they come back with their cursors, and know what they were shown and when."""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import re
import select
import socket
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from turnstream.client.retrying import Backoff

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# Connections that are opened at once while nothing is wrong.
AT_ONCE = 100

# An address of this machine for so many connections: nginx allows each some hundreds.
PER_ADDRESS = 50

# A try that failed is followed by the next one after this, where followers come back at once; the first one is not waited for.
AGAIN_SECONDS = 0.1

_FRAME = re.compile(rb'id: (\d+-\d+)\ndata: \{"sequence_number":(\d+),')
_RETRY_AFTER = re.compile(rb"\r\nretry-after: (\d+)\r\n", re.IGNORECASE)


@dataclass(slots=True)
class Attach:
    """One connection that was answered with a stream: Unix times of its beginning, its head, its first new event, and that one's number."""

    begun: float
    head: float
    new: float = 0.0
    number: int = -1


@dataclass(slots=True)
class View:
    """What one follower saw: ``digest`` is of all its frames, ``fault`` what was missing or doubled first."""

    last: int = -1
    digest: int = 0
    fault: str = ""
    refusals: list[str] = field(default_factory=list)
    attaches: list[Attach] = field(default_factory=list)
    arrivals: list[tuple[int, float]] = field(default_factory=list)


def extended(digest: int, cursor: bytes, event: bytes) -> int:
    """The digest of a view when one more event is shown."""
    return zlib.crc32(b"id: %b\ndata: %b" % (cursor, event), digest)


class _Follower:
    """One of them: its requests, its place, its connection."""

    __slots__ = (
        "_again", "_first", "_heard", "_ports", "_source", "_text", "attach", "cursor", "socket", "tries", "view",
    )  # fmt: skip

    def __init__(self, first: bytes, again: bytes, ports: list[int], source: str) -> None:
        self._first, self._again = first, again
        self._ports = itertools.cycle(ports)
        self._source = source
        self.cursor = b""
        self.tries = 0
        self.view = View()
        self.socket: socket.socket | None = None
        self.attach: Attach | None = None

    def connect(self) -> socket.socket:
        connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.bind((self._source, 0))
        self._heard = self._text = b""
        self.attach = Attach(time.time(), 0.0)
        code = connection.connect_ex(("127.0.0.1", next(self._ports)))
        assert code in (0, errno.EINPROGRESS), errno.errorcode[code]
        self.socket = connection
        return connection

    def ask(self) -> None:
        assert self.socket is not None
        with contextlib.suppress(OSError):
            if self.cursor:
                self.socket.send(self._again + b"Last-Event-ID: %b\r\n\r\n" % self.cursor)
            else:
                self.socket.send(self._first)

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    @property
    def is_open(self) -> bool:
        return self.socket is not None and self.attach is not None and self.attach.head > 0

    @property
    def is_hearing(self) -> bool:
        """Whether it has a stream, which has shown it something since `record`."""
        return (
            self.attach is not None and self.is_open and self.attach.number >= 0 and bool(self.view.arrivals)
        )

    def hear(self, data: bytes, *, recording: bool) -> bool:
        """Take what came; False when it is no stream, or its end."""
        assert self.attach is not None
        now = time.time()
        heard = self._heard + data
        if not self.attach.head:
            head, empty, heard = heard.partition(b"\r\n\r\n")
            if not empty:
                self._heard = head
                return True
            if not head.startswith(b"HTTP/1.1 200 "):
                self.view.refusals.append(head[9:12].decode())
                asked = _RETRY_AFTER.search(head + b"\r\n")
                self.attach.new = float(asked[1]) if asked else 0.0
                return False
            self.attach.head = now
            self.view.attaches.append(self.attach)
        at, text = 0, self._text
        while (end := heard.find(b"\r\n", at)) >= 0:
            size = int(heard[at:end], 16)
            if not size:
                return False
            if len(heard) < end + size + 4:
                break
            text += heard[end + 2 : end + 2 + size]
            at = end + size + 4
        self._heard = heard[at:]
        *frames, self._text = text.split(b"\n\n")
        for frame in frames:
            if frame.startswith(b"id: "):
                self._see(frame, now, recording=recording)
        return True

    def _see(self, frame: bytes, now: float, *, recording: bool) -> None:
        assert self.attach is not None
        found = _FRAME.match(frame)
        number = int(found[2]) if found else -1
        view = self.view
        if found is None or number != view.last + 1:
            view.fault = view.fault or f"{frame[:100]!r} came after {view.last}"
            return
        self.tries = 0
        self.cursor, view.last = found[1], number
        view.digest = zlib.crc32(frame, view.digest)
        if self.attach.number < 0:
            self.attach.new, self.attach.number = now, number
        if recording:
            view.arrivals.append((number, now))


class _Crowd:
    def __init__(self) -> None:
        self.poll = select.epoll()
        self.of_socket: dict[int, _Follower] = {}
        self.followers: list[_Follower] = []
        self.backoff: Backoff | None = None
        self.recording = False
        self._due: list[tuple[float, int, _Follower]] = []
        self._count = itertools.count()

    def connect(self, follower: _Follower) -> None:
        number = follower.connect().fileno()
        self.of_socket[number] = follower
        self.poll.register(number, select.EPOLLOUT)

    def lose(self, follower: _Follower) -> None:
        """Its connection is over, or none came to be: it comes back."""
        assert follower.socket is not None
        assert follower.attach is not None
        del self.of_socket[follower.socket.fileno()]
        asked = 0.0 if follower.attach.head else follower.attach.new
        follower.close()
        follower.tries += 1
        if self.backoff is None:
            wait = 0.0 if follower.tries == 1 else AGAIN_SECONDS
        else:
            wait = self.backoff.wait(follower.tries)
        heapq.heappush(self._due, (time.monotonic() + wait + asked, next(self._count), follower))

    def round(self, seconds: float) -> bool:
        """Do what there is to do; whether the pipe has something, by its number 0 in `of_socket`."""
        if self._due:
            seconds = min(seconds, max(0.0, self._due[0][0] - time.monotonic()))
        asked = False
        for number, event in self.poll.poll(seconds):
            follower = self.of_socket.get(number)
            if follower is None:
                asked = True
            else:
                self._go_on(follower, event)
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            self.connect(heapq.heappop(self._due)[2])
        return asked

    def _go_on(self, follower: _Follower, event: int) -> None:
        assert follower.socket is not None
        if event & select.EPOLLOUT:
            if follower.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.lose(follower)
                return
            self.poll.modify(follower.socket.fileno(), select.EPOLLIN)
            follower.ask()
            return
        try:
            data = follower.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or not follower.hear(data, recording=self.recording):
            self.lose(follower)

    def come(self, requests: list[tuple[bytes, bytes, list[int]]]) -> None:
        begin = len(self.followers)
        for number, (first, again, ports) in enumerate(requests, begin):
            self.followers.append(_Follower(first, again, ports, f"127.0.1.{1 + number // PER_ADDRESS}"))
        for at in range(begin, len(self.followers), AT_ONCE):
            some = self.followers[at : at + AT_ONCE]
            for each in some:
                self.connect(each)
            while not all(each.is_open for each in some):
                self.round(0.05)


def serve(pipe: Connection) -> None:
    """Follow, and answer.

    ``("come", requests)``: so many more followers; each has its first request, the later ones without their last header and
    the empty line, and the ports to which it goes in turn. ``("record", backoff)``: from now on each event's arrival is kept, what
    was kept is forgotten, and who is cut waits as ``backoff`` has it, or not at all (None). ``("state",)``: how many
    are ``hearing``, with a stream that has shown something since `record`, and how many have ``attached`` since. ``("views",)``:
    all `View`.
    """
    crowd = _Crowd()
    crowd.poll.register(pipe.fileno(), select.EPOLLIN)
    while True:
        if not crowd.round(0.5):
            continue
        answer: Any = None
        match pipe.recv():
            case ("come", requests):
                crowd.come(requests)
            case ("record", backoff):
                crowd.recording, crowd.backoff = True, backoff
                for each in crowd.followers:
                    each.view.arrivals.clear()
                    each.view.attaches.clear()
                    each.view.refusals.clear()
            case ("state",):
                answer = {
                    "hearing": sum(each.is_hearing for each in crowd.followers),
                    "attached": sum(bool(each.view.attaches) for each in crowd.followers),
                }
            case ("views",):
                answer = [each.view for each in crowd.followers]
            case unknown:
                raise ValueError(unknown)
        pipe.send((True, answer))
