"""``turnstream models``: which models may be asked, and an operator's hold and its end, through any front end."""

from __future__ import annotations

import time
from typing import Annotated, Any

import orjson
import typer

from turnstream.escaping import escaped
from turnstream.tasks import LOCAL, AsJson, Url, admin, age

app = typer.Typer(help="Models: list them, hold one, resume it.", no_args_is_help=True)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="As `turnstream models list` tells it.")]

_HEADINGS = ("MODEL", "STATE", "SINCE", "RUNNING", "FAILURES")


@app.command("list")
def list_models(url: Url = LOCAL, as_json: AsJson = False) -> None:
    """List the models that agents have: which may be asked (closed), and which not (open, probing, held)."""
    from turnstream.table import listed

    with admin(url) as asked:
        rows = asked.ask("GET", "models")["models"]
    for line in listed(rows, _HEADINGS, _row, as_json=as_json):
        typer.echo(line)


@app.command()
def hold(model: Model, url: Url = LOCAL, as_json: AsJson = False) -> None:
    """Let no request to a model begin. Turns wait, or use their agent's fallback; what it streams goes on."""
    change("models", "hold", "model", model, url, as_json=as_json)


@app.command()
def resume(model: Model, url: Url = LOCAL, as_json: AsJson = False) -> None:
    """End a hold, and close the model's breaker. Turns that wait come back within 30 seconds."""
    change("models", "resume", "model", model, url, as_json=as_json)


def change(kind: str, what: str, field: str, name: str, url: str, *, as_json: bool) -> None:
    """Hold or resume a model or an agent, and tell what became of it."""
    with admin(url) as asked:
        told = asked.ask("POST", f"{kind}/{what}", json={field: name})
    words = f"{told['state']}  {told[field]}{'' if told['changed'] else ' (as before)'}"
    typer.echo(escaped(orjson.dumps(told).decode() if as_json else words))


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    since = age(max(0.0, time.time() - row["since"])) if "since" in row else ""
    running = f"{row.get('running', 0)} of {row['limit']}" if "limit" in row else ""
    return row["model"], row["state"], since, running, str(row["failures"])
