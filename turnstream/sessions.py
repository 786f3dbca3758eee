"""``turnstream sessions``: what an owner's sessions hold, and their end, through any front end."""

from __future__ import annotations

import time
from typing import Annotated, Any

import orjson
import typer

from turnstream.escaping import escaped
from turnstream.sizes import shown
from turnstream.tasks import LOCAL, AsJson, Url, admin, became

app = typer.Typer(help="Sessions: what they hold, and their end.", no_args_is_help=True)

Owner = Annotated[str, typer.Option(help="Whose sessions.")]

_HEADINGS = ("SESSION", "HOLDS", "EXPIRES IN")


@app.command("list")
def list_sessions(
    owner: Owner,
    url: Url = LOCAL,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Sessions told at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List an owner's sessions, those that hold most first."""
    from turnstream.table import aligned

    with admin(url) as asked:
        told = asked.ask("GET", "sessions", params={"owner": owner, "limit": limit})
    if as_json:
        for row in told["sessions"]:
            typer.echo(escaped(orjson.dumps(row).decode()))
        return
    typer.echo(aligned([_HEADINGS, *(_row(row) for row in told["sessions"])]))
    typer.echo(f"{owner} holds {shown(told['bytes'])} in {told['count']} sessions")


@app.command()
def delete(
    owner: Owner,
    session: Annotated[str | None, typer.Option(help="Only this one; without it, all.")] = None,
    url: Url = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Delete an owner's sessions with all that was said in them. Turns that are live end first."""
    body: dict[str, Any] = {"owner": owner}
    if session is not None:
        body["session"] = session
    with admin(url) as asked:
        more = True
        while more:
            told = asked.ask("POST", "sessions/delete", json=body)
            for name in told["deleted"]:
                named = {"owner": owner, "session": name}
                typer.echo(became("deleted", f"{owner}/{name}", named, as_json=as_json))
            more = told["more"]


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    minutes = max(0, int(row["expires_at"] - time.time())) // 60
    return escaped(row["session"]), shown(row["bytes"]), f"{minutes // 60}h{minutes % 60:02}m"
