"""Threads as trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from offline_arl.logs.adapter import Group
from offline_arl.logs.stitching.calls import ModelCall
from offline_arl.logs.stitching.message_keys import MessageKey
from offline_arl.logs.stitching.prompts import Node, Prompt, common_ends, seconds
from offline_arl.logs.stitching.threads import Sample, Thread
from offline_arl.trajectories.schema import Branch, Context, Message, Producer, Score, ToolCall, Trajectory

_ENVIRONMENT = Producer("environment")
_replace = msgspec.structs.replace


class TrajectoryWriter:
    """Turns the threads of a group into trajectories."""

    def __init__(self, threads: Sequence[Thread], group: Group) -> None:
        self._group = group
        self._samples: dict[MessageKey, list[Sample]] = {}
        for thread in threads:
            for sample in thread.samples.values():
                self._samples.setdefault(sample.prompt.answers[sample.choice], []).append(sample)

    def write(self, thread: Thread) -> Trajectory:
        """The trajectory of a thread."""
        messages, position = self._messages(thread)
        prompts = sorted(thread.prompts, key=lambda prompt: prompt.end.depth)
        calls = [prompt.call for prompt in prompts]
        everything = [*calls, *(prompt.call for prompt in thread.failed)]
        last = thread.last.call
        has_failed = thread.failed_last is not None
        traces = dict.fromkeys(call.trace_id for call in everything if call.trace_id is not None)
        origin = None if thread.origin is None else self._group.trajectory_id(thread.origin.name)
        is_branch = thread.fork > 0 or thread.relation in ("choice", "regenerated")
        return Trajectory(
            trajectory_id=self._group.trajectory_id(thread.name),
            messages=messages,
            source=self._group.source(sorted({piece for call in everything for piece in call.pieces})),
            parent_trajectory_id=None if thread.relation in ("choice", "regenerated") else origin,
            branch=self._branch(thread) if is_branch else None,
            agent=_first(call.name for call in everything),
            model=_first(call.model for call in everything),
            started_at=min(_times(call.started_at for call in everything), default=(0.0, None))[1],
            ended_at=max(_times(call.ended_at or call.started_at for call in everything), default=(0.0, None))[1],
            contexts=_contexts(thread, prompts, position),
            truncated=last.truncated and not has_failed,
            stop_reason="error" if has_failed else last.stop_reason,
            metadata=self._metadata(thread, prompts, position, messages),
            session_id=_first(call.session_id for call in everything),
            user_id=_first(call.user_id for call in everything),
            identifiers={f"trace_{n}" if n > 1 else "trace": trace for n, trace in enumerate(traces, 1)},
            scores=_scores(thread, position),
        )

    def _messages(self, thread: Thread) -> tuple[list[Message], dict[int, int]]:
        """The messages of a thread, and the index of each by its depth in the tree."""
        first = thread.first
        messages = list(first.call.messages[: first.n_system])
        position: dict[int, int] = {}
        ids: dict[str, str] = {}
        stamps = _stamps(thread)
        hidden = {depth - 1 for depth, sample in thread.samples.items() if sample.covers > 1}
        for node in thread.tail.path():
            if node.depth in hidden:
                continue
            sample = thread.samples.get(node.depth)
            if sample is not None:
                messages.extend(sample.before)
                message = _sampled(sample)
                if node.message is not None:
                    message = _with_history_ids(message, node.message, ids)
            else:
                message = self._from_history(node, thread, ids)
                stamp = stamps.get(node.depth)
                if stamp is not None and message.timestamp is None:
                    message = _replace(message, timestamp=stamp)
            position[node.depth] = len(messages)
            messages.append(message)
        return messages, position

    def _from_history(self, node: Node, thread: Thread, ids: dict[str, str]) -> Message:
        message = node.message
        if message is None:  # an answer of another thread that no prompt repeats
            assert node.sample is not None
            message = node.sample.message
        if message.role == "tool":
            renamed = ids.get(message.tool_call_id or "")
            if renamed is not None:
                return _replace(message, tool_call_id=renamed, producer=_environment(message))
            return message if message.producer.kind != "unknown" else _replace(message, producer=_ENVIRONMENT)
        if node.depth == thread.summary_depth:
            return _replace(message, producer=Producer("summary"))
        if message.role != "assistant":
            return message
        sample = node.sample if node.sample is not None else self._sample_elsewhere(node, thread)
        if sample is not None:
            copy = _sampled(sample)
            return _with_history_ids(_replace(copy, producer=Producer("copy", copy.producer.name)), message, ids)
        if node.thread is not thread and message.producer.kind in ("unknown", "model"):
            return _replace(message, producer=Producer("copy", message.producer.name))
        return message

    def _sample_elsewhere(self, node: Node, thread: Thread) -> Sample | None:
        for sample in self._samples.get(node.key, ())[:8]:
            if sample.thread is not thread and sample.prompt.rank < thread.last.rank:
                return sample
        return None

    def _branch(self, thread: Thread) -> Branch | None:
        node = thread.first.end
        while node.depth > thread.fork and node.parent is not None:
            node = node.parent
        owner = thread.origin if thread.relation in ("choice", "regenerated") else node.thread
        if owner is None:
            return None
        return Branch(self._group.trajectory_id(owner.name), thread.first.n_system + thread.fork)

    def _metadata(
        self, thread: Thread, prompts: Sequence[Prompt], position: Mapping[int, int], messages: Sequence[Message]
    ) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        if thread.relation is not None:
            metadata["relation"] = thread.relation
        if thread.relation in ("choice", "regenerated"):
            metadata["continued"] = len(thread.prompts) > 1
        if thread.origin is not None and thread.origin_depth is not None:
            metadata["parent_message_index"] = thread.origin.first.n_system + thread.origin_depth - 1
        changes = _system_changes(thread, prompts, position)
        if changes:
            metadata["system_changes"] = changes
        if thread.failed:
            on_path = {id(node) for node in thread.tail.path()}
            metadata["failed_calls"] = [
                _failure(prompt, on_path, position, thread.first.n_system) for prompt in thread.failed
            ]
        return metadata


def _sampled(sample: Sample) -> Message:
    """An answer as the model's message, with what the log says about the call."""
    call, message = sample.prompt.call, sample.message
    metadata = dict(message.metadata)
    for key, value in call.metadata.items():
        metadata.setdefault(key, value)
    if call.stop_reason is not None:
        metadata.setdefault("stop_reason", call.stop_reason)
    if call.truncated:
        metadata.setdefault("truncated", True)
    if message.id is not None and call.call_id not in (None, message.id):
        metadata.setdefault("message_id", message.id)
    kind = "model" if message.producer.kind == "unknown" else message.producer.kind
    return _replace(
        message,
        producer=Producer(kind, message.producer.name or call.model),
        id=call.call_id if call.call_id is not None else message.id,
        timestamp=message.timestamp or call.ended_at or call.started_at,
        error=message.error or call.error,
        metadata=metadata,
    )


def _with_history_ids(message: Message, repeated: Message, ids: dict[str, str]) -> Message:
    """Keep the ids of an answer's tool calls; note under which other ids the history refers to them."""
    if len(message.tool_calls) != len(repeated.tool_calls):
        return message
    calls: list[ToolCall] = []
    is_changed = False
    for call, again in zip(message.tool_calls, repeated.tool_calls, strict=True):
        if call.id is None and again.id is not None:
            call, is_changed = _replace(call, id=again.id), True
        elif call.id is not None and again.id is not None and again.id != call.id:
            ids[again.id] = call.id
        calls.append(call)
    return _replace(message, tool_calls=calls) if is_changed else message


def _environment(message: Message) -> Producer:
    return _ENVIRONMENT if message.producer.kind == "unknown" else message.producer


def _stamps(thread: Thread) -> dict[int, str]:
    """Times of messages by depth: those that a call adds to what was there are as old as the call."""
    stamps: dict[int, str] = {}
    prompts = sorted(thread.prompts, key=lambda prompt: prompt.end.depth)
    known = thread.fork
    for node in reversed(thread.first.end.path()):
        if node.key[0] == "assistant" or node.depth <= known:
            known = max(known, node.depth)
            break
    for prompt in [*prompts, *([thread.failed_last] if thread.failed_last is not None else [])]:
        if prompt.call.started_at is not None:
            for depth in range(known + 1, prompt.end.depth + 1):
                stamps[depth] = prompt.call.started_at
        known = max(known, prompt.end.depth)
    return stamps


def _contexts(thread: Thread, prompts: Sequence[Prompt], position: Mapping[int, int]) -> list[Context]:
    """The tools in force: those of the first call from the start, others from the answer that was made with them."""
    contexts: list[Context] = []
    at = _answer_positions(thread, position)
    for number, prompt in enumerate(prompts):
        tools = prompt.call.tools
        if tools is None or (contexts and contexts[-1].tools == tools):
            continue
        contexts.append(Context(start=at[prompt.index] if number else 0, tools=tools))
    return contexts


def _answer_positions(thread: Thread, position: Mapping[int, int]) -> dict[int, int]:
    return {sample.prompt.index: position[depth] for depth, sample in thread.samples.items()}


def _system_changes(thread: Thread, prompts: Sequence[Prompt], position: Mapping[int, int]) -> list[dict[str, Any]]:
    """Where system prompts of later calls differ from those that the trajectory starts with, as replaced ranges."""
    own = [message.text for message in thread.first.call.messages[: thread.first.n_system]]
    at = _answer_positions(thread, position)
    changes: list[dict[str, Any]] = []
    for prompt in prompts:
        if prompt.texts == thread.first.texts:
            continue
        texts = [message.text for message in prompt.call.messages[: prompt.n_system]]
        if len(texts) != len(own):
            changes.append({"message_index": at[prompt.index], "system": texts})
            continue
        for index, (before, now) in enumerate(zip(own, texts, strict=True)):
            if before != now:
                start, end = common_ends(before, now)
                change = {"start": start, "end": len(before) - end, "text": now[start : len(now) - end]}
                changes.append({"message_index": at[prompt.index], "system_index": index, **change})
    return changes


def _failure(prompt: Prompt, on_path: set[int], position: Mapping[int, int], n_system: int) -> dict[str, Any]:
    """What is kept of a failed call; of its prompt, the messages that the trajectory does not have."""
    call = prompt.call
    nodes = prompt.end.path()
    shared = [node for node in nodes if id(node) in on_path]
    entry: dict[str, Any] = {"message_index": max((position[node.depth] + 1 for node in shared), default=n_system)}
    fields = {
        "call_id": call.call_id,
        "error": call.error,
        "started_at": call.started_at,
        "ended_at": call.ended_at,
        "model": call.model,
        "stop_reason": call.stop_reason,
        "messages": [prompt.message_at(node.depth) for node in nodes[len(shared) :]] or None,
        "choices": call.choices or None,
        "scores": call.scores or None,
        "metadata": call.metadata or None,
    }
    entry.update({key: msgspec.to_builtins(value) for key, value in fields.items() if value is not None})
    return entry


def _scores(thread: Thread, position: Mapping[int, int]) -> list[Score]:
    return [
        _replace(score, message_index=position[depth])
        for depth, sample in sorted(thread.samples.items())
        if sample.choice == 0
        for score in sample.prompt.call.scores
    ]


def _first(values: Iterable[str | None]) -> str | None:
    return next((value for value in values if value is not None), None)


def _times(values: Iterable[str | None]) -> list[tuple[float, str | None]]:
    return [(time, value) for value in values if (time := seconds(value)) is not None]


def pieces_of(calls: Iterable[ModelCall]) -> set[int]:
    """The pieces that some calls were read from."""
    return {piece for call in calls for piece in call.pieces}
