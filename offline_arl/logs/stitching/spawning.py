"""Which tool call of an agent started another agent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from offline_arl.logs.stitching.prompts import Prompt
from offline_arl.logs.stitching.threads import Sample, Thread
from offline_arl.trajectories.schema import Message

_MIN_EVIDENCE = 20  # characters of a text that says something about where it came from
_MAX_WAITING = 64  # threads waiting for results that are looked at: the latest


class Spawning:
    """Finds what started threads that share nothing with others."""

    def __init__(self, threads: Sequence[Thread], prompts: Sequence[Prompt]) -> None:
        self._by_call_id: dict[str, Sample] = {}
        self._by_tool_call_id: dict[str, Sample] = {}
        for thread in threads:
            for sample in thread.samples.values():
                if sample.prompt.call.call_id is not None:
                    self._by_call_id.setdefault(sample.prompt.call.call_id, sample)
                for call in sample.message.tool_calls:
                    if call.id is not None:
                        self._by_tool_call_id.setdefault(call.id, sample)
        self._waiting: dict[Thread, list[Sample]] = {}
        self._following: dict[Sample, Prompt] = {}
        self._follow(threads, prompts)

    def cause(self, thread: Thread) -> Sample | None:
        """The answer whose tool calls started a thread: as the log says, else by what was passed on, else by time."""
        first = thread.first.call
        for known, key in (
            (self._by_tool_call_id, first.parent_tool_call_id),
            (self._by_call_id, first.parent_id),
        ):
            logged = known.get(key) if key is not None else None
            if logged is not None and logged.thread is not thread:
                return logged
        waiting = [sample for sample in self._waiting.get(thread, ()) if _may_be_of_one_trace(thread, sample)]
        task = next((message.text.strip() for message in first.messages if message.role == "user"), "")
        result = thread.last.call.choices[0].text.strip()
        for sample in reversed(waiting):
            if _passes_on(sample.message, task) or self._is_in_results(result, sample):
                return sample
        return next((sample for sample in waiting if self._encloses(sample, thread)), None)

    def _follow(self, threads: Sequence[Thread], prompts: Sequence[Prompt]) -> None:
        """Note which answers with tool calls had no result when threads started, and which prompt had it."""
        of_prompt: dict[int, list[Sample]] = {}
        starting: dict[int, list[Thread]] = {}
        for thread in threads:
            for sample in thread.samples.values():
                of_prompt.setdefault(sample.prompt.index, []).append(sample)
            if thread.relation is None:
                starting.setdefault(thread.first.index, []).append(thread)
        waiting: dict[Thread, Sample] = {}
        for prompt in prompts:
            for thread in starting.get(prompt.index, ()):
                self._waiting[thread] = list(islice(reversed(waiting.values()), _MAX_WAITING))[::-1]
            for sample in of_prompt.get(prompt.index, ()):
                answered = waiting.pop(sample.thread, None)
                if answered is not None:
                    self._following[answered] = prompt
                if sample.message.tool_calls:
                    waiting[sample.thread] = sample

    def _encloses(self, sample: Sample, thread: Thread) -> bool:
        """Whether a thread of another agent ran from beginning to end while the tools of an answer were at work."""
        other, following = sample.thread, self._following.get(sample)
        is_other_agent = thread.family is not other.family or thread.first.call.tools != other.first.call.tools
        return is_other_agent and following is not None and following.rank > thread.last.rank

    def _is_in_results(self, result: str, sample: Sample) -> bool:
        """Whether the last answer of an agent is in what the tools gave back."""
        following = self._following.get(sample)
        if len(result) < _MIN_EVIDENCE or following is None:
            return False
        depths = range(sample.prompt.end.depth + 1, following.end.depth + 1)
        messages = [following.message_at(depth) for depth in depths]
        return any(message.role == "tool" and result in message.text for message in messages)


def _may_be_of_one_trace(thread: Thread, sample: Sample) -> bool:
    traces = thread.first.call.trace_id, sample.prompt.call.trace_id
    return None in traces or traces[0] == traces[1]


def _passes_on(message: Message, task: str) -> bool:
    """Whether the task of an agent is what a tool call passed on."""
    if not task:
        return False
    texts = [text.strip() for call in message.tool_calls for text in _strings(call.arguments)]
    return any(text == task or (len(text) >= _MIN_EVIDENCE and text in task) for text in texts)


def _strings(value: object) -> Iterator[str]:
    """The texts in a JSON value."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
