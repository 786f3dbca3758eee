"""The least that can stand between a broker and its clients: what is published goes to raw sockets as it is.

One hiredis reader on one subscription, no HTTP, no log, no cursor, no order kept but the broker's. A client
says which channel it wants in its first line.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import hiredis
import uvloop

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

HOST = "127.0.0.1"


class _Broker(asyncio.Protocol):
    def __init__(self) -> None:
        self.followers: dict[bytes, list[asyncio.Transport]] = {}
        self._reader = hiredis.Reader()
        self._transport: asyncio.Transport | None = None

    def follow(self, channel: bytes, client: asyncio.Transport) -> None:
        followers = self.followers.setdefault(channel, [])
        followers.append(client)
        if len(followers) > 1:
            client.write(b"following\n")
        elif self._transport is not None:
            self._transport.write(b"*2\r\n$9\r\nSUBSCRIBE\r\n$%d\r\n%b\r\n" % (len(channel), channel))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        reader, followers = self._reader, self.followers
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            if reply[0] == b"message":
                frame = reply[2]
                for client in followers[reply[1]]:
                    client.write(frame)
            else:
                followers[reply[1]][0].write(b"following\n")


class _Client(asyncio.Protocol):
    def __init__(self, broker: _Broker) -> None:
        self._broker = broker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._broker.follow(data.strip(), self._transport)


def serve(pipe: Connection, broker_port: int) -> None:
    """Tell the port, then relay for ever."""

    async def relay() -> None:
        loop = asyncio.get_running_loop()
        _, broker = await loop.create_connection(_Broker, HOST, broker_port)
        server = await loop.create_server(lambda: _Client(broker), HOST, 0, backlog=1024)
        pipe.send((True, server.sockets[0].getsockname()[1]))
        await server.serve_forever()

    uvloop.run(relay())
