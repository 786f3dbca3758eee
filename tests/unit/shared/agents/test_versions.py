"""An agent's version: the table's own word, or a digest that changes with what the table says."""

from __future__ import annotations

from typing import Any

from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.agents.versions import versions


def version(name: str = "a", **tables: dict[str, Any]) -> str:
    """The version of one agent among these."""
    specs = {each: AgentSpec.model_validate({"name": each, **table}) for each, table in tables.items()}
    return versions(Agents(specs))[name]


def test_the_tables_word_is_the_version() -> None:
    """Whatever else the table says."""
    assert version(a={"model": "demo", "version": "7"}) == version(a={"python": "x:y", "version": "7"}) == "7"


def test_a_digest_changes_with_what_is_run() -> None:
    """Its model, the name of its code, its instructions; not with a default that is written out, the policy, or how streams end."""
    plain = version(a={"model": "demo"})
    assert plain == version(a={"model": "demo"})
    assert plain == version(a={"model": "demo", "busy": "serial"})
    assert plain == version(a={"model": "demo", "on_version": "wait", "version_wait": 5})
    assert plain == version(a={"model": "demo", "on_park": "complete"})
    others = {
        version(a={"model": "test"}),
        version(a={"python": "x:y"}),
        version(a={"model": "demo", "instructions": "Be brief."}),
    }
    assert len(others | {plain}) == 4


def test_a_helpers_change_is_its_callers_change() -> None:
    """At any depth, round and round; a helper with a version of its own changes with that alone."""
    lead: dict[str, Any] = {"model": "demo", "subagents": ["b"]}
    back: dict[str, Any] = {"model": "demo", "critics": ["a"]}
    plain = version(a=lead, b=back)
    assert plain != version(a=lead, b={**back, "instructions": "Be brief."})
    fixed = version(a=lead, b={**back, "version": "1"})
    assert fixed == version(a=lead, b={**back, "version": "1", "instructions": "Be brief."})
    assert fixed != version(a=lead, b={**back, "version": "2"})
