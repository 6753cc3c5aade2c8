"""Rows that share a prompt: one pass over each prompt gives what the plain way gives, values and gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from toys import VOCABULARY, toy_model

from offline_arl.models import grouped_prefix
from offline_arl.models.grouped_prefix import grouped_logits

CLOSE = {"atol": 2e-5, "rtol": 2e-5}


class Batch(NamedTuple):
    """Three prompts with two, three and one continuation, in mixed order."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    selected: torch.Tensor
    groups: torch.Tensor
    prefix_lengths: torch.Tensor


def make_batch(*, common: int = 0, lengths: tuple[int, ...] = (20, 31, 12)) -> Batch:
    """`common` tokens are the same in all prompts. Every continuation has three to nine tokens."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(2, VOCABULARY, (count,), generator=generator).tolist()

    start = tokens(common)
    prompts = [start + tokens(length - common) for length in lengths]
    groups = [0, 1, 0, 2, 1, 1]
    rows = [prompts[group] + tokens(3 + int(torch.randint(7, (1,), generator=generator))) for group in groups]
    width = max(map(len, rows))
    return Batch(
        input_ids=torch.tensor([row + [0] * (width - len(row)) for row in rows]),
        attention_mask=torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
        # Predict everything behind the prompt: the token in front of it is the first behind the shared prefix.
        selected=torch.tensor(
            [
                [lengths[group] <= place < len(row) - 1 for place in range(width)]
                for row, group in zip(rows, groups, strict=True)
            ]
        ),
        groups=torch.tensor(groups),
        prefix_lengths=torch.tensor(lengths),
    )


def run(model: Any, batch: Batch, shared_prefix: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    logits = grouped_logits(
        model, batch.input_ids, batch.attention_mask, batch.selected,
        groups=batch.groups, prefix_lengths=batch.prefix_lengths, shared_prefix=shared_prefix,
    )  # fmt: skip
    logits.log_softmax(-1)[:, 3].sum().backward()
    return logits.detach(), {name: value.grad.clone() for name, value in model.named_parameters()}


def passes(model: torch.nn.Module) -> list[tuple[int, int]]:
    """Shapes of the inputs of the model's embedding, one a pass, filled as the model runs."""
    seen: list[tuple[int, int]] = []
    embedding = model.get_input_embeddings()
    embedding.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    return seen


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2", "gemma2"])
@pytest.mark.parametrize("common", [0, 10])
def test_values_and_gradients_are_those_of_whole_rows(architecture: str, common: int) -> None:
    model, batch = toy_model(architecture), make_batch(common=common)
    full = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[batch.selected]
    full.log_softmax(-1)[:, 3].sum().backward()
    expected = {name: value.grad.clone() for name, value in model.named_parameters()}
    seen = passes(model)
    logits, gradients = run(model, batch, shared_prefix=common)
    torch.testing.assert_close(logits, full, **CLOSE)
    for name, gradient in gradients.items():
        scale = expected[name].abs().max()
        torch.testing.assert_close(gradient / scale, expected[name] / scale, **CLOSE, msg=name)
    # Gemma 2 has sliding windows: whole rows there.
    rows, longest = batch.groups.shape[0], 12
    if architecture == "gemma2":
        assert seen == [tuple(batch.input_ids.shape)]
    else:
        assert seen[:-1] == ([(1, common), (3, 31 - common)] if common else [(3, 31)])
        assert seen[-1][0] == rows
        assert seen[-1][1] < longest


def test_every_token_of_a_prompt_gets_gradient_from_all_its_continuations() -> None:
    """The gradient at a prompt's embeddings is the sum of those of the continuations alone."""
    model, batch = toy_model(dtype=torch.float64), make_batch()

    def prompt_gradient(rows: list[int]) -> torch.Tensor:
        model.zero_grad()
        chosen = Batch(*(value[rows] for value in batch[:4]), batch.prefix_lengths)
        run(model, chosen._replace(groups=torch.zeros(len(rows), dtype=torch.long), prefix_lengths=torch.tensor([31])))
        return model.get_input_embeddings().weight.grad.clone()

    together = prompt_gradient([1, 4, 5])
    alone = sum(prompt_gradient([row]) for row in (1, 4, 5))
    torch.testing.assert_close(together, alone, **CLOSE)  # the models' norms and rotations work in float32


@pytest.mark.parametrize(
    ("lengths", "why"),
    [((20, 31, 5), "a prompt is shorter than what is worth a pass"), ((11, 11, 11), "little is saved")],
)
def test_whole_rows_are_taken_where_nothing_is_saved(
    lengths: tuple[int, ...], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = toy_model(), make_batch(lengths=lengths)
    if lengths == (11, 11, 11):
        monkeypatch.setattr(grouped_prefix, "WORTH_IT", 0.3)
    seen = passes(model)
    run(model, batch)
    assert seen == [tuple(batch.input_ids.shape)], why


def test_adapters_work_as_the_plain_model_does() -> None:
    peft = pytest.importorskip("peft")
    model = toy_model()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        adapted = peft.get_peft_model(
            model, peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
        )
    batch = make_batch(common=10)
    full = adapted(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[batch.selected]
    logits = grouped_logits(
        adapted, batch.input_ids, batch.attention_mask, batch.selected,
        groups=batch.groups, prefix_lengths=batch.prefix_lengths, shared_prefix=10,
    )  # fmt: skip
    torch.testing.assert_close(logits, full, **CLOSE)
