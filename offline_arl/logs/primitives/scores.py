"""Scores as logs have them: values of any JSON type, scorers under many names, and which way is better.

No log format records whether more is better. `direction_of` reads it from the name, and says "unknown" where the name
does not tell: a wrong direction would train an agent towards what its judges reject.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

from offline_arl.logs.primitives.values import json_text
from offline_arl.trajectories.schema import Direction, Score, ScorerKind


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HIGHER = _words(
    """
    acceptable acceptance accepted accuracy accurate achieved adherence advantage aligned alignment answered
    appropriate appropriateness approval approved bleu blocked clarity clear coherence coherent complete completed
    completeness completion compliance compliant concise conciseness consistency consistent correct correctly
    correctness coverage csat efficiency efficient empathy exactness f1 factual factuality faithful faithfulness
    feedback fluency followed following good grounded groundedness grounding handled handling harmless harmlessness
    helpful helpfulness hit honest honesty informativeness like liked likes match matched matches mrr ndcg nps
    overall pass passed passes politeness precision preference preferred progress quality rating readability
    reasonable recall recovery relevance relevancy relevant reliability resistance resolution resolved reward
    rewards robustness rouge safe safety satisfaction satisfied saved similarity solved star stars succeeded success
    successful sufficiency suitability thumb thumbs transparency truthful truthfulness upvote upvotes useful
    usefulness valid validity win wins won
    """
)
_LOWER = _words(
    """
    abuse abusive aggression attack attacks bad bias biased bug bugs cer cost costs crash crashes danger dangerous
    delay delays deviation disagreement dislike disliked dislikes distance divergence downvote downvotes duration
    error errors exception exceptions expense fail failed failing fails failure failures hallucinated hallucination
    hallucinations harassment harm harmful harmfulness hate hostility inaccuracy inaccurate inappropriate
    incoherence incomplete incorrect incorrectness injection insult invalid irrelevance irrelevant jailbreak
    jailbreaks latency leak leakage leaks lie loss mae maliciousness misinformation mismatch mistake mistakes mse
    negativity obscene offensive offensiveness perplexity pii poor price profanity redundancy refusal refusals
    refused regression regressions regret rejected rejection rejections repetition retries rework risk rmse rudeness
    severity spam stereotype stereotyping threat time timeout timeouts toxic toxicity unfaithful unfaithfulness
    unhelpful unsafe violation violations violence vulgarity vulnerabilities vulnerability wer wrong
    """
)
# A quantity of these is neither good nor bad by itself, whatever stands before them ("completion tokens").
_NEUTRAL = _words("length temperature tokens turns words")
_NEGATIONS = _words("anti negative no non not without")
# An attack that succeeds and a harmful request that is followed are bad news.
_HOSTILE = _words("attack attacks harmful injection jailbreak jailbreaks")
_HOSTILE_ENDINGS = _words("compliance compliant success successful followed")
_WORD = re.compile(r"[A-Za-z]\d+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_SCORER_KINDS: dict[str, ScorerKind] = {
    "human": "human",
    "annotation": "human",
    "annotator": "human",
    "app": "human",
    "user": "human",
    "eval": "model",
    "auto_eval": "model",
    "llm": "model",
    "llm_judge": "model",
    "ai_judge": "model",
    "model": "model",
    "code": "code",
    "heuristic": "code",
    "environment": "environment",
}


@lru_cache(maxsize=4096)
def direction_of(name: str) -> Direction:
    """Which way is better for a score of this name, "unknown" where the name does not say.

    The last telling word decides, because it names the thing that is measured; a negation turns it round.

    >>> direction_of("toxicity"), direction_of("user-thumbs-up"), direction_of("error_recovery")
    ('lower_is_better', 'higher_is_better', 'higher_is_better')
    >>> direction_of("NoHallucination"), direction_of("completion_tokens"), direction_of("attack_success")
    ('higher_is_better', 'unknown', 'lower_is_better')
    """
    words = [word.lower() for word in _WORD.findall(name[:256])]
    if words in (["score"], ["scores"]):
        return "higher_is_better"
    for index in range(len(words) - 1, -1, -1):
        word, previous = words[index], words[index - 1] if index else ""
        if word in _NEUTRAL:
            return "unknown"
        if (word == "free" and previous in _LOWER) or (word in _LOWER and previous in _NEGATIONS):
            return "higher_is_better"
        if word in _LOWER or (word == "down" and previous in ("thumb", "thumbs", "vote")):
            return "lower_is_better"
        if word in _HIGHER:
            is_bad = previous in _NEGATIONS or (word in _HOSTILE_ENDINGS and not _HOSTILE.isdisjoint(words[:index]))
            return "lower_is_better" if is_bad else "higher_is_better"
    return "unknown"


def scorer_kind_of(source: object) -> ScorerKind:
    """Who made a score, from what a log calls its source ("ANNOTATION", "LLM_JUDGE", "app"); "unknown" otherwise.

    "API" is unknown: programs send the thumbs of people and the marks of models alike.
    """
    return _SCORER_KINDS.get(source.lower(), "unknown") if isinstance(source, str) else "unknown"


def finite_number(value: object) -> float | None:
    """A bool or a finite number as a float, else None."""
    if isinstance(value, (bool, int, float)):
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None
    return None


def make_score(
    name: object,
    value: object,
    *,
    label: object = None,
    scorer: object = None,
    kind: ScorerKind = "unknown",
    direction: Direction | None = None,
    message_index: int | None = None,
    comment: object = None,
    correction: object = None,
    comparison_id: object = None,
    timestamp: object = None,
    metadata: dict[str, Any] | None = None,
) -> Score:
    """A score from what a log has for its parts.

    Args:
        name: Its name; where it is no string, its JSON text.
        value: A bool or number is the value, a string the label. An object may hold them under `score` or `value`,
            and `label`, and is kept in the metadata besides. Whatever is none of these (NaN, a list) is kept in
            `metadata["value"]`.
        label: The category, where the log has one beside the value.
        direction: None: read from the name.
        correction: What the scorer would have had instead, any JSON value but null; kept as JSON text.
        metadata: What else the log says of the score.

    Raises:
        RecordRefusedError: A part that is no text cannot be written as JSON.
    """
    name = _text(name) or ""
    extra = dict(metadata or {})
    number = finite_number(value)
    if isinstance(value, str):
        label = value if label is None else label
    elif isinstance(value, dict):
        number = finite_number(value.get("score", value.get("value")))
        label = value.get("label") if label is None else label
        if comment is None:
            comment = value.get("explanation", value.get("reason"))
        extra.setdefault("value", value)
    elif value is not None and number is None:
        extra.setdefault("value", value if isinstance(value, list) else str(value))
    return Score(
        name=name,
        value=number,
        label=_text(label),
        scorer=_text(scorer),
        scorer_kind=kind,
        direction=direction_of(name) if direction is None else direction,
        message_index=message_index,
        comment=_text(comment),
        correction=None if correction is None else json_text(correction),
        comparison_id=_text(comparison_id),
        timestamp=_text(timestamp),
        metadata=extra,
    )


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json_text(value)
