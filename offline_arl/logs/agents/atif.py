"""Trajectories in Harbor's interchange format (ATIF 1.0 to 1.8), and the results of Harbor's trials.

A document is `{schema_version, session_id, agent, steps}`; results of tools stand inside the step that called them.
It may embed the trajectories of sub-agents and name files that continue it. The reward is not in it: a trial folder
holds `result.json` beside `agent/trajectory.json`, and the two are joined here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import msgspec

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.agents.atif_steps import convert_steps
from offline_arl.logs.agents.harbor_trials import TrialResult, is_trial_result
from offline_arl.logs.primitives.values import as_list, as_object, as_text, decode_object, json_text, json_type
from offline_arl.logs.providers.openai_tools import normalize_tools
from offline_arl.logs.slots.reading import apply_slot
from offline_arl.logs.slots.slot import take_slot
from offline_arl.logs.stitching.message_keys import MessageKeys
from offline_arl.trajectories.schema import Branch, Context, Source, Trajectory

_TOLD = frozenset(
    {"schema_version", "session_id", "trajectory_id", "steps", "subagent_trajectories", "continued_trajectory_ref"}
)
_CONTINUATION = re.compile(r"\.cont-(\d+)$|-cont-(\d+)$")
_PART = re.compile(r"\.(?:cont|summarization)-.*$|-cont-\d+$")


class AtifAdapter:
    """Reads ATIF documents and the results of Harbor's trials."""

    name = "atif"
    title = "ATIF trajectories, Harbor trials"
    keeps = (
        "token ids and log-probabilities, sub-agents, continuations, copied context as such, usage; a trial's rewards"
    )
    lacks = "rewards outside of a trial's result.json (such as reward.txt)"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is a document of ATIF, or a result or the configuration of a trial of Harbor."""
        return isinstance(record, dict) and (
            _is_atif(record) or is_trial_result(record) or _is_job_result(record) or _is_trial_config(record)
        )

    def fragments(self, record: RawRecord) -> Sequence[Fragment]:
        """The record, as part of its trial or of the run that its file name says."""
        values = decode_object(record.raw)
        if not is_trial_result(values) and (_is_job_result(values) or _is_trial_config(values)):
            raise RecordSetApartError("the totals of a Harbor job, or the configuration of a trial")
        if not _is_atif(values) and not is_trial_result(values):
            raise RecordRefusedError("expected a document with schema_version ATIF, or the result of a trial")
        return [_fragment(record, json_text(values).encode(), is_result=is_trial_result(values))]

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of one run: documents in order of continuation, their sub-agents, and the verdict."""
        assembly = Assembly()
        documents: list[_Document] = []
        result: TrialResult | None = None
        for index, piece in enumerate(group.pieces):
            values = msgspec.json.decode(piece.payload)
            if is_trial_result(values):
                result = TrialResult.of(values)
            else:
                documents.append(_Document(index, piece.label, piece.position, values))
        documents.sort(key=lambda document: document.order)
        run = _Run(group, result)
        for document in documents:
            try:
                run.add(document)
            except RecordRefusedError as error:
                assembly.refused[document.index] = str(error)
        if not run.found and not assembly.refused:
            assembly.set_apart = dict.fromkeys(range(len(group.pieces)), "the result of a trial without trajectory")
        assembly.trajectories = run.finished()
        return assembly


@dataclass(frozen=True)
class _Document:
    index: int  # of its piece
    label: str
    position: int
    values: dict[str, Any]

    @property
    def order(self) -> tuple[int, int, str, int]:
        """Continuations follow what they continue; other files (of sub-agents) come after them."""
        stem = PurePath(self.label).stem
        found = _CONTINUATION.search(stem)
        is_part = _PART.search(stem) is not None and found is None
        return int(is_part), int(found[1] or found[2]) if found else 0, self.label, self.position

    @property
    def is_sub_agent(self) -> bool:
        """Whether its file name says that a sub-agent made it."""
        return self.order[0] == 1


class _Run:
    """The trajectories of one group in the making; `main` is the latest of the agent itself."""

    def __init__(self, group: Group, result: TrialResult | None) -> None:
        self._group = group
        self._result = result
        self.found: list[Trajectory] = []
        self._main: int | None = None

    def add(self, document: _Document) -> None:
        name = f"{PurePath(document.label).name}#{document.position}"
        source = self._group.source([document.index])
        slot = take_slot(as_object(document.values.get("extra")))
        made = _trajectory(document.values, self._group.trajectory_id(name), source, "")
        if slot is not None:  # an export of this library: it knows its links
            self.found.append(apply_slot(made, slot, made.trajectory_id))
            return
        previous = None if self._main is None else self.found[self._main]
        if previous is not None:
            if document.is_sub_agent or not _continues(previous, made):
                made = _related(made, previous, "sub_agent" if document.is_sub_agent else "rewritten")
            else:
                made = _linked(previous, made)
        if not document.is_sub_agent:
            self._main = len(self.found)
        self.found.append(made)
        self._add_sub_agents(document.values, made, name, "")

    def _add_sub_agents(self, values: dict[str, Any], parent: Trajectory, name: str, where: str) -> None:
        for index, value in enumerate(as_list(values.get("subagent_trajectories"))):
            path = f"{where}subagent_trajectories[{index}]."
            if not isinstance(value, dict):
                raise RecordRefusedError(f"{path[:-1]}: expected an object, got {json_type(value)}")
            inner = f"{name}/{as_text(value.get('trajectory_id')) or index}"
            made = _trajectory(value, self._group.trajectory_id(inner), parent.source, path)
            made = msgspec.structs.replace(
                _related(made, parent, "sub_agent"),
                session_id=made.session_id or parent.session_id,
                episode_id=made.episode_id or parent.episode_id,
            )
            self.found.append(made)
            self._add_sub_agents(value, made, inner, path)

    def finished(self) -> list[Trajectory]:
        """All trajectories; the verdict of the trial goes to the last one of the agent itself."""
        if self._result is None:
            return self.found
        found = [self._result.identify(trajectory) for trajectory in self.found]
        if self._main is not None:
            found[self._main] = self._result.judge(found[self._main])
        return found


def _is_atif(record: dict[str, Any]) -> bool:
    version = record.get("schema_version")
    return isinstance(version, str) and version.startswith("ATIF") and isinstance(record.get("steps"), list)


def _is_job_result(record: dict[str, Any]) -> bool:
    return {"id", "n_total_trials", "stats", "started_at"} <= record.keys()


def _is_trial_config(record: dict[str, Any]) -> bool:
    return {"task", "trial_name", "trials_dir", "agent", "verifier"} <= record.keys()


def _fragment(record: RawRecord, payload: bytes, *, is_result: bool) -> Fragment:
    """The record as part of a run in the folder of its trial, or of its own where a file holds several documents."""
    path = PurePath(record.file)
    if record.position and not is_result:
        return Fragment(f"{path.name}#{record.position}", payload, folder_levels=1)
    name = "trajectory" if is_result else _PART.sub("", path.stem)
    return Fragment(name, payload, folder_levels=2 if path.parent.name == "agent" else 1)


def _trajectory(values: dict[str, Any], trajectory_id: str, source: Source, where: str) -> Trajectory:
    steps = values.get("steps")
    if not isinstance(steps, list) or not steps:
        raise RecordRefusedError(f"{where}steps: expected a list with steps, got {json_type(steps)}")
    agent = as_object(values.get("agent"))
    model, name = as_text(agent.get("model_name")), as_text(agent.get("name"))
    messages = convert_steps(steps, f"{where}steps", model)
    tools = agent.get("tool_definitions")
    contexts = []
    if isinstance(tools, list):
        contexts.append(Context(start=0, tools=normalize_tools(json_text(tools).encode())))
    metadata = {key: value for key, value in values.items() if key not in _TOLD and value not in (None, [], {})}
    if isinstance(reference := values.get("continued_trajectory_ref"), str):
        metadata["continued_trajectory_ref"] = reference
    session, own = as_text(values.get("session_id")), as_text(values.get("trajectory_id"))
    times = [message.timestamp for message in messages if message.timestamp is not None]
    return Trajectory(
        trajectory_id=trajectory_id,
        messages=messages,
        source=source,
        session_id=session,
        episode_id=session or own,
        identifiers={} if own is None else {"trajectory": own},
        agent=name,
        model=model,
        started_at=times[0] if times else None,
        ended_at=times[-1] if times else None,
        contexts=contexts,
        metadata=metadata,
    )


def _continues(previous: Trajectory, made: Trajectory) -> bool:
    """Whether one document goes on where the other ends: it names one, or they are of one session."""
    return "continued_trajectory_ref" in previous.metadata or (
        previous.session_id is not None and previous.session_id == made.session_id
    )


def _linked(previous: Trajectory, made: Trajectory) -> Trajectory:
    keys = MessageKeys()
    shared = 0
    for one, other in zip(previous.messages, made.messages, strict=False):
        if keys.of(one) != keys.of(other):
            break
        shared += 1
    made = _related(made, previous, "compaction")
    return msgspec.structs.replace(made, branch=Branch(previous.trajectory_id, shared)) if shared else made


def _related(made: Trajectory, parent: Trajectory, relation: str) -> Trajectory:
    metadata = {**made.metadata, "relation": relation}
    return msgspec.structs.replace(made, parent_trajectory_id=parent.trajectory_id, metadata=metadata)
