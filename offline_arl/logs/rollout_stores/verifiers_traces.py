"""Traces of verifiers since its version 1, which prime-rl writes too: a graph of messages.

A node holds one message and the index of the one before it. Each path from a root to a leaf is a trajectory: where a
prompt was rewritten (compaction, a sub-agent), paths part. `sampled` says which messages a model call made; the role
cannot tell. A record is a trace, or an episode with the traces of several agents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.logs.primitives.scores import finite_number
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text, decode_object, json_type
from offline_arl.logs.providers.openai_messages import convert_message
from offline_arl.logs.rollout_stores.verifiers_rollouts import metric_scores
from offline_arl.logs.slots.reading import apply_slot
from offline_arl.logs.slots.slot import KEY, take_slots
from offline_arl.trajectories.schema import (
    Branch,
    Context,
    Message,
    Outcome,
    Producer,
    TokenRecord,
    Trajectory,
    Usage,
)

_LIMITS = frozenset({"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed"})
_USED_NODE_KEYS = frozenset({"parent", "tools", "message", "sampled", "timestamp", "token_ids", "mask", "logprobs"})
_USED_TRACE_KEYS = frozenset({"nodes", "tools", "metrics", "calls"})
# Paths repeat what they share, so that a small graph could be unfolded without end.
_MAX_PATH_NODES = 1_000_000


@dataclass(frozen=True)
class _Node:
    parent: int | None
    message: Message
    token_ids: list[int]
    sampled_ids: list[int]
    semantic_parents: list[dict[str, Any]]
    tools: str | None


@dataclass(frozen=True)
class _Frame:
    """What an episode says of its traces."""

    episode_id: str | None = None
    group_id: str | None = None
    metadata: dict[str, Any] | None = None


class VerifiersTraceAdapter:
    """Reads traces and episodes of verifiers and prime-rl."""

    name = "verifiers_trace"
    title = "verifiers and prime-rl traces"
    keeps = "branches, sampled or not, token ids with log-probabilities, rewards and metrics, agents, usage"
    lacks = "routed experts and sampling masks, which the format itself leaves out on disk"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is a trace with nodes, or an episode with traces."""
        if not isinstance(record, dict) or not isinstance(record.get("task"), dict):
            return False
        if "env" in record and isinstance(record.get("traces"), list):
            return True
        return isinstance(record.get("nodes"), list) and "rewards" in record and "agent" in record

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The trajectories of a trace or episode: one for each path through its graph."""
        values = decode_object(record.raw)
        traces = values.get("traces")
        if not isinstance(traces, list):
            return _trace(record, values, 0, _Frame(), "")
        rest = {key: value for key, value in values.items() if key != "traces" and value is not None}
        frame = _Frame(as_text(values.get("id")), as_text(as_object(values.get("group")).get("id")), {"episode": rest})
        found: list[Trajectory] = []
        for index, trace in enumerate(traces):
            if not isinstance(trace, dict):
                raise RecordRefusedError(f"traces[{index}]: expected an object, got {json_type(trace)}")
            if trace.get("nodes"):
                found.extend(_trace(record, trace, len(found), frame, f"traces[{index}]."))
        if not found:
            kinds = [as_text(as_object(error).get("type")) or "error" for error in as_list(values.get("errors"))]
            raise RecordSetApartError("an episode without messages" + (f": {kinds[-1]}" if kinds else ""))
        return found


def _trace(record: RawRecord, trace: dict[str, Any], first: int, frame: _Frame, where: str) -> list[Trajectory]:
    slots = take_slots(as_object(trace.get("info")))
    calls = {call["node"]: call for call in as_list(trace.get("calls")) if _is_committed(call)}
    nodes = _nodes(trace.get("nodes"), calls, f"{where}nodes")
    paths = _paths(nodes)
    if not paths:
        raise RecordSetApartError("a trace without messages: " + (_last_error(trace) or "it has no nodes"))
    accepted = {link["node"] for node in nodes for link in node.semantic_parents if link["type"] == "compaction"}
    trainable = as_object(trace.get("agent")).get("trainable") is not False
    found: list[Trajectory] = []
    common = _common(record, trace, frame)
    owners: dict[int, int] = {}  # of each node: the first trajectory that has it
    for number, path in enumerate(paths):
        messages = [nodes[index].message for index in path]
        attempts = [link["type"] for link in nodes[path[-1]].semantic_parents]
        branch, parent = _origin(path, owners, nodes, found)
        if not trainable or ("compaction_attempt" in attempts and path[-1] not in accepted):
            messages = _untrained(messages, branch.message_index if branch is not None and trainable else 0)
        for index in path:
            owners.setdefault(index, number)
        tools = nodes[path[0]].tools or tools_text(_without_nulls(trace.get("tools")))
        found.append(
            msgspec.structs.replace(
                common,
                trajectory_id=record.trajectory_id(first + number),
                messages=_with_prompt_ids(messages, [nodes[index] for index in path]),
                branch=branch,
                parent_trajectory_id=parent,
                contexts=[Context(0, tools)] if tools is not None else [],
            )
        )
    if slots and len(slots) != len(found):
        raise RecordRefusedError(f"{where}info.{KEY}: {len(slots)} slots for {len(found)} paths through the graph")
    if slots:  # an export of this library
        return [apply_slot(read, slot, read.trajectory_id) for read, slot in zip(found, slots, strict=True)]
    return found


def _common(record: RawRecord, trace: dict[str, Any], frame: _Frame) -> Trajectory:
    """What the trajectories of a trace share."""
    task, agent = as_object(trace.get("task")), as_object(trace.get("agent"))
    data = as_object(task.get("data"))
    task_id = as_text(task.get("key")) or as_text(task.get("hash"))
    if task_id is None and data.get("idx") is not None:
        task_id = f"{as_text(task.get('type')) or 'task'}/{data['idx']}"
    calls = as_list(trace.get("calls"))
    finished = [call for call in calls if isinstance(call, dict) and call.get("error") is None]
    stop = as_text(trace.get("stop_condition"))
    cut = bool(finished) and finished[-1].get("finish_reason") == "length"
    truncated = cut or stop in _LIMITS or trace.get("is_timeout") is True
    model = as_text(as_object(agent.get("config")).get("model"))
    identifiers = {"trace": trace["id"]} if isinstance(trace.get("id"), str) else {}
    timing = as_object(trace.get("timing"))
    metadata = {key: value for key, value in trace.items() if key not in _USED_TRACE_KEYS and value is not None}
    if failed := [call for call in calls if not _is_committed(call)]:
        metadata["failed_calls"] = failed
    return Trajectory(
        trajectory_id="",
        messages=[],
        source=record.source(VerifiersTraceAdapter.name),
        task_id=task_id,
        group_id=frame.group_id or task_id,
        episode_id=frame.episode_id or as_text(trace.get("id")),
        task_type=as_text(task.get("type")),
        agent=as_text(agent.get("name")),
        model=model or next((name for call in finished if (name := as_text(call.get("model")))), None),
        started_at=iso_time(timing.get("start")),
        ended_at=iso_time(as_object(timing.get("scoring")).get("end")),
        terminated=trace.get("is_completed") is True and trace.get("ok") is True and not truncated,
        truncated=truncated,
        stop_reason=stop,
        outcome=_outcome(trace),
        metadata={**metadata, **(frame.metadata or {})},
        identifiers=identifiers,
        scores=metric_scores(as_object(trace.get("metrics"))),
    )


def _is_committed(call: object) -> bool:
    """Whether a model call made a node; a failed one did not."""
    return as_count(as_object(call).get("node")) is not None


def _last_error(trace: dict[str, Any]) -> str | None:
    errors = as_list(trace.get("errors"))
    return as_text(as_object(errors[-1]).get("type")) if errors else None


def _outcome(trace: dict[str, Any]) -> Outcome:
    """The sum of the weighted rewards. None as a reward says that scoring did not run, which is not zero."""
    if trace.get("ok") is False and trace.get("errors"):
        return Outcome("infrastructure_error", scorer="verifiers")
    components = {}
    for name, reward in as_object(trace.get("rewards")).items():
        fields = as_object(reward)
        score, weight = finite_number(fields.get("score", fields.get("value"))), finite_number(fields.get("weight"))
        if not isinstance(reward, dict):
            score = finite_number(reward)
        if score is not None:
            components[name] = score * (1.0 if weight is None else weight)
    if not components:
        return Outcome()
    return Outcome("scored", score=sum(components.values()), components=components, scorer="verifiers")


def _nodes(values: object, calls: dict[int, dict[str, Any]], where: str) -> list[_Node]:
    if not isinstance(values, list):
        raise RecordRefusedError(f"{where}: expected a list, got {json_type(values)}")
    nodes = []
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise RecordRefusedError(f"{where}[{index}]: expected an object, got {json_type(value)}")
        parent = value.get("parent")
        # Nodes come after their parents, so that a path always ends at a root.
        if parent is not None and (as_count(parent) is None or parent >= index):
            raise RecordRefusedError(f"{where}[{index}].parent: expected the index of an earlier node, got {parent!r}")
        nodes.append(_node(value, calls.get(index, {}), f"{where}[{index}]"))
    return nodes


def _node(value: dict[str, Any], call: dict[str, Any], where: str) -> _Node:
    logged = _without_nulls(value.get("message"))
    if isinstance(logged, dict) and "tool_calls" in logged:
        logged["tool_calls"] = _without_nulls(logged["tool_calls"])
    message = convert_message(logged, f"{where}.message")
    sampled = value.get("sampled") is True
    ids, mask = as_list(value.get("token_ids")), as_list(value.get("mask"))
    sampled_ids = [token for token, is_sampled in zip(ids, mask, strict=False) if is_sampled is True]
    rest = {key: item for key, item in value.items() if key not in _USED_NODE_KEYS and item not in (None, [])}
    if call.get("finish_reason") is not None:
        rest["finish_reason"] = call["finish_reason"]
    links = [link for link in as_list(value.get("semantic_parents")) if _is_link(link)]
    message = msgspec.structs.replace(
        message,
        producer=_producer(message.role, sampled, as_text(call.get("model")), links),
        tokens=_tokens(sampled_ids, value.get("logprobs")) if sampled else None,
        timestamp=iso_time(value.get("timestamp")),
        usage=_usage(call.get("usage")),
        metadata={**message.metadata, **rest},
    )
    tools = tools_text(_without_nulls(value.get("tools")))
    return _Node(value.get("parent"), message, ids, sampled_ids, links, tools)


def _is_link(link: object) -> bool:
    fields = as_object(link)
    return as_count(fields.get("node")) is not None and as_text(fields.get("type")) is not None


def _producer(role: str, sampled: bool, model: str | None, links: list[dict[str, Any]]) -> Producer:
    if not sampled and any(link["type"] == "compaction" for link in links):
        return Producer("summary")
    if role == "assistant":
        return Producer("model", model) if sampled else Producer("copy")
    return Producer("environment" if role == "tool" else "script")


def _tokens(sampled_ids: list[Any], logprobs: object) -> TokenRecord | None:
    record = {"token_ids": sampled_ids, "fingerprint": "unknown", "logprobs": logprobs or None}
    try:
        tokens = msgspec.convert(record, TokenRecord)
    except msgspec.ValidationError:
        return None
    if tokens.logprobs is not None and len(tokens.logprobs) != len(tokens.token_ids):
        return None
    return tokens if tokens.token_ids else None


def _usage(logged: object) -> Usage | None:
    usage = as_object(logged)
    read, cached = as_count(usage.get("prompt_tokens")), as_count(usage.get("cached_input_tokens"))
    written = as_count(usage.get("completion_tokens"))
    if read is None and written is None:
        return None
    return Usage(None if read is None else read + (cached or 0), written, finite_number(usage.get("cost")))


def _with_prompt_ids(messages: list[Message], path: list[_Node]) -> list[Message]:
    """Add the prompt of each recorded turn: all tokens of the path before its sampled ones."""
    before: list[int] = []
    found = []
    for message, node in zip(messages, path, strict=True):
        if message.tokens is not None:
            scaffold = node.token_ids[: len(node.token_ids) - len(node.sampled_ids)]
            tokens = msgspec.structs.replace(message.tokens, prompt_token_ids=[*before, *scaffold] or None)
            message = msgspec.structs.replace(message, tokens=tokens)
        before.extend(node.token_ids)
        found.append(message)
    return found


def _paths(nodes: list[_Node]) -> list[list[int]]:
    """The paths from a root to a leaf, in the order of the leaves."""
    inner = {node.parent for node in nodes}
    paths: list[list[int]] = []
    total = 0
    for leaf in range(len(nodes)):
        if leaf in inner:
            continue
        path: list[int] = []
        index: int | None = leaf
        while index is not None:
            path.append(index)
            index = nodes[index].parent
        paths.append(path[::-1])
        total += len(path)
        if total > _MAX_PATH_NODES:
            raise RecordRefusedError(f"nodes: the paths through the graph have more than {_MAX_PATH_NODES} messages")
    return paths


def _origin(
    path: list[int], owners: dict[int, int], nodes: list[_Node], found: list[Trajectory]
) -> tuple[Branch | None, str | None]:
    """The earlier trajectory with which a path shares most, and the one that called it as a sub-agent."""
    for length in range(len(path), 0, -1):
        owner = owners.get(path[length - 1])
        if owner is not None:
            return Branch(found[owner].trajectory_id, length), None
    for index in path:
        for link in nodes[index].semantic_parents:
            owner = owners.get(link["node"])
            if owner is not None:
                return None, found[owner].trajectory_id
    return None, None


def _untrained(messages: list[Message], start: int) -> list[Message]:
    return [
        msgspec.structs.replace(message, trainable=False) if index >= start and message.role == "assistant" else message
        for index, message in enumerate(messages)
    ]


def _without_nulls(value: Any) -> Any:
    """Drop the nulls that the format writes for everything that is not set."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    return value
