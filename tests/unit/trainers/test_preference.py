"""Preference training: losses, what may not change them, the reference's sidecar, records."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import ToyTokenizer, toy_model
from toys.preferences import answer_dataset, pair_dataset, toy_answers, toy_pairs

from offline_arl.datasets.pairs import PairDataset, UnpairedDataset
from offline_arl.datasets.preference_batches import (
    Side,
    collate_pairs,
    mismatched_partners,
    mismatched_side,
    steady_batches,
)
from offline_arl.errors import DataError, UsageError
from offline_arl.trainers.checkpoint import load_record
from offline_arl.trainers.preference import train_preferences
from offline_arl.trainers.preference_config import (
    AnyPreferenceConfig,
    DPOConfig,
    IPOConfig,
    KTOConfig,
    SimPOConfig,
)
from offline_arl.trainers.preference_forward import batch_logprobs
from offline_arl.trainers.preference_reference import pair_reference

AT_ONCE: dict[str, Any] = {
    "tokens_per_batch": 100_000, "warmup_fraction": 0, "logging_steps": 1, "learning_rate": 1e-3,
}  # fmt: skip
CONFIGS: dict[str, AnyPreferenceConfig] = {
    "dpo": DPOConfig(**AT_ONCE),
    "cdpo": DPOConfig(label_smoothing=0.2, chosen_nll_weight=0.3, **AT_ONCE),
    "ipo": IPOConfig(**AT_ONCE),
    "simpo": SimPOConfig(**AT_ONCE),
    "kto": KTOConfig(desirable_weight=1.0, undesirable_weight=1.2, **AT_ONCE),
}
every_objective = pytest.mark.parametrize("name", CONFIGS)
BETA, UNDESIRABLE = 0.1, 1.2


@pytest.fixture
def pairs(tmp_path: Path) -> PairDataset:
    return pair_dataset(tmp_path / "pairs", toy_pairs(16))


@pytest.fixture
def answers(tmp_path: Path) -> UnpairedDataset:
    return answer_dataset(tmp_path / "answers", toy_answers(16))


def train(model: Any, dataset: Any, config: AnyPreferenceConfig, folder: Path, **options: Any) -> Any:
    return train_preferences(model, ToyTokenizer(), dataset, config, folder, **{"seed": 0, **options})


def data_of(name: str, pairs: PairDataset, answers: UnpairedDataset) -> Any:
    return answers if name == "kto" else pairs


def side_logprob(model: torch.nn.Module, side: Side, *, average: bool = False) -> float:
    """log p of the action tokens of one sequence, from an ordinary forward pass in float64."""
    ids = torch.tensor(side.token_ids.tolist())
    with torch.no_grad():
        logprobs = model(ids[None]).logits[0].double().log_softmax(-1)
    places = [place for place, sampled in enumerate(side.action_mask) if sampled]
    total = sum(logprobs[place - 1, ids[place]].item() for place in places)
    return total / len(places) if average else total


def log_sigmoid(value: float) -> float:
    return -math.log1p(math.exp(-value))


def pair_loss(name: str, row: Any, policy: torch.nn.Module, reference: torch.nn.Module) -> float:
    """The loss of one pair, from the papers' equations."""
    sides = [Side(row.chosen_token_ids, row.chosen_action_mask), Side(row.rejected_token_ids, row.rejected_action_mask)]
    if name == "simpo":
        chosen, rejected = (side_logprob(policy, side, average=True) for side in sides)
        return -log_sigmoid(2 * (chosen - rejected) - 0.5)
    ratios = [side_logprob(policy, side) - side_logprob(reference, side) for side in sides]
    h = ratios[0] - ratios[1]
    if name == "ipo":
        return (h - 5) ** 2
    if name == "dpo":
        return -log_sigmoid(BETA * h)
    smoothed = -0.8 * log_sigmoid(BETA * h) - 0.2 * log_sigmoid(-BETA * h)
    return smoothed - 0.3 * side_logprob(policy, sides[0], average=True)


def kto_mean(rows: Any, policy: torch.nn.Module, reference: torch.nn.Module, tokens_per_batch: int) -> float:
    """The mean loss of one update that holds all rows, in batches of so many tokens."""

    def log_ratio(side: Side) -> float:
        return side_logprob(policy, side) - side_logprob(reference, side)

    lengths = np.array([len(row) for row in rows])
    batches = steady_batches(lengths, max_tokens=tokens_per_batch, epochs=1, seed=0).batches
    partners = mismatched_partners(rows, batches)
    mismatched = [log_ratio(mismatched_side(rows[index], rows[partners[index]])) for index in range(len(rows))]
    point = max(0.0, sum(mismatched) / len(rows))
    assert point > 0
    losses = []
    for row in rows:
        gain = BETA * (log_ratio(Side(row.token_ids, row.action_mask)) - point)
        factor = 1.0 if row.label else UNDESIRABLE
        losses.append(row.weight * factor * (1 - math.exp(log_sigmoid(gain if row.label else -gain))))
    return sum(losses) / len(losses)


@every_objective
def test_the_loss_is_the_weighted_mean_over_rows(
    name: str, pairs: PairDataset, answers: UnpairedDataset, tmp_path: Path
) -> None:
    """Against a reference that is another model, so that no term vanishes; rows end at different lengths."""
    policy, reference = toy_model(), toy_model(seed=1)
    if name == "kto":
        expected = kto_mean(answers, policy, reference, AT_ONCE["tokens_per_batch"])
    else:
        losses = [row.weight * pair_loss(name, row, policy, reference) for row in pairs]
        expected = sum(losses) / len(losses)
    record = train(policy, data_of(name, pairs, answers), CONFIGS[name], tmp_path / "out", reference_model=reference)
    assert record.metrics["updates"] == 1
    assert record.metrics["loss"] == pytest.approx(expected, rel=1e-5)


def test_ktos_reference_point_is_that_of_the_whole_update(answers: UnpairedDataset, tmp_path: Path) -> None:
    """The rows of one update in several micro-batches, each of which would have a reference point of its own."""
    policy, reference = toy_model(), toy_model(seed=1)
    changes = {"tokens_per_batch": 180, "gradient_accumulation_steps": 16}
    expected = kto_mean(answers, policy, reference, changes["tokens_per_batch"])
    config = CONFIGS["kto"].model_copy(update=changes)
    record = train(policy, answers, config, tmp_path / "out", reference_model=reference)
    assert record.metrics["updates"] == 1
    assert record.metrics["loss"] == pytest.approx(expected, rel=1e-5)


def test_at_the_start_policy_and_reference_agree(pairs: PairDataset, answers: UnpairedDataset, tmp_path: Path) -> None:
    """Every DPO loss is log 2, every KTO loss half its weights, and the log-ratios are 0."""
    record = train(toy_model(), pairs, CONFIGS["dpo"], tmp_path / "a")
    assert record.metrics["loss"] == pytest.approx(math.log(2) * sum(row.weight for row in pairs) / len(pairs))
    assert record.metrics["log_ratio/chosen"] == pytest.approx(0, abs=1e-5)
    record = train(toy_model(), answers, CONFIGS["kto"], tmp_path / "b")
    halves = [row.weight * (1.0 if row.label else UNDESIRABLE) / 2 for row in answers]
    assert record.metrics["loss"] == pytest.approx(sum(halves) / len(halves))
    assert record.metrics["reference_point"] == pytest.approx(0, abs=1e-5)


def test_in_bfloat16_policy_and_reference_agree_at_the_start_too(pairs: PairDataset, tmp_path: Path) -> None:
    """A reference in another precision would differ from the policy by rounding, on every answer."""
    config = CONFIGS["dpo"].model_copy(update={"precision": "bfloat16", "share_prefix": False})
    record = train(toy_model(), pairs, config, tmp_path / "a")
    assert record.metrics["kl_to_reference"] < 1e-6
    other = pair_reference(toy_model(), list(pairs), pad_token_id=0, tokens_per_batch=300, folder=None)
    half = pair_reference(
        toy_model(), list(pairs), pad_token_id=0, tokens_per_batch=300, folder=None, precision="bfloat16"
    )
    assert (other.logprobs - half.logprobs).square().mean() > 1e-5


def after_one_update(name: str, dataset: Any, folder: Path, **changes: Any) -> tuple[dict[str, torch.Tensor], float]:
    """float64, so that Adam's division by the gradient's own size does not blow up rounding."""
    model, reference = toy_model(dtype=torch.float64), toy_model(seed=1, dtype=torch.float64)
    config = CONFIGS[name].model_copy(update=changes)
    record = train(model, dataset, config, folder, reference_model=reference)
    assert record.metrics["updates"] == 1
    return {key: value.clone() for key, value in model.named_parameters()}, record.metrics["loss"]


@every_objective
def test_sharing_prompts_changes_nothing(
    name: str, pairs: PairDataset, answers: UnpairedDataset, tmp_path: Path
) -> None:
    dataset = data_of(name, pairs, answers)
    shared, loss = after_one_update(name, dataset, tmp_path / "a", share_prefix=True)
    plain, plain_loss = after_one_update(name, dataset, tmp_path / "b", share_prefix=False)
    assert loss == pytest.approx(plain_loss, abs=1e-5)
    for key, value in plain.items():
        torch.testing.assert_close(shared[key], value, atol=1e-5, rtol=0, msg=key)


@pytest.mark.parametrize("name", ["dpo", "ipo", "simpo"])
def test_the_split_into_micro_batches_changes_nothing(name: str, pairs: PairDataset, tmp_path: Path) -> None:
    whole, loss = after_one_update(name, pairs, tmp_path / "a")
    split, split_loss = after_one_update(
        name, pairs, tmp_path / "b", tokens_per_batch=130, gradient_accumulation_steps=16
    )
    assert split_loss == pytest.approx(loss, rel=1e-6)
    for key, value in whole.items():
        torch.testing.assert_close(split[key], value, atol=1e-5, rtol=0, msg=key)


@pytest.fixture
def head_gradients() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """A model, and the gradients at the inputs of its output layer's norm, one a forward pass."""
    model = toy_model()
    gradients: list[torch.Tensor] = []

    def watch(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(gradients.append)

    model.model.norm.register_forward_hook(watch)
    return model, gradients


@pytest.mark.parametrize("share_prefix", [False, True])
def test_what_tools_and_users_say_gets_exactly_no_gradient(
    head_gradients: tuple[torch.nn.Module, list[torch.Tensor]], share_prefix: bool
) -> None:
    """The state in front of a token is all that its log-probability depends on at the output layer."""
    model, gradients = head_gradients
    rows = toy_pairs(6, turns=3)
    batch = collate_pairs(rows, pad_token_id=0)
    logprobs = batch_logprobs(model, batch, share_prefix=share_prefix)
    logprobs.sum().backward()
    (gradient,) = gradients  # the passes over prompts give the output layer nothing
    for side in range(len(batch.input_ids)):
        start = int(batch.prefix_lengths[side % 6]) if share_prefix else 0
        for place in range(int(batch.attention_mask[side].sum()) - 1):
            scored = bool(batch.action_mask[side, place + 1])
            if place >= start:
                assert bool((gradient[side, place - start] != 0).any()) == scored
            else:
                assert not scored
    assert any(not mask for row in rows for mask in row.chosen_action_mask[row.prompt_length :])


def test_reference_values_are_computed_once_for_equal_data_masks_and_weights(
    pairs: PairDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, folder = toy_model(), tmp_path / "reference"
    options: dict[str, Any] = {"pad_token_id": 0, "tokens_per_batch": 300, "folder": folder}
    first = pair_reference(model, list(pairs), **options)
    (path,) = folder.iterdir()
    written = path.stat().st_mtime_ns
    with caplog.at_level(logging.INFO):
        again = pair_reference(model, list(pairs), **options)
    assert "taken from" in caplog.text
    assert path.stat().st_mtime_ns == written
    assert torch.equal(again.logprobs, first.logprobs)
    for number, row in enumerate(pairs):
        side = Side(row.rejected_token_ids, row.rejected_action_mask)
        assert again.of(2 * number + 1).sum().item() == pytest.approx(side_logprob(model, side), rel=1e-5)
    torch.testing.assert_close(first.sums()[1], first.of(1).sum())

    other_mask = toy_pairs(16)
    other_mask[5].chosen_action_mask[-1] = False
    pair_reference(model, other_mask, **options)
    assert len(list(folder.iterdir())) == 2
    pair_reference(toy_model(seed=1), list(pairs), **options)
    assert len(list(folder.iterdir())) == 3
    path.write_bytes(path.read_bytes()[:100])
    repaired = pair_reference(model, list(pairs), **options)
    assert torch.equal(repaired.logprobs, first.logprobs)
    assert "is unreadable" in caplog.text


def test_a_resumed_run_ends_where_a_straight_one_does(pairs: PairDataset, tmp_path: Path) -> None:
    config = DPOConfig(epochs=4, tokens_per_batch=200, save_steps=4, learning_rate=1e-3)
    options = {"reference_model": toy_model(seed=1)}
    straight, resumed = toy_model(), toy_model()
    record = train(straight, pairs, config, tmp_path / "straight", **options)
    checkpoints = sorted((tmp_path / "straight.checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    assert record.metrics["updates"] > 4
    train(resumed, pairs, config, tmp_path / "resumed", resume_from_checkpoint=checkpoints[0], **options)
    for one, other in zip(straight.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@every_objective
def test_training_learns_the_preferences_prints_nothing_and_keeps_a_record(
    name: str, pairs: PairDataset, answers: UnpairedDataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = toy_model()
    config = CONFIGS[name].model_copy(update={"epochs": 12.0, "tokens_per_batch": 600, "learning_rate": 5e-3})
    record = train(model, data_of(name, pairs, answers), config, tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "monitors.jsonl").read_text().splitlines()]
    assert len(lines) == record.metrics["updates"]
    good, bad = ("desirable", "undesirable") if name == "kto" else ("chosen", "rejected")
    last = record.metrics
    assert last[f"log_ratio/{good}"] > last[f"log_ratio/{bad}"] + 1
    late = [line[f"log_ratio/{good}"] for line in lines[-(len(lines) // 4) :] if f"log_ratio/{good}" in line]
    assert last[f"log_ratio/{good}"] == pytest.approx(np.mean(late))
    assert last["kl_to_reference"] > 0
    assert abs(lines[0][f"log_ratio/{good}"]) < 1e-4
    if name != "kto":
        assert last["reward/accuracy"] > 0.9
        assert -1 <= last["margin_length_correlation"] <= 1
    assert load_record(tmp_path / "out") == record
    assert record.algorithm == ("dpo" if name == "cdpo" else name)
    captured = capfd.readouterr()
    assert captured.out == ""


def test_simpo_needs_no_reference(pairs: PairDataset, tmp_path: Path) -> None:
    config = SimPOConfig(monitor_reference=False, **AT_ONCE)
    record = train(toy_model(), pairs, config, tmp_path / "out", reference_folder=tmp_path / "reference")
    assert not (tmp_path / "reference").exists()
    assert "logprobs/chosen" in record.metrics
    assert "kl_to_reference" not in record.metrics


def test_adapters_start_from_the_reference(pairs: PairDataset, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model = toy_model()
    before = copy.deepcopy(model.state_dict())
    config = CONFIGS["dpo"].model_copy(update={"lora_rank": 2, "epochs": 3.0})
    train(model, pairs, config, tmp_path / "out")
    first = json.loads((tmp_path / "out" / "monitors.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(math.log(2) * sum(row.weight for row in pairs) / len(pairs), rel=1e-5)
    saved = type(model).from_pretrained(tmp_path / "out").state_dict()
    changed = {name for name, value in saved.items() if not torch.equal(value, before[name])}
    assert changed
    assert all("proj" in name for name in changed)


def test_dropout_is_off_and_comes_back(pairs: PairDataset, tmp_path: Path) -> None:
    model = toy_model("gpt2")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    record = train(model, pairs, CONFIGS["dpo"], tmp_path / "out")
    assert record.metrics["log_ratio/chosen"] == pytest.approx(0, abs=1e-5)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.5}


def test_data_that_do_not_fit_are_errors(pairs: PairDataset, answers: UnpairedDataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dpo trains on a dataset of kind pairs, this one is of kind unpaired"):
        train(toy_model(), answers, CONFIGS["dpo"], tmp_path / "out")
    with pytest.raises(UsageError, match="kto trains on a dataset of kind unpaired"):
        train(toy_model(), pairs, CONFIGS["kto"], tmp_path / "out")
    alike = answer_dataset(tmp_path / "alike", [row for row in answers if row.label])
    with pytest.raises(DataError, match="all 8 answers are desirable"):
        train(toy_model(), alike, CONFIGS["kto"], tmp_path / "out")
    rows = toy_pairs(2)
    rows[1].rejected_token_ids[-1] = 99
    with pytest.raises(DataError, match="token 99 and the model only 24"):
        train(toy_model(), pair_dataset(tmp_path / "foreign", rows), CONFIGS["dpo"], tmp_path / "out")
    weightless = pair_dataset(tmp_path / "none", [dataclasses.replace(row, weight=0.0) for row in toy_pairs(2)])
    with pytest.raises(DataError, match="no row has a weight above 0"):
        train(toy_model(), weightless, CONFIGS["dpo"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rows_without_weight_are_left_out(pairs: PairDataset, tmp_path: Path) -> None:
    rows = list(pairs)
    some = [dataclasses.replace(row, weight=row.weight * (place % 3 > 0)) for place, row in enumerate(rows)]
    kept = [row for place, row in enumerate(rows) if place % 3]
    reference = toy_model(seed=1)
    losses = [
        train(toy_model(), pair_dataset(tmp_path / name, data), CONFIGS["dpo"], tmp_path / f"{name}-out",
              reference_model=reference).metrics["loss"]
        for name, data in (("some", some), ("kept", kept))
    ]  # fmt: skip
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_unbalanced_labels_are_told_with_weights_that_balance_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [row for row in toy_answers(24) if row.label or row.row_id in ("u1", "u3", "u5")]
    many, few = (sum(row.weight for row in rows if row.label is label) for label in (True, False))
    dataset = answer_dataset(tmp_path / "answers", rows)
    with caplog.at_level(logging.WARNING):
        train(toy_model(), dataset, KTOConfig(**AT_ONCE), tmp_path / "a")
    assert f"undesirable_weight between {0.75 * many / few:.2f} and {many / few:.2f}" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        train(toy_model(), dataset, KTOConfig(undesirable_weight=0.9 * many / few, **AT_ONCE), tmp_path / "b")
    assert "recommends" not in caplog.text
