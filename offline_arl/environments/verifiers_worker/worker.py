"""Plays episodes of one verifiers environment; another process says what the policy says.

verifiers calls a model where an environment here is called by the policy. So this program is the model: an endpoint
for chat completions whose answers are the policy's messages. One line of JSON is one message, in on standard input:

    {"op": "tasks", "start": 0, "count": 10}
    {"op": "start", "episode": "7", "data": {...}}                    data: a task's
    {"op": "say", "episode": "7", "message": {"role": "assistant", ...}}
    {"op": "stop", "episode": "7", "reason": "context_length"}        no further message will come: judge what there is
    {"op": "abandon", "episode": "7"}

and out on standard output:

    {"event": "ready"} or {"event": "failed", "text": "..."}
    {"event": "tasks", "tasks": [{"id": ..., "data": {...}}]}
    {"event": "turn", "episode": "7", "messages": [...], "tools": [...]}      the whole conversation so far
    {"event": "end", "episode": "7", "reward": 1.0, "parts": {...}, "stop": "...", "truncated": false, "error": null}

It ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import verifiers.v1 as vf
from aiohttp import web  # a dependency of verifiers
from verifiers.v1.clients.client import SESSION_ID_HEADER
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.loaders import default_harness_id

SEAT = "offline_arl_seat"
_MODEL = "policy"
_LIMIT = 1 << 28  # bytes of one line, of one request


def environment_config(raw: dict[str, Any], max_turns: int) -> tuple[Any, str]:
    """The configuration of the environment, and the role that the policy plays: the one that has no model of its own.

    What is left open is filled in for running here: roles run as processes of this machine instead of in a hosted
    sandbox, and, where the environment brings no harness of its own, in `offline_arl_seat`.
    """
    taskset = raw.get("taskset", {}).get("id", "")
    declared = vf.env_config_type(taskset, raw.get("id", "")).model_fields
    for name, role in ((name, field.default) for name, field in declared.items()):
        if not isinstance(role, vf.AgentConfig):
            continue
        given = raw.setdefault(name, {})
        if "runtime" not in role.model_fields_set:
            given.setdefault("runtime", {"type": "subprocess"})
        if role.harness is None and default_harness_id(taskset) == "bash":
            given.setdefault("harness", {"id": SEAT})
        if role.max_turns is None:
            given.setdefault("max_turns", max_turns)
    config = vf.resolve_env_config(raw)
    free = [name for name, role in agent_config_fields(config).items() if role.client is None]
    if len(free) != 1:
        told = " and ".join(free) or "no role"
        raise ValueError(
            f"{told} would be played by the policy, which plays one role: give the others a model and a client"
        )
    return config, free[0]


class Episode:
    """One episode. Its turns are asked for one at a time."""

    def __init__(self) -> None:
        self.trace: Any = None  # of the policy's run
        self.waiting: asyncio.Future[dict[str, Any]] | None = None
        self.problem: str | None = None
        self.task: asyncio.Task[None] | None = None


class Worker:
    """See the module."""

    def __init__(self, env: Any, role: str, out: Any) -> None:
        self._env = env
        self._role = role
        self._out = out
        self._episodes: dict[str, Episode] = {}
        self._names: dict[str, str] = {}  # of the episode, by trace
        self._tasks: list[Any] = []
        self._more: Iterator[Any] = iter(env.taskset)
        self._context: Any = None

    async def run(self) -> None:
        """Serve until the standard input ends."""
        app = web.Application(client_max_size=_LIMIT)
        app.router.add_post("/v1/chat/completions", self._completion)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        client = vf.EvalClientConfig(base_url=f"http://127.0.0.1:{port}/v1", api_key_var="OFFLINE_ARL_NO_KEY")
        self._context = vf.ModelContext(model=_MODEL, client=client)
        reader = asyncio.StreamReader(limit=_LIMIT)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), _detached(0))
        async with self._env.serving():
            self._say({"event": "ready"})
            while line := await reader.readline():
                await self._take(json.loads(line))
            tasks = [episode.task for episode in self._episodes.values() if episode.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()

    async def _take(self, message: dict[str, Any]) -> None:
        if message["op"] == "tasks":
            self._say({"event": "tasks", **await asyncio.to_thread(self._listed, message["start"], message["count"])})
            return
        name = message["episode"]
        if message["op"] == "start":
            episode = self._episodes[name] = Episode()
            episode.task = asyncio.create_task(self._play(name, episode, message["data"]))
            return
        known = self._episodes.get(name)
        if known is None:
            return
        if message["op"] == "say" and known.waiting is not None and not known.waiting.done():
            known.waiting.set_result(message["message"])
        elif message["op"] == "stop" and known.waiting is not None and not known.waiting.done():
            # A run that has a reason to stop takes no further message, whatever it says, and goes on to be judged.
            known.trace.stop(message["reason"])
            known.waiting.set_result({"role": "assistant", "content": ""})
        elif message["op"] == "abandon" and known.task is not None:
            known.task.cancel()

    def _listed(self, start: int, count: int) -> dict[str, Any]:
        try:
            missing = start + count - len(self._tasks)
            self._tasks += islice(self._more, max(missing, 0))
        except Exception as error:
            return {"error": _told(error)}
        found = self._tasks[start : start + count]
        return {
            "tasks": [
                {
                    "id": task.data.id or task.data.name,
                    "data": task.data.model_dump(mode="json", exclude_none=True),
                }
                for task in found
            ]
        }

    async def _play(self, name: str, episode: Episode, data: dict[str, Any]) -> None:
        end: dict[str, Any] = {"event": "end", "episode": name}
        try:
            kind = type(self._env.taskset).task_type()
            task = kind(kind.data_type().model_validate(data), self._env.config.taskset.task)
            played = await self._env.run_episode(
                task, self._context, on_trace=lambda trace: self._watch(name, episode, trace)
            )
            self._say({**end, **self._result(episode, played)})
        except Exception as error:
            self._say({**end, "error": episode.problem or _told(error)})
        finally:
            self._episodes.pop(name, None)
            if episode.waiting is not None:  # nobody will say it any more
                episode.waiting.cancel()
            if episode.trace is not None:
                self._names.pop(episode.trace.id, None)

    def _watch(self, name: str, episode: Episode, trace: Any) -> None:
        if trace.agent is None or trace.agent.name != self._role:
            return
        if episode.trace is not None:
            episode.problem = f"the environment runs {self._role} more than once in an episode"
        episode.trace = episode.trace or trace
        self._names[trace.id] = name

    def _result(self, episode: Episode, played: Any) -> dict[str, Any]:
        trace = next((trace for trace in played.traces if trace is episode.trace), None)
        errors = [*played.errors, *(error for item in played.traces for error in item.errors)]
        if episode.problem is not None or trace is None or not played.ok:
            last = f"{errors[-1].type}: {errors[-1].message}" if errors else "the policy was never asked"
            return {"error": episode.problem or last}
        parts = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        stop = trace.stop_condition or ""
        limited = stop in ("max_turns", "compaction_failed") or stop.endswith("_tokens")
        return {
            "reward": trace.reward,
            "parts": {**metrics, **parts},
            "stop": stop,
            "truncated": bool(trace.is_timeout or limited),
            "error": None,
        }

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        """A turn of the policy: answered when its message has come."""
        name = self._names.get(request.headers.get(SESSION_ID_HEADER, ""))
        episode = self._episodes.get(name or "")
        if name is None or episode is None or episode.problem is not None:
            return web.json_response({"error": {"message": "no episode asks"}}, status=409)
        if episode.waiting is not None:
            episode.problem = "the harness asks for two messages of the policy at once"
            return web.json_response({"error": {"message": episode.problem}}, status=409)
        body = await request.json()
        episode.waiting = asyncio.get_running_loop().create_future()
        turn = {"messages": body["messages"], "tools": body.get("tools") or []}
        self._say({"event": "turn", "episode": name, **turn})
        try:
            message = await episode.waiting
        finally:
            episode.waiting = None
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        if body.get("stream"):
            text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in _chunks(message, reason))
            return web.Response(text=f"{text}data: [DONE]\n\n", content_type="text/event-stream")
        return web.json_response(_completion("chat.completion", "message", message, reason))

    def _say(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps(message).encode() + b"\n")
        self._out.flush()


def _chunks(message: dict[str, Any], reason: str) -> list[dict[str, Any]]:
    delta = dict(message)
    if message.get("tool_calls"):
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(message["tool_calls"])]
    return [
        _completion("chat.completion.chunk", "delta", delta, None),
        _completion("chat.completion.chunk", "delta", {}, reason),
    ]


def _completion(kind: str, part: str, message: dict[str, Any], reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, part: message, "finish_reason": reason, "logprobs": None}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return {"id": "policy", "object": kind, "created": 0, "model": _MODEL, "choices": [choice], "usage": usage}


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:1000]


def _detached(number: int) -> Any:
    """A standard stream for this program alone: what environments print, or read, must not get in between."""
    kept = os.fdopen(os.dup(number), "rb" if number == 0 else "wb")
    other = os.open(os.devnull, os.O_RDONLY) if number == 0 else 2
    os.dup2(other, number)
    return kept


def main() -> None:
    """Run with the configuration, as JSON, in the first argument."""
    out = _detached(1)
    settings = json.loads(sys.argv[1])
    try:
        config, role = environment_config(settings["env"], settings["max_turns"])
        worker = Worker(vf.load_environment(config), role, out)
    except Exception as error:
        out.write(json.dumps({"event": "failed", "text": _told(error)}).encode() + b"\n")
        raise SystemExit(1) from error
    asyncio.run(worker.run())


if __name__ == "__main__":
    main()
