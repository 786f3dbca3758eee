"""Single changes, each of which takes one fence or order away: the simulation must find every one.

``python -m tests.simulation.mutants [NAME …]``. Each is applied to a copy of the tree; seeds are simulated, with the few kinds
of faults that should show it, until one shows a violation that the tree as it is does not. ``--some 6`` looks for six, other
ones each day. See docs/simulation.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Of one seed, how many seeds are tried, and how many times as often as usual faults come.
TURNS = 80
SEEDS = 16
PACE = 4.0


@dataclass(frozen=True)
class Mutant:
    """In ``file`` the text ``old``, which stands there once, becomes ``new``; ``faults`` of these kinds should show it."""

    name: str
    file: str
    old: str
    new: str
    faults: tuple[str, ...]

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


# A few kinds of faults show what many hide.
REPEATED = ("kill_worker", "kill_writing", "repeat")
FROZEN = ("freeze_worker", "freeze_writing", "drop_replies", "repeat")
STOPPED = ("drop_replies", "late", "kill_writing", "overtake", "repeat")
LATE = ("late",)
KILLED = ("kill_worker", "kill_writing", "kill_front_end", "drain_worker")
LOST = ("lose_writes",)
CUT = ("cut", "drop_replies", "restart_broker", "flush_scripts")


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
    _lua("a sweep ignores the lease", "sweep", "elseif lease > NOW then", "elseif false then", STOPPED),
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
        ("drain_worker", "repeat"),
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
        "elseif not delete and meta[1] ~= ending_epoch and not slow_paths().last_of(ending_epoch) then",
        "elseif false then",
        ("repeat",),
    ),
    _lua("submit repeated", "submit", "if prior[1] then", "if false then", REPEATED),
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
    _lua("no hint from claim", "claim", "redis.call('ZADD', due, unpack(hints))", "", KILLED),
    _lua(
        "the next turn not launched",
        "finish",
        "redis.call('HSET', sibling(TASK, following), 'launch', '1', 'launched', int(NOW))",
        "",
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
        "if following[1] == 'queued' and following[2] == '1' then",
        "if false then",
        KILLED,
    ),
    # ── what followers see ──
    Mutant(
        "no read after a subscription",
        "api/streaming/hub.py",
        "            followed.attached = True\n            followed.invalidate()",
        "            followed.attached = True",
        CUT,
    ),
    # ── the broker's moods ──
    Mutant(
        "forgotten scripts not sent again",
        "shared/broker/scripts.py",
        "        except NoScriptError:\n",
        "        except ZeroDivisionError:\n",
        ("flush_scripts",),
    ),
    _lua("a key without a time to live", "_session", "redis.call('PEXPIRE', CALLS, int(TTL))", "", KILLED),
]


def main() -> int:
    """Look for each; 1 when one is not found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="parts of the names; all by default")
    parser.add_argument("--turns", type=int, default=TURNS, help="of one seed")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at once")
    parser.add_argument(
        "--some", type=int, help="only so many, others each day, by the seeds that found them"
    )
    given = parser.parse_args()
    chosen = [each for each in MUTANTS if not given.names or any(name in each.name for name in given.names)]
    if given.some:
        day = dt.datetime.now(dt.UTC).date().toordinal()
        print(f"mutants of day {day}")
        chosen = [chosen[(day * given.some + number) % len(chosen)] for number in range(given.some)]
    with ThreadPoolExecutor(given.jobs) as pool:
        searches = [pool.submit(_look_for, each, given.turns, given.seeds) for each in chosen]
        found = sum(search.result() for search in searches)
    print(f"{found} of {len(chosen)} found")
    return 0 if found == len(chosen) else 1


def _look_for(mutant: Mutant, turns: int, seeds: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        for each in ("api", "worker", "shared", "tests", "turnstream", "deploy"):
            shutil.copytree(
                ROOT / each, folder / each, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "pyproject.toml", folder)
        mutant.apply(folder)
        tried = 0
        for seed in range(1, seeds + 1):
            count, rules = _simulate(folder, mutant, turns, seed)
            tried += count
            # What the tree as it is violates as well is no sign of the mutant.
            if rules and not _simulate(ROOT, mutant, turns, seed)[1]:
                print(f"found     {mutant.name}: {rules[0]}; {tried} turns, seed {seed}", flush=True)
                return True
    print(f"NOT FOUND {mutant.name}: {tried} turns, {seeds} seeds", flush=True)
    return False


def _simulate(folder: Path, mutant: Mutant, turns: int, seed: int) -> tuple[int, list[str]]:
    """How many turns there were, and the rules that they violated."""
    words = ["--seeds", str(seed), "--turns", str(turns), "--pace", str(PACE), "--jobs", "1", "--first"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words, "--faults", *mutant.faults],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    runs = re.findall(r"^seed \d+: (\d+) turns", done.stdout, re.MULTILINE)
    if not runs:
        raise RuntimeError(done.stdout + done.stderr)
    return sum(map(int, runs)), re.findall(r"^  \d+ × (\w+): ", done.stdout, re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main())
