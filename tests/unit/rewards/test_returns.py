"""Returns, against the definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_arl.rewards.returns import discounted_return, reward_to_go

rewards_lists = st.lists(st.floats(-10, 10), max_size=30)


@given(rewards_lists, st.floats(0, 1))
def test_reward_to_go_is_the_sum_of_what_follows(rewards: list[float], discount: float) -> None:
    expected = [
        sum(discount ** (later - step) * rewards[later] for later in range(step, len(rewards)))
        for step in range(len(rewards))
    ]
    assert reward_to_go(rewards, discount) == pytest.approx(expected, abs=1e-9)
    assert discounted_return(rewards, discount) == pytest.approx(expected[0] if expected else 0.0, abs=1e-9)


def test_the_reward_of_a_step_is_part_of_its_return() -> None:
    """The off-by-one to avoid: the return of the last step is its reward, not 0."""
    assert reward_to_go([1.0, 2.0, 4.0]) == [7.0, 6.0, 4.0]
    assert reward_to_go([1.0, 2.0, 4.0], discount=0.0) == [1.0, 2.0, 4.0]


def test_inputs_are_left_as_they_are() -> None:
    rewards = [1.0, 2.0]
    reward_to_go(rewards)
    assert rewards == [1.0, 2.0]
