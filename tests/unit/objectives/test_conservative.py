"""What is particular to conservative losses over candidates."""

from __future__ import annotations

import torch

from offline_arl import objectives


def test_candidates_that_do_not_exist_may_be_nan() -> None:
    """Neither the conservative loss, nor its gradients, nor double Q-learning look at them."""
    nan = float("nan")
    candidates = torch.tensor([[[1.0, nan, 2.0], [nan, nan, nan]]], requires_grad=True)
    exists = torch.tensor([[True, False, True], [False, False, False]])
    chosen, counts = torch.tensor([[1.0, 5.0]]), torch.tensor([True, True])
    loss = objectives.candidate_conservative_loss(candidates, exists, chosen, counts, temperature=1.0)
    # log(e + e^2) - 1 = log(1 + e) = 1.31326; the softmax of (1, 2) is (0.26894, 0.73106).
    torch.testing.assert_close(loss, torch.tensor([1.3132617, 0.0]))
    loss.sum().backward()
    assert candidates.grad is not None
    expected = torch.tensor([[[0.2689414, 0.0, 0.7310586], [0.0, 0.0, 0.0]]])
    torch.testing.assert_close(candidates.grad, expected)
    values = objectives.double_q_values(candidates, 10 * candidates, exists)
    assert values[0].item() == 20.0
    assert torch.isnan(values[1])
    assert not values.requires_grad


def test_the_floor_of_cal_ql_stops_the_push_and_not_the_pull() -> None:
    """The return is 3. A policy's action at Q = 1 is not pushed down, one at 5 is; the logged action is pulled up."""
    candidates = torch.tensor([[[1.0, 5.0, 2.0]]], requires_grad=True)
    chosen = torch.tensor([[2.0]], requires_grad=True)
    everything, yes = torch.ones(1, 3, dtype=torch.bool), torch.tensor([True])
    floor = objectives.calibrated_q_values(candidates, torch.tensor([3.0]), torch.tensor([[True, True, False]]))
    objectives.candidate_conservative_loss(floor, everything, chosen, yes, temperature=1.0).sum().backward()
    softmax = torch.softmax(torch.tensor([3.0, 5.0, 2.0]), dim=0)
    assert candidates.grad is not None
    assert chosen.grad is not None
    torch.testing.assert_close(candidates.grad[0, 0], torch.stack([torch.zeros(()), softmax[1], softmax[2]]))
    assert chosen.grad.item() == -1.0
