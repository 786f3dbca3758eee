"""MCP servers in a spec: what is refused, and what a server gets to see."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from tests.behaviour.conftest import team
from tests.support.client import text_of
from tests.support.scripted import script
from turnstream.shared.agents.config import AgentSpec
from turnstream.shared.errors import ConfigurationError
from turnstream.worker.agents import registry

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({}, "label"),
        ({"label": "a"}, "either command or url"),
        ({"label": "a", "command": "x", "url": "http://x"}, "either command or url"),
        ({"label": "a", "url": "ftp://x"}, "url"),
        ({"label": "a", "url": "http://x", "args": ["y"]}, "args: not for a server given by url"),
        ({"label": "a", "command": "x", "headers_env": {}}, "headers_env: not for a server given by command"),
        ({"label": "a", "command": "x", "approval": "sometimes"}, "approval"),
        ({"label": "a", "command": "x", "approval": {"tool": []}}, "approval"),
    ],
)
def test_a_wrong_server_is_refused_by_name(server: dict[str, Any], words: str) -> None:
    """The text names the field."""
    with pytest.raises(ValidationError) as caught:
        AgentSpec.model_validate({"name": "a", "model": "demo", "mcp": [server]})
    assert words in str(caught.value)


def test_labels_must_differ() -> None:
    """They are what clients tell servers apart by."""
    server = {"label": "a", "command": "x"}
    with pytest.raises(ValidationError, match="labels must differ: a"):
        AgentSpec.model_validate({"name": "a", "model": "demo", "mcp": [server, server]})


@pytest.mark.parametrize(
    "server",
    [
        {"label": "files", "command": "x", "env_from": ["NO_SUCH_VARIABLE"]},
        {"label": "files", "url": "http://x", "headers_env": {"Authorization": "NO_SUCH_VARIABLE"}},
    ],
)
def test_a_missing_variable_is_named_before_anything_starts(server: dict[str, Any]) -> None:
    """With the agent and the server that need it."""
    with pytest.raises(ConfigurationError) as caught:
        registry.build(team(lead={"mcp": [server]}))
    assert all(word in caught.value.public_text for word in ("lead", "'files'", "NO_SUCH_VARIABLE"))


@pytest.mark.parametrize("field", ["mcp", "subagents", "critics", "client_tools"])
def test_a_generator_takes_nothing_that_needs_a_model(field: str) -> None:
    """The field is named at start."""
    given: dict[str, list[Any]] = {
        "mcp": [{"label": "a", "command": "x"}],
        "subagents": ["demo"],
        "critics": ["demo"],
        "client_tools": [{"name": "f"}],
    }
    with pytest.raises(ConfigurationError, match=field):
        registry.build(team(lead={"python": "tests.support.coded:everything", field: given[field]}))


async def test_a_server_sees_only_what_it_is_given(
    serve: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`env_from` passes variables of the worker on by name; its other secrets stay with it."""
    monkeypatch.setenv("MCP_SECRET", "passed on")
    monkeypatch.setenv("MCP_LOG", str(tmp_path / "not passed on"))
    server = {
        "label": "tests",
        "command": sys.executable,
        "args": ["tests/support/mcp_server.py"],
        "env_from": ["MCP_SECRET"],
    }
    client, _ = await serve(lead={"mcp": [server]})
    frames = await client.turn("s1", script([("secret", {"what": "x"})], "{results}"))
    assert text_of(frames) == "The secret of x is passed on. "
    assert not (tmp_path / "not passed on").exists()
