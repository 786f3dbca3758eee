"""What the operators' requests say: which tasks, how many, from where."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from turnstream.api.http.body import json_object, read_bytes
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import BadRequest, InvalidBody, NoTask
from turnstream.shared.names import IDENTIFIER
from turnstream.shared.protocol import explain
from turnstream.shared.session.status import LIVE, TERMINAL
from turnstream.shared.session.task_list import Filter, Place

if TYPE_CHECKING:
    from starlette.requests import Request

    from turnstream.shared.settings import Settings

_Body = TypeVar("_Body", bound=BaseModel)

MOST_STOPPED = 1000
MOST_SEARCH = 200
_LONGEST_SECONDS = 31_536_000

_Name = Annotated[str, Field(pattern=f"^{IDENTIFIER.pattern}$")]
_REF = re.compile(f"{IDENTIFIER.pattern}(?:/{IDENTIFIER.pattern}){{2}}", re.ASCII)


def _a_ref(text: str) -> str:
    if not _REF.fullmatch(text):
        raise PydanticCustomError("ref", "A task is named owner/session/task, as the list of tasks has it")
    return text


_Ref = Annotated[
    str, AfterValidator(_a_ref), WithJsonSchema({"type": "string", "pattern": f"^{_REF.pattern}$"})
]
_Seconds = Annotated[float, Field(gt=0, le=_LONGEST_SECONDS)]


class StopBody(BaseModel):
    """Which live tasks to stop: by ref, or all that fit every given condition."""

    model_config = ConfigDict(extra="forbid")

    refs: Annotated[list[_Ref], Field(min_length=1, max_length=MOST_STOPPED)] | None = None
    status: Annotated[list[Literal["queued", "running", "parked"]], Field(min_length=1)] | None = None
    agent: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    owner: _Name | None = None
    user: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    session: _Name | None = None
    older_than: _Seconds | None = None
    younger_than: _Seconds | None = None

    @model_validator(mode="after")
    def _one_way(self) -> StopBody:
        conditions = self.model_fields_set - {"refs"}
        if (self.refs is None) == (not any(getattr(self, name) is not None for name in conditions)):
            raise ValueError(
                "give either refs, or at least one condition: to stop everything, say so with status"
            )
        return self

    def filter(self) -> Filter:
        """The conditions."""
        return Filter(
            status=frozenset(self.status or LIVE),
            agent=self.agent or "",
            owner=self.owner or "",
            user=self.user or "",
            session=self.session or "",
            older_than=self.older_than or 0.0,
            younger_than=self.younger_than or 0.0,
        )


async def body_of(request: Request, settings: Settings, model: type[_Body]) -> _Body:
    """The request's body.

    Raises:
        InvalidBody: as `parse`.
        BodyTooLarge, BodyTooSlow: as `read_bytes`.
    """
    return parse(await read_bytes(request, settings.max_body), model)


def parse(body: bytes, model: type[_Body]) -> _Body:
    """Read a body; an empty one is an empty object.

    Raises:
        InvalidBody: it is not JSON, or a field is wrong; the text names it.
    """
    try:
        return model.model_validate(json_object(body or b"{}"))
    except ValidationError as error:
        raise InvalidBody(explain(error)) from None


def ref_of(request: Request) -> TaskRef:
    """The task that the address names.

    Raises:
        NoTask: it cannot be one.
    """
    parts = [request.path_params[name] for name in ("owner", "session", "task")]
    if not all(IDENTIFIER.fullmatch(part) for part in parts):
        raise NoTask
    return TaskRef(*parts)


def filter_of(request: Request) -> Filter:
    """The conditions in the query.

    Raises:
        BadRequest: one of them cannot be; the text names it.
    """
    query = request.query_params
    status: set[str] = set()
    for word in ",".join(query.getlist("status")).split(","):
        if word == "live":
            status |= LIVE
        elif word in LIVE | TERMINAL:
            status.add(word)
        elif word:
            raise BadRequest(f"status: give live or some of {', '.join(sorted(LIVE | TERMINAL))}")
    return Filter(
        status=frozenset(status),
        agent=query.get("agent", ""),
        owner=query.get("owner", ""),
        user=query.get("user", ""),
        session=query.get("session", ""),
        older_than=_seconds(query.get("older_than"), "older_than"),
        younger_than=_seconds(query.get("younger_than"), "younger_than"),
        worker=query.get("worker", ""),
        why=query.get("why", ""),
        search=query.get("search", "")[:MOST_SEARCH].strip(),
    )


def place_of(request: Request) -> Place | None:
    """Where in the list of tasks to go on.

    Raises:
        BadRequest: it is not what a page gave as `next`.
    """
    text = request.query_params.get("cursor")
    if not text:
        return None
    try:
        return Place.parse(text[:600])
    except ValueError:
        raise BadRequest("cursor: send what the page before gave as next") from None


def _seconds(text: str | None, name: str) -> float:
    if text is None:
        return 0.0
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LONGEST_SECONDS:
        raise BadRequest(f"{name}: give seconds, from 0 to {_LONGEST_SECONDS}")
    return seconds
