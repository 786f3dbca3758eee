"""Single changes, each of which takes one fence or order away: the simulation must find every one.

``python -m tests.simulation.mutants [NAME …]``. Each is applied to a copy of the tree; seeds are simulated, with the few kinds
of faults that should show it, until one shows a violation that the tree as it is does not: first the seed that is on
record, then others. ``--some 6`` looks for six, other ones each day; ``--search`` puts the seeds on record. See
docs/simulation.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from tests.simulation.__main__ import beside, with_fixed_hashes
from tests.simulation.cluster import CLUSTER, TWO
from tests.simulation.run import ALONE, Plan

ROOT = Path(__file__).parents[2]

# Mutant → the seed that finds it soonest, and how many turns are to be begun for that.
RECORD = Path(__file__).parent / "found_by.json"

# Turns of one seed: few first, as most mutants show soon; how many seeds are tried, and how many times as often as usual
# faults come.
TURNS = (20, 40, 80)
SEEDS = 16
PACE = 4.0


@dataclass(frozen=True)
class Mutant:
    """In ``file`` the text ``old``, which stands there once, becomes ``new``; ``faults`` of these kinds should show it.

    Where there are none, `tests.simulation.missed` should.
    """

    name: str
    file: str
    old: str
    new: str
    faults: tuple[str, ...]
    brokers: tuple[str, ...] = ALONE

    def plan(self, seed: int, turns: int) -> Plan:
        """What is simulated by a seed."""
        return Plan.of_seed(seed, turns, faults=self.faults, pace=PACE, brokers=self.brokers)

    def apply(self, folder: Path) -> None:
        """Change a copy of the tree.

        Raises:
            ValueError: the text does not stand there once: the code has changed, and the mutant must follow.
        """
        path = folder / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: its text stands {text.count(self.old)} times in {self.file}")
        path.write_text(text.replace(self.old, self.new))


def _lua(name: str, script: str, old: str, new: str, faults: tuple[str, ...]) -> Mutant:
    return Mutant(name, f"shared/lua/{script}.lua", old, new, faults)


def _missed(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, file, old, new, ())


def _of_cluster(name: str, file: str, old: str, new: str, faults: tuple[str, ...]) -> Mutant:
    return Mutant(name, f"shared/{file}", old, new, faults, (CLUSTER,))


# A few kinds of faults show what many hide.
REPEATED = ("kill_worker", "kill_writing", "repeat")
FROZEN = ("freeze_worker", "freeze_writing", "drop_replies", "repeat")
STOPPED = ("drop_replies", "late", "kill_writing", "overtake", "repeat")
LATE = ("late",)
KILLED = ("kill_worker", "kill_writing", "kill_front_end", "drain_worker")
LOST = ("lose_writes",)
CUT = ("cut", "drop_replies", "restart_broker", "flush_scripts")
BOOKED = ("kill_booking",)
COUNTED = ("repeat", "freeze_front_end")
DEPLOYED = ("other_version", "drain_worker")
AWAY = ("provider_away", "provider_limits", "provider_cuts")


MUTANTS = [
    # ── fences of an attempt ──
    _lua(
        "attempt and holder unchecked",
        "_session",
        "attempt ~= mine or (holds ~= '' and holder and holds ~= holder)",
        "false",
        FROZEN,
    ),
    _lua("older operations let in", "_session", "tonumber(OP) < tonumber(op)", "false", LATE),
    _lua(
        "a running task begun again",
        "begin",
        "(status ~= 'queued' or task[2] ~= launch)",
        "task[2] ~= launch",
        FROZEN,
    ),
    _lua(
        "the attempt not counted",
        "begin",
        "attempt = int(tonumber(attempt) + 1)",
        "attempt = attempt",
        FROZEN,
    ),
    _lua("an ended task taken", "take", "elseif TERMINAL[status] then", "elseif false then", STOPPED),
    _lua(
        "an ended task written to",
        "_session",
        "TERMINAL[status] then\n    return { 'ended' }\n  elseif status ~= 'running' or attempt",
        "status ~= 'running' and not TERMINAL[status] or attempt",
        LATE,
    ),
    _lua(
        "a parked task renewed",
        "renew",
        "if no then\n  return no",
        "if no and no[1] ~= 'fenced' then\n  return no",
        LATE,
    ),
    _lua("a sweep ignores the lease", "sweep", "elseif lease > now then", "elseif false then", STOPPED),
    Mutant(
        "a worker that stands still is missed for its subscription alone",
        "worker/watch.py",
        "if await self._lifelines.is_connected(lost.connection):",
        "if False:",
        ("freeze_cut",),
    ),
    Mutant(
        "a worker does not say that it hears its channel",
        "worker/signals.py",
        "self._lifeline.subscribed()",
        "pass",
        ("cut", "kill_worker"),
    ),
    # ── whose silence tells nothing ──
    _missed(
        "what a broker is asked as it stops counts as of when it goes on",
        "shared/lua/sweep.lua",
        "math.min(NOW, tonumber(as_of) or NOW)",
        "NOW",
    ),
    _missed(
        "a clock that is set ahead ends leases",
        "worker/outages.py",
        "<= LOOK_SECONDS + MOST_DRIFT * passed",
        "<= math.inf",
    ),
    _missed(
        "nobody is waited for when the broker is there again",
        "worker/outages.py",
        "return time.monotonic() - self.whole_since >= self._lease",
        "return True",
    ),
    _missed(
        "nobody is waited for when a node is there again",
        "worker/outages.py",
        "if now - asked >= self._bearable:",
        "if False:",
    ),
    _missed(
        "a look at what is near has no server take a write",
        "worker/rescuer.py",
        "writing=is_thorough or self._until_due <= self._near",
        "writing=is_thorough",
    ),
    # ── repeats after a lost reply ──
    _lua(
        "append repeated", "append", "if task[3] == OP and task[2] == attempt then", "if false then", REPEATED
    ),
    _lua(
        "finish repeated", "finish", "if task[3] == OP and task[2] == attempt then", "if false then", REPEATED
    ),
    _lua("park repeated", "park", "if task[3] == OP and task[2] == attempt then", "if false then", REPEATED),
    _lua(
        "release repeated",
        "release",
        "if task[3] == OP and task[2] == attempt then",
        "if false then",
        (*AWAY, "repeat"),
    ),
    _lua(
        "begin repeated",
        "begin",
        "local repeated = status == 'running' and task[4] == OP",
        "local repeated = false",
        REPEATED,
    ),
    _lua("take repeated", "take", "elseif task[4] ~= OP then", "else", STOPPED),
    _lua("sweep repeated", "sweep", "elseif task[10] == OP then", "elseif false then", REPEATED),
    _lua(
        "clear repeated",
        "clear",
        "elseif not delete and not slow_paths().has_epoch(ending_epoch) then",
        "elseif false then",
        ("repeat",),
    ),
    _lua("submit repeated", "submit", "if prior[1] then", "if false then", REPEATED),
    _lua(
        "a parked turn waits for ever",
        "sweep",
        "  if until_ms > NOW then\n    return put_off",
        "  if true then\n    return put_off",
        STOPPED,
    ),
    Mutant(
        "a refusal is taken for consent",
        "worker/agents/tools/approval.py",
        'return decision is True or (isinstance(decision, dict) and decision.get("approve") is True)',
        "return True",
        STOPPED,
    ),
    _lua("a call answered twice", "callback", "if known == answered then", "if false then", STOPPED),
    Mutant(
        "append with a new operation each try",
        "shared/session/tasks.py",
        "            _append,\n            keys,\n            ref.task,\n            op,\n",
        "            _append,\n            keys,\n            ref.task,\n            operation(),\n",
        ("drop_replies", "cut"),
    ),
    # ── numbers and places ──
    _lua("numbers not kept", "append", "'out', int(seq), 'number', number)", "'out', int(seq))", KILLED),
    _lua(
        "loss not seen by writers",
        "_session",
        "local behind = detect_loss(seen_epoch, seen_seq)",
        "local behind = false",
        LOST,
    ),
    _lua(
        "loss of what was only kept not seen by writers",
        "_session",
        "elseif not behind and (seen_op == '' or tonumber(op or '0') >= tonumber(seen_op)) then",
        "elseif not behind then",
        ("lose_checkpoint",),
    ),
    _lua(
        "servers not told apart",
        "_session",
        "local newest = before == INCARNATION or ",
        "local newest = true or ",
        LOST,
    ),
    _lua("loss not seen by submits", "submit", "detect_loss()\n", "", LOST),
    Mutant(
        "what a lost attempt was saying is not closed",
        "worker/runner.py",
        "        if attempt.open:\n",
        "        if attempt.open is None:\n",
        KILLED,
    ),
    Mutant(
        "the end sent with an append in flight",
        "worker/runner.py",
        "            await publisher.settle()\n            more,",
        "            more,",
        LATE,
    ),
    Mutant(
        "parks with an append in flight",
        "worker/runner.py",
        "        await publisher.settle()\n        batch,",
        "        batch,",
        LATE,
    ),
    _lua("messages stay open", "_session", "redis.call('HDEL', TASK, 'open:' .. message)", "", KILLED),
    # ── nothing is stuck ──
    _lua("no hint from submit", "submit", "remind(due, ref, look_ms)", "", KILLED),
    _lua("no hint from callback", "callback", "remind(due, ref, look_ms)", "", KILLED),
    _lua("no hint from take", "take", "remind(due, ref, look_ms)", "", KILLED),
    Mutant(
        "a hint behind what it is for",
        "shared/session/queue.py",
        "            if not here:\n                await self.remind(ref, LAUNCH_GRACE_MS)\n            outcome = await ask(look)\n",
        "            outcome = await ask(look)\n            if not here:\n                await self.remind(ref, LAUNCH_GRACE_MS)\n",
        KILLED,
        (TWO,),
    ),
    _lua("no hint from claim", "claim", "redis.call('ZADD', due, unpack(hints))", "", KILLED),
    _lua(
        "the next turn not launched",
        "finish",
        "redis.call('HSET', sibling(TASK, following), 'launch', '1', 'launched', int(NOW))",
        "",
        KILLED,
    ),
    _lua(
        "who came last is served first",
        "finish",
        "redis.call('LPOP', WAITING)",
        "redis.call('RPOP', WAITING)",
        KILLED,
    ),
    _lua("a turn that waits is not in the line", "submit", "redis.call('RPUSH', WAITING, TID)", "", KILLED),
    _lua(
        "claimed launches stay in the queue", "claim", "redis.call('ZREM', queue, unpack(popped))", "", KILLED
    ),
    _lua("ended turns stay live", "finish", "redis.call('ZREM', LIVE, TID)", "", KILLED),
    _lua("parks with all answers in", "park", "if pending == 0 then", "if false then", KILLED),
    _lua(
        "the last answer launches nothing",
        "callback",
        "if pending == 0 and status == 'parked' then",
        "if false then",
        KILLED,
    ),
    _lua(
        "a turn passed on is not looked at",
        "sweep",
        "if known[1] ~= 'queued' or known[2] ~= '1' then",
        "if true then",
        ("kill_unheard", "kill_worker"),
    ),
    _lua(
        "a turn goes on whatever number of workers it loses",
        "sweep",
        "if crashes >= tonumber(max_crashes) then",
        "if false then",
        ("kill_asking",),
    ),
    _lua(
        "a lost worker is not counted",
        "sweep",
        "redis.call('HSET', TASK, 'crashes', int(crashes))",
        "",
        KILLED,
    ),
    # ── a model whose provider is away ──
    Mutant(
        "a connection that is lost does not pass",
        "worker/agents/failures.py",
        "    return not isinstance(error, library.ModelRequestRejectedError)\n",
        "    return False\n",
        AWAY,
    ),
    Mutant(
        "Retry-After ignored",
        "worker/agents/failures.py",
        'float(min(getattr(error, "retry_after", None) or 0.0, MOST_ASKED_SECONDS))',
        "0.0",
        AWAY,
    ),
    Mutant(
        "the worker waits with the turn",
        "worker/runner.py",
        '            wait_ms = max(1, int(seconds_to_wait(error, int(task.get("retries", 0)) if again else 0) * 1000))\n',
        "            wait_ms = 1\n            await asyncio.sleep(30)\n",
        AWAY,
    ),
    _lua("launched before its time", "sweep", "if num(task[18]) > NOW then", "if false then", AWAY),
    _lua("a wait without end", "sweep", "if num(task[18]) > NOW then", "if true then", AWAY),
    _lua("a wait not cleared", "sweep", "redis.call('HDEL', TASK, 'not_before', 'waits_for')", "", AWAY),
    _lua(
        "no look at the deadline of a turn that waits",
        "sweep",
        "int(math.min(num(task[18]) - NOW, patient()))",
        "int(num(task[18]) - NOW)",
        (*AWAY, "kill_worker"),
    ),
    # ── a model that is held, or left alone ──
    Mutant(
        "a hold is ignored",
        "worker/agents/model_gate.py",
        "        if state.held:\n            return _refusal",
        "        if False:\n            return _refusal",
        ("hold_model",),
    ),
    Mutant(
        "all probe a model at once",
        "worker/agents/model_gate.py",
        "known = bool(limit or self._seen.get(model, USUAL).until)",
        "known = bool(limit)",
        AWAY,
    ),
    # ── versions of agents ──
    Mutant(
        "any version goes on",
        "worker/agent_versions.py",
        'return agent in self.mine and version in ("", self.mine[agent])',
        "return agent in self.mine",
        DEPLOYED,
    ),
    Mutant(
        "a version not kept",
        "worker/turn.py",
        "            self.keep(VERSION, version.encode())\n",
        "            pass\n",
        DEPLOYED,
    ),
    Mutant(
        "no version is waited for",
        "worker/agent_versions.py",
        'if spec.on_version == "wait" and most_ms:',
        "if False:",
        DEPLOYED,
    ),
    # ── effects ──
    Mutant(
        "a mark not flushed",
        "worker/agents/agent_run.py",
        "        await self.turn.publisher.flush()\n        # An agent",
        "        # An agent",
        BOOKED,
    ),
    Mutant(
        "a mark not fenced",
        "worker/agents/agent_run.py",
        "        await self.turn.publisher.flush()\n        # An agent that goes on after its turn was cancelled gets no further.\n"
        "        await self.turn.publisher.room()\n",
        "        try:\n            await self.turn.publisher.flush()\n        except BaseException:\n            pass\n",
        ("overtake_asking",),
    ),
    Mutant(
        "a mark not looked at",
        "worker/agents/tools/effects.py",
        "if self._policy.read_only or not self._run.started(self._id):",
        "if True:",
        BOOKED,
    ),
    Mutant(
        "tell runs again",
        "worker/agents/tools/effects.py",
        'if on_lost == "rerun":',
        'if on_lost in ("rerun", "tell"):',
        BOOKED,
    ),
    Mutant(
        "ask runs again without asking",
        "worker/agents/tools/effects.py",
        "        if decision is None:\n",
        "        if decision is None:\n            return False, None\n",
        BOOKED,
    ),
    Mutant(
        "one approval for each loss",
        "worker/agents/agent_run.py",
        'return f"{call}_{self.started(call)}"',
        'return f"{call}_1"',
        BOOKED,
    ),
    Mutant(
        "a key of its own for each attempt",
        "worker/agents/calls.py",
        "{attempt.ref}/{attempt.submitted}/{source}",
        "{attempt.ref}/{attempt.number}/{source}",
        BOOKED,
    ),
    # ── what followers see ──
    Mutant(
        "tails missed without a connection are not read",
        "api/streaming/hub.py",
        "                followed.attached = False\n                followed.invalidate()\n",
        "                followed.attached = False\n",
        CUT,
    ),
    Mutant(
        "a log is read before its tail is heard",
        "api/streaming/feed.py",
        "if known is None and self._followed.attached:",
        "if known is None:",
        ("delay", "part_process"),
    ),
    Mutant(
        "a cursor of a former epoch is good",
        "api/streaming/start_position.py",
        '    if not meta.has_epoch(int(known["epoch"])):\n        raise CursorGone(CursorGone.turn)\n    before',
        "    before",
        LATE,
    ),
    _lua(
        "a session that has expired begins with the same epoch",
        "_session",
        "redis.call('HSET', META, 'epoch', int(NEW_EPOCH), ",
        "redis.call('HSET', META, 'epoch', '1', ",
        LATE,
    ),
    Mutant(
        "who comes back gets one event less",
        "api/streaming/start_position.py",
        "    after = max(cursor, before) if cursor else before\n",
        "    after = max(cursor._replace(seq=cursor.seq + 1), before) if cursor else before\n",
        CUT,
    ),
    Mutant(
        "a stop is answered at once",
        "api/protocols/liteagent/routes.py",
        'if isinstance(await stop(self._services, ref, "stop", who="client"), Gone):',
        'if asyncio.create_task(stop(self._services, ref, "stop", who="client")).done():',
        STOPPED,
    ),
    Mutant(
        "a repeat is answered as a new turn",
        "api/turns/submit.py",
        "                return Known(task)\n",
        "                return Accepted(0, 1, replicas)\n",
        ("cut", "drop_replies"),
    ),
    Mutant(
        "what a slow client does not take is not kept for it",
        "api/streaming/sse.py",
        "            if len(body) > SEND_BYTES or not self._connection.write_chunk(body):\n                return False\n",
        "            if len(body) > SEND_BYTES:\n                return False\n            self._connection.write_chunk(body)\n",
        ("read_slowly",),
    ),
    Mutant(
        "a client that takes nothing is not cut",
        "api/streaming/sse.py",
        "async with asyncio.timeout(self._settings.send_seconds):",
        "async with asyncio.timeout(None):",
        ("silence",),
    ),
    Mutant(
        "a silent broker is listened to for ever",
        "shared/broker/subscriber.py",
        '                if self._silent:\n                    raise TimeoutError("no reply to PING")\n',
        "",
        ("silence",),
    ),
    # ── a cluster of brokers ──
    _of_cluster(
        "nodes not told apart",
        "lua/_session.lua",
        "if CLUSTER then\n  -- Asked here",
        "if false then\n  -- Asked here",
        ("lose_node",),
    ),
    _of_cluster(
        "a hint that was used up is enough",
        "lua/_session.lua",
        "return known_look ~= '-' and known_look ~= looked",
        "return false",
        ("kill_late",),
    ),
    _of_cluster(
        "tails of a slot that has moved are not read",
        "broker/shards.py",
        "            self._listener.lost(lost)\n",
        "",
        ("move_slots",),
    ),
    _of_cluster(
        "tails lost with a node are not read",
        "broker/shards.py",
        "        self._work.set()\n        self.lost(channels)\n",
        "        self._work.set()\n",
        ("kill_node", "cut"),
    ),
    _of_cluster(
        "tails do not follow their slot",
        "broker/shards.py",
        "if now is None or (now == before and channel in self._acknowledged):",
        "if now is None or before is not None:",
        ("move_slots",),
    ),
    _of_cluster(
        "a channel that was refused is not asked for again",
        "broker/shards.py",
        "if now is None or (now == before and channel in self._acknowledged):",
        "if now is None or now == before:",
        ("move_slots", "part_process", "delay"),
    ),
    _of_cluster(
        "a node in trouble is asked again",
        "broker/cluster.py",
        "            with suppress(*TRANSIENT):\n                await self.nodes.learn()\n",
        "            pass\n",
        ("kill_node",),
    ),
    _of_cluster(
        "who is sent on does not ask",
        "broker/cluster.py",
        "giver = None if isinstance(error, MovedError) else address",
        "giver = None",
        ("move_slots",),
    ),
    # ── the broker's moods ──
    Mutant(
        "forgotten scripts not sent again",
        "shared/broker/scripts.py",
        # One that was never known to this client's server is sent.
        '            reply = await self._send(redis, "EVALSHA", self.sha, keys, arguments, large=large)\n'
        "        except NoScriptError:\n",
        '            reply = await self._send(redis, "EVALSHA", self.sha, keys, arguments, large=large)\n'
        '            vars(redis).setdefault("known", set()).add(self.sha)\n'
        "        except NoScriptError:\n"
        '            if self.sha in vars(redis).get("known", ()):\n'
        "                raise\n",
        ("flush_scripts",),
    ),
    _lua("a key without a time to live", "_session", "redis.call('PEXPIRE', CALLS, int(TTL))", "", KILLED),
    _lua(
        "a withdrawn call's time to live not kept",
        "_session",
        "' withdrawn', 'XX', 'KEEPTTL')",
        "' withdrawn', 'XX')",
        KILLED,
    ),
    # ── what is held ──
    Mutant(
        "the worker waits with the parked turn",
        "worker/runner.py",
        "        await self._ender.storage.try_report(attempt.ref.keys)\n        if isinstance(outcome, Launch):\n",
        "        await asyncio.sleep(30)\n        if isinstance(outcome, Launch):\n",
        REPEATED,
    ),
    Mutant(
        "a turn's publisher stays",
        "worker/runner.py",
        "                await publisher.close()\n                if held.launch:",
        "                if held.launch:",
        REPEATED,
    ),
    Mutant("a lease is not dropped", "worker/runner.py", "self._leases.drop(held)", "pass", REPEATED),
    Mutant(
        "tails stay subscribed",
        "api/streaming/hub.py",
        "        self._followed.pop(channel, None)\n        self._tails.unsubscribe(channel)\n",
        "        self._followed.pop(channel, None)\n",
        REPEATED,
    ),
    _of_cluster(
        "a former node's tails are heard",
        "broker/shards.py",
        "self._at.pop(address)[1].cancel()",
        "self._at.pop(address)",
        ("kill_node",),
    ),
    # ── what a turn is given, and leaves behind ──
    _lua(
        "another answer than the client's goes on",
        "callback",
        "redis.call('HSET', CALLS, call .. ':result', result)",
        "redis.call('HSET', CALLS, call .. ':result', '{\"of\":\"another call\"}')",
        REPEATED,
    ),
    _lua(
        "memory in the wrong order",
        "finish",
        "redis.call('RPUSH', MEMORY, element)",
        "redis.call('LPUSH', MEMORY, element)",
        REPEATED,
    ),
    Mutant(
        "what was spent counts again when a turn goes on",
        "worker/turn.py",
        "            self.usage = orjson.loads(kept)\n",
        '            self.usage = orjson.loads(kept)\n            self.usage["input_tokens"] *= 2\n',
        REPEATED,
    ),
    _lua(
        "a clear does not wait for what is live",
        "clear",
        "if #live > 1 then",
        "if false then",
        REPEATED,
    ),
    Mutant(
        "a stop of all stops nothing",
        "api/turns/stop.py",
        "    refs = [TaskRef(keys.owner, keys.session, task) for task in tasks]\n    await end_all",
        "    refs: list[TaskRef] = []\n    await end_all",
        REPEATED,
    ),
    Mutant(
        "a failure is told in other words",
        "shared/session/endings.py",
        '"The turn took longer than its agent allows."',
        '"Something went wrong."',
        REPEATED,
    ),
    Mutant(
        "one former epoch is remembered",
        "shared/lua/_session.lua",
        "local MOST_FORMER = 64",
        "local MOST_FORMER = 1",
        ("move_slots", "kill_node"),
        (CLUSTER,),
    ),
    # ── what owners have ──
    _lua(
        "everyone is let in",
        "admit",
        "if most_turns > 0 and redis.call('ZCARD', turns) >= most_turns then",
        "if false then",
        COUNTED,
    ),
    _lua(
        "refused at half",
        "admit",
        "if most_turns > 0 and redis.call('ZCARD', turns) >= most_turns then",
        "if most_turns > 0 and redis.call('ZCARD', turns) >= most_turns / 2 then",
        COUNTED,
    ),
    Mutant(
        "a submit that began nothing stays counted",
        "api/turns/submit.py",
        "        if counted and not isinstance(outcome, Launch | Waits | Interrupt):\n",
        "        if False:\n",
        COUNTED,
    ),
    Mutant(
        "ended turns stay counted",
        "shared/session/queue.py",
        '            command(self._redis, "ZREM", keys.owner_turns(ref.owner), keys.admission(ref, op)),\n',
        "",
        COUNTED,
    ),
    Mutant(
        "turns are not asked before one is refused",
        "shared/session/owner_limits.py",
        'await command(self._primary, "ZREM", keys.owner_turns(owner), *ended)',
        "pass",
        KILLED,
    ),
    Mutant("bytes count twice", "shared/session/storage.py", "held=held,", "held=2 * held,", COUNTED),
    Mutant(
        "an end does not report its bytes",
        "shared/session/endings.py",
        "            ender.storage.try_report(attempt.ref.keys),\n",
        "",
        COUNTED,
    ),
    Mutant(
        "a report that was held up stays",
        "shared/session/storage.py",
        "late = loop.time() - read > LATE_SECONDS",
        "late = False",
        (*COUNTED, "drain_front_end"),
    ),
    Mutant(
        "what a run leaves behind is not ended",
        "worker/agents/library_tasks.py",
        "            self._tasks.add(task)\n",
        "",
        STOPPED,
    ),
]


@dataclass(frozen=True)
class Found:
    """How a mutant showed.

    Attributes:
        rule: what was violated first; empty when nothing was.
        seed: that showed it.
        asked: the turns that were to be begun.
        turns: those that were.
        tried: turns of all seeds before that one, and of this.
    """

    rule: str
    seed: int
    asked: int
    turns: int
    tried: int


def main() -> int:
    """Look for each; 1 when one is not found."""
    with_fixed_hashes("tests.simulation.mutants")
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="parts of the names; all by default")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at once")
    parser.add_argument("--some", type=int, help="only so many, others each day")
    parser.add_argument(
        "--search", action="store_true", help="ask no seed on record, and put on record which found it"
    )
    given = parser.parse_args()
    chosen = [each for each in MUTANTS if not given.names or any(name in each.name for name in given.names)]
    if given.some:
        day = dt.datetime.now(dt.UTC).date().toordinal()
        print(f"{given.some} mutants of day {day}")
        chosen = [chosen[(day * given.some + number) % len(chosen)] for number in range(given.some)]
    known: dict[str, tuple[int, int]] = {} if given.search else json.loads(RECORD.read_text())
    print(_row("mutant", "violates", "seed", "turns", "turns of all seeds"))
    print(_row("---", "---", "--:", "--:", "--:"), flush=True)
    found = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        searches = pool.map(lambda each: _look_for(each, given.seeds, known.get(each.name)), chosen)
        for mutant, sign in zip(chosen, searches, strict=True):
            if sign is None:
                print(_row(mutant.name, "NOT FOUND", "", "", ""), flush=True)
                continue
            found += 1
            print(_row(mutant.name, f"`{sign.rule}`", sign.seed, sign.turns, sign.tried), flush=True)
            if given.search:
                _put_on_record(mutant, sign)
    print(f"{found} of {len(chosen)} found")
    return 0 if found == len(chosen) else 1


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _put_on_record(mutant: Mutant, sign: Found) -> None:
    on_record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    on_record[mutant.name] = (sign.seed, sign.asked)
    lines = [f"  {json.dumps(name)}: {json.dumps(on_record[name])}" for name in sorted(on_record)]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _look_for(mutant: Mutant, seeds: int, known: tuple[int, int] | None) -> Found | None:
    """Try the seed that is known to find it, then all, with more and more turns."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        for each in ("api", "worker", "shared", "tests", "turnstream", "deploy"):
            shutil.copytree(
                ROOT / each, folder / each, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "pyproject.toml", folder)
        mutant.apply(folder)
        if not mutant.faults:
            return _play(folder, known[0] if known else 1, seeds) or _play(folder, 1, seeds)
        tried = 0
        searches = [(1, seeds, turns) for turns in TURNS]
        if known:
            searches.insert(0, (known[0], known[0], known[1]))
        for first, last, turns in searches:
            following = first
            while following <= last:
                tree = _simulate(folder, mutant, turns, following, last)
                tried += tree.tried
                following = tree.seed + 1
                # What the tree as it is violates as well is no sign of the mutant.
                if tree.rule and not beside(mutant.plan(tree.seed, turns)).wrong:
                    return replace(tree, tried=tried)
    return None


def _play(folder: Path, first: int, last: int) -> Found | None:
    """The first seed by which somebody is missed wrongly, and the case."""
    words = ["--seeds", f"{first}-{last}", "--first"]
    done = _run(folder, "tests.simulation.missed", words)
    if done.returncode == 0:
        return None
    found = re.search(r"^seed (\d+): (.*): (it is missed|after )", done.stdout, re.MULTILINE)
    if not found:
        raise RuntimeError(done.stdout + done.stderr)
    seed, case = int(found[1]), found[2]
    return Found(case, seed, 1, 1, done.stdout.count("\n"))


def _run(folder: Path, module: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def _simulate(folder: Path, mutant: Mutant, turns: int, first: int, last: int) -> Found:
    """The first seed that violates a rule; without a rule, the last one of all."""
    words = [
        "--seeds",
        f"{first}-{last}",
        "--turns",
        str(turns),
        "--pace",
        str(PACE),
        "--brokers",
        *mutant.brokers,
        "--jobs",
        "1",
        "--first",
    ]
    done = _run(folder, "tests.simulation", [*words, "--faults", *mutant.faults])
    runs = [
        (int(seed), int(begun))
        for seed, begun in re.findall(r"^seed (\d+): (\d+) turns", done.stdout, re.MULTILINE)
    ]
    if not runs:
        raise RuntimeError(done.stdout + done.stderr)
    rules = re.findall(r"^  \d+ × (\w+): ", done.stdout, re.MULTILINE)
    seed, begun = runs[-1]
    return Found(rules[0] if rules else "", seed, turns, begun, sum(begun for _, begun in runs))


if __name__ == "__main__":
    sys.exit(main())
