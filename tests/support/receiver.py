"""A client's own server, which webhooks lead to."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator


@dataclass
class Receiver:
    """A client's own server: what it was told, and what it answers."""

    url: str = ""
    told: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def states(self) -> list[str]:
        """The states that it was told."""
        return [each["statusUpdate"]["status"]["state"] for each in self.told]

    async def take(self, got: web.Request) -> web.Response:
        """One message."""
        self.bodies.append(await got.read())
        self.told.append(orjson.loads(self.bodies[-1]))
        self.headers.append({name.lower(): value for name, value in got.headers.items()})
        await self.answers.wait()
        status = self.statuses.pop(0) if self.statuses else 200
        return web.Response(status=status, headers={"Location": self.url} if status == 302 else {})


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A receiver on this machine, perhaps with a certificate."""
    receiver = Receiver()
    receiver.answers.set()
    app = web.Application()
    app.router.add_post("/told", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    receiver.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}/told"
    yield receiver
    await runner.cleanup()
