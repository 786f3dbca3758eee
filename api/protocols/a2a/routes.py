"""The routes of A2A: its binding of HTTP and JSON, and the one address of JSON-RPC."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from starlette.responses import Response

from turnstream.api.http.body import json_object
from turnstream.api.http.error_shape import Problem
from turnstream.api.http.params import route
from turnstream.api.protocols.a2a import operations
from turnstream.api.protocols.a2a.card import BASE, CardRoutes
from turnstream.api.protocols.a2a.errors import NoAgent, UnsupportedOperation, is_of_the_method, rpc_error
from turnstream.api.protocols.a2a.operations import answered, authorized, check_version, speaking_to, wire_of
from turnstream.api.protocols.a2a.requests import (
    Configs,
    Fields,
    ListTasks,
    OneConfig,
    OneTask,
    PushConfig,
    Sent,
    read,
    read_message,
)
from turnstream.shared.errors import InvalidBody, TurnstreamError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.routing import Route

    from turnstream.api.access.auth import Caller
    from turnstream.api.protocols.a2a.task_encoder import Wire
    from turnstream.api.services import Services
    from turnstream.api.streaming.sse import EventStream
    from turnstream.api.streaming.whole import WholeDocument

F = TypeVar("F", bound=Fields)
Json = dict[str, Any]

TASK = BASE + "/tasks/{task_id}"
CONFIGS = TASK + "/pushNotificationConfigs"


class A2aRoutes:
    """Serves both bindings, and the cards."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """What names an action comes before what names a task."""
        config = CONFIGS + "/{config_id}"
        return [
            *CardRoutes(self._services).routes(),
            route(BASE, self.rpc, "POST"),
            route(BASE + "/", self.rpc, "POST"),
            route(BASE + "/message:send", self.send, "POST"),
            route(BASE + "/message:stream", self.stream, "POST"),
            route(BASE + "/extendedAgentCard", self.extended_card, "GET"),
            route(BASE + "/tasks", self.list_tasks, "GET"),
            route(TASK + ":cancel", self.cancel, "POST"),
            route(TASK + ":subscribe", self.subscribe, "GET", "POST"),
            route(CONFIGS, self.create_config, "POST"),
            route(CONFIGS, self.list_configs, "GET"),
            route(config, self.get_config, "GET"),
            route(config, self.delete_config, "DELETE"),
            route(TASK, self.get, "GET"),
        ]

    # ── HTTP and JSON ──

    async def send(self, request: Request) -> Response | EventStream | WholeDocument:
        """Send a message, and wait for the end or for being asked; or not."""
        return await self._send(request, streams=False)

    async def stream(self, request: Request) -> Response | EventStream | WholeDocument:
        """Send a message, and follow the task."""
        return await self._send(request, streams=True)

    async def get(self, request: Request) -> Response:
        """A task as it is."""
        caller = await authorized(self._services, request)
        asked = _asked(request, OneTask, id=request.path_params["task_id"])
        wire = wire_of(request)
        return answered(request, wire, await operations.get(self._services, caller, asked, wire))

    async def list_tasks(self, request: Request) -> Response:
        """The tasks of the key's owner with this agent."""
        caller = await authorized(self._services, request)
        asked = _asked(request, ListTasks)
        return answered(request, wire_of(request), await operations.list_tasks(self._services, caller, asked))

    async def cancel(self, request: Request) -> Response:
        """Stop a task."""
        caller = await authorized(self._services, request)
        asked = OneTask(id=request.path_params["task_id"])
        wire = wire_of(request)
        return answered(request, wire, await operations.cancel(self._services, caller, asked, wire))

    async def subscribe(self, request: Request) -> EventStream:
        """Follow a task."""
        caller = await authorized(self._services, request)
        task = request.path_params["task_id"]
        return await operations.subscribe(self._services, request, caller, task, wire_of(request))

    async def create_config(self, request: Request) -> Response:
        """Have somebody told of a task."""
        services = self._services
        caller = await authorized(services, request)
        async with services.limiter.counting_refusals(caller):
            _, asked = await services.bodies.read(request, caller, partial(_read_config, request))
        return answered(request, wire_of(request), await operations.create_config(services, caller, asked))

    async def list_configs(self, request: Request) -> Response:
        """Who is told of a task."""
        caller = await authorized(self._services, request)
        asked = Configs(task_id=request.path_params["task_id"])
        return answered(
            request, wire_of(request), await operations.list_configs(self._services, caller, asked)
        )

    async def get_config(self, request: Request) -> Response:
        """One of them."""
        caller = await authorized(self._services, request)
        asked = OneConfig(task_id=request.path_params["task_id"], id=request.path_params["config_id"])
        return answered(request, wire_of(request), await operations.get_config(self._services, caller, asked))

    async def delete_config(self, request: Request) -> Response:
        """Have one told no more."""
        caller = await authorized(self._services, request)
        asked = OneConfig(task_id=request.path_params["task_id"], id=request.path_params["config_id"])
        return answered(
            request, wire_of(request), await operations.delete_config(self._services, caller, asked)
        )

    async def extended_card(self, request: Request) -> Response:
        """There is none: the public card says all."""
        await authorized(self._services, request)
        raise UnsupportedOperation("There is no extended card: the public one says all.")

    async def _send(self, request: Request, *, streams: bool) -> Response | EventStream | WholeDocument:
        services = self._services
        caller = await authorized(services, request)
        async with services.limiter.counting_refusals(caller):
            raw, sent = await services.bodies.read(request, caller, _read_sent)
        return await operations.send(
            services, request, caller, sent, len(raw), wire_of(request), streams=streams
        )

    # ── JSON-RPC ──

    async def rpc(self, request: Request) -> Response | EventStream | WholeDocument:
        """Call a method. Its errors are answers; what stands in the way of the request has its HTTP status."""
        services = self._services
        holder = await services.auth.caller(request)
        caller = speaking_to(holder, request)
        async with services.limiter.counting_refusals(holder):
            raw, call = await services.bodies.read(request, caller or holder, _read_call)
        if isinstance(call, Response):
            return call
        number, method, params = call
        try:
            if caller is None:
                raise NoAgent
            # First of all: what an older version calls a method is none of this one's.
            check_version(request)
            if method not in _METHODS and method not in _STREAMS:
                return _refused(number, -32601, f"There is no method {method[:64]!r}: this is A2A 1.0.")
            if not isinstance(params, dict):
                return _refused(number, -32602, "params: must be an object")
            return await self._called(request, caller, method, params, raw, wire_of(request, number))
        except TurnstreamError as error:
            return _failed(number, error)

    async def _called(
        self, request: Request, caller: Caller, method: str, params: Json, raw: bytes, wire: Wire
    ) -> Response | EventStream | WholeDocument:
        services = self._services
        if method in ("SendMessage", "SendStreamingMessage"):
            sent = read_message(params, raw)
            streams = method == "SendStreamingMessage"
            return await operations.send(services, request, caller, sent, len(raw), wire, streams=streams)
        if method == "SubscribeToTask":
            return await operations.subscribe(services, request, caller, read(params, OneTask).id, wire)
        if method == "GetExtendedAgentCard":
            raise UnsupportedOperation("There is no extended card: the public one says all.")
        return answered(request, wire, await _METHODS[method](services, caller, params, wire))


_STREAMS = ("SendMessage", "SendStreamingMessage", "SubscribeToTask", "GetExtendedAgentCard")

_METHODS: dict[str, Callable[[Services, Caller, Json, Wire], Awaitable[Json]]] = {
    "GetTask": lambda services, caller, params, wire: operations.get(
        services, caller, read(params, OneTask), wire
    ),
    "ListTasks": lambda services, caller, params, _: operations.list_tasks(
        services, caller, read(params, ListTasks)
    ),
    "CancelTask": lambda services, caller, params, wire: operations.cancel(
        services, caller, read(params, OneTask), wire
    ),
    "CreateTaskPushNotificationConfig": lambda services, caller, params, _: operations.create_config(
        services, caller, _config(params)
    ),
    "GetTaskPushNotificationConfig": lambda services, caller, params, _: operations.get_config(
        services, caller, read(params, OneConfig)
    ),
    "ListTaskPushNotificationConfigs": lambda services, caller, params, _: operations.list_configs(
        services, caller, read(params, Configs)
    ),
    "DeleteTaskPushNotificationConfig": lambda services, caller, params, _: operations.delete_config(
        services, caller, read(params, OneConfig)
    ),
}


def _read_sent(raw: bytes) -> Sent:
    return read_message(json_object(raw), raw)


def _read_config(request: Request, raw: bytes) -> PushConfig:
    return _config({**json_object(raw), "taskId": request.path_params["task_id"]})


def _config(params: Json) -> PushConfig:
    config = read(params, PushConfig)
    if not config.task_id:
        raise InvalidBody("taskId: Field required")
    return config


def _asked(request: Request, model: type[F], **more: str) -> F:
    """The fields of a query. ``true`` and numbers stand there as text, which the models read."""
    return read({**request.query_params, **more}, model)


def _read_call(raw: bytes) -> tuple[bytes, str, Any] | Response:
    """Id, method and parameters of a call; or what is answered to one that is none."""
    try:
        call = json_object(raw)
    except InvalidBody as error:
        is_json = raw.lstrip()[:1] in (b"[", b'"') or raw.strip() in (b"null", b"true", b"false")
        return _refused(b"null", -32600 if is_json else -32700, error.public_text)
    number = call.get("id")
    if isinstance(number, bool) or not isinstance(number, str | int | float | None):
        return _refused(b"null", -32600, "id: a string, a number, or null")
    name = orjson.dumps(number)
    method, params = call.get("method"), call.get("params")
    if call.get("jsonrpc") != "2.0" or not isinstance(method, str):
        return _refused(name, -32600, 'jsonrpc: must be "2.0"; method: must be a string')
    return name, method, {} if params is None else params


def _failed(number: bytes, error: TurnstreamError) -> Response:
    """The answer to a method that failed.

    Raises:
        TurnstreamError: it is not the method's.
    """
    problem = Problem.of(error)
    if not is_of_the_method(problem):
        raise error
    return _error(number, rpc_error(problem))


def _refused(number: bytes, code: int, text: str) -> Response:
    return _error(number, {"code": code, "message": text})


def _error(number: bytes, error: Json) -> Response:
    body = {"jsonrpc": "2.0", "id": orjson.Fragment(number), "error": error}
    return Response(orjson.dumps(body), media_type="application/json")
