"""Logged successes: which are drawn, what their loss weighs, what is refused."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import VOCABULARY, toy_dataset, toy_model, toy_rows

from offline_arl.datasets.segments import SegmentDataset, SegmentRow, SegmentWriter
from offline_arl.errors import DataError, UsageError
from offline_arl.online.config import CloningConfig
from offline_arl.online.replay import LoggedSuccesses

TASKS = 6
ATTEMPTS = 4  # a task; the first of each fails


def logged_rows() -> list[SegmentRow]:
    """24 attempts at 6 tasks, those with a number that 4 divides failures."""
    return [
        dataclasses.replace(row, task_id=f"task-{number // ATTEMPTS}", success=number % ATTEMPTS != 0)
        for number, row in enumerate(toy_rows(TASKS * ATTEMPTS))
    ]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> SegmentDataset:
    return toy_dataset(tmp_path_factory.mktemp("replay") / "data", logged_rows())


def replay(dataset: SegmentDataset, seed: int = 0, **config: Any) -> LoggedSuccesses:
    return LoggedSuccesses(dataset, CloningConfig(**config), seed=seed)


def names(rows: list[SegmentRow]) -> list[str]:
    return [row.trajectory_id for row in rows]


def logprobs_of(model: Any, row: SegmentRow) -> dict[int, float]:
    """Position of each action token -> its logprob, from one plain forward pass."""
    ids = torch.from_numpy(row.token_ids.astype(np.int64))[None]
    with torch.no_grad():
        scores = model(input_ids=ids).logits[0].log_softmax(dim=-1)
    return {int(at): float(scores[at - 1, row.token_ids[at]]) for at in np.flatnonzero(row.action_mask)}


def test_only_successes_are_drawn(dataset: SegmentDataset) -> None:
    drawn = replay(dataset, rows=100).draw(0, 0, [])
    assert sorted(names(drawn)) == sorted(row.trajectory_id for row in logged_rows() if row.success)


def test_rows_of_a_filtered_dataset_all_count(tmp_path: Path) -> None:
    """The best by return, say: nobody need have called them successes."""
    rows = [dataclasses.replace(row, success=None) for row in toy_rows(5)]
    with SegmentWriter(tmp_path / "data", kind="bc", fingerprint="toy", config={"min_return": 0.5}) as writer:
        for row in rows:
            writer.add([row])
    assert len(replay(SegmentDataset.load(tmp_path / "data"))) == 5


def test_wanted_tasks_come_first_and_in_turn(dataset: SegmentDataset) -> None:
    """Each wanted task has three successes: with four rows, both have two; with ten, all six and four others."""
    wanted = ["task-4", "task-1", "unknown", "task-1"]
    four = Counter(row.task_id for row in replay(dataset, rows=4).draw(3, 0, wanted))
    assert four == {"task-1": 2, "task-4": 2}
    ten = replay(dataset, rows=10).draw(3, 0, wanted)
    assert Counter(row.task_id for row in ten[:6]) == {"task-1": 3, "task-4": 3}
    assert not {"task-1", "task-4"} & {row.task_id for row in ten[6:]}
    assert len(set(names(ten))) == 10


def test_a_draw_depends_on_its_arguments_alone(dataset: SegmentDataset) -> None:
    drawn = replay(dataset, rows=5)
    first = names(drawn.draw(2, 1, ["task-0", "task-3"]))
    drawn.draw(7, 0, [])
    assert names(replay(dataset, rows=5).draw(2, 1, ["task-3", "task-0"])) == first
    others = [
        drawn.draw(1, 1, ["task-0", "task-3"]), drawn.draw(2, 0, ["task-0", "task-3"]),
        replay(dataset, seed=1, rows=5).draw(2, 1, ["task-0", "task-3"]),
    ]  # fmt: skip
    assert all(names(rows) != first for rows in others)


def test_over_many_draws_all_successes_come_up_alike(dataset: SegmentDataset) -> None:
    """18 successes, 3 of them a draw: each is in a sixth of 600 draws, give or take four standard deviations (36)."""
    drawn = replay(dataset, rows=3)
    counts = Counter(name for step in range(600) for name in names(drawn.draw(step, 0, [])))
    assert len(counts) == 18
    assert all(abs(count - 100) < 37 for count in counts.values())


def test_types_that_fail_come_up_more_often(tmp_path: Path) -> None:
    """Four rows of weight 0.85 and eight of 0.05: the hard ones are in 3.4 of 3.8 draws; 4 standard deviations."""
    rows = [
        dataclasses.replace(row, task_type="hard" if index % 3 == 0 else "easy", success=True)
        for index, row in enumerate(toy_rows(12))
    ]
    with SegmentWriter(tmp_path / "data", kind="bc", fingerprint="toy", config={}) as writer:
        for row in rows:
            writer.add([row])
    drawn = replay(SegmentDataset.load(tmp_path / "data"), rows=1)
    found = [drawn.draw(step, 0, [], {"hard": 0.8, "easy": 0.0})[0].task_type for step in range(600)]
    expected = 3.4 / 3.8
    deviation = math.sqrt(expected * (1 - expected) / 600)
    assert found.count("hard") / 600 == pytest.approx(expected, abs=4 * deviation)


def test_unknown_propensities_weigh_as_in_plain_cloning(dataset: SegmentDataset) -> None:
    """The mean of -log p over all action tokens of the rows, whatever their lengths."""
    model, drawn = toy_model(), replay(dataset, rows=6)
    rows = drawn.draw(0, 0, [])
    expected = [-value for row in rows for value in logprobs_of(model, row).values()]
    assert drawn.loss(model, rows, pad_token_id=0).item() == pytest.approx(np.mean(expected), rel=1e-5)


def test_many_rows_weigh_as_one_batch(dataset: SegmentDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """70 rows of unequal lengths, which are encoded in several parts: the mean is over all their action tokens."""
    monkeypatch.setattr("offline_arl.online.replay._TOKENS_PER_BATCH", 300)
    model, drawn = toy_model(), replay(dataset)
    rows = toy_rows(70, seed=9)
    assert len({len(row) for row in rows}) > 5
    expected = [-value for row in rows for value in logprobs_of(model, row).values()]
    assert drawn.loss(model, rows, pad_token_id=0).item() == pytest.approx(np.mean(expected), rel=1e-5)


def test_tokens_are_weighted_where_the_behavior_logprob_is_known(dataset: SegmentDataset) -> None:
    """Twice as likely under the policy: 2, capped at 1.5; half as likely: 1/2; unknown, token or row: 1."""
    model, drawn = toy_model(), replay(dataset, importance_cap=1.5)
    row, plain = max(toy_rows(5, seed=3), key=lambda row: int(row.action_mask.sum())), toy_rows(1)[0]
    scores = logprobs_of(model, row)
    places = sorted(scores)
    behavior = np.full(len(row), np.nan, dtype=np.float32)
    behavior[places[0]] = scores[places[0]] - math.log(2.0)
    behavior[places[1]] = scores[places[1]] + math.log(2.0)
    weights = dict.fromkeys(places, 1.0) | {places[0]: 1.5, places[1]: 0.5}
    terms = [-weights[at] * scores[at] for at in places] + [-value for value in logprobs_of(model, plain).values()]
    loss = drawn.loss(model, [dataclasses.replace(row, logprobs=behavior), plain], pad_token_id=0)
    assert loss.item() == pytest.approx(np.mean(terms), rel=1e-4)


def test_the_weights_are_constants(dataset: SegmentDataset) -> None:
    """d/dx of -w log p with w held: the gradient is w times that of plain cloning, here w = 1/4 for all tokens."""
    model, drawn = toy_model(), replay(dataset, importance_cap=1.0)
    row = toy_rows(1, seed=5)[0]
    behavior = np.full(len(row), np.nan, dtype=np.float32)
    for at, value in logprobs_of(model, row).items():
        behavior[at] = value + math.log(4.0)
    gradients = []
    for one in (row, dataclasses.replace(row, logprobs=behavior)):
        model.zero_grad()
        drawn.loss(model, [one], pad_token_id=0).backward()
        gradients.append(model.model.layers[0].self_attn.q_proj.weight.grad.clone())
    assert torch.allclose(gradients[1], gradients[0] / 4, atol=1e-7)
    assert gradients[0].abs().max() > 1e-4


def test_gradients_come_from_action_tokens_alone(dataset: SegmentDataset) -> None:
    """The gradient of an output bias is the mean probability less the frequency of its token, over action tokens."""
    model, drawn = toy_model("gpt2"), replay(dataset, rows=8)
    model.lm_head = torch.nn.Linear(32, VOCABULARY, bias=True)
    rows = drawn.draw(0, 0, [])
    drawn.loss(model, rows, pad_token_id=0).backward()
    probabilities, targets = [], []
    for row in rows:
        acting = np.flatnonzero(row.action_mask)
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(row.token_ids.astype(np.int64))[None]).logits[0]
        probabilities.append(logits[acting - 1].softmax(dim=-1).numpy())
        targets.append(np.eye(VOCABULARY)[row.token_ids[acting]])
    expected = np.concatenate(probabilities).mean(axis=0) - np.concatenate(targets).mean(axis=0)
    assert model.lm_head.bias.grad.numpy() == pytest.approx(expected, abs=1e-5)


def test_adapters_train_alone(dataset: SegmentDataset) -> None:
    peft = pytest.importorskip("peft")
    model, drawn = toy_model(), replay(dataset, rows=6)
    rows = drawn.draw(0, 0, [])
    plain = drawn.loss(model, rows, pad_token_id=0).item()
    settings = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        adapted = peft.get_peft_model(model, settings)
    loss = drawn.loss(adapted, rows, pad_token_id=0)
    loss.backward()
    assert loss.item() == pytest.approx(plain, rel=1e-6)
    gradients = {name: value.grad for name, value in adapted.named_parameters() if value.grad is not None}
    assert gradients
    assert all("lora_" in name for name in gradients)
    assert max(float(gradient.abs().max()) for gradient in gradients.values()) > 1e-4


def test_the_coefficient_falls_to_zero_at_its_share_of_the_run(dataset: SegmentDataset) -> None:
    """0.2 from the start, half of it after a quarter of the run, nothing from the half on."""
    drawn = replay(dataset, coefficient=0.2, until=0.5)
    assert [drawn.coefficient(done) for done in (0.0, 0.25, 0.5, 0.98)] == pytest.approx([0.2, 0.1, 0.0, 0.0])


def test_datasets_that_hold_nothing_to_clone_are_refused(dataset: SegmentDataset, tmp_path: Path) -> None:
    failures = [dataclasses.replace(row, success=False) for row in toy_rows(3)]
    with pytest.raises(
        DataError, match="none of the 3 rows of the replay dataset is a success; build one of form filt"
    ):
        replay(toy_dataset(tmp_path / "failures", failures))
    unknown = [dataclasses.replace(row, success=None) for row in toy_rows(3)]
    with pytest.raises(DataError, match="is a success"):
        replay(toy_dataset(tmp_path / "unknown", unknown))


def test_datasets_of_another_tokenizer_or_kind_are_refused(dataset: SegmentDataset, tmp_path: Path) -> None:
    LoggedSuccesses(dataset, CloningConfig(), seed=0, fingerprint="toy")
    with pytest.raises(DataError, match=r"another tokenizer or chat template .*; build them again for this policy"):
        LoggedSuccesses(dataset, CloningConfig(), seed=0, fingerprint="other")
    steps = {name: np.zeros(0, dtype=np.float32) for name in ("steps", "rewards", "terminated", "truncated")}
    rows = [dataclasses.replace(row, n_steps=0, **steps) for row in toy_rows(2)]
    with pytest.raises(UsageError, match="kind transitions; replay takes bc, filtered_bc or return_conditioned"):
        replay(toy_dataset(tmp_path / "transitions", rows, kind="transitions"))
