"""Logs of Inspect (inspect_ai): `.json` documents, `.eval` archives, single samples and lists of events.

A log has `{version, status, eval, plan, results, stats, samples}`; a sample is one attempt (`epoch`) at one task.
Its trajectories are those of `inspect_threads`: the agent's own conversation, and linked to it branches, what came
before a compaction, and sub-agents. Where a log has no model events, the messages of the sample are all there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.benchmarks.inspect_calls import Call, Transcript, read_transcript
from offline_arl.logs.benchmarks.inspect_messages import attachments_of, convert_messages, resolve
from offline_arl.logs.benchmarks.inspect_scores import deciding_scorer, outcome_of, scores_of
from offline_arl.logs.benchmarks.inspect_threads import Thread, add_ending, add_results, final_thread, join_calls
from offline_arl.logs.primitives.values import as_list, as_object, as_text, decode_object
from offline_arl.logs.stitching.message_keys import MessageKeys
from offline_arl.trajectories.schema import Branch, Message, Trajectory

_CUT = frozenset({"max_tokens", "model_length", "length"})
# What of a sample is told by other fields of its trajectories, or grows with what they hold.
_TOLD = frozenset(
    {"messages", "output", "events", "events_data", "message_pool", "attachments", "scores", "score", "timelines"}
    | {"transcript", "id", "uuid", "started_at", "completed_at"}
)


class InspectAdapter:
    """Reads logs of Inspect."""

    name = "inspect_ai"
    title = "Inspect logs (.json, .eval)"
    keeps = (
        "scores with explanations, tools, branches, compactions and sub-agents, tool errors, limits, epochs as groups, "
        "usage, log-probabilities as logged"
    )
    lacks = "token ids; events of sandboxes, loggers and stores, and the run's totals are left out"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is a log, a sample of one, or a list of its events."""
        if not isinstance(record, dict):
            return False
        evaluation = record.get("eval")
        if isinstance(evaluation, dict):
            return "task" in evaluation and bool(record.keys() & {"samples", "plan", "status"})
        return _is_sample(record) or _is_event_list(record)

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The trajectories of all samples of a record."""
        log = decode_object(record.raw)
        if _is_sample(log) or _is_event_list(log):
            log = {"samples": [log]}
        elif not isinstance(log.get("eval"), dict):
            raise RecordRefusedError("expected a log with eval, a sample with epoch and messages, or events")
        samples = log.get("samples")
        if samples is None or samples == []:
            raise RecordSetApartError("a log without samples")
        if not isinstance(samples, list):
            raise RecordRefusedError("samples: expected a list")
        found: list[Trajectory] = []
        for index, sample in enumerate(samples):
            if not isinstance(sample, dict):
                raise RecordRefusedError(f"samples[{index}]: expected an object")
            try:
                found.extend(_Sample(sample, log, record, len(found)).trajectories())
            except RecordRefusedError as error:
                raise RecordRefusedError(f"samples[{index}].{error}") from error
        if not found:
            raise RecordSetApartError("no sample has a message of an agent")
        return found


def _is_sample(record: dict[str, Any]) -> bool:
    return {"id", "epoch", "input", "target"} <= record.keys() and isinstance(record.get("messages"), list)


def _is_event_list(record: dict[str, Any]) -> bool:
    events = record.get("events")
    return (
        isinstance(events, list)
        and bool(events)
        and all(isinstance(event, dict) and isinstance(event.get("event"), str) for event in events)
        and any(event["event"] in ("span_begin", "sample_init", "model") for event in events)
    )


class _Sample:
    """One sample on its way to trajectories, the first of which gets the number `first` within the record."""

    def __init__(self, sample: dict[str, Any], log: dict[str, Any], record: RawRecord, first: int) -> None:
        old = sample.get("transcript")
        if isinstance(old, dict):
            sample = {**sample, "events": old.get("events"), "attachments": old.get("content")}
        self._sample = sample
        self._log = log
        self._record = record
        self._first = first
        self._attachments = attachments_of(sample)

    def trajectories(self) -> list[Trajectory]:
        state = convert_messages(resolve(self._sample.get("messages"), self._attachments), "messages")
        transcript = read_transcript(self._sample, self._attachments)
        threads = join_calls(transcript.calls)
        final = final_thread(threads, state)
        if final is None:
            final = Thread(None, state)
            threads.insert(0, final)
        else:
            add_ending(final, state)
        add_results(threads, transcript, state)
        threads = [thread for thread in threads if thread.messages]
        if not threads:
            return []
        numbers = {id(thread): self._first + number for number, thread in enumerate(threads)}
        found = [self._trajectory(thread, threads, numbers) for thread in threads]
        place = next((index for index, thread in enumerate(threads) if thread is final), 0)
        found[place] = self._with_verdict(found[place], transcript, state, threads)
        return found

    def _trajectory(self, thread: Thread, threads: Sequence[Thread], numbers: dict[int, int]) -> Trajectory:
        sample, evaluation = self._sample, as_object(self._log.get("eval"))
        task = as_text(evaluation.get("task"))
        task_id = _id_text(sample.get("id"))
        if task is not None and task_id is not None:
            task_id = f"{task}/{task_id}"
        run = as_text(evaluation.get("run_id"))
        episode = as_text(sample.get("uuid"))
        if episode is None and run is not None:
            episode = f"{run}/{_id_text(sample.get('id'))}/{_id_text(sample.get('epoch'))}"
        identifiers = {"run": run, "eval": as_text(evaluation.get("eval_id")), "sample": as_text(sample.get("uuid"))}
        lane = thread.lane
        parent = thread.parent if thread.parent is not None and id(thread.parent) in numbers else None
        if parent is None and thread.source is None and thread is not threads[0]:
            parent = threads[0]
        is_compacted = any(other.relation == "compaction" and other.parent is thread for other in threads)
        metadata = _call_errors(thread.calls)
        if thread.relation is not None:
            metadata["relation"] = thread.relation
        return Trajectory(
            trajectory_id=self._id(thread, numbers),
            messages=thread.messages,
            source=self._record.source(InspectAdapter.name),
            task_id=task_id,
            group_id=task_id,
            episode_id=episode,
            identifiers={key: value for key, value in identifiers.items() if value is not None},
            parent_trajectory_id=None if parent is None else self._id(parent, numbers),
            branch=None if thread.source is None else Branch(self._id(thread.source, numbers), thread.shared),
            task_type=task,
            agent=(lane.name if lane is not None else None) or _solver(self._log),
            model=_model(thread.calls) or as_text(evaluation.get("model")),
            started_at=thread.calls[0].started_at if thread.calls else as_text(sample.get("started_at")),
            ended_at=thread.calls[-1].ended_at if thread.calls else as_text(sample.get("completed_at")),
            contexts=thread.contexts,
            stop_reason="compaction" if is_compacted else thread.calls[-1].stop_reason if thread.calls else None,
            metadata=metadata,
        )

    def _id(self, thread: Thread, numbers: dict[int, int]) -> str:
        return self._record.trajectory_id(numbers[id(thread)])

    def _with_verdict(
        self, trajectory: Trajectory, transcript: Transcript, state: Sequence[Message], threads: Sequence[Thread]
    ) -> Trajectory:
        """The agent's own trajectory with what the sample as a whole has: scores, how it ended, metadata."""
        sample = self._sample
        evaluation = as_object(self._log.get("eval"))
        limit = as_object(sample.get("limit"))
        error = sample.get("error")
        choice = as_object(next(iter(as_list(as_object(sample.get("output")).get("choices"))), None))
        reason = trajectory.stop_reason or as_text(choice.get("stop_reason"))
        truncated = error is None and (bool(limit) or reason in _CUT)
        if limit:
            reason = f"{as_text(limit.get('type')) or 'unknown'}_limit"
        elif error is not None:
            reason = "error"
        ended = bool(choice) or bool(sample.get("scores"))
        return msgspec.structs.replace(
            trajectory,
            started_at=as_text(sample.get("started_at")) or trajectory.started_at,
            ended_at=as_text(sample.get("completed_at")) or trajectory.ended_at,
            terminated=ended and error is None and not truncated,
            truncated=truncated,
            stop_reason=reason,
            outcome=outcome_of(sample, deciding_scorer(evaluation)),
            scores=scores_of(sample, transcript.model_scorers),
            metadata={**trajectory.metadata, **self._metadata(transcript, state, threads)},
        )

    def _metadata(self, transcript: Transcript, state: Sequence[Message], threads: Sequence[Thread]) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            key: resolve(value, self._attachments)
            for key, value in self._sample.items()
            if key not in _TOLD and value not in (None, [], {})
        }
        if _is_told(metadata.get("input"), threads):
            metadata.pop("input", None)
        if (run := _run(self._log)) != {}:
            metadata["run"] = run
        apart = [_apart(call) for call in transcript.calls if call.apart is not None]
        if apart:
            metadata["calls_set_apart"] = apart
        keys = MessageKeys()
        known = {keys.of(message) for thread in threads for message in thread.messages}
        kept = [index for index, message in enumerate(state) if keys.of(message) not in known]
        if kept:
            # How the agent rewrote its own conversation after the model had answered.
            logged = as_list(self._sample.get("messages"))
            metadata["rewritten_messages"] = [
                {"index": index, "message": resolve(logged[index], self._attachments)} for index in kept
            ]
        return metadata


def _id_text(value: object) -> str | None:
    if isinstance(value, bool) or value is None:
        return None
    return str(value) if isinstance(value, (str, int, float)) else None


def _is_told(value: object, threads: Sequence[Thread]) -> bool:
    return not isinstance(value, str) or any(message.text == value for message in threads[0].messages)


def _solver(log: dict[str, Any]) -> str | None:
    steps = as_list(as_object(log.get("plan")).get("steps"))
    return as_text(as_object(steps[-1]).get("solver")) if steps else None


def _model(calls: Sequence[Call]) -> str | None:
    return next((call.model for call in calls if call.model is not None), None)


def _run(log: dict[str, Any]) -> dict[str, Any]:
    """What the log says of the run, without the list of all its samples and their totals."""
    evaluation = dict(as_object(log.get("eval")))
    dataset = evaluation.get("dataset")
    if isinstance(dataset, dict):
        evaluation["dataset"] = {key: value for key, value in dataset.items() if key != "sample_ids"}
    others = {key: log[key] for key in ("version", "status", "plan", "error") if log.get(key) is not None}
    return {**evaluation, **others}


def _call_errors(calls: Sequence[Call]) -> dict[str, Any]:
    errors = [
        {"call_id": call.id, "timestamp": call.started_at, "error": call.error}
        for call in calls
        if call.error is not None
    ]
    return {"model_errors": errors} if errors else {}


def _apart(call: Call) -> dict[str, Any]:
    """A call that is no step of an agent, by what it answered."""
    answer = None if call.answer is None else call.answer.text
    return {"call_id": call.id, "reason": call.apart, "model": call.model, "answer": answer}
