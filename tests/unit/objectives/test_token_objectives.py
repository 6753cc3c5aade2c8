"""What is particular to objectives with one decision a token."""

from __future__ import annotations

import pytest
import torch

from offline_arl import objectives


def _token_iql_inputs(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Two rows of five tokens; action tokens lie before and after observation tokens."""
    inputs = {
        name: torch.randn(2, 5, generator=generator, dtype=torch.float64)
        for name in ("values", "bootstrap_values", "rewards")
    }
    for name in ("twin_q_values", "twin_logsumexp", "target_q_values"):
        inputs[name] = torch.randn(2, 2, 5, generator=generator, dtype=torch.float64)
    inputs["action_mask"] = torch.tensor([[False, True, False, True, True], [False, True, True, False, False]])
    inputs["terminated"] = torch.tensor([[False] * 4 + [True], [False] * 5])
    inputs["truncated"] = torch.tensor([[False] * 5, [False, False, True, False, False]])
    inputs["has_target"] = torch.ones(2, 5, dtype=torch.bool)
    return inputs


def test_the_value_function_learns_from_the_expectile_alone() -> None:
    """V stands in the critics' target too; no gradient comes back from there."""
    inputs = _token_iql_inputs(torch.Generator().manual_seed(0))
    values = inputs.pop("values").requires_grad_()
    losses = objectives.token_iql_losses(values=values, **inputs, discount=0.9, expectile=0.8)
    (gradient,) = torch.autograd.grad(losses.value.sum() + losses.critics.sum(), values, allow_unused=True)
    own = objectives.expectile_loss(inputs["target_q_values"].amin(dim=0), values, inputs["action_mask"], expectile=0.8)
    (expected,) = torch.autograd.grad(own.sum(), values)
    assert torch.equal(gradient, expected)
    assert not losses.critics.requires_grad


def test_tokens_without_a_next_state_train_everything_but_the_critics_error() -> None:
    """The second row is cut off and nobody knows what came next: its last critic error goes, the rest stays."""
    inputs = _token_iql_inputs(torch.Generator().manual_seed(0))
    known = objectives.token_iql_losses(**inputs, discount=0.9, expectile=0.8)
    inputs["bootstrap_values"] = torch.full_like(inputs["bootstrap_values"], float("nan"))
    inputs["has_target"][1, 2] = False
    unknown = objectives.token_iql_losses(**inputs, discount=0.9, expectile=0.8)
    assert unknown.critics[1, 2] == 0
    rest = torch.ones(2, 5, dtype=torch.bool)
    rest[1, 2] = False
    assert torch.equal(unknown.critics[rest], known.critics[rest])
    assert torch.equal(unknown.value, known.value)
    assert torch.equal(unknown.conservative, known.conservative)


def test_the_advantages_of_tokens_are_those_of_awac() -> None:
    """min(Q1, Q2) - V on action tokens, 0 elsewhere, without a gradient."""
    inputs = _token_iql_inputs(torch.Generator().manual_seed(0))
    inputs["values"].requires_grad_()
    advantages = objectives.token_iql_losses(**inputs, discount=0.9, expectile=0.8).advantages
    assert not advantages.requires_grad
    for row in range(2):
        for token in range(5):
            q_first, q_second = inputs["target_q_values"][:, row, token].tolist()
            expected = min(q_first, q_second) - inputs["values"][row, token].item()
            shown = advantages[row, token].item()
            assert shown == pytest.approx(expected if inputs["action_mask"][row, token] else 0.0)


def test_a_critic_on_candidates_equals_one_on_a_vocabulary() -> None:
    """Three tokens as candidates of messages or as a vocabulary: one loss, one gradient, one next value."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    weights, biases = (torch.randn(2, 3, *shape, generator=generator, dtype=torch.float64) for shape in ((2,), ()))
    ids = torch.randint(3, (1, 7), generator=generator)
    mask = torch.tensor([[False] + [True] * 6])
    weights.requires_grad_()
    results = []
    for over_vocabulary in (True, False):
        if over_vocabulary:
            critics = [
                objectives.token_q_values(features, weight, bias, ids, mask, temperature=0.7, chunk_tokens=4)
                for weight, bias in zip(weights, biases, strict=True)
            ]
            both = [torch.stack(part) for part in zip(*critics, strict=True)]
            loss = objectives.conservative_loss(both[1], both[0], mask)[:, 1:]
        else:
            q_values = torch.einsum("nk,cvk->cnv", features, weights) + biases.unsqueeze(1)
            taken = q_values.gather(-1, ids[:, 1:].reshape(1, 6, 1).expand(2, 6, 1)).squeeze(-1)
            everything = torch.ones(6, 3, dtype=torch.bool)
            loss = objectives.candidate_conservative_loss(
                q_values, everything, taken, mask[0, 1:], temperature=0.7
            ).unsqueeze(0)
        results.append((loss.detach(), torch.autograd.grad(loss.square().sum(), weights)[0]))
    torch.testing.assert_close(results[0], results[1])
    online, target = weights.detach(), torch.randn(2, 3, 2, generator=generator, dtype=torch.float64)
    rows = features.expand(2, 6, 2)
    values = objectives.vocabulary_double_q_values(rows, online, biases, rows, target, -biases, chunk_tokens=4)
    online_q, target_q = (torch.einsum("nk,cvk->cnv", features, weight) for weight in (online, target))
    expected = objectives.double_q_values(
        online_q + biases.unsqueeze(1), target_q - biases.unsqueeze(1), torch.ones(6, 3, dtype=torch.bool)
    )
    torch.testing.assert_close(values, expected)


def test_chunks_of_the_vocabulary_change_neither_values_nor_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    features, weight = torch.randn(7, 3, generator=generator), torch.randn(5, 3, generator=generator)
    ids, mask = torch.randint(5, (1, 8), generator=generator), torch.tensor([[False] + [True] * 7])
    results = []
    for chunk in (1, 3, 100):
        leaves = features.double().requires_grad_(), weight.double().requires_grad_()
        out = objectives.token_q_values(*leaves, None, ids, mask, temperature=1.0, chunk_tokens=chunk)
        (out.logsumexp.square() - out.q_values.square()).sum().backward()
        results.append((out.q_values.detach(), out.logsumexp.detach(), leaves[0].grad, leaves[1].grad))
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


def test_a_frozen_head_or_frozen_features_get_no_gradient() -> None:
    features, weight, bias = torch.ones(1, 2), torch.ones(3, 2), torch.zeros(3)
    ids, mask = torch.tensor([[0, 1]]), torch.tensor([[False, True]])
    for trained in (features, weight, bias):
        trained.requires_grad_()
        out = objectives.token_q_values(features, weight, bias, ids, mask, temperature=1.0, chunk_tokens=1)
        (gradient,) = torch.autograd.grad(out.logsumexp.sum() - out.q_values.sum(), trained)
        # Three tokens alike: the softmax is 1 / 3 for each, less one at the token taken.
        expected = {3: [1 / 3, -2 / 3, 1 / 3]} if trained is bias else {}
        if trained is weight:
            expected = {3: [[1 / 3] * 2, [-2 / 3] * 2, [1 / 3] * 2]}
        if trained is features:  # all rows of the weight are alike, so moving along them changes nothing
            expected = {1: [[0.0, 0.0]]}
        torch.testing.assert_close(gradient, torch.tensor(expected[len(trained)]), rtol=0, atol=1e-6)
        trained.requires_grad_(False)


def test_half_precision_vocabularies_are_summed_in_float32() -> None:
    """Near 15 bfloat16 steps by 1 / 16; single products are rounded to it, the sum over 20,000 tokens is not."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(4, 8, generator=generator).bfloat16()
    weight = torch.randn(20_000, 8, generator=generator).bfloat16().requires_grad_()
    ids, mask = torch.randint(20_000, (1, 5), generator=generator), torch.tensor([[False] + [True] * 4])
    out = objectives.token_q_values(features, weight, None, ids, mask, temperature=1.0, chunk_tokens=2)
    assert out.logsumexp.dtype == torch.float32
    exact = (features.double() @ weight.detach().double().T).logsumexp(dim=-1).float()
    torch.testing.assert_close(out.logsumexp[0, 1:], exact, rtol=0, atol=0.01)
    out.logsumexp.sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.bfloat16
    softmax = (features.double() @ weight.detach().double().T).softmax(dim=-1)
    expected = softmax.T @ features.double()
    assert (weight.grad.double() - expected).norm() < 0.03 * expected.norm()  # Q itself is rounded by up to 1 / 32
