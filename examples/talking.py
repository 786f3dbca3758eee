"""The client's side of the examples, in plain Python: `turnstream serve` with one agents file, and a chat with it.

With ``TURNSTREAM_URL`` and ``TURNSTREAM_KEY`` set it speaks to a server that runs already.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


class Chat:
    """One session."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key
        self.session = secrets.token_hex(8)

    def say(self, text: str) -> Iterator[dict[str, Any]]:
        """Begin a turn; its events as they come. Deltas of the answer's text are printed."""
        message = {"role": "user", "content": [{"type": "text", "text": text}]}
        print(f"\nYou: {text}\nAgent: ", end="")
        waiting: dict[str, str] = {}
        with self._post("/process", {"session_id": self.session, "input": [message]}) as stream:
            for line in stream:
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    _print(event, waiting)
                    yield event
        print()

    def answer(self, call: str, result: Any) -> None:
        """Answer a function call, or a request for approval; the turn goes on, and so does its stream."""
        self._post(f"/liteAgent/v1/callback?sessionId={self.session}", {"id": call, "result": result}).close()

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        return urlopen(Request(self._url + path, json.dumps(body).encode(), headers))  # noqa: S310 - our own URL


def _print(event: dict[str, Any], waiting: dict[str, str]) -> None:
    """Print a piece of text; sub-agents speak at once, so what others say waits until one has finished."""
    if event["object"] == "content" and event.get("delta") and event["type"] == "text":
        message = event["msg_id"]
        if message == next(iter(waiting), message):
            print(event["text"], end="", flush=True)
            waiting[message] = ""
        else:
            waiting[message] = waiting.get(message, "") + event["text"]
    elif event["object"] == "message" and event["status"] in {"completed", "incomplete"}:
        first = next(iter(waiting), None)
        if event["id"] == first:
            del waiting[event["id"]]
            if waiting:
                print("\n" + waiting[next(iter(waiting))], end="", flush=True)
        elif event["id"] in waiting:
            # It has finished before its turn came.
            print("\n" + waiting.pop(event["id"]), end="", flush=True)


def data_of(event: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """What a completed message of that type holds; None for any other event."""
    if event["object"] == "message" and event["type"] == kind and event["status"] == "completed":
        data: dict[str, Any] = event["content"][0]["data"]
        return data
    return None


@contextmanager
def serving(agents: str, agent: str) -> Iterator[Chat]:
    """Serve the agents of a file beside this one; a chat with one of them."""
    if url := os.environ.get("TURNSTREAM_URL"):
        yield Chat(url, os.environ["TURNSTREAM_KEY"])
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key = "sk-" + secrets.token_hex(16)
    environment = {
        **os.environ,
        "TURNSTREAM_AGENTS": str(HERE / agents),
        "TURNSTREAM_DEV_AGENT": agent,
        "TURNSTREAM_DEV_KEY": key,
    }
    command = [sys.executable, "-m", "turnstream", "serve", "--port", str(port)]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(  # noqa: S603 - our own command
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as server,
    ):
        try:
            if not any("is ready" in line for line in server.stdout or ()):
                log.seek(0)
                raise SystemExit(f"The server did not start:\n{log.read()}")
            yield Chat(f"http://127.0.0.1:{port}", key)
        finally:
            server.terminate()
