"""The command: all checks, one after the other, told as they come."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import orjson
import typer

from turnstream.doctor import front_end as front_end_checks
from turnstream.doctor.findings import Level, skipped
from turnstream.escaping import escaped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from turnstream.doctor.findings import Finding
    from turnstream.shared.settings import Settings

_COLOURS = {Level.OK: "green", Level.SKIPPED: "bright_black", Level.WARNING: "yellow", Level.WRONG: "red"}


async def examine(settings: Settings, url: str, key: str, *, as_json: bool = False) -> bool:
    """Check broker and front end, and print what was found, as JSON a line each; whether nothing is wrong."""
    well = True
    async for finding in _findings(settings, url, key):
        if as_json:
            typer.echo(escaped(orjson.dumps(finding).decode()))
        else:
            _tell(finding)
        well = well and finding.level is not Level.WRONG
    return well


async def _findings(settings: Settings, url: str, key: str) -> AsyncIterator[Finding]:
    if settings.embedded:
        yield skipped("broker", "TURNSTREAM_REDIS_URL is not set", "set it to look at a broker")
    elif find_spec("redis") is None:
        yield skipped(
            "broker",
            "the server's packages are not installed",
            "pip install 'turnstream[server]' to look at it",
        )
    else:
        from turnstream.doctor.broker import examine_broker

        async for finding in examine_broker(settings):
            yield finding
    async for finding in front_end_checks.examine(url, key):
        yield finding


def _tell(finding: Finding) -> None:
    label = typer.style(
        finding.level.value.rjust(8), fg=_COLOURS[finding.level], bold=finding.level is Level.WRONG
    )
    typer.echo(f"{label}  {finding.what}: {escaped(finding.seen)}")
    if finding.todo:
        typer.echo(f"{'':8}  → {escaped(finding.todo)}")
