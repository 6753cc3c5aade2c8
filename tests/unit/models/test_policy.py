"""Running, saving and loading policies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from toys import VOCABULARY, toy_model, toy_rows

from offline_arl.datasets.collate import collate_segments
from offline_arl.errors import UsageError
from offline_arl.models.policy import (
    hidden_states,
    load_policy,
    policy_fingerprint,
    save_policy,
    selected_logits,
    supports_shared_prefix,
)
from offline_arl.models.tiny import build_tiny_policy, train_tiny_tokenizer
from offline_arl.objectives import predicting_mask

CLOSE = {"atol": 2e-5, "rtol": 2e-5}  # the models' norms and rotations work in float32
ARCHITECTURES = pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma2", "gpt2"])


def _batch():
    return collate_segments(toy_rows(5), pad_token_id=0)


@ARCHITECTURES
@pytest.mark.parametrize("share", [False, True])
def test_selected_logits_and_their_gradients_equal_the_full_ones(architecture: str, share: bool) -> None:
    """Gemma 2 caps its logits after the output layer and has sliding windows: both must survive."""
    model, batch = toy_model(architecture), _batch()
    selected = predicting_mask(batch.action_mask)
    assert batch.shared_prefix >= 8
    full = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[selected]
    full.square().sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    got = selected_logits(
        model,
        batch.input_ids,
        batch.attention_mask,
        selected,
        shared_prefix=batch.shared_prefix if share else 0,
    )
    got.square().sum().backward()
    torch.testing.assert_close(got, full, **CLOSE)
    for name, parameter in model.named_parameters():
        scale = expected[name].abs().max()
        torch.testing.assert_close(parameter.grad / scale, expected[name] / scale, **CLOSE, msg=name)


def test_the_hook_is_gone_afterwards() -> None:
    model, batch = toy_model(), _batch()
    selected_logits(model, batch.input_ids, batch.attention_mask, predicting_mask(batch.action_mask))
    assert model(input_ids=batch.input_ids).logits.shape == (*batch.input_ids.shape, VOCABULARY)


def test_a_prefix_is_shared_only_where_all_layers_see_all_of_it() -> None:
    assert supports_shared_prefix(toy_model("llama"))
    assert supports_shared_prefix(toy_model("gpt2"))
    assert not supports_shared_prefix(toy_model("gemma2"))
    checkpointed = toy_model("llama")
    checkpointed.gradient_checkpointing_enable()
    assert not supports_shared_prefix(checkpointed)


@ARCHITECTURES
@pytest.mark.parametrize("share", [False, True])
def test_hidden_states_equal_what_the_model_reports(architecture: str, share: bool) -> None:
    model, batch = toy_model(architecture), _batch()
    reported = model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_hidden_states=True
    ).hidden_states
    states, offset = hidden_states(
        model,
        batch.input_ids,
        batch.attention_mask,
        layers=(1, -1),
        shared_prefix=batch.shared_prefix if share else 0,
    )
    assert offset == (batch.shared_prefix if share and architecture != "gemma2" else 0)
    expected = torch.cat([reported[1], reported[-1]], dim=-1)[:, offset:]
    tokens = batch.attention_mask[:, offset:].bool()
    torch.testing.assert_close(states[tokens], expected[tokens], **CLOSE)


def test_a_layer_that_does_not_exist_is_named() -> None:
    batch = _batch()
    with pytest.raises(UsageError, match="hidden states 0 to 2, there is no layer 5"):
        hidden_states(toy_model(), batch.input_ids, batch.attention_mask, layers=(5,))


@pytest.mark.parametrize("tie", [True, False])
def test_a_saved_policy_comes_back_the_same(tie: bool, tmp_path: Path) -> None:
    tokenizer = train_tiny_tokenizer(["some text, some more text"] * 5, vocabulary_size=300)
    model = build_tiny_policy(tokenizer, seed=0, hidden_size=32, layers=1, heads=1, tie_embeddings=tie)
    save_policy(model, tokenizer, tmp_path / "policy")
    loaded, loaded_tokenizer = load_policy(tmp_path / "policy")
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert policy_fingerprint(loaded) == policy_fingerprint(model)
    assert loaded_tokenizer.chat_template == tokenizer.chat_template
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    assert not list((tmp_path / "policy").glob("*.bin"))


def test_any_change_of_the_weights_changes_the_fingerprint() -> None:
    model = toy_model()
    before = policy_fingerprint(model)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 4] += 1e-3
    assert policy_fingerprint(model) != before
    assert policy_fingerprint(toy_model().bfloat16()) != before


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config.json", b"{", "not a valid JSON file"),
        ("config.json", b"[]", "model_type|must be a mapping"),
        ("tokenizer.json", b"{}", "KeyError: 'added_tokens'"),
        ("model.safetensors", b"", "header too small"),
        ("model.safetensors", None, "no file named model.safetensors"),  # weights in a pickle are not read
    ],
)
def test_a_damaged_model_is_a_one_line_usage_error(
    tmp_path: Path, file: str, content: bytes | None, reason: str
) -> None:
    folder = _saved_policy(tmp_path)
    if content is None:
        weights = load_file(folder / file)
        (folder / file).unlink()
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(UsageError, match=reason) as failure:
        load_policy(folder)
    assert str(folder) in str(failure.value)
    assert "\n" not in str(failure.value)


def test_missing_weights_are_not_made_up(tmp_path: Path) -> None:
    """transformers fills them with random numbers and only warns."""
    folder = _saved_policy(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.0.mlp.gate_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"lacks 1 of its weights, the first 'model\.layers\.0\.mlp\.gate_proj"):
        load_policy(folder)


def _saved_policy(tmp_path: Path) -> Path:
    tokenizer = train_tiny_tokenizer(["some text, some more text"] * 5, vocabulary_size=300)
    save_policy(build_tiny_policy(tokenizer, seed=0, hidden_size=32, layers=1, heads=1), tokenizer, tmp_path / "policy")
    return tmp_path / "policy"


def test_a_missing_model_is_a_one_line_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UsageError) as failure:
        load_policy(tmp_path / "nowhere")
    assert "nowhere" in str(failure.value)
    assert "\n" not in str(failure.value)
    with pytest.raises(UsageError, match="float32, bfloat16, float16"):
        load_policy(tmp_path, "float8")
