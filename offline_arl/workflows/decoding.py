"""The stages that make policies out of values and train nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from offline_arl.datasets.collate import collate_segments, length_sorted_batches
from offline_arl.datasets.return_conditioning import load_conditioning
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import DataError, GateError
from offline_arl.evaluation.intervals import Estimate
from offline_arl.models.folding import (
    ConstantDirection,
    FoldReport,
    apply_fold,
    make_fold,
    needs_constant_direction,
    report_fold,
)
from offline_arl.models.guided_policy import HEADS_FOLDER, save_value_guided_policy
from offline_arl.models.policy import load_model, save_policy, selected_states_and_logits
from offline_arl.models.reranked_policy import RerankingConfig, save_reranked_policy
from offline_arl.models.token_heads import CONFIG_NAME as TOKEN_HEADS
from offline_arl.models.token_heads import TokenValueHeads, load_token_heads
from offline_arl.models.value_guidance import GuidanceConfig, ValueGuidance
from offline_arl.objectives.logprobs import predicting_mask, scored_mask
from offline_arl.trainers.value_record import CARD_NAME, RECORD_NAME, check_feature_policy, load_step_values
from offline_arl.workflows.context import StageContext, StageOutputs
from offline_arl.workflows.stages import Reranked, ValueFolded, ValueGuided
from offline_arl.workflows.train_policies import dataset_and_policy

_NUMBERS_PER_BATCH = 2**24  # of logits


class _Decisions(NamedTuple):
    """Action tokens of a dataset and what a policy makes of the states before them."""

    tokens: Tensor  # [N]
    states: Tensor  # [N, H]
    logits: Tensor  # [N, V]


def make_value_guided(config: ValueGuided, context: StageContext) -> StageOutputs:
    """Write the folder of a value-guided policy and say how its support fits the data.

    Raises:
        DataError: The values are no token-level heads, or values or dataset are for another policy.
        UsageError: The policy decodes by values already.
    """
    dataset, model, tokenizer = dataset_and_policy(config, context)
    policy, heads = _token_level(config, context, model)
    guidance = ValueGuidance(heads, _settings(config, dataset, critics=config.critics))
    save_value_guided_policy(policy, heads, guidance.config, context.folder / "policy")
    for name in (RECORD_NAME, CARD_NAME):  # how the heads were made goes with them
        shutil.copyfile(context.path(config.values, "values") / name, context.folder / "policy" / HEADS_FOLDER / name)
    context.progress("decisions of the data", 0, None)
    logged, supported, moved = [], [], []
    for batch in _decisions(model, tokenizer, dataset, _some_rows(dataset, config, context)):
        support = guidance.support(batch.logits)
        logged.append(support.gather(1, batch.tokens[:, None])[:, 0])
        supported.append(support.sum(dim=-1))
        guided = guidance(batch.logits, batch.states).log_softmax(dim=-1)
        terms = guided.exp() * (guided - batch.logits.float().log_softmax(dim=-1))
        moved.append(terms.masked_fill(~support, 0.0).sum(dim=-1))
    outside = 1.0 - torch.cat(logged).double()
    divergence = torch.cat(moved)
    notes = (
        f"on {len(outside):,} decisions of the data: {torch.cat(supported).double().mean():.1f} tokens supported of "
        f"{heads.shape.vocabulary_size:,}, {100 * outside.mean():.2f} % of the logged tokens outside, "
        f"{divergence.mean():.2f} nats a token from the behavior policy",
    )
    return StageOutputs(
        artifacts={"policy": "policy"},
        metrics={
            f"logged_outside_support/{context.name}": _mean(outside),
            f"divergence/{context.name}": _mean(divergence),
        },
        notes=notes,
    )


def make_value_folded(config: ValueFolded, context: StageContext) -> StageOutputs:
    """Fold linear heads into the policy's output layer, and measure the policy that comes of it.

    Raises:
        DataError: The values are no token-level heads, or values or dataset are for another policy.
        UsageError: The heads have hidden layers, or the model bends its logits.
        GateError: The folded policy is further than `error_tolerance` from the guided one.
    """
    dataset, model, tokenizer = dataset_and_policy(config, context)
    policy, heads = _token_level(config, context, model)
    guidance = ValueGuidance(heads, _settings(config, dataset, critics="mean"))
    exact = ValueGuidance(heads, GuidanceConfig(config.inverse_temperature, 0.0, critics="mean"))
    rows = _some_rows(dataset, config, context)
    fitted, measured = rows[::2], rows[1::2] if len(rows) > 1 else rows
    constant = None
    if needs_constant_direction(model, heads):
        context.progress("a constant direction", 0, None)
        direction = ConstantDirection(heads.shape.state_size)
        for batch in _decisions(model, tokenizer, dataset, fitted):
            direction.add(batch.states)
        constant = direction.solve()
    fold = make_fold(model, heads, inverse_temperature=config.inverse_temperature, constant=constant)
    context.progress("decisions of the data", 0, None)
    report = FoldReport.concatenate(
        [
            report_fold(
                fold, batch.logits, batch.states, exact(batch.logits, batch.states), guidance.support(batch.logits)
            )
            for batch in _decisions(model, tokenizer, dataset, measured)
        ]
    )
    error = float(report.error.mean())
    if not error <= config.error_tolerance:
        raise GateError(
            f"the folded policy is {error:.3f} from the guided one (mean total variation distance, tolerance "
            f"{config.error_tolerance:g}): the heads have a bias and the output layer has none; train them with "
            "bias: false, lower inverse_temperature, decode with value_guided, or raise error_tolerance"
        )
    apply_fold(model, fold)
    save_policy(model, tokenizer, context.folder / "policy")
    conditioning = load_conditioning(policy)
    if conditioning is not None:  # it is asked for returns like the policy that it is made of
        conditioning.save(context.folder / "policy")
    return StageOutputs(
        artifacts={"policy": "policy"},
        metrics={
            f"outside_support/{context.name}": _mean(report.outside_support),
            f"behavior_outside_support/{context.name}": _mean(report.behavior_outside_support),
            f"fold_error/{context.name}": _mean(report.error),
        },
        notes=(_fold_note(report, constant is not None),),
    )


def make_reranked(config: Reranked, context: StageContext) -> StageOutputs:
    """Write the folder of a policy that chooses among several steps.

    Raises:
        DataError: The values are no step-level heads, or were trained on the hidden states of another policy.
        UsageError: The policy chooses among several steps already.
    """
    policy = context.path(config.policy, "policy")
    feature_policy = policy if config.feature_policy is None else context.path(config.feature_policy, "policy")
    heads, record = load_step_values(
        context.path(config.values, "values"),
        load_model(feature_policy, config.dtype),
        policy=feature_policy,
        remedy="name that policy in feature_policy",
    )
    save_reranked_policy(
        policy,
        heads,
        RerankingConfig(
            candidates=config.candidates,
            layers=record.layers,
            state_window=record.state_window,
            candidate_temperature=config.candidate_temperature,
            inverse_temperature=config.inverse_temperature,
        ),
        context.folder / "policy",
        feature_model=None if feature_policy == policy else feature_policy,
    )
    return StageOutputs(
        artifacts={"policy": "policy"}, notes=(f"the best of {config.candidates} steps by {record.algorithm}",)
    )


def _token_level(config: ValueGuided | ValueFolded, context: StageContext, model: Any) -> tuple[Path, TokenValueHeads]:
    """The policy's folder and the heads for its hidden states."""
    policy, values = context.path(config.policy, "policy"), context.path(config.values, "values")
    if not (values / TOKEN_HEADS).is_file():
        raise DataError(f"{values}: holds no token-level value heads; name a stage such as token_iql_values")
    check_feature_policy(
        values, model, policy=policy, remedy="name that policy, which the stage that trained the values has beside them"
    )
    return policy, load_token_heads(values)


def _settings(config: ValueGuided | ValueFolded, dataset: SegmentDataset, *, critics: Any) -> GuidanceConfig:
    tokens = _action_tokens(dataset) if config.only_action_tokens else None
    return GuidanceConfig(config.inverse_temperature, config.support_threshold, tokens, critics)


def _action_tokens(dataset: SegmentDataset) -> list[int]:
    """The tokens that occur in actions, ascending."""
    seen: set[int] = set()
    for row in dataset:
        seen.update(np.unique(row.token_ids[row.action_mask]).tolist())
    if not seen:
        raise DataError("the dataset has no action tokens, so nothing is supported; build it from other trajectories")
    return sorted(seen)


def _some_rows(dataset: SegmentDataset, config: ValueGuided | ValueFolded, context: StageContext) -> list[int]:
    """Random rows with about as many action tokens as are to be measured; at least two where there are two."""
    order = context.generator("measured rows").permutation(len(dataset))
    counts = np.cumsum([int(dataset[int(index)].action_mask.sum()) for index in order])
    needed = int(np.searchsorted(counts, config.measured_tokens)) + 1
    return [int(index) for index in order[: max(2, needed)]]


def _decisions(model: Any, tokenizer: Any, dataset: SegmentDataset, rows: Sequence[int]) -> Iterator[_Decisions]:
    """The decisions of some rows, batch by batch."""
    lengths = np.array([len(dataset[row]) for row in rows])
    budget = max(int(lengths.max()), _NUMBERS_PER_BATCH // model.get_output_embeddings().weight.shape[0])
    for indices in length_sorted_batches(lengths, max_tokens=budget):
        segments = [dataset[rows[index]] for index in indices]
        batch = collate_segments(segments, pad_token_id=tokenizer.pad_token_id).to(model.device)
        with torch.no_grad():
            states, logits = selected_states_and_logits(
                model.eval(),
                batch.input_ids,
                batch.attention_mask,
                predicting_mask(batch.action_mask),
                shared_prefix=batch.shared_prefix,
            )
        yield _Decisions(batch.input_ids[scored_mask(batch.action_mask)], states, logits)


def _fold_note(report: FoldReport, approximate: bool) -> str:
    outside = report.outside_support
    note = (
        f"on {len(outside):,} decisions of the data: {100 * outside.mean():.3f} % of the probability outside the "
        f"support (at most {100 * outside.max():.1f} %), {100 * report.behavior_outside_support.mean():.3f} % in the "
        "behavior policy"
    )
    if not approximate:
        return note + "; the fold is exact"
    return note + (
        f"; total variation distance to the guided policy {report.error.mean():.4f}, at most {report.error.max():.3f}, "
        "since the output layer has no bias to hold that of the heads"
    )


def _mean(values: Tensor) -> Estimate:
    """A mean over the decisions at hand; no interval, decisions of one trajectory are not independent."""
    mean = float(values.double().mean())
    return Estimate(mean, mean, mean, len(values))
