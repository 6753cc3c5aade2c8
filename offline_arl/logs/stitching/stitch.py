"""Joining logged model calls into trajectories.

Call logs (provider requests, telemetry spans, proxies) hold one record a model call, and each repeats the history.
Two calls belong to one thread where the messages of the first, followed by its answer, are a prefix of the
messages of the second. Where a prefix breaks, a branch or a linked trajectory starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from offline_arl.logs.adapter import Assembly, Group
from offline_arl.logs.stitching.answers import answer_place
from offline_arl.logs.stitching.calls import ModelCall, Stitched
from offline_arl.logs.stitching.duplicates import without_duplicates
from offline_arl.logs.stitching.links import link
from offline_arl.logs.stitching.message_keys import conversation_digest
from offline_arl.logs.stitching.prompt_tree import PromptTree
from offline_arl.logs.stitching.prompts import Prompt
from offline_arl.logs.stitching.threads import Threads, attach_failed
from offline_arl.logs.stitching.trajectories import TrajectoryWriter
from offline_arl.logs.stitching.utility_calls import find_utilities
from offline_arl.trajectories.schema import Message

__all__ = ["ModelCall", "Stitched", "assembly_of", "conversation_key", "stitch"]


def stitch(calls: Sequence[ModelCall], group: Group) -> Stitched:
    """Join calls of one group into trajectories.

    Calls are taken in order of `started_at` (of their position where times are missing or equal). Args and result
    are described in `docs/formats.md`, section "Stitching".
    """
    stitched = Stitched()
    prompts = without_duplicates(PromptTree().add_all(calls), stitched.duplicates)
    failed = [prompt for prompt in prompts if _has_failed(prompt)]
    failed_indices = {prompt.index for prompt in failed}
    answered = [prompt for prompt in prompts if prompt.index not in failed_indices]
    utilities = find_utilities(answered)
    steps = [prompt for prompt in answered if prompt.index not in utilities]
    threads = Threads()
    for prompt in steps:
        threads.add(prompt)
    for prompt in attach_failed(failed):
        error = prompt.call.error
        reason = "it has no answer" if error is None else ": ".join(filter(None, (error.type, error.text)))
        stitched.set_apart[prompt.index] = f"failed call: {reason}"
    stitched.set_apart.update({index: f"utility call: {kind}" for index, kind in utilities.items()})
    summaries = [calls[index].choices[0].text.strip() for index, kind in utilities.items() if kind == "summary"]
    link(threads.all, steps, summaries)
    writer = TrajectoryWriter(threads.all, group)
    stitched.trajectories = [writer.write(thread) for thread in threads.all]
    return stitched


def assembly_of(calls: Sequence[ModelCall], group: Group) -> Assembly:
    """Stitch calls and give each piece that they were read from its fate.

    A piece is used if one of its calls is; else it is set apart, or a duplicate, with the reason of its first call.
    """
    stitched = stitch(calls, group)
    assembly = Assembly(stitched.trajectories)
    elsewhere = {*stitched.set_apart, *stitched.duplicates}
    used = {piece for index, call in enumerate(calls) if index not in elsewhere for piece in call.pieces}
    for reasons, fates in ((stitched.set_apart, assembly.set_apart), (stitched.duplicates, assembly.duplicates)):
        for index in sorted(reasons):
            for piece in calls[index].pieces:
                if piece not in used and piece not in assembly.set_apart:
                    fates.setdefault(piece, reasons[index])
    return assembly


def conversation_key(messages: Sequence[Message]) -> str:
    """A group key for a call log without ids: equal for calls whose messages start alike.

    A digest of the messages up to and including the first one of the user, which every later call repeats.
    """
    return conversation_digest(messages)


def _has_failed(prompt: Prompt) -> bool:
    """Whether a call has no answer, or broke off in one that nothing went on from."""
    if prompt.call.error is None:
        return not prompt.answers
    return all(answer_place(prompt, choice) is None for choice in range(len(prompt.answers)))
