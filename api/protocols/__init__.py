"""The wire protocols that a front end serves: one folder each, whose ``protocol.py`` has its `WireProtocol`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from turnstream.api.http.error_shape import CODE_AND_MESSAGE
from turnstream.shared.errors import ConfigurationError

if TYPE_CHECKING:
    from turnstream.api.http.error_shape import ErrorShape
    from turnstream.api.http.wire_protocol import WireProtocol

# By name, so that nothing but the front end loads them all.
FOLDERS = ("liteagent", "agent_api", "openai")


@cache
def protocols() -> tuple[WireProtocol, ...]:
    """All of them, in the order of their routes."""
    return tuple(import_module(f"{__name__}.{folder}.protocol").PROTOCOL for folder in FOLDERS)


def served(names: str) -> tuple[WireProtocol, ...]:
    """Those that the setting names, with commas between them; all, if it names none.

    Raises:
        ConfigurationError: there is no protocol of that name.
    """
    chosen = {name.strip() for name in names.split(",") if name.strip()}
    if unknown := sorted(chosen - set(FOLDERS)):
        raise ConfigurationError(
            f"TURNSTREAM_PROTOCOLS = {names!r}: there is no protocol {unknown[0]!r}; there are {', '.join(FOLDERS)}"
        )
    return tuple(
        each for name, each in zip(FOLDERS, protocols(), strict=True) if not chosen or name in chosen
    )


def error_shape(path: str) -> ErrorShape:
    """How errors of requests to this path are written: as the protocol does whose path it is."""
    return next((each.errors for each in protocols() if each.has(path)), CODE_AND_MESSAGE)
