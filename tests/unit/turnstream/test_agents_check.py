"""``turnstream agents check``: what is wrong is named with file, line and field; what is right is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from turnstream.agents import check
from turnstream.shared.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = """\
[agents.support]
model = "openai:test"
base_url = "http://127.0.0.1:9/v1"
tools = ["tests.support.fake_provider.tools:get_weather", "tests.support.fake_provider.tools:pay"]
subagents = ["helper"]
allow_overrides = ["temperature", "tools"]
memory = { turns = 20, tokens = 4000 }

[[agents.support.client_tools]]
name = "pick_color"

[agents.helper]
model = "demo"
busy = "parallel"

[agents.coded]
python = "tests.support.coded:guide"
allow_overrides = false
strict_overrides = true
"""


_BANK = "[agents.a]\npython = 'tests.support.bank:teller'\n"


def written(folder: Path, text: str) -> Path:
    """An agents file."""
    path = folder / "agents.toml"
    path.write_text(text)
    return path


def test_a_right_file_is_shown_as_a_table(tmp_path: Path) -> None:
    """A row for each of its agents, none for those that are built in."""
    lines = check(written(tmp_path, RIGHT)).splitlines()
    assert [line.split()[0] for line in lines] == ["AGENT", "support", "helper", "coded"]
    assert lines[1].split() == [
        "support",
        "openai:test",
        "2",
        "1",
        "0",
        "1",
        "serial",
        "temperature,",
        "tools",
    ]
    assert "tests.support.coded:guide" in lines[3]
    assert lines[2].endswith("all but model")
    assert lines[3].endswith("nothing, all else is 422")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[agents.a\n", (":1: Expected ']' at the end of a table declaration (column 10)",)),
        ("# ours\n[agents.a]\ntools = [\n'a:b'\n[agents.b]\n", (":5: Unclosed array (column 1)",)),
        ("[agents.a]\nmodel = 'demo'\nmodel =\n", (":3: Invalid value (column 8)",)),
        (
            '[agents.a]\ninstructions = """\nBe brief\n\n',
            (":3: Unterminated string (at the end of the file)",),
        ),
        ("[agent.a]\nmodel = 'demo'\n", (":1: agent:",)),
        ("[agents]\na = 3\n", (":2: agents.a:",)),
        (
            '[models."a:b"]\nmax_concurent = 3\n',
            (":2: models.a:b.max_concurent", "did you mean 'max_concurrent'?"),
        ),
        (
            '[models."a:b"]\nmax_concurrent = 0\n',
            (":2: models.a:b.max_concurrent", "greater than or equal to 1"),
        ),
        ("models = 3\n", (":1: models: must be tables",)),
        (
            "[agents.a]\nmodel = 'demo'\nfallback = ['gpt-5']\n",
            (":3: agents.a.fallback.0: ", "does not name its provider"),
        ),
        (
            "[agents.a]\nmodel = 'demo'\nfallback = [{ model = 'demo', base_ulr = 'x' }]\n",
            (":3: agents.a.fallback.0.base_ulr", "did you mean 'base_url'?"),
        ),
        ("\n[agents.a]\ninstructions = 'x'\n", (":2: agents.a: ", "give either model or python")),
        ("[agents.a]\nmodel = 'demo'\nmodle = 'x'\n", (":3: agents.a.modle:", "did you mean 'model'?")),
        ("[agents.a]\nmodel = 'demo'\ntools = 'a:b'\n", (":3: agents.a.tools: must be a list",)),
        (
            "[agents.a]\nmodel = 'demo'\nmemory = 20\nsettings = 3\n",
            (
                ":3: agents.a.memory: must be a table, with some of the fields turns, tokens",
                ":4: agents.a.settings: must be a table",
            ),
        ),
        (
            "[agents.a]\nmodel = 'demo'\nfallback = [3]\n",
            (":3: agents.a.fallback.0: must be a table, with some of the fields model, ",),
        ),
        (
            '[models]\n"a:b" = 3\n',
            (":2: models.a:b: must be a table, with some of the fields max_concurrent",),
        ),
        (
            "[agents.a]\nmodel = 'demo'\ntools = ['a.b']\n",
            (":3: agents.a.tools.0: must be of the form 'module:name'",),
        ),
        ("[agents.a]\nmodel = 'gpt-5-mini'\n", (":2: agents.a.model:", "'openai:gpt-5-mini'")),
        (
            "[agents.a]\nmodel = 'openai:x'\nbase_url = '127.0.0.1/v1'\n",
            (":3: agents.a.base_url: must begin with http",),
        ),
        ("[agents.'a b']\nmodel = 'demo'\n", (":1: agents.a b.name: must be a name of letters",)),
        (
            "[agents.a]\nmodel = 'demo'\ntools = ['tests.support.fake_provider.quits:x']\n",
            (":3: agents.a.tools:", "SystemExit"),
        ),
        (
            "[agents.a]\nmodel = 'demo'\nsubagents = ['f']\n[[agents.a.client_tools]]\nname = 'f'\n[agents.f]\nmodel = 'demo'\n",
            (":1: agents.a:", "client tool and of a sub-agent: f"),
        ),
        (
            "[agents.a]\nmodel = 'demo'\ncritics = ['b', 'b']\n[agents.b]\nmodel = 'demo'\n",
            (":3: agents.a.critics: named twice: b",),
        ),
        (
            "[agents.a]\npython = 'tests.support.coded:scripted'\n[[agents.a.client_tools]]\nname = 'add'\n",
            (":3: agents.a.client_tools: 'add' is the name of a server tool too",),
        ),
        ("[agents.a]\nmodel = 'demo'\nbusy = 'sometimes'\n", (":3: agents.a.busy:", "serial")),
        (
            f"{_BANK}[agents.a.on_lost]\n# what becomes of it\nbook = 'tel'\n",
            (":5: agents.a.on_lost.book: must be 'rerun', 'tell', 'ask', or the 'module:name'",),
        ),
        (
            f"{_BANK}[agents.a.on_lost]\nlook = 'tell'\nboook = 'tell'\n",
            (":5: agents.a.on_lost.boook: there is no such server tool",),
        ),
        (
            f"{_BANK}[agents.a.on_lost]\nbook = 'tests.support.bank:fnid'\n",
            (":4: agents.a.on_lost.book: 'tests.support.bank:fnid' cannot be loaded",),
        ),
        (
            f"{_BANK}[agents.a.on_lost]\nbook = 'tests.support.bank:ADDRESS'\n",
            (":4: agents.a.on_lost.book: 'tests.support.bank:ADDRESS' is not a function",),
        ),
        (
            f"{_BANK}[[agents.a.mcp]]\nlabel = 'm'\ncommand = 'x'\n[agents.a.mcp.on_lost]\nf = 'no.such:x'\n",
            (":7: agents.a.mcp.0.on_lost.f: 'no.such:x' cannot be loaded",),
        ),
        (
            "[agents.a]\npython = 'tests.support.bank:clerk'\non_lost = { book = 'tell' }\n",
            (":3: agents.a.on_lost: an async generator calls what it needs by itself",),
        ),
        ("[agents.a]\nmodel = 'demo'\n\nmemory.turns = -1\n", (":4: agents.a.memory.turns:",)),
        ("[agents.a]\nmodel = 'demo'\nmemory = { turns = -1 }\n", (":3: agents.a.memory.turns:",)),
        ("[agents.a]\nmodel = 'demo'\nallow_overrides = ['n']\n", (":3: agents.a.allow_overrides.0:",)),
        ("[agents.a]\nmodel = 'demo'\ncritics = ['b']\n", (":3: agents.a.critics:", "'b'")),
        (
            "[agents.a]\nmodel = 'openai:x'\nbase_url = 'http://x'\napi_key_env = 'NO_KEY'\n",
            (":4:", "NO_KEY"),
        ),
        ("[agents.a]\nmodel = 'nobody:x'\n", (":2: agents.a.model:", "nobody:x")),
        ("[agents.a]\nmodel = 'demo'\ntools = ['no.such:tool']\n", (":3: agents.a.tools:", "no.such")),
        (
            "[agents.a]\nmodel = 'demo'\ntools = ['tests.support.fake_provider.tools:called']\n",
            (":3:", "not a function"),
        ),
        ("[agents.a]\nmodel = 'demo'\n[agents.a.settings]\ntemprature = 1\n", (":3:", "temprature")),
        (
            "[agents.a]\nmodel = 'demo'\nsettings = { temperature = nan }\n",
            (":3: agents.a.settings: 'temperature': nan and inf are no JSON",),
        ),
        (
            "[agents.a]\nmodel = 'demo'\n[agents.a.settings]\nextra_body = { since = 2026-01-01 }\n",
            ("agents.a.settings: 'extra_body': dates and times are no JSON",),
        ),
        (
            "[agents.a]\nmodel = 'demo'\nsettings = { max_tokens = 'many' }\n",
            (":3: agents.a.settings: 'max_tokens': Input should be a valid integer",),
        ),
        (
            "[agents.a]\nmodel = 'demo'\nsettings = { max_tokens = 1000.5 }\n",
            (":3: agents.a.settings: 'max_tokens': Input should be a valid integer",),
        ),
        (
            "[agents.a]\nmodel = 'demo'\nsettings = { stop_sequences = 5 }\n",
            (":3: agents.a.settings: 'stop_sequences': Input should be a valid list",),
        ),
        *(
            (
                (
                    "[agents.a]\nmodel = 'demo'\n[[agents.a.client_tools]]\nname = 'f'\n"
                    f"parameters = {{ type = 'object', properties = {{ x = {{ default = {value} }} }} }}\n"
                ),
                (":5: agents.a.client_tools.0.parameters: ", why),
            )
            for value, why in (("nan", "nan and inf"), ("2026-01-01", "dates and times"))
        ),
        ("[agents.a]\npython = 'tests.support.coded:not_an_agent'\n", (":2: agents.a.python:", "neither")),
        (
            "[agents.a]\npython = 'tests.support.coded:needy'\n",
            (":2: agents.a.python:", "deps_type Shop", "deps = 'module:function'"),
        ),
        (
            "[agents.a]\npython = 'tests.support.structured:needy'\ndeps = 'tests.support.structured:nowhere'\n",
            (":3: agents.a.deps:", "nowhere"),
        ),
        (
            "[agents.a]\npython = 'tests.support.structured:needy'\ndeps = 'tests.support.structured:_MODEL'\n",
            (":3: agents.a.deps:", "not a function"),
        ),
        (
            "[agents.a]\npython = 'tests.support.coded:odd'\ndeps = 'tests.support.structured:open_shop'\n",
            (":3: agents.a.deps:", "async generator"),
        ),
        ("[agents.a]\nmodel = 'demo'\ndeps = 'a:b'\n", (":1: agents.a:", "deps are for python agents")),
        (
            "[agents.a]\nmodel = 'demo'\noutput_schema = { type = 'string' }\n",
            (":3: agents.a.output_schema:", "an object"),
        ),
        (
            "[agents.a]\nmodel = 'demo'\noutput_schema = { type = 'object', properties = 3 }\n",
            (":3: agents.a.output_schema:", "JSON Schema"),
        ),
        (
            (
                "[agents.a]\nmodel = 'demo'\n[agents.a.output_schema]\ntype = 'object'\n"
                "properties = { next = { '$ref' = '#/$defs/a' } }\n"
                "'$defs' = { a = { type = 'object', properties = { next = { '$ref' = '#/$defs/a' } } } }\n"
            ),
            (":3: agents.a.output_schema:", "recursive"),
        ),
        (
            "[agents.a]\npython = 'tests.support.coded:scripted'\nallow_overrides = true\n",
            (":3: agents.a.allow_overrides:", "'model'"),
        ),
        (
            (
                "[agents.a]\nmodel = 'demo'\ninstructions = '''\n[agents.b]\nmodel = 3\n'''\n"
                "[[agents.a.client_tools]]\nname = 'f'\n[[agents.a.client_tools]]\nname = 'g'\n"
                "[agents.a.client_tools.parameters]\ntype = 'object'\nproperties = 3\n"
            ),
            (":11: agents.a.client_tools.1.parameters:", "JSON Schema"),
        ),
        (
            "[agents.a]\nmodel = 'demo'\ntools = ['tests.support.fake_provider.tools:pay']\n[[agents.a.client_tools]]\nname = 'pay'\n",
            (":4: agents.a.client_tools:", "'pay'"),
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, named: tuple[str, ...]) -> None:
    """File, line and field stand in front of what is wrong."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as wrong:
        check(path)
    assert str(path) in wrong.value.public_text
    for words in named:
        assert words in wrong.value.public_text


LEDGER = '''
import datetime
from collections.abc import Callable

from pydantic_ai import RunContext


class Ledger:
    """No type that JSON has."""


def pay(
    ctx: RunContext[Ledger], amount: float, at: datetime.date, ledger: Ledger, then: Callable[[int], str]
) -> Ledger:
    """Pay."""
    return ledger
'''


def test_a_tool_that_json_has_no_types_for_is_named_with_its_parameters(tmp_path: Path) -> None:
    """One line, in words; what the library passes itself, and what is returned, may be of any type."""
    (tmp_path / "ledger_tools.py").write_text(LEDGER)
    path = written(tmp_path, "[agents.a]\nmodel = 'demo'\ntools = ['ledger_tools:pay']\n")
    with pytest.raises(ConfigurationError) as wrong:
        check(path)
    assert wrong.value.public_text == (
        f"{path}:3: agents.a.tools: 'ledger_tools:pay' cannot be a tool: JSON has no type for "
        "'ledger: ledger_tools.Ledger', 'then: collections.abc.Callable[[int], str]' of its parameters: "
        "use str, int, float, bool, list, dict, an Enum, a dataclass or a pydantic model"
    )


@pytest.mark.parametrize(
    "field",
    [
        "api_key_env = 'sk-0123456789'",
        "mcp = [{ label = 'a', url = 'http://x', headers_env = { A = 'sk-0123456789' } }]",
    ],
)
def test_a_key_that_stands_in_the_file_is_not_repeated(tmp_path: Path, field: str) -> None:
    """People put it where the variable's name belongs; what is printed may end up in a ticket."""
    with pytest.raises(ConfigurationError) as wrong:
        check(written(tmp_path, f"[agents.a]\nmodel = 'openai:x'\n{field}\n"))
    assert "must be the name of an environment variable" in wrong.value.public_text
    assert "sk-0123456789" not in wrong.value.public_text


def test_a_misspelt_provider_is_told_without_a_guess_at_another_one(tmp_path: Path) -> None:
    """The library suggests whichever of all its providers' models is spelt alike."""
    with pytest.raises(ConfigurationError) as wrong:
        check(written(tmp_path, "[agents.a]\nmodel = 'opnai:gpt-5'\n"))
    assert "'opnai:gpt-5' cannot be used: " in wrong.value.public_text
    assert "Did you mean" not in wrong.value.public_text


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    """A line each, over all agents, so that one look at the file is enough."""
    path = written(tmp_path, "[agents.a]\nmodel = 'demo'\nbusy = 1\ndeadline = 0\n[agents.b]\nmodel = 3\n")
    with pytest.raises(ConfigurationError) as wrong:
        check(path)
    places = [line.split(": ")[1] for line in wrong.value.public_text.splitlines()]
    assert places == ["agents.a.busy", "agents.a.deadline", "agents.b.model"]


def run(path: Path | None) -> subprocess.CompletedProcess[str]:
    """The command as a shell runs it, the file named by the environment."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTREAM_")}
    if path is not None:
        variables["TURNSTREAM_AGENTS"] = str(path)
    return subprocess.run(
        [sys.executable, "-m", "turnstream", "agents", "check"],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_right_file_ends_the_command_with_0(tmp_path: Path) -> None:
    """And the table is printed."""
    done = run(written(tmp_path, RIGHT))
    assert (done.returncode, done.stderr) == (0, "")
    assert "support" in done.stdout


def test_a_wrong_file_ends_the_command_with_2(tmp_path: Path) -> None:
    """And what is wrong stands on stderr, without a traceback."""
    done = run(written(tmp_path, "[agents.a]\n"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "agents.toml:1: agents.a: " in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_file_there_is_nothing_to_check() -> None:
    """Neither a path nor the variable: said in words."""
    done = run(None)
    assert done.returncode == 2
    assert "TURNSTREAM_AGENTS" in done.stderr


def test_settings_of_the_right_kinds_are_taken(tmp_path: Path) -> None:
    """Whole numbers where fractions may stand, lists, tables, and what only one provider knows."""
    settings = (
        "{ temperature = 1, timeout = 5, max_tokens = 100, stop_sequences = ['END'], thinking = true, "
        "extra_body = { x = [1] }, extra_headers = { A = 'b' }, openai_reasoning_effort = 'low' }"
    )
    check(written(tmp_path, f"[agents.a]\nmodel = 'demo'\nsettings = {settings}\n"))


def test_settings_that_endpoints_take_as_well_are_taken(tmp_path: Path) -> None:
    """One stop sequence by itself, whole numbers written as fractions, fractions of a bias."""
    settings = (
        "{ stop_sequences = 'END', max_tokens = 1000.0, seed = 1e3, logit_bias = { 50256 = -99.5, 1 = 2 } }"
    )
    check(written(tmp_path, f"[agents.a]\nmodel = 'demo'\nsettings = {settings}\n"))


TOOLS = '''
from pydantic_ai import Agent

def discount(code, percent: int):
    return code

own = Agent("test")

@own.tool_plain
def fine(city: str) -> str:
    """Look outside."""
    return city
'''

DOUBTFUL = """\
[agents.shop]
model = "demo"
tools = ["doubtful_tools:discount"]

[[agents.shop.mcp]]
label = "files"
command = "no-such-program-anywhere"

[agents.own]
python = "doubtful_tools:own"
"""


def test_what_is_most_likely_a_mistake_is_warned_of(tmp_path: Path) -> None:
    """Tools without annotations or docstring, a program that is not there; a coded agent's own tools are counted."""
    (tmp_path / "doubtful_tools.py").write_text(TOOLS)
    path = written(tmp_path, DOUBTFUL)
    lines = check(path).splitlines()
    assert lines[2].split()[:3] == ["own", "doubtful_tools:own", "1"]
    assert lines[3:] == [
        f"warning: {path}:7: agents.shop.mcp.0.command: there is no program 'no-such-program-anywhere' on this machine",
        f"warning: {path}:3: agents.shop.tools: the tool 'discount' has no annotation for code: its model may pass anything",
        f"warning: {path}:3: agents.shop.tools: the tool 'discount' has no docstring: its model learns its purpose from that",
    ]


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import os\nTOKEN = os.environ['MISSING_TOKEN']\n", ":2: KeyError('MISSING_TOKEN')"),
        ("x = 1\n\nimport no_such_package\n", ":3: No module named 'no_such_package'"),
        ("def f(:\n    pass\n", ":1: invalid syntax"),
        ("class Odd(BaseException): pass\n\nraise Odd('no')\n", ":3: Odd('no')"),
    ],
)
def test_a_module_that_fails_is_named_with_its_own_line(tmp_path: Path, code: str, line: str) -> None:
    """What a module raises while it is imported is found there, not in the agents file."""
    name = f"failing_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(code)
    with pytest.raises(ConfigurationError) as error:
        check(written(tmp_path, f'[agents.a]\nmodel = "demo"\ntools = ["{name}:f"]\n'))
    assert f"{name}.py{line}" in error.value.public_text


def test_a_file_without_agents_is_warned_of(tmp_path: Path) -> None:
    """It is allowed, since there is the demo agent, and most likely the wrong file."""
    path = written(tmp_path, "# agents\n")
    assert check(path).splitlines()[1:] == [
        f"warning: {path}: there is no agent in it: a table [agents.NAME] makes one"
    ]


def test_a_limit_for_a_model_that_no_agent_has_is_a_warning(tmp_path: Path) -> None:
    """It is most likely misspelled; those of fallbacks and of code are known, too."""
    text = (
        RIGHT.replace("tools = [", 'fallback = ["demo"]\ntools = [', 1)
        + "".join(
            f'[models."{name}"]\nmax_concurrent = 3\n'
            for name in ("openai:test@127.0.0.1:9", "demo", "function:scripted", "openai:test")
        )
        + "[agents.scripted]\npython = 'tests.support.scripted:player'\nallow_overrides = false\n"
    )
    warnings = [line for line in check(written(tmp_path, text)).splitlines() if line.startswith("warning")]
    assert [line.rpartition(":27: ")[2] for line in warnings] == [
        "models.openai:test: no agent has this model"
    ]
