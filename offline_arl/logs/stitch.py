"""Joining logged model calls into trajectories.

Call logs (provider requests, telemetry spans, proxies) hold one record a model call, and each repeats the history.
Two calls belong to one thread where the messages of the first, followed by its answer, are a prefix of the
messages of the second. Where a prefix breaks, a branch or a linked trajectory starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from offline_arl.logs.adapter import Assembly, Group
from offline_arl.logs.stitching.calls import ModelCall, Stitched
from offline_arl.logs.stitching.links import link
from offline_arl.logs.stitching.message_keys import conversation_digest
from offline_arl.logs.stitching.prompts import Family, Prompt, PromptTree
from offline_arl.logs.stitching.threads import Threads, answer_node, attach_failed
from offline_arl.logs.stitching.trajectories import TrajectoryWriter, pieces_of
from offline_arl.logs.stitching.utility_calls import has_tools, utility_by_content, utility_by_system_prompt
from offline_arl.trajectories.schema import Message

__all__ = ["ModelCall", "Stitched", "assembly_of", "conversation_key", "stitch"]


def stitch(calls: Sequence[ModelCall], group: Group) -> Stitched:
    """Join calls of one group into trajectories.

    Calls are taken in order of `started_at` (of their position where times are missing or equal). Args and result
    are described in `docs/formats.md`, section "Stitching".
    """
    stitched = Stitched()
    tree = PromptTree()
    prompts = tree.add_all(calls)
    prompts = _without_duplicates(prompts, stitched.duplicates)
    failed = [prompt for prompt in prompts if _has_failed(prompt, tree)]
    set_aside = {prompt.index for prompt in failed}
    answered = [prompt for prompt in prompts if prompt.index not in set_aside]
    utilities = _utilities(answered, tree)
    steps = [prompt for prompt in answered if prompt.index not in utilities]
    threads = Threads(tree)
    for prompt in steps:
        threads.add(prompt)
    for prompt in attach_failed(failed, threads.all):
        error = prompt.call.error
        reason = "it has no answer" if error is None else ": ".join(filter(None, (error.type, error.text)))
        stitched.set_apart[prompt.index] = f"failed call: {reason}"
    summaries = []
    for index, kind in utilities.items():
        stitched.set_apart[index] = f"utility call: {kind}"
        if kind == "summary":
            summaries.append(calls[index].choices[0].text.strip())
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
    used = pieces_of(call for index, call in enumerate(calls) if index not in elsewhere)
    for reasons, fates in (
        (stitched.set_apart, assembly.set_apart),
        (stitched.duplicates, assembly.duplicates),
    ):
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


def _has_failed(prompt: Prompt, tree: PromptTree) -> bool:
    """Whether a call has no answer, or broke off in one that nothing went on from."""
    if not prompt.answers:
        return True
    return prompt.call.error is not None and all(
        answer_node(prompt, choice, tree)[0] is None for choice in range(len(prompt.answers))
    )


def _without_duplicates(prompts: Sequence[Prompt], duplicates: dict[int, str]) -> list[Prompt]:
    """Leave out calls logged more than once and answers from a cache; of versions of a call the richest stays."""
    by_id: dict[tuple[str, int], Prompt] = {}
    by_answer: dict[tuple[int, str], Prompt] = {}
    kept: dict[int, Prompt] = {}
    for prompt in prompts:
        call = prompt.call
        if call.metadata.get("cache_hit") is True and prompt.answers:
            original = by_answer.get((id(prompt.end), repr(prompt.answers)))
            if original is not None:
                duplicates[prompt.index] = "answer from a cache, repeats an earlier call"
                continue
        if call.call_id is not None:
            place = (call.call_id, id(prompt.end))
            twin = by_id.get(place)
            if twin is not None:
                poorer, richer = sorted((twin, prompt), key=_richness)
                duplicates[poorer.index] = f"the call {call.call_id} is logged again"
                kept.pop(poorer.index, None)
                kept[richer.index] = by_id[place] = richer
                continue
            by_id[place] = prompt
        if prompt.answers:
            by_answer.setdefault((id(prompt.end), repr(prompt.answers)), prompt)
        kept[prompt.index] = prompt
    return sorted(kept.values(), key=lambda prompt: prompt.rank)


def _richness(prompt: Prompt) -> tuple[bool, int, int]:
    call = prompt.call
    size = sum(len(choice.text) + len(choice.reasoning) + len(choice.tool_calls) for choice in call.choices)
    return call.error is None, len(call.choices), size


def _utilities(prompts: Iterable[Prompt], tree: PromptTree) -> dict[int, str]:
    """Utility calls and what they are for, where other calls are the agent's."""
    found: dict[int, str] = {}
    agents: set[Family] = set()
    others: list[Prompt] = []
    has_steps = False
    for prompt in prompts:
        call = prompt.call
        if call.is_utility:
            found[prompt.index] = utility_by_content(call) or utility_by_system_prompt(call) or "told by the log"
        elif call.is_utility is None and answer_node(prompt, 0, tree)[0] is None and not has_tools(call):
            others.append(prompt)
        else:
            agents.add(prompt.family)
            has_steps = True
    for prompt in others:
        kind = _kind(prompt, agents)
        if kind is None:
            has_steps = True
        else:
            found[prompt.index] = kind
    return found if has_steps else {}


def _kind(prompt: Prompt, agents: set[Family]) -> str | None:
    return utility_by_content(prompt.call) or (
        None if prompt.family in agents else utility_by_system_prompt(prompt.call)
    )
