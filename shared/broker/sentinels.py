"""A primary that Sentinels choose: each new connection asks them where it is.

The client library has this; ours are the limits. One Sentinel after the other is asked, and the first that knows a
primary that it can reach is believed, as the Sentinels' own description of clients wants it.

All connections lead to the same server. A former primary that stood still, or is cut off from the Sentinels, serves on for a
while: what one connection has written at the new primary, another one would not find there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from turnstream.shared.broker.connection import Line
    from turnstream.shared.broker.urls import BrokerUrl

# What one Sentinel may take to answer. Several may be away, and a connection is given up after a few seconds.
SENTINEL_SECONDS = 1.0


class _Sentinels(Sentinel):
    """The Sentinels, asked for one connection at a time.

    The library moves the one that answered to the front of its list. Side by side, two such moves put it there twice and
    forget another one for ever.
    """

    def __init__(self, hosts: list[tuple[str, int]], **options: Any) -> None:
        super().__init__(hosts, **options)  # type: ignore[no-untyped-call]
        self._turn = asyncio.Lock()

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        async with self._turn:
            return await super().discover_master(service_name)  # type: ignore[no-any-return]


class SentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the primary of a name, whichever server it is when they are made."""

    def __init__(
        self,
        url: BrokerUrl,
        options: dict[str, Any],
        encryption: dict[str, Any],
        sentinel_password: str | None,
    ) -> None:
        """``options`` are the servers'; ``encryption``, if the URL asks for it, is for them and for the Sentinels.

        So are the URL's own options of encryption, which win.
        """
        encrypted = {"ssl": url.tls, **encryption}
        encrypted |= {name: value for name, value in options.items() if name.startswith("ssl_")}
        asked = _Sentinels(
            url.hosts,
            sentinel_kwargs={
                "password": sentinel_password,
                "socket_connect_timeout": SENTINEL_SECONDS,
                "socket_timeout": SENTINEL_SECONDS,
                "lib_name": "",
                "lib_version": "",
                **encrypted,
            },
        )
        super().__init__(url.name, asked, **{**options, **encrypted})  # type: ignore[no-untyped-call]
        # In the order in which they were opened, as a set would not keep them.
        self._lines: WeakKeyDictionary[Line, None] = WeakKeyDictionary()

    @property
    def sentinels(self) -> dict[str, Redis]:
        """A client of each Sentinel, by its address."""
        return {
            "{host}:{port}".format_map(each.connection_pool.connection_kwargs): each
            for each in self.sentinel_manager.sentinels
        }

    def leads_there(self, address: tuple[str, int]) -> bool:
        """Whether the primary is still where a connection was made to."""
        return bool(address == self.master_address)

    def keep(self, line: Line) -> None:
        """Close this connection, too, when the primary is another one."""
        self._lines[line] = None

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close connections: all, those to Sentinels, too; or, because the primary is another one, those to servers."""
        for line in list(self._lines):
            line.close()
        await super().disconnect(inuse_connections)
        if inuse_connections:
            for each in self.sentinels.values():
                await each.aclose()
