"""What schemathesis makes of the OpenAPI document, sent to a running deployment: no 5xx, nothing undocumented.

A short run is part of the suite; `make fuzz MINUTES=10` runs the same for longer.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.client import calls_of
from tests.support.stack import Stack
from turnstream.api.openapi.document import document
from turnstream.shared.agents.config import A2aCard, Agents, AgentSpec
from turnstream.shared.api_keys import ApiKeys, make_token
from turnstream.shared.model_states import ModelStates

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from tests.conftest import Place
    from tests.support.client import Client

MINUTES = float(os.environ.get("FUZZ_MINUTES", "0"))

# Requests to each operation in one round; the suite does one round.
EXAMPLES = 20
MODES = [GenerationMode.POSITIVE, GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
# Requests at once, and some more that are made ahead. Making and checking them costs more than the deployment, which runs
# in the same process: with many senders a round takes no less time, and each answer waits for all of them.
SENDERS = 4
MOST_UNDER_WAY = 2 * SENDERS
# No answer takes longer than this between two bytes; heartbeats come more often.
SILENCE_SECONDS = 30

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

COMMANDS = ["hello", "/tokens 3", "/tool add 1 2", "/think", "/dispatch", "/fail x"]
if MINUTES:
    # A turn that parks is ended by a rescuer, seconds later: too long for the suite.
    COMMANDS += ["/call f {}", "/approve"]

# Numbers in the middle: hypothesis likes the ends of a range.
RARELY = st.sampled_from(range(9)).map(lambda number: number == 4)

# Where bodies begin as their operation's example does.
FAMILIES = ("/ai-sdk/", "/ag-ui", "/copilotkit", "/a2a/")

# What is refused here whatever it is asked: what has ended can be neither canceled nor subscribed to, of several agents none has
# the card of the deployment, no card is extended, and some parts of OpenAI's API are not served. No worker is named that is there: these are needed.
REFUSING = (
    "GET /.well-known/agent-card.json",
    "extendedAgentCard",
    "POST /v1/conversations/{conversation_id}/items",
    "POST /v1/responses/input_tokens",
    "POST /v1/responses/compact",
    "{task_id}:cancel",
    "{task_id}:subscribe",
    "POST /admin/v1/workers/pause",
    "POST /admin/v1/workers/resume",
    "POST /admin/v1/workers/drain",
)

# What a request may not set with these agents, so that most bodies would be refused for it alone.
OVERRIDES = ("model", "top_p", "temperature", "frequency_penalty", "presence_penalty", "max_tokens")
REFUSED = (*OVERRIDES, "stop", "n", "seed", "tools")


def hurried(name: str, busy: Any) -> AgentSpec:
    """A demo agent whose turns end soon, whatever they wait for."""
    return AgentSpec(
        name=name,
        model="demo",
        tools=("turnstream.worker.agents.demo:add", "turnstream.worker.agents.demo:delete_everything"),
        subagents=("researcher",),
        busy=busy,
        deadline=2,
        callback_deadline=1,
        images=True,
        a2a=A2aCard(),
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


@dataclass
class Known:
    """A key, and names that mean something with it: without them nearly every request would meet a 404."""

    key: str
    session: str
    cleared: str
    agent: str
    tasks: list[str] = field(default_factory=list)
    cursors: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    items: list[str] = field(default_factory=list)

    async def fill(self, client: Client) -> None:
        """Make the session, with two turns that asked their client: one was answered, the other stopped."""
        for task in ("t1", "t2"):
            async with client.process(self.session, "/call f {}", id=task) as stream:
                (call,) = calls_of(await stream.until(calls_of))
                if task == "t1":
                    await client.callback(self.session, call["call_id"], "done")
                else:
                    await client.stop(self.session, task)
                frames = await stream.all()
            self.tasks.append(task)
            self.calls.append(call["call_id"])
            self.cursors += [frames[2].id, frames[-1].id]
        await client.turn(self.cleared, "hello")
        await client.turn(f"{self.session}-deleted", "hello")
        for task in self.tasks:
            path = f"/a2a/{self.agent}/tasks/{self.session}~{task}/pushNotificationConfigs"
            for name in ("kept", "gone"):
                webhook = {"id": name, "url": "https://client.example/webhook"}
                answer = await client.http.post(path, json=webhook, headers={"A2A-Version": "1.0"})
                assert answer.is_success, answer.text
        listed = await client.http.get(f"/v1/conversations/conv_{self.session}/items")
        self.items += [item["id"] for item in listed.json()["data"]]

    def steer(self, draw: Callable[[Any], Any], case: Case[Any]) -> None:
        """Put what is known into a generated request, most of the time."""
        session = self.cleared if case.path.endswith("/clear") else self.session
        names = {
            "sessionId": [session],
            "session_id": [session],
            "taskId": self.tasks,
            "response_id": self.tasks,
            "cursor": self.cursors,
            "Last-Event-ID": self.cursors,
            "user_id": [""],
            "owner": ["dev"],
            "dialect": ["agentscope", "java"],
        }
        if case.path.startswith("/v1/"):
            names = {
                # Who is deleted is not found again.
                "response_id": [f"resp_{self.session}~{self.tasks[-1 if case.method == 'DELETE' else 0]}~0"],
                "item_id": self.items,
                "conversation_id": [f"conv_{self.cleared if case.method == 'DELETE' else self.session}"],
                "model": [self.agent],
                "X-Session-Id": [self.session],
            }
        if case.path.startswith("/console/sessions/"):
            names["session"] = [f"{self.session}-deleted" if case.method == "DELETE" else self.session]
        families = case.path.startswith(FAMILIES)
        if families:
            names = {
                "agent": [self.agent],
                "chat_id": [self.session],
                "thread_id": [self.session],
                "task_id": [f"{self.session}~{task}" for task in self.tasks],
                "config_id": ["gone" if case.method == "DELETE" else "kept"],
                "A2A-Version": ["1.0"],
            }
        for where in (case.path_parameters, case.query, case.headers):
            for name in where if isinstance(where, Mapping) else ():
                if name in names and not draw(RARELY):
                    where[name] = draw(st.sampled_from(names[name]))
        if isinstance(case.body, dict) and not draw(RARELY):
            case.body |= self._example(draw, case) if families else draw(self._body(case))

    def _body(self, case: Case[Any]) -> st.SearchStrategy[dict[str, Any]]:
        """What a body says in place of what was generated."""
        commands = st.sampled_from(COMMANDS)
        calls = st.sampled_from(self.calls)
        if case.path == "/process":
            said = commands.map(lambda command: [{"role": "user", "content": command}])
            answer = calls.map(
                lambda call: [
                    {
                        "role": "tool",
                        "type": "function_call_output",
                        "content": [{"type": "data", "data": {"call_id": call, "output": "x"}}],
                    }
                ]
            )
            return st.fixed_dictionaries(
                {
                    "session_id": st.just(self.session),
                    "input": said | said | answer,
                    **dict.fromkeys(REFUSED, st.none()),
                },
                optional={
                    "id": st.none() | st.sampled_from(self.tasks),
                    "response_id": st.none(),
                    "user_id": st.none(),
                    "reconnect": st.sampled_from([False, False, True]),
                },
            )
        if case.path.startswith("/v1/"):
            return self._openai_body(case, commands, calls)
        if case.path.endswith("/chat"):
            content = commands.map(lambda command: [{"type": "text", "message": command}])
            return st.fixed_dictionaries({"content": content}, optional={"taskId": st.none()})
        return st.fixed_dictionaries({"id": calls})

    def _example(self, draw: Callable[[Any], Any], case: Case[Any]) -> dict[str, Any]:
        """The operation's own example, with other words, in one of a few conversations."""
        (media,) = case.operation.definition.raw["requestBody"]["content"].values()
        examples = media["examples"].values()
        text = orjson.dumps(draw(st.sampled_from([each["value"] for each in examples]))).decode()
        number = draw(st.integers(0, 9))
        for old, new in {
            '"/tokens 3"': orjson.dumps(draw(st.sampled_from(COMMANDS))).decode(),
            '"chat-1"': f'"{self.agent}-chat-{number % 3}"',
            '"t1"': f'"{self.agent}-thread-{number % 3}"',
            '"m1"': f'"m{number}"',
            '"demo"': f'"{self.agent}"',
            "9f0a5b1c2d3e": f"9f0a5b1c2d3{number}",
        }.items():
            text = text.replace(old, new)
        body: dict[str, Any] = orjson.loads(text)
        return body

    def _openai_body(
        self, case: Case[Any], commands: st.SearchStrategy[str], calls: st.SearchStrategy[str]
    ) -> st.SearchStrategy[dict[str, Any]]:
        model = st.sampled_from([self.agent, None])
        call = st.builds(
            lambda task, call: f"call_{self.session}~{task}~{call.removeprefix('call_')}",
            st.sampled_from(self.tasks),
            calls,
        )
        if case.path.endswith("/completions"):
            said = commands.map(lambda command: {"role": "user", "content": command})
            answer = call.map(lambda call: {"role": "tool", "tool_call_id": call, "content": "x"})
            return st.fixed_dictionaries(
                {
                    "model": model,
                    "messages": st.lists(said, min_size=1, max_size=2) | st.tuples(said, answer).map(list),
                    "tools": st.none(),
                    "response_format": st.none(),
                }
            )
        if case.path.endswith("/responses"):
            output = call.map(lambda call: {"type": "function_call_output", "call_id": call, "output": "x"})
            previous = st.sampled_from([f"resp_{self.session}~{task}~0" for task in self.tasks])
            return st.fixed_dictionaries(
                {
                    "model": model,
                    "input": commands | st.tuples(output).map(list),
                    "previous_response_id": st.none() | previous,
                    "conversation": st.none(),
                    "tools": st.none(),
                    "text": st.none(),
                },
                optional={"background": st.booleans(), "stream": st.booleans()},
            )
        return st.fixed_dictionaries({"items": st.none()}, optional={"metadata": st.none()})


@dataclass
class Admin:
    """The operators' key, and what there is for them to look at."""

    key: str
    session: str
    tasks: list[str]
    cursors: list[str]
    keys: list[str]
    models: list[str]

    def steer(self, draw: Callable[[Any], Any], case: Case[Any]) -> None:
        """Put what is known into a generated request, most of the time."""
        names: dict[str, list[str]] = {
            "owner": ["dev"],
            "session": [self.session],
            "task": self.tasks,
            "id": self.keys[:4] if case.path.endswith("/revoke") else self.keys[4:],
            "agent": ["demo"],
        }
        if case.path.endswith(("/events", "/follow")):
            names |= {"cursor": self.cursors, "Last-Event-ID": self.cursors}
        for where in (case.path_parameters, case.query, case.headers):
            for name in where if isinstance(where, Mapping) else ():
                if name in names and draw(st.integers(0, 5)):
                    where[name] = draw(st.sampled_from(names[name]))
        if "/models/" in case.path and isinstance(case.body, dict) and draw(st.integers(0, 5)):
            models = self.models[:4] if case.path.endswith("/hold") else self.models[4:]
            case.body["model"] = draw(st.sampled_from(models))
        if "/agents/" in case.path and isinstance(case.body, dict) and draw(st.integers(0, 5)):
            # No turn of these is asked for: a held one would wait.
            case.body["agent"] = "researcher"


SCHEMA = schemathesis.openapi.from_dict(orjson.loads(orjson.dumps(document())))
SCHEMA.config.generation.update(with_security_parameters=False)
OPERATIONS: list[Any] = [each.ok() for each in SCHEMA.get_all_operations()]  # type: ignore[union-attr]


class Fuzzer:
    """Sends requests until told to end, and keeps what was wrong with the answers, once per kind."""

    def __init__(self, base_url: str, known: list[Known], admin: Admin, strangers: list[str]) -> None:
        self._base_url = base_url
        self._known = known
        self._admin = admin
        self._strangers = strangers
        self.wrong: dict[str, str] = {}
        self.seen: dict[str, Counter[int]] = defaultdict(Counter)

    def run(self, minutes: float) -> None:
        """Try every operation in rounds; one round when no time is given."""
        end = time.monotonic() + minutes * 60
        number = 0
        under_way: set[Future[None]] = set()
        with ThreadPoolExecutor(SENDERS) as senders:

            def submit(*made: Any) -> None:
                under_way.add(senders.submit(*made))

            while not number or time.monotonic() < end:
                for operation in OPERATIONS:
                    self._generate(operation, number, submit)
                    while len(under_way) > MOST_UNDER_WAY:
                        self._settle(under_way, FIRST_COMPLETED)
                number += 1
            self._settle(under_way, ALL_COMPLETED)

    def _settle(self, under_way: set[Future[None]], when: str) -> None:
        done, _ = wait(under_way, return_when=when)
        under_way -= done
        for each in done:
            each.result()

    def _generate(self, operation: Any, number: int, submit: Callable[..., None]) -> None:
        """Make requests, here and one after the other: Python 3.11 cannot parse in several threads."""
        simple = not (operation.body or operation.query or operation.path_parameters)
        modes = [GenerationMode.POSITIVE] if simple else MODES
        strategies = {mode: operation.as_strategy(generation_mode=mode) for mode in modes}

        @st.composite
        def cases(draw: Callable[[Any], Any]) -> tuple[Case[Any], str]:
            case: Case[Any] = draw(strategies[draw(st.sampled_from(modes))])
            known = self._admin if "/admin/" in case.path else draw(st.sampled_from(self._known))
            known.steer(draw, case)
            return case, draw(st.sampled_from(self._strangers)) if draw(RARELY) else known.key

        @seed(number)
        @settings(
            max_examples=2 if simple else EXAMPLES,
            phases=[Phase.generate],
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(cases())
        def each(made: tuple[Case[Any], str]) -> None:
            submit(self._send, *made)

        # What schemathesis draws for a body that is to be refused depends on more than the seed, now and then: the next round goes on.
        with suppress(FlakyStrategyDefinition):
            each()

    def _send(self, case: Case[Any], key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            answer = case.call(base_url=self._base_url, headers=headers, timeout=SILENCE_SECONDS)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            return  # our side cannot send it
        except requests.exceptions.RequestException as error:
            self._note(case, type(error).__name__, str(error))
            return
        self.seen[case.operation.label][answer.status_code] += 1
        # A chat completion whose turn fails is a 500, as OpenAI's clients know it; it is described as that.
        checks = CHECKS[1:] if case.path.endswith("/completions") and _is_failed_turn(answer) else CHECKS
        try:
            case.validate_response(answer, checks=checks)
        except FailureGroup as group:
            for failure in group.exceptions:
                self._note(case, f"{type(failure).__name__} {answer.status_code}", str(failure))

    def _note(self, case: Case[Any], kind: str, text: str) -> None:
        self.wrong.setdefault(f"{case.operation.label}: {kind}", f"{text}\n{case.as_curl_command()}")


def _is_failed_turn(answer: Any) -> bool:
    return bool(answer.status_code == 500 and answer.json()["error"]["code"] != "internal")


@pytest.fixture
async def hurried_stack(place: Place) -> Any:
    """A deployment whose streams and turns end soon."""
    stack = Stack(
        place,
        AGENTS,
        stream_seconds=1,
        heartbeat_seconds=0.5,
        max_waiting=1,
        protocols="default, copilotkit, a2a",
    )
    yield stack
    await stack.close()


# The deployment runs in this process and draws random delays while requests are made.
@pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)
async def test_generated_requests_are_answered_as_documented(hurried_stack: Stack) -> None:
    """No generated request meets a 5xx, or a status, media type, header or body that is not documented."""
    stack = hurried_stack
    await stack.worker()
    client = await stack.front_end()
    known, clients = [Known(stack.key, "demo", "demo-cleared", "demo")], [client]
    for agent in ("serial", "rejecting"):
        token = make_token()
        await ApiKeys(stack.broker.primary).register(token, owner="dev", agent=agent)
        known.append(Known(token, agent, f"{agent}-cleared", agent))
        clients.append(stack.client(client.base_url, token))
    await asyncio.gather(*(each.fill(its) for each, its in zip(known, clients, strict=True)))
    victims = [
        await ApiKeys(stack.broker.primary).register(make_token(), owner="v", agent="demo") for _ in range(8)
    ]
    # Held, they are known, though no agent here has them.
    models = [f"spare:{number}" for number in range(8)]
    for model in models:
        await ModelStates(stack.broker.primary, 10_000).hold(model)
    admin = Admin(
        stack.admin,
        known[0].session,
        known[0].tasks,
        known[0].cursors,
        [victim.id for victim in victims],
        models,
    )
    fuzzer = Fuzzer(
        client.base_url, known, admin, [stack.admin, make_token(), "", *(each.key for each in known)]
    )
    await asyncio.to_thread(fuzzer.run, MINUTES / 2)
    for label, statuses in sorted(fuzzer.seen.items()):
        print(f"{label:40} {dict(sorted(statuses.items()))}")
    assert not fuzzer.wrong, "\n\n".join(f"{kind}\n{text}" for kind, text in fuzzer.wrong.items())
    for operation in OPERATIONS:
        taken = [status for status in fuzzer.seen[operation.label] if status < 300]
        assert taken or operation.label.endswith(REFUSING), (
            f"{operation.label} was never asked anything it takes"
        )
