"""Weighted cloning: the loss, what may not change it, resuming and saving."""

from __future__ import annotations

import contextlib
import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.optim.optimizer import register_optimizer_step_pre_hook
from toys import ToyTokenizer, toy_dataset, toy_model, toy_rows
from toys.llama import random_llama

from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.errors import DataError, UsageError
from offline_arl.models.policy import load_model, load_policy, policy_fingerprint
from offline_arl.models.tiny import build_tiny_policy, train_tiny_tokenizer
from offline_arl.trainers.checkpoint import load_record
from offline_arl.trainers.config import WeightedBCConfig
from offline_arl.trainers.weighted_bc import dataset_nll, train_weighted_bc

ALL_AT_ONCE = WeightedBCConfig(epochs=1, tokens_per_batch=100_000, warmup_fraction=0, logging_steps=1)


@pytest.fixture
def dataset(tmp_path: Path) -> SegmentDataset:
    return toy_dataset(tmp_path / "data", toy_rows(24))


def _train(model: Any, dataset: SegmentDataset, config: WeightedBCConfig, folder: Path, **options: Any) -> Any:
    return train_weighted_bc(model, ToyTokenizer(), dataset, config, folder, **{"seed": 0, **options})


def _step_nll(model: torch.nn.Module, row: SegmentRow) -> dict[int, list[float]]:
    """-log p of each action token by step, from an ordinary forward pass."""
    ids = torch.tensor(row.token_ids[None].astype(np.int64))
    with torch.no_grad():
        logprobs = model(ids).logits[0].double().log_softmax(-1)
    losses: dict[int, list[float]] = {}
    for position in np.flatnonzero(row.action_mask):
        value = -logprobs[position - 1, row.token_ids[position]].item()
        losses.setdefault(int(row.step_index[position]), []).append(value)
    return losses


def test_the_loss_is_the_weighted_sum_over_the_tokens_that_carry_weight(
    dataset: SegmentDataset, tmp_path: Path
) -> None:
    model, generator = toy_model(), np.random.default_rng(0)
    total, count, weights = 0.0, 0, {}
    for row in dataset:
        for step, losses in _step_nll(model, row).items():
            weight = float(generator.choice([0.0, 0.5, 3.0]))
            weights[row.trajectory_id, step] = weight
            total += weight * sum(losses)
            count += len(losses) if weight > 0 else 0
    record = _train(model, dataset, ALL_AT_ONCE, tmp_path / "out", step_weights=weights)
    assert record.metrics["updates"] == 1
    assert record.metrics["loss"] == pytest.approx(total / count, rel=1e-5)


def _after_one_update(dataset: SegmentDataset, folder: Path, **changes: Any) -> dict[str, torch.Tensor]:
    """float64, so that Adam's division by the gradient's own size does not blow up rounding."""
    model = toy_model(dtype=torch.float64)
    _train(model, dataset, ALL_AT_ONCE.model_copy(update=changes), folder)
    return {name: value.clone() for name, value in model.named_parameters()}


def test_the_split_into_micro_batches_changes_nothing(dataset: SegmentDataset, tmp_path: Path) -> None:
    """All rows in one batch, or in many small ones accumulated into the same single update."""
    whole = _after_one_update(dataset, tmp_path / "a")
    split = _after_one_update(dataset, tmp_path / "b", tokens_per_batch=60, gradient_accumulation_steps=24, max_steps=1)
    records = [load_record(tmp_path / name).metrics for name in ("a", "b")]
    assert records[1]["updates"] == 1
    # Adam's first update does not see a constant factor on the gradient; the loss that is differentiated does.
    assert records[1]["loss"] == pytest.approx(records[0]["loss"], rel=1e-5)
    for name, value in whole.items():
        torch.testing.assert_close(split[name], value, atol=1e-5, rtol=0, msg=name)


@pytest.mark.parametrize("accumulated", [3, 24])
@pytest.mark.parametrize("layout", [{}, {"packing": True}, {"share_prefix": False}], ids=["prefix", "packed", "padded"])
def test_accumulated_gradients_are_those_of_the_whole_batch_in_float32(
    accumulated: int, layout: dict[str, Any], dataset: SegmentDataset, tmp_path: Path
) -> None:
    """Weighted by tokens: micro-batches with few action tokens count less. To 1e-6 of the largest gradient."""
    weights = {(row.trajectory_id, step): float(step + 1) for row in dataset for step in range(5)}
    gradients: list[dict[str, torch.Tensor]] = []
    for name, changes in (
        ("whole", {"share_prefix": False}),
        ("split", {"tokens_per_batch": 2_000 // accumulated, "gradient_accumulation_steps": accumulated, **layout}),
    ):
        model = toy_model()
        config = ALL_AT_ONCE.model_copy(update={"max_steps": 1, "max_gradient_norm": 1e9, **changes})

        def keep(optimizer: torch.optim.Optimizer, *_: Any, model: torch.nn.Module = model) -> None:
            gradients.append({name: value.grad.clone() for name, value in model.named_parameters()})

        handle = register_optimizer_step_pre_hook(keep)
        try:
            record = _train(model, dataset, config, tmp_path / name, step_weights=weights)
        finally:
            handle.remove()
        assert record.metrics["trained_tokens"] == sum(int(row.action_mask[1:].sum()) for row in dataset)
    whole, split = gradients
    largest = max(value.abs().max().item() for value in whole.values())
    for name, value in whole.items():
        torch.testing.assert_close(split[name], value, atol=1e-6 * largest, rtol=0, msg=name)


def test_sharing_the_prefix_changes_nothing(dataset: SegmentDataset, tmp_path: Path) -> None:
    shared = _after_one_update(dataset, tmp_path / "a", share_prefix=True)
    plain = _after_one_update(dataset, tmp_path / "b", share_prefix=False)
    for name, value in plain.items():
        torch.testing.assert_close(shared[name], value, atol=1e-5, rtol=0, msg=name)


def test_segments_without_weight_are_left_out(dataset: SegmentDataset, tmp_path: Path) -> None:
    kept = {"t0", "t3", "t5"}
    weights = {
        (row.trajectory_id, int(step)): float(row.trajectory_id in kept)
        for row in dataset
        for step in np.unique(row.step_index[row.action_mask])
    }
    weighted, alone = toy_model(dtype=torch.float64), toy_model(dtype=torch.float64)
    record = _train(weighted, dataset, ALL_AT_ONCE, tmp_path / "a", step_weights=weights)
    few = toy_dataset(tmp_path / "few", [row for row in dataset if row.trajectory_id in kept])
    _train(alone, few, ALL_AT_ONCE, tmp_path / "b")
    assert record.metrics["tokens"] == few.manifest.counts["tokens"]
    for one, other in zip(weighted.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_a_row_that_is_seen_twice_in_an_epoch_counts_twice(dataset: SegmentDataset, tmp_path: Path) -> None:
    """One batch of rows 3, 3 and 5 has the gradient of row 3 with the weight 2 and row 5, over the same tokens."""
    frequencies = np.zeros(len(dataset))
    frequencies[3], frequencies[5] = 2.0, 1.0
    repeated, weighted = toy_model(dtype=torch.float64), toy_model(dtype=torch.float64)
    record = _train(repeated, dataset, ALL_AT_ONCE, tmp_path / "a", row_frequencies=frequencies)
    assert record.metrics["tokens"] == 2 * len(dataset[3]) + len(dataset[5])
    rows = [dataset[3], replace(dataset[3], trajectory_id="again"), dataset[5]]
    _train(weighted, toy_dataset(tmp_path / "rows", rows), ALL_AT_ONCE, tmp_path / "b")
    for one, other in zip(repeated.parameters(), weighted.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_frequencies_hold_over_the_whole_run(dataset: SegmentDataset, tmp_path: Path) -> None:
    """Half a time an epoch is twice in four epochs, whatever the seed; a third is once or twice."""
    for seed in (0, 1):
        config = ALL_AT_ONCE.model_copy(update={"epochs": 4.0})
        half, third = np.zeros(len(dataset)), np.zeros(len(dataset))
        half[7], third[7] = 0.5, 1 / 3
        seen = [
            _train(toy_model(), dataset, config, tmp_path / "out", row_frequencies=frequencies, seed=seed)
            for frequencies in (half, third)
        ]
        assert seen[0].metrics["tokens"] == 2 * len(dataset[7])
        assert seen[1].metrics["tokens"] in (len(dataset[7]), 2 * len(dataset[7]))
    with pytest.raises(DataError, match="seen even once"):
        _train(toy_model(), dataset, ALL_AT_ONCE, tmp_path / "out", row_frequencies=np.zeros(len(dataset)))


def test_a_diverged_policy_is_not_saved(dataset: SegmentDataset, tmp_path: Path) -> None:
    config = ALL_AT_ONCE.model_copy(update={"learning_rate": 1e38, "schedule": "constant_with_warmup", "epochs": 3.0})
    with pytest.raises(
        DataError, match=r"training diverged: the loss of update 2 is nan; lower learning_rate \(now 1e\+38\)"
    ):
        _train(toy_model(), dataset, config, tmp_path / "policy")
    assert not (tmp_path / "policy" / "model.safetensors").exists()


def test_missing_and_all_zero_weights_are_errors(dataset: SegmentDataset, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no weight"):
        _train(toy_model(), dataset, ALL_AT_ONCE, tmp_path / "out", step_weights={})
    zeros = {(row.trajectory_id, step): 0.0 for row in dataset for step in range(5)}
    with pytest.raises(DataError, match="nothing to train on"):
        _train(toy_model(), dataset, ALL_AT_ONCE, tmp_path / "out", step_weights=zeros)
    assert not (tmp_path / "out").exists()


def test_a_resumed_run_ends_where_a_straight_one_does(dataset: SegmentDataset, tmp_path: Path) -> None:
    config = WeightedBCConfig(epochs=3, tokens_per_batch=150, save_steps=4)
    straight, resumed = toy_model(), toy_model()
    record = _train(straight, dataset, config, tmp_path / "straight")
    checkpoints = sorted((tmp_path / "straight.checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    assert record.metrics["updates"] > 4
    again = _train(resumed, dataset, config, tmp_path / "resumed", resume_from_checkpoint=checkpoints[0])
    assert again.metrics["updates"] == record.metrics["updates"]
    for one, other in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def _interrupted(dataset: SegmentDataset, folder: Path, config: WeightedBCConfig, at: int, **options: Any) -> list[int]:
    """Train from the latest checkpoint until update `at` (0: to the end); which updates were done."""
    seen: list[int] = []

    def report(update: int, updates: int) -> None:
        seen.append(update)
        if update == at:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        _train(toy_model(), dataset, config, folder, resume_from_checkpoint="latest", report=report, **options)
    return seen


def test_the_latest_checkpoint_is_taken_if_it_is_complete_and_of_the_same_run(
    dataset: SegmentDataset, tmp_path: Path
) -> None:
    config = WeightedBCConfig(epochs=3, tokens_per_batch=150, save_steps=2)
    checkpoints = tmp_path / "out.checkpoints"
    assert _interrupted(dataset, tmp_path / "out", config, at=7)[-1] == 7
    (checkpoints / "checkpoint-6" / "complete").unlink()  # as after kill -9 in the middle of writing it
    assert _interrupted(dataset, tmp_path / "out", config, at=7)[0] == 5
    # What changes nothing about the weights does not start the run anew; a setting, the seed or weights do.
    logged_more = config.model_copy(update={"logging_steps": 1, "save_steps": 3})
    assert _interrupted(dataset, tmp_path / "out", logged_more, at=8)[0] == 7
    for changes in ({"seed": 1}, {"step_weights": {(row.trajectory_id, s): 2.0 for row in dataset for s in range(5)}}):
        assert _interrupted(dataset, tmp_path / "out", config, at=5, **changes)[0] == 1
    slower = config.model_copy(update={"learning_rate": 1e-4})
    assert _interrupted(dataset, tmp_path / "out", slower, at=0)[0] == 1


def test_a_checkpoint_of_another_run_is_refused(dataset: SegmentDataset, tmp_path: Path) -> None:
    config = WeightedBCConfig(epochs=1, tokens_per_batch=150, save_steps=2)
    _train(toy_model(), dataset, config, tmp_path / "out")
    checkpoint = tmp_path / "out.checkpoints" / "checkpoint-2"
    other = config.model_copy(update={"learning_rate": 1e-4})
    with pytest.raises(UsageError, match=r"checkpoint-2 belongs to a run with other data, weights, seed or settings"):
        _train(toy_model(), dataset, other, tmp_path / "again", resume_from_checkpoint=checkpoint)
    with pytest.raises(UsageError, match="is no complete checkpoint"):
        _train(toy_model(), dataset, config, tmp_path / "again", resume_from_checkpoint=tmp_path / "nowhere")
    assert not (tmp_path / "again").exists()


def test_running_out_of_memory_says_where_and_what_to_change(dataset: SegmentDataset, tmp_path: Path) -> None:
    """A layer that asks for more memory than there is; the allocator's own error."""
    model = toy_model()
    model.model.norm.register_forward_hook(lambda *_: torch.empty(2**60))
    with pytest.raises(UsageError, match=r"out of memory at update 1, in a batch of 24 rows of \d+ tokens; lower tok"):
        _train(model, dataset, ALL_AT_ONCE, tmp_path / "out")


def test_a_loss_that_is_not_finite_stops_training_at_its_update(dataset: SegmentDataset, tmp_path: Path) -> None:
    model = toy_model()
    forwards: list[int] = []

    def spoil(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        forwards.append(1)
        return output * float("nan") if len(forwards) == 3 else output

    model.model.norm.register_forward_hook(spoil)
    config = WeightedBCConfig(epochs=3, tokens_per_batch=150, share_prefix=False)
    with pytest.raises(DataError, match=r"training diverged: the loss of update 3 is nan; lower learning_rate \(now"):
        _train(model, dataset, config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0}, {"learning_rate": 2.0}, {"learning_rate": 0}, {"adam_beta2": 1.0}, {"warmup_fraction": 1.0},
        {"tokens_per_batch": 0}, {"gradient_accumulation_steps": 0}, {"lora_rank": 0}, {"lora_dropout": 1.0},
        {"save_steps": 0}, {"weight_decay": 1.0}, {"report_to": ["mlflow2"]}, {"max_steps": 0},
        {"max_gradient_norm": float("nan")}, {"optimizer": "sgd"}, {"learning_rates": 1e-3},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(settings))):
        WeightedBCConfig(**settings)


def test_log_lines_count_what_was_trained_on(dataset: SegmentDataset, tmp_path: Path) -> None:
    """Kish's number of equal tokens for weights 1 and 3, by hand; the total goes on from line to line."""
    weights = {(row.trajectory_id, step): 1.0 + 2 * (step % 2) for row in dataset for step in range(5)}
    config = WeightedBCConfig(epochs=2, tokens_per_batch=150, logging_steps=3, save_steps=4)
    _train(toy_model(), dataset, config, tmp_path / "out", step_weights=weights)
    (last, *_) = sorted((tmp_path / "out.checkpoints").glob("*/trainer_state.json"), key=lambda p: -len(p.read_text()))
    lines = [line for line in json.loads(last.read_text())["log_history"] if "loss" in line]
    tokens = [w for row in dataset for step in row.step_index[row.action_mask] for w in [1.0 + 2 * (int(step) % 2)]]
    assert lines[-1]["trained_tokens"] == 2 * len(tokens)
    assert [line["step"] for line in lines if line["step"] <= 8] == [3, 4, 6, 8]  # also before each checkpoint
    assert lines[-1]["epoch"] == pytest.approx(2.0)
    total, before = 0.0, 0
    for line in lines:
        total += line["tokens_per_update"] * (line["step"] - before)
        before = line["step"]
        assert line["trained_tokens"] == pytest.approx(total)
        assert 0.6 * line["tokens_per_update"] <= line["effective_tokens_per_update"] <= line["tokens_per_update"]
        assert 0 <= line["padding_fraction"] < 0.5
    whole = ALL_AT_ONCE.model_copy(update={"save_steps": 1})
    _train(toy_model(), dataset, whole, tmp_path / "whole", step_weights=weights)
    state = json.loads((tmp_path / "whole.checkpoints/checkpoint-1/trainer_state.json").read_text())
    (line,) = [line for line in state["log_history"] if "loss" in line]
    kish = sum(tokens) ** 2 / sum(weight**2 for weight in tokens)
    assert line["effective_tokens_per_update"] == pytest.approx(kish, rel=1e-6)


def test_the_same_seed_gives_the_same_policy_and_leaves_the_random_state(
    dataset: SegmentDataset, tmp_path: Path
) -> None:
    config = WeightedBCConfig(epochs=2, tokens_per_batch=150)
    torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    records = [_train(toy_model(), dataset, config, tmp_path / str(run), seed=run // 2) for run in range(4)]
    assert torch.equal(torch.random.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert records[0].weights_sha256 == records[1].weights_sha256
    assert records[2].weights_sha256 == records[3].weights_sha256 != records[0].weights_sha256


def test_cloning_learns_and_prints_nothing(
    dataset: SegmentDataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = toy_model()
    before, count = dataset_nll(model, ToyTokenizer(), dataset)
    assert count == dataset.manifest.counts["action_tokens"]
    _train(model, dataset, WeightedBCConfig(epochs=40, tokens_per_batch=300, learning_rate=1e-2), tmp_path / "out")
    after, _ = dataset_nll(model, ToyTokenizer(), dataset)
    assert after < 0.5 * before
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "it/s" not in captured.err


def test_the_nll_of_a_dataset_is_the_mean_over_its_action_tokens(dataset: SegmentDataset) -> None:
    model = toy_model()
    losses = [loss for row in dataset for step in _step_nll(model, row).values() for loss in step]
    nll, count = dataset_nll(model, ToyTokenizer(), dataset, tokens_per_batch=100)
    assert count == len(losses)
    assert nll == pytest.approx(np.mean(losses), rel=1e-5)


def test_the_saved_policy_is_the_trained_one_with_its_record(dataset: SegmentDataset, tmp_path: Path) -> None:
    tokenizer = train_tiny_tokenizer(["some text, some more text"] * 5, vocabulary_size=300)
    model = build_tiny_policy(tokenizer, seed=0, hidden_size=32, layers=1, heads=1)
    record = train_weighted_bc(
        model, tokenizer, dataset, ALL_AT_ONCE, tmp_path / "out", seed=3, algorithm="filtered_bc"
    )
    loaded, _ = load_policy(tmp_path / "out")
    assert load_record(tmp_path / "out") == record
    assert policy_fingerprint(loaded) == policy_fingerprint(model) == record.weights_sha256
    assert record.algorithm == "filtered_bc"
    assert record.seed == 3
    assert record.config == ALL_AT_ONCE.model_dump(mode="json")
    assert record.dataset_sha256 == dataset.manifest.content_sha256
    assert not loaded.training


def test_adapters_are_merged_and_train_nothing_else(dataset: SegmentDataset, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model = toy_model()
    before = copy.deepcopy(model.state_dict())
    config = ALL_AT_ONCE.model_copy(update={"epochs": 5, "lora_rank": 2, "learning_rate": 1e-2})
    _train(model, dataset, config, tmp_path / "out")
    saved = type(model).from_pretrained(tmp_path / "out").state_dict()
    assert saved.keys() == before.keys()
    changed = {name for name, value in saved.items() if not torch.equal(value, before[name])}
    assert changed
    assert all("proj" in name for name in changed)
    for name in changed:
        assert torch.linalg.matrix_rank(saved[name] - before[name], rtol=1e-4) <= 2


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_embeddings_of_new_tokens_train_beside_adapters(tied: bool, dataset: SegmentDataset, tmp_path: Path) -> None:
    """They are in the merged policy, in the adapters of their own, and in the checkpoint that a run goes on from."""
    pytest.importorskip("peft")
    new = [3, 20]
    config = ALL_AT_ONCE.model_copy(
        update={"epochs": 6, "lora_rank": 2, "learning_rate": 1e-2, "save_steps": 4, "weight_decay": 0.0}
    )
    start = random_llama(tied=tied, pad_token_id=0)
    start.save_pretrained(tmp_path / "start")
    before = copy.deepcopy(start.state_dict())
    begun, again = (load_model(tmp_path / "start") for _ in range(2))
    _train(begun, dataset, config, tmp_path / "out", new_tokens=new)
    checkpoint = tmp_path / "out.checkpoints" / "checkpoint-4"
    _train(again, dataset, config, tmp_path / "resumed", new_tokens=new, resume_from_checkpoint=checkpoint)
    assert policy_fingerprint(begun) == policy_fingerprint(again)
    moved = (begun.get_input_embeddings().weight - before["model.embed_tokens.weight"]).abs().amax(dim=1)
    assert moved.nonzero().flatten().tolist() == new
    assert moved[new].min() > 1e-2
    assert torch.equal(begun.lm_head.weight, before["lm_head.weight"]) != tied
    ids = torch.tensor([[5, 3, 20, 7, 3, 9]])
    with torch.no_grad():
        for folder in (tmp_path / "out", tmp_path / "out" / "adapter"):
            torch.testing.assert_close(load_model(folder)(ids).logits, begun(ids).logits, atol=1e-5, rtol=1e-5)
