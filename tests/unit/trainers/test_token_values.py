"""Token-level training: its losses against the objectives on rows, what may not change them, resuming, held-out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from toys import ToyTokenizer, toy_dataset, toy_model
from toys.token_transitions import transition_row, transition_rows

from offline_arl import objectives
from offline_arl.datasets.collate import collate_segments
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.datasets.token_transitions import token_transitions
from offline_arl.errors import DataError, UsageError
from offline_arl.models.folding import apply_fold, make_fold, needs_constant_direction
from offline_arl.models.policy import hidden_states, logits_and_states, policy_fingerprint, selected_logits
from offline_arl.models.token_heads import TokenHeadShape, TokenValueHeads
from offline_arl.models.value_guidance import GuidanceConfig, ValueGuidance
from offline_arl.trainers.config import TokenCQLConfig, TokenIQLConfig
from offline_arl.trainers.run import RunFolders, TrainingRun
from offline_arl.trainers.token_critic import TokenCritic
from offline_arl.trainers.token_states import (
    KeptStates,
    TrajectorySegments,
    read_states,
    selected_states,
    state_transform,
)
from offline_arl.trainers.token_trainer import TokenValueTrainer
from offline_arl.trainers.token_values import TokenValueResult, train_token_values

QUICK: dict[str, Any] = {
    "max_steps": 6, "batch_size": 16, "tokens_per_batch": 200, "hidden_size": 8, "holdout_fraction": 0.0,
    "warmup_fraction": 0.0,
}  # fmt: skip
IQL, CQL = TokenIQLConfig(**QUICK), TokenCQLConfig(**QUICK)


@pytest.fixture
def dataset(tmp_path: Path) -> SegmentDataset:
    return toy_dataset(tmp_path / "data", transition_rows(12), kind="transitions")


def _train(
    dataset: SegmentDataset, config: Any, folder: Path, *, model: Any = None, **options: Any
) -> TokenValueResult:
    model = toy_model() if model is None else model
    return train_token_values(model, ToyTokenizer(), dataset, config, folder / "policy", **{"seed": 0, **options})


def _run(config: Any, model: Any, batches: list[list[int]], dataset: SegmentDataset, folder: Path) -> TrainingRun:
    folders = RunFolders.beside(folder / "policy")
    return TrainingRun(
        config, model, batches, folders=folders, seed=0, algorithm="test", dataset=dataset.manifest
    )  # fmt: skip


def _weights(result: TokenValueResult) -> list[torch.Tensor]:
    return list(result.heads.parameters())


def _same(one: TokenValueResult, other: TokenValueResult) -> bool:
    return all(torch.equal(left, right) for left, right in zip(_weights(one), _weights(other), strict=True))


def _critic(config: Any, *, hidden_layers: int = 1) -> TokenCritic:
    """Random heads whose target critics are different ones, in float64."""
    shape = TokenHeadShape(32, 24, hidden_layers=hidden_layers, hidden_size=8)
    critic = TokenCritic(TokenValueHeads(shape, generator=torch.Generator().manual_seed(0)), config)
    with torch.no_grad():
        for value in critic.target.parameters():
            value.add_(0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1)))
    return critic


def _rows_losses(critic: TokenCritic, model: Any, dataset: SegmentDataset, config: Any) -> dict[str, float]:
    """The sums of the losses by `token_iql_losses` on padded [B, T] rows, from full logits of heads."""
    rows = list(dataset)
    batch = collate_segments(rows, pad_token_id=0)
    with torch.no_grad():
        before = hidden_states(model, batch.input_ids, batch.attention_mask, layers=(-1,))[0]
    states = torch.nn.functional.pad(before[:, :-1], (0, 0, 1, 0))  # index t: the state before token t
    rewards, terminated, truncated = (torch.zeros(batch.input_ids.shape) for _ in range(3))
    bootstrap = torch.full(batch.input_ids.shape, float("nan"))
    has_target = torch.ones_like(batch.action_mask)
    for number, row in enumerate(rows):
        for step, reward, ended, cut in zip(row.steps, row.rewards, row.terminated, row.truncated, strict=True):
            last = int(np.flatnonzero(row.step_index == step)[-1])
            rewards[number, last], terminated[number, last], truncated[number, last] = (
                float(reward),
                bool(ended),
                bool(cut),
            )
            has_target[number, last] = not cut or row.final_state
        if row.final_state:
            bootstrap[number] = critic.heads.v(before[number, len(row) - 1]).detach()
    q_values = critic.heads.q(states)
    target = torch.stack([head(states) for head in critic.target])
    index = batch.input_ids.expand(2, -1, -1).unsqueeze(-1)
    losses = objectives.token_iql_losses(
        q_values.gather(-1, index).squeeze(-1), q_values.logsumexp(-1), target.gather(-1, index).squeeze(-1),
        critic.heads.v(states), bootstrap, rewards, terminated.bool(), truncated.bool(), batch.action_mask, has_target,
        discount=objectives.step_discounts(batch.step_index, batch.action_mask, discount=config.discount),
        expectile=config.expectile,
    )  # fmt: skip
    return {
        "q_loss": losses.critics.sum().item(),
        "value_loss": losses.value.sum().item(),
        "conservative_loss": losses.conservative.sum().item(),
    }


@pytest.mark.parametrize("kept", [True, False], ids=["kept states", "segments"])
def test_the_losses_are_those_of_the_objectives_on_rows(kept: bool, dataset: SegmentDataset) -> None:
    """All endings are among the attempts; decisions in any order."""
    config, model = IQL.model_copy(update={"discount": 0.8}), toy_model()
    critic = _critic(config)
    table = token_transitions(dataset, discount=0.8, discount_unit="step", truncation="bootstrap")
    segments = TrajectorySegments(table, dataset, pad_token_id=0)
    everything = np.ones(len(dataset), dtype=np.bool_)
    if kept:
        states, _ = read_states(
            model, segments, trained=everything, tokens_per_batch=100, kept_megabytes=1, whiten=True, center=True
        )
        assert states is not None
        order = np.random.default_rng(0).permutation(len(table))
        batch = KeptStates(table, states)(order.tolist())
    else:
        batch = segments(np.random.default_rng(0).permutation(len(dataset)).tolist())
        batch["states"] = selected_states(model, batch)
    found = critic.losses(batch)
    for name, expected in _rows_losses(critic, model, dataset, config).items():
        assert found[name].item() == pytest.approx(expected, rel=1e-4), name


def test_conservative_q_learning_takes_the_best_token_of_the_whole_vocabulary(dataset: SegmentDataset) -> None:
    """By hand for each decision: chosen by the mean of the online critics, judged by the smaller target critic."""
    config, model = CQL, toy_model()
    critic = _critic(config)
    table = token_transitions(dataset, discount=config.discount, discount_unit="step", truncation="bootstrap")
    segments = TrajectorySegments(table, dataset, pad_token_id=0)
    batch = segments(list(range(len(dataset))))
    batch["states"] = selected_states(model, batch)
    total = 0.0
    for position, known in enumerate(batch["has_target"].tolist()):
        if not known:
            continue
        state, after = (batch["states"][batch[name][position]] for name in ("state_index", "next_index"))
        online, judged = critic.heads.q(after), torch.stack([head(after) for head in critic.target])
        best = judged[:, online.mean(dim=0).argmax()].min()
        goes_on = float(not batch["terminated"][position])
        goal = batch["rewards"][position] + batch["discounts"][position] * goes_on * best
        total += (critic.heads.q(state)[:, batch["token_ids"][position]] - goal).square().sum().item()
    assert critic.losses(batch)["q_loss"].item() == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("whiten", [True, False])
def test_the_training_states_get_unit_variance(whiten: bool, dataset: SegmentDataset) -> None:
    """In every direction that has any, or in each dimension; states of held-out attempts have no say."""
    model = toy_model()
    table = token_transitions(dataset, discount=0.9, discount_unit="step", truncation="bootstrap")
    segments = TrajectorySegments(table, dataset, pad_token_id=0)
    chosen = np.arange(len(dataset)) % 3 > 0
    settings = {"trained": chosen, "whiten": whiten, "center": True}
    states, transform = read_states(model, segments, tokens_per_batch=100, kept_megabytes=1, **settings)
    assert states is not None
    own = states[torch.from_numpy(chosen[table.state_rows])]
    read = (own - transform.mean) @ transform.matrix
    torch.testing.assert_close(read.mean(dim=0), torch.zeros(32), rtol=0, atol=1e-3)
    if whiten:
        found = torch.linalg.eigvalsh(read.T.cov(correction=0))
        spread = torch.linalg.eigvalsh(own.T.cov(correction=0))
        informative = spread > 1e-3 * spread.mean()
        torch.testing.assert_close(
            found[-int(informative.sum()) :], torch.ones(int(informative.sum())), rtol=0, atol=0.01
        )
    else:
        torch.testing.assert_close(read.std(dim=0, unbiased=False), torch.ones(32), rtol=0, atol=1e-3)
    nothing, same = read_states(model, segments, tokens_per_batch=40, kept_megabytes=1e-4, **settings)
    assert nothing is None
    torch.testing.assert_close(same.matrix, transform.matrix, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("whiten", [True, False])
def test_states_that_keep_their_mean_get_a_second_moment_of_one(whiten: bool) -> None:
    """For heads without a bias. Where the mean is 100 deviations, what varies is amplified as much as without it."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(400, 3, generator=generator, dtype=torch.float64) @ torch.tensor(
        [[1.0, 0.5, 0.0], [0.0, 0.2, 0.1], [0.0, 0.0, 0.3]], dtype=torch.float64
    ) + torch.tensor([100.0, 0.0, 0.0], dtype=torch.float64)
    moments = (states.mean(dim=0), states.T.cov(correction=0))
    kept = state_transform(*moments, dtype=torch.float32, whiten=whiten, center=False)
    assert not kept.mean.any()
    read = (states.float() @ kept.matrix).double()
    second = read.T @ read / len(read)
    torch.testing.assert_close(second.diagonal(), torch.ones(3).double(), rtol=0, atol=1e-3)
    if whiten:
        torch.testing.assert_close(second, torch.eye(3).double(), rtol=0, atol=1e-3)


def test_rounding_is_not_amplified() -> None:
    """A direction of no variance, in bfloat16 states of size 10: its noise of about 0.03 stays below one."""
    covariance = torch.diag(torch.tensor([4.0, 0.0], dtype=torch.float64))
    mean = torch.full((2,), 10.0, dtype=torch.float64)
    for dtype, largest in ((torch.bfloat16, 20.0), (torch.float32, 2_000.0)):
        matrix = state_transform(mean, covariance, dtype=dtype, whiten=True, center=True).matrix
        assert matrix[0, 0].item() == pytest.approx(0.5, rel=0.01)
        assert largest / 4 < matrix[1, 1].item() < largest


@pytest.mark.parametrize("config", [IQL, CQL], ids=["iql", "cql"])
def test_the_seed_decides_everything_and_the_global_random_state_is_left(
    config: Any, dataset: SegmentDataset, tmp_path: Path
) -> None:
    state = torch.random.get_rng_state()
    runs = [_train(dataset, config, tmp_path, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert _same(runs[0], runs[1])
    assert not _same(runs[0], runs[2])


MODES = {
    "kept": {},
    "recomputed": {"cache_megabytes": 0},
    "lora": {"language_model": "trained", "lora_rank": 2},
    "full": {"language_model": "trained"},
}


@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_ends_with_the_same_weights(mode: str, dataset: SegmentDataset, tmp_path: Path) -> None:
    config = IQL.model_copy(update={**MODES[mode], "save_steps": 4})
    straight, resumed = toy_model(), toy_model()
    whole = _train(dataset, config, tmp_path / "a", model=straight)
    again = _train(
        dataset, config, tmp_path / "b", model=resumed,
        resume_from_checkpoint=tmp_path / "a" / "policy.checkpoints" / "checkpoint-4",
    )  # fmt: skip
    assert _same(whole, again)
    assert policy_fingerprint(straight) == policy_fingerprint(resumed)
    assert again.diagnostics["updates"] == 6


@pytest.mark.parametrize("mode", MODES)
def test_only_a_model_that_is_to_be_trained_changes(mode: str, dataset: SegmentDataset, tmp_path: Path) -> None:
    model = toy_model()
    before = policy_fingerprint(model)
    result = _train(dataset, IQL.model_copy(update=MODES[mode]), tmp_path, model=model)
    assert (policy_fingerprint(model) == before) == (mode in ("kept", "recomputed"))
    assert result.diagnostics["states_kept"] == (mode == "kept")
    assert not any("lora" in name for name, _ in model.named_parameters())
    assert (tmp_path / "policy").is_dir() == (mode in ("lora", "full"))


@pytest.mark.parametrize("trained", [False, True], ids=["frozen", "trained"])
def test_micro_batches_add_up(trained: bool, dataset: SegmentDataset, tmp_path: Path) -> None:
    """One update on all attempts at once and on two uneven parts of them, heads and model alike."""
    ended = []
    for batches in ([list(range(12))], [[3], [number for number in range(12) if number != 3]]):
        config = CQL.model_copy(update={"gradient_accumulation_steps": len(batches)})
        model, critic = toy_model(dtype=torch.float64), _critic(config).double()
        critic.language_model = model if trained else None
        table = token_transitions(dataset, discount=0.9, discount_unit="step", truncation="bootstrap")
        run = _run(config, model, batches, dataset, tmp_path)
        trainer = TokenValueTrainer(
            critic, config, run, collate=TrajectorySegments(table, dataset, pad_token_id=0), items=12,
            frozen_model=None if trained else model,
        )  # fmt: skip
        trainer.train()
        assert trainer.state.global_step == 1
        ended.append([*critic.parameters(), *model.parameters()])
    for one, other in zip(*ended, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("config", [IQL, CQL], ids=["iql", "cql"])
def test_linear_heads_without_a_bias_fold_exactly(
    config: Any, mode: str, dataset: SegmentDataset, tmp_path: Path
) -> None:
    model = toy_model()  # its output layer has no bias
    settings = {**MODES[mode], "hidden_layers": 0, "bias": False, "learning_rate": 3e-2}
    heads = _train(dataset, config.model_copy(update=settings), tmp_path, model=model).heads
    assert not any(critic.output.bias.any() for critic in heads.critics)
    assert heads.value.output.bias.abs().item() > 1e-3
    assert not needs_constant_direction(model, heads)
    with torch.no_grad():
        logits, states = logits_and_states(model, input_ids=torch.arange(24).unsqueeze(0))
        guided = ValueGuidance(heads, GuidanceConfig(2.0, 0.0, critics="mean"))(logits[0], states[0])
        moved = 0.5 * (guided.softmax(-1) - logits[0].softmax(-1)).abs().sum(dim=-1)
        apply_fold(model, make_fold(model, heads, inverse_temperature=2.0))
        folded = model(input_ids=torch.arange(24).unsqueeze(0)).logits[0]
    assert moved.max() > 0.05
    assert float(0.5 * (guided.softmax(-1) - folded.softmax(-1)).abs().sum(dim=-1).max()) < 1e-6


def test_a_bias_is_left_out_of_linear_heads_only() -> None:
    with pytest.raises(ValidationError, match="set hidden_layers: 0 too"):
        TokenIQLConfig(bias=False)


def test_the_cloning_loss_is_the_mean_over_action_tokens(dataset: SegmentDataset) -> None:
    """`bc_weight` times it is part of the loss; a final state is no action and is not cloned."""
    config = IQL.model_copy(update={"bc_weight": 3.0, "language_model": "trained"})
    model = toy_model()
    critic = _critic(config)
    critic.language_model = model
    table = token_transitions(dataset, discount=0.9, discount_unit="step", truncation="bootstrap")
    sums = critic(**TrajectorySegments(table, dataset, pad_token_id=0)(list(range(12))))
    batch = collate_segments(list(dataset), pad_token_id=0)
    logits = selected_logits(
        model, batch.input_ids, batch.attention_mask, objectives.predicting_mask(batch.action_mask)
    )
    expected = -objectives.selected_token_logprobs(logits, batch.input_ids, batch.action_mask).sum()
    torch.testing.assert_close(sums["bc_loss"], expected)
    parts = sums["q_loss"] + sums["value_loss"] + config.conservative_weight * sums["conservative_loss"]
    torch.testing.assert_close(sums["loss"], parts + 3.0 * expected)


def test_values_train_the_model_through_its_states(dataset: SegmentDataset, tmp_path: Path) -> None:
    """Without the cloning loss the output layer alone gets no gradient; the layers below do."""
    model = toy_model("gpt2")
    config = IQL.model_copy(update={"bc_weight": 0.0, "language_model": "trained", "weight_decay": 0.0})
    before = {name: value.clone() for name, value in model.named_parameters()}
    _train(dataset, config, tmp_path, model=model)
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert "transformer.h.0.mlp.c_fc.weight" in moved


def test_held_out_attempts_do_not_move_the_heads(tmp_path: Path) -> None:
    """Another reward in every held-out attempt changes the held-out losses and nothing else."""
    config = IQL.model_copy(update={"holdout_fraction": 0.4})
    rows = transition_rows(12)
    first = _train(toy_dataset(tmp_path / "one", rows, kind="transitions"), config, tmp_path)
    for row in rows:
        if row.trajectory_id in first.held_out:
            row.rewards[:] += 5.0
    second = _train(toy_dataset(tmp_path / "two", rows, kind="transitions"), config, tmp_path)
    assert 0 < len(first.held_out) < 12
    assert second.held_out == first.held_out
    assert _same(first, second)
    assert first.diagnostics["train/q_loss"] == second.diagnostics["train/q_loss"]
    assert second.diagnostics["held_out/q_loss"] > first.diagnostics["held_out/q_loss"] + 1


def test_diagnostics_of_kept_states_are_those_of_states_computed_again(dataset: SegmentDataset, tmp_path: Path) -> None:
    """Of heads that no update moved much: the same losses whichever way the batches are made."""
    config = CQL.model_copy(update={"learning_rate": 1e-12, "holdout_fraction": 0.4, "weight_decay": 0.0})
    kept, again = (
        _train(dataset, config.model_copy(update=MODES[mode]), tmp_path).diagnostics for mode in ("kept", "recomputed")
    )
    names = [name for name in kept if "/" in name]
    assert len(names) == 10
    assert [again[name] for name in names] == pytest.approx([kept[name] for name in names], rel=1e-3, abs=1e-5)


def test_the_heads_that_come_back_are_the_target_critics_on_plain_states(
    dataset: SegmentDataset, tmp_path: Path
) -> None:
    """At a target rate of 1 the targets are the critics, whose loss at the data is the diagnosed one."""
    config = IQL.model_copy(update={"target_update_rate": 1.0})
    result = _train(dataset, config, tmp_path)
    model = toy_model()
    table = token_transitions(dataset, discount=config.discount, discount_unit="step", truncation="bootstrap")
    segments = TrajectorySegments(table, dataset, pad_token_id=0)
    batch = segments(list(range(12)))
    states = selected_states(model, batch)[batch["state_index"]]
    mean_q = result.heads.q_at(states, batch["token_ids"]).mean()
    assert mean_q.item() == pytest.approx(result.diagnostics["train/mean_q"], rel=1e-4)
    assert result.heads.v(states).mean().item() == pytest.approx(result.diagnostics["train/mean_v"], rel=1e-4)


def test_without_the_conservative_term_the_vocabulary_is_not_gone_through(dataset: SegmentDataset) -> None:
    """Only the rows of tokens in the data get a gradient; with the term all rows do."""
    for weight in (0.0, 0.1):
        config = IQL.model_copy(update={"conservative_weight": weight})
        critic = _critic(config)
        table = token_transitions(dataset, discount=0.9, discount_unit="step", truncation="bootstrap")
        batch = TrajectorySegments(table, dataset, pad_token_id=0)(list(range(12)))
        batch["states"] = selected_states(toy_model(), batch)
        critic(**batch)["loss"].backward()
        gradient = critic.heads.critics[0].output.weight.grad
        taken = torch.zeros(24, dtype=torch.bool)
        taken[batch["token_ids"]] = True
        assert not taken.all()
        assert bool((gradient[~taken] == 0).all()) == (weight == 0)


def test_progress_is_reported(dataset: SegmentDataset, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    _train(dataset, IQL, tmp_path, report=lambda done, total: seen.append((done, total)))
    assert seen == [(update, 6) for update in range(1, 7)]


def test_log_lines_hold_the_mean_of_each_loss_since_the_last(dataset: SegmentDataset, tmp_path: Path) -> None:
    """Three updates on the same decisions with heads that do not move: each line has the loss at them."""
    config = IQL.model_copy(update={"learning_rate": 1e-12, "weight_decay": 0.0, "logging_steps": 2})
    critic = _critic(config.model_copy(update={"target_update_rate": 0.0}))
    table = token_transitions(dataset, discount=0.99, discount_unit="step", truncation="bootstrap")
    collate = TrajectorySegments(table, dataset, pad_token_id=0)
    batch = collate([0, 1, 2])
    batch["states"] = selected_states(toy_model(), batch)
    expected = {name: value.item() / len(batch["token_ids"]) for name, value in critic(**batch).items()}
    run = _run(config, toy_model(), [[0, 1, 2]] * 3, dataset, tmp_path)
    trainer = TokenValueTrainer(critic, config, run, collate=collate, items=12, frozen_model=toy_model())
    trainer.train()
    lines = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [line["step"] for line in lines] == [2, 3]
    for line in lines:
        assert {name: line[name] for name in expected} == pytest.approx(expected, rel=1e-4)


def test_diverged_heads_are_refused(dataset: SegmentDataset, tmp_path: Path) -> None:
    config = IQL.model_copy(update={"learning_rate": 1e37, "max_steps": 12})
    with pytest.raises(DataError, match=r"training diverged"):
        _train(dataset, config, tmp_path)


def test_holding_everything_out_is_an_error(tmp_path: Path) -> None:
    dataset = toy_dataset(tmp_path / "data", [transition_row("a", seed=0, steps=2)], kind="transitions")
    with pytest.raises(DataError, match="every task is held out"):
        _train(dataset, IQL.model_copy(update={"holdout_fraction": 0.9}), tmp_path)


def test_a_cloning_dataset_is_refused(tmp_path: Path) -> None:
    dataset = toy_dataset(tmp_path / "data", transition_rows(2))
    with pytest.raises(UsageError, match="kind bc, this needs transitions"):
        _train(dataset, IQL, tmp_path)
