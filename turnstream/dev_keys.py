"""The keys that ``turnstream serve`` makes up: kept in ``.turnstream/``, so that a restart does not change them."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import SecretStr

if TYPE_CHECKING:
    from turnstream.shared.settings import Settings

FOLDER = Path(".turnstream")


def with_keys(settings: Settings) -> Settings:
    """The settings with a chat and an admin key, where the environment brings none.

    Only for the embedded broker, which no other process reaches. Whatever else is at ``TURNSTREAM_REDIS_URL``
    would go on accepting them, so none is made there.
    """
    if not settings.embedded:
        return settings
    found = {name: getattr(settings, name) or SecretStr(_made(name)) for name in ("dev_key", "admin_key")}
    return settings.model_copy(update=found)


def kept(name: str, url: str) -> str:
    """The key of that name in the folder, for a command that speaks to this machine and was given none; empty: there is none."""
    try:
        return (FOLDER / name).read_text().strip() if is_loopback(urlsplit(url).hostname or "") else ""
    except (OSError, ValueError):
        return ""


def is_loopback(host: str) -> bool:
    """Whether an address, or a name, is this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _made(name: str) -> str:
    """The key of that name in the folder, made now if there is none; one for this start only where nothing can be written."""
    # The client alone has no such module.
    from turnstream.shared.api_keys import make_token, well_formed

    path, token = FOLDER / name, make_token()
    made = FOLDER / f"{name}.{token[-8:]}"
    try:
        FOLDER.mkdir(mode=0o700, exist_ok=True)
        (FOLDER / ".gitignore").write_text("*\n")
        made.touch(mode=0o600)
        made.write_text(token)
        try:
            # Two that start at once must end up with one key: a link is made once, and whole.
            os.link(made, path)
        except FileExistsError:
            kept = path.read_text().strip()
            if well_formed(kept):
                return kept
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
    except OSError:
        return token
    return token
