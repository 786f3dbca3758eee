"""A server that answers what the test tells it to, for answers that no front end of ours gives on demand."""

from __future__ import annotations

import asyncio
import json


class ScriptedServer:
    """Answers one request after the other, each on a connection of its own.

    Attributes:
        answers: a status for an error, or the body of a stream that ends cleanly after it; the last one
            is repeated.
        explains: whether errors say what is wrong.
        retry_after: the header of errors.
        requests: the head of each request.
    """

    def __init__(self) -> None:
        self.answers: list[int | bytes] = []
        self.explains = True
        self.retry_after = "1"
        self.content_type = "text/event-stream"
        self.requests: list[bytes] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    @staticmethod
    def event(cursor: str, number: int, *, status: str) -> bytes:
        """A frame with the event of the response ``turn``."""
        event = {"sequence_number": number, "object": "response", "status": status, "id": "turn"}
        return f"id: {cursor}\ndata: {json.dumps(event)}\n\n".encode()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        await reader.readexactly(length)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        status, kind, extra = 200, self.content_type, ""
        if isinstance(answer, int):
            status, kind, extra = answer, "application/json", f"Retry-After: {self.retry_after}\r\n"
            said = json.dumps({"code": "later", "message": "too many, come again"})
            answer = said.encode() if self.explains else b"<html>nothing here</html>"
        head_out = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(answer)}\r\n{extra}Connection: close\r\n\r\n"
        writer.write(head_out.encode() + answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
