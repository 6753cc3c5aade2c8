"""Environment bugs: harnesses that fail, task types that nobody can solve, returns that contradict verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from offline_arl.online.diagnosis.findings import Finding
from offline_arl.online.diagnosis.history import FEW, View
from offline_arl.online.records import StepRecord

# Share of the episodes of one step. Servers fail now and then; above a tenth the groups are no longer whole.
ERRORS = 0.1
TYPE_ERRORS = 8  # episodes of one task type that all failed in the harness, while others did not
# Groups of one task type without a single success while others succeed in half of their attempts. Of a type that
# succeeds in one attempt of ten, 20 groups of eight would all fail with a chance of 5e-8.
FAILED_GROUPS = 20
OTHERS_SUCCEED = 0.5
CONTRADICTIONS = 0.1  # share of judged episodes; penalties alone make a good attempt cost more than it earns rarely
IDLE_SUCCESSES = 0.02  # share of successes; more than a slip of the judge


def environment_bugs(view: View) -> Iterator[Finding]:
    """The environment fails, or its judge does not say what the policy did."""
    if not view.count:
        return
    yield from _errors(view)
    yield from _types(view)
    contradictions, idle = view.fact("contradictions", FEW), view.fact("idle_successes", FEW)
    if contradictions >= CONTRADICTIONS:
        yield view.finding(
            "environment",
            "contradictions",
            evidence=(
                f"the return of {contradictions:.0%} of the judged episodes contradicts the verdict: a success below "
                "0, or a failure above every success of its group"
            ),
            threshold=f"{CONTRADICTIONS:.0%} over {FEW} steps: the policy is paid for failing",
            remedy=(
                "mend the rewards or the judge: the outcome and what is paid at the end have to agree (`offline-arl "
                "env check`), and penalties have to stay below what success earns"
            ),
        )
    if idle >= IDLE_SUCCESSES:
        yield view.finding(
            "environment",
            "idle_successes",
            evidence=f"in {idle:.0%} of the successes the agent had said nothing and called nothing",
            threshold=f"{IDLE_SUCCESSES:.0%}: a task that is solved without an action teaches to do nothing",
            remedy=(
                "mend the judge, or leave out tasks whose initial state already counts as success (`offline-arl env "
                "check`)"
            ),
        )


def _errors(view: View) -> Iterator[Finding]:
    last, dead = view.recent[-1], view.dead_steps
    remedy = "look at the log of the rollouts for the exception; `offline-arl env check` plays the environment alone"
    if dead is not None and len(view.recent) >= dead and all(map(_failed, view.recent[-dead:])):
        yield view.finding(
            "environment",
            "always_failing",
            evidence=f"all episodes of the last {dead} steps failed for reasons of the harness",
            threshold=f"{dead} steps in a row (stop.dead_steps): there is nothing to learn from",
            remedy=remedy,
            severity="fatal",
        )
    if last.infrastructure_errors > ERRORS * last.n_episodes:
        yield view.finding(
            "environment",
            "infrastructure_errors",
            evidence=f"{last.infrastructure_errors} of {last.n_episodes} episodes failed for reasons of the harness",
            threshold=(
                f"{ERRORS:.0%} of the episodes of a step: groups are no longer whole, and what fails is rarely random"
            ),
            remedy=remedy,
        )


def _failed(record: StepRecord) -> bool:
    return record.infrastructure_errors == record.n_episodes > 0


def _types(view: View) -> Iterator[Finding]:
    counts: dict[str, list[int]] = {}
    for facts in view.facts:
        for name, added in facts.get("types", {}).items():
            counts[name] = [one + other for one, other in zip(counts.get(name, [0, 0, 0, 0]), added, strict=True)]
    for name, (groups, judged, successes, errors) in counts.items():
        other_judged, other_successes, other_errors = _others(counts, name)
        if errors >= TYPE_ERRORS and judged == 0 and other_judged > other_errors:
            yield view.finding(
                "environment",
                f"failing_type:{name}",
                evidence=(
                    f"all {errors} episodes of task type {name} failed for reasons of the harness; those of other "
                    "types did not"
                ),
                threshold=f"{TYPE_ERRORS} episodes without an exception from the rule",
                remedy="look at the log of the rollouts for the exception; leave the task type out until it is mended",
            )
        if groups >= FAILED_GROUPS and judged and not successes and other_judged:
            rate = other_successes / other_judged
            if rate >= OTHERS_SUCCEED:
                yield view.finding(
                    "environment",
                    f"unsolved_type:{name}",
                    evidence=(
                        f"no attempt of {judged} at {groups} tasks of type {name} succeeded; others succeed in "
                        f"{rate:.0%}"
                    ),
                    threshold=f"{FAILED_GROUPS} groups without a success: a type that is only hard would show one",
                    remedy=(
                        "play one by hand: its judge, its tools or its demonstrations are likely wrong (`offline-arl "
                        "env check`); if it is only hard, let a curriculum leave it for later (levels)"
                    ),
                )


def _others(counts: Mapping[str, list[int]], name: str) -> tuple[int, int, int]:
    """(judged, successes, errors) of all other types."""
    rest = [found for other, found in counts.items() if other != name]
    judged, successes, errors = (sum(found[place] for found in rest) for place in (1, 2, 3))
    return judged, successes, errors
