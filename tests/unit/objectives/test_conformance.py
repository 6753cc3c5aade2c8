"""One suite for every objective: hand value, gradients, masks, padding, order, micro-batches, constants, dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from offline_arl import objectives

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """An objective with a way to draw its inputs, all of shape [B, T, ...] on the axes that rows and padding use."""

    function: Callable[..., Tensor]  # takes the tensors of `draw` as they are named
    draw: Callable[[torch.Generator, torch.dtype], Inputs]
    differentiable: tuple[str, ...]
    constant: tuple[str, ...]
    hand: tuple[Inputs, list[list[float]]]  # inputs and the value worked out by hand
    leading: tuple[str, ...] = ()  # tensors with one more axis in front of [B, T]
    shifted: bool = False  # position t - 1 of the outputs belongs to the token at t


B, T, V = 3, 5, 4
DISCOUNT, EXPECTILE = 0.5, 0.75


def _randn(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def _mask(generator: torch.Generator) -> Tensor:
    mask = torch.rand(B, T, generator=generator) < 0.6
    mask[:, 0], mask[0, 1], mask[0, 2] = False, True, False
    return mask


def _draw_logprobs(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "logits": _randn(generator, dtype, B, T, V),
        "input_ids": torch.randint(V, (B, T), generator=generator),
        "mask": _mask(generator),
    }


def _draw_nll(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "logprobs": -_randn(generator, dtype, B, T).abs(),
        "weights": _randn(generator, dtype, B, T).abs(),
        "mask": _mask(generator),
    }


def _draw_expectile(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "q_values": _randn(generator, dtype, B, T),
        "values": _randn(generator, dtype, B, T),
        "mask": _mask(generator),
    }


def _draw_td(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "twin_q_values": _randn(generator, dtype, 2, B, T),
        "rewards": _randn(generator, dtype, B, T),
        "next_values": _randn(generator, dtype, B, T),
        "terminated": torch.rand(B, T, generator=generator) < 0.3,
        "mask": _mask(generator),
    }


CASES = {
    "token_logprobs": Case(
        lambda logits, input_ids, mask: objectives.token_logprobs(logits, input_ids, mask),
        _draw_logprobs,
        differentiable=("logits",),
        constant=(),
        shifted=True,
        # Token 1 at index 1 is predicted by logits [0, log 3]: probability 3 / 4, log 0.75 = -0.28768.
        hand=(
            {
                "logits": torch.tensor([[[0.0, 1.0986123], [50.0, 0.0]]]),
                "input_ids": torch.tensor([[0, 1]]),
                "mask": torch.tensor([[False, True]]),
            },
            [[0.0, -0.28768207]],
        ),
    ),
    "weighted_nll": Case(
        objectives.weighted_nll,
        _draw_nll,
        differentiable=("logprobs",),
        constant=("weights",),
        # -2 * -0.5 = 1, masked, -3 * -1 = 3.
        hand=(
            {
                "logprobs": torch.tensor([[-0.5, -9.0, -1.0]]),
                "weights": torch.tensor([[2.0, 9.0, 3.0]]),
                "mask": torch.tensor([[True, False, True]]),
            },
            [[1.0, 0.0, 3.0]],
        ),
    ),
    "expectile_loss": Case(
        lambda q_values, values, mask: objectives.expectile_loss(q_values, values, mask, expectile=EXPECTILE),
        _draw_expectile,
        differentiable=("values",),
        constant=("q_values",),
        # u = 2 - 0 = 2: 0.75 * 4 = 3. u = 0 - 2 = -2: 0.25 * 4 = 1. u = 0: 0.
        hand=(
            {
                "q_values": torch.tensor([[2.0, 0.0, 1.0]]),
                "values": torch.tensor([[0.0, 2.0, 1.0]]),
                "mask": torch.tensor([[True, True, True]]),
            },
            [[3.0, 1.0, 0.0]],
        ),
    ),
    "td_loss": Case(
        lambda twin_q_values, rewards, next_values, terminated, mask: objectives.td_loss(
            twin_q_values, rewards, next_values, terminated, mask, discount=DISCOUNT
        ),
        _draw_td,
        differentiable=("twin_q_values",),
        constant=("rewards", "next_values"),
        leading=("twin_q_values",),
        # Targets 1 + 0.5 * 4 = 3 and, at the end, 1. Critics (2, 3) and (5, 1): (1 + 4) and (4 + 0).
        hand=(
            {
                "twin_q_values": torch.tensor([[[2.0, 3.0]], [[5.0, 1.0]]]),
                "rewards": torch.tensor([[1.0, 1.0]]),
                "next_values": torch.tensor([[4.0, 4.0]]),
                "terminated": torch.tensor([[False, True]]),
                "mask": torch.tensor([[True, True]]),
            },
            [[5.0, 4.0]],
        ),
    ),
}

every_objective = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _map_rows(case: Case, inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Apply `change`, which works on [B, T, ...], to every tensor."""
    return {
        name: torch.stack([change(part) for part in value]) if name in case.leading else change(value)
        for name, value in inputs.items()
    }


def _reduced_gradients(case: Case, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
    leaves = {name: value.clone().requires_grad_(name in case.differentiable) for name, value in inputs.items()}
    out = case.function(**leaves)
    loss = objectives.masked_mean(out, inputs["mask"], denominator=7)
    loss.backward()
    return out.detach(), {name: leaves[name].grad for name in case.differentiable}


@every_objective
def test_hand_value(case: Case) -> None:
    inputs, expected = case.hand
    torch.testing.assert_close(case.function(**inputs), torch.tensor(expected))


@every_objective
def test_gradients_are_those_of_finite_differences(case: Case, generator: torch.Generator) -> None:
    inputs = case.draw(generator, torch.float64)
    names = case.differentiable

    def scalar_inputs(*tensors: Tensor) -> Tensor:
        return case.function(**{**inputs, **dict(zip(names, tensors, strict=True))})

    assert torch.autograd.gradcheck(scalar_inputs, [inputs[name].requires_grad_() for name in names])


@every_objective
def test_nan_behind_the_mask_changes_neither_values_nor_gradients(case: Case, generator: torch.Generator) -> None:
    inputs = case.draw(generator, torch.float64)
    unused = ~inputs["mask"]
    if case.shifted:  # the outputs that predict no scored token
        unused = ~objectives.predicting_mask(inputs["mask"])
    poisoned = dict(inputs)
    for name in (*case.differentiable, *case.constant):
        value = inputs[name].clone()
        value[(slice(None), unused) if name in case.leading else unused] = float("nan")
        poisoned[name] = value
    clean_out, clean_gradients = _reduced_gradients(case, inputs)
    out, gradients = _reduced_gradients(case, poisoned)
    assert torch.equal(out, clean_out)
    assert (out[~inputs["mask"]] == 0).all()
    for name in case.differentiable:
        assert torch.equal(gradients[name], clean_gradients[name])


@every_objective
def test_padding_on_the_right_changes_nothing(case: Case, generator: torch.Generator) -> None:
    inputs = case.draw(generator, torch.float64)
    padded = _map_rows(case, inputs, lambda value: torch.cat([value, torch.zeros_like(value[:, :2])], dim=1))
    out = case.function(**padded)
    assert torch.equal(out[:, :T], case.function(**inputs))
    assert (out[:, T:] == 0).all()


@every_objective
def test_the_order_of_rows_does_not_matter(case: Case, generator: torch.Generator) -> None:
    inputs = case.draw(generator, torch.float64)
    order = torch.tensor([2, 0, 1])
    out = case.function(**_map_rows(case, inputs, lambda value: value[order]))
    assert torch.equal(out, case.function(**inputs)[order])


@every_objective
def test_micro_batches_add_up(case: Case, generator: torch.Generator) -> None:
    """Rows split 1 + 2, each with the denominator of the whole: values and gradients sum to those of the whole."""
    inputs = case.draw(generator, torch.float64)
    _, whole = _reduced_gradients(case, inputs)
    first = _map_rows(case, inputs, lambda value: value[:1])
    second = _map_rows(case, inputs, lambda value: value[1:])
    total = sum(objectives.masked_mean(case.function(**part), part["mask"], denominator=7) for part in (first, second))
    expected = objectives.masked_mean(case.function(**inputs), inputs["mask"], denominator=7)
    torch.testing.assert_close(total, expected)
    for name in case.differentiable:
        parts = [_reduced_gradients(case, part)[1][name] for part in (first, second)]
        torch.testing.assert_close(torch.cat(parts, dim=1 if name in case.leading else 0), whole[name])


@every_objective
def test_constants_get_no_gradient(case: Case, generator: torch.Generator) -> None:
    inputs = case.draw(generator, torch.float64)
    for name in (*case.constant, *case.differentiable):
        inputs[name].requires_grad_()
    case.function(**inputs).sum().backward()
    for name in case.constant:
        assert inputs[name].grad is None
    for name in case.differentiable:
        assert inputs[name].grad is not None
        assert inputs[name].grad.abs().sum() > 0


@every_objective
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept(case: Case, dtype: torch.dtype, generator: torch.Generator) -> None:
    assert case.function(**case.draw(generator, dtype)).dtype == dtype
