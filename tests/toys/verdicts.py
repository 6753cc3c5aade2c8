"""Episodes that are nothing but a task and a verdict."""

from __future__ import annotations

from offline_arl.environments.protocol import Task
from offline_arl.rollouts.episode import Episode
from offline_arl.trajectories.schema import Outcome, Source, Trajectory


def verdict(task: Task, success: bool | None) -> Episode:
    """An episode without steps; success None: nobody judged it."""
    outcome = Outcome() if success is None else Outcome("scored", success=success, score=float(success))
    trajectory = Trajectory(f"of-{task.task_id}", [], Source("toy"), task_id=task.task_id, outcome=outcome)
    return Episode(
        task, 0, trajectory, segments=[], prompt_length=0, rewards=[], n_steps=0, n_tool_calls=0, n_invalid=0
    )
