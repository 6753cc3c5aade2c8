"""Reward variance near zero: groups whose attempts are all worth the same give no gradient."""

from __future__ import annotations

from collections.abc import Iterator

from offline_arl.online.diagnosis.findings import Finding
from offline_arl.online.diagnosis.history import RECENT, View, numbers

# At 0.9 nine of ten episodes are sampled for nothing; runs that learn well end at 0.8 to 0.85.
IDLE_SHARE = 0.9
FEW_EPISODES = 64  # below, a step has too few groups, and twice as many steps are averaged
# Of the mean return, at least 1: returns that differ by less are the same, and dividing by it would amplify rounding.
EQUAL_RETURNS = 1e-4


def reward_variance(view: View) -> Iterator[Finding]:
    """Groups teach nothing although tasks are left to solve.

    Nothing is said of steps in which most episodes failed for reasons of the harness: those are the environment's.
    """
    if not view.count or not view.unsolved or _harness_failed(view):
        return
    dead = view.dead_steps
    if dead is not None and len(view.recent) >= dead and _is_silent(view, dead):
        yield view.finding(
            "reward_variance",
            "no_signal",
            evidence=(
                f"no group of the last {dead} steps had attempts of different worth; sampled success is "
                f"{_success(view)}"
            ),
            threshold=f"{dead} steps in a row (stop.dead_steps): nothing but the KL term has moved the policy since",
            remedy=_remedy(view),
            severity="fatal",
        )
    steps = RECENT if view.recent[-1].n_episodes >= FEW_EPISODES else 2 * RECENT
    if view.count < steps:
        return
    idle = view.last("idle_groups", steps)
    if idle >= IDLE_SHARE:
        yield view.finding(
            "reward_variance",
            "idle_groups",
            evidence=(
                f"{idle:.0%} of the groups of the last {steps} steps had attempts of equal worth; sampled success is "
                f"{_success(view)}"
            ),
            threshold=(
                f"{IDLE_SHARE:.0%} over {steps} steps: runs that learn stay below 85%, and above nearly all sampling "
                "is wasted"
            ),
            remedy=_remedy(view),
        )
    elif _is_paid_alike(view, steps):
        yield view.finding(
            "reward_variance",
            "equal_returns",
            evidence=(
                f"all attempts of the last {steps} steps have the return {view.last('mean_return', steps):.3g}, "
                f"although only {idle:.0%} of the groups agree in outcome"
            ),
            threshold=(
                f"{EQUAL_RETURNS:.0e} of the mean return: advantages come from returns, and these hold no difference"
            ),
            remedy="let success pay: the environment's rewards have to depend on the outcome that it judges",
        )


def _is_silent(view: View, steps: int) -> bool:
    return all(record.idle_groups >= 1 for record in view.recent[-steps:]) or _is_paid_alike(view, steps)


def _is_paid_alike(view: View, steps: int) -> bool:
    """Whether every attempt has the same return. Where only those of a group have, a critic can still tell them."""
    recent = view.recent[-steps:]
    means = [record.mean_return for record in recent]
    smallest = EQUAL_RETURNS * max(1.0, abs(means[-1]))
    return max(means) - min(means) <= smallest and all(record.return_spread <= smallest for record in recent)


def _harness_failed(view: View) -> bool:
    recent = view.recent[-RECENT:]
    return 2 * sum(record.infrastructure_errors for record in recent) > sum(record.n_episodes for record in recent)


def _success(view: View) -> str:
    found = numbers(view.recent[-RECENT:], "success")
    return f"{view.last('success'):.2f}" if found else "unknown, since nothing was judged"


def _remedy(view: View) -> str:
    """What helps, of what the training does not do already."""
    success = view.last("success")
    setup = view.setup
    levels = None if setup is None else setup.curriculum_levels
    if success <= 0.05:
        easier = "curriculum with levels" if levels is None else f"more curriculum.levels than {levels}"
        return (
            f"start from a better policy (more or filtered cloning) or from easier tasks ({easier}); "
            "more attempts a task (group_size) find rare successes"
        )
    if levels is None:
        tasks = "draw tasks of intermediate difficulty (curriculum)"
    elif success >= 0.5:
        tasks = "give harder tasks, since the curriculum finds few of intermediate difficulty among these"
    else:
        tasks = (
            "give easier tasks, since the curriculum finds few of intermediate difficulty among these, or raise "
            f"curriculum.levels (now {levels}), which begin with the easiest"
        )
    refill = "replace idle groups (refill_rounds)"
    if setup is not None and setup.refill_rounds:
        refill = f"replace more idle groups (refill_rounds, now {setup.refill_rounds})"
    drawn = f"{tasks}, {refill}, raise group_size or temperature"
    if view.last("return_spread") > EQUAL_RETURNS:
        gate = "; where returns tell more than outcomes, set group_gate: return"
        return drawn + (gate if setup is None or setup.group_gate == "outcome" else "")
    return f"look whether the judge tells attempts apart; then {drawn}"
