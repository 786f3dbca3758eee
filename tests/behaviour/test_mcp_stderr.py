"""What MCP servers write to their standard error: log lines of ours, in bounds, and nothing that stays behind."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from tests.support.client import text_of
from tests.support.scripted import script
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

TALKER = {
    "label": "talker",
    "command": sys.executable,
    "args": [str(Path(__file__).parent.parent / "support" / "mcp_talker.py")],
    "env": {"TALKER_KEY": "42"},
}


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """What is logged of the server's words."""
    found: list[dict[str, Any]] = []

    def keep(_logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
        if event["event"].startswith("mcp.said"):
            found.append({"level": method, **event})
        return event

    processors = structlog.get_config()["processors"]
    processors.insert(-1, keep)
    yield found
    processors.remove(keep)


def texts(lines: list[dict[str, Any]]) -> list[str]:
    """The texts of lines that were told."""
    return [line["text"] for line in lines if line["event"] == "mcp.said"]


def pipes() -> int:
    """How many pipes this process has open."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += str(each.readlink()).startswith("pipe:")
    return found


async def test_each_line_of_a_server_is_a_line_of_ours(serve: Any, lines: list[dict[str, Any]]) -> None:
    """With its label and no turn, whoever came first; a long line is cut, and says by how much."""
    client, _ = await serve(lead={"mcp": [TALKER]})
    said = [("say", {"text": "\x1b[2Jone\r\n\ntwo\u2028\xa0three\n"}), ("say", {"text": "x" * 5000 + "\n"})]
    frames = await client.turn("s1", script(said, "{results}"))
    assert text_of(frames) == "said | said "
    await wait_until(lambda: len(texts(lines)) == 4, "all lines")
    assert set(texts(lines)) == {"the key is 42", "\x1b[2Jone", "two\u2028\xa0three", "x" * 2000}
    assert all((line["level"], line["server"]) == ("info", "talker") for line in lines)
    assert not any("ref" in line for line in lines)
    assert [line.get("cut") for line in lines if "x" in line["text"]] == [3000]


async def test_a_server_that_says_very_much_is_read_to_its_end(
    serve: Any, lines: list[dict[str, Any]]
) -> None:
    """Megabytes without an end of line, and lines as fast as it can: it never waits for us, and little of it is told."""
    client, _ = await serve(lead={"mcp": [TALKER]})
    long = [("say", {"text": "x" * 1000, "times": 4000})]
    many = [("say", {"text": "\ny", "times": 300_000})]
    frames = await client.turn("s1", script(long, many, [("say", {"text": "\n"})], "{results}"))
    assert text_of(frames) == "said | said | said "

    def counted() -> int:
        return sum(line.get("lines", 1) for line in lines)

    # The greeting, the long one, and each "y".
    await wait_until(lambda: counted() == 300_002, "all to be counted")
    (long_line,) = (line for line in lines if "cut" in line)
    assert long_line["cut"] == 4_000_000 - 2000
    assert any(line["event"] == "mcp.said_more" for line in lines)
    assert all(len(text) <= 2000 for text in texts(lines))


async def test_nothing_is_left_of_a_server_that_was_killed(serve: Any, lines: list[dict[str, Any]]) -> None:
    """Its last words are told, though no end of line came, and the pipe is gone before the next server is there."""
    client, _ = await serve(lead={"mcp": [TALKER]})
    before = pipes()
    await client.turn("s1", script([("die", {"text": "help"})], "{results}"))
    await wait_until(lambda: "help" in texts(lines), "its last words")
    await wait_until(lambda: pipes() == before, "the pipe to be closed")
    assert text_of(await client.turn("s1", script([("say", {"text": "back\n"})], "{results}"))) == "said "
    await wait_until(lambda: "back" in texts(lines), "the next server's words")


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"command": sys.executable, "args": ["-S", "-c", "import sys; sys.exit('no key')"]}, ["no key"]),
        ({"command": "no-such-program"}, []),
    ],
)
async def test_a_server_that_does_not_start_says_why(
    serve: Any, lines: list[dict[str, Any]], server: dict[str, Any], said: list[str]
) -> None:
    """What it wrote is told, and its pipe is closed."""
    client, _ = await serve(lead={"mcp": [{"label": "talker", **server}]})
    before = pipes()
    assert text_of(await client.turn("s1", script("hello"))) == "hello "
    await wait_until(lambda: texts(lines) == said, "its words")
    await wait_until(lambda: pipes() == before, "the pipe to be closed")
