"""Threads as trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from offline_arl.logs.adapter import Group
from offline_arl.logs.stitching.answer_messages import model_message, with_history_ids
from offline_arl.logs.stitching.message_keys import MessageKey
from offline_arl.logs.stitching.prompt_tree import seconds
from offline_arl.logs.stitching.prompts import Node, Prompt
from offline_arl.logs.stitching.system_prompts import common_ends
from offline_arl.logs.stitching.threads import Sample, Thread
from offline_arl.trajectories.schema import Branch, Context, Message, Producer, Score, Trajectory

_ENVIRONMENT = Producer("environment")
_SUMMARY = Producer("summary")
_SCRIPT = Producer("script")
# Relations of a thread that goes on elsewhere, or was started, rather than being another try.
_CHILDREN = ("compaction", "sub_agent", "handoff")
_MAX_LOOKED_AT = 8  # answers of equal text that are looked at to find where a message was copied from

_Step = tuple[int, Prompt]  # a call, and where its answer is among the messages

_replace = msgspec.structs.replace


class _Written(NamedTuple):
    """The messages of a thread, and where its answers and the nodes of the tree are among them."""

    messages: list[Message]
    of_sample: dict[Sample, int]
    of_depth: dict[int, int]


class TrajectoryWriter:
    """Turns the threads of a group into trajectories."""

    def __init__(self, threads: Sequence[Thread], group: Group) -> None:
        self._group = group
        self._samples: dict[MessageKey, list[Sample]] = {}
        self._models: dict[Sample, Message] = {}
        self._copies: dict[Sample, Message] = {}
        for thread in threads:
            for sample in thread.samples.values():
                self._samples.setdefault(sample.prompt.answers[sample.choice], []).append(sample)

    def write(self, thread: Thread) -> Trajectory:
        """The trajectory of a thread."""
        written = self._messages(thread)
        steps = sorted(((position, sample.prompt) for sample, position in written.of_sample.items()), key=_position)
        calls = [prompt.call for prompt in (*(prompt for _, prompt in steps), *thread.failed)]
        last, has_failed = thread.last.call, thread.failed_last is not None
        traces = dict.fromkeys(call.trace_id for call in calls if call.trace_id is not None)
        branch = self._branch(thread)
        is_child = thread.origin is not None and (thread.relation in _CHILDREN or branch is None)
        return Trajectory(
            trajectory_id=self._group.trajectory_id(thread.name),
            messages=written.messages,
            source=self._group.source(sorted({piece for call in calls for piece in call.pieces})),
            parent_trajectory_id=self._id(thread.origin) if is_child else None,
            branch=branch,
            agent=_first(call.name for call in calls),
            model=_first(call.model for call in calls),
            started_at=min(_times(call.started_at for call in calls), default=(0.0, None))[1],
            ended_at=max(_times(call.ended_at or call.started_at for call in calls), default=(0.0, None))[1],
            contexts=_contexts(steps),
            truncated=last.truncated and not has_failed,
            stop_reason="error" if has_failed else last.stop_reason,
            metadata=_metadata(thread, steps, written),
            session_id=_first(call.session_id for call in calls),
            user_id=_first(call.user_id for call in calls),
            identifiers={f"trace_{n}" if n > 1 else "trace": trace for n, trace in enumerate(traces, 1)},
            scores=_scores(written),
        )

    def _id(self, thread: Thread | None) -> str | None:
        return None if thread is None else self._group.trajectory_id(thread.name)

    def _messages(self, thread: Thread) -> _Written:
        first = thread.first
        written = _Written(list(first.call.messages[: first.n_system]), {}, {})
        ids: dict[str, str] = {}  # of tool calls: as the history has them, as they were sampled
        stamps = _stamps(thread)
        hidden = {depth - 1 for depth, sample in thread.samples.items() if sample.covers > 1}
        for node in thread.tail.path():
            if node.depth in hidden:
                continue
            sample = thread.samples.get(node.depth)
            if sample is not None:
                self._write_sample(sample, node, ids, written)
            else:
                message = self._from_history(node, thread, ids)
                stamp = stamps.get(node.depth)
                if stamp is not None and message.timestamp is None:
                    message = _replace(message, timestamp=stamp)
                written.messages.append(message)
            written.of_depth[node.depth] = len(written.messages) - 1
        _mark_greeting(written.messages)
        return written

    def _write_sample(self, sample: Sample, node: Node, ids: dict[str, str], written: _Written) -> None:
        for item in sample.before:
            if isinstance(item, Sample):
                self._write_sample(item, node, {}, written)
            else:
                written.messages.append(item)
        message = self._model_message(sample)
        if node.message is not None:
            message = with_history_ids(message, node.message, ids)
        written.of_sample[sample] = len(written.messages)
        written.messages.append(message)

    def _from_history(self, node: Node, thread: Thread, ids: dict[str, str]) -> Message:
        message = node.message
        if message is None:  # an answer of another thread that no prompt repeats
            assert node.sample is not None
            message = node.sample.message
        if node.depth == thread.summary_depth:
            return _replace(message, producer=_SUMMARY)
        if message.role == "tool":
            renamed = ids.get(message.tool_call_id or "", message.tool_call_id)
            producer = _ENVIRONMENT if message.producer.kind == "unknown" else message.producer
            if renamed != message.tool_call_id or producer is not message.producer:
                message = _replace(message, tool_call_id=renamed, producer=producer)
            return message
        if message.role != "assistant":
            return message
        sample = self._sample_of(node, thread)
        if sample is not None:
            return with_history_ids(self._copy(sample), message, ids)
        if node.thread is not thread and message.producer.kind in ("unknown", "model"):
            return _replace(message, producer=Producer("copy", message.producer.name))
        return message

    def _sample_of(self, node: Node, thread: Thread) -> Sample | None:
        """The earlier answer of another thread that a message without a call of its own is, or repeats."""
        own: list[Sample] = [] if node.sample is None else [node.sample]
        for sample in own + self._samples.get(node.key, [])[:_MAX_LOOKED_AT]:
            if sample.thread is not thread and sample.prompt.rank < thread.last.rank:
                return sample
        return None

    def _model_message(self, sample: Sample) -> Message:
        known = self._models.get(sample)
        if known is None:
            known = self._models[sample] = model_message(sample.message, sample.prompt.call)
        return known

    def _copy(self, sample: Sample) -> Message:
        known = self._copies.get(sample)
        if known is None:
            model = self._model_message(sample)
            known = self._copies[sample] = _replace(model, producer=Producer("copy", model.producer.name))
        return known

    def _branch(self, thread: Thread) -> Branch | None:
        """What the thread shares with the one that it left; None where it shares no more than system prompts."""
        is_other_try = thread.relation in ("choice", "regenerated")
        if thread.fork == 0 and not is_other_try:
            return None
        node = thread.first.end
        while node.depth > thread.fork and node.parent is not None:
            node = node.parent
        owner = self._id(thread.origin if is_other_try else node.thread)
        return None if owner is None else Branch(owner, thread.first.n_system + thread.fork)


def _mark_greeting(messages: list[Message]) -> None:
    """What an assistant says before any user spoke, and no logged call made, is a greeting that a program wrote."""
    first = next((index for index, message in enumerate(messages) if message.role == "user"), 0)
    for index, message in enumerate(messages[:first]):
        if message.role == "assistant" and message.producer.kind == "unknown":
            messages[index] = _replace(message, producer=_SCRIPT)


def _stamps(thread: Thread) -> dict[int, str]:
    """Times of messages by depth: what a call adds to what was there before is as old as the call."""
    stamps: dict[int, str] = {}
    known = thread.fork
    for node in reversed(thread.first.end.path()):
        if node.key[0] == "assistant":
            known = max(known, node.depth)
            break
    prompts = sorted(thread.prompts, key=lambda prompt: prompt.end.depth)
    for prompt in [*prompts, *([] if thread.failed_last is None else [thread.failed_last])]:
        if prompt.call.started_at is not None:
            for depth in range(known + 1, prompt.end.depth + 1):
                stamps[depth] = prompt.call.started_at
        known = max(known, prompt.end.depth)
    return stamps


def _position(step: _Step) -> int:
    return step[0]


def _contexts(steps: Sequence[_Step]) -> list[Context]:
    """The tools in force: those of the first call from the start, others from the answer that was made with them."""
    contexts: list[Context] = []
    for number, (position, prompt) in enumerate(steps):
        tools = prompt.call.tools
        if tools is not None and not (contexts and contexts[-1].tools == tools):
            contexts.append(Context(start=position if number else 0, tools=tools))
    return contexts


def _metadata(thread: Thread, steps: Sequence[_Step], written: _Written) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    if thread.relation is not None:
        metadata["relation"] = thread.relation
    if thread.relation in ("choice", "regenerated"):
        metadata["continued"] = len(thread.prompts) > 1
    cause = thread.origin_sample
    if cause is not None and cause.prompt.call.call_id is not None:
        metadata["parent_message_id"] = cause.prompt.call.call_id
    changes = _system_changes(thread, steps)
    if changes:
        metadata["system_changes"] = changes
    if thread.failed:
        on_path = set(thread.tail.path())
        metadata["failed_calls"] = [
            _failure(prompt, on_path, written, thread.first.n_system) for prompt in thread.failed
        ]
    return metadata


def _system_changes(thread: Thread, steps: Sequence[_Step]) -> list[dict[str, Any]]:
    """Where system prompts of later calls differ from those that the trajectory starts with, as replaced ranges."""
    own = [message.text for message in thread.first.call.messages[: thread.first.n_system]]
    changes: list[dict[str, Any]] = []
    for position, prompt in steps:
        if prompt.texts == thread.first.texts:
            continue
        texts = [message.text for message in prompt.call.messages[: prompt.n_system]]
        if len(texts) != len(own):
            changes.append({"message_index": position, "system": texts})
            continue
        for index, (before, now) in enumerate(zip(own, texts, strict=True)):
            if before != now:
                start, end = common_ends(before, now)
                change = {"start": start, "end": len(before) - end, "text": now[start : len(now) - end]}
                changes.append({"message_index": position, "system_index": index, **change})
    return changes


def _failure(prompt: Prompt, on_path: set[Node], written: _Written, n_system: int) -> dict[str, Any]:
    """What is kept of a failed call; of its prompt, the messages that the trajectory does not have."""
    call, nodes = prompt.call, prompt.end.path()
    n_shared = sum(node in on_path for node in nodes)
    known = [written.of_depth[depth] for depth in range(n_shared, 0, -1) if depth in written.of_depth]
    index = known[0] + 1 if known else n_system
    fields = {
        "call_id": call.call_id,
        "error": call.error,
        "started_at": call.started_at,
        "ended_at": call.ended_at,
        "model": call.model,
        "stop_reason": call.stop_reason,
        "messages": [prompt.message_at(node.depth) for node in nodes[n_shared:]] or None,
        "choices": call.choices or None,
        "scores": call.scores or None,
        "metadata": call.metadata or None,
    }
    kept = {key: msgspec.to_builtins(value) for key, value in fields.items() if value is not None}
    return {"message_index": index, **kept}


def _scores(written: _Written) -> list[Score]:
    """The judgements of the calls, each with the message that it is of; those of several choices go to the first."""
    return [
        _replace(score, message_index=position)
        for sample, position in written.of_sample.items()
        if sample.choice == 0
        for score in sample.prompt.call.scores
    ]


def _first(values: Iterable[str | None]) -> str | None:
    return next((value for value in values if value is not None), None)


def _times(values: Iterable[str | None]) -> list[tuple[float, str | None]]:
    return [(time, value) for value in values if (time := seconds(value)) is not None]
