"""What docs/developing.md shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.commands import turnstream_in
from tests.support.serving import serve
from tests.unit.turnstream.test_project import python
from turnstream import testing

PAGE = (Path(__file__).parent.parent.parent / "docs" / "developing.md").read_text()


def blocks(language: str) -> list[str]:
    """The fenced blocks in that language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


async def test_its_tests_pass(tmp_path: Path) -> None:
    """In the folder that `init` writes, with the conftest and the tests of the page."""
    await turnstream_in(tmp_path, "init")
    conftest, tests = blocks("python")
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_shop.py").write_text(tests)
    code, out = await python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert (code, "3 passed" in out) == (0, True), out


async def test_its_commands_run(tmp_path: Path) -> None:
    """Each line of the blocks, with `turnstream dev` beside them; but for the tests, which are run above."""
    first, second = blocks("sh")
    assert first == "turnstream init\n"
    await turnstream_in(tmp_path, "init")
    async with serve(tmp_path, role="dev") as serving:
        chat, agents, client, pytest = (re.sub(r" +#.*", "", line) for line in second.splitlines())
        said = await turnstream_in(
            tmp_path, "chat", chat.partition('"')[2].strip('"'), TURNSTREAM_URL=serving.url
        )
        assert (said.code, said.out.strip()) == (0, re.findall(r"# (.*)", second)[0])
        words = agents.split()[1:]
        listed = await turnstream_in(tmp_path, *words, TURNSTREAM_URL=serving.url)
        assert "shop" in listed.out
    assert (client, pytest) == ("python client.py", "pytest")


def test_every_name_is_there() -> None:
    """The page tells of all that the package offers, and of nothing else."""
    for name in testing.__all__:
        assert getattr(testing, name) is not None
    for name in re.findall(r"`turn\.(\w+)", PAGE):
        assert hasattr(testing.Turn, name) or name in ("session", "reply", "id"), name
    for name in re.findall(r"`served\.(\w+)", PAGE):
        assert hasattr(testing.Served, name) or name == "url", name
