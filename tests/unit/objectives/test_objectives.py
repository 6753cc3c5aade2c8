"""What is particular to log-probabilities, weights, expectiles, targets and the reduction."""

from __future__ import annotations

import pytest
import torch

from offline_arl import objectives


def test_half_precision_logits_are_scored_in_float32() -> None:
    """bfloat16 has 8 bits of mantissa: log-softmax in it would be off by about 0.01 here."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(1, 3, 200, generator=generator) * 3).bfloat16()
    ids, mask = torch.tensor([[5, 7, 9]]), torch.tensor([[False, True, True]])
    got = objectives.token_logprobs(logits, ids, mask)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, objectives.token_logprobs(logits.double(), ids, mask).float())


def test_chunks_change_neither_values_nor_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 9, 6, generator=generator, dtype=torch.float64)
    ids = torch.randint(6, (2, 9), generator=generator)
    mask = torch.rand(2, 9, generator=generator) < 0.7
    results = []
    for chunk in (None, 3):
        leaf = logits.clone().requires_grad_()
        out = objectives.token_logprobs(leaf, ids, mask, chunk_tokens=chunk)
        out.square().sum().backward()
        results.append((out.detach(), leaf.grad))
    torch.testing.assert_close(results[0], results[1])


def test_logits_at_the_needed_positions_are_enough() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 4, generator=generator)
    ids = torch.randint(4, (2, 5), generator=generator)
    mask = torch.tensor([[True, True, False, False, True], [False, False, True, True, False]])
    selected = logits[objectives.predicting_mask(mask)]
    assert len(selected) == 4  # index 0 of the first row has nothing that predicts it
    assert torch.equal(
        objectives.selected_token_logprobs(selected, ids, mask), objectives.token_logprobs(logits, ids, mask)
    )


def test_shifting_the_tokens_shifts_the_logprobs() -> None:
    """The output at t - 1 belongs to the token at t: only logits[0, 1] may move the log-probability at index 2."""
    logits = torch.zeros(1, 4, 3, requires_grad=True)
    out = objectives.token_logprobs(logits, torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(out[0, 2], logits)
    assert gradient[0].abs().sum(dim=-1).nonzero().flatten().tolist() == [1]


def test_advantage_weights_cut_the_gradient_and_keep_the_dtype() -> None:
    advantages = torch.tensor([0.5, -2.0], dtype=torch.float64, requires_grad=True)
    weights = objectives.advantage_weights(advantages, inverse_temperature=2.0, max_weight=2.0)
    assert not weights.requires_grad
    assert weights.dtype == torch.float64
    torch.testing.assert_close(weights, torch.tensor([2.0, 0.018315638888734], dtype=torch.float64))  # cap, exp(-4)


def test_advantage_weights_survive_huge_advantages() -> None:
    weights = objectives.advantage_weights(torch.tensor([1e30, -1e30]), inverse_temperature=10.0, max_weight=100.0)
    assert weights.tolist() == [100.0, 0.0]


@pytest.mark.parametrize(("expectile", "optimum"), [(0.5, 2.0), (0.8, 5.0), (0.9, 90 / 13)])
def test_minimum_of_the_expectile_loss(expectile: float, optimum: float) -> None:
    """One Q of 10 among four of 0: tau (10 - v) = 4 (1 - tau) v, so v = 10 tau / (tau + 4 (1 - tau)).

    At 0.5 that is the mean, 2; at 0.8, 8 / 1.6 = 5; at 0.9, 9 / 1.3.
    """
    q_values = torch.tensor([10.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    value = torch.tensor(optimum, dtype=torch.float64, requires_grad=True)
    everywhere = torch.ones(5, dtype=torch.bool)
    objectives.expectile_loss(q_values, value.expand(5), everywhere, expectile=expectile).sum().backward()
    assert value.grad is not None
    assert abs(value.grad.item()) < 1e-9


def test_after_the_end_of_an_episode_there_is_no_next_value() -> None:
    """Targets 1 + 0.5 * 4 = 3 and, at the end, 1, whatever stands in the place of the missing next state."""
    rewards, following = torch.tensor([1.0, 1.0]), torch.tensor([4.0, float("nan")])
    target = objectives.td_target(rewards, following, torch.tensor([False, True]), discount=0.5)
    assert target.tolist() == [3.0, 1.0]


def test_an_expectile_above_one_half_punishes_low_values_more() -> None:
    one, everywhere = torch.ones(1), torch.ones(1, dtype=torch.bool)
    too_low = objectives.expectile_loss(one, one - 1, everywhere, expectile=0.9)
    too_high = objectives.expectile_loss(one, one + 1, everywhere, expectile=0.9)
    assert too_low.item() == pytest.approx(0.9)
    assert too_high.item() == pytest.approx(0.1)


def test_masked_mean_of_nothing_is_zero_with_zero_gradient() -> None:
    values = torch.tensor([float("nan"), 1.0], requires_grad=True)
    result = objectives.masked_mean(values, torch.tensor([False, False]), denominator=1)
    result.backward()
    assert result.item() == 0.0
    assert values.grad is not None
    assert values.grad.tolist() == [0.0, 0.0]


def test_shapes_are_checked() -> None:
    """The tests run with shape checks on: a mask of another shape is an error, not a broadcast."""
    with pytest.raises(Exception, match="mask"):
        objectives.masked_mean(torch.zeros(2, 3), torch.ones(3, dtype=torch.bool), denominator=1)
