"""The least that an ASGI server can hold open: a stream that has begun, and notices when its client leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop

from bench.topology import HOST
from deploy.ports import free_port

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def serve(pipe: Connection) -> None:
    """Tell the port, then serve for ever."""

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001 - ASGI
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b": hello\n\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    async def all_of_it() -> None:
        port = free_port()
        config = uvicorn.Config(app, host=HOST, port=port, log_config=None, lifespan="off", backlog=2048)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        pipe.send((True, port))
        await serving

    uvloop.run(all_of_it())
