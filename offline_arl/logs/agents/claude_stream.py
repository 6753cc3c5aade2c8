"""The event stream of `claude -p --output-format stream-json` and of the agent SDK, one event a record.

It has what session logs lack: names of the tools, cost and how the run ended. The prompt is in it only where it was
sent as a stream too.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from offline_arl.logs.adapter import (
    Assembly,
    Fragment,
    Group,
    Piece,
    RawRecord,
    RecordRefusedError,
    RecordSetApartError,
)
from offline_arl.logs.agents.claude_code_records import read_entry, turn_messages
from offline_arl.logs.agents.session_tree import Entry
from offline_arl.logs.primitives.values import as_list, as_object, as_text, decode_object, json_text, json_type
from offline_arl.logs.providers.anthropic_messages import name_results
from offline_arl.trajectories.schema import Context, Message, Outcome, Producer, Trajectory

_MESSAGES = frozenset({"user", "assistant"})
# How a run ended that was cut by a limit.
_LIMITS = frozenset({"error_max_turns", "error_max_budget_usd"})
_START_KEYS = ("cwd", "permissionMode", "claude_code_version", "apiKeySource", "mcp_servers", "output_style")
_END_KEYS = (
    *("result", "total_cost_usd", "duration_ms", "num_turns", "usage", "modelUsage", "permission_denials"),
    *("structured_output", "terminal_reason", "errors", "api_error_status"),
)


class ClaudeStreamAdapter:
    """Assembles the events of a run by its session id."""

    name = "claude_stream"
    title = "Event streams of Claude Code (`--output-format stream-json`)"
    keeps = "sub-agents, names of tools, model, cost, turns, how the run ended, denied permissions"
    lacks = "the prompt, unless it was streamed too, times, schemas of tools and the system prompt"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is an event of a run."""
        if not isinstance(record, dict) or not isinstance(record.get("session_id"), str):
            return False
        kind = record.get("type")
        if kind in ("user", "assistant"):
            return isinstance(record.get("message"), dict) and "parent_tool_use_id" in record
        return (kind == "system" and record.get("subtype") == "init") or (kind == "result" and "num_turns" in record)

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """One fragment, for the session."""
        fields = decode_object(record.raw)
        kind, session = fields.get("type"), as_text(fields.get("session_id"))
        if not isinstance(kind, str):
            raise RecordRefusedError(f"type: expected a string, got {json_type(kind)}")
        if kind in _MESSAGES:
            read_entry(0, Piece(record.raw, record.file, record.label, record.position, record.sha256))
        elif not (kind == "result" or (kind == "system" and fields.get("subtype") == "init")):
            raise RecordSetApartError(f"an event of type {kind!r}")
        return [Fragment(session, record.raw)]

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of a run: the agent's, and one for each sub-agent."""
        assembly = Assembly()
        start: dict[str, Any] = {}
        end: dict[str, Any] = {}
        threads: dict[str, list[Entry]] = defaultdict(list)
        seen: set[str] = set()
        for index, piece in enumerate(group.pieces):
            entry = read_entry(index, piece)
            if entry.kind == "other":
                kept = start if entry.record.get("type") == "system" else end
                kept.update(entry.record)
            elif entry.uuid is not None and entry.uuid in seen:
                assembly.duplicates[index] = f"the uuid {entry.uuid} was recorded before"
            else:
                if entry.uuid is not None:
                    seen.add(entry.uuid)
                threads[as_text(entry.record.get("parent_tool_use_id")) or ""].append(entry)
        for thread, entries in sorted(threads.items()):
            messages = _messages(entries)
            if any(message.role == "assistant" for message in messages):
                assembly.trajectories.append(_trajectory(group, thread, entries, messages, start, end))
            else:
                assembly.set_apart.update((entry.index, "the model never answered") for entry in entries)
        return assembly


def _messages(entries: list[Entry]) -> list[Message]:
    """The messages in order; the events of one response are one message."""
    turns: list[list[Entry]] = []
    of_response: dict[Any, list[Entry]] = {}
    for entry in entries:
        known = None if entry.turn is None else of_response.get(entry.turn)
        if known is not None:
            known.append(entry)
            continue
        turns.append([entry])
        if entry.turn is not None:
            of_response[entry.turn] = turns[-1]
    return name_results([message for turn in turns for message in turn_messages(turn)])


def _trajectory(
    group: Group, thread: str, entries: list[Entry], messages: list[Message], start: dict[str, Any], end: dict[str, Any]
) -> Trajectory:
    metadata = {key: start[key] for key in _START_KEYS if start.get(key) not in (None, [])}
    how = as_text(end.get("subtype"))
    outcome = Outcome()
    if thread:
        metadata.update({"relation": "sub_agent", "tool_call_id": thread})
        if messages[0].role == "user":
            messages[0] = msgspec.structs.replace(messages[0], producer=Producer("script", "parent_agent"))
    else:
        metadata.update({key: end[key] for key in _END_KEYS if end.get(key) not in (None, [], {})})
        if how == "error_during_execution" or end.get("api_error_status") is not None:
            outcome = Outcome("infrastructure_error")
    names = [name for name in as_list(start.get("tools")) if isinstance(name, str)]
    tools = json_text([{"type": "function", "function": {"name": name}} for name in names]) if names else None
    models = [message.producer.name for message in messages if message.producer.kind == "model"]
    return Trajectory(
        trajectory_id=group.trajectory_id(thread or 0),
        messages=messages,
        source=group.source(sorted(entry.index for entry in entries)),
        episode_id=group.key,
        parent_trajectory_id=group.trajectory_id(0) if thread else None,
        agent="claude_code",
        model=next((model for model in models if model), None) or as_text(start.get("model")),
        contexts=[] if tools is None else [Context(0, tools)],
        terminated=not thread and how == "success" and as_object(end).get("is_error") is not True,
        truncated=not thread and how in _LIMITS,
        stop_reason=None if thread else how,
        outcome=outcome,
        metadata=metadata,
        session_id=group.key,
    )
