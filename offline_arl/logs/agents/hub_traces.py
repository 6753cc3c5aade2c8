"""Rows of agent traces on the Hugging Face Hub: a session a row, its log as text in the column `trace`.

The Hub makes such tables of the session logs that people upload. The text is read by the adapter of its format;
where it is missing, the column `messages` has the conversation.
"""

from __future__ import annotations

from typing import Any

import msgspec

from offline_arl.logs.adapter import AssemblingAdapter, Assembly, Group, Piece, RawRecord, RecordRefusedError
from offline_arl.logs.convert import split_record
from offline_arl.logs.primitives.values import as_text, decode_object
from offline_arl.logs.providers.openai_messages import convert_messages
from offline_arl.logs.records import parse
from offline_arl.logs.training_sets.training_rows import contexts_of
from offline_arl.trajectories.schema import Trajectory

_SHOWN = 3
_COUNTS = ("num_user_messages", "num_tool_calls")


class HubTracesAdapter:
    """Reads rows that hold the whole log of a session."""

    name = "hub_agent_traces"
    title = "agent traces of the Hugging Face Hub (table rows)"
    keeps = "all that the log in the row has: branches, sub-agents, compactions; harness, session, path of the file"
    lacks = "lines of the log that cannot be read are counted in the metadata, not quarantined one by one"

    def recognizes(self, record: Any) -> bool:
        """Whether the record names its harness and session and holds a log or messages."""
        if not isinstance(record, dict) or not isinstance(record.get("harness"), str):
            return False
        return "session_id" in record and (isinstance(record.get("trace"), str) or "messages" in record)

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The trajectories of the row's session."""
        fields = decode_object(record.raw)
        trace, messages = fields.pop("trace", None), fields.pop("messages", None)
        tools = fields.pop("tools", None)
        row = {key: value for key, value in fields.items() if value is not None and key not in _COUNTS}
        if isinstance(trace, str) and trace.strip():
            return _from_log(record, trace, row)
        if isinstance(messages, str):
            try:
                messages = parse(messages.encode())
            except ValueError as error:
                raise RecordRefusedError(f"messages: the string is not JSON: {error}") from error
        return [
            Trajectory(
                trajectory_id=record.trajectory_id(),
                messages=convert_messages(messages),
                source=record.source(self.name),
                agent=as_text(row.get("harness")),
                contexts=contexts_of(tools or None),  # the column is empty where the harness does not log them
                session_id=as_text(row.get("session_id")),
                metadata=row,
            )
        ]


def _from_log(record: RawRecord, trace: str, row: dict[str, Any]) -> list[Trajectory]:
    lines = [line.encode() for line in trace.split("\n") if line.strip()]
    label = as_text(row.get("file_path")) or f"{record.label}#{record.position}"
    records = [RawRecord(record.file, label, position, raw, line=position + 1) for position, raw in enumerate(lines)]
    adapter = _adapter_of(records)
    if adapter is None:
        raise RecordRefusedError("trace: is not a log of a known harness")
    # Two rows may hold one session: the ids are those of the row.
    group_key = record.trajectory_id()
    groups: dict[str | None, list[Piece]] = {}
    unread: list[str] = []
    for line in records:
        split = split_record(adapter, line)
        if split.refused is not None:
            unread.append(f"line {line.line}: {split.refused}")
        for fragment in split.fragments:
            piece = Piece(fragment.payload, line.file, line.label, line.position, line.sha256, line.line)
            groups.setdefault(fragment.key, []).append(piece)
    trajectories: list[Trajectory] = []
    for number, pieces in enumerate(groups.values()):
        key = group_key if number == 0 else f"{group_key} {number}"
        assembly: Assembly = adapter.assemble(Group(adapter.name, key, pieces))
        unread.extend(f"line {pieces[index].line}: {reason}" for index, reason in assembly.refused.items())
        trajectories.extend(assembly.trajectories)
    if not trajectories:
        raise RecordRefusedError("trace: " + (unread[0] if unread else "holds no interaction"))
    if unread:
        row = {**row, "unread_lines": len(unread), "unread_examples": unread[:_SHOWN]}
    return [_in_row(trajectory, record, row) for trajectory in trajectories]


def _in_row(trajectory: Trajectory, record: RawRecord, row: dict[str, Any]) -> Trajectory:
    return msgspec.structs.replace(
        trajectory,
        source=record.source(HubTracesAdapter.name),
        session_id=trajectory.session_id or as_text(row.get("session_id")),
        metadata={**trajectory.metadata, "row": row},
    )


def _adapter_of(records: list[RawRecord]) -> AssemblingAdapter | None:
    from offline_arl.logs.agents.claude_code import ClaudeCodeAdapter
    from offline_arl.logs.agents.claude_stream import ClaudeStreamAdapter
    from offline_arl.logs.agents.codex_rollout import CodexRolloutAdapter
    from offline_arl.logs.agents.gemini_sessions import GeminiSessionsAdapter
    from offline_arl.logs.agents.pi_sessions import PiSessionsAdapter

    known: list[AssemblingAdapter] = [
        ClaudeCodeAdapter(),
        ClaudeStreamAdapter(),
        CodexRolloutAdapter(),
        PiSessionsAdapter(),
        GeminiSessionsAdapter(),
    ]
    for record in records[:20]:
        try:
            value = parse(record.raw)
        except ValueError:
            continue
        for adapter in known:
            if adapter.recognizes(value):
                return adapter
    return None
