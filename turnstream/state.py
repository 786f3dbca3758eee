"""The embedded broker's state between two starts: sessions, turns and keys, in ``.turnstream/state.sqlite``.

It is written beside what is served, a session at a time: what changed since the last time, every two seconds while no turn is running
(every 30 seconds while one always is), and all of it at the end. No turn waits for that. So a process that ends in order loses nothing, and
one that is killed loses at most what was not written yet. It is noted in the file whether the former process ended in order; after one
that did not, the broker is another *incarnation*, as after a failover to a replica that lagged: sessions begin a new epoch, and clients that saw
what was lost are told so (shared/lua/_session.lua).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any

import orjson
import structlog
from fakeredis import FakeServer, FakeStrictRedis

from turnstream.shared.broker import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

log = structlog.get_logger(__name__)

FILE = "state.sqlite"

# Between two times that what changed is written; and how long that may be put off while turns are running.
SECONDS = 2.0
LATEST_SECONDS = 30.0

# What is about processes, which are others after the next start.
_PASSING = frozenset(
    name.encode()
    for name in (keys.WORKERS, keys.FRONT_ENDS, keys.SUBSCRIBED, keys.HELD, keys.WATCH, keys.CLOCK)
)

_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS groups (name BLOB PRIMARY KEY, content BLOB NOT NULL);
"""

# A key with its type, when it expires (Unix ms, 0: never), and its content.
_Row = tuple[str, str, int, Any]


class State:
    """The file, and the embedded broker that is kept in it.

    Attributes:
        server: the broker's data.
        kept: whether it lasts; else another process has the file, or it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.server = FakeServer()
        # Its methods are annotated for clients that await, too.
        self._redis: Any = FakeStrictRedis(server=self.server)
        self._written: dict[bytes, Any] = {}
        self._file: sqlite3.Connection | None = None
        self._lock = -1
        self._writing = threading.Lock()
        self.incarnation = secrets.token_hex(6)
        try:
            self._open(folder)
        except (OSError, sqlite3.Error) as error:
            self._file = None
            log.warning("state.not_kept", error=str(error), todo="sessions are gone when this process ends")
        self.server.incarnation = self.incarnation  # type: ignore[attr-defined]

    @property
    def kept(self) -> bool:
        """Whether it lasts."""
        return self._file is not None

    def _open(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
        path = folder / FILE
        # Two processes would each write what the other does not know. The lock ends with its process.
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{path} is another process's") from None
        file = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        file.executescript(_TABLES)
        about = dict(file.execute("SELECT name, value FROM about"))
        if about.get("ended") == "in order":
            self.incarnation = about["incarnation"]
        for name, content in file.execute("SELECT name, content FROM groups"):
            self._restore(orjson.loads(content))
            self._written[bytes(name)] = None
        with _transaction(file):
            file.execute(
                "REPLACE INTO about VALUES ('ended', 'not yet'), ('incarnation', ?)", (self.incarnation,)
            )
        self._file = file

    # ── while it serves ──

    async def tend(self, busy: Callable[[], bool]) -> None:
        """Write what changed for ever; to be run as a task. While it is ``busy``, more rarely."""
        since = time.monotonic()
        while True:
            await asyncio.sleep(SECONDS)
            if busy() and time.monotonic() - since < LATEST_SECONDS:
                continue
            since = time.monotonic()
            try:
                await self._write_changes()
            except Exception:
                # Whatever it is, the next time may do, and the end does it once more.
                log.exception("state.not_written")

    async def _write_changes(self) -> None:
        groups = self._groups()
        changed: dict[bytes, list[_Row]] = {}
        marks: dict[bytes, Any] = {}
        for name, members in groups.items():
            # A session's keys are read in one go, since they must agree; others have their turn between two sessions.
            mark = self._mark(name, members)
            if mark is None or self._written.get(name) != mark:
                changed[name], marks[name] = self._read(members), mark
            await asyncio.sleep(0)
        gone = self._written.keys() - groups.keys()
        await asyncio.to_thread(self._write, changed, gone)
        self._written = {name: marks.get(name, self._written.get(name)) for name in groups}

    def _groups(self) -> dict[bytes, list[bytes]]:
        """The keys, those of a session together; all others as the group without a name."""
        found: dict[bytes, list[bytes]] = {}
        for key in self._redis.keys("*"):
            if key not in _PASSING:
                _, _, rest = key.partition(b"{")
                session, closed, _ = rest.partition(b"}")
                found.setdefault(session if closed else b"", []).append(key)
        return found

    def _mark(self, name: bytes, members: list[bytes]) -> Any:
        """What changes with a session: its meta, and how many keys it has. None: it is not known, as of all that is no session's."""
        if not name:
            return None
        owner, _, session = name.decode().partition("/")
        return self._redis.hgetall(keys.SessionKeys(owner, session).meta), len(members)

    def _read(self, members: Iterable[bytes]) -> list[_Row]:
        redis = self._redis
        read: dict[str, Callable[[bytes], Any]] = {
            "string": redis.get,
            "hash": lambda key: list(redis.hgetall(key).items()),
            "set": lambda key: list(redis.smembers(key)),
            "zset": lambda key: redis.zrange(key, 0, -1, withscores=True, score_cast_func=bytes),
            "list": lambda key: redis.lrange(key, 0, -1),
            "stream": lambda key: [(id_, list(fields.items())) for id_, fields in redis.xrange(key)],
        }
        rows: list[_Row] = []
        for key in members:
            type_ = redis.type(key).decode()
            if type_ in read:
                rows.append((_text(key), type_, max(0, redis.pexpiretime(key)), _texts(read[type_](key))))
        return rows

    def _write(
        self, changed: dict[bytes, list[_Row]], gone: Iterable[bytes] = (), *, ended: bool = False
    ) -> None:
        with self._writing:
            if self._file is not None:
                self._write_now(self._file, changed, gone, ended=ended)

    def _write_now(
        self,
        file: sqlite3.Connection,
        changed: dict[bytes, list[_Row]],
        gone: Iterable[bytes],
        *,
        ended: bool,
    ) -> None:
        with _transaction(file):
            file.executemany("DELETE FROM groups WHERE name = ?", [(name,) for name in gone])
            file.executemany(
                "REPLACE INTO groups VALUES (?, ?)",
                [(name, orjson.dumps(rows)) for name, rows in changed.items()],
            )
            if ended:
                file.execute("REPLACE INTO about VALUES ('ended', 'in order')")

    def _restore(self, rows: list[_Row]) -> None:
        redis, now = self._redis, time.time() * 1000
        for name, type_, expires, content in rows:
            key, found = _bytes(name), _all_bytes(content)
            if 0 < expires <= now or found == []:
                continue
            match type_:
                case "string":
                    redis.set(key, found)
                case "hash":
                    redis.hset(key, mapping=dict(found))
                case "set":
                    redis.sadd(key, *found)
                case "zset":
                    redis.zadd(key, {member: float(score) for member, score in found})
                case "list":
                    redis.rpush(key, *found)
                case "stream":
                    for id_, fields in found:
                        redis.xadd(key, dict(fields), id=id_)
            if expires:
                redis.pexpireat(key, expires)

    def close(self) -> None:
        """Write all of it, and that it ended in order; nothing may be written to the broker any more."""
        if self._file is not None:
            groups = self._groups()
            try:
                self._write(
                    {name: self._read(members) for name, members in groups.items()},
                    self._written.keys() - groups.keys(),
                    ended=True,
                )
            except sqlite3.Error as error:
                log.warning("state.not_written", error=str(error), todo="what changed last is gone")
            with self._writing:
                # Whatever a thread still had to write is older.
                self._file.close()
                self._file = None
        if self._lock >= 0:
            os.close(self._lock)
        self._redis.close()


class _transaction:  # noqa: N801 - it reads as a function
    """All that is written in the block, or nothing."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file

    def __enter__(self) -> None:
        self._file.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.execute("COMMIT" if kind is None else "ROLLBACK")


# Keys and values are bytes, of which JSON has none: each is a character of Latin-1.


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _bytes(value: str) -> bytes:
    return value.encode("latin-1")


def _texts(value: Any) -> Any:
    if isinstance(value, bytes):
        return _text(value)
    return [_texts(each) for each in value] if isinstance(value, list | tuple) else value


def _all_bytes(value: Any) -> Any:
    if isinstance(value, str):
        return _bytes(value)
    return [_all_bytes(each) for each in value] if isinstance(value, list) else value
