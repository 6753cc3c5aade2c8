"""Episodes that are not those of the policy that learns from them: by rounding, by old weights, by reuse."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from offline_arl.online.diagnosis.findings import Finding
from offline_arl.online.diagnosis.history import FEW, RECENT, View, numbers

# Mean over tokens, in nats; bfloat16 engines show 0.005 to 0.02, and 0.05 over 100 tokens is a factor of 150 between
# the probabilities that sampler and trainer give to an episode.
MISMATCH = 0.05
MISMATCH_GROWTH = 100.0  # from the start, to at least 0.001: rounding does not grow, old weights do
SMALLEST_MISMATCH = 1e-3
SYNC_DIFFERENCE = 1.0  # nats on a single token: bfloat16 rounds rare tokens by some tenths, never by a factor of e
RATIO_DRIFT = 0.18  # mean |log ratio|: log 1.2, so that the average token stands at the usual limit of clipping
CLIPPED = 0.3  # share of tokens; PPO is usually tuned for under 0.2, and a clipped token has no gradient


def mismatch(view: View) -> Iterator[Finding]:
    """Sampler and trainer disagree, or a batch is used for longer than the policy resembles the one that sampled it."""
    if not view.count:
        return
    corrects = view.setup is not None and view.setup.on_mismatch == "correct"
    ratios = "" if corrects else " or correct the ratios (mismatch: {on_mismatch: correct})"
    sampler = (
        f"sample in the trainer's precision (dtype){ratios}; where mismatch.tolerance was raised, lower it so that the "
        "weight sync is checked"
    )
    reuse = "lower updates_per_step, reuse_limit or learning_rate, or sample more episodes a step (prompts_per_step)"
    yield from _disagreement(view, sampler)
    last = view.recent[-1]
    if last.sync_difference is not None and not last.sync_difference < SYNC_DIFFERENCE:
        yield view.finding(
            "mismatch",
            "sync_difference",
            evidence=f"a token's logprob differs by {last.sync_difference:.2f} nats between sampler and trainer",
            threshold=f"{SYNC_DIFFERENCE:g} nats on one token: more than rounding, so the weights differ",
            remedy=sampler,
        )
    drift = view.middle("ratio_drift")
    if view.count >= RECENT and drift >= RATIO_DRIFT:
        yield view.finding(
            "mismatch",
            "ratio_drift",
            evidence=(
                f"before the last update of a step the policy is {drift:.2f} nats a token from the one that sampled it"
            ),
            threshold=f"{RATIO_DRIFT}: the average token stands at the usual limit of clipping, a ratio of 1.2",
            remedy=reuse,
        )
    clipped = view.last("clipped")
    if view.count >= RECENT and clipped >= CLIPPED:
        yield view.finding(
            "mismatch",
            "clipped",
            evidence=f"the ratio of {clipped:.0%} of the tokens is clipped (mean of {RECENT} steps)",
            threshold=f"{CLIPPED:.0%}: a clipped token has no gradient, and the usual share is under 20%",
            remedy=reuse,
        )


def _disagreement(view: View, remedy: str) -> Iterator[Finding]:
    found = numbers(view.recent, "mismatch")
    if not found:
        return
    now = fmean(found[-FEW:])
    if now >= MISMATCH:
        yield view.finding(
            "mismatch",
            "logprobs",
            evidence=f"logprobs of sampler and trainer differ by {now:.3f} nats a token on average",
            threshold=f"{MISMATCH} nats a token: rounding in bfloat16 gives 0.005 to 0.02",
            remedy=remedy,
        )
    first = numbers(view.start, "mismatch")[:1]
    if first and now >= max(MISMATCH_GROWTH * first[0], SMALLEST_MISMATCH):
        yield view.finding(
            "mismatch",
            "growing",
            evidence=(
                f"logprobs of sampler and trainer differed by {first[0]:.1e} nats a token at first and by {now:.1e} now"
            ),
            threshold=(
                f"{MISMATCH_GROWTH:g} times the first measurement: rounding does not grow, weights that stay behind do"
            ),
            remedy=remedy,
        )
