"""Traces of turns, for OpenTelemetry: from the request, through the queue, to the model's and the tools' calls.

Off unless the operator turns it on; then, and only then, is the library loaded. The trace's context is kept with
the task, so that whoever runs it, and however often, adds to the trace of the request that began it.
No span holds what users or models say. Attributes are those of OpenTelemetry's conventions for generative AI where
there are any; the library of agents makes the spans of models, tools and its own agents.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from turnstream.shared.errors import ConfigurationError
from turnstream.shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from turnstream.shared.broker.keys import TaskRef
    from turnstream.shared.settings import Settings

# What makes spans; None while tracing is off.
_tracer: Any = None
_provider: Any = None


def start(settings: Settings, role: str) -> None:
    """Export traces if the settings say so; where to, the library's own ``OTEL_*`` variables say.

    Raises:
        ConfigurationError: they do, but the library is not installed.
    """
    if not settings.otel:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigurationError(
            "TURNSTREAM_OTEL = True: needs the extra otel: pip install turnstream[otel]"
        ) from None
    resource = Resource.create({"service.name": f"turnstream-{role}", "service.version": VERSION})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    use(provider)


def use(provider: Any) -> None:
    """Make spans with this provider (an OpenTelemetry ``TracerProvider``); None turns tracing off."""
    global _tracer, _provider  # noqa: PLW0603 - a process has one provider, as it has one log
    _provider = provider
    _tracer = provider.get_tracer("turnstream", VERSION) if provider is not None else None


def provider() -> Any:
    """The provider in use, for libraries that make spans of their own; None while tracing is off."""
    return _provider


def stop() -> None:
    """Send what has not been sent, and turn tracing off."""
    if _provider is not None:
        _provider.shutdown()
    use(None)


@contextmanager
def submitting(trace: str, ref: TaskRef) -> Iterator[str]:
    """A span for taking a turn, below the request's own trace parent if it brought one; the parent for what follows."""
    if _tracer is None:
        yield trace
        return
    from opentelemetry.trace import SpanKind

    attributes = {"turnstream.ref": str(ref), **_of_session(ref)}
    with _tracer.start_as_current_span(
        "turn submitted", context=_context(trace), kind=SpanKind.PRODUCER, attributes=attributes,
        record_exception=False,
    ) as span:  # fmt: skip
        yield _written(span) or trace


@contextmanager
def attempting(trace: str, ref: TaskRef, *, number: int, agent: str, waited_ms: int) -> Iterator[None]:
    """Spans for the wait in the queue, which is over, and for an attempt; what the agent does is below the latter."""
    if _tracer is None:
        yield
        return
    import time

    from opentelemetry.trace import SpanKind

    context, now = _context(trace), time.time_ns()
    attributes = {
        "turnstream.ref": str(ref),
        "turnstream.attempt": number,
        "gen_ai.agent.name": agent,
        **_of_session(ref),
    }
    waiting = _tracer.start_span(
        "turn queued", context=context, start_time=now - waited_ms * 1_000_000, attributes=attributes
    )
    waiting.end(now)
    with _tracer.start_as_current_span(
        "turn attempted", context=context, kind=SpanKind.CONSUMER, attributes=attributes, record_exception=False,
    ):  # fmt: skip
        yield


@contextmanager
def invoking(ref: TaskRef, agent: str, usage: Mapping[str, int]) -> Iterator[None]:
    """A span for an agent that the library knows nothing of; what is added to ``usage`` in the block is the span's."""
    if _tracer is None:
        yield
        return
    before = dict(usage)
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent, **_of_session(ref)}
    with _tracer.start_as_current_span(
        f"invoke_agent {agent}", attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield
        except Exception as error:
            # Its text is the agent's, and may hold anything.
            failed(type(error).__name__)
            raise
        finally:
            for name in ("input_tokens", "output_tokens"):
                if spent := usage[name] - before[name]:
                    span.set_attribute(f"gen_ai.usage.{name}", spent)


def failed(code: str) -> None:
    """The span that is under way here ended badly, by this code."""
    if _tracer is None:
        return
    from opentelemetry.trace import StatusCode, get_current_span

    span = get_current_span()
    span.set_status(StatusCode.ERROR)
    span.set_attribute("error.type", code)


def conversation(ref: TaskRef) -> str:
    """What the conversation of a task is called: of two owners, the same session's id is two."""
    return f"{ref.owner}/{ref.session}"


def _of_session(ref: TaskRef) -> dict[str, str]:
    return {"gen_ai.conversation.id": conversation(ref)}


def note(**attributes: str) -> None:
    """Say more of the span that is under way here."""
    if _tracer is None:
        return
    from opentelemetry.trace import get_current_span

    get_current_span().set_attributes({f"turnstream.{name}": value for name, value in attributes.items()})


def _context(trace: str) -> Any:
    """The context of a W3C trace parent; an empty one begins a new trace."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": trace}, Context())


def _written(span: Any) -> str:
    """The span as a W3C trace parent."""
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
    return carrier.get("traceparent", "")
