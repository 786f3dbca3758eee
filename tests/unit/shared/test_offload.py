"""Threads for large data: an owner's work is done in turn, and does not hold up another's."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from turnstream.shared.offload import LARGE_BYTES, ThreadOffload

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def offload() -> Iterator[ThreadOffload]:
    """Threads, and their end."""
    offload = ThreadOffload()
    yield offload
    offload.close()


async def test_owners_do_not_wait_for_each_other(offload: ThreadOffload) -> None:
    """One owner's second work begins after the first has ended; another owner's does not wait for either."""
    release, began = threading.Event(), threading.Event()
    done: list[str] = []

    def long() -> None:
        began.set()
        release.wait()
        done.append("first")

    first = asyncio.create_task(offload.run("eve", long))
    await asyncio.to_thread(began.wait)
    second = asyncio.create_task(offload.run("eve", done.append, "second"))
    await offload.run("bob", done.append, "bob")
    assert done == ["bob"]
    release.set()
    await asyncio.gather(first, second)
    assert done == ["bob", "first", "second"]


async def test_an_error_is_the_callers(offload: ThreadOffload) -> None:
    """It is raised where the work was asked for, and the owner's next work is done."""
    with pytest.raises(ZeroDivisionError):
        await offload.run("eve", lambda: 1 // 0)
    assert await offload.run("eve", int, "3") == 3


async def test_only_large_work_leaves_the_loop(offload: ThreadOffload) -> None:
    """To hand over what is small costs more than to do it."""
    here = threading.get_ident()
    assert await offload.run_large("eve", LARGE_BYTES, threading.get_ident) == here
    assert await offload.run_large("eve", LARGE_BYTES + 1, threading.get_ident) != here
