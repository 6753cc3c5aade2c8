"""Rows for new tokens: what the model knew stays, the new rows differ, and no random state is touched."""

from __future__ import annotations

import pytest
import torch
from toys.llama import VOCABULARY, random_llama

from offline_arl.models.embeddings import embed_new_tokens

PROMPT = torch.tensor([[3, 7, 11]])


@pytest.mark.parametrize("tied", [True, False])
def test_what_the_model_knew_stays(tied: bool) -> None:
    model = random_llama(tied=tied)
    before = model(PROMPT).logits.detach().clone()
    embed_new_tokens(model, [VOCABULARY, VOCABULARY + 1], seed=0)
    after = model(PROMPT).logits
    assert after.shape[-1] == model.config.vocab_size == VOCABULARY + 2
    torch.testing.assert_close(after[..., :VOCABULARY], before)
    assert model.get_input_embeddings().weight.data_ptr() == model.get_output_embeddings().weight.data_ptr() or not tied


def test_new_tokens_differ_from_one_another_and_lie_among_the_others() -> None:
    model = random_llama()
    embed_new_tokens(model, [VOCABULARY, VOCABULARY + 1, VOCABULARY + 2], seed=0)
    weight = model.get_input_embeddings().weight.detach()
    known, new = weight[:VOCABULARY], weight[VOCABULARY:]
    assert torch.cdist(new, new)[~torch.eye(3, dtype=torch.bool)].min() > 0.1 * known.norm(dim=1).mean()
    assert new.norm(dim=1).max() < 2 * known.norm(dim=1).max()


def test_an_output_layer_of_its_own_does_not_prefer_a_new_token() -> None:
    """Its logit is the mean of the others'."""
    model = random_llama(tied=False)
    embed_new_tokens(model, [VOCABULARY], seed=0)
    logits = model(PROMPT).logits[0, -1]
    torch.testing.assert_close(logits[VOCABULARY], logits[:VOCABULARY].mean(), atol=1e-5, rtol=1e-4)


def test_a_model_with_room_to_spare_keeps_its_size() -> None:
    """Matrices padded to a round number of rows: the tokenizer knows fewer tokens than there are rows."""
    model = random_llama()
    untouched = model.get_input_embeddings().weight.detach().clone()
    embed_new_tokens(model, [VOCABULARY - 4, VOCABULARY - 3], seed=0)
    weight = model.get_input_embeddings().weight
    assert weight.shape[0] == VOCABULARY
    changed = (weight != untouched).any(dim=1).nonzero()[:, 0].tolist()
    assert changed == [VOCABULARY - 4, VOCABULARY - 3]


def test_rows_depend_on_the_seed_alone() -> None:
    state = torch.get_rng_state()
    rows = []
    for seed in (0, 0, 1):
        model = random_llama()
        embed_new_tokens(model, [VOCABULARY], seed=seed)
        rows.append(model.get_input_embeddings().weight[VOCABULARY].detach().clone())
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    assert torch.equal(torch.get_rng_state(), state)
