"""One suite for every objective: hand value, gradients, masks, padding, order, micro-batches, constants, dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from conformance import CASES, Case, Inputs
from conformance.case import T
from torch import Tensor

from offline_arl import objectives

every_objective = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
LOSSES = {name: case for name, case in CASES.items() if case.differentiable}
every_loss = pytest.mark.parametrize("case", LOSSES.values(), ids=LOSSES.keys())


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _map_rows(case: Case, inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Apply `change`, which works on [B, T, ...], to every tensor that has these axes."""

    def changed(name: str, value: Tensor) -> Tensor:
        if name in case.shared:
            return value
        return torch.stack([change(part) for part in value]) if name in case.leading else change(value)

    return {name: changed(name, value) for name, value in inputs.items()}


def _reduced_gradients(case: Case, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
    leaves = {name: value.clone().requires_grad_(name in case.differentiable) for name, value in inputs.items()}
    out = case.function(**leaves)
    loss = objectives.masked_mean(out, inputs["mask"], denominator=7)
    if case.differentiable:
        loss.backward()
    return out.detach(), {name: leaves[name].grad for name in case.differentiable}


def test_every_objective_is_a_case() -> None:
    """What else the package exports has its own tests in this folder, with the reason it is no case."""
    inside_others = {"td_target", "double_q_values", "calibrated_q_values", "predicting_mask", "masked_mean"}
    weights_and_selections = {"advantage_weights", "effective_sample_size", "top_fraction_mask", "step_discounts"}
    not_per_position = {"selected_token_logprobs", "vocabulary_double_q_values", "quantile_edges", "quantize_returns"}
    functions = {name for name in objectives.__all__ if name[0].islower()}
    inside_others |= {"token_transition_losses"}
    renamed = {"double_q_td_loss", "cal_ql", "token_iql"}
    weights_and_selections |= {"mismatch_weights"}
    not_per_position |= {"sequence_logprobs", "kto_reference_point", "group_advantages"}
    expected = functions - inside_others - weights_and_selections - not_per_position - {"token_iql_losses"}
    assert set(CASES) == expected | renamed


@every_objective
def test_hand_value(case: Case) -> None:
    inputs, expected = case.hand
    torch.testing.assert_close(case.function(**inputs), torch.tensor(expected))


@every_loss
def test_gradients_are_those_of_finite_differences(case: Case, generator: torch.Generator) -> None:
    inputs = case.draw(generator, torch.float64)
    names = [name for name in case.differentiable if name not in case.bootstrapped]

    def scalar_inputs(*tensors: Tensor) -> Tensor:
        return case.function(**{**inputs, **dict(zip(names, tensors, strict=True))})

    assert torch.autograd.gradcheck(scalar_inputs, [inputs[name].requires_grad_() for name in names])


@every_objective
def test_nan_behind_the_mask_changes_neither_values_nor_gradients(case: Case, generator: torch.Generator) -> None:
    inputs = case.draw(generator, torch.float64)
    poisoned = dict(inputs)
    for name in {*case.differentiable, *case.constant} - {*case.shared}:
        unused = ~inputs["mask"]
        if name in case.shifted:  # the outputs that predict no scored token
            unused = ~objectives.predicting_mask(inputs["mask"])
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
    torch.testing.assert_close(out, case.function(**inputs)[order], rtol=0, atol=1e-15)


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
        joined = sum(parts) if name in case.shared else torch.cat(parts, dim=1 if name in case.leading else 0)
        torch.testing.assert_close(joined, whole[name])


@every_objective
def test_constants_get_no_gradient(case: Case, generator: torch.Generator) -> None:
    inputs = case.draw(generator, torch.float64)
    for name in (*case.constant, *case.differentiable):
        inputs[name].requires_grad_()
    out = case.function(**inputs)
    assert out.requires_grad == bool(case.differentiable)
    if case.differentiable:
        out.sum().backward()
    for name in case.constant:
        assert inputs[name].grad is None
    for name in case.differentiable:
        assert inputs[name].grad is not None
        assert inputs[name].grad.abs().sum() > 0


@every_objective
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept(case: Case, dtype: torch.dtype, generator: torch.Generator) -> None:
    assert case.function(**case.draw(generator, dtype)).dtype == dtype
