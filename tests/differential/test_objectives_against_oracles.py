"""Every objective equals its slow NumPy oracle on arbitrary inputs."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from references import objective_oracles as oracle

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
