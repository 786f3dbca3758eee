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
from turnstream.shared.broker.retry import limited, retry, retry_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from redis.asyncio import Redis

    from turnstream.shared.session.batch import Argument

# One of a file's own functions, with the comment on it.
_FUNCTION = re.compile(r"(?:^--.*\n)*^local function (\w+)\(.*\n(?:.*\n)*?end\n+", re.MULTILINE)

# What is larger would hold up others' commands on its way.
LARGE_BYTES = 64 * 1024

_TEXTS = (str, bytes)

# Where all scripts are.
LUA = Path(__file__).parent.parent / "lua"


# What is given under a declared name: a value, None for an optional key, or the rest.
Given = str | bytes | int | None | Sequence[str | bytes | int]


class Script:
    """One Lua file, and the names of what it takes: it is called with them, and finds each as a local of that name.

    The locals are written in front of the file's text. Of the ``rest`` there may be any number: it begins at the index
    ``<rest>_at`` of ``ARGV``.
    """

    def __init__(
        self,
        name: str,
        *,
        keys: tuple[str, ...],
        optional: tuple[str, ...] = (),
        args: tuple[str, ...] = (),
        rest: str = "",
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
        self._embedded = (
            _locals("KEYS", self.keys) + _locals("ARGV", args) + _rest(rest, len(args) + 1) + text
        )
        self.text = flags + self._embedded
        self.sha = _sha(self.text)
        self._optional = bool(optional)
        self._once = once
        self._large = large
        self._names = self.keys + args + ((rest,) if rest else ())
        self._values = _values_of(self._names)

    async def __call__(self, redis: Redis, size: int | None = None, /, **given: Given) -> Any:
        """Run it in one round trip; in two when the broker does not know it (restart, SCRIPT FLUSH).

        ``size``: bytes of the arguments, about, where the caller knows; there may be many of them to count.

        Raises:
            TypeError: a declared name is not given, or a given one is not declared. Nothing was sent.
            BrokerAway, redis.exceptions.RedisError, OSError: as `command`.
        """
        if seconds := retry_seconds(redis):
            run = partial(self, limited(redis, 0), size, **given)
            return await (run() if self._once else retry(run, seconds=seconds, what=self.name))
        keys, arguments = self._in_order(given)
        large = self._large or (size_of(arguments) if size is None else size) > LARGE_BYTES
        words = (len(keys), *keys, *arguments)
        if not isinstance(redis, PipedRedis):
            return await command(redis, "EVAL", self._embedded, *words, large=large)
        try:
            return await command(redis, "EVALSHA", self.sha, *words, large=large)
        except NoScriptError:
            return await command(redis, "EVAL", self.text, *words, large=large)

    def _in_order(self, given: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[Argument, ...]]:
        """Keys and arguments as they were declared."""
        try:
            values = self._values(given)
        except KeyError:
            raise self._mismatch(given) from None
        if len(given) != len(values):
            raise self._mismatch(given)
        count = len(self.keys)
        keys = values[:count]
        if self._optional:
            keys = tuple(key for key in keys if key is not None)
        return keys, (*values[count:-1], *values[-1]) if self.rest else values[count:]

    def _mismatch(self, given: Mapping[str, Any]) -> TypeError:
        missing = ", ".join(name for name in self._names if name not in given)
        unknown = ", ".join(name for name in given if name not in self._names)
        return TypeError(
            f"{self.name}.lua takes {', '.join(self._names)}; missing: {missing}; unknown: {unknown}"
        )


class SessionScript:
    """One Lua file; those that work on a session get what they use of ``_session.lua`` in front."""

    def __init__(self, name: str, *, session: bool = False, large: bool = False) -> None:
        """``large``: what it returns may be."""
        text = (LUA / f"{name}.lua").read_text()
        flags = ""
        if text.startswith("#!"):
            flags, _, text = text.partition("\n")
            flags += "\n"
        if session:
            text = _used((LUA / "_session.lua").read_text(), text) + text
        self.name = name
        self._large = large
        self.text = flags + text
        self.sha = _sha(self.text)
        # The embedded broker knows no flags, and needs none: its memory has no limit.
        self._embedded = text
        self._session = session

    async def __call__(
        self, redis: Redis, keys: Sequence[str], arguments: Sequence[Argument], *, size: int | None = None
    ) -> Any:
        """Run it in one round trip; in two when the broker does not know it (restart, SCRIPT FLUSH).

        ``size``: bytes of the arguments, about, where the caller knows; there may be many of them to count.

        Raises:
            BrokerAway, redis.exceptions.RedisError, OSError: as `command`.
        """
        if seconds := retry_seconds(redis):
            run = partial(self, limited(redis, 0), keys, arguments, size=size)
            return await retry(run, seconds=seconds, what=self.name)
        large = self._large or (size_of(arguments) if size is None else size) > LARGE_BYTES
        if not isinstance(redis, PipedRedis):
            return await self._send(redis, "EVAL", self._embedded, keys, arguments, large=large)
        try:
            return await self._send(redis, "EVALSHA", self.sha, keys, arguments, large=large)
        except NoScriptError:
            return await self._send(redis, "EVAL", self.text, keys, arguments, large=large)

    async def _send(
        self,
        redis: Redis,
        how: str,
        what: str,
        keys: Sequence[str],
        arguments: Sequence[Argument],
        *,
        large: bool,
    ) -> Any:
        if not self._session:
            return await command(redis, how, what, len(keys), *keys, *arguments, large=large)
        # Nothing is awaited in between: the command goes over the connection that was told this.
        named = await incarnation(redis, large=large)
        return await command(redis, how, what, len(keys), *keys, *arguments, named, large=large)


def _read(name: str) -> tuple[str, str]:
    """The line with a file's flags, if it has one, and its text."""
    text = (LUA / f"{name}.lua").read_text()
    if not text.startswith("#!"):
        return "", text
    flags, _, text = text.partition("\n")
    return flags + "\n", text


def _locals(table: str, names: Sequence[str]) -> str:
    """Lua that reads each element of a table once, into a local."""
    if not names:
        return ""
    return (
        f"local {', '.join(names)} = {', '.join(f'{table}[{index}]' for index in range(1, len(names) + 1))}\n"
    )


def _rest(rest: str, first: int) -> str:
    return f"local {rest}_at = {first}\n" if rest else ""


def _values_of(names: tuple[str, ...]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """What picks the values of these names out of a dict; KeyError if one is missing."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda given: (given[names[0]],)


def _used(shared: str, text: str) -> str:
    """What is shared, without the functions that nothing in ``text`` leads to: Lua makes each anew in every run."""
    for function in reversed(list(_FUNCTION.finditer(shared))):
        # Functions call only what stands above them, or themselves.
        if not re.search(rf"\b{function[1]}\(", shared[function.end() :] + text):
            shared = shared[: function.start()] + shared[function.end() :]
    return shared


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def size_of(arguments: Sequence[Argument]) -> int:
    """Bytes of a script's arguments, numbers left out."""
    return sum([len(each) for each in arguments if isinstance(each, _TEXTS)])
