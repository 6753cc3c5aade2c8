"""Exact values against hand calculation and against enumeration of every policy and every path."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from offline_arl.environments.probes.dynamic_programming import (
    TabularMDP,
    action_values,
    greedy_policy,
    start_values,
    state_values,
    timed_action_values,
    uniform_policy,
)
from offline_arl.errors import DataError, UsageError

Array = NDArray[np.float64]


def drawn_mdp(seed: int, *, states: int = 2, actions: int = 2) -> TabularMDP:
    generator = np.random.default_rng(seed)
    transitions = generator.dirichlet(np.ones(states + 1), size=(states, actions))[:, :, :states]  # the rest ends
    names = [str(number) for number in range(max(states, actions))]
    return TabularMDP(
        tuple(names[:states]), tuple(names[:actions]), transitions, generator.normal(size=(states, actions))
    )


def enumerated_value(mdp: TabularMDP, policy: Array, start: int, *, discount: float, final_values: Array) -> float:
    """The sum over all paths of probability times return; `policy` is [H, S, A]."""
    total = 0.0
    paths = [(1.0, 0.0, start)]  # probability, return, state
    for time, decisions in enumerate(policy):
        extended = []
        for (probability, so_far, state), action in product(paths, range(len(mdp.actions))):
            chance = probability * decisions[state, action]
            earned = so_far + discount**time * mdp.rewards[state, action]
            onward = mdp.transitions[state, action]
            total += chance * (1 - onward.sum()) * earned
            extended += [(chance * share, earned, following) for following, share in enumerate(onward)]
        paths = extended
    return total + sum(
        probability * (earned + discount ** len(policy) * final_values[state]) for probability, earned, state in paths
    )


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10_000), st.sampled_from([1.0, 0.9]))
def test_timed_values_are_the_best_of_all_policies_enumerated(seed: int, discount: float) -> None:
    mdp = drawn_mdp(seed)
    final_values = np.random.default_rng(seed + 1).normal(size=2)
    found = start_values(mdp, horizon=2, discount=discount, final_values=final_values)
    for start in range(2):
        values = [
            enumerated_value(
                mdp, np.eye(2)[np.reshape(choices, (2, 2))], start, discount=discount, final_values=final_values
            )
            for choices in product(range(2), repeat=4)  # an action for each time and state
        ]
        assert found[start] == pytest.approx(max(values), abs=1e-12)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10_000))
def test_the_value_of_a_policy_is_the_mean_over_all_its_paths(seed: int) -> None:
    mdp = drawn_mdp(seed)
    policy = np.random.default_rng(seed + 1).dirichlet(np.ones(2), size=(3, 2))  # looks at the time
    found = start_values(mdp, policy, horizon=3, discount=0.8)
    for start in range(2):
        expected = enumerated_value(mdp, policy, start, discount=0.8, final_values=np.zeros(2))
        assert found[start] == pytest.approx(expected, abs=1e-12)


def chain() -> TabularMDP:
    """Two states; "on" moves from 0 to 1 and from 1 to the end, paying 0 and 1; "stay" stays and pays 0.2."""
    return TabularMDP.deterministic(
        ["0", "1"], ["on", "stay"], np.array([[1, 0], [-1, 1]]), np.array([[0.0, 0.2], [1.0, 0.2]])
    )


def test_values_without_a_limit_by_hand() -> None:
    """Discount 0.5. Q(1, on) = 1, the best from 1, as staying forever gives 0.4; Q(0, on) = 0.5 and
    Q(0, stay) = 0.2 + 0.5 * 0.5 = 0.45; Q(1, stay) = 0.2 + 0.5 * 1 = 0.7.
    """
    table = action_values(chain(), discount=0.5)
    np.testing.assert_allclose(table, [[0.5, 0.45], [1.0, 0.7]], atol=1e-12)
    np.testing.assert_array_equal(greedy_policy(table), [[1, 0], [1, 0]])
    np.testing.assert_allclose(state_values(table, uniform_policy(chain())), [0.475, 0.85], atol=1e-12)


def test_the_value_of_a_policy_without_a_limit_by_hand() -> None:
    """The policy that stays forever at discount 0.5 is worth 0.2 / (1 - 0.5) = 0.4 in both states."""
    stay = np.array([[0.0, 1.0], [0.0, 1.0]])
    np.testing.assert_allclose(action_values(chain(), stay, discount=0.5), [[0.2, 0.4], [1.0, 0.4]], atol=1e-12)


def test_a_long_limit_comes_to_what_no_limit_gives() -> None:
    mdp = drawn_mdp(3, states=4, actions=3)
    policy = np.random.default_rng(4).dirichlet(np.ones(3), size=4)
    for chosen in (None, policy):
        timed = timed_action_values(mdp, chosen, horizon=300, discount=0.9)
        np.testing.assert_allclose(timed[0], action_values(mdp, chosen, discount=0.9), atol=1e-10)
        assert np.abs(timed[-1] - mdp.rewards).max() < 1e-12  # the last decision has nothing behind it


def test_what_has_no_value_is_refused() -> None:
    with pytest.raises(DataError, match="discount below 1"):
        action_values(chain(), discount=1.0, max_sweeps=50)  # staying pays forever
    with pytest.raises(DataError, match="never ends"):
        action_values(chain(), np.array([[0.0, 1.0], [0.0, 1.0]]), discount=1.0)
    with pytest.raises(UsageError, match="horizon"):
        timed_action_values(chain(), horizon=0, discount=1.0)


def test_tables_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="do not fit"):
        TabularMDP(("0",), ("a", "b"), np.zeros((1, 2, 1)), np.zeros((1, 1)))
    with pytest.raises(UsageError, match="probabilities"):
        TabularMDP(("0",), ("a",), np.full((1, 1, 1), 1.5), np.zeros((1, 1)))
    with pytest.raises(UsageError, match="probabilities"):
        TabularMDP(("0",), ("a",), np.full((1, 1, 1), -0.5), np.zeros((1, 1)))
