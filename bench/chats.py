"""One POST a chat, each on a connection and in a session of its own, of an agent that says fifty tokens.

One front end, one worker and a broker share the machine with this load; AgentScope Runtime, in one process
and without a broker, gets the same load in turns with ours. Counted are the tokens that arrived.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvloop

from bench import streams
from bench.accounts import Spent
from bench.agents import TOKENS
from bench.peers.agentscope import NAME, agentscope
from bench.peers.environment import NotInstalledError
from bench.table import Row, number, percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bench.scale import Scale
    from bench.topology import Topology


@dataclass
class Cell:
    """What some rounds of one load at one server came to."""

    first: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)

    def percentile(self, share: float) -> float:
        """Milliseconds from POST to the first token."""
        return percentile(self.first, share)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    def micros(self, name: str = "") -> float:
        """CPU for each token, of one process or of all."""
        spent = self.spent[name] if name else sum(self.spent.values())
        return 1e6 * spent / self.tokens

    def parts(self) -> str:
        """CPU by process."""
        return " + ".join(f"{name} {number(self.micros(name))}" for name in self.spent)


class Server:
    """Something that is asked for chats."""

    def __init__(self, port: int, pids: Mapping[str, int], post: Callable[[], bytes]) -> None:
        self.port = port
        self.pids = pids
        self.post = post

    def round(self, at_once: int, total: int, cell: Cell) -> None:
        """Run ``total`` chats, ``at_once`` at a time, and add what they came to."""
        requests = [self.post() for _ in range(total)]
        spent = Spent(self.pids)
        arrived, seconds = uvloop.run(streams.closed_loop(self.port, at_once, requests))
        for name, each in spent.seconds().items():
            cell.spent[name] = cell.spent.get(name, 0.0) + each
        for stream in arrived:
            stream.check(TOKENS)
        cell.first += [1000 * (stream.marked - stream.sent) for stream in arrived]
        cell.tokens += TOKENS * len(arrived)
        cell.seconds += seconds


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """Time to the first token, tokens per second, CPU for each."""
    with ExitStack() as stack:
        key = built.key("echo")
        ours = Server(built.port, built.pids, lambda: streams.post(key, "go"))
        theirs = None
        if scale.peers:
            try:
                port, pid = stack.enter_context(agentscope())
                theirs = Server(port, {"server": pid}, lambda: streams.post("none", "go"))
            except NotInstalledError as error:
                print(f"{NAME} is left out: {error}")
        servers = [each for each in (ours, theirs) if each]
        for server in servers:
            server.round(10, scale.count(50), Cell())
        for at_once, total, rounds in ((1, 200, 1), (50, 300, 2), (100, 300, 2)):
            cells = [Cell() for _ in servers]
            for _ in range(scale.count(rounds)):
                for server, cell in zip(servers, cells, strict=True):
                    server.round(at_once, scale.count(total), cell)
            yield from _rows(at_once, cells[0], cells[1] if theirs else None)
        key_of_pydantic = built.key("pydantic")
        model = Server(built.port, built.pids, lambda: streams.post(key_of_pydantic, f"/tokens {TOKENS}"))
        model.round(10, scale.count(20), Cell())
        plain, cell = Cell(), Cell()
        model.round(50, scale.count(200), cell)
        ours.round(50, scale.count(200), plain)
        yield Row(
            "pydantic-ai agent: what it adds to the worker's CPU per token, 50 chats at once",
            cell.micros("worker") - plain.micros("worker"),
            "µs",
            note=f"worker {number(cell.micros('worker'))} against {number(plain.micros('worker'))}; "
            f"{number(cell.rate)} tokens/s; first token p50 {number(cell.percentile(0.5))} ms",
        )


def _rows(at_once: int, ours: Cell, theirs: Cell | None) -> Iterator[Row]:
    where = f"{at_once} chat{'s' if at_once > 1 else ''} at once: "
    other = NAME if theirs else ""
    for share, most in ((0.5, 4.0), (0.99, 15.0)):
        row = Row(
            f"{where}POST to the first token, p{100 * share:.0f}",
            ours.percentile(share),
            "ms",
            theirs.percentile(share) if theirs else None,
            other,
        )
        if at_once == 1:
            row = row.at_most(most)
        yield row
    rate = Row(f"{where}tokens delivered", ours.rate, "/s", theirs.rate if theirs else None, other)
    yield rate.ratio_at_least(1.0) if at_once > 1 else rate
    micros = Row(
        f"{where}CPU per delivered token, all processes",
        ours.micros(),
        "µs",
        theirs.micros() if theirs else None,
        other,
        note=ours.parts(),
    )
    yield micros.ratio_at_most(1.0) if at_once > 1 else micros
