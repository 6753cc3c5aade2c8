"""Conversations of OpenHands' SDK (V1): a folder with `base_state.json` and one file an event under `events`.

Calls of one response are events of their own that share `llm_response_id`. Events name their parents: a conversation
that was taken up again from an earlier point is a tree, whose paths are conversations of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordRefusedError
from offline_arl.logs.agents.openhands_conversation import (
    Conversation,
    Entry,
    as_copy,
    common_entries,
    part_of_folder,
    trajectories_of,
)
from offline_arl.logs.agents.openhands_v1_events import read_event
from offline_arl.logs.primitives.values import as_object, as_text, decode_object
from offline_arl.trajectories.schema import Branch, Trajectory

_EVENT_FILE = re.compile(r"event-\d+-.+\.json")
_STATE_FILE = "base_state.json"
_ROOT = "__root__"
_TERMINATED = frozenset({"finish", "finished"})


class OpenHandsV1Adapter:
    """Reads conversations of OpenHands' SDK."""

    name = "openhands_v1"
    title = "OpenHands SDK conversations (V1 events)"
    keeps = "parallel calls as one answer, reasoning, condensations, forks, rejections, token ids, the state at the end"
    lacks = "rewards; schemas of tools that are not of MCP"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is an event with a kind, an id and a source, or the state of a conversation."""
        return isinstance(record, dict) and (_is_event(record) or _is_state(record))

    def fragments(self, record: RawRecord) -> Sequence[Fragment]:
        """The event as part of its folder, or of its file where a file holds several."""
        values = decode_object(record.raw)
        if not _is_event(values) and not _is_state(values):
            raise RecordRefusedError("expected an event with kind, id and source, or the state of a conversation")
        name = PurePath(record.label).name
        is_own_file = _EVENT_FILE.fullmatch(name) is not None or name == _STATE_FILE
        return [part_of_folder(record) if is_own_file else Fragment(None, record.raw)]

    def assemble(self, group: Group) -> Assembly:
        """The conversation, and the forks that were left."""
        assembly = Assembly()
        state: dict[str, Any] = {}
        events: dict[str, tuple[int, dict[str, Any]]] = {}
        for index, piece in enumerate(group.pieces):
            values = decode_object(piece.payload)
            if _is_state(values):
                state = values
            elif values["id"] in events:
                assembly.duplicates[index] = "an event of this id came before"
            else:
                events[values["id"]] = (index, values)
        forks = _Forks(group, assembly, events)
        for path in _paths(events, as_text(state.get("leaf_event_id"))):
            forks.add(path)
        for name, (index, _) in events.items():
            if name not in forks.read:
                assembly.refused[index] = "its parents form a circle"
        place = group.key if group.key is not None else group.pieces[0].label
        session = as_text(state.get("id")) or PurePath(place).name.removesuffix(".json")
        assembly.trajectories = [_described(trajectory, state, session) for trajectory in forks.found]
        if assembly.trajectories:
            last = assembly.trajectories[forks.main]
            assembly.trajectories[forks.main] = _with_ending(last, state)
        return assembly


class _Forks:
    """The trajectories of the paths of a conversation; `main` is the index of the one that it ended on."""

    def __init__(self, group: Group, assembly: Assembly, events: dict[str, tuple[int, dict[str, Any]]]) -> None:
        self._group = group
        self._assembly = assembly
        self._events = events
        self._shown: list[tuple[list[Entry], str]] = []
        self.found: list[Trajectory] = []
        self.read: set[str] = set()
        self.main = 0

    def add(self, path: Sequence[str]) -> None:
        """Add a path; of a fork only the conversations in which something new was said."""
        conversation = Conversation()
        for name in path:
            self._read(conversation, name)
        is_fork = bool(self._shown)
        prefix = f"{path[-1]}:" if is_fork else ""
        source = self._group.source()
        known = frozenset().union(*(entry.events for segment, _ in self._shown for entry in segment))
        made = trajectories_of(conversation, self._group, source, prefix)
        for segment, trajectory in zip(conversation.segments, made, strict=True):
            if is_fork:
                if all(entry.events <= known for entry in segment):
                    continue
                trajectory = self._fork(trajectory, segment)
            self._shown.append((segment, trajectory.trajectory_id))
            self.found.append(trajectory)
        if not is_fork:
            self.main = max(len(self.found) - 1, 0)

    def _read(self, conversation: Conversation, name: str) -> None:
        index, values = self._events[name]
        self.read.add(name)
        try:
            apart = read_event(conversation, values)
        except RecordRefusedError as error:
            self._assembly.refused[index] = str(error)
        else:
            if apart is not None:
                self._assembly.set_apart[index] = apart

    def _fork(self, trajectory: Trajectory, segment: Sequence[Entry]) -> Trajectory:
        origin, origin_id = max(self._shown, key=lambda item: common_entries(item[0], segment))
        shared = common_entries(origin, segment)
        messages = [as_copy(message) for message in trajectory.messages[:shared]] + trajectory.messages[shared:]
        return msgspec.structs.replace(
            trajectory,
            messages=messages,
            branch=Branch(origin_id, shared) if shared else None,
            parent_trajectory_id=None if shared else origin_id,
            metadata={"relation": "rewritten"},
        )


def _is_event(record: dict[str, Any]) -> bool:
    return (
        isinstance(record.get("kind"), str)
        and isinstance(record.get("id"), str)
        and record.get("source") in ("agent", "user", "environment", "hook")
        and "timestamp" in record
    )


def _is_state(record: dict[str, Any]) -> bool:
    return "execution_status" in record and isinstance(record.get("agent"), dict) and isinstance(record.get("id"), str)


def _paths(events: dict[str, tuple[int, dict[str, Any]]], leaf: str | None) -> list[list[str]]:
    """The paths from the root to each leaf, the one that the conversation is on first."""
    parents: dict[str, str | None] = {}
    before: str | None = None
    for name, (_, values) in events.items():
        named = as_text(values.get("parent_id"))
        # Older events name no parent: each follows the one before it.
        parents[name] = None if named == _ROOT else before if named is None or named not in events else named
        before = name
    leaves = [name for name in events if name not in set(parents.values())]
    if leaf in events:
        leaves = [leaf, *(name for name in leaves if name != leaf)]
    elif leaves:
        leaves = [leaves[-1], *leaves[:-1]]
    return [path for path in (_path(name, parents) for name in leaves) if path]


def _path(leaf: str, parents: dict[str, str | None]) -> list[str]:
    path: dict[str, None] = {}
    name: str | None = leaf
    while name is not None and name not in path:
        path[name] = None
        name = parents[name]
    return list(reversed(path))


def _described(trajectory: Trajectory, state: dict[str, Any], session: str) -> Trajectory:
    times = [message.timestamp for message in trajectory.messages if message.timestamp is not None]
    agent = as_object(state.get("agent"))
    return msgspec.structs.replace(
        trajectory,
        session_id=session,
        episode_id=session,
        agent=as_text(agent.get("kind")),
        model=as_text(as_object(agent.get("llm")).get("model")),
        started_at=times[0] if times else None,
        ended_at=times[-1] if times else None,
    )


def _with_ending(trajectory: Trajectory, state: dict[str, Any]) -> Trajectory:
    """The conversation with how it ended: by the state where there is one, else by the agent's last call."""
    status = as_text(state.get("execution_status"))
    calls = [call.name for message in trajectory.messages[-4:] for call in message.tool_calls]
    if status is None and calls[-1:] == ["finish"]:
        status = "finish"
    return msgspec.structs.replace(
        trajectory,
        terminated=status in _TERMINATED,
        stop_reason=status,
        metadata={**trajectory.metadata, "state": state} if state else trajectory.metadata,
    )
