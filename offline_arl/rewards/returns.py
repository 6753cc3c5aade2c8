"""Returns: sums of rewards, from each step on.

Index t of every list is step t, and the reward of step t is what arrives before step t + 1, so the return of
step t includes the reward of step t.
"""

from __future__ import annotations

from collections.abc import Sequence


def reward_to_go(rewards: Sequence[float], discount: float = 1.0) -> list[float]:
    """The discounted sum of rewards from each step on: G[t] = rewards[t] + discount * G[t + 1].

    Args:
        rewards: One reward a step.
        discount: Between 0 and 1, per step.

    Returns:
        One return a step; the last equals the last reward. Empty for no rewards.

    >>> reward_to_go([0.0, -0.5, 1.0])
    [0.5, 0.5, 1.0]
    >>> reward_to_go([0.0, 0.0, 1.0], discount=0.5)
    [0.25, 0.5, 1.0]
    """
    returns = [0.0] * len(rewards)
    following = 0.0
    for step in reversed(range(len(rewards))):
        following = rewards[step] + discount * following
        returns[step] = following
    return returns


def discounted_return(rewards: Sequence[float], discount: float = 1.0) -> float:
    """The return of the first step, sum of discount ** t * rewards[t]; 0.0 for no rewards.

    >>> discounted_return([1.0, 1.0, 1.0], discount=0.5)
    1.75
    """
    return reward_to_go(rewards, discount)[0] if rewards else 0.0
