"""The wire protocols that a front end serves: one folder each, whose ``protocol.py`` has its `WireProtocol`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from turnstream.api.http.error_shape import CODE_AND_MESSAGE

if TYPE_CHECKING:
    from turnstream.api.http.error_shape import ErrorShape
    from turnstream.api.http.wire_protocol import WireProtocol

# By name, so that nothing but the front end loads them all.
FOLDERS = ("liteagent", "agent_api")


@cache
def protocols() -> tuple[WireProtocol, ...]:
    """All of them, in the order of their routes."""
    return tuple(import_module(f"{__name__}.{folder}.protocol").PROTOCOL for folder in FOLDERS)


def error_shape(path: str) -> ErrorShape:
    """How errors of requests to this path are written: as the protocol does whose path it is."""
    return next((each.errors for each in protocols() if each.has(path)), CODE_AND_MESSAGE)
