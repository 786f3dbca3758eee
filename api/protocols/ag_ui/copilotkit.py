"""The routes of CopilotKit's runtime, as its clients ask for them: one for each thing, or one for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnstream.api.http.answers import answer
from turnstream.api.http.body import json_object
from turnstream.api.http.operation import (
    BODY_ERRORS,
    KEY_ERRORS,
    Operation,
    parameter,
)
from turnstream.api.http.params import route
from turnstream.api.http.wire_protocol import WireProtocol
from turnstream.api.protocols.ag_ui.info import info_of
from turnstream.api.protocols.ag_ui.protocol import CONNECT_ERRORS, EVENTS, EXAMPLE, RUN_ERRORS
from turnstream.api.protocols.ag_ui.requests import RunAgentInput, read_run
from turnstream.api.protocols.ag_ui.routes import read_request
from turnstream.api.protocols.ag_ui.runs import connect_agent, run_agent, speaking_to, stop_thread
from turnstream.api.protocols.ag_ui.schemas import Info, Stopped
from turnstream.api.turns.posted import posted
from turnstream.shared.errors import InvalidBody, NoModel, NoSession, Overloaded, TooMany
from turnstream.shared.protocol import explain

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from turnstream.api.access.auth import Caller
    from turnstream.api.protocols.ag_ui.requests import Run
    from turnstream.api.services import Services
    from turnstream.api.streaming.sse import EventStream

PATH = "/copilotkit"
_AGENT = PATH + "/agent/{agent}"

Json = dict[str, Any]
_Short = Annotated[str, Field(max_length=1024)]


class StopBody(BaseModel):
    """Which run to stop."""

    model_config = ConfigDict(extra="allow")

    runId: _Short | None = Field(None, description="Without one, all of the thread's.")  # noqa: N815 - the wire's name


class CallParams(BaseModel):
    """What the addresses say where each thing has its own."""

    model_config = ConfigDict(extra="allow")

    agentId: _Short | None = None  # noqa: N815 - the wire's name
    threadId: _Short | None = None  # noqa: N815 - the wire's name


class RuntimeCall(BaseModel):
    """One thing that is asked of the runtime at its only address."""

    model_config = ConfigDict(extra="allow")

    method: str = Field(description="`info`, `agent/run`, `agent/connect` or `agent/stop`.", max_length=64)
    params: CallParams = CallParams()
    body: Json | None = Field(None, description="What the route of that would be sent.")


class CopilotKitRoutes:
    """Serves CopilotKit's clients."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Info, run, connect, stop; and the one for all of them."""
        return [
            route(PATH, self.call, "POST"),
            route(f"{PATH}/info", self.info, "GET"),
            route(f"{_AGENT}/run", self.run, "POST"),
            route(f"{_AGENT}/connect", self.connect, "POST"),
            route(_AGENT + "/stop/{thread_id}", self.stop, "POST"),
        ]

    async def info(self, request: Request) -> Response:
        """The key's agents."""
        services = self._services
        return answer(Info, info_of(await services.auth.caller(request)))

    async def run(self, request: Request) -> EventStream:
        """Take a turn, or answers; then follow the run."""
        raw, run = await read_request(self._services, request, request.path_params["agent"])
        return await run_agent(self._services, request, run, len(raw))

    async def connect(self, request: Request) -> EventStream | Response:
        """What was said, then what is being said."""
        _, run = await read_request(self._services, request, request.path_params["agent"])
        return await connect_agent(self._services, run)

    async def stop(self, request: Request) -> Response:
        """Stop what runs in a thread. When this answers, its end is in the log."""
        caller, _, body = await posted(self._services, request, _parse_stop)
        caller = speaking_to(caller, request.path_params["agent"])
        return await _stopped(self._services, caller, request.path_params["thread_id"], body)

    async def call(self, request: Request) -> EventStream | Response:
        """Any of these."""
        services = self._services
        caller, raw, (asked, run) = await posted(services, request, _parse_call)
        if run is not None:
            if asked.method == "agent/connect":
                return await connect_agent(services, run)
            return await run_agent(services, request, run, len(raw))
        if asked.method == "info":
            return answer(Info, info_of(caller))
        if asked.method != "agent/stop":
            raise InvalidBody("method: info, agent/run, agent/connect or agent/stop")
        if not asked.params.threadId:
            raise InvalidBody("params.threadId: Field required")
        body = _stop_body(asked.body or {}, "body.")
        return await _stopped(
            services, speaking_to(caller, asked.params.agentId), asked.params.threadId, body
        )


async def _stopped(services: Services, caller: Caller, thread: str, body: StopBody) -> Response:
    return answer(Stopped, {"stopped": await stop_thread(services, caller, thread, body.runId or "")})


def _parse_stop(raw: bytes, caller: Caller) -> StopBody:  # noqa: ARG001 - whoever asks
    return _stop_body(json_object(raw) if raw.strip() else {})


def _stop_body(fields: Json, place: str = "") -> StopBody:
    try:
        return StopBody.model_validate(fields)
    except ValidationError as error:
        raise InvalidBody(place + explain(error)) from None


def _parse_call(raw: bytes, caller: Caller) -> tuple[RuntimeCall, Run | None]:
    try:
        asked = RuntimeCall.model_validate(json_object(raw))
    except ValidationError as error:
        raise InvalidBody(explain(error)) from None
    if asked.method not in ("agent/run", "agent/connect"):
        return asked, None
    return asked, read_run(asked.body or {}, raw, speaking_to(caller, asked.params.agentId))


_PARAMETERS = {
    "copilotAgent": parameter("path", "agent", "An agent of the key.", required=True),
    "copilotThread": parameter("path", "thread_id", "The thread.", required=True),
}

_STOP_ERRORS = KEY_ERRORS | BODY_ERRORS | {NoSession, NoModel, TooMany, Overloaded}

_OPERATIONS = (
    Operation(
        ("POST",),
        PATH,
        "copilotRuntime",
        "Any of the following, as its body says.",
        {200: (EVENTS, Info | Stopped)},
        RUN_ERRORS | CONNECT_ERRORS,
        ("Idempotency-Key", "traceparent"),
        RuntimeCall,
        {
            "info": {"method": "info"},
            "run": {"method": "agent/run", "params": {"agentId": "demo"}, "body": EXAMPLE},
        },
    ),
    Operation(("GET",), f"{PATH}/info", "copilotInfo", "The agents of the key.", {200: (Info,)}, KEY_ERRORS),
    Operation(
        ("POST",),
        f"{_AGENT}/run",
        "copilotRun",
        "Take a user's message, or answers to interrupts or calls, and tell the run that comes of it.",
        {200: (EVENTS,)},
        RUN_ERRORS,
        ("copilotAgent", "Idempotency-Key", "traceparent"),
        RunAgentInput,
        {"run": EXAMPLE},
    ),
    Operation(
        ("POST",),
        f"{_AGENT}/connect",
        "copilotConnect",
        "Tell what was said in a thread, as messages, and its newest run, until that ends. Of a thread that is not known, nothing.",
        {200: (EVENTS,)},
        CONNECT_ERRORS,
        ("copilotAgent",),
        RunAgentInput,
        {"connect": {**EXAMPLE, "messages": []}},
    ),
    Operation(
        ("POST",),
        _AGENT + "/stop/{thread_id}",
        "copilotStop",
        "Stop what runs in a thread. When this answers, its end is in the log.",
        {200: (Stopped,)},
        _STOP_ERRORS,
        ("copilotAgent", "copilotThread"),
        StopBody,
        {"run": {"runId": EXAMPLE["runId"]}},
    ),
)

PROTOCOL = WireProtocol(PATH, CopilotKitRoutes, _OPERATIONS, _PARAMETERS, opt_in=True, in_browsers=True)
