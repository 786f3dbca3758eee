"""``turnstream tasks``: what runs, and what to do about it, through any front end."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from turnstream.escaping import escaped
from turnstream.shared import settings as settings_module
from turnstream.shared.session.status import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from turnstream.admin import Admin

app = typer.Typer(help="Tasks: list them, look at one, stop them, watch one.", no_args_is_help=True)

Url = Annotated[str, typer.Option(envvar="TURNSTREAM_URL", help="A front end.")]
Ref = Annotated[
    str, typer.Argument(metavar="OWNER/SESSION/TASK", help="As `turnstream tasks list` tells it.")
]
Status = Annotated[
    str | None,
    typer.Option(
        help="queued, running, parked, completed, failed, canceled, or live; commas between several."
    ),
]
Owner = Annotated[str | None, typer.Option(help="Of this owner only.")]
Agent = Annotated[str | None, typer.Option(help="Of this agent only.")]
Session = Annotated[str | None, typer.Option(help="Of sessions of this name only.")]
OlderThan = Annotated[float | None, typer.Option(help="Submitted so many seconds ago or longer.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, a line each, for programs.")]

LOCAL = "http://127.0.0.1:8090"

_HEADINGS = (
    "TASK",
    "STATUS",
    "AGENT",
    "VERSION",
    "AGE",
    "TOOK",
    "TOKENS",
    "COST",
    "ATTEMPT",
    "WORKER",
    "ENDED BY",
    "WHY",
)

# What a task that has not ended may be.
LIVE = ("queued", "running", "parked")

# Tasks of one answer.
MOST_OF_A_PAGE = 200

NOT_FOUND = 404

# Between two tries to come back to a stream that broke off, and how often that is tried in a row.
RETRY_SECONDS = 1.0
MOST_RETRIES = 10


@app.command("list")
def list_tasks(
    url: Url = LOCAL,
    status: Status = None,
    owner: Owner = None,
    agent: Agent = None,
    session: Session = None,
    older_than: OlderThan = None,
    younger_than: Annotated[float | None, typer.Option(help="Submitted at most so many seconds ago.")] = None,
    worker: Annotated[
        str | None, typer.Option(help="Of those that this worker runs, or ran last, only.")
    ] = None,
    why: Annotated[str | None, typer.Option(help="Of those only that ended with this code.")] = None,
    search: Annotated[
        str | None,
        typer.Option(
            help="Only those with this in their ref, agent, user, worker, code or error, in any case."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Tasks told at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List tasks, newest first; those that have not ended, unless --status says otherwise, or --why is given."""
    from turnstream.table import listed

    if status is None and why is None:
        status = "live"
    wanted = _conditions(
        status=status,
        owner=owner,
        agent=agent,
        session=session,
        older_than=older_than,
        younger_than=younger_than,
        worker=worker,
        why=why,
        search=search,
    )
    with admin(url) as asked:
        rows = list(_rows(asked, wanted, limit))
    for line in listed(rows, _HEADINGS, _row, as_json=as_json):
        typer.echo(line)


def _rows(admin: Admin, wanted: dict[str, Any], limit: int | None = None) -> Iterator[dict[str, Any]]:
    """The tasks that fit, newest first; all of them, or so many."""
    cursor: str | None = ""
    while cursor is not None and limit != 0:
        most = MOST_OF_A_PAGE if limit is None else min(MOST_OF_A_PAGE, limit)
        page = admin.ask("GET", "tasks", params={**wanted, "limit": most, "cursor": cursor})
        yield from page["tasks"]
        limit = None if limit is None else limit - len(page["tasks"])
        cursor = page["next"]


@app.command()
def show(ref: Ref, url: Url = LOCAL, as_json: AsJson = False) -> None:
    """Show one task and the calls that its client has not answered."""
    with admin(url) as asked:
        task = asked.ask("GET", f"tasks/{path_of(ref)}")
    if as_json:
        typer.echo(escaped(orjson.dumps(task).decode()))
        return
    calls, traceback = task.pop("calls"), task.pop("traceback", "")
    width = max(len(name) for name in task)
    for name, value in task.items():
        typer.echo(escaped(f"{name.ljust(width)}  {_told(name, value)}"))
    for call in calls:
        typer.echo(escaped(f"waits for {call['kind']} {call['name']} ({call['call']})"))
    for line in traceback.splitlines():
        typer.echo(escaped(line))


@app.command()
def stop(
    refs: Annotated[
        list[str] | None, typer.Argument(metavar="[OWNER/SESSION/TASK]…", help="The tasks to stop.")
    ] = None,
    url: Url = LOCAL,
    status: Status = None,
    owner: Owner = None,
    agent: Agent = None,
    session: Session = None,
    older_than: OlderThan = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Stop nothing: tell which it would be.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop the tasks that are named, or all live ones that fit the options. Their ends are in the log then."""
    from turnstream.shared.errors import ConfigurationError

    wanted = _conditions(status=status, owner=owner, agent=agent, session=session, older_than=older_than)
    if status is not None:
        wanted["status"] = [*LIVE] if status == "live" else status.split(",")
    if bool(refs) == bool(wanted):
        raise ConfigurationError(
            "Name tasks, or say by options which are meant: --status live means all of them."
        )
    for ref in refs or ():
        path_of(ref)
    missing = False
    with admin(url) as asked:
        if dry_run:
            outcomes = _named(asked, refs) if refs else _fitting(asked, wanted)
        else:
            outcomes = _stopped(asked, {"refs": refs} if refs else wanted)
        for outcome, ref in outcomes:
            typer.echo(became(outcome, ref, {"ref": ref}, as_json=as_json))
            missing = missing or outcome == "missing"
    if missing:
        raise typer.Exit(1)


def _stopped(admin: Admin, meant: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What became of each task that was meant."""
    more = True
    while more:
        told = admin.ask("POST", "stop", json=meant)
        yield from ((outcome, ref) for outcome in ("stopped", "ended", "missing") for ref in told[outcome])
        more = told["more"]


def _named(admin: Admin, refs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What would become of each of these tasks."""
    from turnstream.admin import Refusal

    for ref in refs:
        try:
            status = admin.ask("GET", f"tasks/{path_of(ref)}")["status"]
        except Refusal as refusal:
            if refusal.answered != NOT_FOUND:
                raise
            yield "missing", ref
        else:
            yield "would stop" if status in LIVE else "ended", ref


def _fitting(admin: Admin, wanted: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each task that would be stopped."""
    meant = {**wanted, "status": ",".join(wanted.get("status", LIVE))}
    yield from (("would stop", row["ref"]) for row in _rows(admin, meant))


@app.command()
def tail(ref: Ref, url: Url = LOCAL, as_json: AsJson = False) -> None:
    """Watch a task's events from its first one to its end; comes back by itself when the connection breaks."""
    with admin(url) as asked:
        for event in _events(asked, f"tasks/{path_of(ref)}/follow"):
            typer.echo(escaped(orjson.dumps(event).decode() if as_json else _line(event)))


def became(outcome: str, words: str, named: dict[str, str], *, as_json: bool) -> str:
    """A line that says what became of something."""
    return escaped(orjson.dumps({**named, "outcome": outcome}).decode() if as_json else f"{outcome}  {words}")


def _events(admin: Admin, path: str) -> Iterator[dict[str, Any]]:
    """The events of a task, each once, until its end.

    Raises:
        Refusal: the front end will not show them, was never reached, or `MOST_RETRIES` in a row brought nothing.
    """
    from turnstream.admin import Refusal

    cursor, failures, reached = "", 0, False
    while True:
        trouble = Refusal("the stream ended before the task did", passing=True)
        try:
            with admin.events(path, cursor) as events:
                reached = True
                for each in events:
                    event = _read(each.data)
                    # From here on it is told: what breaks within an event is asked for anew.
                    cursor, failures = each.id or cursor, 0
                    yield event
                    if event.get("object") == "response" and event.get("status") in TERMINAL:
                        return
        except Refusal as error:
            trouble = error
        if not (reached and trouble.passing):
            raise trouble
        failures += 1
        if failures > MOST_RETRIES:
            raise Refusal(
                f"{trouble.public_text}. Tried {MOST_RETRIES} times more, in vain: `turnstream tasks show` tells how "
                "the task stands."
            )
        time.sleep(RETRY_SECONDS)


def _read(data: str) -> Any:
    from turnstream.admin import Refusal

    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Refusal("an event is no JSON: is a proxy in between?") from None


def admin(url: str) -> Any:
    """The operators' routes of a front end, to be used as a context manager."""
    from contextlib import closing

    from turnstream.admin import Admin

    return closing(Admin(url, settings_module.load()))


def _conditions(**given: str | float | None) -> dict[str, Any]:
    """The options that were given.

    Raises:
        ConfigurationError: one of them is empty: an unset variable of a script must not mean everything.
    """
    from turnstream.shared.errors import ConfigurationError

    for name, value in given.items():
        if isinstance(value, str) and not value.strip():
            raise ConfigurationError(f"--{name} is empty: give a value, or leave the option out.")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigurationError(f"--{name.replace('_', '-')} = {value}: give a number of seconds.")
    return {name: value for name, value in given.items() if value is not None}


def path_of(ref: str) -> str:
    """The ref as it stands in an address.

    Raises:
        ConfigurationError: it is none.
    """
    from turnstream.shared.errors import ConfigurationError
    from turnstream.shared.names import IDENTIFIER

    parts = ref.split("/")
    if len(parts) != 3 or not all(IDENTIFIER.fullmatch(part) for part in parts):
        raise ConfigurationError(f"{ref!r}: name a task as OWNER/SESSION/TASK")
    return ref


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    status = "waits for turn" if row["waits_for_turn"] else row["status"]
    if "waiting" in row:
        status = "waits"
    took = age(row["took"]) if "took" in row else ""
    tokens = str(row.get("input_tokens", 0) + row.get("output_tokens", 0) or "")
    cost = f"${row['cost_usd']:.4f}" if "cost_usd" in row else ""
    why = _waiting(row["waiting"]) if "waiting" in row else row.get("why", "")
    who = (row.get("worker", ""), row.get("ended_by", ""), why)
    agent = (row["agent"], row.get("agent_version", ""))
    return (row["ref"], status, *agent, age(row["age"]), took, tokens, cost, str(row["attempt"]), *who)


def _waiting(waiting: dict[str, Any]) -> str:
    """What a task waits for, and until when."""
    return f"{waiting['reason']} until {_told('_until', waiting['until'])}"


def age(seconds: float) -> str:
    """Two units at most: 3.2s, 4m05s, 2h10m, 3d04h."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02}h"


def _told(name: str, value: Any) -> str:
    if name.endswith(("_at", "_until")):
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))
    if name == "waiting":
        return _waiting(value)
    return age(value) if name in ("age", "took") else str(value)


def _line(event: dict[str, Any]) -> str:
    """An event in one line: its number, what it is, what it says."""
    kind = event.get("object", "")
    said = event.get("text") or event.get("data") or (event.get("error") or {}).get("message") or ""
    what = " ".join(
        str(part)
        for part in (kind, event.get("type") or "", event.get("role") or "", event.get("status") or "")
        if part
    )
    shown = f"  {orjson.dumps(said).decode()}" if said else ""
    return f"{event.get('sequence_number', ''):>5}  {what}{shown}"
