"""`turnstream replay`: a recorded turn, said to another agent, with what differs."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.client import calls_of
from tests.support.commands import turnstream
from tests.support.stack import Stack
from turnstream.admin import Admin
from turnstream.replay import replay
from turnstream.shared.agents import config
from turnstream.shared.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Place

AGENTS = """
[agents.old]
model = "demo"
tools = ["replayed_old:discount"]

[agents.changed]
model = "demo"
tools = ["replayed_changed:discount"]

[agents.new]
python = "replayed_changed:new"
"""

OLD = '''
def discount(a: float, b: float) -> float:
    """Lower a price."""
    return a - b
'''

CHANGED = '''
from turnstream import ClientCall, agent

def discount(a: float, b: float) -> float:
    """Lower a price."""
    return a * b

@agent
async def new(turn):
    if "weather" not in turn.results:
        yield ClientCall("weather", {"city": "Bern"}, key="weather")
    if "time" not in turn.results:
        yield ClientCall("time", {}, key="time")
    yield f"It is {turn.results['weather']}."
'''


@pytest.mark.parametrize("backend", ["fakeredis"])
async def test_a_recorded_turn_is_said_again(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same agent does the same; a changed tool and another agent are shown as a diff. The client's answers are the recorded ones."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "agents.toml").write_text(AGENTS)
    (tmp_path / "replayed_old.py").write_text(OLD)
    (tmp_path / "replayed_changed.py").write_text(CHANGED)
    stack = Stack(place, config.load(tmp_path / "agents.toml"), dev_agent="old")
    await stack.worker()
    client = await stack.front_end()
    admin = Admin(client.base_url, stack.settings())
    try:

        async def again(task: str, agent: str = "") -> tuple[list[str], list[str]]:
            found = await asyncio.to_thread(replay, admin, client.base_url, f"dev/s1/{task}", agent)
            assert found.ref.startswith("replay/")
            return found.diff, found.after.lines

        await client.turn("s1", "/tool discount 80 25", id="t1")
        async with client.process("s1", '/call weather {"city": "Bern"}', id="t2") as stream:
            (call,) = calls_of(await stream.until(calls_of))
            with pytest.raises(ConfigurationError, match="only turns that have ended"):
                await again("t2")
            await client.callback("s1", call["call_id"], "rain")
            await stream.all()

        assert (await again("t1"))[0] == []
        assert (await again("t2"))[0] == []
        diff, lines = await again("t1", "changed")
        assert diff[0] == "--- dev/s1/t1 (old)"
        assert [line for line in diff if "→" in line] == ["-  → 55.0", "+  → 2000.0"]
        assert lines == ['calls discount {"a": 80, "b": 25}', "  → 2000.0", "says The result is 2000.0."]
        diff, _ = await again("t2", "new")
        assert ' calls weather {"city": "Bern"}' in diff
        assert "-says The result is rain." in diff
        assert "+says It is rain." in diff
        # What was not called then has no known result.
        assert "+calls time {}" in diff

        env = {"TURNSTREAM_ADMIN_KEY": stack.admin, "TURNSTREAM_URL": client.base_url}
        same, other, nobody, missing = await asyncio.gather(
            turnstream("replay", "dev/s1/t1", **env),
            turnstream("replay", "dev/s1/t1", "--agent", "changed", "--json", **env),
            turnstream("replay", "dev/s1/t1", "--agent", "nobody", **env),
            turnstream("replay", "dev/s1/t9", **env),
        )
        assert (same.code, other.code, nobody.code, missing.code) == (0, 1, 3, 4)
        assert same.out.startswith("no difference: replay/")
        told = json.loads(other.out)
        assert (told["same"], told["agent"], told["after"]) == (False, "changed", lines)
        # Each key is revoked once it has served.
        keys = (
            await client.http.get("/admin/v1/keys", headers={"Authorization": f"Bearer {stack.admin}"})
        ).json()
        assert "replay" not in {key["owner"] for key in keys["keys"]}
    finally:
        admin.close()
        await stack.close()
        for name in ("replayed_old", "replayed_changed"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize("ref", ["t1", "a/b", "a/b/c/d"])
async def test_a_ref_is_a_ref(ref: str) -> None:
    """As with `turnstream tasks show`."""
    wrong = await turnstream("replay", ref, TURNSTREAM_ADMIN_KEY="sk-" + "0" * 32)
    assert (wrong.code, "OWNER/SESSION/TASK" in wrong.err) == (2, True)
