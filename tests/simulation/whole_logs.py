"""What stood in sessions' logs, though it is cut from them meanwhile: rules look at logs from their beginning on."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.chaos.records import rows

if TYPE_CHECKING:
    from tests.chaos.records import Account, Row
    from tests.simulation.broker import Store
    from tests.simulation.clients import SimulatedTown


class WholeLogs:
    """Looks at a log behind each script on its session. Not where a broker may lose what it has: that would be said twice."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # The beginning of a session's keys → seq → entry.
        self._rows: defaultdict[str, dict[int, Row]] = defaultdict(dict)
        store.steps.on_key.append(self._note)

    def _note(self, _: str, meta: bytes) -> None:
        session = meta.decode().removesuffix("meta")
        log = self._store.item(f"{session}log".encode())
        if log is None or not log.value._ids:
            return
        known = self._rows[session]
        last = max(known, default=0)
        if log.value._ids[-1].seq < last:
            # The session was cleared, or has expired, and was begun anew.
            known.clear()
            last = 0
        new = []
        for key in reversed(log.value._ids):
            if key.seq <= last:
                break
            words = log.value._values_dict[key]
            new.append((key.encode(), dict(zip(words[::2], words[1::2], strict=True))))
        if new:
            known.update({row.seq: row for row in rows(reversed(new), self._store.files(session))})

    def complete(self, account: Account, town: SimulatedTown) -> None:
        """Put what was cut from logs in front of what is left of them."""
        for session in account.sessions.values():
            keys = town.keys_of(session.name)
            session.head = int(self._store.field(f"{keys}meta", "head") or 1)
            known = self._rows[keys]
            session.log[:0] = [known[seq] for seq in sorted(known) if seq < session.head]

    def seen(self, keys: str, task: str) -> list[Row]:
        """All entries of a task so far; ``keys``: how the names of its session's begin."""
        return [row for row in self._rows[keys].values() if row.task == task]
