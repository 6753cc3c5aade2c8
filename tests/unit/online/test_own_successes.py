"""Own successes: which are kept, how they are drawn, that they survive an interruption."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from offline_arl.environments.protocol import Task
from offline_arl.online.own_successes import OwnSuccesses
from offline_arl.online.replay import chances_by_failure
from offline_arl.rollouts.episode import Episode
from offline_arl.trajectories.schema import Outcome, Source, Trajectory
from offline_arl.trajectories.segment import Segment

GROUP = 4


def episode(name: str, *, success: bool, says: int = 7, task_type: str = "x", status: str = "scored") -> Episode:
    """A prompt of one token and two sampled ones."""
    mask = np.array([False, True, True])
    segment = Segment(
        trajectory_id=name,
        token_ids=np.array([1, says, 2], dtype=np.int32),
        action_mask=mask,
        step_index=np.where(mask, 0, -1).astype(np.int32),
        fingerprint="f",
        logprobs=np.where(mask, -0.5, np.nan).astype(np.float32),
    )
    outcome = Outcome(status, success=success)  # type: ignore[arg-type]
    trajectory = Trajectory(name, [], Source("rollout"), task_type=task_type, outcome=outcome)
    return Episode(Task("t", task_type, {}), 0, trajectory, [segment], 1, [0.0], 1, 0, 0)


def group(successes: int, *, name: str = "a", task_type: str = "x") -> list[Episode]:
    """Attempts that all say something else; the first ones succeed."""
    return [
        episode(f"{name}{index}", success=index < successes, says=10 + index, task_type=task_type)
        for index in range(GROUP)
    ]


def kept(*groups: list[Episode], capacity: int = 100) -> OwnSuccesses:
    own = OwnSuccesses(capacity, seed=0)
    for episodes in groups:
        own.add(episodes, group_size=GROUP)
    return own


def names(own: OwnSuccesses) -> list[str]:
    return [row.trajectory_id for row in own]


def test_successes_of_groups_that_mostly_fail_are_kept() -> None:
    """1 and 2 of 4 are rare; 3 of 4 and 4 of 4 are not, and of no success there is nothing to keep."""
    assert names(kept(group(1, name="a"), group(2, name="b"))) == ["a0", "b0", "b1"]
    assert names(kept(group(3), group(4), group(0))) == []


def test_failures_of_the_harness_do_not_count_in_the_group() -> None:
    """1 success of 1 usable attempt is not rare."""
    broken = [episode(f"e{index}", success=False, status="infrastructure_error") for index in range(GROUP - 1)]
    assert names(kept([episode("a", success=True), *broken])) == []


def test_of_equal_attempts_one_is_kept() -> None:
    twice = [episode("a", success=True), episode("b", success=True), *group(0)[:2]]
    assert len(kept(twice)) == 1


def test_rows_are_cloned_with_weight_one() -> None:
    """Known logprobs would weigh down what the policy has moved away from, which is what has to come back."""
    (row,) = kept(group(1))
    assert row.logprobs is None
    assert (row.task_type, row.success) == ("x", True)
    assert row.action_mask.tolist() == [False, True, True]


def test_the_oldest_go_first() -> None:
    assert names(kept(*(group(1, name=name) for name in "abcd"), capacity=2)) == ["c0", "d0"]


def test_a_draw_has_no_row_twice_and_depends_on_its_arguments_alone() -> None:
    own = kept(*(group(1, name=name) for name in "abcdefgh"))
    drawn = [row.trajectory_id for row in own.draw(1, 0, 5)]
    assert len(set(drawn)) == 5
    assert drawn == [row.trajectory_id for row in own.draw(1, 0, 5)]
    assert len(own.draw(1, 0, 50)) == 8
    assert drawn != [row.trajectory_id for row in own.draw(2, 0, 5)]
    assert OwnSuccesses(4, seed=0).draw(0, 0, 3) == []


def test_types_that_fail_come_more_often() -> None:
    """Of two rows, one of a type that always fails, one of a type that never does: 1.05 to 0.05, so 21 of 22 draws."""
    own = kept(group(1, name="h", task_type="hard"), group(1, name="e", task_type="easy"))
    drawn = Counter(own.draw(step, 0, 1, {"hard": 1.0, "easy": 0.0})[0].task_type for step in range(220))
    assert drawn["hard"] > 190


def test_chances_sum_to_one_and_an_unknown_type_fails_as_the_mean() -> None:
    """Failures 0.8 and 0.2, mean 0.5; beside each 0.05: 0.85, 0.25 and 0.55 of 1.65."""
    chances = chances_by_failure(["a", "b", "c"], {"a": 0.8, "b": 0.2})
    assert chances is not None
    np.testing.assert_allclose(chances, np.array([0.85, 0.25, 0.55]) / 1.65)
    assert chances_by_failure(["a"], None) is None


def test_what_was_kept_comes_back_in_its_order(tmp_path: Path) -> None:
    own = kept(*(group(2, name=name) for name in "abc"))
    own.save(tmp_path / "own", fingerprint="f")
    back = kept(group(1, name="z"))
    back.restore(tmp_path / "own")
    assert names(back) == names(own)
    for row, again in zip(own, back, strict=True):
        np.testing.assert_array_equal(row.token_ids, again.token_ids)
        np.testing.assert_array_equal(row.step_index, again.step_index)
    assert [row.trajectory_id for row in back.draw(3, 1, 4)] == [row.trajectory_id for row in own.draw(3, 1, 4)]


def test_nothing_kept_is_saved_too(tmp_path: Path) -> None:
    kept().save(tmp_path / "own", fingerprint="f")
    back = kept(group(1))
    back.restore(tmp_path / "own")
    assert len(back) == 0
