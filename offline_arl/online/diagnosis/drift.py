"""What a policy loses step by step: its exploration, its length, its success."""

from __future__ import annotations

import math
from collections.abc import Iterator

from offline_arl.online.diagnosis.findings import Finding
from offline_arl.online.diagnosis.history import RECENT, View
from offline_arl.online.records import Validation

# Share of the entropy of the start. Runs that learn well keep half of it; a policy that gets all tasks right may lose
# it all, and is not looked at.
ENTROPY_SHARE = 0.2
ENTROPY_START = 0.02  # nats a token: a policy that starts surer than that has no entropy to lose
LENGTH_FACTOR = 2.0  # runs that learn well stay within 1.5
LENGTH_FACTOR_OF_SUCCESS = 4.0  # who learns what he could not do may need a third of the steps, or three times as many
LENGTH_SUCCESS = 0.1  # rise of success from which on a change of length may be part of it
SMALLEST_CHANGE = {"mean_tokens": 8.0, "mean_steps": 2.0}  # below, a factor of 2 is one more word or one more call
# Twice the standard error of the difference of two validations on 100 tasks with the same seeds.
VALIDATION_DROP = 0.15
# Steps draw different tasks, so their success is noisier than that of validations; used where there are none. The drop
# has to be three times the spread that the draw of tasks gives, as if each were always or never solved.
STEP_DROP = 0.2
STEP_SPREADS = 3.0
USUAL_GROUP = 8  # episodes a task, where a run recorded no facts of its episodes
DROP_STEPS = RECENT  # averaged at the start, and twice as many at the end


def has_collapsed(view: View) -> bool:
    """Whether the policy has lost nearly all of the entropy that it started with."""
    before = view.first_entropy
    return view.comparable and before >= ENTROPY_START and view.last_entropy() <= ENTROPY_SHARE * before


def entropy_collapse(view: View) -> Iterator[Finding]:
    """The policy hardly explores any more, although tasks are left to solve."""
    if view.unsolved and has_collapsed(view):
        before, now = view.first_entropy, view.last_entropy()
        yield view.finding(
            "entropy_collapse",
            "entropy",
            evidence=(
                f"entropy fell from {before:.3f} to {now:.4f} nats a token, with sampled success at "
                f"{view.last('success'):.2f}"
            ),
            threshold=(
                f"{ENTROPY_SHARE:g} of the entropy of the warm start: runs that learn keep half, and what is never "
                "sampled is never learned"
            ),
            remedy=(
                "lower learning_rate, raise kl_coefficient, clip_high (DAPO's clip higher, 0.28) or entropy_coefficient"
            ),
        )


def length_drift(view: View) -> Iterator[Finding]:
    """Episodes have grown or shrunk by a large factor; success that rises with them allows for more."""
    if not view.comparable:
        return
    success, success_now = view.first("success"), view.last("success")
    is_learning = success_now >= success + LENGTH_SUCCESS
    factor = LENGTH_FACTOR_OF_SUCCESS if is_learning or not view.steady_tasks else LENGTH_FACTOR
    for name, what in (("mean_tokens", "sampled tokens"), ("mean_steps", "steps")):
        before, now = view.first(name), view.last(name)
        is_far = abs(now - before) >= SMALLEST_CHANGE[name] and not before / factor < now < before * factor
        if not is_far:  # also where either is unknown, since no episode was sound
            continue
        grew = now > before
        yield view.finding(
            "length_drift",
            f"{name}_{'up' if grew else 'down'}",
            evidence=(
                f"{what} of an episode went from {before:.1f} to {now:.1f} while sampled success went from "
                f"{success:.2f} to {success_now:.2f}"
            ),
            threshold=(
                f"a factor of {factor:g}: runs that learn stay within 1.5, and within {LENGTH_FACTOR_OF_SUCCESS:g} "
                "where success rises with it or a curriculum changes the tasks"
            ),
            remedy=(
                "look whether the reward pays for length; "
                + (
                    "limit it by length (free, limit, penalty) or max_tokens_per_step"
                    if grew
                    else "look whether penalties punish every step; raise kl_coefficient"
                )
            ),
        )


def success_drop(view: View) -> Iterator[Finding]:
    """The policy is worse than the warm start, on the same validation tasks or, without any, in the steps."""
    remedy = "raise kl_coefficient, lower learning_rate; the best validated policy is kept in any case"
    found = _validations(view)
    if found is not None:
        start, now = found
        for name in ("greedy", "sampled"):
            before, after = getattr(start, name), getattr(now, name)
            if after < before - VALIDATION_DROP:
                yield view.finding(
                    "success_drop",
                    name,
                    evidence=f"{name} validation success fell from {before:.2f} to {after:.2f}",
                    threshold=f"{VALIDATION_DROP} below the start: twice the standard error on 100 tasks",
                    remedy=remedy,
                    step=now.step,
                )
    elif not view.validations and view.steady_tasks and view.count >= 3 * DROP_STEPS:
        before, after = view.first("success", DROP_STEPS), view.last("success", 2 * DROP_STEPS)
        drop = max(STEP_DROP, STEP_SPREADS * _spread(view, before))
        if after < before - drop:
            yield view.finding(
                "success_drop",
                "steps",
                evidence=(
                    f"sampled success fell from {before:.2f} to {after:.2f} (means of {DROP_STEPS} and "
                    f"{2 * DROP_STEPS} steps)"
                ),
                threshold=f"{drop:.2f}: three times the spread that drawing other tasks gives",
                remedy=remedy,
            )


def _spread(view: View, success: float) -> float:
    """The standard error of the difference in success between the first and the last steps."""
    facts = view.facts[-1]
    groups = sum(found[0] for found in facts["types"].values()) if "types" in facts else 0
    groups = groups or max(1, view.recent[-1].n_episodes // USUAL_GROUP)
    each = success * (1 - success) / (groups * DROP_STEPS)
    return math.sqrt(each + each / 2)


def _validations(view: View) -> tuple[Validation, Validation] | None:
    """The last validation and the first one on as many tasks; None where there is nothing to compare."""
    if len(view.validations) < 2:
        return None
    now = view.validations[-1]
    start = next(found for found in view.validations if found.n_tasks == now.n_tasks)
    return None if start is now else (start, now)
