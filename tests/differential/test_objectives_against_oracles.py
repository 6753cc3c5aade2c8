"""Every objective equals its slow NumPy oracle on arbitrary inputs."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from references import objective_oracles as oracle
from references import return_oracles as return_oracle

from offline_arl import objectives

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6)
VALUES = st.floats(-30, 30, width=32)


def _arrays(draw: st.DrawFn, shape: tuple[int, ...], count: int) -> list[np.ndarray]:
    return [draw(hnp.arrays(np.float64, shape, elements=VALUES)) for _ in range(count)]


def _bools(draw: st.DrawFn, shape: tuple[int, ...], count: int) -> list[np.ndarray]:
    return [draw(hnp.arrays(np.bool_, shape)) for _ in range(count)]


def _tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, vocabulary=st.integers(1, 5), chunk=st.sampled_from([None, 1, 2, 7]))
def test_token_logprobs(data: st.DataObject, shape: tuple[int, int], vocabulary: int, chunk: int | None) -> None:
    (logits,) = _arrays(data.draw, (*shape, vocabulary), 1)
    ids = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(0, vocabulary - 1)))
    (mask,) = _bools(data.draw, shape, 1)
    got = objectives.token_logprobs(*_tensors(logits, ids, mask), chunk_tokens=chunk)
    np.testing.assert_allclose(got.numpy(), oracle.token_logprobs(logits, ids, mask), rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, denominator=st.floats(0.5, 50))
def test_masked_mean(data: st.DataObject, shape: tuple[int, int], denominator: float) -> None:
    (values,), (mask,) = _arrays(data.draw, shape, 1), _bools(data.draw, shape, 1)
    got = objectives.masked_mean(*_tensors(values, mask), denominator=denominator)
    np.testing.assert_allclose(got.item(), oracle.masked_mean(values, mask, denominator), rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, inverse_temperature=st.floats(0, 50), max_weight=st.floats(0.1, 200))
def test_advantage_weights(
    data: st.DataObject, shape: tuple[int, int], inverse_temperature: float, max_weight: float
) -> None:
    (advantages,) = _arrays(data.draw, shape, 1)
    got = objectives.advantage_weights(
        torch.from_numpy(advantages), inverse_temperature=inverse_temperature, max_weight=max_weight
    )
    expected = oracle.advantage_weights(advantages, inverse_temperature, max_weight)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES)
def test_weighted_nll(data: st.DataObject, shape: tuple[int, int]) -> None:
    (logprobs, weights), (mask,) = _arrays(data.draw, shape, 2), _bools(data.draw, shape, 1)
    got = objectives.weighted_nll(*_tensors(logprobs, weights, mask))
    np.testing.assert_allclose(got.numpy(), oracle.weighted_nll(logprobs, weights, mask), rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, expectile=st.floats(0.01, 0.99))
def test_expectile_loss(data: st.DataObject, shape: tuple[int, int], expectile: float) -> None:
    (q_values, values), (mask,) = _arrays(data.draw, shape, 2), _bools(data.draw, shape, 1)
    got = objectives.expectile_loss(*_tensors(q_values, values, mask), expectile=expectile)
    expected = oracle.expectile_loss(q_values, values, mask, expectile)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, critics=st.integers(1, 3), discount=st.floats(0, 1))
def test_td_loss(data: st.DataObject, shape: tuple[int, int], critics: int, discount: float) -> None:
    rewards, next_values = _arrays(data.draw, shape, 2)
    (twin_q_values,) = _arrays(data.draw, (critics, *shape), 1)
    terminated, mask = _bools(data.draw, shape, 2)
    got = objectives.td_loss(*_tensors(twin_q_values, rewards, next_values, terminated, mask), discount=discount)
    expected = oracle.td_loss(twin_q_values, rewards, next_values, terminated, mask, discount)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, critics=st.integers(1, 3), delta=st.floats(0.1, 20))
def test_critic_losses(data: st.DataObject, shape: tuple[int, int], critics: int, delta: float) -> None:
    (targets,) = _arrays(data.draw, shape, 1)
    (twin_q_values,) = _arrays(data.draw, (critics, *shape), 1)
    (mask,) = _bools(data.draw, shape, 1)
    tensors = _tensors(twin_q_values, targets, mask)
    expected = oracle.critic_loss(twin_q_values, targets, mask)
    np.testing.assert_allclose(objectives.critic_loss(*tensors).numpy(), expected, rtol=1e-9)
    expected = oracle.critic_huber_loss(twin_q_values, targets, mask, delta)
    got = objectives.critic_huber_loss(*tensors, huber_delta=delta)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, candidates=st.integers(1, 4), critics=st.integers(1, 3))
def test_double_q_values(data: st.DataObject, shape: tuple[int, int], candidates: int, critics: int) -> None:
    # Multiples of 1 / 16: the mean of critics is exact, so both sides see the same ties.
    online = np.round(_arrays(data.draw, (critics, *shape, candidates), 1)[0] * 16) / 16
    (target,) = _arrays(data.draw, (critics, *shape, candidates), 1)
    (candidate_mask,) = _bools(data.draw, (*shape, candidates), 1)
    got = objectives.double_q_values(*_tensors(online, target, candidate_mask))
    np.testing.assert_allclose(got.numpy(), oracle.double_q_values(online, target, candidate_mask), rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, candidates=st.integers(1, 4), temperature=st.floats(0.1, 3))
def test_conservative_losses(data: st.DataObject, shape: tuple[int, int], candidates: int, temperature: float) -> None:
    (q_values,), (chosen,) = _arrays(data.draw, (2, *shape, candidates), 1), _arrays(data.draw, (2, *shape), 1)
    (returns,), (mask,) = _arrays(data.draw, shape, 1), _bools(data.draw, shape, 1)
    exists, from_policy = _bools(data.draw, (*shape, candidates), 2)
    calibrated = objectives.calibrated_q_values(*_tensors(q_values, returns, from_policy))
    expected_calibrated = oracle.calibrated_q_values(q_values, returns, from_policy)
    np.testing.assert_array_equal(calibrated.numpy(), expected_calibrated)
    got = objectives.candidate_conservative_loss(calibrated, *_tensors(exists, chosen, mask), temperature=temperature)
    expected = oracle.candidate_conservative_loss(expected_calibrated, exists, chosen, mask, temperature)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, vocabulary=st.integers(1, 5), chunk=st.sampled_from([1, 2, 7, 100]))
def test_token_q_values(data: st.DataObject, shape: tuple[int, int], vocabulary: int, chunk: int) -> None:
    (features,), (weight,) = _arrays(data.draw, (*shape, 2), 1), _arrays(data.draw, (vocabulary, 2), 1)
    (bias,), (mask,) = _arrays(data.draw, (vocabulary,), 1), _bools(data.draw, shape, 1)
    ids = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(0, vocabulary - 1)))
    temperature = data.draw(st.floats(0.1, 3))
    tensors = _tensors(features, weight, bias, ids, mask)
    rows = tensors[0][objectives.predicting_mask(tensors[4])]
    got = objectives.token_q_values(rows, *tensors[1:], temperature=temperature, chunk_tokens=chunk)
    chosen, logsumexp = oracle.token_q_values(features, weight, bias, ids, mask, temperature)
    np.testing.assert_allclose(got.q_values.numpy(), chosen, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(got.logsumexp.numpy(), logsumexp, rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, discount=st.floats(0, 1), expectile=st.floats(0.01, 0.99))
def test_token_iql_losses(data: st.DataObject, shape: tuple[int, int], discount: float, expectile: float) -> None:
    """The sum of the oracles of its parts, on next values from the oracle of returns."""
    names = ["twin_q_values", "twin_logsumexp", "target_q_values"]
    inputs = dict(zip(names, _arrays(data.draw, (2, *shape), 3), strict=True))
    names = ["values", "bootstrap_values", "rewards"]
    inputs |= dict(zip(names, _arrays(data.draw, shape, 3), strict=True))
    names = ["terminated", "truncated", "action_mask", "has_target"]
    inputs |= dict(zip(names, _bools(data.draw, shape, 4), strict=True))
    tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
    got = objectives.token_iql_losses(**tensors, discount=discount, expectile=expectile)
    mask, lowest = inputs["action_mask"], inputs["target_q_values"].min(axis=0)
    row_names = ("values", "bootstrap_values", "truncated")
    next_values = return_oracle.next_step_values({name: inputs[name] for name in row_names} | {"mask": mask})
    value = oracle.expectile_loss(lowest, inputs["values"], mask, expectile)
    np.testing.assert_allclose(got.value.numpy(), value, rtol=1e-9)
    counts = mask & inputs["has_target"]
    terminated, rewards = inputs["terminated"], inputs["rewards"]
    critics = oracle.td_loss(inputs["twin_q_values"], rewards, next_values, terminated, counts, discount)
    np.testing.assert_allclose(got.critics.numpy(), critics, rtol=1e-9)
    conservative = np.where(mask, (inputs["twin_logsumexp"] - inputs["twin_q_values"]).sum(axis=0), 0.0)
    np.testing.assert_allclose(got.conservative.numpy(), conservative, rtol=1e-9)
    np.testing.assert_allclose(got.advantages.numpy(), np.where(mask, lowest - inputs["values"], 0.0), rtol=1e-12)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), shape=SHAPES, discount=st.floats(0, 1), trace_decay=st.floats(0, 1))
def test_returns_and_advantages(
    data: st.DataObject, shape: tuple[int, int], discount: float, trace_decay: float
) -> None:
    """The recursions equal the definitions, over attempts of any length, with observations between their steps."""
    names = ["rewards", "values", "bootstrap_values"]
    inputs = dict(zip(names, _arrays(data.draw, shape, 3), strict=True))
    inputs |= dict(zip(["terminated", "truncated", "mask"], _bools(data.draw, shape, 3), strict=True))
    tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
    got = objectives.td_lambda_returns(**tensors, discount=discount, trace_decay=trace_decay)
    expected = return_oracle.td_lambda_returns(inputs, discount, trace_decay)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9, atol=1e-9)
    got = objectives.generalized_advantages(**tensors, discount=discount, trace_decay=trace_decay)
    expected = return_oracle.generalized_advantages(inputs, discount, trace_decay)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9, atol=1e-9)
    del tensors["values"]
    got = objectives.monte_carlo_returns(**tensors, discount=discount)
    expected = return_oracle.monte_carlo_returns(inputs, discount)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), shape=SHAPES)
def test_next_step_values(data: st.DataObject, shape: tuple[int, int]) -> None:
    values, after = _arrays(data.draw, shape, 2)
    truncated, mask = _bools(data.draw, shape, 2)
    got = objectives.next_step_values(*_tensors(values, after, truncated, mask))
    inputs = {"values": values, "bootstrap_values": after, "truncated": truncated, "mask": mask}
    np.testing.assert_array_equal(got.numpy(), return_oracle.next_step_values(inputs))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES)
def test_step_discounts(data: st.DataObject, shape: tuple[int, int]) -> None:
    steps = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(-1, 3)))
    (mask,) = _bools(data.draw, shape, 1)
    got = objectives.step_discounts(*_tensors(steps, mask & (steps >= 0)), discount=0.5)
    np.testing.assert_array_equal(got.numpy(), return_oracle.step_discounts(steps, mask & (steps >= 0), 0.5))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), count=st.integers(1, 30), fraction=st.floats(0.001, 1))
def test_top_fraction_and_effective_sample_size(data: st.DataObject, count: int, fraction: float) -> None:
    returns = data.draw(hnp.arrays(np.float64, count, elements=st.integers(-3, 3).map(float)))
    (mask,) = _bools(data.draw, (count,), 1)
    got = objectives.top_fraction_mask(*_tensors(returns, mask), fraction=fraction)
    np.testing.assert_array_equal(got.numpy(), return_oracle.top_fraction_mask(returns, mask, fraction))
    size = objectives.effective_sample_size(*_tensors(np.abs(returns), mask))
    np.testing.assert_allclose(size.item(), return_oracle.effective_sample_size(np.abs(returns), mask), rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), count=st.integers(1, 30), bins=st.integers(1, 12))
def test_quantiles_of_returns(data: st.DataObject, count: int, bins: int) -> None:
    """Classes are those of the definition, and none of them is empty."""
    returns = data.draw(hnp.arrays(np.float64, count, elements=st.integers(-5, 5).map(float)))
    edges = objectives.quantile_edges(torch.from_numpy(returns), bins=bins)
    assert edges.tolist() == return_oracle.quantile_edges(returns, bins)
    classes = objectives.quantize_returns(torch.from_numpy(returns), edges)
    np.testing.assert_array_equal(classes.numpy(), return_oracle.quantize_returns(returns, edges.numpy()))
    assert set(classes.tolist()) == set(range(len(edges) + 1))
