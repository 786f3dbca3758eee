"""The environment of a role: the file ``.env`` of the working directory, and variables that nothing reads."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import structlog
from dotenv import load_dotenv

from turnstream.shared import settings, siblings
from turnstream.shared.errors import ConfigurationError

log = structlog.get_logger(__name__)

FILE = Path(".env")

# Variables of ours that are no settings: what commands that speak HTTP read, and what a supervisor sets.
_BESIDE = frozenset({"URL", "KEY"}) | {
    name.removeprefix(settings.PREFIX) for name in (settings.SECRETS_DIR, siblings.VARIABLE)
}


def read_file() -> None:
    """Set the variables that ``.env`` names, where it is there; those that are set already stay as they are.

    Raises:
        ConfigurationError: it cannot be read.
    """
    if not FILE.exists():
        return
    try:
        load_dotenv(FILE, override=False)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{FILE} cannot be read: {error}") from None


def warn_of_unknown() -> None:
    """Log each ``TURNSTREAM_*`` variable that is no setting, with the one that was most likely meant; no values."""
    known = {name.upper() for name in settings.Settings.model_fields} | _BESIDE
    for variable in sorted(os.environ):
        # Settings are read whatever the case.
        prefix, _, name = variable.upper().partition(settings.PREFIX)
        if prefix or not name or name in known:
            continue
        meant = [settings.PREFIX + each for each in difflib.get_close_matches(name, known, n=1)]
        log.warning(
            "settings.unknown",
            variable=variable,
            **({"did_you_mean": meant[0]} if meant else {}),
            todo="nothing reads it: correct or unset it",
        )
