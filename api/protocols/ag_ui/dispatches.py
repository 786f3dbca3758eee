"""Which sub-agent speaks under a path: the call that handed work to it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    from turnstream.shared.session.entry import Entry


class Dispatch(NamedTuple):
    """Work that was handed to a sub-agent.

    Attributes:
        name: of this piece of work: its call's id.
        agent: the agent's name.
        call: its call; empty where that is not known.
    """

    name: str
    agent: str
    call: str


class Dispatches:
    """The work that was handed out and is not done, by the path under which it is spoken of.

    As `Run.inner` makes paths: of several calls of one agent in one answer the second has ``~2`` behind its name, and so on.
    """

    def __init__(self) -> None:
        self._open: dict[str, Dispatch] = {}
        # Answer of a model, path of who is called → how often.
        self._often: Counter[tuple[str, str]] = Counter()

    def begin(self, entry: Entry, data: dict[str, Any]) -> str:
        """Take a call of a sub-agent; the path under which that speaks."""
        call, agent = str(data.get("dispatchId") or ""), str(data.get("name") or "")
        path = f"{entry.path}/{agent}" if entry.path else agent
        group = orjson.loads(entry.extra).get("group") if entry.extra else None
        answer = str(group["ids"][0]) if group and group.get("ids") else call
        self._often[answer, path] += 1
        if (number := self._often[answer, path]) > 1:
            path = f"{path}~{number}"
        self._open[path] = Dispatch(call, agent, call)
        return path

    def end(self, call: str) -> None:
        """The work is done."""
        for path, dispatch in [*self._open.items()]:
            if dispatch.call == call:
                del self._open[path]

    def at(self, path: str, run: str) -> Dispatch:
        """The work that is spoken of under a path; where its call is not known, it is named after the ``run``."""
        found = self._open.get(path)
        if found is not None:
            return found
        return Dispatch(f"{run}/{path}", path.rpartition("/")[2].partition("~")[0], "")
