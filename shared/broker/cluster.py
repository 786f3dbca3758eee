"""A Redis Cluster as one client: what is asked goes to the node that has the slot of its key.

redis-py has a cluster client; its hash of keys and its errors are used here. The client itself lacks what we need: each of its
commands takes a connection and waits there for its reply, where ours share one (`turnstream.shared.broker.pipeline`); it
has no ``SSUBSCRIBE``; it retries on its own, where here that is decided in one place (`turnstream.shared.broker.retry`);
and its slot map is built slot by slot, which holds up the event loop for 6 ms each time.

A node that refuses a command because another one has its slot (``MOVED``, ``ASK``) has done nothing, so the command is sent
there at once, also where nothing is retried. What is refused while a slot moves (``TRYAGAIN``), or while a node is replaced, is
retried as any other error that passes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from redis.asyncio import ConnectionPool, Redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from turnstream.shared.broker.keys import nothing
from turnstream.shared.broker.pipeline import Asking, together
from turnstream.shared.broker.retry import TRANSIENT, is_transient, limited, retry_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from turnstream.shared.broker.client import PipedRedis

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Of a reply, whether another node is to say, too, that the right one gave it.
Doubt = Callable[[Any], bool]

# Host and port of a node.
Address = tuple[str, int]

# After so many redirections a command is to be retried later: nodes that disagree come to agree within a second.
MOST_REDIRECTIONS = 5

# Timeout of a question that any node can answer: the next one is asked then, or this one is left out.
ANSWER_SECONDS = 1.0
# How long a command that failed waits for a new slot map.
LEARN_SECONDS = 3.0
# Between two questions for the slot map: after an error, and after a slot has moved, whose new owner is known already.
PAUSE_SECONDS = 0.1
MOVED_SECONDS = 1.0

# A node whose answers are apart so long may have stood still, and been replaced, in between: less than any `cluster-node-timeout`.
SILENT_SECONDS = 1.0

# Keys that are tried at once to find one in a slot of a node: some milliseconds.
TRIED_AT_ONCE = 2000

# Commands that name no key. They are for one server: see `turnstream.shared.broker.client.servers`.
_WITHOUT_KEY = frozenset({
    "ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "FLUSHALL", "FLUSHDB", "INFO", "KEYS", "LATENCY", "PING",
    "PUBLISH", "SCAN", "SCRIPT", "SLOWLOG", "TIME", "WAIT",
})  # fmt: skip

# Errors that another node would answer, too.
_REFUSALS = (AuthenticationError, NoPermissionError)
_NOT_THE_NODES = (TryAgainError, OutOfMemoryError, *_REFUSALS)


def slot_of(key: str | bytes) -> int:
    """The slot of a key, or of a channel."""
    return key_slot(key.encode() if isinstance(key, str) else key)


def key_of(name: str, arguments: Sequence[Any]) -> str | bytes:
    """The first key of a command: all its keys have the same slot.

    Raises:
        ValueError: it has none.
    """
    keys = arguments[2:] if name in {"EVAL", "EVALSHA"} and int(arguments[1]) else arguments
    if name in _WITHOUT_KEY or not keys or (keys is arguments and name.startswith("EVAL")):
        raise ValueError(f"{name} names no key: it is to be sent to a node, not to the cluster")
    key: str | bytes = keys[0]
    return key


class _ReplacedError(RedisConnectionError):
    """Another node has a slot by now; ``sure``: it says so itself."""

    def __init__(self, owner: Address, *, sure: bool) -> None:
        said = "has the slot by now" if sure else "is said to have the slot, and has not said so"
        super().__init__(f"{_shown(owner)} {said}")
        self.sure = sure


class Nodes:
    """Which node has which slot, and a client for each node.

    Duties:
        1. read the slot map when it is needed first, when a node fails, and when a slot has moved;
        2. follow redirections before that;
        3. ask others whether a node that may have stood still was replaced;
        4. close the clients of nodes that have no slot any more;
        5. notify those who `watch` that slots have moved.

    Attributes:
        moves: how often slots have moved, as far as is known here.
        taken_from: when that was from a node for the last time, by that count.
    """

    def __init__(self, seeds: Sequence[Address], connect: Callable[[Address], PipedRedis]) -> None:
        """``seeds`` are asked for the slot map as long as no other node is known; ``connect`` makes a client for a node."""
        self._seeds = tuple(seeds)
        self._connect = connect
        self._clients: dict[Address, PipedRedis] = {}
        # By which `nothing` has a key at a node.
        self._numbers: dict[Address, int] = {}
        self._slots: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._owners: tuple[Address, ...] | None = None
        self._suspects: set[Address] = set()
        self._learning: asyncio.Task[None] | None = None
        # Since when each has not been silent, by the event loop's clock: it was sent then what it answered last, or others were asked
        # about it then. And whom they are being asked about.
        self._answered: dict[Address, float] = {}
        self._asked_about: dict[Address, asyncio.Task[float]] = {}
        self._not_before = 0.0
        self._later: asyncio.TimerHandle | None = None
        self._watchers: set[Callable[[], None]] = set()
        self.moves = 0
        self.taken_from: dict[Address, int] = {}

    def client(self, address: Address) -> PipedRedis:
        """The client of a node, over the connections that all its users share."""
        found = self._clients.get(address)
        if found is None:
            found = self._clients[address] = self._connect(address)
        return found

    def owner(self, slot: int) -> Address | None:
        """The node that has a slot, as far as is known."""
        return self._slots[slot]

    @property
    def owners(self) -> tuple[Address, ...]:
        """The nodes that have slots, as far as is known."""
        if self._owners is None:
            self._owners = tuple(each for each in dict.fromkeys(self._slots) if each is not None)
        return self._owners

    def key_at(self, address: Address) -> str | None:
        """A key that nobody has, in a slot of the node. None: not found yet, since it has few slots; to be asked for again."""
        first = self._numbers.get(address, 0)
        for number in range(first, first + TRIED_AT_ONCE):
            self._numbers[address] = number
            if self._slots[slot_of(nothing(number))] == address:
                return nothing(number)
        return None

    def key_elsewhere(self, address: Address) -> None:
        """Have the next `key_at` be in another slot: one may stay half moved for long."""
        self._numbers[address] = self._numbers.get(address, 0) + 1

    def watch(self, moved: Callable[[], None]) -> None:
        """Have ``moved`` called whenever slots have moved."""
        self._watchers.add(moved)

    def unwatch(self, moved: Callable[[], None]) -> None:
        """Call it no more."""
        self._watchers.discard(moved)

    def suspect(self, address: Address) -> None:
        """A node has failed: it is the last to be asked for the slot map."""
        self._suspects.add(address)

    def redirected(self, at: Address, error: AskError) -> Address:
        """The node to which an error redirects; after ``MOVED`` it is the slot's owner from now on."""
        address = _named(at, error)
        if isinstance(error, MovedError) and self._slots[error.slot_id] != address:
            self._given(error.slot_id, address)
        return address

    async def learn(self) -> None:
        """Read the slot map; one question for all who ask at the same time.

        Raises:
            redis.exceptions.RedisError, OSError: no node answered it.
        """
        learning = self._learn_once()
        try:
            async with asyncio.timeout(LEARN_SECONDS):
                await together(learning)
        except TimeoutError:
            raise RedisConnectionError("no node of the cluster answered CLUSTER SLOTS") from None

    async def believe(self, answered: Address, sent: float, key: str | bytes | None = None) -> None:
        """Take what a node answered for what the primary says, once others confirm it if this node may have stood still.

        It may if nothing was answered that it was sent (``sent``: event loop time) in the last `SILENT_SECONDS`. They are asked once
        for all who are answered meanwhile. Where too few of them tell, it is believed.

        ``key``: one that it has; None: any, and if it has none, nobody replaces it.

        Raises:
            redis.exceptions.ConnectionError: it was replaced, which a retry knows. What it was told is lost.
        """
        loop = asyncio.get_running_loop()
        silent = loop.time() - self._answered.get(answered, -inf) >= SILENT_SECONDS
        # Fewer elect nobody.
        if silent and len(self.owners) > 2:
            if key is None:
                key = await self._key_of(answered)
            if key is not None:
                sent = await self._ask_once_about(answered, key)
        self._answered[answered] = max(sent, self._answered.get(answered, sent))

    async def confirm(self, key: str | bytes, answered: Address) -> None:
        """Ask the other primaries who has a key that a node ``answered`` for: one that was replaced does not know it at once.

        Where that one has all slots, nobody replaces it but an operator, and it is believed.

        Raises:
            redis.exceptions.ConnectionError: another one has it, which a retry asks.
            redis.exceptions.TryAgainError: too few tell.
        """
        others = [each for each in self.owners if each != answered]
        if not others:
            return
        # A majority of the primaries elects who replaces one, so one at least of half of the others has heard of it.
        enough = max(1, len(others) // 2)
        agreed = 0
        said: _ReplacedError | None = None
        silent: Exception | None = None
        asked = [asyncio.create_task(self._agrees(other, key, answered)) for other in others]
        try:
            for each in asyncio.as_completed(asked):
                try:
                    agreed += await each
                except _ReplacedError as error:
                    if error.sure:
                        raise
                    said = error
                except Exception as error:
                    silent = error
                if agreed >= enough:
                    return
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise said or TryAgainError(f"too few other nodes say who has the slot: {silent}")  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        """Close all clients."""
        if self._later is not None:
            self._later.cancel()
        asking = [*self._asked_about.values(), *([self._learning] if self._learning else [])]
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await _close(client)

    async def _agrees(self, other: Address, key: str | bytes, answered: Address) -> bool:
        """Whether another node says that the one that answered has the key; False if it is that one by another name.

        Raises:
            _ReplacedError: it says that another one has it.
            redis.exceptions.RedisError, OSError: it does not tell.
        """
        named = owner = await self._owner_by(other, key)
        if named not in {answered, other}:
            # What it knows may be old.
            try:
                owner = await self._owner_by(named, key)
            except Exception:
                raise _ReplacedError(named, sure=False) from None
        if owner != answered and not await self._is_same(owner, answered):
            sure, slot = owner == named, slot_of(key)
            if sure and self._slots[slot] == answered:
                self._given(slot, owner)
            raise _ReplacedError(owner, sure=sure)
        return owner != other

    async def _is_same(self, one: Address, other: Address) -> bool:
        """Whether two names are of the same server, which others may name differently: it has one replication id.

        False also where it cannot be told.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                name = await self.client(one).pipe.incarnation()
                return bool(name) and name == await self.client(other).pipe.incarnation()
        except Exception:
            return False

    async def _key_of(self, node: Address) -> str | None:
        """A key in a slot of a node; None: it has none."""
        if node not in self.owners:
            # It may have got its first one.
            with suppress(*TRANSIENT):
                await self.learn()
        while node in self.owners:
            key = self.key_at(node)
            if key is not None:
                return key
            await asyncio.sleep(0)
        return None

    async def _ask_once_about(self, answered: Address, key: str | bytes) -> float:
        """Ask others whether a node was replaced; one question for all who want to know meanwhile.

        Returns:
            When it was not, by the event loop's clock.

        Raises:
            redis.exceptions.ConnectionError: it was.
        """
        asking = self._asked_about.get(answered)
        if asking is None:
            asking = asyncio.create_task(self._ask_about(answered, key), name="cluster owner")
            self._asked_about[answered] = asking
            asking.add_done_callback(partial(self._asked, answered))
        try:
            return await together(asking)
        except RedisConnectionError as error:
            # One instance for each: a shared one would gather all their tracebacks.
            raise RedisConnectionError(str(error)) from None

    async def _ask_about(self, answered: Address, key: str | bytes) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self.confirm(key, answered)
        except TryAgainError as error:
            log.warning("broker.node_unconfirmed", node=_shown(answered), error=str(error))
            # So that not each command in a row waits for those that are silent.
            return loop.time()
        except RedisConnectionError as error:
            log.warning("broker.node_replaced", node=_shown(answered), error=str(error))
            # Its other slots are elsewhere, too.
            self.suspect(answered)
            with suppress(*TRANSIENT):
                await self.learn()
            raise
        return began

    def _asked(self, answered: Address, asking: asyncio.Task[float]) -> None:
        del self._asked_about[answered]
        if not asking.cancelled():
            asking.exception()

    def _learn_later(self) -> None:
        self._later = None
        self._learn_once()

    def _learn_once(self) -> asyncio.Task[None]:
        if self._learning is None:
            self._learning = asyncio.create_task(self._learn(), name="cluster slots")
            self._learning.add_done_callback(self._learnt)
        return self._learning

    def _learnt(self, learning: asyncio.Task[None]) -> None:
        self._learning = None
        if not learning.cancelled():
            learning.exception()

    async def _learn(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._not_before - loop.time())
        try:
            slots = await self._slot_map()
        finally:
            self._not_before = loop.time() + PAUSE_SECONDS
        lost = {former for former, now in zip(self._slots, slots, strict=True) if former != now}
        self._slots = slots
        owners = set(slots)
        self._suspects &= owners
        self._answered = {node: sent for node, sent in self._answered.items() if node in owners}
        unused = [
            self._clients.pop(address)
            for address, each in list(self._clients.items())
            if address not in owners and each.pipe.idle and each.large.idle
        ]
        if lost:
            self._moved(lost)
        for each in unused:
            await _close(each)

    async def _owner_by(self, node: Address, key: str | bytes) -> Address:
        """Who has a key, as a node says.

        Raises:
            redis.exceptions.RedisError, OSError: it does not answer.
        """
        owner = node
        try:
            await self._answer(node, "EXISTS", key)
        except MovedError as error:
            owner = _named(node, error)
        except AskError:
            # It gives the slot away.
            pass
        self._suspects.discard(node)
        return owner

    async def _answer(self, node: Address, *words: str | bytes) -> Any:
        """What a node says to what any of them may be asked.

        Raises:
            redis.exceptions.RedisError, OSError: its error; also if it does not answer in `ANSWER_SECONDS`.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self.client(node).pipe.command(*words)
        except TimeoutError:
            self.suspect(node)
            raise RedisConnectionError(f"{_shown(node)} does not answer") from None

    async def _slot_map(self) -> list[Address | None]:
        """The owner of each slot, by the first nodes that answer; those that have failed before come last.

        Raises:
            redis.exceptions.RedisError, OSError: none answered, or none has a slot.
        """
        known = [each for each in dict.fromkeys((*self.owners, *self._clients)) if each not in self._suspects]
        random.shuffle(known)
        slots: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        errors: list[Exception] = []
        for address in dict.fromkeys((*known, *self._seeds, *self._suspects)):
            try:
                ranges = await self._answer(address, "CLUSTER", "SLOTS")
            except Exception as error:
                errors.append(error)
            else:
                self._suspects.discard(address)
                _fill(slots, ranges, address)
                if None not in slots:
                    return slots
        # A cluster may serve without the slots of a node that it has lost.
        if any(slots):
            return slots
        raise _most_telling(errors)

    def _given(self, slot: int, owner: Address) -> None:
        """A slot has another owner from now on."""
        former, self._slots[slot] = self._slots[slot], owner
        self._moved({former})
        if self._later is None:
            # Where one has moved, others may have.
            self._later = asyncio.get_running_loop().call_later(MOVED_SECONDS, self._learn_later)

    def _moved(self, lost: set[Address | None]) -> None:
        """Slots have moved; ``lost``: from these nodes, or None, which they had not yet."""
        self.moves += 1
        self._owners = None
        self.taken_from |= {node: self.moves for node in lost if node is not None}
        for each in tuple(self._watchers):
            each()


def _named(asked: Address, error: AskError) -> Address:
    """The node to which an error redirects. A cluster may leave the host out: it is the one that was asked."""
    return error.host or asked[0], error.port


def _fill(slots: list[Address | None], ranges: Sequence[Sequence[Any]], asked: Address) -> None:
    """Enter the owners in a reply to ``CLUSTER SLOTS``, where none is known yet."""
    for first, last, (host, port, *_), *_ in ranges:
        # Where the cluster leaves the host out, it is the one that was asked.
        owner = (host.decode() if host else asked[0], int(port))
        slots[first : last + 1] = [each or owner for each in slots[first : last + 1]]


def _most_telling(errors: Sequence[Exception]) -> Exception:
    """Why no node gave a slot map: a refusal, before a node that is away."""
    if not errors:
        return RedisConnectionError("no slot of the cluster has a node")
    refused = (each for each in errors if isinstance(each, _REFUSALS))
    error = next(refused, errors[-1])
    if isinstance(error, _REFUSALS) or is_transient(error):
        return error
    # Not a node of a cluster, or not yet.
    return RedisConnectionError(f"no node of the cluster answered CLUSTER SLOTS: {error}")


class ClusterRedis(Redis):
    """A client of a cluster; what is asked names a key.

    Attributes:
        nodes: the nodes that it knows, shared with its copies of another retry limit.
    """

    def __init__(self, nodes: Nodes) -> None:
        # For its parsing of replies only: this pool is never connected.
        super().__init__(connection_pool=ConnectionPool())
        self.nodes = nodes

    def node(self, address: Address) -> PipedRedis:
        """The client of a node that this one uses."""
        return self.nodes.client(address)

    async def at(
        self,
        key: str | bytes,
        ask: Callable[[PipedRedis], Awaitable[T]],
        doubt: Doubt | None = None,
    ) -> T:
        """Ask the node that has the key, and follow redirections.

        ``doubt``: of an answer, whether it is believed only if others say, too, that this one has the slot, or who gives it away
        to this one.

        Raises:
            redis.exceptions.RedisError, OSError: the node's error, after which a retry finds the slot's new owner, if there
                is one, as after a doubted answer of another than that; `TryAgainError`, if the slot is being moved.
        """
        nodes = self.nodes
        loop = asyncio.get_running_loop()
        slot = slot_of(key)
        address = nodes.owner(slot)
        if address is None:
            await nodes.learn()
            address = nodes.owner(slot)
        # The node that gives the slot away to the one that is asked.
        giver: Address | None = None
        for _ in range(MOST_REDIRECTIONS):
            if address is None:
                break
            node = self.node(address)
            if giver is None:
                sent = loop.time()
            try:
                answer = await ask(_asking(node) if giver else node)
            except AskError as error:
                giver = None if isinstance(error, MovedError) else address
                address = nodes.redirected(address, error)
            except Exception as error:
                await self._noticed(address, error)
                raise
            else:
                if giver:
                    # It has other slots, by which others know it.
                    await nodes.believe(address, sent)
                if doubt is not None and doubt(answer):
                    await nodes.confirm(key, giver or address)
                else:
                    await nodes.believe(giver or address, sent, key)
                return answer
        raise TryAgainError(f"no node takes what is asked of slot {slot}")  # type: ignore[no-untyped-call]

    async def each(self, ask: Callable[[Redis], Awaitable[T]]) -> list[T]:
        """Ask all nodes that have slots, one after the other.

        Raises:
            redis.exceptions.RedisError, OSError: a node's error.
        """
        if not self.nodes.moves:
            await self.nodes.learn()
        answers = []
        for address in self.nodes.owners:
            try:
                answers.append(await ask(limited(self.nodes.client(address), retry_seconds(self))))
            except Exception as error:
                await self._noticed(address, error)
                raise
        return answers

    async def answers(self, ask: Callable[[Redis, Address], Awaitable[T]]) -> tuple[list[T], list[Address]]:
        """Ask all nodes that have slots, at once: the replies that came in time, and the nodes that are away.

        One that redirects is neither.

        Raises:
            redis.exceptions.RedisError, OSError: none replied, or an error is not transient.
        """
        if not self.nodes.moves:
            await self.nodes.learn()
        owners = self.nodes.owners
        asked = [
            asyncio.wait_for(ask(limited(self.nodes.client(each), 0), each), ANSWER_SECONDS)
            for each in owners
        ]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        replies: list[T] = []
        away: list[Address] = []
        for address, outcome in zip(owners, outcomes, strict=True):
            if not isinstance(outcome, BaseException):
                replies.append(outcome)
                continue
            if isinstance(outcome, AskError):
                self.nodes.redirected(address, outcome)
                self.nodes.key_elsewhere(address)
                continue
            away.append(address)
            if not is_transient(outcome) or len(away) == len(owners):
                raise outcome
            if isinstance(outcome, Exception):
                await self._noticed(address, outcome)
        return replies, away

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """A command as the library's methods send it, which read its reply as the ``options`` say."""
        words: tuple[Any, ...] = (*args[0].split(), *args[1:])
        options.pop("keys", None)

        async def ask(node: PipedRedis) -> Any:
            reply = await node.pipe.command(*words)
            shape = node.response_callbacks.get(args[0])
            return reply if shape is None else shape(reply, **options)

        return await self.at(key_of(words[0], words[1:]), ask)

    async def _noticed(self, address: Address, error: Exception) -> None:
        if is_transient(error) and not isinstance(error, _NOT_THE_NODES):
            self.nodes.suspect(address)
            # Another node may have its slots now: a retry asks there.
            with suppress(*TRANSIENT):
                await self.nodes.learn()


class ApartCluster(ClusterRedis):
    """A client of a cluster over connections of its own.

    Attributes:
        asked: the node that carried out the last command; None: there was none, or its slot is being moved.
    """

    def __init__(self, nodes: Nodes, connect: Callable[[PipedRedis], PipedRedis]) -> None:
        """``connect`` makes a client of the same node that has connections of its own."""
        super().__init__(nodes)
        self._connect_apart = connect
        self._own: dict[Address, PipedRedis] = {}
        self.asked: PipedRedis | None = None

    @property
    def own(self) -> Iterable[PipedRedis]:
        """The clients that it has."""
        return self._own.values()

    def node(self, address: Address) -> PipedRedis:
        """The client of a node that this one alone uses."""
        found = self._own.get(address)
        if found is None:
            found = self._own[address] = self._connect_apart(super().node(address))
        return found

    async def at(
        self,
        key: str | bytes,
        ask: Callable[[PipedRedis], Awaitable[T]],
        doubt: Doubt | None = None,
    ) -> T:
        """As `ClusterRedis.at`."""

        async def noting(node: PipedRedis) -> T:
            self.asked = None
            answer = await ask(node)
            if not isinstance(node.pipe, Asking):
                self.asked = node
            return answer

        return await super().at(key, noting, doubt)


def _asking(node: PipedRedis) -> PipedRedis:
    """A node's client that asks it for keys of a slot which it is about to get."""
    client = copy(node)
    client.pipe, client.large = Asking(node.pipe), Asking(node.large)
    return client


async def _close(client: PipedRedis) -> None:
    for pipe in {client.pipe, client.large}:
        await pipe.close()
    await client.connection_pool.disconnect(inuse_connections=True)


def _shown(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
