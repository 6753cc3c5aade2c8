"""Losses, gradients and weights equal those of d3rlpy's own code on the same batch.

`d3rlpy_losses.json` holds what d3rlpy's networks said about a batch and the losses it made of that; the script that
wrote it stands beside it (`oracle_scripts/d3rlpy_losses.py`).
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_arl import objectives

HERE = Path(__file__).parent
STORED: dict[str, Any] = json.loads((HERE / "d3rlpy_losses.json").read_text())
TOLERANCE = 1e-5


def _tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values)


def _mean(losses: torch.Tensor) -> torch.Tensor:
    return objectives.masked_mean(losses, torch.ones_like(losses, dtype=torch.bool), denominator=losses.numel())


def test_the_value_loss_of_iql() -> None:
    stored = STORED["iql"]
    values = _tensor(stored["values"]).requires_grad_()
    lowest = _tensor(stored["target_q_values"]).amin(dim=0)
    everywhere = torch.ones_like(values, dtype=torch.bool)
    loss = _mean(objectives.expectile_loss(lowest, values, everywhere, expectile=stored["settings"]["expectile"]))
    loss.backward()
    assert loss.item() == pytest.approx(stored["value_loss"], abs=TOLERANCE)
    assert values.grad is not None
    assert values.grad.sum().item() == pytest.approx(stored["value_gradient"], abs=TOLERANCE)


def test_the_q_loss_of_iql() -> None:
    stored = STORED["iql"]
    q_values = _tensor(stored["q_values"]).requires_grad_()
    everywhere = torch.ones(q_values.shape[1], dtype=torch.bool)
    loss = _mean(
        objectives.td_loss(
            q_values,
            _tensor(stored["rewards"]),
            _tensor(stored["next_values"]),
            _tensor(stored["terminated"]),
            everywhere,
            discount=stored["settings"]["gamma"],
        )
    )
    loss.backward()
    assert any(stored["terminated"])
    assert loss.item() == pytest.approx(stored["q_loss"], abs=TOLERANCE)
    assert q_values.grad is not None
    assert q_values.grad.sum(dim=1).tolist() == pytest.approx(stored["q_gradients"], abs=TOLERANCE)


def test_the_weights_of_iql() -> None:
    stored = STORED["iql"]
    advantages = _tensor(stored["target_q_values"]).amin(dim=0) - _tensor(stored["values"])
    weights = objectives.advantage_weights(
        advantages,
        inverse_temperature=stored["settings"]["weight_temp"],
        max_weight=stored["settings"]["max_weight"],
    )
    capped = weights == stored["settings"]["max_weight"]
    assert capped.any()
    assert not capped.all()
    assert weights.tolist() == pytest.approx(stored["weights"], abs=TOLERANCE)


def _td_of_discrete_cql(stored: dict[str, Any], q_values: torch.Tensor) -> torch.Tensor:
    """Huber's loss of the critics on the double-Q target."""
    actions = _tensor(stored["actions"])
    everything = torch.ones(len(actions), q_values.shape[-1], dtype=torch.bool)
    next_values = objectives.double_q_values(
        _tensor(stored["next_q_values"]), _tensor(stored["next_target_q_values"]), everything
    )
    targets = objectives.td_target(
        _tensor(stored["rewards"]),
        next_values,
        _tensor(stored["terminated"]),
        discount=stored["settings"]["gamma"],
    )
    taken = q_values.gather(-1, actions.view(1, -1, 1).expand(len(q_values), -1, 1)).squeeze(-1)
    return _mean(objectives.critic_huber_loss(taken, targets, everything[:, 0], huber_delta=1.0))


def _conservative(stored: dict[str, Any], q_values: torch.Tensor) -> torch.Tensor:
    actions = _tensor(stored["actions"])
    everything = torch.ones(len(actions), q_values.shape[-1], dtype=torch.bool)
    taken = q_values.gather(-1, actions.view(1, -1, 1).expand(len(q_values), -1, 1)).squeeze(-1)
    losses = objectives.candidate_conservative_loss(q_values, everything, taken, everything[:, 0], temperature=1.0)
    return _mean(losses)


def _check_discrete_cql(stored: dict[str, Any], td: torch.Tensor, conservative: torch.Tensor, q: torch.Tensor) -> None:
    loss = td + stored["settings"]["alpha"] * conservative
    (gradient,) = torch.autograd.grad(loss, q)
    assert td.item() == pytest.approx(stored["td_loss"], abs=TOLERANCE)
    assert conservative.item() == pytest.approx(stored["conservative_loss"], abs=TOLERANCE)
    assert loss.item() == pytest.approx(stored["loss"], abs=TOLERANCE)
    torch.testing.assert_close(gradient.sum(dim=1), _tensor(stored["q_gradients"]), rtol=0, atol=TOLERANCE)


def test_the_loss_of_discrete_cql() -> None:
    stored = STORED["discrete_cql_one_critic"]
    q_values = _tensor(stored["q_values"]).requires_grad_()
    _check_discrete_cql(stored, _td_of_discrete_cql(stored, q_values), _conservative(stored, q_values), q_values)


def test_the_loss_of_discrete_cql_with_two_critics() -> None:
    """Here d3rlpy's conservative term is that of the critics' mean; ours, given the mean, is the same."""
    stored = STORED["discrete_cql_two_critics"]
    q_values = _tensor(stored["q_values"]).requires_grad_()
    conservative = _conservative(stored, q_values.mean(dim=0, keepdim=True))
    _check_discrete_cql(stored, _td_of_discrete_cql(stored, q_values), conservative, q_values)


def test_the_stored_numbers_are_those_of_d3rlpy() -> None:
    pytest.importorskip("d3rlpy", reason="d3rlpy is not installed: its numbers are read from d3rlpy_losses.json")
    fresh = runpy.run_path(str(HERE / "oracle_scripts" / "d3rlpy_losses.py"))["losses"]()

    def flat(value: Any) -> list[float]:
        if isinstance(value, dict):
            return [number for key in sorted(value) for number in flat(value[key])]
        if isinstance(value, list):
            return [number for part in value for number in flat(part)]
        return [float(value)] if not isinstance(value, str) else []

    assert flat(fresh) == pytest.approx(flat(STORED), abs=TOLERANCE)
