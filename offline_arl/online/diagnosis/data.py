"""Data quality: episodes that repeat themselves, say nothing, are not judged or belong to a handful of tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from offline_arl.online.diagnosis.drift import has_collapsed
from offline_arl.online.diagnosis.findings import Finding
from offline_arl.online.diagnosis.history import RECENT, View

# Share of groups whose attempts are all the same. Policies of short episodes reach 0.2 while they learn.
UNIFORM_GROUPS = 0.9
IDENTICAL_EPISODES = 0.99  # with as many idle groups: what is known where a run recorded no facts of its episodes
EMPTY_EPISODES = 0.1  # share; a policy that learned from logs of an agent says something
UNJUDGED = 0.1  # share; an attempt without a verdict counts as one of return 0
TASK_STEPS = 10
FEW_TASKS = 20  # in TASK_STEPS steps ...
TASK_DRAWS = 5  # ... each drawn as often: the policy learns their answers by heart
# Nats a token above the start, and twice the start: the policy forgets what the logs show to succeed. A policy that
# improves on its logs loses some tenths.
CLONING_RISE = 0.3


def data_quality(view: View) -> Iterator[Finding]:
    """The episodes, or the logged ones beside them, hold little to learn from."""
    if view.count >= RECENT and view.unsolved and not has_collapsed(view):  # else that is why attempts are alike
        yield from _repetition(view)
    yield from _shares(view)
    yield from _tasks(view)
    yield from _cloning(view)


def _repetition(view: View) -> Iterator[Finding]:
    uniform, identical = view.fact("uniform_groups"), view.last("identical_episodes")
    known = not math.isnan(uniform)
    is_repeated = (
        uniform >= UNIFORM_GROUPS
        if known
        else identical >= IDENTICAL_EPISODES and view.last("idle_groups") >= UNIFORM_GROUPS
    )
    if is_repeated:
        yield view.finding(
            "data_quality",
            "identical_episodes",
            evidence=(
                f"in {uniform:.0%} of the groups of the last {RECENT} steps all attempts are the same, token by token"
                if known
                else f"{identical:.0%} of the episodes of the last {RECENT} steps repeat another attempt token by token"
            ),
            threshold=(
                f"{UNIFORM_GROUPS:.0%} of groups: attempts that do not differ cannot be compared; runs that learn have "
                "under 20%"
            ),
            remedy=(
                "raise temperature; look whether the sampler ignores it or its seeds, and whether the warm start was "
                "cloned for too long"
            ),
        )


def _shares(view: View) -> Iterator[Finding]:
    empty, unjudged = view.fact("empty_episodes"), view.fact("unjudged")
    if empty >= EMPTY_EPISODES:
        yield view.finding(
            "data_quality",
            "empty_episodes",
            evidence=(
                f"in {empty:.0%} of the episodes of the last {RECENT} steps the agent said nothing and called nothing"
            ),
            threshold=f"{EMPTY_EPISODES:.0%}: an agent that was cloned from logs says something",
            remedy=(
                "look at an episode: a template that ends the turn at once, max_tokens_per_step or max_total_tokens "
                "that leave no room, or a penalty that makes silence the best answer"
            ),
        )
    if unjudged >= UNJUDGED:
        yield view.finding(
            "data_quality",
            "unjudged",
            evidence=f"{unjudged:.0%} of the episodes of the last {RECENT} steps have neither a verdict nor a score",
            threshold=f"{UNJUDGED:.0%}: their return is that of their penalties alone, so they count as failures",
            remedy=(
                "let the environment's outcome judge every attempt, and raise max_total_tokens where episodes are cut "
                "off before it can"
            ),
        )


def _tasks(view: View) -> Iterator[Finding]:
    listed = [facts.get("tasks") for facts in view.facts[-TASK_STEPS:]]
    if len(listed) < TASK_STEPS or None in listed:
        return
    draws = sum(len(tasks) for tasks in listed if tasks is not None)
    distinct = len({task for tasks in listed if tasks is not None for task in tasks})
    if distinct < FEW_TASKS and draws >= TASK_DRAWS * distinct:
        yield view.finding(
            "data_quality",
            "few_tasks",
            evidence=f"the last {TASK_STEPS} steps drew {distinct} different tasks, each {draws / distinct:.0f} times",
            threshold=f"fewer than {FEW_TASKS} tasks, each {TASK_DRAWS} times: their answers are learned by heart",
            remedy="give more training tasks (tasks), or raise curriculum.floor so that others come up",
        )


def _cloning(view: View) -> Iterator[Finding]:
    if not view.comparable:
        return
    before, now = view.first("cloning_loss"), view.last("cloning_loss")
    if now >= before + CLONING_RISE and now >= 2 * before:
        yield view.finding(
            "data_quality",
            "cloning_loss",
            evidence=f"the loss on logged successes rose from {before:.2f} to {now:.2f} nats a token",
            threshold=(
                f"{CLONING_RISE} nats above the start and twice as high: the policy forgets what the logs show to "
                "succeed"
            ),
            remedy=(
                "look whether the logged successes are of these tasks and this template; raise cloning.coefficient or "
                "kl_coefficient"
            ),
        )
