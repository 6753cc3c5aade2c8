"""Token-level value learning on a language model's hidden states: implicit (ILQL) and conservative Q-learning.

A decision is one token that the agent sampled. The loss of an update is the mean over its decisions of

    squared error of the critics + expectile error of V + conservative_weight * conservative term

and, where the language model is trained along, `bc_weight` times its negative log-likelihood. Every part is divided by
the decisions of the whole update, so gradient accumulation and several processes change nothing.

Papers: Snell et al. 2023, "Offline RL for Natural Language Generation with Implicit Language Q Learning", section 4;
Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", equation 4.

Deviations: one discount a step by default instead of one a token; the states of a frozen model are whitened; as in
step-level IQL both losses use the values before the update, and what is kept are the target critics.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from offline_arl.datasets.collate import TokenBudgetSampler, length_sorted_batches
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.datasets.token_transitions import TokenTransitions, token_transitions
from offline_arl.errors import DataError
from offline_arl.models.token_heads import TokenHeadShape, TokenValueHeads
from offline_arl.trainers.checkpoint import require_finite
from offline_arl.trainers.config import TokenCQLConfig, TokenIQLConfig
from offline_arl.trainers.model_checks import check_fits
from offline_arl.trainers.random_state import preserved_random_state
from offline_arl.trainers.run import ResumeFrom, RunFolders, TrainingRun, pad_token_id
from offline_arl.trainers.token_critic import TokenCritic
from offline_arl.trainers.token_states import (
    KeptStates,
    StateTransform,
    TrajectorySegments,
    read_states,
    selected_states,
)
from offline_arl.trainers.token_trainer import TokenValueTrainer
from offline_arl.trainers.transitions import held_out_trajectories
from offline_arl.trainers.update_trainer import Report

_logger = logging.getLogger(__name__)
DIAGNOSED_DECISIONS = 8_192  # of each part, about; going through the vocabulary for all of them would take long


_DECISION = frozenset(
    {"states", "state_index", "next_index", "token_ids", "rewards", "discounts", "terminated", "has_target"}
)


class TokenValueResult(NamedTuple):
    """Trained heads, diagnostics by name (held-out ones where tasks were held out) and the held-out trajectories."""

    heads: TokenValueHeads
    diagnostics: dict[str, float]
    held_out: frozenset[str]


@dataclass(frozen=True, eq=False)
class _Data:
    """The decisions, in whichever form batches are made of them, and which trajectories are trained on."""

    table: TokenTransitions
    segments: TrajectorySegments
    kept: KeptStates | None
    transform: StateTransform | None
    trained: NDArray[np.bool_]  # [trajectories]
    held_out: frozenset[str]

    def decisions(self, *, trained: bool) -> NDArray[np.int64]:
        """Numbers of the decisions that are (not) trained on."""
        return np.flatnonzero(self.trained[self.table.trajectories[self.table.decision_rows]] == trained)


def train_token_values(
    model: Any,
    tokenizer: Any,
    dataset: SegmentDataset,
    config: TokenIQLConfig | TokenCQLConfig,
    output_dir: str | Path,
    *,
    seed: int,
    resume_from_checkpoint: ResumeFrom = None,
    folders: RunFolders | None = None,
    report: Report | None = None,
) -> TokenValueResult:
    """Fit token-level heads to logged transitions.

    Args:
        model: The causal language model whose states the heads read. Trained in place where the configuration says
            so, adapters merged at the end; otherwise left as it is.
        tokenizer: Its tokenizer.
        dataset: Of kind "transitions", rendered with this tokenizer.
        config: Its class decides the algorithm.
        output_dir: Where the policy is saved, if it is trained.
        seed: Of initial weights, batches, held-out tasks, dropout and adapters.
        resume_from_checkpoint: A checkpoint folder of an earlier run with the same arguments. "latest": the newest
            complete one in the folder of checkpoints if it is of such a run, else the beginning.
        folders: Where checkpoints (with `save_steps`) and TensorBoard's events lie; None: beside the policy.
        report: Told (updates done, updates in all).

    Returns:
        Heads that read the states of the model as it is now; their critics are the target critics.

    Raises:
        DataError: The dataset is empty or does not fit the model, every task was held out, a segment starts with an
            action, a reward is not a number, or training diverged.
        UsageError: The dataset holds no transitions, a checkpoint is of another run, a package is missing, or the
            memory does not suffice.
    """
    check_fits(model, dataset)
    generator = torch.Generator().manual_seed(seed)
    data = _prepare(model, tokenizer, dataset, config, generator)
    heads = TokenValueHeads(_shape(model, config), generator=generator).to(model.device)
    run = TrainingRun(
        config,
        model,
        _batches(data, config, seed),
        folders=folders or RunFolders.beside(Path(output_dir)),
        seed=seed,
        resume_from=resume_from_checkpoint,
        algorithm=f"token values ({type(config).__name__})",
        dataset=dataset.manifest,
    )
    train_model = config.language_model == "trained"
    with preserved_random_state():
        learned = run.adapted(model) if train_model else model
        critic = TokenCritic(heads, config, language_model=learned if train_model else None)
        if data.transform is not None:
            critic.state_mean.copy_(data.transform.mean)
            critic.state_matrix.copy_(data.transform.matrix)
        trainer = TokenValueTrainer(
            critic,
            config,
            run,
            collate=data.segments if data.kept is None else data.kept,
            items=len(data.table) if data.kept is not None else len(data.trained),
            frozen_model=None if train_model else model,
            report=report,
        )
        metrics = run.train(trainer)
    require_finite(critic)
    diagnostics = {
        "updates": metrics["updates"],
        "decisions": float(len(data.decisions(trained=True))),
        "seconds": metrics["seconds"],
        "states_kept": float(data.kept is not None),
    }
    if train_model:
        run.save(learned, model, tokenizer, Path(output_dir), metrics=diagnostics)
    model.eval()
    for name, trained in (("train", True), ("held_out", False)):
        found = _evaluate(critic, model, data, config, trained=trained, seed=seed)
        diagnostics.update({f"{name}/{key}": value for key, value in found.items()})
    return TokenValueResult(critic.final_heads(), diagnostics, data.held_out)


def _prepare(
    model: Any,
    tokenizer: Any,
    dataset: SegmentDataset,
    config: TokenIQLConfig | TokenCQLConfig,
    generator: torch.Generator,
) -> _Data:
    """Lay the decisions out and, for a frozen model, read its states."""
    table = token_transitions(
        dataset, discount=config.discount, discount_unit=config.discount_unit, truncation=config.truncation
    )
    missing = int((~table.has_target).sum())
    if missing:
        _logger.info("%d of %d tokens have no next state and no ending; Q is not trained on them", missing, len(table))
    held_out = held_out_trajectories(dataset, config.holdout_fraction, generator=generator)
    trained = np.zeros(table.trajectories[-1] + 1, dtype=np.bool_)
    trained[table.trajectories] = [name not in held_out for name in dataset.column("trajectory_id")]
    if not trained.any():
        raise DataError("every task is held out: lower holdout_fraction or add tasks")
    segments = TrajectorySegments(table, dataset, pad_token_id=pad_token_id(tokenizer))
    if config.language_model == "trained":
        return _Data(table, segments, None, None, trained, held_out)
    model.eval()
    states, transform = read_states(
        model,
        segments,
        trained=trained,
        tokens_per_batch=config.tokens_per_batch,
        kept_megabytes=config.cache_megabytes,
        whiten=config.whiten_states,
        center=config.bias,
    )
    kept = None if states is None else KeptStates(table, states)
    return _Data(table, segments, kept, transform, trained, held_out)


def _shape(model: Any, config: TokenIQLConfig | TokenCQLConfig) -> TokenHeadShape:
    """Sizes from the output layer, whose input is the last hidden state."""
    vocabulary, state = model.get_output_embeddings().weight.shape
    hidden = (config.hidden_size or 2 * state) if config.hidden_layers else 0
    return TokenHeadShape(state, vocabulary, config.critics, config.hidden_layers, hidden, config.bias)


def _batches(data: _Data, config: TokenIQLConfig | TokenCQLConfig, seed: int) -> list[list[int]]:
    """The items of every batch of the run: decisions where states are kept, else trajectories."""
    count = None if config.max_steps is None else config.max_steps * config.gradient_accumulation_steps
    if data.kept is not None:
        decisions = data.decisions(trained=True)
        size = min(config.batch_size, len(decisions))
        drawn = count or max(1, round(config.epochs * len(decisions) / size))
        generator = np.random.default_rng(seed)
        orders = [generator.permutation(decisions) for _ in range(-(-drawn * size // len(decisions)))]
        return [batch.tolist() for batch in np.concatenate(orders)[: drawn * size].reshape(drawn, size)]
    trajectories = np.flatnonzero(data.trained)
    lengths = data.segments.lengths[trajectories]
    epochs = config.epochs
    while True:
        batches = TokenBudgetSampler(lengths, max_tokens=config.tokens_per_batch, epochs=epochs, seed=seed).batches
        if count is None or len(batches) >= count:
            return [trajectories[batch].tolist() for batch in batches[:count]]
        epochs = math.ceil(epochs * count / len(batches)) + 1


@torch.no_grad()
def _evaluate(
    critic: TokenCritic,
    model: Any,
    data: _Data,
    config: TokenIQLConfig | TokenCQLConfig,
    *,
    trained: bool,
    seed: int,
) -> dict[str, float]:
    """Means over about `DIAGNOSED_DECISIONS` random decisions of a part; nothing where the part is empty."""
    order = np.random.default_rng([seed, 1])
    batches: list[dict[str, Any]] | Iterator[dict[str, Any]]
    if data.kept is not None:
        decisions = order.permutation(data.decisions(trained=trained))[:DIAGNOSED_DECISIONS]
        pieces = np.split(decisions, range(1_024, len(decisions), 1_024))
        batches = (data.kept(piece.tolist()) for piece in pieces if len(piece))
    else:
        trajectories = order.permutation(np.flatnonzero(data.trained == trained))
        sizes = np.cumsum(data.segments.decisions_in(trajectories))
        trajectories = trajectories[: np.searchsorted(sizes, DIAGNOSED_DECISIONS) + 1]
        cut = length_sorted_batches(data.segments.lengths[trajectories], max_tokens=config.tokens_per_batch)
        batches = (data.segments(trajectories[batch].tolist()) for batch in cut)
    critic.eval()
    totals: dict[str, float] = {}
    count = 0
    for batch in batches:
        if "states" not in batch:
            batch["states"] = selected_states(model, batch)
        on_device = {name: value.to(critic.state_mean.device) for name, value in batch.items() if name in _DECISION}
        count += len(on_device["token_ids"])
        for name, value in critic.losses(on_device).items():
            totals[name] = totals.get(name, 0.0) + float(value)
    return {name: total / count for name, total in totals.items()}
