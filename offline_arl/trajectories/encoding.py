"""Trajectories as rows of Parquet and back, without loss.

Scalars are columns. Messages, contexts and metadata are one JSON string each: a table schema inferred from
tools, arguments or metadata would merge the keys of different tools. System prompts and tool lists, which most
trajectories share, leave the row: their text goes to a blob named by its SHA-256, and `blob_refs` says where it
belongs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import polars as pl

from offline_arl.errors import DataError
from offline_arl.trajectories.schema import (
    Branch,
    Context,
    Message,
    Outcome,
    Score,
    Source,
    TextPart,
    Trajectory,
)
from offline_arl.trajectories.scores import score_values
from offline_arl.trajectories.step_table import RefusedCall, Steps, steps_of
from offline_arl.trajectories.text_cache import cached_by_text
from offline_arl.trajectories.validate import Problem, no_policy_step, refused_call, structural_problems

SCALAR_COLUMNS: dict[str, pl.DataType] = {
    "trajectory_id": pl.String(),
    "task_id": pl.String(),
    "group_id": pl.String(),
    "session_id": pl.String(),
    "user_id": pl.String(),
    "episode_id": pl.String(),
    "parent_trajectory_id": pl.String(),
    "branch_trajectory_id": pl.String(),
    "branch_message_index": pl.Int64(),
    "task_type": pl.String(),
    "agent": pl.String(),
    "model": pl.String(),
    "started_at": pl.String(),
    "ended_at": pl.String(),
    "terminated": pl.Boolean(),
    "truncated": pl.Boolean(),
    "stop_reason": pl.String(),
    "status": pl.String(),
    "success": pl.Boolean(),
    "score": pl.Float64(),
    "scorer": pl.String(),
    "source_format": pl.String(),
    "source_file": pl.String(),
    "source_record": pl.Int64(),
    "source_sha256": pl.String(),
    "schema_version": pl.String(),
    "n_messages": pl.Int64(),
    "n_steps": pl.Int64(),
    "n_tool_calls": pl.Int64(),
    "n_invalid_calls": pl.Int64(),
    "n_invalid_actions": pl.Int64(),
    "n_scores": pl.Int64(),
}
CONTENT_COLUMNS: dict[str, pl.DataType] = {
    "messages": pl.String(),
    "contexts": pl.String(),
    "metadata": pl.String(),
    "outcome_components": pl.String(),
    "identifiers": pl.String(),
    "scores": pl.String(),
    "blob_refs": pl.String(),
}
KEY_COLUMNS: dict[str, pl.DataType] = {"record_key": pl.Binary(), "content_key": pl.Binary()}
TRAJECTORY_COLUMNS = {**SCALAR_COLUMNS, **CONTENT_COLUMNS, **KEY_COLUMNS}
STEP_COLUMNS: dict[str, pl.DataType] = {
    "trajectory_id": pl.String(),
    "step": pl.Int64(),
    "message_index": pl.Int64(),
    "n_tool_calls": pl.Int64(),
    "tool_names": pl.List(pl.String()),
    "n_invalid_calls": pl.Int64(),
    "invalid_action": pl.Boolean(),
    "problem": pl.String(),
    "characters": pl.Int64(),
    "reasoning_characters": pl.Int64(),
    "has_text": pl.Boolean(),
    "n_tokens": pl.Int64(),
    "reward": pl.Float64(),
    "is_last": pl.Boolean(),
}
FINDING_COLUMNS: dict[str, pl.DataType] = {
    "trajectory_id": pl.String(),
    "code": pl.String(),
    "severity": pl.String(),
    "where": pl.String(),
    "text": pl.String(),
}
IDENTITY_COLUMNS: dict[str, pl.DataType] = {
    "trajectory_id": pl.String(),
    "kind": pl.String(),
    "id": pl.String(),
    "message_index": pl.Int64(),
}
BLOB_COLUMNS: dict[str, pl.DataType] = {"blob_id": pl.String(), "kind": pl.String(), "text": pl.String()}
_REFERENCES = [list(SCALAR_COLUMNS).index(name) for name in ("parent_trajectory_id", "branch_trajectory_id")]


class Identity(NamedTuple):
    """An id of a trajectory or of one of its messages, by which feedback that is kept elsewhere finds it."""

    kind: str  # "trace" or "call", see `schema.FeedbackTarget`
    id: str
    message_index: int | None


class EncodedTrajectory(NamedTuple):
    """A trajectory as the values of its row, ready to be written; cheap to send between processes."""

    trajectory_id: str
    values: tuple[Any, ...]  # in the order of SCALAR_COLUMNS and CONTENT_COLUMNS
    steps: list[tuple[Any, ...]]  # in the order of STEP_COLUMNS
    blobs: dict[str, tuple[str, str]]  # blob_id to (kind, text)
    content_key: bytes  # 16 bytes, equal for records that copy one another
    size: int  # bytes of JSON
    findings: list[Problem]  # warnings
    identities: list[Identity]  # ids by which feedback finds it
    scores: list[tuple[Any, ...]]  # in the order of SCORE_COLUMNS

    def renamed(self, trajectory_id: str) -> EncodedTrajectory:
        """The same trajectory under another id."""
        steps = [(trajectory_id, *row[1:]) for row in self.steps]
        return self._replace(trajectory_id=trajectory_id, values=(trajectory_id, *self.values[1:]), steps=steps)

    def with_references(self, new_ids: Mapping[str, str]) -> EncodedTrajectory:
        """The same trajectory, with the ids of its parent and of what it branches from replaced as `new_ids` says."""
        values = list(self.values)
        for place in _REFERENCES:
            values[place] = new_ids.get(values[place], values[place])
        return self._replace(values=tuple(values))

    def digest(self) -> bytes:
        """16 bytes that change with anything in the row."""
        scalars = _encoder.encode(self.values[: len(SCALAR_COLUMNS)])
        key = hashlib.blake2b(digest_size=16)
        for piece in (scalars, *self.values[len(SCALAR_COLUMNS) :]):
            key.update(len(piece).to_bytes(8, "little"))
            key.update(piece)
        return key.digest()


class _BlobRefs(msgspec.Struct, omit_defaults=True):
    """Where blobs belong: (message index, part index, blob id) and (context index, blob id)."""

    text: list[tuple[int, int, str]] = []
    tools: list[tuple[int, str]] = []


_NO_TEXT = TextPart("")
_encoder = msgspec.json.Encoder()
_messages_decoder = msgspec.json.Decoder(list[Message])
_contexts_decoder = msgspec.json.Decoder(list[Context])
_refs_decoder = msgspec.json.Decoder(_BlobRefs)
_metadata_decoder = msgspec.json.Decoder(dict[str, Any])
_components_decoder = msgspec.json.Decoder(dict[str, float])
_identifiers_decoder = msgspec.json.Decoder(dict[str, str])
_scores_decoder = msgspec.json.Decoder(list[Score])


@cached_by_text(entries=4096)
def blob_id(text: str) -> str:
    """The content address of a text: the SHA-256 of its UTF-8 form, hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def encode_trajectory(trajectory: Trajectory) -> EncodedTrajectory:
    """Check a trajectory and turn it into the values of its row.

    Raises:
        DataError: The trajectory breaks a promise of the schema (see `validate.CODES`), or holds a value that JSON
            cannot carry without loss.
    """
    problems = structural_problems(trajectory)
    for problem in problems:
        if problem.severity == "error":
            raise DataError(f"trajectory {trajectory.trajectory_id!r}: {problem} ({problem.code})")
    refs, blobs = _BlobRefs([], []), dict[str, tuple[str, str]]()
    messages = _without_system_texts(trajectory.messages, refs, blobs)
    contexts = _without_tools(trajectory.contexts, refs, blobs)
    refused: list[RefusedCall] = []
    encode, components = _encoder.encode, trajectory.outcome.components
    try:
        steps = steps_of(trajectory, refused)
        scalars = _scalars(trajectory, steps)
        content = (
            encode(messages),
            encode(contexts),
            encode(trajectory.metadata) if trajectory.metadata else b"{}",
            encode(components) if components else b"{}",
            encode(trajectory.identifiers) if trajectory.identifiers else b"{}",
            encode(trajectory.scores) if trajectory.scores else b"[]",
            encode(refs),
        )
        encode(scalars)  # so that what no column could hold is told here
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"trajectory {trajectory.trajectory_id!r}: cannot be stored as JSON: {error}") from error
    if refused:
        problems.extend(map(refused_call, refused))
    if not steps.rows:
        problems.append(no_policy_step())
    return EncodedTrajectory(
        trajectory.trajectory_id,
        scalars + content,
        steps.rows,
        blobs,
        _content_key(encode(trajectory.task_id), content[0], content[1], content[-1]),
        sum(map(len, content)),
        problems,
        _identities(trajectory),
        [score_values(score) for score in trajectory.scores] if trajectory.scores else [],
    )


def _content_key(*pieces: bytes) -> bytes:
    """16 bytes that are equal for records that copy one another.

    The task is part of the content: "hello" answered by "hi" in two tasks is not one record copied. What the
    attempt was judged to be is not: the same record with another score is still a copy.
    """
    key = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        key.update(len(piece).to_bytes(8, "little"))
        key.update(piece)
    return key.digest()


def _identities(trajectory: Trajectory) -> list[Identity]:
    found: list[Identity] = []
    if trajectory.identifiers:
        found.extend(Identity("trace", name, None) for name in trajectory.identifiers.values())
    for index, message in enumerate(trajectory.messages):
        if message.id is not None and message.producer.kind != "copy":
            found.append(Identity("call", message.id, index))
    return found


def _scalars(trajectory: Trajectory, steps: Steps) -> tuple[Any, ...]:
    branch, outcome, source = trajectory.branch, trajectory.outcome, trajectory.source
    return (
        trajectory.trajectory_id,
        trajectory.task_id,
        trajectory.group_id,
        trajectory.session_id,
        trajectory.user_id,
        trajectory.episode_id,
        trajectory.parent_trajectory_id,
        None if branch is None else branch.trajectory_id,
        None if branch is None else branch.message_index,
        trajectory.task_type,
        trajectory.agent,
        trajectory.model,
        trajectory.started_at,
        trajectory.ended_at,
        trajectory.terminated,
        trajectory.truncated,
        trajectory.stop_reason,
        outcome.status,
        outcome.success,
        None if outcome.score is None else float(outcome.score),
        outcome.scorer,
        source.format,
        source.file,
        source.record,
        source.sha256,
        trajectory.schema_version,
        len(trajectory.messages),
        len(steps.rows),
        steps.tool_calls,
        steps.invalid_calls,
        steps.invalid_actions,
        len(trajectory.scores),
    )


def _without_system_texts(
    messages: list[Message], refs: _BlobRefs, blobs: dict[str, tuple[str, str]]
) -> Sequence[Message]:
    replaced: dict[int, Message] = {}
    for index, message in enumerate(messages):
        role = message.role
        if (role != "system" and role != "developer") or not message.content:
            continue
        parts = list(message.content)
        for number, part in enumerate(parts):
            if isinstance(part, TextPart) and part.text:
                name = blob_id(part.text)
                blobs[name] = ("system", part.text)
                refs.text.append((index, number, name))
                parts[number] = _NO_TEXT
        replaced[index] = msgspec.structs.replace(message, content=parts)
    if not replaced:
        return messages
    stored = list(messages)
    for index, message in replaced.items():
        stored[index] = message
    return stored


def _without_tools(contexts: list[Context], refs: _BlobRefs, blobs: dict[str, tuple[str, str]]) -> Sequence[Context]:
    stored = []
    for index, context in enumerate(contexts):
        if context.tools is not None:
            name = blob_id(context.tools)
            blobs.setdefault(name, ("tools", context.tools))
            refs.tools.append((index, name))
            context = Context(context.start, None, context.tools_id, context.system_id)
        stored.append(context)
    return stored


def blob_ids(blob_refs: bytes) -> set[str]:
    """The ids of the blobs that a row refers to, from the JSON text of its column `blob_refs`."""
    refs = _refs_decoder.decode(blob_refs)
    return {name for _, _, name in refs.text} | {name for _, name in refs.tools}


def decode_trajectory(row: Mapping[str, Any], blobs: Mapping[str, str]) -> Trajectory:
    """Build the trajectory of one row; the exact inverse of `encode_trajectory`.

    Args:
        row: Values of SCALAR_COLUMNS and CONTENT_COLUMNS by name.
        blobs: Text of each blob that the row refers to, by blob id.

    Raises:
        DataError: A blob is missing or a JSON column does not decode (the part file is damaged).
    """
    try:
        return _decode(row, blobs)
    except (KeyError, IndexError, msgspec.DecodeError) as error:
        raise DataError(
            f"trajectory {row['trajectory_id']!r}: the stored row is damaged ({error}); "
            "check the store with Store.verify() and ingest the source again"
        ) from error


def _decode(row: Mapping[str, Any], blobs: Mapping[str, str]) -> Trajectory:
    messages = _messages_decoder.decode(row["messages"])
    contexts = _contexts_decoder.decode(row["contexts"])
    refs = _refs_decoder.decode(row["blob_refs"])
    for index, number, name in refs.text:
        parts = messages[index].content
        if parts is None:
            raise IndexError(f"message {index} has no part {number}")
        parts[number] = TextPart(blobs[name])
    for index, name in refs.tools:
        contexts[index] = msgspec.structs.replace(contexts[index], tools=blobs[name])
    branch = None
    if row["branch_trajectory_id"] is not None:
        branch = Branch(row["branch_trajectory_id"], row["branch_message_index"])
    return Trajectory(
        trajectory_id=row["trajectory_id"],
        messages=messages,
        source=Source(row["source_format"], row["source_file"], row["source_record"], row["source_sha256"]),
        task_id=row["task_id"],
        group_id=row["group_id"],
        session_id=row["session_id"],
        user_id=row["user_id"],
        episode_id=row["episode_id"],
        parent_trajectory_id=row["parent_trajectory_id"],
        branch=branch,
        task_type=row["task_type"],
        agent=row["agent"],
        model=row["model"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        contexts=contexts,
        terminated=row["terminated"],
        truncated=row["truncated"],
        stop_reason=row["stop_reason"],
        outcome=Outcome(
            status=row["status"],
            success=row["success"],
            score=row["score"],
            components=_components_decoder.decode(row["outcome_components"]),
            scorer=row["scorer"],
        ),
        metadata=_metadata_decoder.decode(row["metadata"]),
        identifiers=_identifiers_decoder.decode(row["identifiers"]),
        scores=_scores_decoder.decode(row["scores"]),
        schema_version=row["schema_version"],
    )
