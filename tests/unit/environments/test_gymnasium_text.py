"""Environments that nobody here wrote, as text: what is measured is what dynamic programming says."""

from __future__ import annotations

import numpy as np
import pytest

from offline_arl import optional
from offline_arl.environments import load
from offline_arl.environments.gymnasium_text import GymnasiumFamily
from offline_arl.environments.probes.dynamic_programming import FloatArray
from offline_arl.environments.probes.family import tabular
from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import text_message

pytestmark = pytest.mark.skipif(
    not optional.available("gymnasium"), reason="Gymnasium is not installed: pip install 'offline_arl[environments]'"
)


def returns(family: GymnasiumFamily, policy: FloatArray, episodes: int) -> np.ndarray:
    """Returns of a tabular policy that reads states and writes actions as text."""
    assert family.mdp is not None
    act = tabular(family.mdp.states, family.mdp.actions, policy)
    generator = np.random.default_rng(0)
    environment = family.make()
    found = []
    for task in family.tasks("test", episodes, seed=0):
        state = environment.reset(task).messages[-1].text
        total, over = 0.0, False
        while not over:
            result = environment.step(text_message("assistant", act([state], generator)))
            total += result.reward
            over = result.terminated or result.truncated
            state = result.messages[-1].text if result.messages else ""
        assert environment.outcome().score == pytest.approx(total)
        found.append(total)
    return np.array(found)


@pytest.mark.parametrize(
    ("name", "optimum"),
    [("FrozenLake-v1", 0.74), ("CliffWalking-v1", -13.0), ("Taxi-v4", 7.93)],
)
def test_the_best_policy_earns_the_exact_optimum(name: str, optimum: float) -> None:
    family = load(f"gym:{name}")
    assert isinstance(family, GymnasiumFamily)
    exact = family.expected_return()
    assert exact == pytest.approx(optimum, abs=0.01)
    # The policy that does not look at the clock loses next to nothing.
    assert family.expected_return(family.best_policy()) == pytest.approx(exact, abs=0.01)
    measured = returns(family, family.best_policy(), 400)
    error = measured.std() / np.sqrt(len(measured))
    assert measured.mean() == pytest.approx(exact, abs=4 * error + 0.01)


def test_a_random_walk_earns_what_it_should() -> None:
    family = GymnasiumFamily("FrozenLake-v1")
    measured = returns(family, family.uniform_policy(), 1000)
    exact = family.expected_return(family.uniform_policy())
    assert exact < 0.02
    assert measured.mean() == pytest.approx(exact, abs=4 * measured.std() / np.sqrt(1000) + 1e-3)


def test_states_are_told_in_words_and_words_that_are_no_actions_change_nothing() -> None:
    environment = GymnasiumFamily("FrozenLake-v1", is_slippery=False).make()
    task = GymnasiumFamily("FrozenLake-v1").tasks("train", 1, seed=0)[0]
    assert environment.reset(task).messages[-1].text == "PFFF\nFHFH\nFFFH\nHFFG"
    stayed = environment.step(text_message("assistant", "jump"))
    assert (stayed.messages[-1].text, stayed.reward, stayed.info["invalid_actions"]) == (
        "PFFF\nFHFH\nFFFH\nHFFG", 0.0, 1,
    )  # fmt: skip
    for word in ("down", "Down", " down "):
        result = environment.step(text_message("assistant", word))
    assert result.terminated  # row 3 column 0 is a hole
    assert environment.outcome().success is False


def test_success_and_time_limits() -> None:
    family = GymnasiumFamily("FrozenLake-v1", is_slippery=False, max_steps=7)
    environment = family.make()
    environment.reset(family.tasks("train", 1, seed=0)[0])
    for word in ("down", "down", "right", "right", "down", "right"):
        result = environment.step(text_message("assistant", word))
    assert (result.terminated, result.reward, environment.outcome().success) == (True, 1.0, True)
    environment.reset(family.tasks("train", 1, seed=0)[0])
    for _ in range(7):
        result = environment.step(text_message("assistant", "left"))
    assert (result.truncated, result.stop_reason) == (True, "max_steps")


def test_any_environment_with_discrete_actions_has_numbers_for_words() -> None:
    family = GymnasiumFamily("CartPole-v1")
    environment = family.make()
    start = environment.reset(family.tasks("train", 1, seed=0)[0])
    assert "action 0, action 1" in start.messages[0].text
    assert start.messages[-1].text.startswith("state [")
    assert environment.step(text_message("assistant", "action 1")).reward == 1.0
    assert family.mdp is None
    with pytest.raises(UsageError, match="no table"):
        family.expected_return()


def test_tasks_are_seeds_that_no_two_splits_share_and_logs_can_be_written() -> None:
    family = GymnasiumFamily("Taxi-v4")
    seeds = [{task.payload["seed"] for task in family.tasks(split, 300, seed=0)} for split in ("train", "test")]
    assert not seeds[0] & seeds[1]
    records = list(family.records(20, seed=0))
    assert {record["agent"] for record in records} == {"random_0.5_optimal"}
    assert all(record["messages"][0]["role"] == "system" for record in records)


def test_what_cannot_be_words_is_told() -> None:
    with pytest.raises(UsageError, match="discrete"):
        GymnasiumFamily("Pendulum-v1")
    with pytest.raises(UsageError, match="NoSuch"):
        load("gym:NoSuch-v0")
