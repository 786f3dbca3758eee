"""Responses are built by the models that describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args, get_origin

import pytest
from pydantic import ValidationError

from turnstream.api.admin.schemas import TaskStopped
from turnstream.api.http.answers import Described, answer, ordered
from turnstream.api.http.operation import Stream
from turnstream.api.openapi.admin_table import ADMIN_OPERATIONS
from turnstream.api.protocols.liteagent.protocol import PROTOCOL as LITEAGENT
from turnstream.shared.session import task_list

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack
    from turnstream.api.http.operation import Operation


def test_a_field_that_is_not_described_is_refused() -> None:
    """What a route adds has to be added to its model, and so to the document."""
    fields = {"ref": "o/s/t", "outcome": "ended"}
    assert answer(TaskStopped, fields).body == b'{"ref":"o/s/t","outcome":"ended"}'
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        answer(TaskStopped, {**fields, "trace": "x"})


def test_a_field_of_an_event_that_is_not_described_is_refused() -> None:
    """Events are written in the model's order; their values are checked by the tests of their frames."""
    fields = {"outcome": "ended", "ref": "o/s/t"}
    assert list(ordered(TaskStopped, fields)) == ["ref", "outcome"]
    with pytest.raises(ValueError, match="TaskStopped does not describe trace"):
        ordered(TaskStopped, {**fields, "trace": "x"})


@pytest.mark.parametrize("operations", [ADMIN_OPERATIONS, LITEAGENT.operations], ids=["admin", "liteagent"])
def test_all_answers_are_built_so(operations: tuple[Operation, ...]) -> None:
    """Each JSON response of the operators' routes and of LiteAgent's, and each event of LiteAgent's streams."""
    contents = [content for each in operations for kinds in each.answers.values() for content in kinds]
    streams = [
        content for content in contents if isinstance(content, Stream) and operations != ADMIN_OPERATIONS
    ]
    models = [content for content in contents if not isinstance(content, Stream)]
    models += [model for stream in streams for model in stream.events.values()]
    # A list is described by what it holds.
    classes = [get_args(model)[0] if get_origin(model) is list else model for model in models]
    assert len(classes) >= 10
    assert all(issubclass(model, Described) for model in classes)


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_a_new_column_has_to_be_described(
    client: Client, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that the task list has, and its model has not, is an error of the route."""
    original = task_list._told

    def told(*given: Any) -> dict[str, Any]:
        return {**original(*given), "trace": "x"}

    await client.turn("s1", "hi")
    admin = stack.client(client.base_url, stack.admin)
    listed = await admin.http.get("/admin/v1/tasks")
    assert (listed.status_code, len(listed.json()["tasks"])) == (200, 1)
    monkeypatch.setattr(task_list, "_told", told)
    refused = await admin.http.get("/admin/v1/tasks")
    assert refused.status_code == 500
