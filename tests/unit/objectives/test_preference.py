"""Published values of the preference losses, and what no conformance case covers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from references import preference_oracles as oracle

from offline_arl import objectives

# Two pairs, with the values that TRL 1.16's own lines and eric-mitchell/direct-preference-optimization give.
CHOSEN, REJECTED = torch.tensor([-10.0, -20.0]), torch.tensor([-12.0, -18.0])
REFERENCE_CHOSEN, REFERENCE_REJECTED = torch.tensor([-11.0, -19.0]), torch.tensor([-11.5, -19.5])
CHOSEN_LENGTHS, REJECTED_LENGTHS = torch.tensor([5, 8]), torch.tensor([4, 10])
BOTH = torch.tensor([True, True])
PAIRS = (CHOSEN, REJECTED, REFERENCE_CHOSEN, REFERENCE_REJECTED, BOTH)

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6)
VALUES = st.floats(-30, 30, width=32)


def close(got: torch.Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(got, torch.tensor(expected), atol=1e-6, rtol=1e-6)


def test_published_values_of_the_pair_losses() -> None:
    close(objectives.dpo_loss(*PAIRS, dpo_beta=0.1, label_smoothing=0.0), [0.620957, 0.825939])
    close(objectives.ipo_loss(*PAIRS, dpo_beta=0.1), [12.25, 56.25])
    lengths = (CHOSEN_LENGTHS, REJECTED_LENGTHS, CHOSEN_LENGTHS, REJECTED_LENGTHS)
    means = [values / length for values, length in zip(PAIRS[:4], lengths, strict=True)]
    close(objectives.ipo_loss(*means, BOTH, dpo_beta=0.1), [21.855627, 27.825626])
    close(objectives.simpo_loss(*means[:2], BOTH, simpo_beta=2.0, simpo_margin=0.5), [0.201413, 2.039387])
    close(objectives.simpo_loss(*means[:2], BOTH, simpo_beta=0.1, simpo_margin=0.5), [0.913015, 1.018221])


@pytest.mark.parametrize(
    ("logprobs", "reference", "desirable", "expected"),
    [
        (CHOSEN, REFERENCE_CHOSEN, True, [0.482507, 0.532454]),
        (REJECTED, REFERENCE_REJECTED, False, [0.480011, 0.529964]),
    ],
)
def test_published_values_of_kto(
    logprobs: torch.Tensor, reference: torch.Tensor, desirable: bool, expected: list[float]
) -> None:
    labels = torch.tensor([desirable, desirable])
    weights = {"desirable_weight": 1.0, "undesirable_weight": 1.0}
    losses = objectives.kto_loss(logprobs, reference, labels, torch.tensor(0.3), BOTH, dpo_beta=0.1, **weights)
    close(losses, expected)


def test_the_gradient_of_dpo_is_beta_times_the_probability_of_the_wrong_order() -> None:
    """Rafailov et al. 2023, section 4: -beta sigmoid(-beta h) on the chosen one, the opposite on the rejected one."""
    chosen, rejected = CHOSEN.clone().requires_grad_(), REJECTED.clone().requires_grad_()
    losses = objectives.dpo_loss(chosen, rejected, *PAIRS[2:], dpo_beta=0.1, label_smoothing=0.0)
    losses.sum().backward()
    wrong = torch.sigmoid(-0.1 * torch.tensor([1.5, -2.5]))
    torch.testing.assert_close(chosen.grad, -0.1 * wrong)
    torch.testing.assert_close(rejected.grad, 0.1 * wrong)


def test_ipo_is_satisfied_at_a_finite_distance_and_cdpo_at_the_odds_of_a_true_label() -> None:
    """IPO: h = 1 / (2 tau). cDPO: sigmoid(beta h) = 1 - e, Mitchell 2023."""
    zero, yes = torch.zeros(1), torch.tensor([True])
    for loss, best in (
        (lambda h: objectives.ipo_loss(h, zero, zero, zero, yes, dpo_beta=0.25), 2.0),
        (
            lambda h: objectives.dpo_loss(h, zero, zero, zero, yes, dpo_beta=0.5, label_smoothing=0.2),
            2 * math.log(0.8 / 0.2),
        ),
    ):
        h = torch.tensor([best], requires_grad=True)
        loss(h).backward()
        assert h.grad is not None
        assert abs(h.grad.item()) < 1e-6
        assert loss(torch.tensor([best + 0.1])) > loss(torch.tensor([best]))


def test_extreme_margins_stay_finite() -> None:
    chosen = torch.tensor([-1e5, 1e5], requires_grad=True)
    zero = torch.zeros(2)
    losses = objectives.dpo_loss(chosen, zero, zero, zero, BOTH, dpo_beta=1.0, label_smoothing=0.0)
    losses.sum().backward()
    assert losses.tolist() == [1e5, 0.0]
    assert chosen.grad is not None
    assert chosen.grad.tolist() == [-1.0, 0.0]


def test_the_reference_point_is_not_below_zero_and_passes_no_gradient() -> None:
    policy = torch.tensor([-5.0, -1.0, float("nan")], requires_grad=True)
    reference, mask = torch.tensor([-1.0, -2.0, float("nan")]), torch.tensor([True, True, False])
    point = objectives.kto_reference_point(policy, reference, mask, denominator=2)
    assert point.item() == 0.0
    assert not point.requires_grad
    assert objectives.kto_reference_point(policy, reference - 8, mask, denominator=4).item() == 3.25


def test_tool_output_and_padding_enter_no_sequence_logprob() -> None:
    """A completion of two turns with a tool's answer between them; index 0 and the padding hold NaN."""
    nan = float("nan")
    logprobs = torch.tensor([[nan, -1.0, -50.0, -50.0, -2.0, nan], [nan, -3.0, nan, nan, nan, nan]]).requires_grad_()
    mask = torch.tensor([[False, True, False, False, True, False], [False, True, False, False, False, False]])
    total = objectives.sequence_logprobs(logprobs, mask, average=False)
    assert total.tolist() == [-3.0, -3.0]
    assert objectives.sequence_logprobs(logprobs, mask, average=True).tolist() == [-1.5, -3.0]
    total.sum().backward()
    assert torch.equal(logprobs.grad, mask.float())
    assert objectives.sequence_logprobs(logprobs, torch.zeros_like(mask), average=True).tolist() == [0.0, 0.0]


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def drawn(data: st.DataObject, shape: tuple[int, ...], count: int) -> list[np.ndarray]:
    return [data.draw(hnp.arrays(np.float64, shape, elements=VALUES)) for _ in range(count)]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, beta=st.floats(0.01, 10), share=st.floats(0, 0.5))
def test_pair_losses_equal_their_oracles(
    data: st.DataObject, shape: tuple[int, int], beta: float, share: float
) -> None:
    logprobs = drawn(data, shape, 4)
    mask = data.draw(hnp.arrays(np.bool_, shape))
    inputs = tensors(*logprobs, mask)
    dpo = objectives.dpo_loss(*inputs, dpo_beta=beta, label_smoothing=share)
    np.testing.assert_allclose(dpo.numpy(), oracle.dpo_loss(logprobs, mask, beta, share), rtol=1e-9, atol=1e-12)
    ipo = objectives.ipo_loss(*inputs, dpo_beta=beta)
    np.testing.assert_allclose(ipo.numpy(), oracle.ipo_loss(logprobs, mask, beta), rtol=1e-9, atol=1e-9)
    simpo = objectives.simpo_loss(inputs[0], inputs[1], inputs[4], simpo_beta=beta, simpo_margin=share)
    expected = oracle.simpo_loss(logprobs[0], logprobs[1], mask, beta, share)
    np.testing.assert_allclose(simpo.numpy(), expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, beta=st.floats(0.01, 10), z0=st.floats(0, 5), weight=st.floats(0.1, 3))
def test_kto_equals_its_oracle(
    data: st.DataObject, shape: tuple[int, int], beta: float, z0: float, weight: float
) -> None:
    logprobs, reference = drawn(data, shape, 2)
    desirable, mask = (data.draw(hnp.arrays(np.bool_, shape)) for _ in range(2))
    point = torch.tensor(z0, dtype=torch.float64)
    got = objectives.kto_loss(
        *tensors(logprobs, reference, desirable), point, torch.from_numpy(mask),
        dpo_beta=beta, desirable_weight=1.0, undesirable_weight=weight,
    )  # fmt: skip
    expected = oracle.kto_loss(logprobs, reference, desirable, mask, z0, beta, (1.0, weight))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9, atol=1e-9)
    points = (logprobs[0], reference[0], mask[0])
    point = objectives.kto_reference_point(*tensors(*points), denominator=3)
    np.testing.assert_allclose(point.item(), oracle.kto_reference_point(*points, 3), rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, average=st.booleans())
def test_sequence_logprobs_equal_their_oracle(data: st.DataObject, shape: tuple[int, int], average: bool) -> None:
    (logprobs,), mask = drawn(data, shape, 1), data.draw(hnp.arrays(np.bool_, shape))
    got = objectives.sequence_logprobs(*tensors(logprobs, mask), average=average)
    np.testing.assert_allclose(got.numpy(), oracle.sequence_logprobs(logprobs, mask, average), rtol=1e-9, atol=1e-9)
