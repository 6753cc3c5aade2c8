"""Which successes are kept: distinct ones, the shortest or the most different."""

from __future__ import annotations

import numpy as np

from offline_arl.environments.protocol import Task
from offline_arl.rollouts.episode import Episode
from offline_arl.rollouts.rejection_sampling import kept_successes
from offline_arl.trajectories.schema import Outcome, Source, Trajectory
from offline_arl.trajectories.segment import Segment

PROMPT = [7, 7, 7]


def episode(task: str, sampled: list[int], *, success: bool | None = True, name: str = "") -> Episode:
    """One segment: a prompt and what was sampled."""
    tokens = np.array(PROMPT + sampled, dtype=np.int32)
    mask = np.arange(len(tokens)) >= len(PROMPT)
    segment = Segment(name, tokens, mask, np.where(mask, 0, -1).astype(np.int32), "toy")
    outcome = Outcome("scored", success=success) if success is not None else Outcome("infrastructure_error")
    return Episode(
        task=Task(task, "kind", None), attempt=0, trajectory=Trajectory(name, [], Source("test"), outcome=outcome),
        segments=[segment], prompt_length=3, rewards=[], n_steps=1, n_tool_calls=0, n_invalid=0,
    )  # fmt: skip


def names(episodes: list[Episode]) -> list[str]:
    return [item.trajectory.trajectory_id for item in episodes]


SAMPLED = [
    episode("one", [1, 2, 3, 4], name="a"),
    episode("one", [1, 2, 3, 4], name="the same as a"),
    episode("two", [5], success=False, name="a failure"),
    episode("one", [1, 2, 9], name="short"),
    episode("one", [8, 8, 8, 8, 8, 8], name="long and different"),
    episode("one", [1, 2, 3, 4, 4], name="nearly a"),
    episode("three", [5, 6], success=None, name="a crash"),
    episode("four", [5, 6], name="of another task"),
]


def test_failures_crashes_and_repetitions_are_left_out() -> None:
    kept = names(kept_successes(SAMPLED, per_task=None, prefer="shortest"))
    assert kept == ["a", "short", "long and different", "nearly a", "of another task"]


def test_the_shortest_are_kept() -> None:
    assert names(kept_successes(SAMPLED, per_task=1, prefer="shortest")) == ["short", "of another task"]
    assert names(kept_successes(SAMPLED, per_task=2, prefer="shortest")) == ["a", "short", "of another task"]


def test_diverse_ones_start_with_the_shortest_and_go_on_with_what_differs_most() -> None:
    kept = names(kept_successes(SAMPLED, per_task=2, prefer="diverse"))
    assert kept == ["short", "long and different", "of another task"]
    # "nearly a" is more like "a" than like "short", and "a" is no more like "short" than it.
    three = names(kept_successes(SAMPLED, per_task=3, prefer="diverse"))
    assert three == ["short", "long and different", "nearly a", "of another task"]


def test_equal_steps_behind_different_prompts_of_a_task_are_equal() -> None:
    """An environment may greet differently; what the policy did is the same."""
    one, other = episode("one", [1, 2], name="first"), episode("one", [1, 2], name="second")
    other.segments[0].token_ids[0] = 9
    assert names(kept_successes([one, other], per_task=None, prefer="shortest")) == ["first"]
