"""Calls that a log holds more than once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from offline_arl.logs.stitching.message_keys import MessageKey
from offline_arl.logs.stitching.prompts import Prompt

_Answers = tuple[MessageKey, ...]


def without_duplicates(prompts: Sequence[Prompt], duplicates: dict[int, str]) -> list[Prompt]:
    """Leave out calls that were logged again and answers that came from a cache; note them in `duplicates`.

    Of several versions of a call (a stream as it grew, an export beside its original) the richest stays. What only
    looks the same, under another id and not marked as cached, is another sample.
    """
    by_id: dict[tuple[str, int], list[Prompt]] = {}
    by_answers: dict[tuple[int, _Answers], Prompt] = {}
    kept: dict[int, Prompt] = {}
    for prompt in prompts:
        call = prompt.call
        place = (id(prompt.end), tuple(prompt.answers))
        if call.metadata.get("cache_hit") is True and prompt.answers and place in by_answers:
            original = by_answers[place]
            of = f" of the call {original.call.call_id}" if original.call.call_id is not None else ""
            duplicates[prompt.index] = f"repeats the answer{of} from a cache"
            _take_scores(original, prompt)
            continue
        by_answers.setdefault(place, prompt)
        kept[prompt.index] = prompt
        if call.call_id is None:
            continue
        versions = by_id.setdefault((call.call_id, id(prompt.end)), [])
        twin = next((position for position, other in enumerate(versions) if _is_version(prompt, other)), None)
        if twin is None:
            versions.append(prompt)
            continue
        poorer, richer = prompt, versions[twin]
        if _richness(prompt) > _richness(richer):
            poorer, richer = richer, prompt
        versions[twin] = richer
        _take_scores(richer, poorer)
        del kept[poorer.index]
        duplicates[poorer.index] = f"the call {call.call_id} is logged again"
    return list(kept.values())


def _is_version(prompt: Prompt, other: Prompt) -> bool:
    """Whether two records of one id are one call: the same answers, or one of them broke off or has none."""
    if not prompt.answers or not other.answers:
        return True
    if len(prompt.answers) != len(other.answers):
        return False
    return all(map(_is_beginning, prompt.answers, other.answers))


def _is_beginning(key: MessageKey, other: MessageKey) -> bool:
    return key == other or key[1].startswith(other[1]) or other[1].startswith(key[1])


def _take_scores(kept: Prompt, other: Prompt) -> None:
    """Let the record that stays have the judgements of the one that goes."""
    missing = [score for score in other.call.scores if score not in kept.call.scores]
    if missing:
        kept.call = replace(kept.call, scores=[*kept.call.scores, *missing])


def _richness(prompt: Prompt) -> tuple[bool, int, int]:
    call = prompt.call
    parts = [item.arguments_raw for choice in call.choices for item in choice.tool_calls]
    size = sum(len(choice.text) + len(choice.reasoning) for choice in call.choices) + sum(map(len, parts))
    return call.error is None, len(call.choices), size
