"""Step-level implicit Q-learning on cached features of a frozen language model.

Paper: Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", algorithm 1. A decision is
one message of the agent, not one token: Q(s, a) and V(s) have one value a step.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from offline_arl.datasets.collate import StepWeights, collate_segments, length_sorted_batches
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import DataError
from offline_arl.models.config import FeatureConfig
from offline_arl.models.features import (
    StepFeatures,
    cached_fingerprint,
    features_fingerprint,
    load_features,
    write_feature_cache,
)
from offline_arl.models.policy import policy_fingerprint
from offline_arl.models.value_heads import HeadShape, ValueHeads
from offline_arl.objectives import advantage_weights, expectile_loss, masked_mean, td_loss
from offline_arl.trainers.checkpoint import require_finite
from offline_arl.trainers.config import IQLConfig

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TransitionTable:
    """Transitions as row numbers of a feature table."""

    state_rows: Int[Tensor, " N"]
    next_rows: Int[Tensor, " N"]  # 0 where there is no next state
    rewards: Float[Tensor, " N"]
    terminated: Bool[Tensor, " N"]
    has_target: Bool[Tensor, " N"]  # terminated, or a next state exists

    def __len__(self) -> int:
        return len(self.state_rows)

    def select(self, rows: Tensor) -> TransitionTable:
        """Some of the transitions."""
        return TransitionTable(**{name: value[rows] for name, value in vars(self).items()})


class IQLResult(NamedTuple):
    """Trained heads, diagnostics by name (held-out ones where tasks were held out) and the held-out trajectories."""

    heads: ValueHeads
    diagnostics: dict[str, float]
    held_out: frozenset[str]


def compute_features(
    model: Any, tokenizer: Any, dataset: SegmentDataset, output: str | Path, *, config: FeatureConfig
) -> StepFeatures:
    """Features of all steps of a dataset from a frozen policy; taken from the cache at `output` where it fits."""
    fingerprint = features_fingerprint(
        model_fingerprint=policy_fingerprint(model), dataset_sha256=dataset.manifest.content_sha256, config=config
    )
    if cached_fingerprint(output) != fingerprint:
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id

        def batches() -> Any:
            for indices in length_sorted_batches(dataset.lengths, max_tokens=config.tokens_per_batch):
                rows = [dataset[index] for index in indices]
                yield rows, collate_segments(rows, pad_token_id=pad).to(model.device)

        write_feature_cache(model, batches(), output, config=config, fingerprint=fingerprint)
    return load_features(output)


def join_transitions(features: StepFeatures, dataset: SegmentDataset, *, truncation: str) -> TransitionTable:
    """Match the steps of a transition dataset with their features.

    Raises:
        DataError: A step has no features.
    """
    dataset.require_kind("transitions")
    row_of = features.row_of()
    columns: list[tuple[int, int, float, bool, bool]] = []
    for row in dataset:
        assert row.steps is not None
        assert row.rewards is not None
        assert row.terminated is not None
        assert row.truncated is not None
        signals = zip(row.steps, row.rewards, row.terminated, row.truncated, strict=True)
        for step, reward, ended, cut_off in signals:
            state = row_of.get((row.trajectory_id, int(step)))
            if state is None:
                raise DataError(
                    f"trajectory {row.trajectory_id}: step {step} has no features; "
                    "compute the features from the same dataset"
                )
            terminated = bool(ended) or (bool(cut_off) and truncation == "terminal")
            following = None if terminated else row_of.get((row.trajectory_id, int(step) + 1))
            has_target = terminated or following is not None
            columns.append((state, following or 0, float(reward), terminated, has_target))
    states, following_rows, rewards, ends, targets = zip(*columns, strict=True)
    table = TransitionTable(
        state_rows=torch.tensor(states),
        next_rows=torch.tensor(following_rows),
        rewards=torch.tensor(rewards),
        terminated=torch.tensor(ends),
        has_target=torch.tensor(targets),
    )
    missing = int((~table.has_target).sum())
    if missing:
        _logger.info("%d of %d steps have no next state and no ending; Q is not trained on them", missing, len(table))
    return table


def train_iql(
    features: StepFeatures,
    transitions: SegmentDataset,
    config: IQLConfig,
    *,
    generator: torch.Generator,
    report: Callable[[int, dict[str, float]], None] | None = None,
) -> IQLResult:
    """Fit twin critics and a value function to logged transitions.

    Args:
        features: Features of the dataset's steps (`compute_features`).
        transitions: A dataset of kind "transitions".
        config: Hyperparameters.
        generator: Of initial weights, batches and the held-out tasks.
        report: Called with (update, losses) every `log_every` updates.

    Returns:
        Heads whose critics are the target critics (their Polyak average is what V was fitted to), diagnostics and
        the trajectories that were held out.

    Raises:
        DataError: A step has no features, or every task was held out.
    """
    table = join_transitions(features, transitions, truncation=config.truncation)
    held_out = held_out_trajectories(transitions, config.holdout_fraction, generator=generator)
    is_held_out = torch.tensor([features.trajectory_ids[row] in held_out for row in table.state_rows.tolist()])
    training = table.select(torch.nonzero(~is_held_out).flatten())
    validation = table.select(torch.nonzero(is_held_out).flatten())
    if len(training) == 0:
        raise DataError("every task is held out: lower holdout_fraction or add tasks")
    shape = HeadShape(
        state_size=features.states.shape[-1],
        action_size=features.actions.shape[-1],
        hidden_size=config.hidden_size,
        hidden_layers=config.hidden_layers,
        layer_norm=config.layer_norm,
    )
    heads = ValueHeads(shape, generator=generator)
    heads.set_normalization(features.states[training.state_rows], features.actions[training.state_rows])
    with torch.no_grad():  # normalized once for all updates
        inputs = heads.q_inputs(features.states, features.actions), heads.v_inputs(features.states)
    learner = _Learner(heads, config)
    _fit(learner, inputs, training, generator=generator, report=report)
    final = learner.final_heads()
    require_finite(final)
    diagnostics = {"updates": float(config.steps), "transitions": float(len(training))}
    for name, part in (("train", training), ("held_out", validation)):
        if len(part):
            diagnostics.update({f"{name}/{key}": value for key, value in learner.evaluate(inputs, part).items()})
    return IQLResult(final, diagnostics, held_out)


def held_out_trajectories(dataset: SegmentDataset, fraction: float, *, generator: torch.Generator) -> frozenset[str]:
    """Trajectories of a random `fraction` of the tasks; a trajectory of no known task is a task of its own."""
    tasks = [
        task if task is not None else f"trajectory {trajectory}"
        for task, trajectory in zip(dataset.column("task_id"), dataset.column("trajectory_id"), strict=True)
    ]
    names = sorted(set(tasks))
    order = torch.randperm(len(names), generator=generator)
    chosen = {names[int(position)] for position in order[: round(fraction * len(names))]}
    return frozenset(
        trajectory for task, trajectory in zip(tasks, dataset.column("trajectory_id"), strict=True) if task in chosen
    )


def advantages(
    heads: ValueHeads, features: StepFeatures, *, rows_per_batch: int = 16_384
) -> dict[tuple[str, int], float]:
    """The smaller of the two Q(s, a) minus V(s) for every (trajectory_id, step), in units of return."""
    pieces = []
    with torch.inference_mode():
        for states, actions in zip(
            torch.split(features.states, rows_per_batch), torch.split(features.actions, rows_per_batch), strict=True
        ):
            pieces.append(heads.advantages(states, actions))
    values = torch.cat(pieces).tolist()
    keys = zip(features.trajectory_ids, features.steps.tolist(), strict=True)
    return {key: value for key, value, acts in zip(keys, values, features.has_action.tolist(), strict=True) if acts}


def awr_step_weights(
    step_advantages: Mapping[tuple[str, int], float], *, inverse_temperature: float, max_weight: float
) -> StepWeights:
    """The cloning weight of each step, `objectives.advantage_weights` of its advantage."""
    values = torch.tensor(list(step_advantages.values()))
    weights = advantage_weights(values, inverse_temperature=inverse_temperature, max_weight=max_weight)
    return dict(zip(step_advantages, weights.tolist(), strict=True))


class _Learner:
    """Heads, target critics and optimizer; one update of both losses."""

    def __init__(self, heads: ValueHeads, config: IQLConfig) -> None:
        self.heads = heads
        self.config = config
        self.target = copy.deepcopy(heads.critics).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(
            heads.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )

    def losses(self, inputs: tuple[Tensor, Tensor], batch: TransitionTable) -> dict[str, Tensor]:
        """The reduced losses of a batch, and the means of Q and V.

        # Deviation: both losses use the values before the update (algorithm 1 updates V first), which saves a pass.
        """
        q_inputs, v_inputs = inputs
        chosen = q_inputs[batch.state_rows]
        # One pass of V over states and next states; the objectives stop the gradient of the latter.
        both = self.heads.value(v_inputs[torch.cat([batch.state_rows, batch.next_rows])]).squeeze(0)
        values, next_values = both[: len(batch)], both[len(batch) :]
        with torch.no_grad():
            target_q = self.target(chosen).amin(dim=0)
        everywhere = torch.ones_like(batch.has_target)
        value_losses = expectile_loss(target_q, values, everywhere, expectile=self.config.expectile)
        q_values = self.heads.critics(chosen)
        q_losses = td_loss(
            q_values, batch.rewards, next_values, batch.terminated, batch.has_target, discount=self.config.discount
        )
        return {
            "value_loss": masked_mean(value_losses, everywhere, denominator=len(batch)),
            "q_loss": masked_mean(q_losses, batch.has_target, denominator=batch.has_target.sum().clamp_min(1)),
            "mean_q": q_values.mean(),
            "mean_v": values.mean(),
        }

    def update(self, inputs: tuple[Tensor, Tensor], batch: TransitionTable, learning_rate: float) -> dict[str, Tensor]:
        """One gradient step on both losses, then the targets move by `target_update_rate`."""
        losses = self.losses(inputs, batch)
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(losses["value_loss"] + losses["q_loss"])
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.heads.critics.parameters(), strict=True):
                slow.lerp_(fast, self.config.target_update_rate)
        return losses

    @torch.no_grad()
    def evaluate(self, inputs: tuple[Tensor, Tensor], part: TransitionTable) -> dict[str, float]:
        """Losses over all transitions of a part."""
        totals: dict[str, float] = {}
        for rows in torch.split(torch.arange(len(part)), 16_384):
            batch = part.select(rows)
            for name, value in self.losses(inputs, batch).items():
                totals[name] = totals.get(name, 0.0) + float(value) * len(batch) / len(part)
        return totals

    def final_heads(self) -> ValueHeads:
        """The heads with the target critics in place of the fast ones."""
        final = copy.deepcopy(self.heads)
        final.critics.load_state_dict(self.target.state_dict())
        return final.eval().requires_grad_(False)


def _fit(
    learner: _Learner,
    inputs: tuple[Tensor, Tensor],
    training: TransitionTable,
    *,
    generator: torch.Generator,
    report: Callable[[int, dict[str, float]], None] | None,
) -> None:
    """All updates. There is no early stopping: both losses are smallest before the rewards have moved back through
    the trajectories, when Q and V still agree on too little.
    """
    config = learner.config
    for update in range(1, config.steps + 1):
        rows = torch.randint(len(training), (config.batch_size,), generator=generator)
        losses = learner.update(inputs, training.select(rows), _learning_rate(config, update))
        if report is not None and update % config.log_every == 0:
            report(update, {name: float(value.detach()) for name, value in losses.items()})


def _learning_rate(config: IQLConfig, update: int) -> float:
    if config.learning_rate_decay == "none":
        return config.learning_rate
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * (update - 1) / config.steps))
