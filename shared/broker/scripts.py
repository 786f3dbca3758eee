"""Lua scripts as Python callables: loaded from shared/lua, called by hash, sent whole when the broker forgot them.

A script whose first line is ``#!lua flags=allow-oom`` runs also when the broker's memory is full. Those are the ones
that free memory, end turns or keep leases, and what operators and rescuers need meanwhile: each writes little.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

from turnstream.shared.broker.client import PipedRedis, command, incarnation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from turnstream.shared.session.batch import Argument

# One of a file's own functions, with the comment on it.
_FUNCTION = re.compile(r"(?:^--.*\n)*^local function (\w+)\(.*\n(?:.*\n)*?end\n+", re.MULTILINE)

# What is larger would hold up others' commands on its way.
LARGE_BYTES = 64 * 1024

_TEXTS = (str, bytes)

_FOLDER = Path(__file__).parent.parent / "lua"


class Script:
    """One Lua file; those that work on a session get what they use of ``_session.lua`` in front."""

    def __init__(self, name: str, *, session: bool = False, large: bool = False) -> None:
        """``large``: what it returns may be."""
        text = (_FOLDER / f"{name}.lua").read_text()
        flags = ""
        if text.startswith("#!"):
            flags, _, text = text.partition("\n")
            flags += "\n"
        if session:
            text = _used((_FOLDER / "_session.lua").read_text(), text) + text
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
            redis.exceptions.RedisError, OSError: the broker's trouble, see shared/broker/client.py.
        """
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
