"""Episodes as TRL rows: what is masked, what is left out, which groups teach."""

from __future__ import annotations

import numpy as np
import pytest

from offline_arl.environments.protocol import Task
from offline_arl.online.advantages import token_advantages, training_returns
from offline_arl.online.config import GrpoConfig, LengthConfig, TurnAdvantageConfig
from offline_arl.online.rows import idle_groups, rollout_rows
from offline_arl.rollouts.episode import Episode
from offline_arl.trajectories.schema import Outcome, Source, Trajectory
from offline_arl.trajectories.segment import Segment

FILLER = 1


def episode(
    *,
    success: bool | None = None,
    score: float | None = None,
    rewards: tuple[float, ...] = (0.0,),
    status: str = "scored",
    steps: int = 2,
) -> Episode:
    """Two prompt tokens, two sampled ones (step 0), one of the environment, one sampled (step 1)."""
    mask = [False, False, True, True, False, True] if steps else [False, False]
    token_ids = np.arange(10, 10 + len(mask), dtype=np.int32)
    segment = Segment(
        trajectory_id="t",
        token_ids=token_ids,
        action_mask=np.array(mask),
        step_index=np.where(mask, np.arange(len(mask)) // 5, -1).astype(np.int32),
        fingerprint="f",
        logprobs=np.where(mask, -0.5, np.nan).astype(np.float32),
    )
    outcome = Outcome(status, success=success, score=score)  # type: ignore[arg-type]
    trajectory = Trajectory("t", [], Source("rollout"), outcome=outcome)
    return Episode(Task("t", "x", {}), 0, trajectory, [segment], 2, list(rewards), steps, 0, 0)


def test_a_row_masks_what_the_environment_said() -> None:
    rows = rollout_rows(
        [episode(success=True, rewards=(0.0, 1.0)), episode(success=False)],
        [1.0, 0.0],
        idle=np.array([False]),
        group_size=2,
        filler_token=FILLER,
    )
    assert rows.prompt_ids == [[10, 11]] * 2
    assert rows.completion_ids == [[12, 13, 14, 15]] * 2
    assert rows.env_mask == [[1, 1, 0, 1]] * 2
    assert rows.logprobs == [[-0.5, -0.5, 0.0, -0.5]] * 2
    assert rows.episode_return == [1.0, 0.0]
    assert set(rows.as_output()) == {"prompt_ids", "completion_ids", "logprobs", "env_mask", "episode_return"}


def test_an_idle_group_becomes_masked_tokens_with_its_returns() -> None:
    rows = rollout_rows(
        [episode(success=True, rewards=(0.9,))] * 2, [0.9, 0.9], idle=np.array([True]), group_size=2, filler_token=1
    )
    assert rows.completion_ids == [[FILLER]] * 2
    assert rows.env_mask == [[0]] * 2
    assert rows.episode_return == [0.9, 0.9]


def test_failures_of_the_harness_and_empty_episodes_have_no_return() -> None:
    broken = episode(status="infrastructure_error", rewards=(1.0,))
    unstarted = episode(success=False, steps=0, rewards=())
    returns = training_returns([broken, unstarted], None)
    rows = rollout_rows([broken, unstarted], returns, idle=np.array([False]), group_size=2, filler_token=FILLER)
    assert rows.completion_ids == [[FILLER], [FILLER]]
    assert rows.env_mask == [[0], [0]]
    assert rows.episode_return == [None, None]
    assert rows.prompt_ids == [[10, 11], [10, 11]]


def idle(*episodes: Episode, by: str = "outcome") -> bool:
    (found,) = idle_groups(episodes, group_size=len(episodes), by=by)  # type: ignore[arg-type]
    return bool(found)


def test_groups_that_differ_in_penalties_alone_teach_nothing() -> None:
    failures = [episode(success=False, rewards=(0.0,)), episode(success=False, rewards=(-0.05,))]
    assert idle(*failures)
    assert not idle(*failures, by="return")
    assert not idle(episode(success=True, rewards=(1.0,)), episode(success=False))


def test_scores_and_returns_stand_in_for_a_missing_verdict() -> None:
    assert idle(episode(score=0.5), episode(score=0.5, rewards=(-0.1,)))
    assert not idle(episode(score=0.5), episode(score=0.6))
    assert not idle(episode(status="unscored", rewards=(0.3,)), episode(status="unscored", rewards=(0.4,)))


def test_the_harness_does_not_make_a_group_differ() -> None:
    broken = episode(status="infrastructure_error")
    assert idle(episode(success=True, rewards=(1.0,)), episode(success=True, rewards=(1.0,)), broken)
    assert idle(episode(success=True, rewards=(1.0,)), broken)
    assert not idle(episode(success=True, rewards=(1.0,)), episode(success=False), broken)


@pytest.mark.parametrize("group_size", [2, 4])
def test_groups_are_neighbors(group_size: int) -> None:
    outcomes = [True, False, True, True, False, False, True, True]
    episodes = [episode(success=value, rewards=(float(value),)) for value in outcomes]
    expected = {2: [False, True, True, True], 4: [False, False]}[group_size]
    assert idle_groups(episodes, group_size=group_size, by="outcome").tolist() == expected


def test_groups_of_a_critic_all_teach() -> None:
    assert not idle(episode(success=True), episode(success=True), by="none")
    assert idle(episode(success=True), episode(status="infrastructure_error"), by="none")


def test_long_episodes_pay_for_their_length() -> None:
    """Three sampled tokens: half of what lies between free and limit costs half of the penalty, never more than it."""
    costs = [LengthConfig(free=free, limit=limit, penalty=0.4) for free, limit in ((1, 5), (2, 3), (1, 2), (3, 9))]
    sampled = episode(success=True, rewards=(0.0, 1.0))
    assert [training_returns([sampled], cost)[0] for cost in costs] == pytest.approx([0.8, 0.6, 0.6, 1.0])


GROUP = [episode(success=True, rewards=(0.0, 1.0)), episode(success=False, rewards=(0.0, 0.0))]


def test_without_a_critic_all_tokens_of_an_episode_have_its_advantage() -> None:
    """Returns 1 and 0: advantages of 1/2 without a deviation, on the sampled tokens alone."""
    config = GrpoConfig(group_size=2, deviation="none")
    found = token_advantages(GROUP, training_returns(GROUP, None), config)
    assert [row.tolist() for row in found] == [[0.5, 0.5, 0.0, 0.5], [-0.5, -0.5, 0.0, -0.5]]


def test_a_critic_tells_the_steps_of_an_episode_apart() -> None:
    """Advantages of the turns 3, 1 and -1, -1: their root mean square is sqrt(3), and half of each is taken."""
    config = GrpoConfig(group_size=2, deviation="none", turn_advantages=TurnAdvantageConfig(weight=0.5))
    turns = [np.array([3.0, 1.0]), np.array([-1.0, -1.0])]
    first, second = token_advantages(GROUP, training_returns(GROUP, None), config, turn_advantages=turns)
    unit = 0.5 / np.sqrt(3)
    assert first.tolist() == pytest.approx([0.25 + 3 * unit, 0.25 + 3 * unit, 0.0, 0.25 + unit])
    assert second.tolist() == pytest.approx([-0.25 - unit, -0.25 - unit, 0.0, -0.25 - unit])


def test_a_step_that_the_environment_did_not_take_has_no_advantage_of_its_own() -> None:
    config = GrpoConfig(group_size=2, deviation="none", turn_advantages=TurnAdvantageConfig(weight=1.0))
    cut = [episode(success=True, rewards=(1.0,)), episode(success=False, rewards=(0.0,))]
    first, _ = token_advantages(
        cut, training_returns(cut, None), config, turn_advantages=[np.array([2.0]), np.array([-2.0])]
    )
    assert first.tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0])
