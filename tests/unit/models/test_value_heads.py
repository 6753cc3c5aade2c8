"""Value heads: twin critics and a value function."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from offline_arl.errors import DataError
from offline_arl.models.value_heads import Ensemble, HeadShape, ValueHeads, load_heads, save_heads


def _heads(**sizes: object) -> ValueHeads:
    shape = HeadShape(**{"state_size": 4, "action_size": 6, "hidden_size": 8, **sizes})
    return ValueHeads(shape, generator=torch.Generator().manual_seed(0))


def _features(rows: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return 3 + 5 * torch.randn(rows, 4, generator=generator), torch.randn(rows, 6, generator=generator)


@pytest.mark.parametrize("layers", [[3, 1], [3, 5, 1], [3, 5, 4, 1]])
def test_members_of_an_ensemble_are_separate_perceptrons(layers: list[int]) -> None:
    ensemble = Ensemble(2, layers, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for bias in ensemble.biases:
            bias.normal_(generator=torch.Generator().manual_seed(2))
    inputs = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    for member in range(2):
        values = inputs
        for depth, (weight, bias) in enumerate(zip(ensemble.weights, ensemble.biases, strict=True)):
            values = values @ weight[member] + bias[member]
            if depth < len(ensemble.weights) - 1:
                values = values.clamp_min(0)
        torch.testing.assert_close(ensemble(inputs)[member], values.squeeze(-1))
    assert not torch.allclose(ensemble(inputs)[0], ensemble(inputs)[1])


def test_the_advantage_is_the_smaller_critic_minus_the_value() -> None:
    heads, (states, actions) = _heads(), _features()
    first, second = heads.q(states, actions)
    torch.testing.assert_close(heads.advantages(states, actions), torch.minimum(first, second) - heads.v(states))
    assert ((first < second).any() and (second < first).any()).item()


def test_an_ensemble_gives_means_of_its_members() -> None:
    heads, (states, actions) = _heads(ensemble=3), _features()
    pairs = heads.critics(heads.q_inputs(states, actions)).reshape(3, 2, -1)
    values = heads.v_by_member(states)
    assert len(values) == 3
    torch.testing.assert_close(heads.q(states, actions), pairs.mean(dim=0))
    torch.testing.assert_close(heads.v(states), values.mean(dim=0))
    own = torch.stack([torch.minimum(*pair) - value for pair, value in zip(pairs, values, strict=True)])
    torch.testing.assert_close(heads.advantages(states, actions), own.mean(dim=0))
    assert not torch.allclose(heads.advantages(states, actions), heads.q(states, actions).amin(dim=0) - heads.v(states))


def test_normalization_makes_the_heads_blind_to_scale_and_offset() -> None:
    states, actions = _features()
    heads, moved = _heads(), _heads()
    heads.set_normalization([(states, actions)])
    moved.set_normalization([(100 + 7 * states, actions)])
    torch.testing.assert_close(heads.v(states), moved.v(100 + 7 * states), atol=1e-4, rtol=1e-4)


def test_normalization_is_that_of_all_pieces_together() -> None:
    """Also far from 0, where the mean of the squares minus the square of the mean would be lost to rounding."""
    states, actions = _features(51)
    states = states + 1e4
    heads = _heads()
    heads.set_normalization(zip(torch.split(states, 20), torch.split(actions, 20), strict=True))
    torch.testing.assert_close(heads.state_mean, states.double().mean(dim=0).float())
    torch.testing.assert_close(heads.state_scale, states.double().std(dim=0, unbiased=False).float())
    torch.testing.assert_close(heads.action_scale, actions.std(dim=0, unbiased=False))


def test_a_constant_feature_does_not_explode() -> None:
    heads, (states, actions) = _heads(), _features()
    states[:, 0] = 2.0
    heads.set_normalization([(states, actions)])
    assert heads.v(states).isfinite().all()


def test_saved_heads_come_back_the_same(tmp_path: Path) -> None:
    heads, (states, actions) = _heads(layer_norm=False, hidden_layers=1, ensemble=2), _features()
    heads.set_normalization([(states, actions)])
    save_heads(heads, tmp_path / "heads")
    loaded = load_heads(tmp_path / "heads")
    assert torch.equal(loaded.q(states, actions), heads.q(states, actions))
    assert torch.equal(loaded.v(states), heads.v(states))


def test_missing_or_damaged_heads_are_one_line_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the value heads"):
        load_heads(tmp_path)
    save_heads(_heads(), tmp_path)
    (tmp_path / "value_heads.safetensors").write_bytes(b"x")
    with pytest.raises(DataError, match="train them again"):
        load_heads(tmp_path)


def test_initial_weights_come_from_the_generator_alone() -> None:
    state = torch.random.get_rng_state()
    first, second = _heads(), _heads()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
