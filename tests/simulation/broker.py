"""The simulated broker: the embedded one behind a socket, which can restart, lose its newest writes, and refuse.

Those that stand in for each other: `tests.simulation.nodes`.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import itertools
import pickle
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import hiredis
import lupa.lua51  # type: ignore[import-untyped]
import redis
from fakeredis import FakeServer
from fakeredis._clients._tcp_server import encode_reply
from fakeredis._commands import COMMANDS_WITH_SUB, Key, Signature, command
from fakeredis._core import CommandItem, Database
from fakeredis._helpers import SimpleError, decode_command_bytes
from fakeredis._msgs import (
    BAD_COMMAND_IN_PUBSUB_MSG,
    COMMAND_IN_SCRIPT_MSG,
    FLAG_DO_NOT_CREATE,
    FLAG_LEAVE_EMPTY_VAL,
    FLAG_NO_SCRIPT,
    FLAG_SKIP_CONVERT_TO_RESP2,
    WRONGTYPE_MSG,
)
from fakeredis._socket import FakeSocket
from fakeredis._socket._resp import convert_to_resp2
from fakeredis.commands_mixins.scripting_mixin import _convert_redis_arg

from tests.simulation.loop import current
from tests.simulation.recording import Closed, Command, Kept, Moved, Put
from tests.simulation.steps import Steps

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from tests.simulation.loop import Process, SimulatedLoop
    from tests.simulation.recording import Recorded

# What changes nothing.
_READS = frozenset(
    b"PING INFO AUTH SELECT CLIENT HELLO GET MGET HGET HMGET HGETALL HLEN EXISTS TIME ZCARD ZRANGE ZRANGEBYSCORE ZSCORE "
    b"XRANGE XREVRANGE XLEN SUBSCRIBE UNSUBSCRIBE SCAN HSCAN PTTL TTL SMEMBERS LLEN HEXISTS STRLEN DBSIZE KEYS PUBLISH "
    b"LRANGE".split()
)

# What needs memory, which a broker that is full refuses, and what else a replica does.
_NEEDING = frozenset(
    b"APPEND COPY DECR DECRBY HINCRBY HINCRBYFLOAT HMSET HSET HSETNX INCR INCRBY INCRBYFLOAT LINSERT LMOVE LPUSH LPUSHX LSET "
    b"MSET MSETNX PSETEX RESTORE RPUSH RPUSHX SADD SET SETEX SETNX XADD ZADD ZINCRBY".split()
)
_WRITES = _NEEDING.union(
    b"DEL EXPIRE EXPIREAT GETDEL GETEX HDEL LPOP LREM LTRIM PERSIST PEXPIRE PEXPIREAT RENAME RENAMENX RPOP SPOP SREM UNLINK XDEL "
    b"XTRIM ZPOPMAX ZPOPMIN ZREM ZREMRANGEBYRANK ZREMRANGEBYSCORE".split()
)
_SCRIPTS = frozenset((b"EVAL", b"EVALSHA"))

# How far hosts' clocks are from right, seconds; and those of servers that stand in for each other, from one another.
SKEWS_SECONDS = (0.0, 0.0, 0.4, -0.4, 5.0, -5.0, 300.0, -300.0)
APART_SECONDS = (-0.05, 0.05)


_FULL = "OOM command not allowed when used memory > 'maxmemory'."
_REPLICA = "READONLY You can't write against a read only replica."


class Store:
    """Data, at whatever servers, looked at past all connections.

    Attributes:
        unable: from when to when it took no writes, by the servers' clock, Unix milliseconds. (Of a full one those pass that
            end turns.)
        ahead: seconds that its servers' clock is ahead of others'.
        steps: looks on at what its servers do.
        lagged: whether one was ever read from that lacked something.
    """

    def __init__(self, steps: Steps) -> None:
        self.unable: list[tuple[float, float]] = []
        self.ahead = 0.0
        self.lagged = False
        self.steps = steps

    @property
    def url(self) -> str:
        """By which it is found."""
        raise NotImplementedError

    @property
    def port(self) -> int:
        """Of a server that has all of it."""
        raise NotImplementedError

    @property
    def losses(self) -> int:
        """How often it has lost its newest writes."""
        return self.steps.losses

    @property
    def brokers(self) -> Sequence[SimulatedBroker]:
        """All its servers."""
        raise NotImplementedError

    @property
    def serving(self) -> Sequence[SimulatedBroker]:
        """Those whose data it is."""
        raise NotImplementedError

    def start(self) -> None:
        """Take connections."""
        raise NotImplementedError

    def item(self, key: bytes) -> Any:
        """What a key holds now; None when there is no such key."""
        raise NotImplementedError

    def items(self) -> list[tuple[bytes, Any]]:
        """All keys, and what they hold."""
        found: list[tuple[bytes, Any]] = []
        for each in self.serving:
            with each.server.lock:
                found += sorted(each.server.dbs[0].items())
        return found

    def field(self, key: str, field: str) -> str:
        """A hash's field as it is now; empty when there is none."""
        item = self.item(key.encode())
        found = dict(item.value.items()).get(field.encode()) if item is not None else None
        return found.decode() if found else ""

    def files(self, session: str) -> dict[str, bytes]:
        """What a session's entries refer to now, by digest; ``session``: how the names of its keys begin."""
        item = self.item(f"{session}files".encode())
        return {name.decode(): bytes(data) for name, data in item.value.items()} if item is not None else {}

    def stream(self, key: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """A stream's entries as they are now, as XRANGE has them."""
        item = self.item(key.encode())
        if item is None:
            return []
        words = ((each.encode(), item.value._values_dict[each]) for each in item.value._ids)
        return [(entry, dict(zip(pairs[::2], pairs[1::2], strict=True))) for entry, pairs in words]

    def expire(self, prefix: str) -> None:
        """Have the time of some keys be over."""
        for each in self.serving:
            database = each.server.dbs[0]
            keys = [name for name in database if name.startswith(prefix.encode())]
            for key in keys:
                del database[key]
            each.record(Moved(each.port, keys))

    def jump(self, seconds: float) -> None:
        """Have its servers' clock jump."""
        self.ahead += seconds
        for each in self.brokers:
            each.set_clock(self.ahead)

    def skew(self, rng: random.Random) -> None:
        """Have its servers' clocks differ from others', and a little from each other; to be called before they run."""
        self.ahead = rng.choice(SKEWS_SECONDS)
        for each in self.brokers:
            each.ahead, each.apart = self.ahead, rng.uniform(*APART_SECONDS)

    def now_ms(self) -> int:
        """Its servers' clock, Unix milliseconds; asked in the process of one."""
        return int(time.time() * 1000)

    def clock_ms(self) -> float:
        """The same, asked anywhere."""
        return 1000 * (time.time() - current().ahead + self.ahead)


class SimulatedBroker(Store):
    """One server: its data, and who it says it is.

    Attributes:
        full, replica: what it refuses writes for.
        recorded: what befalls it, and others that share the list, if that is wanted.
        apart: seconds that its clock is ahead of that of those it stands in for.
        on_lost_write: called when it is asked to write what will not be kept: it was replaced, and does not know it yet.
    """

    socket: type[Socket]

    def __init__(
        self, loop: SimulatedLoop, rng: random.Random, port: int, steps: Steps | None = None
    ) -> None:
        """``steps``: of all that stand in for each other."""
        super().__init__(steps or Steps(rng))
        self._loop = loop
        self._rng = rng
        self._port = port
        self.server = self._fresh()
        self._kept = b""
        self.full = self.replica = False
        self.recorded: list[Recorded] | None = None
        self.apart = 0.0
        self.on_lost_write: Callable[[], None] | None = None
        self.name = self._new_name()
        self._texts: dict[bytes, bytes] = {}
        self._process: Process | None = None

    @property
    def context(self) -> contextvars.Context:
        """In which to call what belongs to it; to be asked while it runs."""
        assert self._process is not None
        return self._process.context.copy()

    @property
    def brokers(self) -> Sequence[SimulatedBroker]:
        """Itself."""
        return (self,)

    @property
    def serving(self) -> Sequence[SimulatedBroker]:
        """The same."""
        return (self,)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

    @property
    def url(self) -> str:
        """By which it is found."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def runs(self) -> bool:
        """Whether it answers."""
        return self._process is not None and not self._process.frozen

    def start(self) -> None:
        """Take connections."""
        self._process, _ = self._loop.begin(f"broker-{self.port}", self._listen)
        self._process.ahead = self.ahead + self.apart

    def set_clock(self, ahead: float) -> None:
        """Have its clock be so many seconds ahead."""
        self.ahead = ahead
        if self._process is not None:
            self._process.ahead = ahead + self.apart

    def freeze(self, frozen: bool) -> None:
        """Have it stand still, or go on where it was."""
        if self._process is not None:
            self._process.frozen = frozen

    async def _listen(self) -> None:
        self._loop.network.listen(lambda: _Connection(self), ("127.0.0.1", self.port))

    def stop(self) -> None:
        """End at once; its data stays as if it were in its file."""
        if self._process is not None:
            self._loop.kill(self._process)
            self._process = None
            self.record(Closed(self.port))

    def restart(self) -> None:
        """Begin again with the data it had."""
        former = self.server
        self.server = self._fresh()
        self._take_over(former.dbs)
        self.name = self._new_name()
        self.start()

    def remember(self) -> None:
        """Keep a copy of the data as it is now."""
        self._kept = _copied(self.server)
        self.record(Kept(self.port))

    def go_back(self) -> None:
        """Put the copy in the data's place; to be called while it is stopped."""
        self.steps.forget()
        self._put(self._kept)
        self.record(Put(self.port, self.port, kept=True))

    def copy(self, other: SimulatedBroker) -> None:
        """Have all that another one has now, and nothing of what it takes after this."""
        self._put(_copied(other.server))
        self.record(Put(self.port, other.port, kept=False))

    def take_place_of(self, other: SimulatedBroker, *, kept: bool) -> None:
        """Be a primary, with all that another one has, or with what was copied of it before."""
        self._put(other._kept if kept else _copied(other.server))
        self.record(Put(self.port, other.port, kept=kept))
        self.begin_anew()

    def begin_anew(self) -> None:
        """As a primary, with the data that it has."""
        self.flush_scripts()
        self.name = self._new_name()

    def _put(self, copy: bytes) -> None:
        with self.server.lock:
            for database in self.server.dbs.values():
                database.clear()
            for number, items in pickle.loads(copy).items():
                for key, item in items.items():
                    self.server.dbs[number][key] = item

    def item(self, key: bytes) -> Any:
        """What a key holds now, past all connections; None when there is no such key."""
        return self.server.dbs[0].get(key)

    def replication(self) -> bytes:
        """What it says of its role."""
        role = b"slave" if self.replica else b"master"
        return b"role:%b\r\nmaster_replid:%b\r\n" % (role, self.name.encode())

    def flush_scripts(self) -> None:
        """Forget all scripts."""
        self.server.script_cache.clear()
        self._texts.clear()

    def _take_over(self, databases: Any) -> None:
        for number, former in databases.items():
            self.server.dbs[number].swap(former)

    def _fresh(self) -> Any:
        server: Any = FakeServer(version=(7, 4))
        server.dbs = defaultdict(lambda: _Database(server.lock))
        server.subscribers = defaultdict(Ordered)
        server.psubscribers = defaultdict(Ordered)
        server.ssubscribers = defaultdict(Ordered)
        return server

    def _new_name(self) -> str:
        return f"{self._rng.getrandbits(160):040x}"

    def reads(self, name: bytes, fields: list[bytes]) -> bool:
        """Whether a command changes nothing."""
        return name in _READS or (name == b"EVALSHA" and self.steps.name(fields[1]) == "read")

    def refuses(self, name: bytes, fields: list[bytes]) -> str:
        """The error with which a command is refused; empty when it is not. Scripts without flags find out as they write."""
        if not (self.full or self.replica):
            return ""
        if name not in _SCRIPTS:
            return self.refuses_write(name)
        flags = (self._texts.get(fields[1], b"") if name == b"EVALSHA" else fields[1]).partition(b"\n")[0]
        if not flags.startswith(b"#!") or b"no-writes" in flags:
            return ""
        return _REPLICA if self.replica else "" if b"allow-oom" in flags else _FULL

    def refuses_write(self, name: bytes) -> str:
        """The same, of a command within a script without flags that has written nothing yet."""
        if self.replica:
            return _REPLICA if name in _WRITES else ""
        return _FULL if self.full and name in _NEEDING else ""

    def record(self, what: Recorded) -> None:
        """Note what befalls it, if that is wanted."""
        if self.recorded is not None:
            self.recorded.append(what)

    def note(self, who: int, fields: list[bytes], *, elsewhere: bool = False) -> None:
        """Record a connection's command, a script with its text."""
        if self.recorded is None:
            return
        role = b""
        if fields[0] == b"EVALSHA" and fields[1] in self._texts:
            fields, role = [b"EVAL", self._texts[fields[1]], *fields[2:]], self.replication()
        elif fields[0] == b"EVAL":
            role = self.replication()
        self.record(Command(self.port, who, fields, time.time(), role, self.full, self.replica, elsewhere))

    def has_flags(self, digest: bytes) -> bool:
        """Whether a script says by its first line what it does."""
        return self._texts.get(digest, b"").startswith(b"#!")

    def learn(self, text: bytes) -> bytes:
        """A script by its hash, and without the first line that the embedded broker does not know."""
        digest = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        if digest not in self.server.script_cache:
            self._texts[digest] = text
            self.steps.learn(digest, text)
            self.server.script_cache[digest] = text.partition(b"\n")[2] if text.startswith(b"#!") else text
        return digest


class Ordered(dict[Any, None]):
    """A set in the order in which it grew."""

    def add(self, item: Any) -> None:
        """Put an item in."""
        self[item] = None

    def remove(self, item: Any) -> None:
        """Take an item out that is there."""
        del self[item]

    def discard(self, item: Any) -> None:
        """Take an item out."""
        self.pop(item, None)


class _Connection(asyncio.Protocol):
    """One client's."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self._fake: Socket
        self._reader = hiredis.Reader()

    def connection_made(self, transport: Any) -> None:
        self._fake = self._broker.socket(self._broker, transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (fields := self._reader.gets()) is not False:
            self._fake._process_command(fields)

    def connection_lost(self, exc: Exception | None) -> None:
        for subscribers in self._fake._server.ssubscribers.values():
            subscribers.discard(self._fake)
        self._fake.close()
        self._broker.record(Closed(self._broker.port, self._fake.number))

    @property
    def subscribes(self) -> bool:
        """Whether it hears channels."""
        return bool(self._fake._pubsub)


class _Database(Database):
    """Nobody watches keys, or waits for one."""

    def notify_watch(self, key: bytes) -> None:
        """As the base would, with nobody to notify."""


_numbers = itertools.count(1)

# What is the same in Python, in a reply and, but for None, in Lua.
_PLAIN = frozenset((bytes, int, type(None)))


class Socket(FakeSocket):
    """As the base, but scripts are compiled and commands looked up once, and nothing is published of changed keys.

    Attributes:
        number: the connection's.
    """

    def __init__(self, broker: SimulatedBroker, transport: asyncio.Transport) -> None:
        super().__init__(broker.server, 0, client_class=redis.Redis)
        self.number = next(_numbers)
        self._broker = broker
        self._transport: Any = transport

    def put_response(self, msg: Any) -> None:
        """Send a reply, or what a subscriber gets."""
        self._transport.write(encode_reply(msg, 2) if isinstance(msg, str) else encoded(msg))

    def _process_command(self, fields: list[bytes]) -> None:
        broker = self._broker
        broker.note(self.number, fields)
        name = fields[0].upper()
        if broker.on_lost_write is not None and not broker.reads(name, fields):
            broker.on_lost_write()
        if error := broker.refuses(name, fields):
            self._transport.write(b"-%b\r\n" % error.encode())
        elif name == b"INFO":
            self.put_response(broker.replication())
        elif name == b"EVAL":
            self._carry_out(b"EVALSHA", [broker.learn(fields[1]), *fields[2:]])
        elif name in _OFTEN:
            self._carry_out(name, fields[1:])
        else:
            super()._process_command(fields)

    def _carry_out(self, name: bytes, args: list[bytes]) -> None:
        """As the base does, but for what concerns users, transactions and subscribers."""
        server: Any = self._server
        while server.closed_sockets:
            if (closed := server.closed_sockets.pop()()) is not None:
                closed._cleanup(server)
        now = time.time()
        for database in server.dbs.values():
            database.time = now
        try:
            signature = _signature(self, name)
            result = self._run_command(getattr(self, signature.func_name), signature, args, False)
        except SimpleError as error:
            result = error
        if type(result) not in _PLAIN:
            result = self._decode_result(result)
        self.put_response(result)

    def _run_command(self, function: Any, signature: Any, args: Any, from_script: bool) -> Any:
        self._subkey_events = []
        items: list[Any] = []
        flags = signature.flags
        try:
            if from_script and FLAG_NO_SCRIPT in flags:
                raise SimpleError(COMMAND_IN_SCRIPT_MSG)
            if self._pubsub and signature.name not in self.ACCEPTED_COMMANDS_WHILE_PUBSUB:
                raise SimpleError(BAD_COMMAND_IN_PUBSUB_MSG)
            args, items = _applied(signature, args, self._db)
            result = function(*args)
            if (
                type(result) not in _PLAIN
                and FLAG_SKIP_CONVERT_TO_RESP2 not in flags
                and not (type(result) is list and _PLAIN.issuperset(map(type, result)))
            ):
                result = convert_to_resp2(result)
        except _MissingKeyError as missing:
            return missing.result
        except SimpleError as error:
            result = error
        for item in items:
            if item.is_modified:
                item.writeback(remove_empty_val=FLAG_LEAVE_EMPTY_VAL not in flags)
        return result

    def evalsha(self, sha1: bytes, numkeys: int, *keys_and_args: bytes) -> Any:
        """As the base does it, but for compiling anew and collecting garbage in each run."""
        server: Any = self._server
        if sha1 not in server.script_cache:
            raise SimpleError("NOSCRIPT No matching script. Please use EVAL.")
        runtime = self._get_server_runtime(server)
        compiled = server.__dict__.setdefault("_compiled", {})
        function = compiled.get(sha1)
        if function is None:
            function = compiled[sha1] = runtime.compile(server.script_cache[sha1])
        keys, args = keys_and_args[:numkeys], keys_and_args[numkeys:]

        broker = self._broker

        def run() -> Any:
            server._lua_current_socket[0] = self
            self._script_resp = 2
            self._may_be_refused = (broker.full or broker.replica) and not broker.has_flags(sha1)
            server._lua_set_keys_argv(runtime.table_from(keys), runtime.table_from(args))
            try:
                result = function()
            except lupa.lua51.LuaError as error:
                raise SimpleError(f"ERR Error running script: {error}") from None
            finally:
                self._script_resp = None
            return self._convert_lua_result(result, nested=False)

        reply = broker.steps.carry_out(broker, sha1, keys, args, run)
        if broker.steps.on_script is not None:
            broker.steps.on_script(broker.steps.name(sha1), self._transport.asked_by, reply)
        return reply

    @command((), (bytes,))
    def info(self, *_: bytes) -> bytes:
        """What a script is told of the server."""
        return self._broker.replication()

    # Whether the script that is carried out may meet that the broker takes no writes.
    _may_be_refused = False

    def _lua_redis_call(self, lua_runtime: Any, expected_globals: set[Any], op: bytes, *args: Any) -> Any:
        words = [each if type(each) is bytes else _convert_redis_arg(each) for each in args]
        found = _BY_NAME.get(op)
        if found is None:
            found = _signature(
                self,
                op + b" " + words.pop(0) if decode_command_bytes(op) in COMMANDS_WITH_SUB and words else op,
            )
        if self._may_be_refused:
            if error := self._broker.refuses_write(op):
                raise SimpleError(error)
            self._may_be_refused = op not in _WRITES
        result = self._run_command(getattr(self, found.func_name), found, words, True)
        if type(result) is list and _PLAIN.issuperset(map(type, result)):
            return lua_runtime.table_from([False if each is None else each for each in result])
        return self._convert_redis_result(lua_runtime, result)

    def _convert_lua_result(self, result: Any, nested: bool = True) -> Any:
        if type(result) in _PLAIN:
            return result
        if type(result) is bool or lupa.lua51.lua_type(result) != "table":
            return super()._convert_lua_result(result, nested)
        # Asked for one by one, a table's values cost as much as the script.
        found = self._get_server_runtime(self._server).globals()[b"unpack"](result)
        if found is None:
            # An error, a status, or nothing at all.
            return super()._convert_lua_result(result, nested)
        values = found if type(found) is tuple else (found,)
        items = list(itertools.takewhile(lambda each: each is not None, values))
        if _PLAIN.issuperset(map(type, items)):
            return items
        return [each if type(each) in _PLAIN else self._convert_lua_result(each) for each in items]


SimulatedBroker.socket = Socket


def _signature(socket: Any, name: bytes) -> Any:
    found = _BY_NAME.get(name)
    if found is None:
        found = _BY_NAME[name] = socket._name_to_func(decode_command_bytes(name))[1]
    return found


# Commands that come often, and mean the same in whatever state a connection is.
_OFTEN = frozenset(
    b"EVALSHA HMGET HGET HGETALL ZREM ZCARD ZRANGE XRANGE GET PTTL HDEL ZRANDMEMBER PUBLISH".split()
)

# A command's signature, by its name as scripts write it.
_BY_NAME: dict[bytes, Any] = {}

# What is to be done with the arguments of a command that has so many: key or not, and how.
_STEPS: dict[tuple[str, int], list[tuple[int, Any, Any]]] = {}


class _MissingKeyError(Exception):
    """There is no such key, and the command has an answer to that."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def _applied(signature: Signature, args: list[Any], database: Any) -> tuple[list[Any], list[Any]]:
    """As `Signature.apply`: the arguments read, and the keys among them."""
    steps = _STEPS.get((signature.name, len(args)))
    if steps is None:
        signature.check_arity(args, (7, 4))
        types: list[Any] = list(signature.fixed)
        if more := len(args) - len(types):
            types += list(signature.repeat) * (more // len(signature.repeat))
        steps = [
            (at, each if isinstance(each, Key) else None, None if isinstance(each, Key) else each.decode)
            for at, each in enumerate(types)
            if each is not bytes
        ]
        _STEPS[signature.name, len(args)] = steps
    args = list(args)
    for at, key, decode in steps:
        if key is None:
            args[at] = decode(args[at])
        elif key.missing_return is not Key.UNSPECIFIED and args[at] not in database:
            raise _MissingKeyError(key.missing_return)
    items = []
    for at, key, _ in steps:
        if key is not None:
            item, default = database.get(args[at]), None
            if key.type_ is not None:
                if item is None:
                    if key.type_ is not bytes and FLAG_DO_NOT_CREATE not in signature.flags:
                        default = key.type_()
                elif type(item.value) is not key.type_:
                    raise SimpleError(WRONGTYPE_MSG)
            args[at] = CommandItem(args[at], database, item, default=default)
            items.append(args[at])
    return args, items


def encoded(value: Any) -> bytes:
    """A reply."""
    parts: list[bytes] = []
    _encode(value, parts.append)
    return b"".join(parts)


def _encode(value: Any, put: Callable[[bytes], None]) -> None:
    kind = type(value)
    if kind is bytes:
        put(b"$%d\r\n%b\r\n" % (len(value), value))
    elif kind is list:
        put(b"*%d\r\n" % len(value))
        for each in value:
            if type(each) is bytes:
                put(b"$%d\r\n%b\r\n" % (len(each), each))
            else:
                _encode(each, put)
    elif kind is int:
        put(b":%d\r\n" % value)
    else:
        put(encode_reply(value, 2, nested=True))


def _copied(server: Any) -> bytes:
    return pickle.dumps({number: dict(each.items()) for number, each in server.dbs.items()})
