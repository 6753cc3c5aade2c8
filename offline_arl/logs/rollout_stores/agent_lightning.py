"""Rollouts of agent-lightning: spans (before version 1) or events (since), and its legacy reports with triplets.

A rollout is attempted one or more times; each attempt has model calls, which are stitched, and rewards, in order.
A reward that the store filled in because none came (`source: "fallback"`) is not a reward, and neither is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordRefusedError
from offline_arl.logs.primitives.scores import finite_number
from offline_arl.logs.primitives.values import as_list, as_object, as_text, decode_object, json_text
from offline_arl.logs.rollout_stores.agent_lightning_calls import (
    event_call,
    event_rewards,
    span_call,
    span_rewards,
    triplet_calls,
)
from offline_arl.logs.stitching.stitch import ModelCall, assembly_of
from offline_arl.trajectories.schema import Outcome, Score, Trajectory

_FAILED = "failed"


@dataclass
class _Attempt:
    """What the records of one attempt say, in order."""

    calls: list[ModelCall] = field(default_factory=list)
    # Each reward with the number of calls that came before it.
    rewards: list[tuple[int, Score]] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)


@dataclass
class _Rollout:
    """What the record of a rollout itself says of all its attempts."""

    task_id: str | None = None
    is_failed: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)


class AgentLightningAdapter:
    """Reads spans, events and rollout reports of agent-lightning."""

    name = "agent_lightning"
    title = "agent-lightning spans, events and triplets"
    keeps = "model calls stitched by attempt, rewards with the step they followed, token ids, attempts as group"
    lacks = "triplets that hold token ids only; spans that are neither model calls nor rewards are set apart"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is a span, an event, a rollout or a report of one."""
        if not isinstance(record, dict) or not isinstance(record.get("rollout_id"), str):
            return False
        if "attempt_id" in record:
            return (
                "event_type" in record
                or record.keys() >= {"sequence_id", "attributes", "name"}
                or (record.keys() >= {"sequence_id", "status"})
            )
        return "triplets" in record or record.keys() >= {"input", "status"}

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """The rollout that a record belongs to."""
        values = decode_object(record.raw)
        rollout_id = as_text(values.get("rollout_id"))
        if not rollout_id:
            raise RecordRefusedError("rollout_id: is missing")
        return [Fragment(rollout_id, record.raw)]

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of the attempts at a rollout."""
        attempts: dict[str, _Attempt] = {}
        rollout = _Rollout()
        assembly = Assembly()
        for index, values in _in_order(group):
            attempt_id = as_text(values.get("attempt_id"))
            try:
                if attempt_id is None:
                    _read_rollout(values, rollout)
                    if not values.get("triplets"):
                        assembly.set_apart[index] = "the rollout's own record: its input and status"
                        continue
                reason = _read(values, index, attempts.setdefault(attempt_id or "", _Attempt()))
            except RecordRefusedError as error:
                assembly.refused[index] = str(error)
                continue
            if reason is not None:
                assembly.set_apart[index] = reason
        for attempt_id, attempt in attempts.items():
            _assemble_attempt(group, attempt_id, attempt, rollout, assembly)
        return assembly


def _in_order(group: Group) -> Iterator[tuple[int, dict[str, Any]]]:
    """The pieces by the number of the span in its attempt; events, which have none, as they stand."""
    values = [decode_object(piece.payload) for piece in group.pieces]
    order = sorted(range(len(values)), key=lambda index: finite_number(values[index].get("sequence_id")) or 0.0)
    return ((index, values[index]) for index in order)


def _read_rollout(values: dict[str, Any], rollout: _Rollout) -> None:
    task = as_object(values.get("task"))
    given = values.get("input", task.get("input"))
    if given is not None:
        named = as_object(given).get("task_id", as_object(given).get("id"))
        rollout.task_id = str(named) if isinstance(named, (str, int)) else json_text(given)[:200]
    status = values.get("status")
    rollout.is_failed = _FAILED in (status, as_object(status).get("state"))
    rest = {key: value for key, value in values.items() if key not in ("triplets", "trace") and value is not None}
    rollout.metadata["rollout"] = rest


def _read(values: dict[str, Any], index: int, attempt: _Attempt) -> str | None:
    """Add what a record says to its attempt, or say why it says nothing."""
    attempt.pieces.append(index)
    if "triplets" in values:
        _read_report(values, index, attempt)
        return None
    if "event_type" in values:
        call, rewards, kind = event_call(values, index), event_rewards(values), f"event {values['event_type']}"
    elif "attributes" in values:
        call, rewards, kind = span_call(values, index), span_rewards(values), f"span {values.get('name')}"
    else:
        return "the attempt's own record: its status and times"
    if call is not None:
        attempt.calls.append(call)
    elif rewards:
        attempt.rewards.extend((len(attempt.calls), score) for score in rewards)
    elif kind == "event reward":
        return "a reward that nobody gave (fallback or empty)"
    else:
        return f"{kind[:80]}: neither a model call nor a reward"
    return None


def _read_report(values: dict[str, Any], index: int, attempt: _Attempt) -> None:
    for call, reward in triplet_calls(as_list(values["triplets"]), index):
        attempt.calls.append(call)
        if reward is not None:
            attempt.rewards.append((len(attempt.calls), reward))
    final = finite_number(values.get("final_reward"))
    if final is not None and (not attempt.rewards or attempt.rewards[-1][0] < len(attempt.calls)):
        attempt.rewards.append((len(attempt.calls), _final(final)))


def _final(value: float) -> Score:
    return Score("reward", value, scorer="agent_lightning", direction="higher_is_better")


def _assemble_attempt(group: Group, attempt_id: str, attempt: _Attempt, rollout: _Rollout, assembly: Assembly) -> None:
    if not attempt.calls:
        for index in attempt.pieces:
            if index not in assembly.refused:
                assembly.set_apart.setdefault(index, "its attempt has no model call")
        return
    # Attempts at a rollout start alike and are not branches of one another: each is stitched by itself.
    stitched = assembly_of(attempt.calls, Group(group.format, f"{group.key}\0{attempt_id}", group.pieces))
    assembly.set_apart.update(stitched.set_apart)
    assembly.duplicates.update(stitched.duplicates)
    outcome = _outcome(attempt, rollout)
    place = _places(stitched.trajectories, attempt.calls)
    for number, trajectory in enumerate(stitched.trajectories):
        scores = [
            msgspec.structs.replace(score, message_index=where[1])
            for calls_before, score in attempt.rewards
            if (where := place[calls_before]) is not None and where[0] == number
        ]
        identifiers = {**trajectory.identifiers, "rollout": group.key or ""}
        if attempt_id:
            identifiers["attempt"] = attempt_id
        task_id = rollout.task_id
        assembly.trajectories.append(
            msgspec.structs.replace(
                trajectory,
                task_id=task_id or group.key,
                group_id=task_id or group.key,
                episode_id=f"{group.key}/{attempt_id}" if attempt_id else group.key,
                outcome=outcome,
                scores=[*trajectory.scores, *scores],
                identifiers=identifiers,
                metadata={**trajectory.metadata, **rollout.metadata},
            )
        )


def _outcome(attempt: _Attempt, rollout: _Rollout) -> Outcome:
    """The last reward, as agent-lightning itself takes it; the rewards of one report are its components."""
    if not attempt.rewards:
        return Outcome("infrastructure_error" if rollout.is_failed else "unscored", scorer="agent_lightning")
    primary = [score for _, score in attempt.rewards if not score.metadata.get("dimension")]
    last = (primary or [attempt.rewards[-1][1]])[-1]
    start = next(index for index, (_, score) in enumerate(attempt.rewards) if score is last)
    report: dict[str, float] = {}
    for _, score in attempt.rewards[start:]:
        if score.value is not None:
            report[score.name] = score.value
    components = report if len(report) > 1 else {}
    return Outcome("scored", score=last.value, components=components, scorer="agent_lightning")


def _places(trajectories: Sequence[Trajectory], calls: Sequence[ModelCall]) -> list[tuple[int, int] | None]:
    """For each number of calls: the trajectory and message of the last answer among them, None where there is none."""
    by_id: dict[str, tuple[int, int]] = {}
    for number, trajectory in enumerate(trajectories):
        for index, message in enumerate(trajectory.messages):
            if message.id is not None:
                by_id.setdefault(message.id, (number, index))
    places: list[tuple[int, int] | None] = [None]
    for call in calls:
        found = by_id.get(call.call_id) if call.call_id is not None else None
        places.append(found if found is not None else places[-1])
    return places
