"""Lua scripts as Python calls them, and the rules that keep keys and scripts where they belong."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from tests.unit.shared.session.support import Desk, opened, ref
from turnstream.shared import api_keys, model_states, presence
from turnstream.shared.broker import keys
from turnstream.shared.broker.scripts import Script
from turnstream.shared.session import event_log, owner_limits, queue, storage, tasks, webhooks
from turnstream.shared.session.outcomes import Launch
from turnstream.shared.session.queue import redate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Place

ROOT = Path(__file__).parents[4]
PACKAGES = ("api", "worker", "shared", "turnstream")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
LUA = ROOT / "shared" / "lua"
MODULES = (api_keys, model_states, presence, event_log, owner_limits, queue, storage, tasks, webhooks)


def _declared() -> list[Script]:
    return [each for module in MODULES for each in vars(module).values() if isinstance(each, Script)]


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
    await redate(desk.primary, due=keys.DUE, ref="o1/s1/t1", look_ms=1_000, taken=1)
    assert await desk.primary.script_exists(redate.sha) == [True]


async def test_a_scripts_own_error_is_raised(place: Place) -> None:
    """Only a forgotten script is sent again; what fails in it fails."""
    desk = Desk(place)
    await desk.primary.set(keys.DUE, "no zset", px=60_000)
    with pytest.raises(ResponseError):
        await redate(desk.primary, due=keys.DUE, ref="o1/s1/t1", look_ms=1_000, taken=1)
    await desk.primary.delete(keys.DUE)


async def test_a_call_with_other_names_than_declared_is_an_error(place: Place) -> None:
    """A missing name and an unknown one are found before anything is sent, and the error says which."""
    desk = Desk(place)
    with pytest.raises(TypeError, match=r"redate\.lua .* missing: taken; unknown: $"):
        await redate(desk.primary, due=keys.DUE, ref="o1/s1/t1", look_ms=1_000)
    with pytest.raises(TypeError, match=r"redate\.lua .* missing: ; unknown: now$"):
        await redate(desk.primary, due=keys.DUE, ref="o1/s1/t1", look_ms=1_000, taken=1, now=2)
    with pytest.raises(TypeError, match=r"redate\.lua .* missing: due; unknown: queue$"):
        await redate(desk.primary, queue=keys.DUE, ref="o1/s1/t1", look_ms=1_000, taken=1)
    assert await desk.primary.keys("*") == []


@pytest.mark.parametrize("script", _declared(), ids=lambda script: script.name)
def test_a_script_uses_the_names_it_is_declared_with(script: Script) -> None:
    """All of them, and no local hides one."""
    code = _code(LUA / f"{script.name}.lua")
    names = [*script.keys, *script.args, *([f"{script.rest}_at"] if script.rest else [])]
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []
    if script.text.count("local META, "):
        # What every script on a session gets in front may be needed behind these.
        code += "\n".join(re.findall(r"^local .*", _code(LUA / "_session.lua"), re.MULTILINE))
    assert set(_locals(code)).isdisjoint(names)


def test_every_call_gives_the_declared_names() -> None:
    """Each script is called in its module, directly or through a function that takes it first; a type checker knows no names."""
    called = set()
    for module in MODULES:
        scripts = {name: each for name, each in vars(module).items() if isinstance(each, Script)}
        for call in ast.walk(_tree(Path(str(module.__file__)))):
            if not isinstance(call, ast.Call):
                continue
            if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
                # `on_session` takes a dict, and looks that through itself.
                called |= {each.name for name, each in scripts.items() if name == call.func.value.id}
            for node in (call.func, *call.args[:1]):
                if isinstance(node, ast.Name) and node.id in scripts:
                    script = scripts[node.id]
                    names = {*script.keys, *script.args, *filter(None, [script.rest])}
                    given = {keyword.arg for keyword in call.keywords}
                    assert given - {None} <= names, script.name
                    # A dict may have the others.
                    assert None in given or given == names, script.name
                    called.add(script.name)
    assert called == {script.name for script in _declared()}


def test_lua_knows_keys_and_arguments_by_name() -> None:
    """Only what there may be any number of is found by its index, counted from a named one."""
    numbered = {
        path.name: found
        for path in LUA.glob("*.lua")
        if (found := re.findall(r"\bKEYS\b|ARGV\[\d+\]|#ARGV - \d", _code(path)))
    }
    assert numbered == {}


def test_what_only_slow_paths_needs_is_made_in_it() -> None:
    """Each function at the top of a script costs something in each run."""
    for script in (tasks._renew, tasks._append):
        made = re.findall(r"^( *)local function (\w+)", script.text, re.MULTILINE)
        assert ("  ", "touch_session") in made
        assert ("", "touch_session") not in made


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


def _locals(code: str) -> Iterator[str]:
    """The names that Lua code declares: locals, functions and what they take, loops' variables."""
    declared = r"\blocal (?:function )?([\w, ]+)|\bfor ([\w, ]+) (?:in|=)|\bfunction(?: \w+)?\(([\w, ]*)\)"
    for groups in re.findall(declared, code):
        for group in groups:
            yield from re.findall(r"\w+", group)


def _code(path: Path) -> str:
    """A Lua file without its comments."""
    return re.sub(r"--.*", "", path.read_text())


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
