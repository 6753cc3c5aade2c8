"""Pairs and labels that people and judges gave: comparisons, corrections, thumbs.

They are read from `Trajectory.scores`; what a platform keeps apart has to be put there first (see
`workflows.build_preferences`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import msgspec

from offline_arl.datasets.pairs.divergences import Attempt
from offline_arl.datasets.pairs.outcomes import step_pair, with_prefix_of
from offline_arl.datasets.pairs.pair import Pair, Side, is_trained_step, message_key, shared_length, whole_side
from offline_arl.trajectories.schema import (
    ContentPart,
    Message,
    Score,
    TextPart,
    ToolCall,
    Trajectory,
    parse_arguments,
    tool_call,
)

_THUMBS: Mapping[str, bool] = {
    **dict.fromkeys(("up", "thumbs up", "thumb up", "like", "liked", "upvote", "positive", "👍"), True),
    **dict.fromkeys(("down", "thumbs down", "thumb down", "dislike", "disliked", "downvote", "negative", "👎"), False),
}
_THUMB_WORDS = ("thumb", "thumbs", "reaction", "like", "vote", "upvote", "feedback", "rating")
# Where objects hold an answer: platforms wrap what a run returned.
_ANSWER_KEYS = ("output", "answer", "response", "content", "text", "result", "completion", "message")


def goodness(score: Score) -> float | None:
    """The number of a judgement, more being better; None where it has none. Unknown directions count as "higher"."""
    if score.value is None:
        return None
    return -score.value if score.direction == "lower_is_better" else score.value


def thumb(score: Score) -> bool | None:
    """Whether a judgement is a thumb up (True) or down (False); None where it is no thumb.

    A thumb has a telling label (`up`, `👎`), or comes from a person, has a telling name (`user-feedback`) and one of
    two values: 1 or true against 0, false or -1. A rating of three stars of five is none.
    """
    if score.label is not None:
        said = _THUMBS.get(" ".join(score.label.lower().replace("_", " ").replace("-", " ").split()))
        if said is not None:
            return said
        for sign in ("👍", "👎"):
            if score.label.startswith(sign):
                return _THUMBS[sign]
    words = score.name.lower().replace("_", " ").replace("-", " ").replace(".", " ").split()
    is_telling = score.scorer_kind == "human" and not set(words).isdisjoint(_THUMB_WORDS)
    if not is_telling or score.value not in (-1.0, 0.0, 1.0) or score.direction == "lower_is_better":
        return None
    return score.value == 1.0


def comparison_pairs(attempts: Sequence[Attempt], counts: Counter[str]) -> list[Pair]:
    """The better and the worse of what was compared with one another (`Score.comparison_id`).

    Where a comparison is about single messages after the same beginning, the sides are these steps; else they go to
    the ends of both trajectories.
    """
    compared: dict[tuple[str, str], list[tuple[float, Attempt, Score]]] = defaultdict(list)
    for attempt in attempts:
        for score in attempt.trajectory.scores:
            number = goodness(score)
            if score.comparison_id is not None and number is not None:
                compared[score.comparison_id, score.name].append((number, attempt, score))
    found = []
    for (comparison_id, _), judged in compared.items():
        for left, right in combinations(judged, 2):
            if left[0] == right[0]:
                counts["comparison_tie"] += 1
                continue
            (high, better, score), (low, worse, other) = (left, right) if left[0] > right[0] else (right, left)
            pair = _compared(better, worse, (score.message_index, other.message_index))
            if pair is None:
                counts["equal_sides"] += 1
                continue
            evidence = {"comparison": comparison_id, **_who(score)}
            found.append(replace(pair, scorer=score.name, chosen_score=high, rejected_score=low, evidence=evidence))
    return found


def correction_pairs(attempt: Attempt, counts: Counter[str]) -> list[Pair]:
    """What a person would have had instead of a step, and the step.

    A correction of no particular message is one of the last step. One that repeats the step is an approval, no pair;
    one that holds no answer (a better score, say) says nothing about a step.
    """
    found = []
    trajectory = attempt.trajectory
    for score in trajectory.scores:
        if score.correction is None:
            continue
        at = _corrected_step(trajectory, score.message_index)
        wanted = None if at is None else corrected_message(score.correction, trajectory.messages[at])
        if at is None or wanted is None:
            counts["correction_without_an_answer"] += 1
        elif message_key(wanted) == message_key(trajectory.messages[at]):
            counts["correction_equals_the_answer"] += 1
        else:
            prompt = trajectory.messages[:at]
            found.append(
                Pair(
                    kind="correction",
                    chosen=Side(trajectory, [*prompt, wanted], at, at),
                    rejected=Side(trajectory, trajectory.messages[: at + 1], at, at),
                    scorer=score.name,
                    evidence={"chosen_is_written_by": "scorer", **_who(score)},
                )
            )
    return found


def corrected_message(correction: str, logged: Message) -> Message | None:
    """The message that a correction (JSON text) asks for; None where it holds no answer.

    It may be the text of the answer, a message with `content` and `tool_calls` in OpenAI form, a list that ends with
    one, or an object that wraps one of these (`{"output": ...}`). What is no answer (numbers, other objects) is none.
    """
    try:
        value = msgspec.json.decode(correction)
    except (msgspec.DecodeError, RecursionError):
        return None
    parts = _answer_parts(value)
    if parts is None:
        return None
    text, calls = parts
    if not text and not calls:
        return None
    content: list[ContentPart] | None = [TextPart(text)] if text else None
    # Of the producer of the step whose place it takes, because it is trained like one; the evidence has who wrote it.
    return Message(role="assistant", content=content, tool_calls=calls, producer=logged.producer)


def _answer_parts(value: Any, depth: int = 0) -> tuple[str, list[ToolCall]] | None:
    if isinstance(value, str):
        return value, []
    if depth > 4:
        return None
    if isinstance(value, list):
        messages = [item for item in value if isinstance(item, dict)]
        texts = [item["text"] for item in messages if item.get("type") == "text" and isinstance(item.get("text"), str)]
        if texts and len(texts) == len(value):
            return "".join(texts), []
        return _answer_parts(messages[-1], depth + 1) if messages and messages[-1].get("role") == "assistant" else None
    if not isinstance(value, dict):
        return None
    calls = _calls(value.get("tool_calls"))
    if calls is None:
        return None
    if calls:
        inner = _answer_parts(value.get("content"), depth + 1)
        return ("" if inner is None else inner[0]), calls
    held = [key for key in _ANSWER_KEYS if value.get(key) is not None]
    return _answer_parts(value[held[0]], depth + 1) if held else None


def _calls(value: Any) -> list[ToolCall] | None:
    """Calls in OpenAI form; [] where there are none, None where they are of another form."""
    if value in (None, []):
        return []
    if not isinstance(value, list):
        return None
    calls = []
    for item in value:
        function = item.get("function", item) if isinstance(item, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return None
        arguments = function.get("arguments", function.get("args", {}))
        if isinstance(arguments, str):
            parsed, problem = parse_arguments(arguments)
            calls.append(ToolCall(function["name"], arguments, parsed, item.get("id"), problem))
        elif isinstance(arguments, dict):
            calls.append(tool_call(function["name"], arguments, id=item.get("id")))
        else:
            return None
    return calls


def _corrected_step(trajectory: Trajectory, index: int | None) -> int | None:
    steps = [at for at, message in enumerate(trajectory.messages) if is_trained_step(message)]
    if index is None:
        return steps[-1] if steps else None
    return index if index in steps else None


def _compared(better: Attempt, worse: Attempt, at: tuple[int | None, int | None]) -> Pair | None:
    """The pair of two that were compared; None where they do not differ in what the agent did."""
    start = shared_length(better.keys, worse.keys)
    chosen, rejected = better.trajectory, worse.trajectory
    if at == (start, start) and all(is_trained_step(side.messages[start]) for side in (chosen, rejected)):
        return step_pair("comparison", chosen, rejected, start, scorer=None, scores=None)
    if not all(any(map(is_trained_step, side.messages[start:])) for side in (chosen, rejected)):
        return None
    other = with_prefix_of(chosen, rejected, start, len(rejected.messages))
    return Pair("comparison", whole_side(chosen, start), other)


def _who(score: Score) -> dict[str, Any]:
    known = {"scorer": score.scorer, "scorer_kind": score.scorer_kind, "comment": score.comment}
    return {key: value for key, value in known.items() if value not in (None, "unknown")}
