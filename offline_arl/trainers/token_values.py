"""Token-level value learning on a language model's hidden states: implicit (ILQL) and conservative Q-learning.

A decision is one token that the agent sampled. The loss of an update is the mean over its decisions of

    squared error of the critics + expectile error of V + conservative_weight * conservative term

and, where the language model is trained along, `bc_weight` times its negative log-likelihood. Every part is divided by
the decisions of the whole update, so gradient accumulation and several processes change nothing.

Papers: Snell et al. 2023, "Offline RL for Natural Language Generation with Implicit Language Q Learning", section 4;
Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", equation 4.

Deviations: one discount a step by default instead of one a token; the states of a frozen model are standardized; as in
step-level IQL both losses use the values before the update, and what is kept are the target critics.
"""

from __future__ import annotations

import logging
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
from offline_arl.optional import require
from offline_arl.trainers.checkpoint import require_finite
from offline_arl.trainers.config import TokenCQLConfig, TokenIQLConfig
from offline_arl.trainers.random_state import preserved_random_state
from offline_arl.trainers.token_critic import TokenCritic
from offline_arl.trainers.token_states import (
    KeptStates,
    StateMoments,
    TrajectorySegments,
    read_states,
    selected_states,
)
from offline_arl.trainers.token_trainer import Report, TokenValueTrainer
from offline_arl.trainers.transitions import held_out_trajectories

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
    moments: StateMoments | None
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
    *,
    seed: int,
    checkpoints: str | Path,
    report: Report | None = None,
    resume_from_checkpoint: str | Path | None = None,
) -> TokenValueResult:
    """Fit token-level heads to logged transitions.

    Args:
        model: The causal language model whose states the heads read. Trained in place where the configuration says
            so, adapters merged at the end; otherwise left as it is.
        tokenizer: Its tokenizer.
        dataset: Of kind "transitions", rendered with this tokenizer.
        config: Its class decides the algorithm.
        seed: Of initial weights, batches, held-out tasks, dropout and adapters.
        checkpoints: Folder for checkpoints, if the configuration asks for them.
        report: Called with (update, mean losses since the last call) every `log_every` updates.
        resume_from_checkpoint: A checkpoint folder of an earlier run with the same arguments.

    Returns:
        Heads that read the states of the model as it is now; their critics are the target critics.

    Raises:
        DataError: Every task was held out, a segment starts with an action, or training diverged.
        UsageError: The dataset holds no transitions, or adapters are asked for and peft is missing.
    """
    generator = torch.Generator().manual_seed(seed)
    data = _prepare(model, tokenizer, dataset, config, generator)
    heads = TokenValueHeads(_shape(model, config), generator=generator).to(model.device)
    learned = _with_adapter(model, config, seed) if config.language_model == "lora" else model
    critic = TokenCritic(heads, config, language_model=None if config.language_model == "frozen" else learned)
    if data.moments is not None:
        critic.state_mean.copy_(data.moments.mean)
        critic.state_scale.copy_(data.moments.scale)
    with preserved_random_state():
        trainer = TokenValueTrainer(
            critic,
            config,
            batches=_batches(data, config, seed),
            collate=data.segments if data.kept is None else data.kept,
            frozen_model=model if config.language_model == "frozen" else None,
            seed=seed,
            checkpoints=Path(checkpoints),
            report=report,
        )
        outcome = trainer.train(
            resume_from_checkpoint=None if resume_from_checkpoint is None else str(resume_from_checkpoint)
        )
    require_finite(critic)
    if learned is not model:
        learned.merge_and_unload()
    model.eval()
    diagnostics = {
        "updates": float(trainer.state.global_step),
        "decisions": float(len(data.decisions(trained=True))),
        "seconds": float(outcome.metrics["train_runtime"]),
        "states_kept": float(data.kept is not None),
    }
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
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    segments = TrajectorySegments(table, dataset, pad_token_id=pad)
    if config.language_model != "frozen":
        return _Data(table, segments, None, None, trained, held_out)
    model.eval()
    states, moments = read_states(
        model,
        segments,
        trained=trained,
        tokens_per_batch=config.tokens_per_batch,
        kept_megabytes=config.cache_megabytes,
    )
    kept = None if states is None else KeptStates(table, states)
    return _Data(table, segments, kept, moments, trained, held_out)


def _shape(model: Any, config: TokenIQLConfig | TokenCQLConfig) -> TokenHeadShape:
    """Sizes from the output layer, whose input is the last hidden state."""
    vocabulary, state = model.get_output_embeddings().weight.shape
    hidden = (config.hidden_size or 2 * state) if config.hidden_layers else 0
    return TokenHeadShape(state, vocabulary, config.critics, config.hidden_layers, hidden)


def _batches(data: _Data, config: TokenIQLConfig | TokenCQLConfig, seed: int) -> list[list[int]]:
    """The items of every micro-batch: decisions where states are kept, else trajectories."""
    count = config.steps * config.gradient_accumulation_steps
    if data.kept is not None:
        decisions = data.decisions(trained=True)
        drawn = np.random.default_rng(seed).integers(len(decisions), size=(count, config.batch_size))
        return [batch.tolist() for batch in decisions[drawn]]
    trajectories = np.flatnonzero(data.trained)
    lengths = data.segments.lengths[trajectories]
    epochs = 1
    while True:
        sampler = TokenBudgetSampler(lengths, max_tokens=config.tokens_per_batch, epochs=epochs, seed=seed)
        if len(sampler) >= count:
            return [trajectories[batch].tolist() for batch in sampler.batches[:count]]
        epochs = max(epochs + 1, -(-count * epochs // len(sampler)))


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


def _with_adapter(model: Any, config: TokenIQLConfig | TokenCQLConfig, seed: int) -> Any:
    peft = require("peft", extra="train")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return peft.get_peft_model(
            model,
            peft.LoraConfig(
                r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM"
            ),
        )
