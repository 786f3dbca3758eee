"""A client that follows a turn to its end, whatever happens to its streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import orjson

from tests.support.client import Frame, read_frame, terminal
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.client import Client


class Follower:
    """A client that comes back with its cursor until the turn has ended, and begins anew when it is told to.

    ``told`` has every event that it ever got, by id; ``twice`` the ids under which it got two.
    """

    def __init__(self, *clients: Client) -> None:
        self._clients = clients
        self.frames: list[Frame] = []
        self.told: dict[str, Any] = {}
        self.twice: set[str] = set()
        self.statuses: list[int] = []

    def take(self, frame: Frame) -> None:
        """A frame came in."""
        self.frames.append(frame)
        if self.told.setdefault(frame.id, frame.data) != frame.data:
            self.twice.add(frame.id)

    async def follow(self, session: str, task: str, *, pause: Callable[[], Any] | None = None) -> None:
        """To the end, at one front end after the other."""
        while not terminal(self.frames):
            client = self._clients[len(self.statuses) % len(self._clients)]
            headers = {"Last-Event-ID": self.frames[-1].id} if self.frames else {}
            params = {"session_id": session, "response_id": task}
            try:
                async with client.http.stream("GET", "/process", params=params, headers=headers) as answer:
                    self.statuses.append(answer.status_code)
                    if answer.status_code == 410:
                        assert orjson.loads(await answer.aread())["code"] == "cursor_gone"
                        self.frames.clear()
                    elif answer.status_code == 200:
                        await self._read(answer)
            except httpx.HTTPError:
                pass
            if pause is not None and not terminal(self.frames):
                await wait_until(pause, "the time to come back")

    async def _read(self, answer: httpx.Response) -> None:
        rest = b""
        async for piece in answer.aiter_raw():
            *whole, rest = (rest + piece).split(b"\n\n")
            for raw in whole:
                frame = read_frame(raw)
                if frame.data is not None:
                    self.take(frame)
