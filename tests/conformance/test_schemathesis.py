"""What schemathesis makes of the OpenAPI document, sent to a running deployment: no 5xx, nothing undocumented.

A short run is part of the suite; `make fuzz MINUTES=10` runs the same for longer.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.openapi import document
from shared.agents import Agents, AgentSpec
from shared.api_keys import ApiKeys, make_token
from tests.client import calls_of
from tests.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.client import Client
    from tests.conftest import Place

MINUTES = float(os.environ.get("FUZZ_MINUTES", "0"))

# Examples of each operation in one round, and rounds in the suite. A stream is held for a second, so the
# operations are tried side by side.
EXAMPLES = 12
THREADS = 8
# No answer takes longer than this between two bytes; heartbeats come more often.
SILENCE_SECONDS = 10

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

# Each is quick, or ended by its agent's deadlines.
COMMANDS = ["hello", "/tokens 3", "/tool add 1 2", "/call f {}", "/approve", "/think", "/dispatch", "/fail x"]

# What a request may not set with these agents, so that most bodies would be refused for it alone.
OVERRIDES = ("model", "top_p", "temperature", "frequency_penalty", "presence_penalty", "max_tokens")
REFUSED = (*OVERRIDES, "stop", "n", "seed", "tools")


def hurried(name: str, busy: Any) -> AgentSpec:
    """A demo agent whose turns end soon, whatever they wait for."""
    return AgentSpec(
        name=name,
        model="demo",
        tools=("worker.agents.demo:add", "worker.agents.demo:delete_everything"),
        subagents=("researcher",),
        busy=busy,
        deadline=2,
        callback_deadline=1,
        images=True,
    )


AGENTS = Agents(
    {
        spec.name: spec
        for spec in (
            hurried("demo", "parallel"),
            hurried("serial", "serial"),
            hurried("rejecting", "reject"),
            AgentSpec(name="researcher", model="demo"),
        )
    }
)


class Pool:
    """Values that name something: without them nearly every request would meet a 404."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.sessions: list[str] = []
        self.tasks: list[str] = []
        self.cursors: list[str] = []
        self.calls: list[str] = []

    async def fill(self, client: Client, session: str) -> None:
        """Make a session with an ended turn and one that asked its client."""
        self.sessions.append(session)
        for task, command in (("t1", "/tokens 3"), ("t2", "/call f {}")):
            async with client.process(session, command, id=task) as stream:
                frames = await stream.all()
            self.tasks.append(task)
            self.cursors += [frames[2].id, frames[-1].id]
            self.calls += [call["call_id"] for call in calls_of(frames)]

    def steer(self, draw: Callable[[Any], Any], case: Case) -> None:
        """Put known values into a generated request, most of the time."""

        def put(where: dict[str, Any], name: str, values: list[str]) -> None:
            if values and draw(st.integers(0, 3)):
                where[name] = draw(st.sampled_from(values))

        names = {"sessionId": self.sessions, "session_id": self.sessions, "taskId": self.tasks}
        names |= {"response_id": self.tasks, "cursor": self.cursors}
        if isinstance(case.query, dict):
            for name in ("sessionId", "session_id", *case.query):
                if name in names and name in PARAMETERS[case.operation.label]:
                    put(case.query, name, names[name])
        if "Last-Event-ID" in case.headers:
            put(case.headers, "Last-Event-ID", self.cursors)
        body = case.body
        if not isinstance(body, dict) or not draw(st.integers(0, 3)):
            return
        if case.path == "/process":
            for name in REFUSED:
                body.pop(name, None)
            for name, values in (("session_id", self.sessions), ("id", self.tasks)):
                if body.get(name):
                    put(body, name, values)
            if draw(st.booleans()):
                body["input"] = [{"role": "user", "content": draw(st.sampled_from(COMMANDS))}]
            elif draw(st.booleans()):
                data = {"call_id": draw(st.sampled_from(self.calls)), "output": "x"}
                content = [{"type": "data", "data": data}]
                body["input"] = [{"role": "tool", "type": "function_call_output", "content": content}]
        elif case.path.endswith("/chat"):
            body["content"] = [{"type": "text", "message": draw(st.sampled_from(COMMANDS))}]
        else:
            put(body, "id", self.calls)


SCHEMA = schemathesis.openapi.from_dict(orjson.loads(orjson.dumps(document())))
SCHEMA.config.generation.update(with_security_parameters=False)
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]
PARAMETERS = {each.label: {one.name for one in each.query} for each in OPERATIONS}


class Fuzzer:
    """Sends requests until told to end, and keeps what was wrong with the answers, once per kind."""

    def __init__(self, base_url: str, pool: Pool) -> None:
        self._base_url = base_url
        self._pool = pool
        self.wrong: dict[str, str] = {}
        self.seen: dict[str, Counter[int]] = defaultdict(Counter)

    def run(self, minutes: float) -> None:
        """Try every operation in rounds; one round when no time is given."""
        end = time.monotonic() + minutes * 60
        number = 0
        with ThreadPoolExecutor(THREADS) as threads:
            while not number or time.monotonic() < end:
                turn = number
                list(threads.map(lambda each, turn=turn: self._try(each, turn), OPERATIONS))  # type: ignore[misc]
                number += 1

    def _try(self, operation: Any, number: int) -> None:
        modes = list(GenerationMode) if operation.body or operation.query else [GenerationMode.POSITIVE]
        strategies = {mode: operation.as_strategy(generation_mode=mode) for mode in modes}

        @st.composite
        def cases(draw: Callable[[Any], Any]) -> tuple[Case, str]:
            case: Case = draw(strategies[draw(st.sampled_from([*modes, GenerationMode.POSITIVE]))])
            self._pool.steer(draw, case)
            return case, draw(st.sampled_from(self._pool.keys))

        @seed(number)
        @settings(
            max_examples=EXAMPLES,
            phases=[Phase.generate],
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(cases())
        def send(made: tuple[Case, str]) -> None:
            self._send(*made)

        send()

    def _send(self, case: Case, key: str) -> None:
        label = case.operation.label
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            answer = case.call(base_url=self._base_url, headers=headers, timeout=SILENCE_SECONDS)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            return  # our side cannot send it
        except requests.exceptions.RequestException as error:
            self._note(case, type(error).__name__, str(error))
            return
        self.seen[label][answer.status_code] += 1
        try:
            case.validate_response(answer, checks=CHECKS)
        except (schemathesis.errors.SchemathesisError, AssertionError, Exception) as error:
            self._note(case, f"{type(error).__name__} {answer.status_code}", str(error))

    def _note(self, case: Case, kind: str, text: str) -> None:
        self.wrong.setdefault(f"{case.operation.label}: {kind}", f"{text}\n{case.as_curl_command()}")


@pytest.fixture
async def hurried_stack(place: Place) -> Any:
    """A deployment whose streams and turns end soon."""
    stack = Stack(place, AGENTS, stream_seconds=1, heartbeat_seconds=0.5, max_waiting=1)
    yield stack
    await stack.close()


async def test_generated_requests_are_answered_as_documented(hurried_stack: Stack) -> None:
    """No generated request meets a 5xx, or a status, media type, header or body that is not documented."""
    stack = hurried_stack
    await stack.worker()
    client = await stack.front_end()
    pool = Pool()
    pool.keys = [stack.key, stack.admin, make_token(), ""]
    await pool.fill(client, "s1")
    for agent in ("serial", "rejecting"):
        token = make_token()
        await ApiKeys(stack.broker.primary).register(token, owner="dev", agent=agent)
        await pool.fill(stack.client(client.base_url, token), agent)
        pool.keys += [token, stack.key, stack.key]
    fuzzer = Fuzzer(client.base_url, pool)
    await asyncio.to_thread(fuzzer.run, MINUTES / 2)
    for label, statuses in sorted(fuzzer.seen.items()):
        print(f"{label:40} {dict(sorted(statuses.items()))}")
    assert not fuzzer.wrong, "\n\n".join(f"{kind}\n{text}" for kind, text in fuzzer.wrong.items())
    for operation in OPERATIONS:
        assert fuzzer.seen[operation.label][200], f"{operation.label} was never asked anything it takes"
