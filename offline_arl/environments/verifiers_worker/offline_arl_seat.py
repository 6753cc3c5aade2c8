"""A harness for chat with tools that runs in the worker's process; verifiers finds it by the name of this module.

The harness that verifiers itself has for this (`null`) is a program that `uv` starts anew for each episode, in an
environment that it installs from a package index. Where an environment asks for no harness of its own, this one does
the same with neither: it lets the model speak, runs the tools that it calls, and ends with the first message that calls
none. As harnesses must, it speaks with the model through the endpoint it is given, so that verifiers sees every turn.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx  # a dependency of verifiers
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import MCPConnection, call_mcp, connect_mcp

__all__ = ["SeatHarness"]


class SeatConfig(vf.HarnessConfig):  # type: ignore[misc]
    """Nothing but what every harness has."""


class SeatHarness(vf.Harness[SeatConfig]):  # type: ignore[misc]
    """See the module."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> Any:
        """One segment: from the prompt, or the conversation so far, to a message that calls no tool."""
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        timeout = self.config.tool_timeout
        servers = {name: {"url": url, "timeout": timeout} for name, url in mcp_urls.items()}
        headers = {"Authorization": f"Bearer {secret}"}
        async with AsyncExitStack() as stack:
            # A policy may take as long as it wants between two of its messages.
            client = await stack.enter_async_context(httpx.AsyncClient(headers=headers, timeout=None))
            schemas, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            tools = _Tools(schemas, dispatch, connections, client, tool_interception_url)
            while True:
                request: dict[str, Any] = {"model": ctx.model, "messages": messages}
                if tools.schemas:
                    request["tools"] = tools.schemas
                reply = await client.post(f"{endpoint}/chat/completions", json=request)
                if reply.status_code != 200:  # refused: the episode is over, or the model failed; verifiers knows which
                    return vf.ProgramResult(exit_code=1, stdout="", stderr=reply.text)
                said = reply.json()["choices"][0]["message"]
                messages.append(said)
                if not said.get("tool_calls"):
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                messages += [await tools.result(call) for call in said["tool_calls"]]


class _Tools:
    """The tools of an episode. Whatever a call is, its result is a message that the model can read."""

    def __init__(
        self,
        schemas: list[dict[str, Any]],
        dispatch: dict[str, tuple[str, str]],
        servers: dict[str, MCPConnection],
        client: httpx.AsyncClient,
        gate: str | None,
    ) -> None:
        self.schemas = schemas
        self._dispatch, self._servers, self._client, self._gate = dispatch, servers, client, gate

    async def result(self, call: dict[str, Any]) -> dict[str, Any]:
        """The tool message that answers a call."""
        name, raw = call["function"]["name"], call["function"]["arguments"] or "{}"
        try:
            arguments = json.loads(raw)
        except ValueError as error:
            return _answer(call, f"error: invalid JSON in the arguments ({error})")
        denied = await self._denied(call, name, arguments)
        if denied is not None:
            return denied
        if not isinstance(arguments, dict):
            return _answer(call, f"error: the arguments must be a JSON object, not {type(arguments).__name__}")
        if name not in self._dispatch:
            return _answer(call, f"error: unknown tool {name!r}")
        return _answer(call, await call_mcp(self._servers, self._dispatch, name, arguments))

    async def _denied(self, call: dict[str, Any], name: str, arguments: object) -> dict[str, Any] | None:
        """What the environment's interceptors say instead of letting a call run."""
        if self._gate is None:
            return None
        asked = {"tool_call_id": call["id"], "name": name, "arguments": arguments}
        reply = await self._client.post(self._gate, json=asked)
        reply.raise_for_status()
        decision = reply.json()
        if decision["action"] == "stop":
            raise RuntimeError(decision["reason"])
        message: dict[str, Any] | None = decision["message"] if decision["action"] == "deny" else None
        return message


def _answer(call: dict[str, Any], content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": content}
