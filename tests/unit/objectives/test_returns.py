"""What is particular to returns."""

from __future__ import annotations

import torch

from offline_arl import objectives
from offline_arl.rewards.returns import reward_to_go


def test_terminated_stops_the_bootstrap_and_truncated_does_not() -> None:
    """Two steps of reward 1, discount 0.5: 1 + 0.5 = 1.5 after an end, 1 + 0.5 * (1 + 0.5 * 8) = 3.5 after a cut."""
    rewards, after = torch.ones(1, 2), torch.tensor([[float("nan"), 8.0]])
    mask, never, at_last = torch.tensor([[True, True]]), torch.zeros(1, 2).bool(), torch.tensor([[False, True]])
    ended = objectives.monte_carlo_returns(rewards, after, at_last, never, mask, discount=0.5)
    cut_off = objectives.monte_carlo_returns(rewards, after, never, at_last, mask, discount=0.5)
    neither = objectives.monte_carlo_returns(rewards, after, never, never, mask, discount=0.5)
    assert ended.tolist() == [[1.5, 1.0]]
    assert cut_off.tolist() == neither.tolist() == [[3.5, 5.0]]
    both = objectives.monte_carlo_returns(rewards, after, at_last, at_last, mask, discount=0.5)
    assert both.tolist() == ended.tolist()


def test_returns_of_tokens_with_step_discounts_are_the_returns_of_their_steps() -> None:
    """Steps of three, one and two tokens; a reward stands at the last token of its step."""
    steps = torch.tensor([[-1, 0, 0, 0, -1, -1, 1, 2, 2, -1]])
    mask = steps >= 0
    rewards = torch.tensor([[0.0, 0, 0, 1, 0, 0, -2, 0, 4, 0]])
    nothing, never = torch.zeros(1, 10), torch.zeros(1, 10, dtype=torch.bool)
    discounts = objectives.step_discounts(steps, mask, discount=0.9)
    tokens = objectives.monte_carlo_returns(rewards, nothing, never, never, mask, discount=discounts)
    by_step = [1 + 0.9 * (-2 + 0.9 * 4), -2 + 0.9 * 4, 4.0]
    expected = [by_step[step] if step >= 0 else 0.0 for step in steps[0].tolist()]
    torch.testing.assert_close(tokens, torch.tensor([expected]))


def test_returns_without_a_bootstrap_are_those_of_the_datasets() -> None:
    """`rewards.returns.reward_to_go`, which datasets are built with, takes what was logged for all there was."""
    rewards = [0.5, -1.0, 0.25, 2.0]
    nothing, never, always = torch.zeros(1, 4), torch.zeros(1, 4).bool(), torch.ones(1, 4).bool()
    tensor = torch.tensor([rewards])
    got = objectives.monte_carlo_returns(tensor, nothing, never, never, always, discount=0.5)
    assert got.tolist() == [reward_to_go(rewards, discount=0.5)]
