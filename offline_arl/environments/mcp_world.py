"""Any MCP server's tools as a world that an agent acts in (Model Context Protocol, over the server's standard streams).

The protocol's client is asynchronous and wants one task to open and close it; here it lives in a thread of its own, and
tools are plain functions like any others.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

from offline_arl import optional
from offline_arl.environments.tools import Tool, ToolError
from offline_arl.errors import DataError

logger = logging.getLogger(__name__)

_PING_S = 30.0  # one that is gone says so at once


@dataclass(frozen=True)
class McpServer:
    """How to start a server.

    Attributes:
        command: Program.
        args: Its arguments.
        env: Variables of its environment; it sees no others but those that programs need to run.
        cwd: Its working directory.
        start_s: Seconds that it may take to be ready.
        timeout_s: Seconds that a call may take.
        tools: Only these; None: all that it has.
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    start_s: float = 30.0
    timeout_s: float = 30.0
    tools: Sequence[str] | None = None


class McpWorld:
    """A running server and its tools; satisfies `tool_environment.World`.

    A tool that the server does not mark as only reading counts as one that writes.

    Args:
        server: Started here, ended by `close`.

    Raises:
        MissingDependencyError: The mcp package is not installed.
        DataError: The server does not start, or has none of the tools asked for.
    """

    def __init__(self, server: McpServer) -> None:
        self._mcp = optional.require("mcp", extra="environments")
        self._server = server
        self._ready: Future[list[Any]] = Future()
        self._stop: Callable[[], None] | None = None
        self._ended = Event()
        self._session: Any = None
        self.failure: str | None = None  # see `tool_environment.World`
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, daemon=True, name=f"mcp {server.command}")
        self._thread.start()
        try:
            found = self._ready.result(server.start_s)
        except Exception as error:
            self.close()
            reason = "not ready in time" if isinstance(error, TimeoutError) else _told(error)
            raise DataError(f"the MCP server {server.command!r} did not start: {reason}") from error
        self.tools: list[Tool] = [
            self._tool(item) for item in found if server.tools is None or item.name in server.tools
        ]
        missing = set(server.tools or ()) - {tool.name for tool in self.tools}
        if missing or not self.tools:
            self.close()
            have = ", ".join(item.name for item in found) or "none"
            asked = f"has no tool {sorted(missing)[0]!r}" if missing else "has no tools"
            raise DataError(f"the MCP server {server.command!r} {asked}; it has: {have}")

    def close(self) -> None:
        """End the server."""
        if self._stop is not None and not self._ended.is_set():
            self._loop.call_soon_threadsafe(self._stop)
            self._ended.wait(10)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        except BaseException as error:  # of the transport; whoever waits is told
            if not self._ready.done():
                self._ready.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            else:
                logger.info("the MCP server %s ended: %s", self._server.command, _told(error))
        finally:
            self._ended.set()
            self._loop.close()

    async def _live(self) -> None:
        stop = asyncio.Event()
        self._stop = stop.set
        server = self._server
        parameters = self._mcp.StdioServerParameters(
            command=server.command, args=list(server.args), env=dict(server.env) or None, cwd=server.cwd
        )
        # What a server says beside the protocol is not for the terminal.
        with open(os.devnull, "w") as log:
            async with (
                self._mcp.stdio_client(parameters, errlog=log) as streams,
                self._mcp.ClientSession(*streams[:2]) as session,
            ):
                await session.initialize()
                listed = await session.list_tools()
                self._session = session
                self._ready.set_result(list(listed.tools))
                await stop.wait()

    def _tool(self, item: Any) -> Tool:
        reads = bool(getattr(item.annotations, "read_only_hint", False))
        return Tool(
            item.name,
            item.description or "",
            _schema(item),
            lambda arguments: self._call(item.name, arguments),
            writes=not reads,
            timeout_s=self._server.timeout_s,
        )

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        if self._ended.is_set():
            raise ConnectionError("the MCP server has ended")
        waiting = asyncio.run_coroutine_threadsafe(self._session.call_tool(name, arguments), self._loop)
        try:
            result = waiting.result(self._server.timeout_s)
        except TimeoutError:
            waiting.cancel()
            raise
        except Exception as error:
            if not self._answers():
                self.failure = f"the MCP server {self._server.command!r} has ended ({_told(error)})"
            raise
        text = "\n".join(
            part.text if getattr(part, "type", "") == "text" else f"[{getattr(part, 'type', 'content')}]"
            for part in result.content
        )
        if getattr(result, "is_error", False):
            raise ToolError(text or "the tool failed")
        return text

    def _answers(self) -> bool:
        """Whether the server is still there: a call may fail by the agent's doing, a server is not gone by it."""
        try:
            asyncio.run_coroutine_threadsafe(self._session.send_ping(), self._loop).result(_PING_S)
        except Exception:
            return False
        return True


def _schema(item: Any) -> dict[str, Any]:
    schema = getattr(item, "input_schema", None) or getattr(item, "inputSchema", None)
    return dict(schema) if isinstance(schema, dict) else {"type": "object"}


def _told(error: BaseException) -> str:
    """The innermost reason: the client wraps everything in groups of errors."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
