"""The episodes of one step: groups of attempts, and others in place of groups that teach nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_arl.environments.protocol import Task
from offline_arl.errors import UsageError
from offline_arl.online.config import GrpoConfig
from offline_arl.online.curriculum import TaskSchedule
from offline_arl.online.policy_rollouts import PolicyRollouts
from offline_arl.online.processes import Processes
from offline_arl.online.rows import idle_groups
from offline_arl.rollouts.episode import Episode


class StepGroups(NamedTuple):
    """What a step has played, in all processes together."""

    episodes: list[Episode]  # that train, groups next to one another
    idle: NDArray[np.bool_]  # [G] groups of them that teach nothing
    replaced: list[Episode]  # of groups that others stand in for
    refilled: int  # groups

    @property
    def played(self) -> list[Episode]:
        """All episodes, groups next to one another."""
        return self.episodes + self.replaced


def play_groups(
    rollouts: PolicyRollouts, schedule: TaskSchedule, config: GrpoConfig, processes: Processes, *, step: int
) -> StepGroups:
    """Draw the tasks of a step and play them; every process plays its part and gets all episodes.

    Groups that teach nothing are replaced by groups of other tasks, at most `refill_rounds` times (dynamic sampling,
    Yu et al. 2025, arXiv:2503.14476); what they cost counts.

    Raises:
        UsageError: There are fewer tasks than the step attempts.
    """
    size = config.group_size

    def play(tasks: Sequence[Task]) -> list[list[Episode]]:
        episodes = rollouts.collect(
            processes.share(tasks), purpose="training", step=step, temperature=config.temperature, group_size=size
        )
        episodes = processes.gather(episodes)
        return [episodes[start : start + size] for start in range(0, len(episodes), size)]

    tasks = schedule.draw(config.prompts_per_step)
    seen = {task.task_id for task in tasks}
    groups = play(tasks)
    replaced: list[Episode] = []
    refilled = 0
    for _ in range(config.refill_rounds):
        idle = _idle(groups, config)
        places = np.flatnonzero(idle)
        try:
            others = schedule.draw(len(places), exclude=seen) if len(places) else []
        except UsageError:  # all tasks were attempted
            others = []
        if not others:
            break
        seen.update(task.task_id for task in others)
        refilled += len(others)
        for place, group in zip(places, play(others), strict=True):
            replaced += groups[place]
            groups[place] = group
    return StepGroups([episode for group in groups for episode in group], _idle(groups, config), replaced, refilled)


def success_by_type(episodes: Sequence[Episode], group_size: int) -> dict[str, list[float]]:
    """Mean success of each group, by task type; groups in which nothing was judged are left out."""
    found: dict[str, list[float]] = defaultdict(list)
    for start in range(0, len(episodes), group_size):
        verdicts = [e.success for e in episodes[start : start + group_size] if e.success is not None]
        if verdicts:
            found[episodes[start].task.task_type].append(float(np.mean(verdicts)))
    return found


def tasks_without_success(episodes: Sequence[Episode]) -> list[str]:
    """Tasks at which no attempt succeeded, in their order."""
    succeeded: dict[str, bool] = {}
    for episode in episodes:
        succeeded[episode.task.task_id] = succeeded.get(episode.task.task_id, False) or bool(episode.success)
    return [task_id for task_id, success in succeeded.items() if not success]


def _idle(groups: Sequence[list[Episode]], config: GrpoConfig) -> NDArray[np.bool_]:
    episodes = [episode for group in groups for episode in group]
    return idle_groups(episodes, group_size=config.group_size, by=config.group_gate)
