"""What counts as the broker's passing trouble, which is waited out, and what as a defect, which is not."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from redis.exceptions import ResponseError

from shared.broker import is_trouble


def test_a_write_to_a_cut_connection_is_trouble_on_either_loop() -> None:
    """A front end's loop refuses the write with an error of its own: it is a lost connection all the same."""

    async def write() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.transport.abort()
            await asyncio.sleep(0)
            writer.writelines([b"PING"])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, pytest.raises(RuntimeError) as raised:
        runner.run(write())
    assert is_trouble(raised.value)


def test_a_defect_is_no_trouble() -> None:
    """An error in a script or in our code is not waited out."""
    assert not is_trouble(ResponseError("ERR wrong number of arguments"))
    assert not is_trouble(RuntimeError("20 enders in a row"))
