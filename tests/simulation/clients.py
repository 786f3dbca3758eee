"""Clients of a simulation: those of the chaos suite, in short turns, of both protocols; their sessions come to an end."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx
import orjson
from typing_extensions import override

from tests.chaos.clients import ChaosClient, Town, _all
from tests.chaos.records import ENDS
from tests.simulation.agents import BROKEN_DOWN, ON_LOST
from tests.simulation.forgotten import account_so_far, wrong_so_far
from tests.simulation.http_client import NoCookies, SimulatedTransport
from tests.simulation.liteagent import LiteView
from tests.support.client import asked, read_frame
from turnstream.shared.api_keys import Limits
from turnstream.shared.broker.keys import owner_turns, parse_admission
from turnstream.shared.errors import BrokerAway
from turnstream.shared.session.files import fill

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from tests.chaos.records import Session, Turn, View
    from tests.simulation.cluster import Cluster
    from tests.simulation.whole_logs import WholeLogs
    from tests.support.client import Frame

# Whose agent is which, by the client's number. A model's turn costs three times as much as a coded one.
_AGENTS = (
    *("coded", "teller", "demo", "teller", "coded", "coded-parallel"),
    *("teller", "parallel", "coded", "hurried", "coded-interrupt", "demo"),
    *("teller", "coded-parallel", "interrupt", "structured", "impatient"),
)

# Agent → the key with which its clients come.
KEYS = {agent: f"sk-simulated-key-of-{agent}-clients" for agent in _AGENTS}

# Agent → what its key may do at most. Bytes are those of all clients, and become more: an operator gives more when asked.
LIMITS = {
    "coded": Limits(concurrency=3),
    "interrupt": Limits(rate=8),
    "parallel": Limits(storage=60_000),
}
MORE_STORAGE = 4

# Turns that count against no limit.
IDLE = {*ENDS, "parked"}

# A client that is refused waits for so long at most, whatever it is told.
PATIENT_SECONDS = 10.0

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
    "beside",
    "lost",
    "lost",
    "dispatch",
    "reflect",
    "slow",
    "approve",
    "fail",
    "image",
    "image",
)

# A sub-agent asks its client and fails; beside a call that is the turn's own.
LOST, APART = "/dispatch /call lost", "/call apart"

# What a coded agent can do of it, see `tests.simulation.agents`.
CODED_PROMPTS = (
    *(
        each
        for each in PROMPTS
        if each not in ("tool", "beside", "lost", "dispatch", "reflect", "approve", "image")
    ),
    "recall",
    "recall",
)


# What the other agents' clients say than the demo agent's.
_PROMPTS_OF = {
    "coded": CODED_PROMPTS,
    "teller": ("ask", "book", "book", "book"),
    "hurried": ("ask",),
    "structured": ("output",),
    "impatient": ("approve", "call", "calls", "tokens"),
}


# Agent → why its turns may fail: their time is over soon, or no worker serves their version, or no answer came.
_MAY_FAIL = {"hurried": "deadline", "coded-interrupt": "agent_version_gone", "impatient": "call_expired"}

# No session expires before it was left alone for long; by then what its turns' ends left to do is done.
UNUSED_SECONDS = 15.0

# A request whose connection was lost has come by then, or never will: longer than connections are held, or processes frozen.
LATE_SECONDS = 10.0

# Between two looks for turns that no client waits for any more.
ABANDONED_SECONDS = 5.0

# The share of turns that a LiteAgent client follows, or begins.
LITEAGENT_SHARE = 0.25

# Where logs are cut, some clients stay away for so long that they come back behind the cut.
AWAY_SHARE, AWAY_SECONDS = 0.15, (2.0, 8.0)

# The share of rounds in which two turns are sent together, and in which three or four are: only there two wait in one line.
PAIR_SHARE, LINE_SHARE = 0.1, 0.1

# The share of rounds with a turn whose client sends it once, and never comes back, whatever became of it; how long it stays.
LEAVES_SHARE = 0.1
STAYS_SECONDS = 6.0

# The share of calls that may be taken back to which a client waits with its answer until they were.
TOO_LATE_SHARE = 0.5

# The share of stops that are of all turns of the session.
STOPS_ALL_SHARE = 0.2

# The share of rounds in the middle of which the session is cleared, and when.
CLEARED_SHARE, CLEARED_SECONDS = 0.05, (0.0, 1.5)

# The share of images that a turn brings itself: so large that each is a file of its session, and so few kinds that sessions
# get some of them again.
LARGE_SHARE = 0.7
LARGE_LETTERS, LETTERS = 33_000, "ABC"

# The share of lost calls that a client wants to be run again, and of calls that it consents to.
APPROVED_SHARE = 0.7


class SimulatedTown(Town):
    """What the clients of one run share.

    Attributes:
        cluster: where what a client is promised can be looked up, past all front ends.
        broken: promises that were not kept.
        lite: turns that a LiteAgent client follows, and what it saw.
        forgotten: turns that ended well, and whose sessions were cleared, or expired, then.
        former: these sessions as they were then.
        logs: in a run in which logs are cut, what stood in them.
        clears: whether sessions are cleared now and then: what the broker loses would bring back what was cleared.
    """

    def __init__(self, cluster: Cluster, fronts: list[str], *, clears: bool) -> None:
        super().__init__(KEYS["demo"], fronts)
        self.cluster = cluster
        self.clears = clears
        self.logs: WholeLogs | None = None
        self.broken: list[str] = []
        self.lite: list[tuple[Turn, LiteView]] = []
        self.forgotten: list[Turn] = []
        self.former: list[Session] = []

    @override
    def transport(self) -> httpx.AsyncBaseTransport:
        return SimulatedTransport()

    def begun(self) -> int:
        """How many turns were."""
        return len(self.turns) + len(self.forgotten)

    @override
    def headers_of(self, session: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {KEYS[agent_of(session)]}"}

    @override
    def owner_of(self, session: str) -> str:
        return self.cluster.owner_of(agent_of(session))

    def keys_of(self, session: str) -> str:
        """How the names of a session's keys begin."""
        return f"ts:{{{self.owner_of(session)}/{session}}}:"

    def is_cut(self, turn: Turn, seen: str) -> bool:
        """Whether some of a turn was cut from its log by now that stood behind a cursor; without one, some of it."""
        keys, store = self.keys_of(turn.session), self.cluster.sessions
        last = seen.partition("-")[2] or int(store.field(f"{keys}task:{turn.task}", "first") or 1) - 1
        return int(store.field(f"{keys}meta", "head") or 1) > int(last) + 1

    def ref_of(self, turn: Turn) -> str:
        """A turn as the product names it."""
        return f"{self.owner_of(turn.session)}/{turn.session}/{turn.task}"

    @override
    def is_serial(self, session: str) -> bool:
        return not agent_of(session).endswith(("parallel", "interrupt"))

    async def stop_abandoned(self) -> None:
        """Stop, for ever, what waits for a client that saw its end: it came back with an old file, and others wait behind it."""
        while True:
            await asyncio.sleep(ABANDONED_SECONDS)
            for turn in self.turns if self.losses else ():
                if turn.own.ended and self.status_of(turn) == "parked":
                    turn.stopped = True
                    headers = self.headers_of(turn.session)
                    params = {"sessionId": turn.session, "taskId": turn.task}
                    async with httpx.AsyncClient(transport=self.transport(), headers=headers) as http:
                        with suppress(httpx.HTTPError):
                            await http.post(f"{self.fronts[0]}/liteAgent/v1/stop", params=params)

    def counted(self, owner: str) -> set[tuple[str, str, str]]:
        """What the broker counts as an owner's turns: each admission, its task's status, and when that has parked."""
        item = self.cluster.primary.item(owner_turns(owner).encode())
        found = set()
        for admission in item.value if item is not None else ():
            ref, op = parse_admission(admission.decode())
            task = ref.keys.task(ref.task)
            mine = self.cluster.sessions.field(task, "submit_op") == op
            status, parked = (
                self.cluster.sessions.field(task, name) if mine else "" for name in ("status", "parked")
            )
            found.add((admission.decode(), status, parked))
        return found

    def status_of(self, turn: Turn) -> str:
        """A turn's status at the broker, at this moment."""
        return self.cluster.sessions.field(f"{self.keys_of(turn.session)}task:{turn.task}", "status")

    def end_of(self, turn: Turn) -> str:
        """The status that the last entry of a turn's log tells, at this moment; empty where it has not ended there."""
        if self.logs is not None:
            *_, last = self.logs.seen(self.keys_of(turn.session), turn.task)
            ends = last.event.get("object") == "response" and last.event["status"] == self.status_of(turn)
            return last.event["status"] if ends and last.event["status"] in ENDS else ""
        sessions, session = self.cluster.sessions, self.keys_of(turn.session)
        log, out = (
            sessions.item(f"{session}log".encode()),
            sessions.field(f"{session}task:{turn.task}", "out"),
        )
        for key in reversed(log.value._ids if log is not None else ()):
            words = log.value._values_dict[key]
            fields = dict(zip(words[::2], words[1::2], strict=True))
            if fields[b"t"].decode() == turn.task:
                # Its files are no matter here.
                event = orjson.loads(fill(fields[b"e"], {}))
                ended = event.get("object") == "response" and event["status"] in ENDS and key.seq == int(out)
                return event["status"] if ended and event["status"] == self.status_of(turn) else ""
        return ""


def agent_of(session: str) -> str:
    """The agent that a session's client speaks with: by the client's number."""
    return _AGENTS[int(session[1:].partition("s")[0]) % len(_AGENTS)]


class SimulatedClient(ChaosClient):
    """One user."""

    _town: SimulatedTown

    def __init__(self, number: int, town: SimulatedTown, rng: random.Random) -> None:
        super().__init__(number, town, rng)
        self._http._cookies = NoCookies()
        self._agent = agent_of(self._session(0))
        self._owner = town.owner_of(self._session(0))
        self._limits = LIMITS.get(self._agent, Limits())
        if self._agent in LIMITS:
            self._http.event_hooks = {"request": [self._note_idle], "response": [self._look_at_refusal]}
        self._lite: dict[str, LiteView] = {}
        # Sessions of which all turns were stopped: that may come late, and end turns that were begun since.
        self._stopped: set[str] = set()

    async def _note_idle(self, request: httpx.Request) -> None:
        request.extensions["counted"] = (
            self._town.counted(self._owner),
            len(self._town.cluster.primary.steps.admitted),
        )

    async def _look_at_refusal(self, response: httpx.Response) -> None:
        """See that the key's limit was met where it is said so; wait as is asked, and have the operator give more room."""
        if response.status_code != 429:
            return
        await response.aread()
        if "turns at once" in response.text and not (self._town.losses or self._town.cluster.primary.lagged):
            (before, since), now = response.request.extensions["counted"], self._town.counted(self._owner)
            # What may have counted at any moment in between.
            known = {each for each, _, _ in before | now}.union(
                self._town.cluster.primary.steps.admitted[since:]
            )
            idle = {each for each, status, _ in before & now if status in IDLE}
            if len(known - idle) < self._limits.concurrency:
                self._town.broken.append(f"who_is_refused_has_many_turns: {sorted(now)}")
        if "more storage" in response.text:
            self._limits = Limits(storage=MORE_STORAGE * self._limits.storage)
            with suppress(BrokerAway):
                agent = self._agent
                await self._town.cluster.bring_keys({agent: KEYS[agent]}, {agent: self._limits})
        await asyncio.sleep(min(float(response.headers["Retry-After"]), PATIENT_SECONDS))

    @override
    def _at_stake(self, ended: list[Turn]) -> list[Turn]:
        """Those of a second or two."""
        return ended[-8:]

    @override
    def _again(self) -> float:
        town = self._town
        away = town.logs is not None and not town.healed.is_set() and self._rng.random() < AWAY_SHARE
        return self._rng.uniform(*AWAY_SECONDS) if away else super()._again()

    @override
    def _at_once(self) -> int:
        chance = self._rng.random()
        if chance < LINE_SHARE:
            return self._rng.randint(3, 4)
        return 2 if chance < LINE_SHARE + PAIR_SHARE else 1

    async def _some_turns(self, session: str, at: int) -> None:
        doing = [super()._some_turns(session, at)]
        if self._rng.random() < LEAVES_SHARE:
            doing.append(self._send_and_leave(f"{session}x{at}"))
        if self._town.clears and not at and self._rng.random() < CLEARED_SHARE:
            doing.append(self._clear_under_way(session))
        await _all(doing)
        cleared = [turn for turn in self._turns if turn.session == session and turn.cleared]
        if cleared:
            await self._drop(cleared, {404, 410})
        elif self._town.clears and self._rng.random() < 0.15:
            await self._forget(session)

    async def _send_and_leave(self, session: str) -> None:
        """Send one turn once. If it has come, it ends like any other, though nobody asks for it again."""
        kind = self._kinds()[0]
        asks = asked(session, self._said(kind), id=session)
        with suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(self._rng.uniform(0, STAYS_SECONDS)):
                await self._http.post(self._front() + "/process", json=asks)

    def _new(self, session: str, task: str) -> Turn:
        turn = super()._new(session, task)
        turn.repeats_by_key = self._rng.random() < 0.2
        if turn.prompt.startswith(("/calls", "/approve")) and self._rng.random() < 0.3:
            turn.unanswered = 1
        turn.approves = self._rng.random() < APPROVED_SHARE
        turn.withdraws = turn.prompt.startswith((LOST, APART))
        if turn.prompt.startswith(LOST):
            turn.answer = f'The result is {{"error":"{BROKEN_DOWN} (broken_down)"}}.'
        turn.may_fail = _MAY_FAIL.get(self._agent, "")
        if self._agent.endswith("interrupt") or session in self._stopped:
            # The next one may end it; or a stop of all.
            turn.stopped = True
        if self._rng.random() < LITEAGENT_SHARE:
            # LiteAgent's sessions are there before their first turn.
            exists = any(each.session == session and each.own.ended for each in self._turns)
            begins = exists and self._town.clears and self._rng.random() < 0.5
            view = self._lite[task] = LiteView(stream=self._rng.random() < 0.7, begins=begins)
            self._town.lite.append((turn, view))
        return turn

    def _prompt(self) -> str:
        return self._said(self._rng.choice(self._kinds()))

    def _kinds(self) -> tuple[str, ...]:
        """What the agent's clients say."""
        return _PROMPTS_OF.get(self._agent.partition("-")[0], PROMPTS)

    def _said(self, kind: str) -> str:
        match kind:
            case "tokens":
                return f"/tokens {self._rng.randint(2, 12)} {self._rng.choice((0, 2, 10, 60))}"
            case "think":
                return "/think"
            case "beside":
                return f'/call beside {{"seconds": {self._rng.choice((0, 0.05, 0.3))}}}'
            case "lost":
                return (
                    f'{self._rng.choice((LOST, APART))} {{"seconds": {self._rng.choice((0, 0.05, 0.3, 1))}}}'
                )
            case "recall":
                return "/recall"
            case "reflect":
                return "/reflect on it"
            case "approve":
                return self._rng.choice(("/approve", "/approve the files"))
            case "fail":
                return f"/fail with number {self._rng.randint(1, 99)}"
            case "image":
                if self._rng.random() < LARGE_SHARE:
                    return f"/image data:image/png;base64,{self._rng.choice(LETTERS) * LARGE_LETTERS}"
                return f"/image https://pictures.example/{self._rng.randint(1, 99)}.png"
            case "output":
                return f'/output {{"number": {self._rng.randint(1, 99)}}}'
            case "ask":
                return f"/ask {self._rng.randint(2, 12)}"
            case "book":
                return f"/book {self._rng.choice(list(ON_LOST))} {self._rng.randint(1, 99)}"
        return super()._said(kind)

    async def _ask(self, turn: Turn, what: str, params: dict[str, str], body: object) -> httpx.Response:
        losses = self._town.losses
        stopped = [turn]
        if what == "stop" and self._rng.random() < STOPS_ALL_SHARE:
            params = {"sessionId": turn.session}
            self._stopped.add(turn.session)
            stopped = [each for each in self._turns if each.session == turn.session]
            for each in stopped:
                # Also one that has ended: its end may be lost before the stop comes.
                each.stopped = True
            stopped = [each for each in stopped if each.accepted]
        answer = await super()._ask(turn, what, params, body)
        if what == "stop" and answer.status_code == 200 and losses == self._town.losses:
            told, open_ones = answer.json(), [each for each in stopped if not self._town.end_of(each)]
            if losses:
                # One that was lost by then is there no more.
                open_ones = [each for each in open_ones if self._town.status_of(each)]
            if told != params or (open_ones and not turn.cleared):
                wrong = [f"{each}: {self._town.status_of(each)}" for each in open_ones]
                self._town.broken.append(f"a_stops_receipt_is_true: {turn}: {told}, {wrong}")
        return answer

    @override
    async def _give_up(self, turn: Turn, view: View) -> None:
        """Leave a call unanswered; where the agent does not wait for long, for ever."""
        if turn.may_fail != "call_expired":
            await super()._give_up(turn, view)

    @override
    async def _answer(self, turn: Turn, view: View, call: str, body: Any) -> None:
        """Answer a call; one that may be taken back by then now and then after that."""
        if turn.withdraws and self._rng.random() < TOO_LATE_SHARE:
            await self._while(lambda: not (view.ended or view.lost or self._is_settled(view, call)))
            if self._is_settled(view, call):
                await self._ask(turn, "callback", {"sessionId": turn.session}, body)
        await super()._answer(turn, view, call, body)

    @override
    def _result(self, turn: Turn, kind: str, call: str) -> Any:
        if kind != "mcp_approval_request":
            return super()._result(turn, kind, call)
        if turn.prompt.startswith("/approve"):
            return {"approve": turn.approves}
        approves = self._rng.random() < APPROVED_SHARE
        self._town.cluster.outside.bank.approved[self._town.ref_of(turn)] += approves
        return {"approve": approves}

    # ── LiteAgent, and repeats ──

    @override
    async def _watch(self, turn: Turn, view: View) -> None:
        """Follow the turn beside its client, or send it beside its client: both have begun it then."""
        if turn.task in self._lite or self._rng.random() < 0.5:
            await super()._watch(turn, view)
        else:
            await self._follow(turn, view)

    @override
    async def _follow(self, turn: Turn, view: View, *, stop_after: int = 0, begins: bool = True) -> None:
        following = [super()._follow(turn, view, stop_after=stop_after, begins=begins)]
        lite = self._lite.get(turn.task)
        if lite is not None and not lite.followed:
            lite.followed = True
            following.append(self._follow_lite(turn, lite))
        await _all(following)

    @override
    async def _connection(self, turn: Turn, view: View, *, begins: bool) -> AsyncIterator[Frame]:
        lite = self._lite.get(turn.task)
        if turn.cleared:
            # Whatever it has not seen is gone.
            view.lost = True
            return
        if begins and lite is not None and lite.begins:
            if not turn.accepted:
                return
            begins = False
        async for frame in super()._connection(turn, view, begins=begins):
            yield frame

    async def _follow_lite(self, turn: Turn, view: LiteView) -> None:
        while not (view.ended or view.lost):
            leaves_after = self._rng.randint(0, 30) if self._rng.random() < 0.3 else -1
            seen = view.cursor
            try:
                async for frame in self._lite_connection(turn, view):
                    view.take(frame)
                    leaves_after -= 1
                    if leaves_after == 0 and not view.ended:
                        break
            except httpx.HTTPError as error:
                turn.trouble[type(error).__name__] += 1
            view.cut()
            view.behind = view.behind or self._town.is_cut(turn, seen)
            if not view.ended:
                await asyncio.sleep(self._again())

    async def _lite_connection(self, turn: Turn, view: LiteView) -> AsyncIterator[Frame]:
        """The whole frames of one connection; none when it was not served."""
        view.lost = turn.cleared
        if view.lost or not (view.begins or turn.accepted):
            return
        posts = view.begins and (not turn.accepted or self._rng.random() < 0.5)
        headers = {"Last-Event-ID": view.cursor} if view.cursor else {}
        if turn.repeats_by_key and posts:
            headers["Idempotency-Key"] = turn.task
        given = view.asks(turn) if posts else view.follows(turn)
        url = self._front() + "/liteAgent/v1/chat"
        async with self._http.stream(url=url, headers=headers, **given) as response:
            if response.status_code != 200:
                await response.aread()
                if self._town.losses and response.status_code in (404, 410):
                    view.frames.clear()
                    view.lost = turn.own.ended or turn.own.lost
                elif response.status_code not in (429, 503):
                    turn.refusals.append(
                        f"LiteAgent {given['method']} {response.status_code} {response.text[:200]}"
                    )
                return
            turn.accepted = True
            rest = b""
            async for piece in response.aiter_raw():
                *whole, rest = (rest + piece).split(b"\n\n")
                for raw in whole:
                    yield read_frame(raw)

    # ── the end of a session ──

    async def _forget(self, session: str) -> None:
        """Have a session cleared, or let it expire, and see that it is gone."""
        turns = [turn for turn in self._turns if turn.session == session]
        if not all(turn.own.ended and turn.accepted for turn in turns):
            return
        if self._rng.random() < 0.5:
            self._judge(turns)
            await self._clear(session)
            gone = {410}
        else:
            await asyncio.sleep(UNUSED_SECONDS)
            self._judge(turns)
            self._town.cluster.sessions.expire(self._town.keys_of(session))
            # A request that was held up may have begun it anew.
            gone = {404, 410}
        await self._drop(turns, gone)

    async def _clear_under_way(self, session: str) -> None:
        """Clear a session some of whose turns have yet to end: they end first. Of a turn that is on its way nobody could tell."""
        await asyncio.sleep(self._rng.uniform(*CLEARED_SECONDS))
        turns = [turn for turn in self._turns if turn.session == session]
        if all(turn.own.ended for turn in turns) or not all(turn.accepted for turn in turns):
            return
        self._town.former += account_so_far(self._town, turns).sessions.values()
        for turn in turns:
            turn.stopped = turn.cleared = True
        await self._clear(session)
        for turn in turns:
            if (status := self._town.status_of(turn)) not in ENDS:
                self._town.broken.append(f"a_clear_ends_what_is_live: {turn}: {status}")

    async def _drop(self, turns: list[Turn], gone: set[int]) -> None:
        """See that turns are gone, which is told by one of these, and hold nobody to them any more."""
        for number, turn in enumerate(turns):
            self._town.turns.remove(turn)
            self._turns.remove(turn)
            self._town.forgotten.append(turn)
            cursor = bool(turn.own.frames) and not number % 2
            if (status := await self._status(turn, cursor=cursor)) not in gone:
                self._town.broken.append(f"what_is_forgotten_is_gone: {turn}: {status}")
        self._town.lite = [(turn, view) for turn, view in self._town.lite if turn not in turns]

    def _judge(self, turns: list[Turn]) -> None:
        account = account_so_far(self._town, turns)
        self._town.broken += wrong_so_far(self._town, account)
        self._town.former += account.sessions.values()

    async def _clear(self, session: str) -> None:
        """Have a session forgotten; from then on who has seen something of it is told that it is gone.

        A request that was lost may come late, and finds its key; without one it would clear what is begun after the one that
        was answered.
        """
        key = {"Idempotency-Key": str(uuid.uuid4())} if self._rng.random() < 0.5 else {}
        late = 0.0
        while True:
            try:
                answer = await self._http.post(
                    f"{self._front()}/liteAgent/v1/clear", params={"sessionId": session}, headers=key
                )
            except httpx.HTTPError:
                late = 0.0 if key else LATE_SECONDS
                continue
            if answer.status_code == 200:
                await asyncio.sleep(late)
                break
            if answer.status_code not in (429, 503):
                self._town.broken.append(
                    f"a_clear_is_done: {session}: {answer.status_code} {answer.text[:200]}"
                )
                return
