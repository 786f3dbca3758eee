"""The exit codes of commands: what a script can tell apart without reading what was printed."""

from __future__ import annotations

from enum import IntEnum

from turnstream.shared import errors


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    NEGATIVE = (
        1  # it did what it should, and the answer is no: a turn failed, something is wrong, two texts differ
    )
    USAGE = 2  # an option, a setting or a file is wrong
    REFUSED = 3  # the server, or the broker, said no
    NOT_FOUND = 4  # what was named is not there
    UNREACHABLE = 5  # nobody answered who could, or it is too busy: trying again may help
    INTERRUPTED = 130  # Ctrl-C


def of(error: Exception) -> ExitCode:
    """The exit code for an error of ours, or of the client."""
    if isinstance(error, errors.ConfigurationError | ValueError):
        return ExitCode.USAGE
    # The status that a front end answered with, or would answer with; none where there was no answer.
    status = getattr(error, "answered", getattr(error, "status", None))
    if status in (404, 410):
        return ExitCode.NOT_FOUND
    if status is None or status >= 500 or status == 429:
        return ExitCode.UNREACHABLE
    return ExitCode.REFUSED
