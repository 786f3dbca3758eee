"""Simulated clients: they chat, answer calls, stop, leave and come back, at whichever front end there is."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import httpx

from tests.chaos.homes import OWNER
from tests.chaos.records import Turn, View
from tests.support.client import asked, read_frame

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Coroutine

    from tests.support.client import Frame

# How long a client that was sent away, or cut off, waits before it comes again.
AGAIN_SECONDS = (0.05, 0.4)

# Silence after which a client takes its connection for dead; front ends say something every second.
SILENT_SECONDS = 4.0

# How long a client waits for its answer to a call to come back, or for the end that it asked for, before it asks again; and
# how often it looks meanwhile.
ANSWER_SECONDS, ANSWER_LOOKS = 3.0, 12

# How late some answers to calls come, and what share of them.
ANSWERED_LATE_SECONDS = (0.3, 3.0)
LATE_SHARE = 0.15

# How often a client sees to its former turns, and for how long after an end: a former primary goes on for ten seconds until
# Sentinels demote it.
LOOK_BACK_SECONDS = 1.0
AT_STAKE_SECONDS = 30.0

# What a client is asked, and what shows its answer in the stream.
ANSWERS = {"function_call": "function_call_output", "mcp_approval_request": "mcp_approval_response"}

# Why a call takes no answer that nobody waits for any more.
WITHDRAWN = "call_withdrawn"

PROMPTS = ("tokens", "tokens", "tokens", "tokens", "words", "tool", "call", "calls", "dispatch", "slow")


class Town:
    """What the clients of one run share: where front ends may be, and the records."""

    def __init__(self, key: str, fronts: list[str]) -> None:
        self.headers = {"Authorization": f"Bearer {key}"}
        self.fronts = fronts
        self.turns: list[Turn] = []
        self.closing = asyncio.Event()
        # How often the broker has lost something. Before, nobody may be told that something is gone.
        self.losses = 0
        self.healed = asyncio.Event()

    def headers_of(self, session: str) -> dict[str, str]:
        """With which a session's client comes."""
        return self.headers

    def owner_of(self, session: str) -> str:
        """Whose the session is."""
        return OWNER

    def is_serial(self, session: str) -> bool:
        """Whether the session's turns wait for each other."""
        return True

    def speaking(self) -> list[str]:
        """Sessions with a turn that has begun and not ended."""
        return [turn.session for turn in self.turns if turn.own.frames and not turn.own.ended]

    def transport(self) -> httpx.AsyncBaseTransport | None:
        """How a client's requests are sent; the library's own way by default."""
        return None

    def lose(self) -> None:
        """The broker is about to lose something."""
        self.losses += 1


class ChaosClient:
    """One user: session after session, turn after turn, until the town closes."""

    def __init__(self, number: int, town: Town, rng: random.Random) -> None:
        self._number = number
        self._town = town
        self._rng = rng
        self._turns: list[Turn] = []
        # Of a turn, by its name: one look after another.
        self._looks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._http = httpx.AsyncClient(
            headers=town.headers_of(self._session(0)),
            timeout=httpx.Timeout(SILENT_SECONDS, pool=60),
            trust_env=False,
            # Nothing here is encrypted, and to load the authorities takes longer than a turn.
            verify=False,
            transport=town.transport(),
        )

    async def live(self) -> None:
        """Chat until the town closes; turns that have begun are seen to their end."""
        try:
            chatting = asyncio.create_task(self._chat())
            await _all([self._see(chatting), self._look_back(chatting)])
        finally:
            await self._http.aclose()

    async def _see(self, chatting: asyncio.Task[None]) -> None:
        try:
            await chatting
        finally:
            chatting.cancel()

    async def _chat(self) -> None:
        sessions = 0
        while not self._town.closing.is_set():
            sessions += 1
            session = self._session(sessions)
            for at in range(self._rng.randint(1, 4)):
                if self._town.closing.is_set():
                    break
                await self._some_turns(session, at)

    def _session(self, number: int) -> str:
        return f"c{self._number}s{number}"

    async def _look_back(self, chatting: asyncio.Task[None]) -> None:
        """After each loss: what became of the turns that had ended. One that has not any more needs its client."""
        seen = now = (0, False)
        looking: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:
            while looking or not (chatting.done() and now[1] and seen == now):
                await asyncio.sleep(LOOK_BACK_SECONDS)
                looking = [each for each in looking if not each.done()]
                # Once more when all is healed: a front end that had yet to learn of the loss may have said that all is there.
                now = (self._town.losses, self._town.healed.is_set())
                if seen != now and self._town.losses:
                    ended = [turn for turn in self._turns if turn.own.ended and not turn.own.lost]
                    # Side by side: one turn may wait for another, which its client must be told of first.
                    looking += [group.create_task(self._follow_again(turn)) for turn in self._at_stake(ended)]
                seen = now

    def _at_stake(self, ended: list[Turn]) -> list[Turn]:
        """Of the turns that had ended, those whose ends may be lost, by what the client knows."""
        if self._town.healed.is_set():
            return ended
        since = time.monotonic() - AT_STAKE_SECONDS
        return [turn for turn in ended if turn.own.times[-1] > since]

    async def _follow_again(self, turn: Turn) -> None:
        async with self._looks[turn.task]:
            if not turn.own.ended:
                return
            status = await self._status(turn)
            if status == 410:
                turn.own.forget()
                turn.own.ended = False
                await self._follow(turn, turn.own)
            elif status == 404:
                turn.own.lost = True

    async def _status(self, turn: Turn, *, cursor: bool = True) -> int:
        """What a client is answered that comes back to the turn, with its cursor or as a new follower."""
        params = {"session_id": turn.session, "response_id": turn.task}
        headers = {"Last-Event-ID": turn.own.frames[-1].id} if cursor else {}
        while True:
            try:
                async with self._http.stream(
                    "GET", self._front() + "/process", params=params, headers=headers
                ) as answer:
                    if answer.status_code not in (429, 503):
                        return answer.status_code
            except httpx.HTTPError:
                pass
            await asyncio.sleep(self._again())

    async def _some_turns(self, session: str, at: int) -> None:
        await _all([self._turn(session, f"{session}t{at}{letter}") for letter in "abcd"[: self._at_once()]])

    def _at_once(self) -> int:
        """How many turns are sent together. Sometimes the next one is sent before the first has ended: it waits its turn."""
        return 2 if self._rng.random() < 0.15 else 1

    async def _turn(self, session: str, task: str) -> None:
        rng = self._rng
        turn = self._new(session, task)
        self._town.turns.append(turn)
        self._turns.append(turn)
        following = [self._follow(turn, turn.own, stop_after=rng.randint(1, 40) if rng.random() < 0.1 else 0)]
        if rng.random() < 0.2:
            turn.views.append(View())
            following.append(self._watch(turn, turn.views[1]))
        await _all(following)

    def _new(self, session: str, task: str) -> Turn:
        return Turn(session, task, self._prompt())

    def _prompt(self) -> str:
        return self._said(self._rng.choice(PROMPTS))

    def _said(self, kind: str) -> str:
        """Something of that kind."""
        rng = self._rng
        match kind:
            case "tokens":
                return f"/tokens {rng.randint(5, 60)} {rng.choice((0, 2, 10, 25))}"
            case "tool":
                return f"/tool add {rng.randint(0, 99)} {rng.randint(0, 99)}"
            case "call":
                return '/call weather {"city": "Bern"}'
            case "calls":
                return f"/calls {rng.randint(2, 4)}"
            case "dispatch":
                return "/dispatch look it up"
            case "slow":
                return f"/slow {rng.choice((0.2, 1, 3))}"
        return f"hello from {self._number}"

    # ── following ──

    async def _watch(self, turn: Turn, view: View) -> None:
        """Follow a turn that somebody else began."""
        while not (turn.own.frames or turn.own.lost):
            await asyncio.sleep(self._again())
        await self._follow(turn, view, begins=False)

    async def _follow(self, turn: Turn, view: View, *, stop_after: int = 0, begins: bool = True) -> None:
        """Send the turn until it is accepted, and follow it to its end, over as many connections as it takes."""
        acts: list[asyncio.Task[object]] = []
        try:
            while not (view.ended or view.lost):
                leaves_after = self._rng.randint(0, 50) if self._rng.random() < 0.25 else -1
                try:
                    async for frame in self._connection(turn, view, begins=begins):
                        view.take(frame)
                        if begins:
                            acts += self._acts(turn, view, stop_after)
                        leaves_after -= 1
                        if leaves_after == 0 and not view.ended:
                            turn.trouble["left"] += 1
                            break
                except httpx.HTTPError as error:
                    turn.trouble[type(error).__name__] += 1
                if not (view.ended or view.lost):
                    await asyncio.sleep(self._again())
            await asyncio.gather(*acts)
        finally:
            for act in acts:
                act.cancel()

    async def _connection(self, turn: Turn, view: View, *, begins: bool) -> AsyncIterator[Frame]:
        """The whole frames of one connection; none when it was not served."""
        headers = {"Last-Event-ID": view.frames[-1].id} if view.frames else {}
        url = self._front() + "/process"
        if turn.repeats_by_key and begins:
            headers["Idempotency-Key"] = turn.task
        follows = not begins or (view.frames and self._rng.random() < 0.5)
        given: dict[str, Any] = (
            {"method": "GET", "params": {"session_id": turn.session, "response_id": turn.task}}
            if follows
            else {"method": "POST", "json": asked(turn.session, turn.prompt, id=turn.task)}
        )
        async with self._http.stream(url=url, headers=headers, **given) as response:
            if response.status_code != 200:
                turn.trouble[str(response.status_code)] += 1
                await response.aread()
                if self._town.losses and response.status_code in (404, 410):
                    # What was seen is gone. The turn is sent again by who sent it first, if that one still cares.
                    view.forget()
                    view.lost = not begins and response.status_code == 404 and turn.own.ended
                elif response.status_code not in (429, 503):
                    turn.refusals.append(f"{given['method']} {response.status_code} {response.text[:200]}")
                return
            turn.accepted = True
            rest = b""
            async for piece in response.aiter_raw():
                *whole, rest = (rest + piece).split(b"\n\n")
                for raw in whole:
                    frame = read_frame(raw)
                    if frame.data is not None:
                        yield frame

    # ── what else a client does ──

    def _acts(self, turn: Turn, view: View, stop_after: int) -> list[asyncio.Task[object]]:
        event = view.frames[-1].data
        doing: list[Coroutine[Any, Any, object]] = []
        if len(view.frames) == stop_after:
            turn.stopped = True
            doing.append(self._ask(turn, "stop", {"sessionId": turn.session, "taskId": turn.task}, None))
        if event.get("type") in ANSWERS and event.get("status") == "completed" and "content" in event:
            data = event["content"][0]["data"]
            call = data.get("call_id") or data["id"]
            if turn.unanswered and call not in turn.forsaken:
                turn.unanswered -= 1
                turn.forsaken.add(call)
            if call in turn.forsaken:
                # Also where somebody else saw it first: who has stopped it may have seen its end before that was lost.
                doing.append(self._give_up(turn, view))
                return [asyncio.create_task(each) for each in doing]
            # A second answer changes nothing, and a turn that was stopped takes none.
            result = self._result(turn, event["type"], call)
            for _ in range(2 if self._rng.random() < 0.3 else 1):
                doing.append(self._answer(turn, view, call, _body(turn, call, result)))
        return [asyncio.create_task(each) for each in doing]

    def _result(self, turn: Turn, kind: str, call: str) -> Any:
        """What a call of that kind is answered with."""
        return {"of": call}

    async def _give_up(self, turn: Turn, view: View) -> None:
        """Leave a call unanswered for a while, and stop the turn then; again where the stop was lost."""
        await asyncio.sleep(self._rng.uniform(*ANSWERED_LATE_SECONDS))
        turn.stopped = True
        while not (view.ended or view.lost):
            await self._ask(turn, "stop", {"sessionId": turn.session, "taskId": turn.task}, None)
            await self._while(lambda: not (view.ended or view.lost))

    async def _answer(self, turn: Turn, view: View, call: str, body: Any) -> None:
        """Answer a call; once more whenever the answer does not come back in the stream, as where it was lost."""
        known = len(view.forgotten)
        if self._rng.random() < LATE_SHARE:
            await asyncio.sleep(self._rng.uniform(*ANSWERED_LATE_SECONDS))

        def waits() -> bool:
            gone = view.ended or view.lost or len(view.forgotten) != known
            return not (gone or self._is_settled(view, call))

        while waits():
            await self._ask(turn, "callback", {"sessionId": turn.session}, body)
            # Lost before the stream has shown it, it is missed by nobody else.
            await self._while(waits)

    def _is_settled(self, view: View, call: str) -> bool:
        """Whether the stream has shown the answer to a call, or that there will be none."""
        return any(
            frame.data.get("type") in ANSWERS.values() and call in str(frame.data) for frame in view.frames
        )

    async def _while(self, condition: Callable[[], bool]) -> None:
        """Wait for as long as something is so, `ANSWER_SECONDS` at most."""
        for _ in range(ANSWER_LOOKS):
            if not condition():
                return
            await asyncio.sleep(ANSWER_SECONDS / ANSWER_LOOKS)

    async def _ask(self, turn: Turn, what: str, params: dict[str, str], body: Any) -> httpx.Response:
        """Ask any front end until one answers."""
        while True:
            try:
                answer = await self._http.post(
                    f"{self._front()}/liteAgent/v1/{what}", params=params, json=body
                )
            except httpx.HTTPError as error:
                turn.trouble[type(error).__name__] += 1
            else:
                if answer.status_code not in (429, 503):
                    break
                turn.trouble[str(answer.status_code)] += 1
            await asyncio.sleep(self._again())
        gone = self._town.losses and answer.status_code in (404, 409, 410)
        withdrawn = turn.withdraws and answer.status_code == 410 and answer.json()["reason"] == WITHDRAWN
        ended_meanwhile = False
        if answer.status_code in (409, 410) and not gone and not withdrawn:
            # It may be told that the turn has ended before its stream is.
            await self._while(lambda: not _may_have_ended(turn))
            ended_meanwhile = _may_have_ended(turn)
        if what == "callback" and (withdrawn or answer.status_code == 200):
            call = body["id"]
            turn.taken[call] = not withdrawn
            if not withdrawn and len(turn.given.get(call, ())) == 1:
                turn.first.update({call: turn.given[call][0]})
        if answer.status_code != 200 and not ended_meanwhile and not gone and not withdrawn:
            turn.refusals.append(f"{what} {answer.status_code} {answer.text[:200]}")
        return answer

    def _front(self) -> str:
        return self._rng.choice(self._town.fronts)

    def _again(self) -> float:
        return self._rng.uniform(*AGAIN_SECONDS)


def _body(turn: Turn, call: str, result: Any) -> dict[str, Any]:
    """An answer to a call; to one of a function, unlike all others."""
    if "of" in result:
        given = turn.given.setdefault(call, [])
        given.append(f"answer {len(given) + 1} of {call}")
        result = {**result, "answer": given[-1]}
    return {"id": call, "result": result}


def _may_have_ended(turn: Turn) -> bool:
    """Whether a call may come too late: the turn was stopped, lost with three workers, or may have failed as it may."""
    return turn.stopped or turn.own.ended or bool(turn.may_fail)


async def _all(doing: list[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for each in doing:
            group.create_task(each)
