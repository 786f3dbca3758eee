"""Responses are built by the models that describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from turnstream.api.admin.schemas import TaskStopped
from turnstream.api.http.answers import Described, answer
from turnstream.api.openapi.admin_table import ADMIN_OPERATIONS
from turnstream.shared.session import task_list

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack


def test_a_field_that_is_not_described_is_refused() -> None:
    """What a route adds has to be added to its model, and so to the document."""
    fields = {"ref": "o/s/t", "outcome": "ended"}
    assert answer(TaskStopped, fields).body == b'{"ref":"o/s/t","outcome":"ended"}'
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        answer(TaskStopped, {**fields, "trace": "x"})


def test_all_that_operators_get_is_built_so() -> None:
    """Each JSON response of the operators' routes."""
    models = [model for each in ADMIN_OPERATIONS for kinds in each.answers.values() for model in kinds]
    described = [model for model in models if isinstance(model, type)]
    assert len(described) > 10
    assert all(issubclass(model, Described) for model in described)


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
