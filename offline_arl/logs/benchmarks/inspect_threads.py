"""Joining the model calls of an Inspect sample into threads, and the threads with the messages of the sample.

A thread is a conversation as the model saw it: each call repeats what came before it in its thread. Where a call does
not (its history was compacted, it starts again from an earlier point, another agent makes it), a thread of its own
starts. The messages that the sample itself holds are the state at its end; agents edit it (react takes the submitted
answer out of the last call), so what was sampled is taken from the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from offline_arl.logs.benchmarks.inspect_calls import Call, Lane, Transcript
from offline_arl.logs.benchmarks.inspect_messages import tool_result
from offline_arl.logs.stitching.message_keys import MessageKey, MessageKeys
from offline_arl.trajectories.schema import Context, Message, Producer


@dataclass
class Thread:
    """One conversation; `calls` are those that made or tried to make its answers."""

    lane: Lane | None
    messages: list[Message] = field(default_factory=list)
    keys: list[MessageKey] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    source: Thread | None = None  # the thread that it shares its first `shared` messages with
    shared: int = 0
    parent: Thread | None = None  # of the agent that started this one, or that it goes on from in a shorter history
    relation: str | None = None  # why it is a thread of its own, as `stitching` names it


def join_calls(calls: Sequence[Call]) -> list[Thread]:
    """The threads of some calls, in the order in which they begin."""
    joiner = _Joiner()
    for call in calls:
        if call.apart is None:
            joiner.add(call)
    for thread in joiner.threads:
        if thread.source is not None and thread.keys:
            # The source may have gone on in the same way after the thread began.
            thread.shared = _common(thread.source.keys, thread.keys)
    return joiner.threads


class _Joiner:
    def __init__(self) -> None:
        self.threads: list[Thread] = []
        self._keys = MessageKeys()
        self._of_lane: dict[str, list[Thread]] = {}
        self._latest: dict[str, Thread] = {}
        self._sampled: set[MessageKey] = set()

    def add(self, call: Call) -> None:
        keys = [self._keys.of(message) for message in call.prompt]
        own = self._of_lane.setdefault(call.lane.id, [])
        fitting = [
            thread for thread in own if len(thread.keys) <= len(keys) and keys[: len(thread.keys)] == thread.keys
        ]
        thread = max(fitting, key=lambda item: len(item.keys), default=None)
        if thread is None:
            thread = self._start(call, keys)
            own.append(thread)
        self._extend(thread, call, keys)
        self._latest[call.lane.id] = thread
        for other in call.others:
            self._add_choice(thread, call, other)

    def _start(self, call: Call, keys: list[MessageKey]) -> Thread:
        lane = call.lane
        thread = Thread(lane)
        self.threads.append(thread)
        related = self._of_lane[lane.id]
        if related and call.is_after_compaction:
            thread.parent, thread.relation = self._latest[lane.id], "compaction"
            related = [thread.parent]
        above = lane.parent
        while above is not None and above.id not in self._latest:
            above = above.parent
        if not related and above is not None:
            if lane.kind == "branch":
                related = self._of_lane[above.id]
            else:
                thread.parent, thread.relation = self._latest[above.id], "sub_agent"
        if related:
            source = max(related, key=lambda item: _common(item.keys, keys))
            thread.shared = _common(source.keys, keys)
            thread.source = source if thread.shared else None
            if thread.relation is None:
                thread.relation = "regenerated" if thread.shared == len(keys) else "rewritten"
                thread.parent = None if thread.shared else source
        return thread

    def _extend(self, thread: Thread, call: Call, keys: list[MessageKey]) -> None:
        start = len(thread.messages)
        for message, key in zip(call.prompt[start:], keys[start:], strict=True):
            thread.messages.append(_as_context(message, is_sampled=key in self._sampled))
            thread.keys.append(key)
        if call.tools is not None and (not thread.contexts or thread.contexts[-1].tools != call.tools):
            thread.contexts.append(Context(start=len(thread.messages) if thread.contexts else 0, tools=call.tools))
        thread.calls.append(call)
        if call.answer is not None:
            key = self._keys.of(call.answer)
            thread.messages.append(call.answer)
            thread.keys.append(key)
            self._sampled.add(key)

    def _add_choice(self, thread: Thread, call: Call, choice: Message) -> None:
        shared = len(call.prompt)
        prompt = [_as_copy(message) for message in thread.messages[:shared]]
        made = msgspec.structs.replace(choice, producer=Producer("model", call.model), timestamp=call.ended_at)
        contexts = [context for context in thread.contexts if context.start <= shared]
        other = Thread(None, [*prompt, made], [], [call], contexts, thread, shared, None, "choice")
        self.threads.append(other)


def _common(left: Sequence[MessageKey], right: Sequence[MessageKey]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def _as_context(message: Message, *, is_sampled: bool) -> Message:
    """A message of a prompt. An answer in it that no call of the thread gave was put there: it is not sampled."""
    if message.role != "assistant":
        return message
    if is_sampled:
        return _as_copy(message)
    if message.producer.kind == "unknown":
        return msgspec.structs.replace(message, producer=Producer("script"))
    return _as_copy(message)


def _as_copy(message: Message) -> Message:
    if message.role != "assistant" or message.producer.kind not in ("model", "unknown"):
        return message
    return msgspec.structs.replace(message, producer=Producer("copy", message.producer.name))


def final_thread(threads: Sequence[Thread], state: Sequence[Message]) -> Thread | None:
    """The thread that leads to the last answer in the state at the end; None where no thread is the agent's own."""
    own = [thread for thread in threads if thread.lane is not None and thread.lane.kind == "main"]
    last = next((message for message in reversed(state) if message.role == "assistant"), None)
    if last is not None:
        key = MessageKeys().of(last)
        for thread in reversed(own):
            answers = [call.answer for call in thread.calls if call.answer is not None]
            if any(answer.id is not None and answer.id == last.id for answer in answers) or key in thread.keys:
                return thread
    return own[-1] if own else None


def add_ending(thread: Thread, state: Sequence[Message]) -> None:
    """Add what the state holds after the last answer of the thread: results, words of the user."""
    answer = next((call.answer for call in reversed(thread.calls) if call.answer is not None), None)
    keys = MessageKeys()
    if answer is None:
        start = _common([keys.of(message) for message in state], thread.keys)
        if start < len(thread.keys):
            return
    else:
        key = keys.of(answer)
        matching = [
            index
            for index, message in enumerate(state)
            if message.role == "assistant" and ((answer.id and answer.id == message.id) or keys.of(message) == key)
        ]
        if not matching or thread.messages[-1] is not answer:
            return
        start = matching[-1] + 1
    for message in state[start:]:
        thread.messages.append(_as_context(message, is_sampled=False))
        thread.keys.append(keys.of(message))


def add_results(threads: Sequence[Thread], transcript: Transcript, state: Sequence[Message]) -> None:
    """Add the results of the calls with which threads end, where another thread or the events of tools hold them."""
    known = {
        message.tool_call_id: message
        for messages in (state, *(thread.messages for thread in threads))
        for message in messages
        if message.role == "tool" and message.tool_call_id is not None
    }
    for thread in threads:
        index = len(thread.messages)
        while index and thread.messages[index - 1].role == "tool":
            index -= 1
        answered = {message.tool_call_id for message in thread.messages[index:]}
        for call in thread.messages[index - 1].tool_calls if index else ():
            if call.id is None or call.id in answered:
                continue
            event = transcript.tool_events.get(call.id)
            if call.id in known:
                thread.messages.append(known[call.id])
            elif event is not None:
                thread.messages.append(tool_result(event, f"the event of tool call {call.id!r}"))
