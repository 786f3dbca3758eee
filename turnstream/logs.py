"""Logs: one line per event, its name and its context; JSON where nobody watches, colours at a terminal."""

from __future__ import annotations

import logging
import sys

import structlog

from shared import lean  # noqa: F401 - before structlog


def configure() -> None:
    """Set up structlog and quieten the libraries; to be called once, first thing."""
    at_terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *(
                # The default shows the values of local variables: keys, and what users said.
                [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
                if at_terminal
                else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    # arq logs a job's arguments and results; ours are ids, but the habit is not one to keep.
    logging.getLogger("arq").setLevel(logging.ERROR)
