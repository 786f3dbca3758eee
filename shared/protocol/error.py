"""Why a response, message or part failed."""

from __future__ import annotations

from pydantic import ConfigDict

from turnstream.shared.protocol.base import ProtocolModel


class Error(ProtocolModel):
    """What went wrong, for a program and for a person (Agent API protocol §7)."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    code: str
    """Stable name or number of the error; numbers are kept as text."""

    message: str
    """What happened, in words that may be shown to the user."""
