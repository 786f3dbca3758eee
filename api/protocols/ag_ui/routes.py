"""The routes of AG-UI."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from turnstream.api.http.answers import answer
from turnstream.api.http.params import route
from turnstream.api.protocols.ag_ui.info import info_of
from turnstream.api.protocols.ag_ui.requests import parse_run
from turnstream.api.protocols.ag_ui.runs import connect_agent, run_agent, speaking_to, stop_thread
from turnstream.api.protocols.ag_ui.schemas import Info, Stopped

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from turnstream.api.protocols.ag_ui.requests import Run
    from turnstream.api.services import Services
    from turnstream.api.streaming.sse import EventStream

PATH = "/ag-ui"


class AgUiRoutes:
    """Serves AG-UI's clients. A key for several agents names one in the query; else its first is spoken to."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Run, and what AG-UI leaves to its transports: connect, stop, info."""
        return [
            route(PATH, self.run, "POST"),
            route(f"{PATH}/connect", self.connect, "POST"),
            route(PATH + "/stop/{thread_id}", self.stop, "POST"),
            route(f"{PATH}/info", self.info, "GET"),
        ]

    async def run(self, request: Request) -> EventStream:
        """Take a turn, or answers; then follow the run."""
        raw, run = await read_request(self._services, request, request.query_params.get("agent"))
        return await run_agent(self._services, request, run, len(raw))

    async def connect(self, request: Request) -> EventStream | Response:
        """What was said, then what is being said."""
        _, run = await read_request(self._services, request, request.query_params.get("agent"))
        return await connect_agent(self._services, run)

    async def stop(self, request: Request) -> Response:
        """Stop what runs in a thread, or the run that the query names. When this answers, its end is in the log."""
        services, query = self._services, request.query_params
        caller = speaking_to(await services.auth.caller(request), query.get("agent"))
        stopped = await stop_thread(services, caller, request.path_params["thread_id"], query.get("run", ""))
        return answer(Stopped, {"stopped": stopped})

    async def info(self, request: Request) -> Response:
        """The key's agents, and what they can do."""
        services = self._services
        return answer(Info, info_of(await services.auth.caller(request)))


async def read_request(services: Services, request: Request, agent: str | None) -> tuple[bytes, Run]:
    """The body, and what it asks of the agent.

    Raises:
        BadToken, UnknownKey, Forbidden: there is no caller.
        NoModel: the key has no such agent.
        Others: as `Bodies.read` and `parse_run`.
    """
    caller = speaking_to(await services.auth.caller(request), agent)
    async with services.limiter.counting_refusals(caller):
        return await services.bodies.read(request, caller, partial(parse_run, caller=caller))
