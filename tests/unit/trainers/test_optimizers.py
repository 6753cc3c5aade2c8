"""Muon and AdamW as one optimizer: who gets which parameter, schedules reach both, a resumed run goes on alike."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from offline_arl.trainers.optimizers import MuonWithAdamW, split_parameters


def tiny(tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def test_hidden_matrices_go_to_muon_and_the_rest_to_adamw() -> None:
    for tied in (True, False):
        model = tiny(tied)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        matrices, others = split_parameters(model)
        # 4 attention and 3 MLP matrices; embeddings, output layer and the three norms stay with AdamW.
        assert sorted(names[id(p)].rsplit(".", 2)[-2] for p in matrices) == [
            "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
        ]  # fmt: skip
        assert len(others) == (4 if tied else 5)


def step(model: LlamaForCausalLM, optimizer: MuonWithAdamW) -> float:
    ids = torch.arange(20).reshape(2, 10)
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss)


def make(model: LlamaForCausalLM) -> MuonWithAdamW:
    return MuonWithAdamW(model, learning_rate=1e-2, weight_decay=0.0, adam_beta2=0.98)


def test_a_learning_rate_schedule_reaches_both_parts() -> None:
    model = tiny(True)
    optimizer = make(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 0.0 if update else 1.0)
    first = step(model, optimizer)
    scheduler.step()
    assert [group["lr"] for part in optimizer.parts for group in part.param_groups] == [0.0, 0.0]
    frozen = copy.deepcopy(model.state_dict())
    assert step(model, optimizer) < first
    assert all(torch.equal(frozen[name], value) for name, value in model.state_dict().items())


def test_a_restored_optimizer_goes_on_as_the_original() -> None:
    model = tiny(True)
    optimizer = make(model)
    step(model, optimizer)
    twin = copy.deepcopy(model)
    restored = make(twin)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer)
    step(twin, restored)
    twin_state = twin.state_dict()
    assert all(torch.equal(twin_state[name], value) for name, value in model.state_dict().items())


def test_rows_of_new_tokens_beside_adapters_go_to_adamw() -> None:
    peft = pytest.importorskip("peft")
    for tied in (True, False):
        settings = peft.LoraConfig(r=2, target_modules="all-linear", trainable_token_indices=[3, 5])
        model = peft.get_peft_model(tiny(tied), settings)
        matrices, others = split_parameters(model)
        assert [value.shape for value in others] == [(2, 16)]
        assert len(matrices) == 14  # A and B of seven layers
