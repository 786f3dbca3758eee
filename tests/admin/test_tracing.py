"""A turn's trace: from the client's own span through the queue to the calls of model and tools."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from pydantic_ai import Agent

from tests.support.client import Client, calls_of
from tests.support.fake_provider.server import Call, calls, says
from tests.support.waiting import wait_until
from turnstream.shared import tracing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider
    from tests.support.stack import Stack

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CLIENT = "00f067aa0ba902b7"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Where the spans of this process end up."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider)
    yield exporter
    tracing.stop()
    Agent.instrument_all(False)


def parent(span: ReadableSpan) -> str:
    """The id of the span above."""
    return format(span.parent.span_id, "016x") if span.parent else ""


async def traced(
    stack: Stack, exporter: InMemorySpanExporter, text: str, *, attempts: int
) -> list[ReadableSpan]:
    """The spans of a turn whose client traces; calls are answered."""
    await stack.worker()
    client = await stack.front_end()
    headers = {"traceparent": f"00-{TRACE}-{CLIENT}-01"}
    async with client.process("s1", text, id="t1", headers=headers) as stream:
        if attempts == 2:
            (call,) = calls_of(await stream.until(calls_of))
            await client.callback("s1", call["call_id"], "sunny")
        await stream.all()

    def told() -> Any:
        return names(exporter).count("turn attempted") == attempts

    await wait_until(told, "the spans to end")
    return list(exporter.get_finished_spans())


async def test_a_turn_is_one_trace(stack: Stack, exporter: InMemorySpanExporter) -> None:
    """Submit, wait, attempt, model and tool, each below the other, in the trace that the client began; and no words."""
    spans = await traced(stack, exporter, "/tool add 20 22", attempts=1)
    assert {format(span.context.trace_id, "032x") for span in spans if span.context} == {TRACE}
    by_name = {span.name: span for span in spans}
    ids = {format(span.context.span_id, "016x"): span.name for span in spans if span.context}
    assert parent(by_name["turn submitted"]) == CLIENT
    assert ids[parent(by_name["turn queued"])] == "turn submitted"
    assert ids[parent(by_name["turn attempted"])] == "turn submitted"
    assert (by_name["turn attempted"].attributes or {})["turnstream.ref"] == "dev/s1/t1"
    queued = by_name["turn queued"]
    assert queued.start_time is not None
    assert queued.end_time is not None
    assert queued.start_time <= queued.end_time
    above = {ids.get(parent(span), "") for span in spans if span.name.startswith(("chat ", "execute_tool "))}
    models = [span for span in spans if span.name.startswith("chat ")]
    tools = [span for span in spans if span.name.startswith("execute_tool ")]
    assert len(models) == 2
    assert [span.name for span in tools] == ["execute_tool add"]
    assert above
    assert "" not in above
    assert not any("20 22" in str(span.attributes) + str(span.events) for span in spans)


async def test_spans_have_the_attributes_of_the_conventions(
    deploy: Deployments, provider: Provider, exporter: InMemorySpanExporter
) -> None:
    """Each call of a model and a tool is one span, with model, tokens, agent and the session as conversation; no words."""
    client = await deploy(model="openai:gpt-4o", tools=["tests.support.fake_provider.tools:get_weather"])
    provider.script = [
        calls(Call("get_weather", '{"city": "Rome"}'), usage=(20, 7)),
        says("Sunny.", usage=(30, 9)),
    ]
    await client.turn("s1", "Kanarienvogel", id="t1")
    await wait_until(lambda: "turn attempted" in names(exporter), "the spans to end")
    told = [span.attributes or {} for span in exporter.get_finished_spans()]
    assert {each["gen_ai.conversation.id"] for each in told} == {"dev/s1"}
    by_operation = Counter(each.get("gen_ai.operation.name") for each in told)
    assert by_operation == {None: 3, "chat": 2, "execute_tool": 1, "invoke_agent": 1}
    assert {each["gen_ai.agent.name"] for each in told if "gen_ai.agent.name" in each} == {"demo"}
    models = [each for each in told if each.get("gen_ai.operation.name") == "chat"]
    assert {each["gen_ai.request.model"] for each in models} == {"gpt-4o"}
    assert [each["gen_ai.usage.input_tokens"] for each in models] == [20, 30]
    assert [each["gen_ai.usage.output_tokens"] for each in models] == [7, 9]
    assert [each["gen_ai.tool.name"] for each in told if "gen_ai.tool.name" in each] == ["get_weather"]
    assert not any(word in str(told) for word in ("Kanarienvogel", "Rome", "Sunny"))


async def test_a_generators_run_is_a_span_too(deploy: Deployments, exporter: InMemorySpanExporter) -> None:
    """With what it counted; the library knows nothing of it."""
    client = await deploy(python="tests.support.coded:charges")
    await client.turn("s1", "both", id="t1")
    await wait_until(lambda: "turn attempted" in names(exporter), "the spans to end")
    (run,) = (span for span in exporter.get_finished_spans() if span.name == "invoke_agent demo")
    assert {**(run.attributes or {})} == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "demo",
        "gen_ai.conversation.id": "dev/s1",
        "gen_ai.usage.input_tokens": 3000,
        "gen_ai.usage.output_tokens": 300,
    }


async def spans_of(client: Client, exporter: InMemorySpanExporter, text: str) -> dict[str, ReadableSpan]:
    """What a turn that says this leaves, by name, when it has been attempted."""
    await client.turn("s1", text, id="t1")
    await wait_until(lambda: "turn attempted" in names(exporter), "the spans to end")
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_what_fails_is_told_without_its_words(
    deploy: Deployments, exporter: InMemorySpanExporter
) -> None:
    """By the turn's code, and by the kind of what the agent raised: its text may hold secrets."""
    client = await deploy(python="tests.support.coded:breaks")
    spans = await spans_of(client, exporter, "hi")
    for name, kind in (("turn attempted", "agent_error"), ("invoke_agent demo", "RuntimeError")):
        assert spans[name].status.status_code is StatusCode.ERROR
        assert (spans[name].attributes or {})["error.type"] == kind
    assert "hunter2" not in "".join(span.to_json() for span in spans.values())


async def test_a_code_that_quotes_its_user_stays_out_of_traces(
    deploy: Deployments, exporter: InMemorySpanExporter
) -> None:
    """An agent's author makes codes of whatever they like."""
    client = await deploy(python="tests.support.coded:breaks")
    spans = await spans_of(client, exporter, "quote hunter2")
    assert (spans["turn attempted"].attributes or {})["error.type"] == "other"
    assert "hunter2" not in "".join(span.to_json() for span in spans.values())


async def test_a_generator_that_is_held_has_not_failed(
    deploy: Deployments, exporter: InMemorySpanExporter
) -> None:
    """Its attempt waits: no run of it began, and none ended badly."""
    client = await deploy(python="tests.support.coded:charges")
    admin = deploy.stack.client(client.base_url, deploy.stack.admin)
    await admin.http.post("/admin/v1/agents/hold", json={"agent": "demo"})
    gates = [worker.gate for worker, _ in deploy.stack.workers]
    await wait_until(lambda: all(gate.refusal("agent demo") for gate in gates), "the workers to see the hold")
    async with client.process("s1", "both", id="t1"):
        await wait_until(lambda: "turn attempted" in names(exporter), "the attempt to end")
        spans = exporter.get_finished_spans()
        assert "invoke_agent demo" not in names(exporter)
        assert not [span for span in spans if span.status.status_code is StatusCode.ERROR]
        await client.stop("s1", "t1")


def names(exporter: InMemorySpanExporter) -> list[str]:
    """The names of the spans that have ended."""
    return [span.name for span in exporter.get_finished_spans()]


async def test_a_turn_that_waited_for_its_client_goes_on_in_its_trace(
    stack: Stack, exporter: InMemorySpanExporter
) -> None:
    """Each attempt is a span of its own, below the same submit."""
    spans = await traced(stack, exporter, "/call weather {}", attempts=2)
    attempts = [span for span in spans if span.name == "turn attempted"]
    assert [(span.attributes or {})["turnstream.attempt"] for span in attempts] == [1, 2]
    assert len({parent(span) for span in attempts}) == 1
    assert {format(span.context.trace_id, "032x") for span in spans if span.context} == {TRACE}
