"""Token-level heads: their values against plain products, gradients, standardization, files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from offline_arl.errors import DataError
from offline_arl.models.token_heads import (
    CONFIG_NAME,
    WEIGHTS_NAME,
    TokenHeadShape,
    TokenValueHeads,
    load_token_heads,
    save_token_heads,
)

STATES, SIZE, VOCABULARY = 7, 5, 11


def _heads(hidden_layers: int = 0, *, seed: int = 0, critics: int = 2) -> TokenValueHeads:
    shape = TokenHeadShape(SIZE, VOCABULARY, critics=critics, hidden_layers=hidden_layers, hidden_size=6)
    return TokenValueHeads(shape, generator=torch.Generator().manual_seed(seed)).double()


def _inputs(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(STATES, SIZE, generator=generator, dtype=torch.float64)
    return states, torch.randint(VOCABULARY, (STATES,), generator=generator)


def test_a_linear_head_is_one_product() -> None:
    """Q = W s + b for each critic, V = w s + b: what folding into the output layer relies on."""
    heads, (states, _) = _heads(), _inputs()
    weights = dict(heads.named_parameters())
    for critic in range(2):
        weight, bias = weights[f"critics.{critic}.output.weight"], weights[f"critics.{critic}.output.bias"]
        torch.testing.assert_close(heads.q(states)[critic], states @ weight.T + bias)
    torch.testing.assert_close(
        heads.v(states), states @ weights["value.output.weight"][0] + weights["value.output.bias"]
    )
    assert len(weights) == 6


@pytest.mark.parametrize("hidden_layers", [0, 1, 2])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_chosen_values_and_the_soft_maximum_are_those_of_the_whole_vocabulary(
    hidden_layers: int, temperature: float
) -> None:
    heads, (states, tokens) = _heads(hidden_layers), _inputs()
    everything = heads.q(states)
    chosen = everything.gather(2, tokens.expand(2, -1).unsqueeze(-1)).squeeze(-1)
    found = heads.q_and_logsumexp(states, tokens, temperature=temperature, chunk_tokens=3)
    torch.testing.assert_close(heads.q_at(states, tokens), chosen)
    torch.testing.assert_close(found.q_values, chosen)
    torch.testing.assert_close(found.logsumexp, temperature * (everything / temperature).logsumexp(-1))
    torch.testing.assert_close(heads.advantages(states, tokens), chosen.amin(0) - heads.v(states))


@pytest.mark.parametrize("hidden_layers", [0, 2])
def test_gradients_of_chunks_are_those_of_the_whole_vocabulary(hidden_layers: int) -> None:
    """Of all weights and of the states, for a loss with a different factor on each output."""
    states, tokens = _inputs()
    gradients = []
    for chunked in (True, False):
        heads, inputs = _heads(hidden_layers), states.clone().requires_grad_()
        if chunked:
            q_values, soft = heads.q_and_logsumexp(inputs, tokens, temperature=1.0, chunk_tokens=2)
        else:
            everything = heads.q(inputs)
            q_values = everything.gather(2, tokens.expand(2, -1).unsqueeze(-1)).squeeze(-1)
            soft = everything.logsumexp(-1)
        factors = torch.arange(1.0, 2 * STATES + 1, dtype=torch.float64).view(2, STATES)
        ((soft * factors).sum() - (q_values * factors.flip(1)).sum()).backward()
        gradients.append([inputs.grad, *(value.grad for value in heads.critics.parameters())])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_states_may_have_any_leading_axes() -> None:
    heads, (states, tokens) = _heads(1), _inputs()
    pairs, ids = states[:6].view(2, 3, SIZE), tokens[:6].view(2, 3)
    torch.testing.assert_close(heads.q(pairs).flatten(1, 2), heads.q(states[:6]))
    torch.testing.assert_close(heads.q_at(pairs, ids).flatten(1), heads.q_at(states[:6], tokens[:6]))
    torch.testing.assert_close(heads.v(pairs).flatten(), heads.v(states[:6]))


def test_half_precision_states_are_read_in_the_dtype_of_the_heads() -> None:
    heads, (states, tokens) = _heads(1).float(), _inputs()
    half = states.bfloat16()
    assert torch.equal(heads.q_at(half, tokens), heads.q_at(half.float(), tokens))
    assert heads.q(half).dtype == torch.float32


@pytest.mark.parametrize("hidden_layers", [0, 1, 2])
def test_heads_that_absorbed_a_transformation_read_plain_states(hidden_layers: int) -> None:
    heads, (states, _) = _heads(hidden_layers), _inputs()
    mean = states.mean(dim=0)
    matrix = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    transformed = (states - mean) @ matrix
    q_values, values = heads.q(transformed).detach(), heads.v(transformed).detach()
    heads.absorb(mean, matrix)
    torch.testing.assert_close(heads.q(states), q_values)
    torch.testing.assert_close(heads.v(states), values)


def test_the_seed_decides_the_weights_and_critics_start_apart() -> None:
    state = torch.random.get_rng_state()
    one, same, other = _heads(1), _heads(1), _heads(1, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    states, _ = _inputs()
    assert torch.equal(one.q(states), same.q(states))
    assert not torch.equal(one.q(states), other.q(states))
    assert not torch.equal(one.q(states)[0], one.q(states)[1])


def test_untrained_values_are_small() -> None:
    """A token that training never saw keeps a Q near its first one, which must not look like a return."""
    shape = TokenHeadShape(64, 1_000, hidden_layers=1, hidden_size=128)
    heads = TokenValueHeads(shape, generator=torch.Generator().manual_seed(0))
    states = torch.randn(50, 64, generator=torch.Generator().manual_seed(1))
    assert heads.q(states).std() < 0.2


@pytest.mark.parametrize(("hidden_layers", "critics"), [(0, 1), (2, 2)])
def test_saved_heads_come_back_frozen(hidden_layers: int, critics: int, tmp_path: Path) -> None:
    heads, (states, _) = _heads(hidden_layers, critics=critics).float(), _inputs()
    save_token_heads(heads, tmp_path / "policy")
    loaded = load_token_heads(tmp_path / "policy")
    assert loaded.shape == heads.shape
    assert torch.equal(loaded.q(states), heads.q(states))
    assert torch.equal(loaded.v(states), heads.v(states))
    assert not any(value.requires_grad for value in loaded.parameters())
    assert len(loaded.q(states)) == critics


@pytest.mark.parametrize(
    ("name", "content"), [(WEIGHTS_NAME, None), (CONFIG_NAME, None), (CONFIG_NAME, b"{"), (WEIGHTS_NAME, b"x")]
)
def test_damaged_heads_are_refused_with_a_remedy(name: str, content: bytes | None, tmp_path: Path) -> None:
    save_token_heads(_heads(), tmp_path)
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"cannot read the token value heads .* train them again"):
        load_token_heads(tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    save_token_heads(_heads(1), tmp_path / "one")
    save_token_heads(_heads(0), tmp_path / "other")
    (tmp_path / "one" / CONFIG_NAME).replace(tmp_path / "other" / CONFIG_NAME)
    with pytest.raises(DataError, match="cannot read the token value heads"):
        load_token_heads(tmp_path / "other")
