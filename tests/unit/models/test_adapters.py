"""LoRA adapters as policies: trained, saved beside the merged policy, loaded back on their base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import toy_dataset, toy_rows

from offline_arl.errors import UsageError
from offline_arl.models.adapters import adapter_base, is_adapter, whole_policy
from offline_arl.models.policy import load_policy, save_policy
from offline_arl.models.tiny import build_tiny_policy, train_tiny_tokenizer
from offline_arl.rollouts.sampler import SamplingConfig
from offline_arl.rollouts.transformers_sampler import TransformersSampler
from offline_arl.trainers.config import WeightedBCConfig
from offline_arl.trainers.weighted_bc import train_weighted_bc

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that adapters were trained for and merged into; its start lies beside it."""
    folder = tmp_path_factory.mktemp("lora")
    tokenizer = train_tiny_tokenizer(["some text, some more text"] * 5, vocabulary_size=300)
    save_policy(build_tiny_policy(tokenizer, seed=0, hidden_size=32, layers=1, heads=1), tokenizer, folder / "start")
    model, tokenizer = load_policy(folder / "start")
    config = WeightedBCConfig(epochs=4, lora_rank=2, learning_rate=1e-2, tokens_per_batch=400)
    train_weighted_bc(model, tokenizer, toy_dataset(folder / "data", toy_rows(24)), config, folder / "policy", seed=0)
    return folder


def _logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(2, 20)[None]).logits


def test_the_adapters_alone_give_the_merged_policy(trained: Path) -> None:
    start, _ = load_policy(trained / "start")
    merged, _ = load_policy(trained / "policy")
    adapter = trained / "policy" / "adapter"
    assert is_adapter(adapter)
    assert not is_adapter(trained / "policy")
    assert Path(adapter_base(adapter)) == trained / "start"
    loaded, tokenizer = load_policy(adapter)
    torch.testing.assert_close(_logits(loaded), _logits(merged), atol=1e-6, rtol=0)
    assert (_logits(merged) - _logits(start)).abs().max() > 0.1
    assert type(loaded) is type(start)
    assert tokenizer.chat_template is not None
    assert (adapter / "adapter_model.safetensors").stat().st_size < 0.5 * (
        trained / "policy" / "model.safetensors"
    ).stat().st_size


def test_adapters_sample_as_the_merged_policy_does(trained: Path) -> None:
    completions = []
    for folder in (trained / "policy" / "adapter", trained / "policy"):
        sampler = TransformersSampler(folder, stop_token_ids=[1], max_model_len=64)
        completions.append(sampler.generate([[5, 6, 7]], SamplingConfig(max_tokens=8), seeds=[0])[0].token_ids)
    assert completions[0] == completions[1]


def test_other_programs_get_a_folder_with_all_weights(trained: Path) -> None:
    with whole_policy(trained / "policy", "float32") as same:
        assert same == trained / "policy"
    with whole_policy(trained / "policy" / "adapter", "float32") as folder:
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in Path(folder).iterdir()}
        torch.testing.assert_close(_logits(load_policy(folder)[0]), _logits(load_policy(trained / "policy")[0]))
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "cannot read the adapters' configuration"),
        ("{}", "names no base_model_name_or_path"),
        (json.dumps({"base_model_name_or_path": "/nowhere/model"}), "the model /nowhere/model .* is not there"),
    ],
)
def test_adapters_without_their_model_are_one_line_errors(config: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(config)
    with pytest.raises(UsageError, match=message):
        load_policy(tmp_path)


def test_damaged_adapters_are_a_one_line_error(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_bytes((trained / "policy/adapter/adapter_config.json").read_bytes())
    (tmp_path / "adapter_model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UsageError, match=r"cannot load the adapters of .*; save them again"):
        load_policy(tmp_path)
