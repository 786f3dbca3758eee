"""What must hold of a deployment at rest, beside the rules of tests/chaos/checker.py for clients and logs.

Each yields where it does not hold. To add one: write a generator, and put it into `RULES`; see docs/simulation.md.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.chaos.records import ENDS
from tests.conftest import LASTING
from tests.simulation.cluster import OTHER_OWNER, OWNER
from turnstream.api.server import FrontEnd
from turnstream.shared.broker.keys import HELD, SUBSCRIBED, SessionKeys, TaskRef, owner_bytes
from turnstream.shared.session.storage import SESSION_BYTES, TURN_BYTES
from turnstream.worker.live_list import YOUNG_MS
from turnstream.worker.recall import HELD_MS
from turnstream.worker.worker import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.cluster import Cluster

# Virtual seconds in which a deployment comes to rest: the last hint is looked at, followers leave, rings are emptied.
REST_SECONDS = 40.0


# How late rescuers may look at a hint, and workers at an entry of the list of live turns.
LATE_SECONDS = 10.0


# How late a turn's deadline may end it, where its worker stands still. Not counted is the time in which a broker takes no
# writes, and so much after it: rescuers hold still for a lease of two seconds, and then take a look each second.
OVERDUE_SECONDS = 20.0
RECOVERY_SECONDS = 4.0


def at_rest(cluster: Cluster) -> list[tuple[str, str]]:
    """Rule and place of all that does not hold, `REST_SECONDS` after the last turn has ended."""
    return [(rule.__name__, where) for rule in RULES for where in rule(cluster)]


def no_key_lives_for_ever(cluster: Cluster) -> Iterator[str]:
    """Every key of a session or owner expires."""
    for name, item in _items(cluster):
        if name not in LASTING and item.expireat is None:
            yield name.decode()


def nothing_is_live(cluster: Cluster) -> Iterator[str]:
    """All turns have ended: no session lists a live one, none waits, none is in the queue."""
    for name, item in _items(cluster):
        if name.endswith((b"}:live", b":waiting")) or name == b"ts:queue" or name.startswith(b"arq:job:"):
            yield f"{name.decode()}: {_shown(item.value)}"
        # A look that found no task left its mark.
        if b":task:" in name and _field(item.value, b"status").decode() not in (*ENDS, ""):
            yield f"{name.decode()}: {_field(item.value, b'status')!r}"


def the_list_of_live_turns_is_true(cluster: Cluster) -> Iterator[str]:
    """No turn stays on the operators' list that has ended; one that the sessions' broker lost stays there for a minute."""
    listed = cluster.primary.item(b"ts:live")
    now = cluster.primary.now_ms() + 1000 * cluster.primary.ahead
    for member in listed.value if listed is not None else ():
        ref = TaskRef.parse(member)
        status = cluster.sessions.field(ref.keys.task(ref.task), "status")
        age = now - listed.value[member]
        if status or age > YOUNG_MS + 1000 * LATE_SECONDS:
            yield f"{ref}: {status or 'lost'}, listed for {age / 1000:.0f} s"


def hints_are_looked_at(cluster: Cluster) -> Iterator[str]:
    """No hint is overdue: those of ended turns wait for the end of their grace."""
    for name, item in _items(cluster):
        if name == b"ts:due":
            for member in item.value:
                late = time.time() + cluster.primary.ahead - item.value[member] / 1000
                if late > LATE_SECONDS and member != b"*":
                    yield f"{member.decode()}: {late:.1f} s late"


def admissions_are_given_back(cluster: Cluster) -> Iterator[str]:
    """No owner's turn counts that has ended, where nobody was kept from saying so; no sum is below zero or differs from its parts."""
    for name, item in _items(cluster):
        if name.startswith(b"ts:caps:") and name.endswith(b":turns") and cluster.whole:
            yield f"{name.decode()}: {[each.decode() for each in item.value][:3]}"
        if name.startswith(b"ts:caps:") and name.endswith(b":bytes"):
            sizes = {field: int(value) for field, value in dict(item.value).items()}
            total = sizes.pop(b"", 0)
            if total != sum(sizes.values()) or min(sizes.values(), default=0) < 0:
                yield f"{name.decode()}: {total}, not {sum(sizes.values())}"


def stored_bytes_are_true(cluster: Cluster) -> Iterator[str]:
    """An owner's sessions are counted with what their own sums say, where nobody was kept from saying so."""
    for owner in (OWNER, OTHER_OWNER) if cluster.whole else ():
        yield from _wrong_bytes(cluster, owner)


def _wrong_bytes(cluster: Cluster, owner: str) -> Iterator[str]:
    counted = cluster.primary.item(owner_bytes(owner).encode())
    for session, size in dict(counted.value).items() if counted is not None else ():
        meta = cluster.sessions.item(SessionKeys(owner, session.decode()).meta.encode())
        if session and meta is not None:
            sums = {name: int(_field(meta.value, name.encode()) or 0) for name in (*_SUMS, *_LENT, *_TURNS)}
            true = SESSION_BYTES + sum(sums[name] for name in _SUMS) - sum(sums[name] for name in _LENT)
            true += TURN_BYTES * sum(sums[name] for name in _TURNS)
            if int(size) != true:
                yield f"{session.decode()}: {int(size)}, not {true}"


# Of a session's meta: its bytes; those of files that stand only once; its turns.
_SUMS = ("bytes", "kept", "memory", "asked", "files", "log_back", "history_back")
_LENT = ("log_lent", "history_lent", "memory_lent")
_TURNS = ("turns", "turns_before")


def deadlines_end_turns(cluster: Cluster) -> Iterator[str]:
    """Whatever a turn was waiting for, it ended soon after its deadline; where that end was lost, it has ended again by now."""
    for name, item in _items(cluster):
        if b":task:" in name:
            deadline = float(_field(item.value, b"deadline") or 0)
            late = _able_ms(cluster, deadline, cluster.sessions.steps.ended.get(name, 0))
            # Hints that were lost come back with a recall; one whose worker dies begins anew only after so long.
            most = 1000 * OVERDUE_SECONDS + (HELD_MS if cluster.primary.losses else 0)
            if deadline and late > most:
                yield f"{name.decode()}: {late / 1000:.1f} s late"


def _able_ms(cluster: Cluster, since: float, until: float) -> float:
    """How long the brokers were able to end a turn, in that time of the sessions' clock, ms."""
    unable = sorted(
        (began + 1000 * later, ended + 1000 * later)
        for store in cluster.stores
        for later in [cluster.sessions.ahead - store.ahead]
        for began, ended in store.unable
    )
    able = 0.0
    for began, ended in [*unable, (until, until)]:
        able += max(0.0, min(began, until) - since)
        since = max(since, ended + 1000 * RECOVERY_SECONDS)
    return able


def workers_hold_nothing(cluster: Cluster) -> Iterator[str]:
    """No lease, no slot and no bytes are held when nothing runs."""
    for running in cluster.running:
        if isinstance(running.server, WorkerProcess):
            held = (len(running.server.leases), len(running.server._arq.tasks), running.server.budget.taken)
            if any(held):
                yield f"{running.process}: {held}"


def nothing_is_held(cluster: Cluster) -> Iterator[str]:
    """No launch is noted as held when nothing runs, whoever held it; and processes are noted that are there."""
    held = cluster.primary.item(HELD.encode())
    ours = {each.server.id for each in cluster.running if isinstance(each.server, WorkerProcess)}
    for entry in held.value if held is not None else ():
        if entry.decode().partition(" ")[0] in ours:
            yield entry.decode()
    noted = cluster.primary.item(SUBSCRIBED.encode())
    known = {name.decode() for name in noted.value} if noted is not None else set()
    if missing := ours - known:
        yield f"not noted: {sorted(missing)}"


def front_ends_follow_nothing(cluster: Cluster) -> Iterator[str]:
    """No follower and no session's ring is left when all clients have gone."""
    for running in cluster.running:
        if isinstance(running.server, FrontEnd):
            hub = running.server.app.state.services.hub
            if hub.followers or hub.sessions:
                yield f"{running.process}: {hub.followers} followers, {hub.sessions} sessions"


def no_tail_is_subscribed(cluster: Cluster) -> Iterator[str]:
    """Nobody hears the tail of a session that nobody follows; a broker may not know yet who is gone without a word."""
    for broker in cluster.sessions.serving:
        for channels in (broker.server.subscribers, broker.server.ssubscribers):
            for channel in [each for each in channels if each.startswith(b"ts:{")]:
                if hearing := sum(not each._transport.silent for each in channels[channel]):
                    yield f"{broker.name}: {channel.decode()}: {hearing}"


def no_task_leaks(cluster: Cluster) -> Iterator[str]:
    """A process at rest has its loops, each once, and beside them nothing that lasts."""
    now = asyncio.get_running_loop().time()
    nodes = len(cluster.sessions.serving)
    for running in cluster.running:
        tasks: list[Any] = [
            each for each in asyncio.all_tasks() if getattr(each, "process", None) is running.process
        ]
        lasting = Counter(_name(each) for each in tasks if now - each.began > LASTING_SECONDS)
        for name, number in sorted(lasting.items()):
            most = nodes if running.role == "api" and name in OF_A_SERVER else name in LOOPS[running.role]
            if number > most:
                yield f"{running.process}: {name}: {number}, not {int(most)}"


def _name(task: asyncio.Task[Any]) -> str:
    return str(task.get_coro().__qualname__)  # type: ignore[union-attr]


# What lasts longer is no part of a look that is taken now and then.
LASTING_SECONDS = 20.0

# The tasks of a process at rest, by its role; and those that a front end has once for each server of sessions.
OF_A_SERVER = frozenset(("Subscriber.run", "Subscriber._check", "Subscriber._write"))
LOOPS = {
    "api": {
        *("Cluster.start.<locals>.main", "FrontEnd._watch", "LifespanOn.main", "Hub._look", "Limiter.keep"),
        *("ClusterSubscriber.run", "Presence.show", "_attend", "_keep_registered", "_keep_told"),
    },
    "worker": {
        *("Cluster.start.<locals>.main", "Event.wait", "Subscriber._check", "Subscriber._write"),
        *("SignalListener.listen", "ArqWorker.main", "Leases.keep", "Lifeline.tend", "LiveList.tend"),
        *("ModelGate.tend", "Presence.show", "Rescuer.watch", "Storage.tend", "Watch.tend", "Courier.tend"),
    },
}

RULES: list[Callable[[Cluster], Iterator[str]]] = [
    no_key_lives_for_ever,
    nothing_is_live,
    the_list_of_live_turns_is_true,
    hints_are_looked_at,
    admissions_are_given_back,
    stored_bytes_are_true,
    deadlines_end_turns,
    workers_hold_nothing,
    nothing_is_held,
    front_ends_follow_nothing,
    no_tail_is_subscribed,
    no_task_leaks,
]


def _items(cluster: Cluster) -> list[tuple[bytes, Any]]:
    """What the brokers hold, read past the network: nothing happens meanwhile."""
    return [each for store in cluster.stores for each in store.items()]


def _field(value: Any, name: bytes) -> bytes:
    found = dict(value).get(name, b"")
    return found if isinstance(found, bytes) else bytes(found)


def _shown(value: Any) -> str:
    return str(value)[:200]
