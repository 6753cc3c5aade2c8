"""Cloning models that differ from the usual one: heads of other names, tied or not, windows, half precision."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from toys import VOCABULARY, ToyTokenizer, toy_dataset, toy_rows

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import DataError, UsageError
from offline_arl.models.policy import load_model
from offline_arl.trainers.config import WeightedBCConfig
from offline_arl.trainers.weighted_bc import dataset_nll, train_weighted_bc

SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 48, "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": None,
}  # fmt: skip
LLAMA = {**SIZES, "num_key_value_heads": 1, "max_position_embeddings": 128}
MODELS: dict[str, Any] = {
    "tied": lambda: transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True),
    "untied": lambda: transformers.LlamaConfig(**LLAMA, tie_word_embeddings=False),
    "sliding window": lambda: transformers.MistralConfig(**LLAMA, sliding_window=5),
    "windows in every second layer": lambda: transformers.Gemma2Config(
        **{**LLAMA, "num_attention_heads": 2}, head_dim=16, sliding_window=5, final_logit_softcapping=5.0
    ),
    "head named embed_out": lambda: transformers.GPTNeoXConfig(**SIZES, tie_word_embeddings=False),
    "learned positions": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=64, initializer_range=0.2,
        bos_token_id=None, eos_token_id=1,
    ),
    "experts": lambda: transformers.MixtralConfig(**LLAMA, num_local_experts=4, num_experts_per_tok=2),
}  # fmt: skip


@pytest.fixture
def dataset(tmp_path: Path) -> SegmentDataset:
    return toy_dataset(tmp_path / "data", toy_rows(16))


def _model(name: str, *, dtype: torch.dtype = torch.float32) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(MODELS[name]()).to(dtype)


def _train(model: Any, dataset: SegmentDataset, folder: Path, **settings: Any) -> Any:
    config = WeightedBCConfig(**{"epochs": 8, "tokens_per_batch": 200, "learning_rate": 1e-2, **settings})
    return train_weighted_bc(model, ToyTokenizer(), dataset, config, folder, seed=0)


@pytest.mark.parametrize("settings", [{}, {"packing": True}, {"lora_rank": 4}], ids=["full", "packed", "lora"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_learns_and_comes_back_from_disk_as_it_was_saved(
    name: str, settings: dict[str, Any], dataset: SegmentDataset, tmp_path: Path
) -> None:
    model = _model(name)
    before, _ = dataset_nll(model, ToyTokenizer(), dataset)
    record = _train(model, dataset, tmp_path / "out", **settings)
    after, _ = dataset_nll(model, ToyTokenizer(), dataset)
    assert after < before - 0.3
    loaded = load_model(tmp_path / "out")
    assert dataset_nll(loaded, ToyTokenizer(), dataset)[0] == pytest.approx(after, abs=1e-5)
    assert loaded.config.use_cache
    assert record.metrics["packed"] == float("packing" in settings)


@pytest.mark.parametrize("lora_rank", [None, 4], ids=["full", "lora"])
def test_gradient_checkpointing_changes_nothing(lora_rank: int | None, dataset: SegmentDataset, tmp_path: Path) -> None:
    trained = {}
    for checkpointing in (False, True):
        model = _model("untied", dtype=torch.float64)
        settings = {"lora_rank": lora_rank, "max_steps": 3, "warmup_fraction": 0, "share_prefix": False}
        _train(model, dataset, tmp_path / str(checkpointing), gradient_checkpointing=checkpointing, **settings)
        trained[checkpointing] = dict(model.named_parameters())
    for name, value in trained[False].items():
        torch.testing.assert_close(trained[True][name], value, atol=1e-9, rtol=0, msg=name)


def test_computing_in_bfloat16_keeps_weights_in_float32(dataset: SegmentDataset, tmp_path: Path) -> None:
    model, exact = _model("untied"), _model("untied")
    _train(model, dataset, tmp_path / "half", precision="bfloat16")
    _train(exact, dataset, tmp_path / "full")
    assert {value.dtype for value in load_model(tmp_path / "half").parameters()} == {torch.float32}
    losses = [dataset_nll(one, ToyTokenizer(), dataset)[0] for one in (model, exact)]
    assert losses[0] == pytest.approx(losses[1], abs=0.1)


def test_weights_in_bfloat16_are_warned_of_and_adapters_on_them_are_not(
    dataset: SegmentDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "offline_arl"):
        model = _model("untied", dtype=torch.bfloat16)
        before, _ = dataset_nll(model, ToyTokenizer(), dataset)
        _train(model, dataset, tmp_path / "lora", lora_rank=4)
        assert not caplog.records
        assert dataset_nll(model, ToyTokenizer(), dataset)[0] < before - 0.3
        _train(_model("untied", dtype=torch.bfloat16), dataset, tmp_path / "full")
    (record,) = caplog.records
    assert "weights are trained in bfloat16, which rounds small updates away" in record.getMessage()


def test_a_tokenizer_without_a_pad_token_pads_with_the_end_token(dataset: SegmentDataset, tmp_path: Path) -> None:
    """What fills a row behind its end changes nothing."""
    losses = []
    for pad in (None, 0):
        tokenizer = ToyTokenizer()
        tokenizer.pad_token_id = pad  # type: ignore[assignment]
        config = WeightedBCConfig(epochs=2, tokens_per_batch=200)
        record = train_weighted_bc(_model("tied"), tokenizer, dataset, config, tmp_path / str(pad), seed=0)
        losses.append(record.metrics["last_loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    neither = SimpleNamespace(pad_token_id=None, eos_token_id=None)
    with pytest.raises(UsageError, match="neither a pad nor an end-of-sequence token"):
        train_weighted_bc(_model("tied"), neither, dataset, WeightedBCConfig(), tmp_path / "neither", seed=0)


def test_what_does_not_fit_the_model_is_told_before_training(tmp_path: Path) -> None:
    long = toy_dataset(tmp_path / "long", toy_rows(3, prefix=80))
    with pytest.raises(DataError, match=r"a segment has \d+ tokens and the model takes 64; .*max_tokens=64"):
        _train(_model("learned positions"), long, tmp_path / "out")
    small = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, "vocab_size": 10}))
    with pytest.raises(DataError, match="has token 23 and the model only 10 tokens; build the dataset with"):
        _train(small, toy_dataset(tmp_path / "data", toy_rows(16)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_segments_beyond_what_rotary_positions_were_made_for_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = toy_dataset(tmp_path / "long", toy_rows(3, prefix=130))
    with caplog.at_level(logging.WARNING, "offline_arl"):
        _train(_model("untied"), long, tmp_path / "out", max_steps=1)
    assert ["the model was made for 128" in record.getMessage() for record in caplog.records] == [True]


def test_an_empty_dataset_is_a_one_line_error(dataset: SegmentDataset, tmp_path: Path) -> None:
    class Empty(SegmentDataset):
        def __init__(self) -> None:
            self.lengths = np.zeros(0, dtype=np.int64)

        def __iter__(self) -> Iterator[Any]:
            return iter(())

    for use in (
        lambda: _train(_model("tied"), Empty(), tmp_path / "out"),
        lambda: dataset_nll(_model("tied"), ToyTokenizer(), Empty()),
    ):
        with pytest.raises(DataError, match="the dataset is empty; build it again"):
            use()
