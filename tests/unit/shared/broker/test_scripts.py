"""Lua scripts as Python calls them, and the rules that keep keys and scripts where they belong."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from tests.unit.shared.session.support import Desk, opened, ref
from turnstream.shared.broker import keys
from turnstream.shared.broker.scripts import Script
from turnstream.shared.session.outcomes import Launch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Place

ROOT = Path(__file__).parents[4]
PACKAGES = ("api", "worker", "shared", "turnstream")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
LUA = ROOT / "shared" / "lua"


async def test_a_script_the_broker_forgot_is_sent_again(place: Place) -> None:
    """After a restart or SCRIPT FLUSH the next call works, and the ones after it by hash."""
    desk = Desk(place)
    await desk.submit(ref())
    await desk.redis.script_flush()
    assert isinstance(await desk.submit(ref("t1", "s2")), Launch)
    await desk.redis.script_flush()
    attempt = await desk.begin(ref())
    await desk.redis.script_flush()
    await desk.append(attempt, opened("m1"))
    await desk.redis.script_flush()
    await desk.launches.launch(ref(), 1)
    assert list(await desk.launches.claim(1)) == ["o1/s1/t1:1"]
    await desk.sound()


async def test_a_script_is_called_by_its_hash(real: Place) -> None:
    """The hash that is sent is the one by which the broker knows the script."""
    desk = Desk(real)
    script = Script("redate")
    await script(desk.primary, (keys.DUE,), ("o1/s1/t1", 1_000, 1))
    assert await desk.primary.script_exists(script.sha) == [True]


async def test_a_scripts_own_error_is_raised(place: Place) -> None:
    """Only a forgotten script is sent again; what fails in it fails."""
    desk = Desk(place)
    await desk.primary.set(keys.DUE, "no zset", px=60_000)
    with pytest.raises(ResponseError):
        await Script("redate")(desk.primary, (keys.DUE,), ("o1/s1/t1", 1_000, 1))
    await desk.primary.delete(keys.DUE)


def test_every_lua_file_has_one_python_caller() -> None:
    """No script lies around, and none is loaded twice."""
    called = [
        node.args[0].value
        for path in SOURCES
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Script"
        and isinstance(node.args[0], ast.Constant)
    ]
    files = [path.stem for path in LUA.glob("*.lua") if not path.stem.startswith("_")]
    assert sorted(map(str, called)) == sorted(files)


def test_lua_lies_only_in_its_folder() -> None:
    """No script is written inline."""
    inline = [
        f"{path.relative_to(ROOT)}: {text[:40]!r}"
        for path in SOURCES
        for text in _strings(path)
        if "redis.call(" in text
    ]
    assert not inline


def test_lua_never_touches_event_json() -> None:
    """Scripts pass events through; cjson would turn an empty list into an empty object."""
    assert not [path.name for path in LUA.glob("*.lua") if "cjson" in path.read_text()]


def test_keys_are_spelled_in_one_file() -> None:
    """Only shared/broker/keys.py knows what a key looks like; scripts get theirs."""
    spelled = [
        f"{path.relative_to(ROOT)}: {text!r}"
        for path in SOURCES
        if path != ROOT / "shared" / "broker" / "keys.py"
        for text in _strings(path)
        if re.match(r"(ts|arq):", text)
    ]
    assert not spelled
    assert not [path.name for path in LUA.glob("*.lua") if re.search(r"['\"]ts:", path.read_text())]


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _strings(path: Path) -> Iterator[str]:
    """The strings of a module that are no docstrings."""
    tree = _tree(path)
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documentation:
            if isinstance(node.value, str):
                yield node.value
            elif isinstance(node.value, bytes):
                yield node.value.decode("utf-8", "replace")
