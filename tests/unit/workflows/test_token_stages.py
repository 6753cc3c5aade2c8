"""The stages that fit token-level heads: what they leave, and that a guided policy comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra train")

import torch
from toys.token_transitions import walk_transitions

from offline_arl.errors import DataError, UsageError
from offline_arl.models.policy import load_model, policy_fingerprint
from offline_arl.models.token_heads import load_token_heads
from offline_arl.trainers.value_record import load_value_record
from offline_arl.workflows.config import load_pipeline
from offline_arl.workflows.context import StageOutputs
from offline_arl.workflows.single import run_stage

SETTINGS = {"max_steps": 3, "batch_size": 8, "tokens_per_batch": 256, "holdout_fraction": 0.25}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return walk_transitions(tmp_path_factory.mktemp("tokens"))


def _train(data: Path, output: Path, algorithm: str, **settings: Any) -> StageOutputs:
    raw = {"kind": "train", "algorithm": algorithm, **SETTINGS, **settings}
    return run_stage(raw, {"dataset": data, "policy": data / "policy"}, output, name="values")


@pytest.mark.parametrize("algorithm", ["token_iql_values", "token_cql_values"])
def test_a_stage_leaves_heads_a_record_a_card_and_the_policy_that_they_read(
    algorithm: str, data: Path, tmp_path: Path
) -> None:
    outputs = _train(data, tmp_path / "out", algorithm, hidden_layers=0)
    values, policy = (tmp_path / "out" / outputs.artifacts[name] for name in ("values", "policy"))
    model, heads, record = load_model(policy), load_token_heads(values), load_value_record(values)
    assert policy_fingerprint(model) == policy_fingerprint(load_model(data / "policy")) == record.policy_sha256
    assert (heads.shape.vocabulary_size, heads.shape.state_size) == model.get_output_embeddings().weight.shape
    assert record.algorithm == algorithm
    assert record.config["max_steps"] == 3
    assert record.metrics["updates"] == 3
    assert "held_out/q_loss" in record.metrics
    card = (values / "README.md").read_text()
    for told in (algorithm, record.policy_sha256, record.dataset_sha256, "load_token_heads", "| `max_steps` | 3 |"):
        assert told in card
    assert "each head is linear" in card
    assert any("on held-out tasks" in note for note in outputs.notes)
    assert not (tmp_path / "out.training").exists()


def test_a_trained_model_is_saved_with_heads_for_its_own_states(data: Path, tmp_path: Path) -> None:
    outputs = _train(data, tmp_path / "out", "token_iql_values", language_model="trained", policy_learning_rate=0.01)
    record = load_value_record(tmp_path / "out" / outputs.artifacts["values"])
    model = load_model(tmp_path / "out" / outputs.artifacts["policy"])
    assert policy_fingerprint(model) == record.policy_sha256
    assert record.policy_sha256 != policy_fingerprint(load_model(data / "policy"))
    assert any("computed for every batch" in note for note in outputs.notes)


def test_a_guided_policy_comes_of_it(data: Path, tmp_path: Path) -> None:
    _train(data, tmp_path / "values", "token_iql_values")
    raw = {"kind": "train", "algorithm": "value_guided", "inverse_temperature": 4.0}
    inputs = {"dataset": data, "policy": tmp_path / "values", "values": tmp_path / "values"}
    outputs = run_stage(raw, inputs, tmp_path / "guided", name="guided")
    assert (tmp_path / "guided" / outputs.artifacts["policy"] / "value_guidance.json").is_file()
    assert outputs.metrics["divergence/guided"].n > 0


def test_the_same_seed_gives_the_same_heads(data: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        _train(data, tmp_path / name, "token_iql_values")
    one, two = (load_token_heads(tmp_path / name / "values").state_dict() for name in ("one", "two"))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_dataset_for_another_tokenizer_is_refused(data: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "other"
    tokenizer.mkdir()
    for path in (data / "policy").iterdir():
        (tokenizer / path.name).write_bytes(path.read_bytes())
    template = tokenizer / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|user|>", "<|user|> "))
    with pytest.raises(DataError, match="another tokenizer or chat template"):
        run_stage(
            {"kind": "train", "algorithm": "token_iql_values", **SETTINGS},
            {"dataset": data, "policy": tokenizer}, tmp_path / "out", name="values",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("expectile: 1.0", "expectile"),
        ("discount: 1.1", "discount"),
        ("conservative_weight: -1", "conservative_weight"),
        ("hidden_layers: 3", "hidden_layers"),
        ("critics: 0", "critics"),
        ("target_update_rate: 0", "target_update_rate"),
        ("discount_unit: episode", "discount_unit"),
        ("packing: true", "packing"),
    ],
)
def test_settings_out_of_range_are_refused_before_work_begins(setting: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "name: p\ndescription: d\nseed: 0\nsource: log.jsonl\nmodel: tiny\nstages:\n"
        "  store: {kind: ingest}\n  start: {kind: initial_policy, store: store}\n"
        "  data: {kind: dataset, form: transitions, store: store, policy: start}\n"
        f"  values: {{kind: train, algorithm: token_iql_values, dataset: data, policy: start, {setting}}}\n"
    )
    with pytest.raises(UsageError, match=complaint):
        load_pipeline(path)
