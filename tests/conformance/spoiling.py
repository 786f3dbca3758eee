"""How a good capture is spoilt: changes to its bytes, its frames, its events and its history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import orjson

from tests.conformance.agent_events import CAMEL, TYPES, plain
from tests.conformance.capture import Capture, Frame, Json, Wire
from tests.conformance.captures import from_entries, recorded

Spoil: TypeAlias = Callable[[Capture], Capture]
Where: TypeAlias = Callable[[Json], bool]
Change: TypeAlias = Callable[[Json], object]


@dataclass(frozen=True)
class Mutation:
    """One way to spoil a capture.

    Attributes:
        name: what is wrong with the result.
        wires: the wires that it is tried on.
        feature: whose capture it is tried on.
        spoil: does it.
        caught_by: the rules that notice, all of them.
        pings: whether the capture has heartbeats in it.
        kept: whether the session's history is at hand.
    """

    name: str
    wires: tuple[Wire, ...]
    feature: str
    spoil: Spoil
    caught_by: frozenset[str]
    pings: bool = False
    kept: bool = True

    def good(self, wire: Wire) -> Capture:
        """The capture before."""
        capture = from_entries(recorded(self.feature), wire, pings=self.pings)
        return capture if self.kept else replace(capture, history=None)


class Mutations:
    """A table of mutations."""

    def __init__(self) -> None:
        self.table: list[Mutation] = []

    def add(
        self,
        name: str,
        wires: tuple[Wire, ...],
        feature: str,
        spoil: Spoil,
        *caught_by: str,
        pings: bool = False,
        kept: bool = True,
    ) -> None:
        """Add one; its fields are those of `Mutation`."""
        self.table.append(Mutation(name, wires, feature, spoil, frozenset(caught_by), pings, kept))


AGENT: tuple[Wire, ...] = ("agentscope", "java")
LITE: tuple[Wire, ...] = ("liteagent",)
ALL: tuple[Wire, ...] = AGENT + LITE


# ── on bytes and frames ──


def body(change: Callable[[bytes], bytes]) -> Spoil:
    """Change the bytes."""
    return lambda capture: capture.read_as((change(capture.body),))


def replaced(old: bytes, new: bytes, count: int = -1) -> Spoil:
    """Replace bytes, which must be there."""

    def spoil(raw: bytes) -> bytes:
        assert old in raw
        return raw.replace(old, new, count)

    return body(spoil)


def frames(change: Callable[[list[Frame]], Sequence[Frame]]) -> Spoil:
    """Change the list of frames."""
    return lambda capture: capture.rewritten(change(list(capture.frames)))


def added(*lines: bytes) -> Spoil:
    """One more frame before the last."""
    return frames(lambda given: [*given[:-1], Frame(lines), given[-1]])


def first_read_split(capture: Capture) -> Capture:
    """The first frame comes in two reads."""
    one, *rest = capture.reads
    return capture.read_as((one[:25], one[25:], *rest))


def both(*spoils: Spoil) -> Spoil:
    """One after the other."""

    def spoil(capture: Capture) -> Capture:
        for each in spoils:
            capture = each(capture)
        return capture

    return spoil


# ── on events of the Agent API ──


def is_(kind: str, status: str = "", **more: Any) -> Where:
    """Whether an event is of that kind and status, with those fields."""

    def where(event: Json) -> bool:
        right = event.get("object") == kind and status in ("", event.get("status"))
        return right and all(event.get(key) == value for key, value in more.items())

    return where


DELTA = is_("content", "in_progress", delta=True)
END = is_("response", "completed")


def dropped(where: Where, *, tidied: bool = True) -> Spoil:
    """Leave out the first such event; with ``tidied`` the numbers show nothing."""

    def spoil(capture: Capture) -> Capture:
        given = list(capture.frames)
        del given[_place(given, where)]
        return capture.rewritten(renumbered(given, capture.wire) if tidied else given)

    return spoil


def doubled(where: Where, *, tidied: bool = False) -> Spoil:
    """Send the first such event twice; with ``tidied`` as if it were two."""

    def spoil(capture: Capture) -> Capture:
        given = list(capture.frames)
        place = _place(given, where)
        given.insert(place, given[place])
        return capture.rewritten(renumbered(given, capture.wire) if tidied else given)

    return spoil


def inserted(event: Json, before: Where) -> Spoil:
    """One more event, numbered as if it belonged there."""

    def spoil(capture: Capture) -> Capture:
        given = list(capture.frames)
        place = _place(given, before)
        given.insert(place, _framed(given[place].id, event, capture.wire))
        return capture.rewritten(renumbered(given, capture.wire))

    return spoil


def event(where: Where, change: Change) -> Spoil:
    """Change the first such event."""

    def spoil(capture: Capture) -> Capture:
        given = list(capture.frames)
        place = _place(given, where)
        said = plain(_copy(given[place]))
        change(said)
        given[place] = _framed(given[place].id, said, capture.wire)
        return capture.rewritten(given)

    return spoil


def everywhere(where: Where, change: Change) -> Spoil:
    """Change every such event, and every such message and part in others: a lie that is consistent."""

    def changed(value: Any) -> None:
        if where(value):
            change(value)
        for key in ("content", "output"):
            for inner in value.get(key) or [] if "object" in value else []:
                changed(inner)

    def spoil(capture: Capture) -> Capture:
        given = []
        hit = False
        for frame in capture.frames:
            said = plain(_copy(frame))
            changed(said)
            hit = hit or said != plain(frame.json)
            given.append(_framed(frame.id, said, capture.wire))
        assert hit
        return capture.rewritten(given)

    return spoil


def put(**fields: Any) -> Change:
    """Set fields."""
    return lambda value: value.update(fields)


def without(*names: str) -> Change:
    """Leave out fields."""

    def change(value: Json) -> None:
        for name in names:
            del value[name]

    return change


def data(change: Change) -> Change:
    """Change a part's data."""
    return lambda part: change(part["data"])


def _copy(frame: Frame) -> Json:
    """The frame's data, to be changed."""
    copied: Json = orjson.loads(frame.data or b"{}")
    return copied


def _place(given: list[Frame], where: Where) -> int:
    return next(place for place, frame in enumerate(given) if where(plain(frame.json)))


def renumbered(given: list[Frame], wire: Wire) -> list[Frame]:
    """Numbers and cursors without a hole."""
    epoch = given[0].id.partition("-")[0]
    return [
        _framed(f"{epoch}-{number + 1}", {**plain(frame.json), "sequence_number": number}, wire)
        for number, frame in enumerate(given)
    ]


def _framed(cursor: str, said: Json, wire: Wire) -> Frame:
    written = orjson.dumps(_respelled(said) if wire == "java" else said)
    return Frame((b"id: " + cursor.encode(), b"data: " + written))


_SNAKE = {snake: camel for camel, snake in CAMEL.items()}
_UPPER = {lower: upper for upper, lower in TYPES.items()}


def _respelled(said: Json) -> Json:
    """A plain event as the Java edition writes it."""
    event = {_SNAKE.get(key, key): value for key, value in said.items()}
    if event.get("object") == "message" and isinstance(event.get("type"), str):
        event["type"] = _UPPER.get(event["type"], event["type"])
    for key in ("content", "output"):
        if isinstance(event.get(key), list):
            event[key] = [_respelled(inner) for inner in event[key]]
    return event


# ── on envelopes of LiteAgent ──


def says(kind: str, **more: Any) -> Where:
    """Whether an envelope is of that type and has those fields."""
    return lambda envelope: (
        envelope.get("type") == kind and all(envelope.get(key) == value for key, value in more.items())
    )


def state(name: str) -> Where:
    """Whether an envelope tells that state of its task."""
    return lambda envelope: envelope.get("type") == "taskStatus" and envelope["content"]["status"] == name


def piece(envelope: Json) -> bool:
    """Whether an envelope is a piece of text."""
    return bool(envelope.get("part"))


def piece_end(envelope: Json) -> bool:
    """Whether an envelope ends the pieces."""
    return envelope.get("part") == ""


def envelope(where: Where, change: Change) -> Spoil:
    """Change the first such envelope."""
    return at(where, lambda frame: [_enveloped(frame, change)])


def cut(where: Where) -> Spoil:
    """Leave out the first such frame."""
    return at(where, lambda _: [])


def content(change: Change) -> Change:
    """Change an envelope's content; of a list each item."""

    def changed(value: Json) -> None:
        inner = value["content"]
        for each in inner if isinstance(inner, list) else [inner]:
            change(each)

    return changed


def history(change: Callable[[Any], Any]) -> Spoil:
    """Change the history."""
    return lambda capture: replace(
        capture, history=orjson.dumps(change(orjson.loads(capture.history or b"[]")))
    )


def at(where: Where, change: Callable[[Frame], list[Frame]]) -> Spoil:
    """Put other frames in the place of the first such one."""

    def spoil(capture: Capture) -> Capture:
        given = list(capture.frames)
        place = next(place for place, frame in enumerate(given) if where(frame.json))
        given[place : place + 1] = change(given[place])
        return capture.rewritten(given)

    return spoil


def _enveloped(frame: Frame, change: Change) -> Frame:
    said = _copy(frame)
    change(said)
    return Frame((*frame.lines[:-1], b"data:" + orjson.dumps(said)))


def without_id(frame: Frame) -> list[Frame]:
    """The frame, its id left out."""
    return [Frame(frame.lines[1:])]
