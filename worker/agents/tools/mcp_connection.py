"""Connections to MCP servers: one per server and worker, begun when first needed, ended with the worker."""

from __future__ import annotations

import asyncio
import os
from contextvars import Context
from typing import TYPE_CHECKING, Any

import structlog
from fastmcp.client import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp.exceptions import ToolError
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST
from pydantic_ai.mcp import MCPToolset

from turnstream.shared.errors import AgentFieldError
from turnstream.worker.agents.tools.mcp_stderr import Said

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastmcp.client.transports import ClientTransport
    from mcp_types import Tool

    from turnstream.shared.agents.config import AgentSpec, McpServer
    from turnstream.worker.agents.calls import Policy

log = structlog.get_logger(__name__)

# After a server could not be started, turns are told so for this long without another try. Shorter, and
# a server that never starts is started by every turn; longer, and one that is back goes unnoticed.
RETRY_SECONDS = 5.0

# A connection that ends takes at most this long: the client gives a process two seconds to leave, and
# two more after SIGTERM.
CLOSING_SECONDS = 10.0

# Errors of the protocol after which the connection is of no use: the other end is gone, or has
# forgotten us (a restarted HTTP server answers so to a session of before).
_LOST = frozenset({CONNECTION_CLOSED, INVALID_REQUEST})


class McpTrouble(Exception):  # noqa: N818 - trouble of somebody else's; the turn goes on
    """The server could not be reached, failed, or was lost; the text is for the model."""


class McpConnection:
    """The worker's connection to one MCP server of one agent; turns share it.

    Duties:
        1. begin it when first needed, under the server's ``start_deadline``;
        2. notice that it was lost, and begin anew for whoever comes next;
        3. end it, and the server's process with it, at `close`.
    """

    def __init__(self, server: McpServer, spec: AgentSpec, policies: Mapping[str, Policy]) -> None:
        """Nothing is started yet. ``policies`` are those that the configuration gives its tools.

        Raises:
            AgentFieldError: an environment variable that the server needs is not set.
        """
        self.server = server
        self.policies = policies
        self.deadline = spec.tool_deadline
        self._env = {**_variables(spec, server, {name: name for name in server.env_from}), **server.env}
        self._headers = _variables(spec, server, server.headers_env)
        self._link: _Link | None = None
        self._retired: set[_Link] = set()

    async def tools(self) -> list[Tool]:
        """What the server offers now. Shows, too, that the connection is alive: a dead one is replaced.

        Raises:
            McpTrouble: the server cannot be reached.
        """
        link = self._link
        if link is not None and not link.failure:
            try:
                return await self._listed(link)
            except McpTrouble:
                # The server may have died long ago, between two turns, and to ask again is safe.
                log.info("mcp.lost", server=self.server.label)
        return await self._listed(self._linked())

    async def call(self, name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> Any:
        """Run a tool; its result, as the library gives it to a model. ``meta`` goes along as ``_meta``.

        Raises:
            McpTrouble: the tool failed, took too long, or the server was lost.
        """
        link = self._linked()
        await link.stands()
        try:
            async with asyncio.timeout(self.deadline):
                return await link.toolset.direct_call_tool(name, arguments, metadata=meta)
        except ToolError as error:
            raise McpTrouble(str(error)) from None
        except TimeoutError:
            # What does not answer for so long may never answer again; the next call gets a fresh server.
            self._drop(link)
            raise McpTrouble(f"The tool took longer than {self.deadline:g} seconds and was ended.") from None
        except MCPError as error:
            if error.code in _LOST:
                self._drop(link)
                raise McpTrouble("The MCP server was lost during the call.") from None
            # Its own words are for operators: the client reads ours.
            log.warning("mcp.refused", server=self.server.label, tool=name[:64], code=error.code)
            raise McpTrouble("The MCP server refused the call.") from None
        except Exception as error:
            self._drop(link)
            raise McpTrouble(f"The MCP server failed: {_words(error)}") from None

    async def close(self) -> None:
        """End the connection and the server's process."""
        link = self._link
        if link is not None:
            self._drop(link)
            if not link.settled.is_set():
                link.task.cancel()
        if self._retired:
            await asyncio.wait([link.task for link in self._retired], timeout=CLOSING_SECONDS)

    async def _listed(self, link: _Link) -> list[Tool]:
        await link.stands()
        try:
            async with asyncio.timeout(self.server.start_deadline):
                return await link.toolset.list_tools()
        except Exception as error:
            self._drop(link)
            raise McpTrouble(f"The MCP server does not list its tools: {_words(error)}") from None

    def _linked(self) -> _Link:
        """The connection to use, perhaps not standing yet."""
        link = self._link
        if link is None or link.stale:
            link = self._link = _Link(self._transport(), self.server)
        return link

    def _drop(self, link: _Link) -> None:
        """Use it for no further call. Calls that still run on it are not cut off."""
        if self._link is link:
            self._link = None
        self._retired.add(link)
        link.task.add_done_callback(lambda _: self._retired.discard(link))
        link.leave.set()

    def _transport(self) -> ClientTransport:
        server = self.server
        if server.url is not None:
            return StreamableHttpTransport(server.url, headers=self._headers)
        # keep_alive would leave the process behind when the connection ends.
        return StdioTransport(str(server.command), list(server.args), env=self._env, keep_alive=False)


class _Link:
    """One connection, held by a task of its own: turns come and go, and may be cancelled at any point."""

    def __init__(self, transport: ClientTransport, server: McpServer) -> None:
        self.toolset: MCPToolset[Any] = MCPToolset(
            Client(transport, timeout=None, init_timeout=server.start_deadline),
            tool_error_behavior="error",
            cache_tools=False,
        )
        self.settled = asyncio.Event()
        self.leave = asyncio.Event()
        self.failure = ""
        self._server = server
        self._transport = transport
        self._said = Said(server.label)
        self._failed_at = 0.0
        # Not in the context of the turn that happens to come first: its log lines would be that turn's.
        self.task = asyncio.create_task(self._hold(), name=f"mcp {server.label}", context=Context())

    @property
    def stale(self) -> bool:
        """Whether it failed, long enough ago to try again."""
        return bool(self.failure) and asyncio.get_running_loop().time() - self._failed_at > RETRY_SECONDS

    async def stands(self) -> None:
        """Wait until it stands.

        Raises:
            McpTrouble: the server cannot be started or reached.
        """
        await self.settled.wait()
        if self.failure:
            raise McpTrouble(self.failure)

    async def _hold(self) -> None:
        try:
            if await self._begun():
                await self.leave.wait()
                await self._end()
        finally:
            await self._said.close()

    async def _begun(self) -> bool:
        """Whether it stands now; else ``failure`` says why not."""
        label, seconds = self._server.label, self._server.start_deadline
        try:
            async with asyncio.timeout(seconds):
                if isinstance(self._transport, StdioTransport):
                    self._transport.log_file = await self._said.open()
                await self.toolset.__aenter__()
        except asyncio.CancelledError:
            self.failure = "The worker is stopping."
            raise
        except Exception as error:
            words = (
                f"it did not start in {seconds:g} seconds"
                if isinstance(error, TimeoutError)
                else _words(error)
            )
            self.failure = f"The MCP server cannot be reached: {words}"
            self._failed_at = asyncio.get_running_loop().time()
            log.warning("mcp.unreachable", server=label, error=words)
            return False
        finally:
            self._said.handed_over()
            self.settled.set()
        log.info("mcp.connected", server=label)
        return True

    async def _end(self) -> None:
        try:
            await self.toolset.__aexit__(None, None, None)
        except Exception as error:
            log.info("mcp.closed_badly", server=self._server.label, error=_words(error))


def _words(error: BaseException) -> str:
    """The reason, for the client as well; the library wraps errors in groups, and in a RuntimeError.

    Never the server's own text, which may quote addresses and what stands in them.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    error = error.__cause__ or error
    if isinstance(error, MCPError):
        # The library's own code for a server that ended, or hung up.
        closed = error.code == CONNECTION_CLOSED
        return "the connection closed" if closed else f"it answers with error {error.code}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status:
        return f"it answers {status}"
    return "the connection failed" if type(error).__name__ == "ConnectError" else type(error).__name__


def _variables(spec: AgentSpec, server: McpServer, wanted: dict[str, str]) -> dict[str, str]:
    """Name → value of the environment variable it stands for."""
    for variable in wanted.values():
        if not os.environ.get(variable):
            raise AgentFieldError(
                spec.name, "mcp", f"{server.label!r}: the environment variable {variable} is not set"
            )
    return {name: os.environ[variable] for name, variable in wanted.items()}
