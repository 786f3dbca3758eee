"""The wire protocols that a front end serves: mostly one folder each, whose ``protocol.py`` has its `WireProtocol`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from turnstream.api.http.error_shape import CODE_AND_MESSAGE
from turnstream.shared.errors import ConfigurationError

if TYPE_CHECKING:
    from turnstream.api.http.error_shape import ErrorShape
    from turnstream.api.http.wire_protocol import WireProtocol

# What the setting calls it → the module that has its `PROTOCOL`; by name, so that nothing but the front end loads them all.
MODULES = {
    "liteagent": "liteagent.protocol",
    "agent_api": "agent_api.protocol",
    "openai": "openai.protocol",
    "ai_sdk": "ai_sdk.protocol",
    "a2a": "a2a.protocol",
    "ag_ui": "ag_ui.protocol",
    "copilotkit": "ag_ui.copilotkit",
}

# In the setting: those that are served without it.
DEFAULT = "default"


@cache
def protocols() -> dict[str, WireProtocol]:
    """All of them by name, in the order of their routes."""
    return {name: import_module(f"{__name__}.{module}").PROTOCOL for name, module in MODULES.items()}


def served(names: str) -> tuple[WireProtocol, ...]:
    """Those that the setting names, with commas between them.

    Raises:
        ConfigurationError: there is no protocol of that name.
    """
    chosen = {name.strip() for name in names.split(",") if name.strip()} or {DEFAULT}
    if unknown := sorted(chosen - {DEFAULT, *MODULES}):
        raise ConfigurationError(
            f"TURNSTREAM_PROTOCOLS = {names!r}: there is no protocol {unknown[0]!r}; there are {', '.join(MODULES)}, "
            f"and {DEFAULT} for those that are served without this setting"
        )
    by_default = DEFAULT in chosen
    return tuple(
        each for name, each in protocols().items() if name in chosen or (by_default and not each.opt_in)
    )


def error_shape(path: str) -> ErrorShape:
    """How errors of requests to this path are written: as the protocol does whose path it is."""
    return next((each.shape(path) for each in protocols().values() if each.has(path)), CODE_AND_MESSAGE)
