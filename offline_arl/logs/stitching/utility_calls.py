"""Model calls that a harness makes beside its agent: titles, summaries, topic detection, suggestions.

They are one-shot calls without tools, or they end a copy of the conversation that goes on without them.
"""

from __future__ import annotations

from collections.abc import Sequence

from offline_arl.logs.stitching.answers import answer_place
from offline_arl.logs.stitching.calls import ModelCall
from offline_arl.logs.stitching.prompts import Family, Prompt
from offline_arl.logs.stitching.summaries import Summaries
from offline_arl.logs.stitching.utility_words import told_by_content, told_by_name, told_by_system_prompt

_MAX_STARTS = 256  # beginnings of conversations that are searched for a summary
_SUMMARY_DEPTHS = 3  # a summary stands among the first messages


def find_utilities(prompts: Sequence[Prompt]) -> dict[int, str]:
    """Utility calls by index, with what they are for; none but those that the log names where no other call is."""
    if len(prompts) == 1 and not prompts[0].call.is_utility:
        return {}
    named: dict[int, str] = {}
    doubtful: list[Prompt] = []
    agents: set[Family] = set()
    with_tools: set[Family] = set()
    for prompt in prompts:
        call = prompt.call
        if call.is_utility:
            kind = told_by_name(call) or told_by_content(call) or told_by_system_prompt(call)
            named[prompt.index] = kind or "as the log says"
            continue
        if _offers_tools(call):
            with_tools.add(prompt.family)
        if call.is_utility is False or answer_place(prompt, 0) is not None or call.choices[0].tool_calls:
            agents.add(prompt.family)
        else:
            doubtful.append(prompt)
    agents |= with_tools
    found: dict[int, str] = {}
    for prompt in doubtful:
        kind = _kind(prompt, prompt.family in agents, prompt.family in with_tools)
        if kind is not None:
            found[prompt.index] = kind
    has_steps = len(named) + len(found) < len(prompts)
    return {**named, **found} if has_steps else named


def _kind(prompt: Prompt, is_agent: bool, has_tools: bool) -> str | None:
    """What a call that nothing went on from is for, if it is a utility call."""
    call = prompt.call
    offers_tools = _offers_tools(call)
    kind = None if is_agent else told_by_system_prompt(call)
    if not offers_tools:
        kind = told_by_name(call) or kind
    kind = kind or told_by_content(call)
    if kind is None:
        return None
    if not any(message.role == "assistant" for message in call.messages):
        return None if offers_tools else kind
    # What ends a conversation may be what its user asked for, unless the conversation went on without it.
    is_apart = not is_agent or (has_tools and not offers_tools) or _went_on_without(prompt)
    return kind if is_apart else None


def _offers_tools(call: ModelCall) -> bool:
    return call.tools is not None and call.tools.strip() not in ("", "[]")


def _went_on_without(prompt: Prompt) -> bool:
    """Whether the conversation has another message in place of the instruction, or starts anew from the answer."""
    end = prompt.end
    if end.parent is not None and len(end.parent.children) > 1:
        return True
    summary = Summaries([prompt.call.choices[0].text])
    starts = [prompt.family.root, *end.path()[: _SUMMARY_DEPTHS - 1]]
    return any(summary.are_in(key[1]) for node in starts if len(node.children) <= _MAX_STARTS for key in node.children)
