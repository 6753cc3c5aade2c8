"""The words by which calls for titles, summaries, topic detection and the like tell what they are.

They are those of common harnesses (Claude Code, Codex, Gemini CLI, OpenHands, Open WebUI, LibreChat), made a little
wider.
"""

from __future__ import annotations

import re

from offline_arl.logs.stitching.calls import ModelCall
from offline_arl.logs.stitching.system_prompts import leading_system_messages

_MAKE = r"\b(?:generat|creat|writ|produc|extract|provid|suggest|propos|predict|com[ei]|giv|assign)\w*\b"
_TALK = r"\b(?:conversations?|chats?|dialog(?:ue)?s?|sessions?|threads?|discussions?|(?:chat|message)\s+history)\b"
_NEXT = r"\b(?:follow[- ]?ups?|next)\b[^.\n]{0,30}\b(?:questions?|prompts?|repl(?:y|ies)|messages?|inputs?)\b"
_RECORD = "conversation|chat|session|history|context"

_SUGGESTIONS = (
    rf"{_MAKE}[^.\n]{{0,60}}{_NEXT}|\bsuggestion mode\b|"
    r"\bwhat the user (?:might|may|would|will|could)\b[^.\n]{0,30}\b(?:type|say|ask|write|send)\b"
)
_TAGS = rf"{_MAKE}[^.\n]{{0,60}}\btags?\b[^.\n]{{0,80}}{_TALK}"
_QUERIES = r"\bgenerat\w+ (?:web )?search quer(?:y|ies)\b"
_COMMANDS = r"\bcommand prefix\b|\bprefix detection\b|\bextract any file paths\b"
_TOPICS = r"\bnew conversation topic\b|\bis_?new_?topic\b|\btopic (?:detect|classif)\w+"
_SUMMARIES = (
    r"\bcontext checkpoint compaction\b|\b(?:handoff|checkpoint) summary\b|\bcontext-aware\b[^.\n]{0,40}\bsummary\b|"
    r"\bsummari[sz]e_task\b"
)

# What the instructions of such a call say, in a system prompt, which speaks of nothing else ...
_SYSTEM_SAYS = {
    "topic detection": rf"{_TOPICS}|\bnew topic\b",
    "title": rf"{_MAKE}[^.\n]{{0,60}}\btitles?\b|\btitle generat(?:or|ion)\b|\bsummari[sz]\w*[^.\n]{{0,60}}\btitles?\b",
    "summary": (
        rf"{_SUMMARIES}|\bsummar\w+\b[^.\n]{{0,80}}{_TALK}|"
        rf"{_TALK}[^.\n]{{0,30}}\b(?:summari[sz]er|summari[sz]ation|compaction)\b"
    ),
    "suggestions": _SUGGESTIONS,
    "tags": _TAGS,
    "search queries": _QUERIES,
    "command check": _COMMANDS,
}
# ... and in a message of the user, who may well ask an agent for a title or a summary of something else.
_USER_SAYS = {
    "topic detection": _TOPICS,
    "title": rf"\btitles?\b[^.\n]{{0,80}}{_TALK}|{_TALK}[^.\n]{{0,40}}\btitles?\b",
    "summary": (
        rf"{_SUMMARIES}|\bsummar(?:y|i[sz]e)\b[^.\n]{{0,60}}(?:{_TALK}|\b(?:above|so far)\b)|"
        rf"{_TALK}[^.\n]{{0,30}}\b(?:to (?:be )?summari[sz]ed?|to compact)\b"
    ),
    "suggestions": _SUGGESTIONS,
    "tags": _TAGS,
    "search queries": _QUERIES,
    "command check": _COMMANDS,
    "warm-up": r"\A\s*(?:quota|ping|warm[- ]?up)\s*\Z",
}
_NAME_SAYS = {
    "title": r"(?:^|_)titles?(?:_|$)",
    "topic detection": r"(?:^|_)topics?_(?:detect|classif)|(?:^|_)(?:detect|classify|new)_topic",
    "summary": (
        rf"(?:^|_)(?:{_RECORD})_summar|(?:^|_)summari[sz]e_(?:{_RECORD})(?:_|$)|(?:^|_)compact(?:ion|ing)?(?:_|$)"
    ),
    "suggestions": r"(?:^|_)(?:suggestions?|follow_?ups?)(?:_|$)",
    "tags": r"(?:^|_)generate_tags(?:_|$)",
    "warm-up": r"(?:^|_)warm_?up(?:_|$)",
}
_ANSWER_SAYS = {
    "title": r'\A\s*(?:```(?:json)?\s*)?\{\s*"title"\s*:\s*"[^"]{0,200}"\s*\}',
    "topic detection": r'\A\s*(?:```(?:json)?\s*)?\{\s*"is_?new_?topic"\s*:',
    "suggestions": r'\A\s*(?:```(?:json)?\s*)?\{\s*"(?:follow_ups|suggestions)"\s*:',
    "tags": r'\A\s*(?:```(?:json)?\s*)?\{\s*"tags"\s*:\s*\[',
}
# One of these is in every text that the patterns of the kind match; looking for them first is much faster.
_STEMS = {
    "topic detection": ("topic",),
    "title": ("title",),
    "summary": ("summar", "compact"),
    "suggestions": ("suggestion", "follow", "next", "what the user"),
    "tags": ("tag",),
    "search queries": ("search quer",),
    "command check": ("prefix", "file paths"),
    "warm-up": ("quota", "ping", "warm"),
}
_LOOK_AT = 2000  # characters of a prompt in which its purpose is told


def _compiled(patterns: dict[str, str]) -> dict[str, re.Pattern[str]]:
    return {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in patterns.items()}


_SYSTEM, _USER, _NAME, _ANSWER = map(_compiled, (_SYSTEM_SAYS, _USER_SAYS, _NAME_SAYS, _ANSWER_SAYS))
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NO_WORD = re.compile(r"[^a-z0-9]+")


def told_by_system_prompt(call: ModelCall) -> str | None:
    """What utility a call is by its system prompt: "title", "summary", ...; None where it tells nothing."""
    systems = call.messages[: leading_system_messages(call.messages)]
    return next((found for message in systems if (found := _first(_SYSTEM, message.text[:_LOOK_AT]))), None)


def told_by_name(call: ModelCall) -> str | None:
    """What utility a call is by its name."""
    return None if call.name is None else _first(_NAME, _NO_WORD.sub("_", _CAMEL.sub("_", call.name).lower()))


def told_by_content(call: ModelCall) -> str | None:
    """What utility a call is by its last message, which is the instruction, or by its answer."""
    if call.messages and call.messages[-1].role in ("user", "system", "developer"):
        text = call.messages[-1].text
        found = _first(_USER, text[:_LOOK_AT]) or (_first(_USER, text[-_LOOK_AT:]) if len(text) > _LOOK_AT else None)
        if found is not None:
            return found
    return _first(_ANSWER, call.choices[0].text[:_LOOK_AT]) if call.choices else None


def _first(patterns: dict[str, re.Pattern[str]], text: str) -> str | None:
    lowered = text.lower()
    for kind, pattern in patterns.items():
        if any(stem in lowered for stem in _STEMS[kind]) and pattern.search(text):
            return kind
    return None
