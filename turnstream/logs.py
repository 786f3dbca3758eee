"""Logs: one line per event, its name and its context; JSON where nobody watches, colours at a terminal.

What agents' code logs with Python's ``logging`` comes out the same way, with the turn (``ref``) in which it was logged.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog

from turnstream.escaping import escaped
from turnstream.shared import without_rich  # noqa: F401 - before structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

# Libraries that log each request, or what was said in it, at INFO.
_CHATTY = (
    "anyio", "asyncio", "httpcore", "httpx", "mcp", "openai", "opentelemetry", "pydantic_ai", "urllib3", "uvicorn",
    "watchfiles",
)  # fmt: skip


# What a person looks for in a line: which turn, whose, and what became of it.
_FIRST = ("ref", "agent", "status")


def configure() -> None:
    """Set up structlog and the standard library's logging; to be called once, first thing."""
    at_terminal = sys.stderr.isatty()
    context: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        # At a terminal the time of day, as its user's clock has it.
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
        if at_terminal
        else structlog.processors.TimeStamper(fmt="iso"),
    ]
    last: list[Processor] = (
        # The default shows the values of local variables: keys, and what users said.
        [
            _in_order,
            _shown,
            structlog.dev.ConsoleRenderer(
                exception_formatter=structlog.dev.plain_traceback, sort_keys=False, pad_event_to=20
            ),
        ]
        if at_terminal
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*context, *last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # A line in one write: processes of one supervisor share the stream. `print` makes two of it.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*context, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    # arq logs a job's arguments and results; ours are ids, but the habit is not one to keep.
    logging.getLogger("arq").setLevel(logging.ERROR)


def _in_order(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The line's fields with `_FIRST` before the others."""
    return {**{name: event[name] for name in _FIRST if name in event}, **event}


def _shown(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The line with a foreign process's ``text`` as a terminal shows it: JSON escapes what it would obey, this does not."""
    return {**event, "text": escaped(event["text"])} if isinstance(event.get("text"), str) else event
