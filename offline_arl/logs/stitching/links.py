"""Why a thread exists: what it left, what started it, and which message stands for a compacted history."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice

from offline_arl.logs.stitching.message_keys import MessageKey
from offline_arl.logs.stitching.prompts import Family, Node, Prompt
from offline_arl.logs.stitching.spawning import Spawning
from offline_arl.logs.stitching.summaries import Summaries, says_it_is_a_summary
from offline_arl.logs.stitching.system_prompts import are_alike
from offline_arl.logs.stitching.threads import Relation, Sample, Thread

_MIN_EVIDENCE = 20  # characters of a text that says something about where it came from
_MAX_LOOKED_AT = 8  # answers of equal text
_NEW_MESSAGES = 3  # a summary stands among the first messages that a thread does not share


def link(threads: Sequence[Thread], prompts: Sequence[Prompt], summaries: Sequence[str]) -> None:
    """Set relation and origin of threads that start anew, and find summaries.

    Args:
        threads: In order of their first calls.
        prompts: The calls that are part of threads, in order of time.
        summaries: Answers of calls that were set apart as summaries.
    """
    if len(threads) < 2 and not summaries:
        return
    links = _Links(threads, prompts, Summaries(summaries))
    for thread in threads:
        if thread.relation in (None, "rewritten"):
            links.explain(thread)


class _Links:
    def __init__(self, threads: Sequence[Thread], prompts: Sequence[Prompt], summaries: Summaries) -> None:
        self._summaries = summaries
        self._samples: dict[MessageKey, list[Sample]] = {}
        self._active: dict[Family, tuple[list[int], list[Thread]]] = {}  # ranks of answers, and whose they are
        samples = [sample for thread in threads for sample in thread.samples.values()]
        for sample in sorted(samples, key=lambda item: item.prompt.rank):
            self._samples.setdefault(sample.prompt.answers[sample.choice], []).append(sample)
            ranks, active = self._active.setdefault(sample.thread.family, ([], []))
            ranks.append(sample.prompt.rank)
            active.append(sample.thread)
        self._spawning = Spawning(threads, prompts)

    def explain(self, thread: Thread) -> None:
        new = [node for node in thread.first.end.path() if node.depth > thread.fork]
        copied = self._copied(thread, new)
        is_summarized = self._find_summary(thread, new)
        if thread.relation == "rewritten":
            is_shorter = thread.origin is not None and thread.first.end.depth < _depth(thread.origin, thread.first)
            if is_summarized or (copied and is_shorter):
                thread.relation, thread.origin = "compaction", self._active_before(thread) or thread.origin
        elif copied:
            self._link_to_copied(thread, copied[-1], is_summarized)
        elif (cause := self._spawning.cause(thread)) is not None:
            thread.relation, thread.origin, thread.origin_sample = "sub_agent", cause.thread, cause
        elif is_summarized and (before := self._active_before(thread)) is not None:
            thread.relation, thread.origin = "compaction", before

    def _copied(self, thread: Thread, new: Iterable[Node]) -> list[Sample]:
        """Answers of earlier calls among the messages that a thread starts with."""
        found = []
        for node in new:
            if node.key[0] == "assistant" and (len(node.key) == 4 or len(node.key[1]) >= _MIN_EVIDENCE):
                earlier = [
                    sample
                    for sample in self._samples.get(node.key, ())[:_MAX_LOOKED_AT]
                    if sample.thread is not thread and sample.prompt.rank < thread.first.rank
                ]
                found.extend(earlier[-1:])
        return found

    def _link_to_copied(self, thread: Thread, sample: Sample, is_summarized: bool) -> None:
        origin = sample.thread
        relation: Relation = "rewritten"
        if not are_alike(thread.first.texts, origin.first.texts):
            relation = "sub_agent" if origin.last.rank > thread.first.rank else "handoff"
            thread.origin_sample = sample
        elif is_summarized or thread.first.end.depth < _depth(origin, thread.first):
            relation = "compaction"
        thread.relation, thread.origin = relation, origin

    def _find_summary(self, thread: Thread, new: Sequence[Node]) -> bool:
        for node in islice(new, _NEW_MESSAGES):
            if (
                node.message is not None
                and node.key[0] != "tool"
                and (self._summaries.are_in(node.key[1]) or says_it_is_a_summary(node.key[1]))
            ):
                thread.summary_depth = node.depth
                return True
        return any(map(self._summaries.are_in, thread.first.texts))

    def _active_before(self, thread: Thread) -> Thread | None:
        """The thread of the same agent that was answered last before a thread started."""
        ranks, threads = self._active[thread.family]
        position = bisect_left(ranks, thread.first.rank) - 1
        return threads[position] if position >= 0 else None


def _depth(thread: Thread, prompt: Prompt) -> int:
    """How many messages a thread had before a call of another one."""
    return max((own.end.depth for own in thread.prompts if own.rank < prompt.rank), default=0)
