"""Tools of MCP servers: announced once a turn, called with their results kept, with approval where asked for."""

from __future__ import annotations

import asyncio
import re
import uuid
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import orjson
import structlog
from pydantic_ai import ApprovalRequired, ToolFailed
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool

from turnstream.shared import metrics
from turnstream.shared.agents import json_schema
from turnstream.shared.agents.json_depth import too_deep
from turnstream.worker.agents.calls import Policy
from turnstream.worker.agents.run_outcome import AgentError
from turnstream.worker.agents.tools import approval, results
from turnstream.worker.agents.tools.client import ANY_OBJECT, MOST_RETRIES
from turnstream.worker.agents.tools.effects import Effect
from turnstream.worker.agents.tools.mcp_connection import McpTrouble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_types import Tool
    from pydantic_ai import RunContext

    from turnstream.worker.agents.agent_run import Run
    from turnstream.worker.agents.tools.mcp_connection import McpConnection

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Offer:
    """One tool as the model is offered it."""

    connection: McpConnection
    tool: dict[str, Any]

    @property
    def name(self) -> str:
        """What the server calls it."""
        return str(self.tool["name"])

    @property
    def label(self) -> str:
        """Its server, for the client."""
        return self.connection.server.label

    @property
    def policy(self) -> Policy:
        """What is done about a lost call: as configured, else as the server hints."""
        return self.connection.policies.get(self.name) or Policy.hinted(self.tool.get("annotations"))


class McpTools(AbstractToolset[Any]):
    """Offers the tools of an agent's MCP servers to its model.

    Duties:
        1. list each server's tools once a turn, tell the client, and keep the list: a turn that is taken
           up again offers the same ones, whether or not the server is there;
        2. run a call at most once after its result was kept;
        3. ask the client first where the configuration says so;
        4. mark a call that may have an effect before it runs, and go by its policy when its worker was lost;
        5. tell the model what went wrong, be it a tool or a server; the turn goes on.

    Args:
        taken: names of the agent's other tools; a tool of the same name gets its server's label in front.
        requested: names of the tools that the request brought; they must not be those of a server's.
    """

    def __init__(
        self,
        run: Run,
        agent: str,
        connections: Sequence[McpConnection],
        taken: set[str],
        requested: set[str],
    ) -> None:
        self._run = run
        self._agent = agent
        self._connections = connections
        self._taken = taken
        self._requested = requested
        self._offers: dict[str, _Offer] | None = None
        self._absent: list[str] = []
        self._alive: set[McpConnection] = set()
        self._listing = asyncio.Lock()

    @property
    def id(self) -> str | None:
        """No id: the toolset belongs to one run."""
        return None

    async def get_instructions(self, ctx: RunContext[Any]) -> str | None:  # noqa: ARG002 - the library's signature
        """What the model should know of servers that are not there."""
        await self._offered()
        return "\n".join(self._absent) or None

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:  # noqa: ARG002 - the library's signature
        """What the model is offered."""
        return {
            name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=name,
                    description=offer.tool.get("description"),
                    parameters_json_schema=offer.tool["input_schema"],
                ),
                max_retries=MOST_RETRIES,
                args_validator=ANY_OBJECT,
            )
            for name, offer in (await self._offered()).items()
        }

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[Any],
        tool: ToolsetTool[Any],  # noqa: ARG002 - the library's signature
    ) -> Any:
        """Run one call, or give what is known of it.

        Raises:
            ApprovalRequired: the client was asked for consent.
            ToolFailed: what went wrong, for the model.
        """
        run, call = self._run, str(ctx.tool_call_id)
        known, kept = run.result(call)
        if known:
            return _given(kept)
        run.check_arguments(call)
        offer = (await self._offered())[name]
        if not run.called(call) and (wrong := _misfits(offer.tool["input_schema"], tool_args)):
            self._say_call(offer, call)
            return self._failed(offer, call, wrong)
        if offer.connection.server.needs_approval(offer.name):
            decision = approval.decided(run, offer.name, call, offer.label)
            if decision is None:
                raise ApprovalRequired
            if not approval.approves(decision):
                self._say_call(offer, call)
                return self._failed(offer, call, approval.denial(decision))
        effect = Effect(run, offer.policy, call, offer.name, offer.label, offer.connection.deadline)
        known, returned = await effect.outcome()
        self._say_call(offer, call)
        if not known:
            await effect.begin()
            try:
                with metrics.tool_seconds.timing(self._agent, name):
                    returned = await self._called(offer, tool_args, effect.call.meta)
            except McpTrouble as trouble:
                return self._failed(offer, call, str(trouble))
        result = results.result_of(returned)
        run.settle(call, "mcp_call_output", {**_about(offer, call), "output": result.shown}, result.kept)
        return result.given

    async def _called(self, offer: _Offer, arguments: dict[str, Any], meta: dict[str, Any]) -> Any:
        connection = offer.connection
        if connection not in self._alive:
            # The tools were listed by an earlier attempt. A server that died since is started anew.
            await connection.tools()
            self._alive.add(connection)
        return await connection.call(offer.name, arguments, meta)

    def _say_call(self, offer: _Offer, call: str) -> None:
        run = self._run
        if not run.called(call):
            data = {"id": call, **_about(offer, call), "arguments": run.arguments(call)}
            run.say_call(call, "mcp_call", data)

    def _failed(self, offer: _Offer, call: str, error: str) -> Any:
        kept = {"error": error}
        self._run.settle(call, "mcp_call_output", {**_about(offer, call), **kept}, kept)
        return _given(kept)

    # ── what is offered ──

    async def _offered(self) -> dict[str, _Offer]:
        async with self._listing:
            if self._offers is None:
                listed = await asyncio.gather(*(self._list(each) for each in self._connections))
                self._offers = self._named(listed)
        return self._offers

    def _named(self, listed: Sequence[dict[str, Any]]) -> dict[str, _Offer]:
        offers: dict[str, _Offer] = {}
        for connection, listing in zip(self._connections, listed, strict=True):
            label = connection.server.label
            if error := listing.get("error"):
                self._absent.append(f"The tools of {label!r} are not available now. {error}")
            for tool in listing["tools"]:
                name = _callable(tool["name"])
                if name in self._requested:
                    raise AgentError(
                        "tool_name_taken", f"tools: {name!r} is a tool of the agent's MCP server {label!r}."
                    )
                if name in offers or name in self._taken:
                    name = self._free(f"{label}_{name}", offers)
                offers[name] = _Offer(connection, tool)
                self._run.servers[name] = label
        return offers

    def _free(self, wanted: str, offers: dict[str, _Offer]) -> str:
        """A name that nothing else has: the one that is wanted, or with a number behind it."""
        taken = offers.keys() | self._taken | self._requested
        name = _callable(wanted)
        for number in count(2):
            if name not in taken:
                break
            end = f"_{number}"
            name = _callable(wanted)[: 64 - len(end)] + end
        return name

    async def _list(self, connection: McpConnection) -> dict[str, Any]:
        turn, label = self._run.turn, connection.server.label
        key = f"mcp:{self._agent}/{label}"
        if (kept := turn.kept(key)) is not None:
            listing: dict[str, Any] = orjson.loads(kept)
            return listing
        listing = {"id": f"mcpl_{uuid.uuid4().hex}", "server_label": label, "tools": []}
        try:
            listing["tools"] = _usable(label, await connection.tools())
            self._alive.add(connection)
        except McpTrouble as trouble:
            listing["error"] = str(trouble)
        if (kept := turn.kept(key)) is not None:
            # A parallel sub-agent of the same kind was faster.
            return dict(orjson.loads(kept))
        turn.keep(key, orjson.dumps(listing))
        self._run.speaker.say("mcp_list_tools", "assistant", {"type": "data", "data": listing})
        return listing


def _about(offer: _Offer, call: str) -> dict[str, Any]:
    return {"call_id": call, "name": offer.name, "server_label": offer.label}


def _usable(label: str, tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools of a server; those whose description cannot be kept are left out."""
    told = []
    for tool in map(_told, tools):
        try:
            orjson.dumps(tool)
        except orjson.JSONEncodeError:
            log.warning(
                "mcp.tool_left_out", server=label, tool=tool["name"][:64], why="not JSON, or too deep"
            )
            continue
        if too_deep(tool):
            log.warning(
                "mcp.tool_left_out", server=label, tool=tool["name"][:64], why="its schema is too deep"
            )
            continue
        told.append(tool)
    return told


def _told(tool: Tool) -> dict[str, Any]:
    told: dict[str, Any] = {"name": tool.name, "input_schema": tool.input_schema}
    if tool.description:
        told["description"] = tool.description
    if tool.annotations:
        told["annotations"] = tool.annotations.model_dump(mode="json", by_alias=True, exclude_none=True)
    return told


def _given(kept: dict[str, Any]) -> Any:
    """What the model gets, the same from a kept result as from a fresh one."""
    if "error" in kept:
        raise ToolFailed(kept["error"])
    return results.given(kept)


def _callable(name: str) -> str:
    """The name in the characters that providers take."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]


def _misfits(schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    """How the arguments do not fit; empty when they do, or when the server's schema cannot be used here."""
    try:
        json_schema.check(schema)
    except ValueError:
        return ""
    wrong = json_schema.misfits(schema, arguments)
    return "The arguments do not fit the tool's schema: " + "; ".join(wrong) if wrong else ""
