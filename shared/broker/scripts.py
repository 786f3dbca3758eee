"""Lua scripts as Python callables: loaded from shared/lua, called by hash, sent whole when the broker forgot them.

A script whose first line is ``#!lua flags=allow-oom`` runs also when the broker's memory is full. Those are the ones
that free memory, end turns or keep leases, and what operators and rescuers need meanwhile: each writes little.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

from turnstream.shared.broker.client import PipedRedis, command, incarnation
from turnstream.shared.broker.cluster import ClusterRedis
from turnstream.shared.broker.keys import FOR_SCRIPTS
from turnstream.shared.broker.retry import limited, retry, retry_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from redis.asyncio import Redis

    from turnstream.shared.broker.cluster import Doubt
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.batch import Argument
    from turnstream.shared.settings import Settings

# One of a file's own functions, with the comment on it.
_FUNCTION = re.compile(r"(?:^--.*\n)*^local function (\w+)\(.*\n(?:.*\n)*?end\n+", re.MULTILINE)

# The function that makes what a run seldom comes to; its body.
_SLOW_PATHS = re.compile(r"^local function slow_paths\(\)\n((?:.*\n)*?)end\n", re.MULTILINE)

# What is larger would hold up others' commands on its way.
LARGE_BYTES = 64 * 1024

_TEXTS = (str, bytes)

# Where all scripts are.
LUA = Path(__file__).parent.parent / "lua"


# What is given under a declared name: a value, None for an optional key, or the rest.
Given = str | bytes | int | None | Sequence[str | bytes | int]


# Bounds that each script on a session gets, in the order of `limits_of`. TTL and LEASE are in ms.
_LIMITS = ("TTL", "LEASE", "MAX_EVENTS", "MAX_BYTES")

# All that each script on a session gets, as `on_session` gives it.
_SESSION_KEYS = tuple(name.upper() for name in FOR_SCRIPTS)
_ONE_SERVER, _NODE = (f"local CLUSTER = {each}\n" for each in ("false", "true"))
_SESSION_ARGS = ("INCARNATION", "FILE_COUNT", "TID", "OP", *_LIMITS)


def limits_of(settings: Settings) -> tuple[int, ...]:
    """Of the settings, the bounds that each script on a session gets."""
    return settings.ttl_ms, settings.lease_ms, settings.log_max_events, settings.log_max_bytes


class Script:
    """One Lua file, and the names of what it takes: it is called with them, and finds each as a local of that name.

    The locals are written in front of the file's text. Of the ``rest`` there may be any number: it begins at the index
    ``<rest>_at`` of ``ARGV``. Those that work on a session get what they use of ``_session.lua`` in front, too, whose
    locals are upper-case.
    """

    def __init__(
        self,
        name: str,
        *,
        keys: tuple[str, ...] = (),
        optional: tuple[str, ...] = (),
        args: tuple[str, ...] = (),
        rest: str = "",
        session: bool = False,
        large: bool = False,
        once: bool = False,
    ) -> None:
        """``optional`` are keys behind the others that may be None, in Lua nil.

        ``large``: what it returns may be. ``once``: it is not safe to repeat, so no client retries it.
        """
        flags, text = _read(name)
        self.name = name
        self.keys = keys + optional
        self.args = args
        self.rest = rest
        # The embedded broker knows no flags, and needs none: its memory has no limit.
        self._embedded = (_session(text, len(args)) if session else "") + self._locals(session=session) + text
        self.text = flags + self._embedded
        self.sha = _sha(self.text)
        # As the nodes of a cluster get it.
        self._cluster_text = self.text.replace(_ONE_SERVER, _NODE, 1) if session else self.text
        self._cluster_sha = _sha(self._cluster_text)
        self._session = session
        self._required = len(keys)
        self._large = large
        self._once = once
        self._names = self.keys + args + ((rest,) if rest else ())
        self._values = _values_of(self._names)

    def __call__(self, redis: Redis, /, **given: Given) -> Awaitable[Any]:
        """Run it with what it is declared to take.

        Raises:
            TypeError: a declared name is not given, or a given one is not declared. Nothing was sent.
            BrokerAway, redis.exceptions.RedisError, OSError: as `command`.
        """
        return self.sure(redis, None, **given)

    def sure(self, redis: Redis, doubt: Doubt | None, /, **given: Given) -> Awaitable[Any]:
        """Run it as `__call__` does. What it replies, and is in ``doubt``, is what the keys' primary says, for sure.

        That is asked for where a reply lacks what was there before, or is relied on for long: it may be of a node of a cluster that
        stood still, and does not know yet that it was replaced, or of a replica. Then this raises, and a retry asks the right one.

        Raises: as `__call__`.
        """
        keys, arguments, rest = self._in_order(given)
        return self._run(redis, keys, (*arguments, *rest), doubt=doubt)

    def on_session(
        self,
        redis: Redis,
        keys: SessionKeys,
        task: str,
        op: str,
        limits: tuple[int, ...],
        given: Mapping[str, Given],
        *,
        files: Sequence[Argument] = (),
        size: int | None = None,
        doubt: Doubt | None = None,
    ) -> Awaitable[Any]:
        """Run it with what it is declared to take (``given``), and with what each script on a session gets.

        ``task`` and ``op``, the operation id, may be empty. ``files``: digest and data of each file that the arguments
        refer to; no data where the session should have it. ``size``: bytes of the arguments, about, where the caller knows;
        there may be many of them to count. ``doubt``: as for `sure`.

        Raises: as `__call__`.
        """
        own, arguments, rest = self._in_order(given)
        arguments = (len(files) // 2, task, op, *limits, *arguments, *files, *rest)
        return self._run(redis, keys.for_scripts(task) + own, arguments, size, doubt)

    async def _run(
        self,
        redis: Redis,
        keys: tuple[str, ...],
        arguments: tuple[Argument, ...],
        size: int | None = None,
        doubt: Doubt | None = None,
    ) -> Any:
        """Run it in one round trip; in two when the broker does not know it (restart, SCRIPT FLUSH)."""
        if seconds := retry_seconds(redis):
            run = partial(self._run, limited(redis, 0), keys, arguments, size, doubt)
            return await (run() if self._once else retry(run, seconds=seconds, what=self.name))
        large = self._large or (size_of(arguments) if size is None else size) > LARGE_BYTES
        if not isinstance(redis, PipedRedis):
            if isinstance(redis, ClusterRedis):
                at = partial(self._at, keys=keys, arguments=arguments, large=large)
                return await redis.at(keys[0], at, doubt)
            return await self._send(redis, "EVAL", self._embedded, keys, arguments, large=large)
        try:
            reply = await self._send(redis, "EVALSHA", self.sha, keys, arguments, large=large)
        except NoScriptError:
            reply = await self._send(redis, "EVAL", self.text, keys, arguments, large=large)
        if doubt is not None and doubt(reply):
            await (redis.large if large else redis.pipe).confirm()
        return reply

    async def _at(
        self, node: PipedRedis, *, keys: tuple[str, ...], arguments: tuple[Argument, ...], large: bool
    ) -> Any:
        """Run it at the node of a cluster that has the keys."""
        # It asks for its incarnation itself: see lua/_session.lua.
        words = (len(keys), *keys, *(("",) if self._session else ()), *arguments)
        try:
            return await command(node, "EVALSHA", self._cluster_sha, *words, large=large)
        except NoScriptError:
            return await command(node, "EVAL", self._cluster_text, *words, large=large)

    async def _send(
        self,
        redis: Redis,
        how: str,
        what: str,
        keys: tuple[str, ...],
        arguments: tuple[Argument, ...],
        *,
        large: bool,
    ) -> Any:
        if not self._session:
            return await command(redis, how, what, len(keys), *keys, *arguments, large=large)
        # Nothing is awaited in between: the command goes over the connection that was told this.
        named = await incarnation(redis, large=large)
        return await command(redis, how, what, len(keys), *keys, named, *arguments, large=large)

    def _in_order(
        self, given: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], tuple[Argument, ...], Sequence[Argument]]:
        """Keys, arguments and the rest, in the order in which they are declared."""
        try:
            values = self._values(given)
        except KeyError:
            raise self._mismatch(given) from None
        if len(given) != len(values):
            raise self._mismatch(given)
        count = len(self.keys)
        keys = values[:count]
        while len(keys) > self._required and keys[-1] is None:
            keys = keys[:-1]
        return (keys, values[count:-1], values[-1]) if self.rest else (keys, values[count:], ())

    def _locals(self, *, session: bool) -> str:
        """Lua that makes a local of each name that this script is declared with."""
        keys_at = 1 + len(_SESSION_KEYS) * session
        args_at = 1 + len(_SESSION_ARGS) * session
        head = _locals("KEYS", self.keys, keys_at) + _locals("ARGV", self.args, args_at)
        if self.rest:
            at = "FILES_AT + 2 * FILE_COUNT" if session else args_at + len(self.args)
            head += f"local {self.rest}_at = {at}\n"
        return head

    def _mismatch(self, given: Mapping[str, Any]) -> TypeError:
        missing = ", ".join(name for name in self._names if name not in given)
        unknown = ", ".join(name for name in given if name not in self._names)
        return TypeError(
            f"{self.name}.lua takes {', '.join(self._names)}; missing: {missing}; unknown: {unknown}"
        )


def _read(name: str) -> tuple[str, str]:
    """The line with a file's flags, if it has one, and its text."""
    text = (LUA / f"{name}.lua").read_text()
    if not text.startswith("#!"):
        return "", text
    flags, _, text = text.partition("\n")
    return flags + "\n", text


def _locals(table: str, names: Sequence[str], first: int) -> str:
    """Lua that reads the elements of a table once, from ``first`` on, each into a local."""
    if not names:
        return ""
    return f"local {', '.join(names)} = {', '.join(f'{table}[{index}]' for index in range(first, first + len(names)))}\n"


def _values_of(names: tuple[str, ...]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """What picks the values of these names out of a dict; KeyError if one is missing."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda given: (given[names[0]],)


def _session(text: str, args: int) -> str:
    """What goes in front of a script on a session, whose text that is, with so many arguments of its own."""
    head = _ONE_SERVER + _locals("KEYS", _SESSION_KEYS, 1) + _locals("ARGV", _SESSION_ARGS, 1)
    head += f"local FILES_AT = {1 + len(_SESSION_ARGS) + args}\n"
    return head + _used((LUA / "_session.lua").read_text(), text)


def _used(shared: str, text: str) -> str:
    """What is shared, without the functions that nothing in ``text`` leads to: Lua makes each anew in every run.

    Those to which only `slow_paths` leads go into it, so that they are made when it is called.
    """
    for function in reversed(list(_FUNCTION.finditer(shared))):
        # Functions call only what stands above them, or themselves.
        before, behind = shared[: function.start()], shared[function.end() :]
        call = re.compile(rf"\b{function[1]}\(")
        if call.search(behind + text) is None:
            shared = before + behind
        elif (slow := _SLOW_PATHS.search(behind)) and not call.search(_without(slow, behind) + text):
            inner = re.sub("^(?=.)", "  ", function[0], flags=re.MULTILINE)
            shared = before + behind[: slow.start(1)] + inner + behind[slow.start(1) :]
    return shared


def _without(part: re.Match[str], text: str) -> str:
    return text[: part.start()] + text[part.end() :]


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def size_of(arguments: Sequence[Argument]) -> int:
    """Bytes of a script's arguments, numbers left out."""
    return sum([len(each) for each in arguments if isinstance(each, _TEXTS)])
