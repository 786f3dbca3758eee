"""A process's link to its supervisor, whatever comes over it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import orjson
import pytest

from tests.support.waiting import wait_until
from turnstream.shared.siblings import ANSWER_SECONDS, Question, Siblings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def _linked() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.Event]]:
    """The supervisor's end of a link, and what is set when the process is to stop."""
    ours, theirs = socket.socketpair()
    stopped = asyncio.Event()
    reader, writer = await asyncio.open_connection(sock=ours)
    siblings = Siblings(theirs)
    siblings.answer(Question.WORKER_READY, _ready)
    async with siblings.linked(stopped.set):
        assert orjson.loads(await reader.readline()) == {"linked": True}
        assert orjson.loads(await reader.readline()) == {"ready": True}
        yield reader, writer, stopped
    writer.close()


async def _ready() -> str:
    return ""


@pytest.mark.parametrize(
    "last", [b"", b'{"answers": 1, "texts": ["# HE'], ids=["between lines", "within a line"]
)
async def test_a_process_stops_when_its_supervisor_is_killed(last: bytes) -> None:
    """Also while that wrote: nothing would end the process any more."""
    async with _linked() as (_, writer, stopped):
        writer.write(last)
        writer.close()
        await wait_until(stopped.is_set, "the process to stop")


async def test_a_question_of_another_release_is_not_answered_and_harms_nothing() -> None:
    """After a roll a sibling may be newer; what else it asks is answered, and the supervisor is heard."""
    async with _linked() as (reader, writer, stopped):
        for number, question in enumerate(("new", Question.WORKER_READY)):
            writer.write(orjson.dumps({"question": question, "reply": number}) + b"\n")
        async with asyncio.timeout(ANSWER_SECONDS):
            assert orjson.loads(await reader.readline()) == {"reply": 1, "text": ""}
        assert not stopped.is_set()
        writer.write(b'{"stop": true}\n')
        await wait_until(stopped.is_set, "the process to stop")
