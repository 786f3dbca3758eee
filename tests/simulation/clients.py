"""Clients of a simulation: those of the chaos suite, who do some things more, in short turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
from typing_extensions import override

from tests.chaos.clients import ChaosClient, Town
from tests.chaos.records import ENDS
from tests.simulation.http_client import SimulatedTransport

if TYPE_CHECKING:
    import random

    from tests.chaos.records import Turn
    from tests.simulation.cluster import Cluster

# Whose agent is which, by the client's number. A model's turn costs three times as much as a coded one.
_AGENTS = (
    *("coded", "demo", "coded", "coded-parallel", "coded", "parallel"),
    *("coded", "coded-interrupt", "demo", "coded", "coded-parallel", "interrupt"),
)

# Agent → the key with which its clients come.
KEYS = {agent: f"sk-simulated-key-of-{agent}-clients" for agent in _AGENTS}

# What is said: long texts cost time, and show nothing that short ones do not.
PROMPTS = (
    "tokens",
    "tokens",
    "tokens",
    "words",
    "think",
    "tool",
    "call",
    "calls",
    "dispatch",
    "reflect",
    "slow",
)

# What a coded agent can do of it, see `tests.simulation.agents`.
CODED_PROMPTS = tuple(each for each in PROMPTS if each not in ("tool", "dispatch", "reflect"))


class SimulatedTown(Town):
    """What the clients of one run share.

    Attributes:
        cluster: where what a client is promised can be looked up, past all front ends.
        broken: promises that were not kept.
        cleared: turns that ended well, and whose sessions were cleared then.
        clears: whether sessions are cleared now and then: what the broker loses would bring back what was cleared.
    """

    def __init__(self, cluster: Cluster, fronts: list[str], *, clears: bool) -> None:
        super().__init__(KEYS["demo"], fronts)
        self.cluster = cluster
        self.clears = clears
        self.broken: list[str] = []
        self.cleared = 0

    @override
    def transport(self) -> httpx.AsyncBaseTransport:
        return SimulatedTransport()

    @override
    def headers_of(self, session: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {KEYS[agent_of(session)]}"}

    def status_of(self, turn: Turn) -> str:
        """A turn's status at the broker, at this moment."""
        return self.cluster.sessions.field(f"ts:{{dev/{turn.session}}}:task:{turn.task}", "status")


def agent_of(session: str) -> str:
    """The agent that a session's client speaks with: by the client's number."""
    return _AGENTS[int(session[1:].partition("s")[0]) % len(_AGENTS)]


class SimulatedClient(ChaosClient):
    """One user."""

    looks_back = 8
    _town: SimulatedTown

    def __init__(self, number: int, town: SimulatedTown, rng: random.Random) -> None:
        super().__init__(number, town, rng)
        self._agent = agent_of(self._session(0))

    async def _some_turns(self, session: str, at: int) -> None:
        await super()._some_turns(session, at)
        if self._town.clears and self._rng.random() < 0.1:
            await self._clear(session)

    def _new(self, session: str, task: str) -> Turn:
        turn = super()._new(session, task)
        turn.repeats_by_key = self._rng.random() < 0.2
        if turn.prompt.startswith("/calls") and self._rng.random() < 0.3:
            turn.unanswered = 1
        if self._agent.endswith("interrupt"):
            # The next one may end it.
            turn.stopped = True
        return turn

    def _prompt(self) -> str:
        return self._said(self._rng.choice(CODED_PROMPTS if self._agent.startswith("coded") else PROMPTS))

    def _said(self, kind: str) -> str:
        match kind:
            case "tokens":
                return f"/tokens {self._rng.randint(2, 12)} {self._rng.choice((0, 2, 10, 60))}"
            case "think":
                return "/think"
            case "reflect":
                return "/reflect on it"
        return super()._said(kind)

    async def _ask(self, turn: Turn, what: str, params: dict[str, str], body: object) -> int:
        losses = self._town.losses
        status = await super()._ask(turn, what, params, body)
        if what == "stop" and status == 200 and losses == self._town.losses:
            found = self._town.status_of(turn)
            if found not in ENDS:
                self._town.broken.append(f"a_stops_receipt_is_true: {turn}: {found}")
        return status

    async def _clear(self, session: str) -> None:
        """Have a session forgotten; from then on who has seen something of it is told that it is gone."""
        turns = [turn for turn in self._turns if turn.session == session]
        if not all(turn.own.ended and turn.accepted for turn in turns):
            return
        while True:
            try:
                answer = await self._http.post(
                    f"{self._front()}/liteAgent/v1/clear", params={"sessionId": session}
                )
            except httpx.HTTPError:
                continue
            if answer.status_code == 200:
                break
            if answer.status_code not in (429, 503):
                self._town.broken.append(
                    f"a_clear_is_done: {session}: {answer.status_code} {answer.text[:200]}"
                )
                return
        for turn in turns:
            self._town.turns.remove(turn)
            self._turns.remove(turn)
            self._town.cleared += 1
            if (status := await self._status(turn)) != 410:
                self._town.broken.append(f"what_is_cleared_is_gone: {turn}: {status}")
