"""What is logged: enough to find a request and its turn again, and nothing of what anybody said."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import pexpect
import pytest
import structlog

from tests.support.client import calls_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.client import Client
    from tests.support.stack import Stack

CANARY = "Kanarienvogel"


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """Everything that is logged, with its context."""
    found: list[dict[str, Any]] = []

    def keep(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
        found.append(dict(event))
        return event

    processors = structlog.get_config()["processors"]
    # In place: loggers that were made already keep this list.
    processors.insert(-1, structlog.processors.format_exc_info)
    processors.insert(-1, keep)
    yield found
    del processors[-3:-1]


async def test_nothing_that_anybody_says_is_logged(client: Client, lines: list[dict[str, Any]]) -> None:
    """Turns that work, fail, call and are malformed: neither the user's words nor the agent's get into a log."""
    await client.turn("s1", f"{CANARY} sings", id="t1")
    await client.turn("s1", f"/fail {CANARY}", id="t2")
    async with client.process("s2", f'/call f {{"bird": "{CANARY}"}}', id="t3") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        await client.callback("s2", call["call_id"], CANARY)
        await stream.all()
    for body in (f'{{"input": {CANARY}', f'{{"input": [{{"role": "{CANARY}", "content": 7}}]}}'):
        assert (await client.http.post("/process", content=body)).status_code == 422
    assert any(line["event"] == "agent.failed" for line in lines)
    assert not [line for line in lines if CANARY in str(line)]


async def test_lines_say_of_what_they_speak(
    client: Client, stack: Stack, lines: list[dict[str, Any]]
) -> None:
    """A worker's line names task, attempt and worker; a front end's names the request, as its answer does."""
    await client.turn("s1", "/fail x", id="t1")
    failed = next(line for line in lines if line["event"] == "agent.failed")
    (worker, _) = stack.workers[0]
    assert (failed["ref"], failed["attempt"], failed["worker"]) == ("dev/s1/t1", 1, worker.id)

    admin = stack.client(client.base_url, stack.admin)
    named = await admin.http.post("/admin/v1/tasks/dev/s1/t1/stop", headers={"X-Request-ID": "proxy-7"})
    assert named.headers["x-request-id"] == "proxy-7"
    stopped = next(line for line in lines if line["event"] == "admin.stopped")
    assert stopped["request"] == "proxy-7"
    for wrong in ("", "a b", "x" * 200, "<script>"):
        answer = await client.http.get("/healthz", headers={"X-Request-ID": wrong})
        assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])


TERMINAL = """
import structlog
from turnstream import logs
logs.configure()
structlog.get_logger().info("task.ended", worker="w1", attempt=1, status="completed", agent="shop", ref="dev/s1/t1")
structlog.get_logger().info("mcp.said", server="files", text="\\x1b[2J\\x9bgone\\u202e")
"""


def test_at_a_terminal_a_line_begins_with_its_turn() -> None:
    """The time of day, what happened, and then `ref`, agent and status before all else; no JSON, and nothing obeyed."""
    child = pexpect.spawn(sys.executable, ["-c", TERMINAL], encoding="utf-8", dimensions=(24, 200))
    child.expect(pexpect.EOF)
    line, said = re.sub(r"\x1b\[[0-9;]*m", "", child.before or "").strip().splitlines()
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d \[info *\] task\.ended +ref=dev/s1/t1 agent=shop status=completed worker=w1 attempt=1",
        line,
    )
    assert said.endswith(r"server=files text=\u001b[2J\u009bgone\u202e")
