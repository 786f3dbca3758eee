"""The command line: one command a role, each thin; what it starts lives in its own package."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import orjson
import typer

from turnstream import dev_keys, environment, exit_codes, project
from turnstream.escaping import escaped
from turnstream.models import app as models_app
from turnstream.models import change
from turnstream.sessions import app as sessions_app
from turnstream.shared import settings as settings_module
from turnstream.shared.errors import ConfigurationError, TurnstreamError
from turnstream.shared.version import VERSION
from turnstream.tasks import LOCAL, AsJson, Ref, Url, admin, became, path_of
from turnstream.tasks import app as tasks_app

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from turnstream.shared.api_keys import Scope
    from turnstream.shared.siblings import Siblings

app = typer.Typer(
    name="turnstream",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
keys_app = typer.Typer(help="API keys.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")
agents_app = typer.Typer(help="Agents: list them, check the agents file.", no_args_is_help=True)
app.add_typer(agents_app, name="agents")
app.add_typer(tasks_app, name="tasks")
app.add_typer(models_app, name="models")
app.add_typer(sessions_app, name="sessions")

Host = Annotated[str | None, typer.Option(help="Address to listen on [TURNSTREAM_HOST].")]
Port = Annotated[int | None, typer.Option(help="Port to listen on, 0 for a free one [TURNSTREAM_PORT].")]
Processes = Annotated[
    str | None,
    typer.Option(
        help="Processes under one supervisor; `auto`: one for each core that may be used [TURNSTREAM_PROCESSES]."
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"turnstream {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Serves chat agents from a pool of workers."""


class ScopeName(StrEnum):
    """What a key may do."""

    CHAT = "chat"
    ADMIN = "admin"


@app.command()
def serve(
    file: Annotated[
        Path | None,
        typer.Argument(help="The agents file [TURNSTREAM_AGENTS]; the chat key is for its first agent then."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="The agent that the chat key is for [TURNSTREAM_DEV_AGENT].")
    ] = None,
    host: Host = None,
    port: Port = None,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Take edits of the agents file and of code beside it over at once."),
    ] = False,
    processes: Processes = None,
) -> None:
    """Front end, worker and broker in one process: for a first try, and for small deployments. Reads `.env`."""
    environment.read_file()
    settings = settings_module.load(agents=file, dev_agent=agent, host=host, port=port, processes=processes)
    if file is not None:
        settings = project.of_folder(settings)
    if reload and settings.agents is None:
        raise ConfigurationError(
            "--reload watches the folder of the agents file: name it, or set TURNSTREAM_AGENTS."
        )
    _serve(settings, reload=reload)


@app.command()
def dev(
    host: Host = None,
    port: Port = None,
    open_console: Annotated[
        bool, typer.Option("--open", help="Open the console in the browser, with the chat key.")
    ] = False,
) -> None:
    """`serve --reload` for the `agents.toml` of this folder, which the key that is printed chats with: for developers."""
    environment.read_file()
    settings = project.of_folder(settings_module.load(host=host, port=port))
    _serve(settings, reload=settings.agents is not None, open_console=open_console)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where; made if need be.")] = Path(),
) -> None:
    """Write a new project: an agent with a tool and a client function, a client, and a test. Overwrites nothing."""
    for name in project.init(folder):
        typer.echo(f"wrote  {folder / name}")
    inside = "" if folder == Path() else f"  cd {folder}\n"
    typer.echo(
        f"""
Next:

{inside}  turnstream dev                               # serves the agent; edit shop.py, and the next turn has it
  turnstream chat "/tool discount 80 25"       # in a second terminal
  python client.py                             # the same from Python, with a function that the agent calls
  pip install pytest && pytest                 # the tests need no server
"""
    )


def _serve(settings: settings_module.Settings, *, reload: bool, open_console: bool = False) -> None:
    if settings.processes != 1 and (reload or settings.embedded):
        raise ConfigurationError(
            f"TURNSTREAM_PROCESSES = {settings.processes!r}: "
            + (
                "--reload has one process."
                if reload
                else f"TURNSTREAM_REDIS_URL is {settings_module.MEMORY_URL}, the broker inside one process, which others "
                "could not reach. Set it to a Redis or Valkey, as redis://127.0.0.1:6379/0, or leave it at 1."
            )
        )

    def program(siblings: Siblings) -> Coroutine[Any, Any, None]:
        from turnstream.serve import serve as run

        return run(settings, siblings, reload=reload, open_console=open_console)

    _start(settings, "serve", program)


@app.command()
def api(host: Host = None, port: Port = None, processes: Processes = None) -> None:
    """One front end; run any number of them."""
    settings = settings_module.load(host=host, port=port, processes=processes)

    def program(siblings: Siblings) -> Coroutine[Any, Any, None]:
        from turnstream.roles import run_api

        return run_api(settings, siblings)

    _start(settings, "api", program)


@app.command()
def worker(
    max_jobs: Annotated[int | None, typer.Option(help="Turns run at once [TURNSTREAM_MAX_JOBS].")] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="Port for /metrics, /healthz and /readyz, 0 for a free one [TURNSTREAM_METRICS_PORT]."
        ),
    ] = None,
    processes: Processes = None,
) -> None:
    """One worker; run any number of them."""
    settings = settings_module.load(max_jobs=max_jobs, metrics_port=metrics_port, processes=processes)

    def program(siblings: Siblings) -> Coroutine[Any, Any, None]:
        from turnstream.roles import run_worker

        return run_worker(settings, siblings)

    _start(settings, "worker", program)


@app.command()
def chat(
    message: Annotated[str | None, typer.Argument(help="One turn; without it, a conversation.")] = None,
    url: Annotated[
        str, typer.Option(envvar="TURNSTREAM_URL", help="The front end.")
    ] = "http://127.0.0.1:8090",
    key: Annotated[
        str, typer.Option(envvar="TURNSTREAM_KEY", help="The API key; better given by the variable.")
    ] = "",
    agent: Annotated[str, typer.Option(help="Make sure that the key speaks to this agent.")] = "",
    session: Annotated[str, typer.Option(help="Go on with this session; without it, a new one.")] = "",
) -> None:
    """Chat with an agent. On a terminal, live; in a pipe, one turn a line, as plain text."""
    from turnstream.chat.conversation import Options
    from turnstream.chat.conversation import chat as run
    from turnstream.client import ClientError

    key = key or dev_keys.kept("dev_key", url)
    if not key:
        raise ConfigurationError(
            "Give the API key: set TURNSTREAM_KEY, use --key, or be in the folder of `turnstream dev`."
        )
    try:
        code = asyncio.run(run(Options(url, key, agent, session, message)))
    except (ClientError, ValueError) as error:
        _fail(str(error), exit_codes.of(error))
    except KeyboardInterrupt:
        code = exit_codes.ExitCode.INTERRUPTED
    sys.exit(code)


@app.command()
def doctor(
    url: Annotated[
        str, typer.Option(envvar="TURNSTREAM_URL", help="The address that clients use, proxies and all.")
    ] = "http://127.0.0.1:8090",
    key: Annotated[
        str,
        typer.Option(
            envvar="TURNSTREAM_KEY", help="A chat key to time a stream with; better given by the variable."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Look at broker, workers and proxies from outside, and say what to do. Exit code 1: something is wrong."""
    from turnstream.doctor.command import examine

    if not asyncio.run(examine(settings_module.load(), url, key, as_json=as_json)):
        raise typer.Exit(exit_codes.ExitCode.NEGATIVE)


@app.command()
def replay(
    ref: Ref,
    agent: Annotated[
        str, typer.Option(help="Who answers now; left out, the agent that did, as it is by now.")
    ] = "",
    url: Url = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Say a recorded turn again, to a changed agent or another one, and show what differs. Exit code 1: something does.

    Tools run, models are asked, both for real; the client's answers are the recorded ones. Earlier turns of the session are not known.
    """
    from turnstream.client import ClientError
    from turnstream.replay import replay as run

    path_of(ref)
    with admin(url) as asked:
        try:
            found = run(asked, url, ref, agent)
        except ClientError as error:
            _fail(str(error), exit_codes.of(error))
    if as_json:
        typer.echo(escaped(orjson.dumps(found.as_json()).decode()))
    else:
        for line in found.diff or [f"no difference: {found.ref}"]:
            typer.echo(escaped(line))
    if found.diff:
        raise typer.Exit(exit_codes.ExitCode.NEGATIVE)


@keys_app.command("create")
def keys_create(
    owner: Annotated[str, typer.Option(help="Who the key speaks for; several keys may share an owner.")],
    agent: Annotated[
        list[str] | None,
        typer.Option(
            help="The agent that the key selects, else demo; repeat for those that OpenAI's clients may name as their model."
        ),
    ] = None,
    scope: Annotated[
        list[ScopeName] | None, typer.Option(help="What the key may do; repeat for several.")
    ] = None,
    days: Annotated[int, typer.Option(min=0, max=36_500, help="Days until it expires; 0 is never.")] = 0,
    rate: Annotated[
        int,
        typer.Option(min=0, max=100_000, help="Turns that the owner may begin in a minute; 0 is any number."),
    ] = 0,
    concurrency: Annotated[
        int, typer.Option(min=0, max=100_000, help="Turns that may be queued or running; 0 is any number.")
    ] = 0,
    followers: Annotated[
        int, typer.Option(min=0, max=100_000, help="Streams at once, over all front ends; 0 is any number.")
    ] = 0,
    storage: Annotated[
        str,
        typer.Option(
            help="What the owner's sessions may hold, as 200M; 0 is a quarter of the broker's `maxmemory`."
        ),
    ] = "0",
    note: Annotated[
        str, typer.Option(help="Who the key is for: one line of 200 characters at most, which lists tell.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown once, and kept only as a hash."""
    from turnstream import sizes
    from turnstream.keys import create, made
    from turnstream.shared.api_keys import Limits

    scopes: tuple[Scope, ...] = tuple(
        "admin" if each is ScopeName.ADMIN else "chat" for each in scope or [ScopeName.CHAT]
    )
    settings = _scaled(settings_module.load(), "keys create")
    try:
        limits = Limits(rate=rate, concurrency=concurrency, followers=followers, storage=sizes.read(storage))
    except ValueError as error:
        raise ConfigurationError(f"--storage: {error}") from None
    key = asyncio.run(create(settings, owner, agent or ["demo"], scopes, days, limits, note))
    typer.echo(made(*key, as_json=as_json))


@keys_app.command("list")
def keys_list(as_json: AsJson = False) -> None:
    """List all keys: what they may do, since when and until when, their last use, and their notes. The keys themselves are not kept."""
    from turnstream.keys import listed

    for line in asyncio.run(listed(_scaled(settings_module.load(), "keys list"), as_json=as_json)):
        typer.echo(line)


KeyId = Annotated[str, typer.Argument(metavar="ID", help="As `turnstream keys list` tells it.")]


@keys_app.command("revoke")
def keys_revoke(key: KeyId, as_json: AsJson = False) -> None:
    """Forget a key. It is refused everywhere within 10 seconds; turns that run go on."""
    from turnstream.keys import revoke

    asyncio.run(revoke(_scaled(settings_module.load(), "keys revoke"), key))
    if as_json:
        typer.echo(became("revoked", key, {"id": key}, as_json=True))


@keys_app.command("rotate")
def keys_rotate(
    key: KeyId,
    hours: Annotated[
        float, typer.Option(min=0, max=8760, help="How long the former key goes on working; 0 ends it now.")
    ] = 24,
    as_json: AsJson = False,
) -> None:
    """Make a key's successor, which may do the same. It is shown once."""
    from turnstream.keys import made, rotate

    successor = asyncio.run(rotate(_scaled(settings_module.load(), "keys rotate"), key, hours))
    typer.echo(made(*successor, as_json=as_json))


@agents_app.command("list")
def agents_list(url: Url = LOCAL, as_json: AsJson = False) -> None:
    """List the agents that a front end knows, as keys can select them."""
    from turnstream.table import listed

    with admin(url) as asked:
        rows = asked.ask("GET", "agents")["agents"]
    headings = ("AGENT", "MODEL", "BUSY", "STATE", "DESCRIPTION")

    def row(agent: dict[str, Any]) -> list[str]:
        told = {**agent, "state": "held" if "held_since" in agent else "open"}
        return [told[name.lower()] for name in headings]

    for line in listed(rows, headings, row, as_json=as_json):
        typer.echo(line)


AgentName = Annotated[str, typer.Argument(metavar="AGENT", help="As `turnstream agents list` tells it.")]


@agents_app.command("hold")
def agents_hold(agent: AgentName, url: Url = LOCAL, as_json: AsJson = False) -> None:
    """Have an agent begin nothing: its turns wait until it is resumed. What it streams goes on."""
    change("agents", "hold", "agent", agent, url, as_json=as_json)


@agents_app.command("resume")
def agents_resume(agent: AgentName, url: Url = LOCAL, as_json: AsJson = False) -> None:
    """End an agent's hold. Turns that wait come back within 30 seconds."""
    change("agents", "resume", "agent", agent, url, as_json=as_json)


@agents_app.command("check")
def agents_check(
    path: Annotated[Path | None, typer.Argument(help="The file [TURNSTREAM_AGENTS].")] = None,
) -> None:
    """Check an agents file with its models and tools, as a worker would at its start; nothing is called."""
    from turnstream.agents import check

    environment.read_file()
    path = path or settings_module.load().agents
    if path is None:
        raise ConfigurationError("Name the file: turnstream agents check PATH, or set TURNSTREAM_AGENTS.")
    typer.echo(check(path))


def main() -> None:
    """The program: errors of configuration are said in words, without a traceback."""
    from turnstream import logs

    logs.configure()
    try:
        app()
    except TurnstreamError as error:
        _fail(error.public_text, exit_codes.of(error))
    except ModuleNotFoundError as error:
        if find_spec("arq") is not None:
            raise
        _fail(
            f"This command needs the server's packages ({error.name} is missing): pip install 'turnstream[server]'"
        )


def _scaled(settings: settings_module.Settings, command: str) -> settings_module.Settings:
    session_url = settings.session_redis_url
    if settings.embedded or (session_url and session_url.get_secret_value().startswith("memory")):
        raise ConfigurationError(
            f"TURNSTREAM_REDIS_URL is {settings_module.MEMORY_URL}, the broker inside one process: nobody else could "
            f"reach what `turnstream {command}` does. Set it to a Redis or Valkey, as redis://127.0.0.1:6379/0, "
            + (
                "or use the operator's page of `turnstream serve`, which lists, makes and revokes its keys."
                if command.startswith("keys ")
                else "or run `turnstream serve`."
            )
        )
    return settings


def _start(
    settings: settings_module.Settings, role: str, program: Callable[[Siblings], Coroutine[Any, Any, None]]
) -> None:
    """Run a role: in this process, or in several under a supervisor."""
    import starlette  # noqa: F401 - without the server's packages, that is what to say first

    from turnstream.cores import usable
    from turnstream.process import run
    from turnstream.shared.siblings import Siblings

    if role != "serve":
        settings = _scaled(settings, role)
    siblings = Siblings.of_environment()
    if not siblings.supervised:
        environment.warn_of_unknown()
    processes = usable() if settings.processes == "auto" else settings.processes
    if processes == 1 or siblings.supervised:
        run(program(siblings))
        return
    from turnstream.supervisor import StartError, Supervisor

    try:
        run(Supervisor(settings, role, processes).run())
    except StartError as error:
        sys.exit(error.code)


def _fail(text: str, code: int = exit_codes.ExitCode.USAGE) -> NoReturn:
    for line in text.splitlines():
        typer.secho(f"turnstream: {line}", fg="red", err=True)
    sys.exit(code)
