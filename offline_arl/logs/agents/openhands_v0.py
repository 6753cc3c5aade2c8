"""Sessions of OpenHands before its SDK (V0), and rows of its evaluations and of its issue resolver.

A session is a JSON array of events, or a folder with a file for each event. A row of `output.jsonl` holds the events
of one attempt under `history` with what came of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordRefusedError
from offline_arl.logs.agents.openhands_conversation import part_of_folder, trajectories_of
from offline_arl.logs.agents.openhands_v0_events import V0Reader
from offline_arl.logs.primitives.scores import finite_number, make_score
from offline_arl.logs.primitives.values import as_list, as_object, as_text, decode_object, json_type
from offline_arl.trajectories.schema import Outcome, Score, Trajectory

_EVENT_FILE = re.compile(r"\d+\.json")
_LIMIT = re.compile(
    r"maximum (?:iteration|budget)|max_?(?:imum)?_?(?:iterations|budget)|stuck in a loop|agentstuckinloop", re.I
)
_SOURCES = frozenset({"user", "agent", "environment"})


class OpenHandsV0Adapter:
    """Reads sessions of OpenHands V0."""

    name = "openhands_v0"
    title = "OpenHands sessions (V0 events)"
    keeps = "parallel calls as one answer, thoughts, exit codes and other details of observations, condensations"
    lacks = "rewards; what the agent's prompt made of observations"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is an event with a source and an action or observation."""
        return (
            isinstance(record, dict)
            and isinstance(record.get("id"), int)
            and isinstance(record.get("source"), str)
            and record["source"] in _SOURCES
            and (isinstance(record.get("action"), str) or isinstance(record.get("observation"), str))
        )

    def fragments(self, record: RawRecord) -> Sequence[Fragment]:
        """The event as part of its file, or of its folder where it has a file of its own."""
        if not self.recognizes(decode_object(record.raw)):
            raise RecordRefusedError("expected an event with id, source and action or observation")
        is_own_file = _EVENT_FILE.fullmatch(PurePath(record.label).name) is not None
        return [part_of_folder(record) if is_own_file else Fragment(None, record.raw)]

    def assemble(self, group: Group) -> Assembly:
        """The session."""
        assembly = Assembly()
        events = [decode_object(piece.payload) for piece in group.pieces]
        order = sorted(range(len(events)), key=lambda index: _number(events[index]))
        reader = V0Reader()
        seen: set[object] = set()
        for index in order:
            event = events[index]
            if event.get("id") in seen:
                assembly.duplicates[index] = "an event of this id came before"
                continue
            seen.add(event.get("id"))
            before = len(reader.others)
            try:
                reader.read(event, f"events[{index}]")
            except RecordRefusedError as error:
                assembly.refused[index] = str(error)
            if len(reader.others) > before:
                kind = event.get("action") or event.get("observation")
                assembly.set_apart[index] = f"no message: {kind}"
        name = group.key if group.key is not None else group.pieces[0].label
        session = PurePath(name).name.removesuffix(".json")
        for trajectory in trajectories_of(reader.conversation, group, group.source()):
            times = [message.timestamp for message in trajectory.messages if message.timestamp is not None]
            assembly.trajectories.append(
                msgspec.structs.replace(
                    trajectory,
                    session_id=session,
                    episode_id=session,
                    model=reader.model,
                    started_at=times[0] if times else None,
                    ended_at=times[-1] if times else None,
                )
            )
        if assembly.trajectories:
            last = assembly.trajectories[-1]
            assembly.trajectories[-1] = msgspec.structs.replace(
                last,
                terminated=reader.ending in ("finish", "finished", "reject", "rejected"),
                stop_reason=reader.ending,
                metadata={**last.metadata, "other_events": reader.others} if reader.others else last.metadata,
            )
        return assembly


def _number(event: dict[str, Any]) -> int:
    value = event.get("id")
    return value if isinstance(value, int) else 0


class OpenHandsRowsAdapter:
    """Reads `output.jsonl` of OpenHands' evaluations and of its issue resolver."""

    name = "openhands_rows"
    title = "OpenHands evaluation and resolver rows (output.jsonl)"
    keeps = "verdict, patch, explanation, metrics, events as in sessions"
    lacks = "verdicts of reports that are in other files"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has a history of events and names an instance or an issue."""
        if not isinstance(record, dict) or not isinstance(record.get("history"), list):
            return False
        return "instance_id" in record or isinstance(record.get("issue"), dict)

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The attempt of a row, one trajectory for each conversation between condensations."""
        values = decode_object(record.raw)
        history = values.pop("history", None)
        if not isinstance(history, list) or not history:
            raise RecordRefusedError(f"history: expected a list with events, got {json_type(history)}")
        reader = V0Reader()
        for index, item in enumerate(history):
            # Older rows pair each action with its observation.
            for event in item if isinstance(item, list) else [item]:
                reader.read(event, f"history[{index}]")
        group = Group(self.name, record.trajectory_id(), ())
        found = trajectories_of(reader.conversation, group, record.source(self.name))
        if not found:
            raise RecordRefusedError("history: no event is a message")
        settings = as_object(values.get("metadata"))
        task = _task(values)
        for index, trajectory in enumerate(found):
            found[index] = msgspec.structs.replace(
                trajectory,
                task_id=task,
                group_id=task,
                episode_id=record.trajectory_id(),
                agent=as_text(settings.get("agent_class")),
                model=reader.model or as_text(as_object(settings.get("llm_config")).get("model")),
            )
        error = as_text(values.get("error"))
        is_cut = error is not None and _LIMIT.search(error) is not None
        found[-1] = msgspec.structs.replace(
            found[-1],
            terminated=reader.ending in ("finish", "finished", "reject", "rejected") and not is_cut,
            truncated=is_cut,
            stop_reason=error if error is not None else reader.ending,
            outcome=_outcome(values, failed=error is not None and not is_cut),
            scores=_scores(values),
            metadata={**found[-1].metadata, **values, **({"other_events": reader.others} if reader.others else {})},
        )
        return found


def _task(values: dict[str, Any]) -> str | None:
    named = as_text(values.get("instance_id"))
    issue = as_object(values.get("issue"))
    if named is not None or not issue:
        return named
    return f"{issue.get('owner')}/{issue.get('repo')}#{issue.get('number')}"


def _outcome(values: dict[str, Any], *, failed: bool) -> Outcome:
    success = values.get("success")
    if isinstance(success, bool):
        return Outcome("scored", success, float(success), scorer="openhands_resolver")
    result = as_object(values.get("test_result"))
    verdict = as_object(result.get("report")).get("resolved", result.get("resolved", result.get("success")))
    if isinstance(verdict, bool):
        return Outcome("scored", verdict, float(verdict), scorer="openhands_evaluation")
    score = finite_number(result.get("score", result.get("reward")))
    if score is not None:
        return Outcome("scored", None, score, scorer="openhands_evaluation")
    return Outcome("infrastructure_error") if failed else Outcome()


def _scores(values: dict[str, Any]) -> list[Score]:
    """The judgement of the resolver, which a model makes, of the whole and of each comment of a review."""
    if not isinstance(values.get("success"), bool):
        return []
    scorer = "openhands_resolver"
    found = [
        make_score(
            "success", values["success"], scorer=scorer, kind="model", comment=as_text(values.get("result_explanation"))
        )
    ]
    verdicts = [verdict for verdict in as_list(values.get("comment_success")) if isinstance(verdict, bool)]
    found.extend(make_score("comment_success", verdict, scorer=scorer, kind="model") for verdict in verdicts)
    return found
