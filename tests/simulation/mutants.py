"""Single changes, each of which takes one fence or order away: the simulation must find every one.

``python -m tests.simulation.mutants [NAME …]``. Each is applied to a copy of the tree; seeds are simulated until one shows
a violation. ``--some 6`` looks for six, other ones each day, each with the seed that found it before. See docs/simulation.md.
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
    """In ``file`` the text ``old``, which stands there once, becomes ``new``."""

    name: str
    file: str
    old: str
    new: str

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


def _lua(name: str, script: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"shared/lua/{script}.lua", old, new)


MUTANTS = [
    # ── fences of an attempt ──
    _lua(
        "attempt and holder unchecked",
        "_session",
        "attempt ~= mine or (holds ~= '' and holder and holds ~= holder)",
        "false",
    ),
    _lua("older operations let in", "_session", "tonumber(OP) < tonumber(op)", "false"),
    _lua(
        "a running task begun again",
        "begin",
        "(status ~= 'queued' or task[2] ~= launch)",
        "task[2] ~= launch",
    ),
    _lua("the attempt not counted", "begin", "attempt = int(tonumber(attempt) + 1)", "attempt = attempt"),
    _lua("an ended task taken", "take", "elseif TERMINAL[status] then", "elseif false then"),
    _lua("a sweep ignores the lease", "sweep", "elseif lease > NOW then", "elseif false then"),
    # ── repeats after a lost reply ──
    _lua("append repeated", "append", "if task[3] == OP and task[2] == attempt then", "if false then"),
    _lua("finish repeated", "finish", "if task[3] == OP and task[2] == attempt then", "if false then"),
    _lua("park repeated", "park", "if task[3] == OP and task[2] == attempt then", "if false then"),
    _lua("release repeated", "release", "if task[3] == OP and task[2] == attempt then", "if false then"),
    _lua(
        "begin repeated",
        "begin",
        "local repeated = status == 'running' and task[4] == OP",
        "local repeated = false",
    ),
    _lua("take repeated", "take", "elseif task[4] ~= OP then", "else"),
    _lua("sweep repeated", "sweep", "elseif task[10] == OP then", "elseif false then"),
    _lua(
        "clear repeated",
        "clear",
        "elseif not delete and meta[1] ~= ending_epoch and not slow_paths().last_of(ending_epoch) then",
        "elseif false then",
    ),
    _lua("submit repeated", "submit", "if prior[1] then", "if false then"),
    _lua("a call answered twice", "callback", "if known == answered then", "if false then"),
    Mutant(
        "append with a new operation each try",
        "shared/session/tasks.py",
        "            _append,\n            keys,\n            ref.task,\n            op,\n",
        "            _append,\n            keys,\n            ref.task,\n            operation(),\n",
    ),
    # ── numbers and places ──
    _lua("numbers not kept", "append", "'out', int(seq), 'number', number)", "'out', int(seq))"),
    _lua(
        "loss not seen by writers",
        "_session",
        "local behind = detect_loss(seen_epoch, seen_seq)",
        "local behind = false",
    ),
    _lua(
        "servers not told apart",
        "_session",
        "local newest = before == INCARNATION or ",
        "local newest = true or ",
    ),
    _lua("loss not seen by submits", "submit", "detect_loss()\n", ""),
    Mutant(
        "what a lost attempt was saying is not closed",
        "worker/runner.py",
        "        if attempt.open:\n",
        "        if attempt.open is None:\n",
    ),
    Mutant(
        "the end sent with an append in flight",
        "worker/runner.py",
        "            await publisher.settle()\n            more,",
        "            more,",
    ),
    Mutant(
        "parks with an append in flight",
        "worker/runner.py",
        "        await publisher.settle()\n        batch,",
        "        batch,",
    ),
    _lua("messages stay open", "_session", "redis.call('HDEL', TASK, 'open:' .. message)", ""),
    # ── nothing is stuck ──
    _lua("no hint from submit", "submit", "remind(due, ref, look_ms)", ""),
    _lua("no hint from callback", "callback", "remind(due, ref, look_ms)", ""),
    _lua("no hint from take", "take", "remind(due, ref, look_ms)", ""),
    _lua("no hint from claim", "claim", "redis.call('ZADD', due, unpack(hints))", ""),
    _lua(
        "the next turn not launched",
        "finish",
        "redis.call('HSET', sibling(TASK, following), 'launch', '1', 'launched', int(NOW))",
        "",
    ),
    _lua("a turn that waits is not in the line", "submit", "redis.call('RPUSH', WAITING, TID)", ""),
    _lua("claimed launches stay in the queue", "claim", "redis.call('ZREM', queue, unpack(popped))", ""),
    _lua("ended turns stay live", "finish", "redis.call('ZREM', LIVE, TID)", ""),
    _lua("parks with all answers in", "park", "if pending == 0 then", "if false then"),
    _lua(
        "the last answer launches nothing",
        "callback",
        "if pending == 0 and status == 'parked' then",
        "if false then",
    ),
    _lua(
        "a turn passed on is not looked at",
        "sweep",
        "if following[1] == 'queued' and following[2] == '1' then",
        "if false then",
    ),
    # ── what followers see ──
    Mutant(
        "no read after a subscription",
        "api/streaming/hub.py",
        "            followed.attached = True\n            followed.invalidate()",
        "            followed.attached = True",
    ),
    # ── the broker's moods ──
    Mutant(
        "forgotten scripts not sent again",
        "shared/broker/scripts.py",
        "        except NoScriptError:\n",
        "        except ZeroDivisionError:\n",
    ),
    _lua("a key without a time to live", "_session", "redis.call('PEXPIRE', CALLS, int(TTL))", ""),
]


_REPEATS = ("kill_worker", "kill_writing", "repeat")
_FREEZES = ("freeze_worker", "fill_memory", "become_replica", "drop_replies", "repeat")
_STOPS = ("drop_replies", "late", "kill_writing", "overtake", "repeat")

# Mutant → a seed that finds it, with these faults alone: a few kinds show what many hide.
FOUND_BY: dict[str, tuple[int, tuple[str, ...]]] = {
    "older operations let in": (1, ("late",)),
    "a sweep ignores the lease": (36, _STOPS),
    "append repeated": (35, _REPEATS),
    "finish repeated": (35, _REPEATS),
    "park repeated": (35, _REPEATS),
    "begin repeated": (35, _REPEATS),
    "take repeated": (36, _STOPS),
    "attempt and holder unchecked": (1, _FREEZES),
    "the attempt not counted": (1, _FREEZES),
}


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
        chosen = [each for each in chosen if each.name in FOUND_BY]
        chosen = [chosen[(day * given.some + number) % len(chosen)] for number in range(given.some)]
    with ThreadPoolExecutor(given.jobs) as pool:
        searches = [
            pool.submit(_look_for, each, given.turns, _words(each, given.seeds, known=bool(given.some)))
            for each in chosen
        ]
        found = sum(search.result() for search in searches)
    print(f"{found} of {len(chosen)} found")
    return 0 if found == len(chosen) else 1


def _words(mutant: Mutant, seeds: int, *, known: bool) -> list[str]:
    if known:
        seed, faults = FOUND_BY[mutant.name]
        return ["--seeds", str(seed), "--faults", *faults]
    return ["--seeds", f"1-{seeds}"]


def _look_for(mutant: Mutant, turns: int, plan: list[str]) -> bool:
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        for each in ("api", "worker", "shared", "tests", "turnstream", "deploy"):
            shutil.copytree(
                ROOT / each, folder / each, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "pyproject.toml", folder)
        mutant.apply(folder)
        words = [*plan, "--turns", str(turns), "--pace", str(PACE), "--jobs", "1", "--first"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": name},
            capture_output=True,
            text=True,
            check=False,
        )
    runs = re.findall(r"^seed (\d+): (\d+) turns", done.stdout, re.MULTILINE)
    rules = re.findall(r"^  \d+ × (\w+): ", done.stdout, re.MULTILINE)
    found = done.returncode == 1 and bool(rules)
    print(
        f"{'found    ' if found else 'NOT FOUND'} {mutant.name}: {rules[0] if rules else done.stderr[-300:]}; "
        f"{sum(int(each) for _, each in runs)} turns, seed {runs[-1][0] if runs else '-'}",
        flush=True,
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
