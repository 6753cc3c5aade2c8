"""Why a thread exists: what it left, what started it, and which message stands for a compacted history."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from offline_arl.logs.stitching.message_keys import MessageKey
from offline_arl.logs.stitching.prompts import Family, Node, Prompt, are_alike
from offline_arl.logs.stitching.threads import Sample, Thread
from offline_arl.trajectories.schema import Message

_MIN_EVIDENCE = 20  # characters of a text that says something about where it came from
_NEW_MESSAGES = 3  # a summary stands among the first messages that a thread does not share
_WAITING = 32  # threads waiting for their tools that are looked at
_SUMMARY = re.compile(
    r"""
      \bcontinued\ from\ a\ previous\ (?:conversation|session|chat)
    | \b(?:conversation|context|history|(?:earlier|previous)\ (?:messages|turns)|so\ far)\b[^.\n]{0,40}
      \b(?:summar(?:y|ized|ised)|compacted|compressed|condensed)\b
    | \bsummary\ (?:of|for)\b[^.\n]{0,40}\b(?:conversation|context|history|earlier|previous|so\ far|work)\b
    | <(?:[a-z]+_)?summary>
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ASKED_FOR = re.compile(
    r"\b(?:write|create|generate|provide|produce|make|give)\b[^.\n]{0,60}\bsummary\b", re.IGNORECASE
)


def link(threads: Sequence[Thread], prompts: Sequence[Prompt], summaries: Sequence[str]) -> None:
    """Set relation and origin of threads that start anew, and find summaries.

    Args:
        threads: In order of their first calls.
        prompts: The calls that are part of threads, in order of time.
        summaries: Answers of calls that were set apart as summaries.
    """
    if len(threads) < 2:
        return
    links = _Links(threads, prompts, [text for text in summaries if len(text) >= _MIN_EVIDENCE])
    for thread in threads:
        if thread.relation in (None, "rewritten"):
            links.explain(thread)


class _Links:
    def __init__(self, threads: Sequence[Thread], prompts: Sequence[Prompt], summaries: list[str]) -> None:
        self._summaries = summaries
        self._samples: dict[MessageKey, list[Sample]] = {}
        self._by_call_id: dict[str, Sample] = {}
        self._ranks: dict[Family, tuple[list[int], list[Thread]]] = {}
        for sample in sorted(_samples(threads), key=lambda item: item.prompt.rank):
            self._samples.setdefault(sample.prompt.answers[sample.choice], []).append(sample)
            if sample.prompt.call.call_id is not None:
                self._by_call_id.setdefault(sample.prompt.call.call_id, sample)
            ranks, of = self._ranks.setdefault(sample.thread.family, ([], []))
            ranks.append(sample.prompt.rank)
            of.append(sample.thread)
        self._waiting = dict(_waiting(threads, prompts))

    def explain(self, thread: Thread) -> None:
        new = [node for node in thread.first.end.path() if node.depth > thread.fork]
        copied = self._copied(thread, new)
        is_summarized = self._find_summary(thread, new)
        if thread.relation == "rewritten":
            if is_summarized or (copied and _is_shorter(thread)):
                thread.relation, thread.origin = "compaction", self._before(thread) or thread.origin
        elif copied:
            self._link_by_copies(thread, copied[-1], is_summarized)
        elif (spawning := self._spawning(thread)) is not None:
            self._set(thread, "sub_agent", spawning)
        elif is_summarized and (before := self._before(thread)) is not None:
            thread.relation, thread.origin = "compaction", before

    def _copied(self, thread: Thread, new: Iterable[Node]) -> list[Sample]:
        """Answers of other threads, or of shared history, that a thread starts with."""
        found = []
        for node in new:
            if node.key[0] == "assistant" and (len(node.key) == 4 or len(node.key[1]) >= _MIN_EVIDENCE):
                earlier = [
                    sample
                    for sample in self._samples.get(node.key, ())[:8]
                    if sample.thread is not thread and sample.prompt.rank < thread.first.rank
                ]
                if earlier:
                    found.append(earlier[-1])
        return found

    def _link_by_copies(self, thread: Thread, sample: Sample, is_summarized: bool) -> None:
        origin = sample.thread
        if not are_alike(thread.first.texts, origin.first.texts):
            self._set(thread, "sub_agent" if origin.last.rank > thread.first.rank else "handoff", sample)
        elif is_summarized or thread.first.end.depth < _depth_before(origin, thread.first.rank):
            thread.relation, thread.origin = "compaction", origin
        else:
            thread.relation, thread.origin = "rewritten", origin

    def _set(self, thread: Thread, relation: Any, sample: Sample) -> None:
        thread.relation, thread.origin = relation, sample.thread
        thread.origin_depth = next(depth for depth, own in sample.thread.samples.items() if own is sample)

    def _find_summary(self, thread: Thread, new: Sequence[Node]) -> bool:
        for node in islice(new, _NEW_MESSAGES):
            if node.message is not None and node.key[0] != "tool" and self._is_summary(node.key[1]):
                thread.summary_depth = node.depth
                return True
        return any(self._holds_summary(text) for text in thread.first.texts)

    def _is_summary(self, text: str) -> bool:
        if self._holds_summary(text):
            return True
        head = text[:600]
        return _SUMMARY.search(head) is not None and _ASKED_FOR.search(head) is None

    def _holds_summary(self, text: str) -> bool:
        return any(summary in text for summary in self._summaries)

    def _before(self, thread: Thread) -> Thread | None:
        """The thread of the same agent that was active last before a thread started."""
        ranks, threads = self._ranks[thread.family]
        position = bisect_left(ranks, thread.first.rank) - 1
        return threads[position] if position >= 0 else None

    def _spawning(self, thread: Thread) -> Sample | None:
        """The answer whose tool calls started a thread."""
        first = thread.first.call
        if first.parent_id is not None and (parent := self._by_call_id.get(first.parent_id)) is not None:
            return parent if parent.thread is not thread else None
        waiting = [sample for sample in self._waiting.get(thread, ()) if sample.thread is not thread]
        task = next((message.text.strip() for message in first.messages if message.role == "user"), "")
        result = thread.last.call.choices[0].text.strip() if thread.last.call.choices else ""
        for sample in reversed(waiting):
            if _is_in_arguments(task, sample.message) or _is_in_results(result, sample):
                return sample
        for sample in waiting:
            following = _next_prompt(sample)
            if following is not None and following.rank > thread.last.rank and _is_other_agent(thread, sample.thread):
                return sample
        return None


def _samples(threads: Iterable[Thread]) -> Iterator[Sample]:
    for thread in threads:
        yield from thread.samples.values()


def _waiting(threads: Sequence[Thread], prompts: Sequence[Prompt]) -> Iterator[tuple[Thread, list[Sample]]]:
    """For each thread that starts anew, the answers with tool calls that had no result when it started.

    The oldest and the latest are kept where there are many.
    """
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
            everyone = waiting.values()
            few = list(islice(everyone, _WAITING))
            yield thread, few + list(deque(islice(everyone, _WAITING, None), _WAITING))
        for sample in of_prompt.get(prompt.index, ()):
            waiting.pop(sample.thread, None)
            if sample.message.tool_calls:
                waiting[sample.thread] = sample


def _is_shorter(thread: Thread) -> bool:
    return thread.origin is not None and thread.first.end.depth < _depth_before(thread.origin, thread.first.rank)


def _depth_before(thread: Thread, rank: int) -> int:
    """How many messages a thread had before a call of another one."""
    return max((prompt.end.depth for prompt in thread.prompts if prompt.rank < rank), default=0)


def _next_prompt(sample: Sample) -> Prompt | None:
    later = [prompt for prompt in sample.thread.prompts if prompt.rank > sample.prompt.rank]
    return min(later, key=lambda prompt: prompt.rank, default=None)


def _is_other_agent(thread: Thread, other: Thread) -> bool:
    return thread.family is not other.family or thread.first.call.tools != other.first.call.tools


def _is_in_arguments(task: str, message: Message) -> bool:
    """Whether what the user asks of an agent is what a tool call passed on."""
    if not task:
        return False
    for call in message.tool_calls:
        for text in _strings(call.arguments):
            if text.strip() == task or (len(text) >= _MIN_EVIDENCE and text.strip() in task):
                return True
    return False


def _is_in_results(result: str, sample: Sample) -> bool:
    if len(result) < _MIN_EVIDENCE:
        return False
    following = _next_prompt(sample)
    if following is None:
        return False
    start = sample.prompt.end.depth + 1
    messages = [following.message_at(depth) for depth in range(start, following.end.depth + 1)]
    return any(message.role == "tool" and result in message.text for message in messages)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
