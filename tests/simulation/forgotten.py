"""Sessions that are about to be cleared or to expire: they are held to what the others are held to when all is over.

They are read past all connections: that they are looked at changes nothing about a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.checker import RULES, check, history_is_told
from tests.chaos.records import Account, Session, rows
from tests.simulation.coded import wrong_turns
from tests.simulation.liteagent import wrong_streams

if TYPE_CHECKING:
    from tests.chaos.records import Turn
    from tests.simulation.clients import SimulatedTown

# What `/history` tells would have to be asked for.
_LOOKED_AT = [each for each in RULES if each is not history_is_told]

# Of a task's hash.
_FIELDS = ("status", "why", "crashes", "attempt", "launch", "parks")


def account_so_far(town: SimulatedTown, turns: list[Turn]) -> Account:
    """What is known of a session whose turns these are."""
    account = Account(turns=turns, losses=town.losses)
    for turn in turns:
        account.sessions.setdefault(turn.session, _session(town, turn.session, turns))
    if town.logs is not None:
        town.logs.complete(account, town)
    return account


def wrong_so_far(town: SimulatedTown, account: Account) -> list[str]:
    """What does not hold of a session; all its turns have ended before their clients' eyes."""
    lite = [(turn, view) for turn, view in town.lite if turn in account.turns]
    found = [*map(str, check(account, _LOOKED_AT)), *wrong_streams(town, lite)]
    return [*found, *town.cluster.outside.wrong_answers(account, town), *wrong_turns(account)]


def with_forgotten(town: SimulatedTown, account: Account) -> Account:
    """All turns of a run; of a session that was begun anew all logs, and where the last of them begins that is cut most."""
    whole = Account(turns=town.forgotten + account.turns, losses=account.losses)
    for each in [*town.former, *account.sessions.values()]:
        session = whole.sessions.setdefault(each.name, Session(each.name))
        session.log += each.log
        session.head = max(session.head, each.head)
    return whole


def _session(town: SimulatedTown, name: str, turns: list[Turn]) -> Session:
    store, key = town.cluster.sessions, town.keys_of(name)
    files = store.files(key)
    session = Session(name, serial=town.is_serial(name))
    session.log = rows(store.stream(f"{key}log"), files)
    session.history = rows(store.stream(f"{key}history"), files)
    for turn in turns:
        task = f"{key}task:{turn.task}"
        if store.field(task, "status"):
            known = {field: store.field(task, field) for field in _FIELDS}
            session.tasks[turn.task] = {field: value for field, value in known.items() if value}
    epoch, seq, former = (store.field(f"{key}meta", field) for field in ("epoch", "seq", "former"))
    ended = [f"{epoch}-{seq}", *former.split()] if epoch else []
    session.epochs = {int(one): int(last) for one, _, last in (each.partition("-") for each in ended)}
    return session
