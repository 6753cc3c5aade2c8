"""LMRL-Gym's maze: its map, its rewards, its published returns."""

from __future__ import annotations

import numpy as np
import pytest

from offline_arl.environments.probes.double_t_maze import (
    MAZE,
    STARTS,
    DoubleTMaze,
    DoubleTMazeFamily,
    expected_returns,
    family,
    mdp,
    mixed_policy,
)
from offline_arl.environments.probes.dynamic_programming import action_values, state_values
from offline_arl.environments.protocol import Task
from offline_arl.trajectories.schema import text_message


def task(start: str) -> Task:
    return next(item for item in family.tasks("test", 25, seed=0) if item.payload["start"] == start)


def test_the_map() -> None:
    assert len(MAZE.cells) == 26
    assert len(STARTS) == 25
    assert [MAZE.moved("G5", action) for action in ("left", "right", "up", "down")] == ["F5", "H5", "G5", "G6"]
    assert MAZE.moved("F1", "right") == "F1"  # the arms are not joined at the top


def test_the_best_return_is_the_published_one() -> None:
    returns = expected_returns()
    assert returns.mean() == pytest.approx(-6.84, abs=1e-12)
    assert dict(zip(STARTS, returns, strict=True))["B1"] == -11
    without_limit = state_values(action_values(mdp(), discount=1.0))
    np.testing.assert_allclose(returns, without_limit)  # the time limit binds no start


def test_the_returns_of_random_and_nearly_random_play_are_the_published_ones() -> None:
    assert expected_returns(mixed_policy(0.0)).mean() == pytest.approx(-85.9, abs=0.01)
    assert expected_returns(mixed_policy(0.02)).mean() == pytest.approx(-82.38, abs=0.01)
    assert expected_returns(mixed_policy(0.04)).mean() == pytest.approx(-78.35, abs=0.01)
    assert expected_returns(mixed_policy(1.0)).mean() == pytest.approx(-6.84)


@pytest.mark.parametrize(("optimal_share", "expected"), [(0.02, -82.38), (0.5, None)])
def test_the_logs_return_what_their_agent_is_worth(optimal_share: float, expected: float | None) -> None:
    exact = float(expected_returns(mixed_policy(optimal_share)).mean())
    if expected is not None:
        assert exact == pytest.approx(expected, abs=0.01)
    returns = [
        record["outcome"]["score"] for record in DoubleTMazeFamily(optimal_share=optimal_share).records(400, seed=0)
    ]
    assert np.mean(returns) == pytest.approx(exact, abs=3 * np.std(returns) / 20)
    assert min(returns) >= -101


def test_rewards_of_a_way_to_the_goal() -> None:
    maze = DoubleTMaze()
    assert maze.reset(task("G5")).messages[1].text == "G5"
    rewards = []
    for action in ("left", " Right\n", "up", "jump", "down", "down", "down"):
        result = maze.step(text_message("assistant", action))
        rewards.append(result.reward)
        assert result.info == {"invalid_actions": int(action == "jump")}
    assert rewards == [-1, -1, -1, -4, -1, -1, 0]
    assert (result.terminated, result.truncated, result.stop_reason, result.messages) == (True, False, "goal", [])
    outcome = maze.outcome()
    assert (outcome.success, outcome.score, outcome.components) == (True, -9.0, {"return": -9.0})


def test_the_time_out_truncates_and_costs_one_more() -> None:
    maze = DoubleTMaze()
    maze.reset(task("B1"))
    rewards = [maze.step(text_message("assistant", "up")).reward for _ in range(99)]
    last = maze.step(text_message("assistant", "up"))
    assert set(rewards) == {-1.0}
    assert (last.reward, last.terminated, last.truncated, last.stop_reason) == (-2.0, False, True, "max_steps")
    assert last.messages[0].text == "B1"  # the state that value learning goes on from
    assert (maze.outcome().success, maze.outcome().score) == (False, -101.0)


def test_the_goal_at_the_last_step_is_no_time_out() -> None:
    maze = DoubleTMaze(max_steps=1)
    maze.reset(task("G7"))
    result = maze.step(text_message("assistant", "down"))
    assert (result.reward, result.terminated, result.truncated) == (0.0, True, False)
