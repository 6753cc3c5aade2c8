"""Updates that are too large: losses that swing, policies that leave the warm start for gibberish."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import fmean, median, stdev

from offline_arl.online.diagnosis.findings import Finding
from offline_arl.online.diagnosis.history import DEAD_STEPS, FEW, RECENT, View, numbers

# The median gradient norm of runs that learn well grows up to three times as groups fall silent.
GRADIENT_GROWTH = 10.0
# Standard deviation of log10 of the gradient norm: 0.1 to 0.25 in runs that learn well; 0.5 is a factor of 10 between
# a step at one and a step at minus one standard deviation.
GRADIENT_SWING = 0.5
SWING_STEPS = 8  # a standard deviation of fewer is noise
# Advantages are of the order of 1 and so is the loss if it swings as far as it can; runs that learn well show 0.1.
LOSS_SWING = 1.0
# Nats a token. At 0.5, tokens are on average 1.6 times as likely as under the warm start; runs that learn well end at
# 0.02 to 0.25.
KL_BOUND = 0.5
# Rise of success from which on the KL is what learning costs; with as much as this, 0.9 nats were seen in a training
# whose validation rose throughout.
KL_PAYS = 0.05
KL_GROWTH = 3.0  # within RECENT steps, twice in a row: growth that does not slow down
KL_NOTABLE = 0.2  # below, every KL grows like that, since it begins at 0
INVALID_RISE = 0.5  # invalid actions an episode more than at the start, and twice as many: every second episode
TRUNCATED_RISE = 0.3  # share of episodes; runs that learn well stay within 0.1 of their start
ENTROPY_RISE = 0.5  # nats a token, and three times the start: a policy that guesses among more tokens than it did
SUCCESS_LOSS = 0.5  # share of the success of the start; who has lost it for so many steps does not come back


def loss_oscillation(view: View) -> Iterator[Finding]:
    """Loss or gradient are not finite, swing, or have grown by an order of magnitude."""
    if not view.count:
        return
    remedy = "lower learning_rate, raise warmup_steps, lower max_gradient_norm; more episodes a step also help"
    last = view.recent[-1]
    if last.idle_groups < 1 and not (math.isfinite(last.loss) and math.isfinite(last.gradient_norm)):
        yield view.finding(
            "loss_oscillation",
            "not_finite",
            evidence=f"the loss is {last.loss:g} and the gradient norm {last.gradient_norm:g}",
            threshold="any value that is not finite: the update has written it into the weights",
            remedy=(
                "go on from the last saved state with a lower learning_rate; in bfloat16 look at the logits, or set "
                "dtype: float32"
            ),
            severity="fatal",
        )
    yield from _gradients(view, remedy)
    losses = numbers(view.recent, "loss")[-SWING_STEPS:]
    if len(losses) < SWING_STEPS:
        return
    swing = fmean(abs(after - before) for before, after in pairwise(losses))
    unit = max(1.0, _nan_to(view.last("return_spread"), 1.0))
    if swing >= LOSS_SWING * unit:
        yield view.finding(
            "loss_oscillation",
            "loss_swing",
            evidence=(
                f"over {SWING_STEPS} steps the loss changed by {swing:.2f} a step on average, between "
                f"{min(losses):.2f} and {max(losses):.2f}"
            ),
            threshold=f"{LOSS_SWING * unit:g}, the size of an advantage; runs that learn change by 0.1",
            remedy=remedy,
        )


def _gradients(view: View, remedy: str) -> Iterator[Finding]:
    norms = [norm for norm in numbers(view.recent, "gradient_norm") if norm > 0]
    swing = stdev(math.log10(norm) for norm in norms[-SWING_STEPS:]) if len(norms) >= SWING_STEPS else 0.0
    if swing >= GRADIENT_SWING:
        low, high = min(norms[-SWING_STEPS:]), max(norms[-SWING_STEPS:])
        yield view.finding(
            "loss_oscillation",
            "gradient_swing",
            evidence=(
                f"over {SWING_STEPS} steps the gradient norm swings between {low:.2g} and {high:.2g} (standard "
                f"deviation of its log10: {swing:.2f})"
            ),
            threshold=f"{GRADIENT_SWING}: in runs that learn it is 0.1 to 0.25",
            remedy=remedy,
        )
    first = [norm for norm in numbers(view.start, "gradient_norm") if norm > 0]
    if view.comparable and first and len(norms) >= RECENT:
        before, now = first[0], median(norms[-RECENT:])
        if now >= GRADIENT_GROWTH * before:
            yield view.finding(
                "loss_oscillation",
                "gradient_growth",
                evidence=f"the gradient norm grew from {before:.2g} to {now:.2g} (median of {RECENT} steps)",
                threshold=f"{GRADIENT_GROWTH:g} times the start: in runs that learn it grows up to 3 times",
                remedy=remedy,
            )


def kl_growth(view: View) -> Iterator[Finding]:
    """The policy leaves the warm start, faster and faster, or for gibberish, and success does not rise with it.

    A policy that only grows surer of what the warm start does already moves by about the entropy of the warm start, so
    the bound is never below that. Without a reference, and where no token trains, there is no KL: then gibberish is
    told by two of its signs, or by one and the loss of success.
    """
    if view.last("success") >= view.first("success", FEW) + KL_PAYS:
        return
    bound = max(KL_BOUND, _nan_to(view.first_entropy, 0.0))
    why = f"{bound:.2g} nats a token: a policy that only grows surer of what it did moves less"
    remedy = "raise kl_coefficient, lower learning_rate or updates_per_step, raise warmup_steps"
    patience = view.dead_steps or DEAD_STEPS
    told = _gibberish(view, bound, FEW)
    is_fatal = False
    if view.last("success", patience) <= SUCCESS_LOSS * view.first("success"):
        lasting = _gibberish(view, bound, patience)
        is_fatal = lasting is not None
        told = lasting or told
    if told is not None:
        yield view.finding(
            "kl_growth",
            "gibberish",
            evidence=told,
            threshold=(
                f"{why}; gibberish is what also shows in invalid actions, truncation or entropy, fatal where half of "
                f"the success is lost for {patience} steps (stop.dead_steps)"
            ),
            remedy=f"go on from an earlier state: {remedy}",
            severity="fatal" if is_fatal else "warning",
        )
    elif view.count >= RECENT and view.middle("kl") >= bound:
        yield view.finding(
            "kl_growth",
            "kl_bound",
            evidence=f"the KL to the warm start is {view.middle('kl'):.2f} nats a token (median of {RECENT} steps)",
            threshold=why,
            remedy=remedy,
        )
    yield from _acceleration(view, remedy)


def _acceleration(view: View, remedy: str) -> Iterator[Finding]:
    found = numbers(view.recent, "kl")
    if len(found) < 3 * RECENT:
        return
    oldest, before, now = (
        median(found[-back : len(found) - back + RECENT]) for back in (3 * RECENT, 2 * RECENT, RECENT)
    )
    if now >= max(KL_NOTABLE, KL_GROWTH * before) and before >= KL_GROWTH * oldest:
        yield view.finding(
            "kl_growth",
            "kl_acceleration",
            evidence=(
                f"the KL to the warm start grew from {oldest:.3f} to {before:.3f} and to {now:.3f} nats a token, "
                f"{RECENT} steps each"
            ),
            threshold=(
                f"{KL_GROWTH:g} times within {RECENT} steps, twice in a row, and above {KL_NOTABLE:g}: growth that "
                "learning rate and KL term do not slow down"
            ),
            remedy=remedy,
        )


def _gibberish(view: View, bound: float, steps: int) -> str | None:
    """What the last steps show of it; None where it is none, or nothing but the warm start was seen yet."""
    if view.count <= steps:
        return None
    signs = []
    before, now = view.first("invalid_actions"), view.last("invalid_actions", steps)
    if now >= before + INVALID_RISE and now >= 2 * before:
        signs.append(f"invalid actions {before:.2f} an episode, now {now:.2f}")
    before, now = view.first("truncated"), view.last("truncated", steps)
    if now >= before + TRUNCATED_RISE:
        signs.append(f"truncated {before:.0%}, now {now:.0%}")
    before, now = view.first_entropy, view.last_entropy(steps)
    if now >= before + ENTROPY_RISE and now >= 3 * before:
        signs.append(f"entropy {before:.2f} nats a token, now {now:.2f}")
    kl, success, success_now = view.middle("kl", steps), view.first("success"), view.last("success", steps)
    told = f"KL {kl:.2f} nats a token"
    if math.isnan(kl):
        told = "the KL is not known"
        if success_now <= SUCCESS_LOSS * success:
            signs.append("half of the success is lost")
    if not (kl >= bound and signs) and not (math.isnan(kl) and len(signs) > 1):
        return None
    success_told = f"sampled success {success:.2f}, now {success_now:.2f}"
    return f"over {steps} steps: {told}; {', '.join(signs)}; {success_told}"


def _nan_to(value: float, other: float) -> float:
    return other if math.isnan(value) else value
