"""Features of steps from a frozen language model, one forward pass a trajectory, cached on disk.

For each step of an agent:

* the state feature is the hidden state at the token just before the step's first action token (the end of the
  generation prompt: all that the policy knows when it starts to act);
* the action feature is the hidden state at the step's last action token, beside the mean over its action tokens.

A cache is a folder of safetensors shards (`states` and `actions`, rows in index order), an index of
(trajectory_id, step) and a manifest with the fingerprint of model and dataset.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from offline_arl.errors import DataError
from offline_arl.models.config import FeatureConfig
from offline_arl.models.policy import hidden_states

MANIFEST_NAME = "manifest.json"
INDEX_NAME = "index.parquet"


@runtime_checkable
class FeatureRow(Protocol):
    """What is read of a segment."""

    @property
    def trajectory_id(self) -> str: ...
    @property
    def token_ids(self) -> NDArray[np.int32]: ...
    @property
    def step_index(self) -> NDArray[np.int32]: ...
    @property
    def final_state(self) -> bool: ...
    @property
    def n_steps(self) -> int | None: ...


@runtime_checkable
class PaddedBatch(Protocol):
    """What is read of a padded batch of segments."""

    @property
    def input_ids(self) -> Tensor: ...
    @property
    def attention_mask(self) -> Tensor: ...
    @property
    def shared_prefix(self) -> int: ...


class FeatureManifest(msgspec.Struct, frozen=True):
    """What a cache holds. `fingerprint` names model, dataset, layers and dtype: equal means nothing to recompute."""

    fingerprint: str
    layers: tuple[int, ...]
    state_size: int
    action_size: int
    rows: int
    shards: int


@dataclass(frozen=True, eq=False)
class StepFeatures:
    """Features of steps in memory. A row without an action is the state after the last step of a trajectory."""

    trajectory_ids: list[str]  # [N]
    steps: Int[Tensor, " N"]
    has_action: Bool[Tensor, " N"]
    states: Float[Tensor, "N S"]
    actions: Float[Tensor, "N A"]  # 0 where has_action is False

    def __len__(self) -> int:
        return len(self.trajectory_ids)

    def row_of(self) -> dict[tuple[str, int], int]:
        """(trajectory_id, step) -> row."""
        keys = zip(self.trajectory_ids, self.steps.tolist(), strict=True)
        return {key: row for row, key in enumerate(keys)}

    @classmethod
    def concatenate(cls, pieces: Sequence[StepFeatures]) -> StepFeatures:
        """Several pieces as one."""
        return cls(
            trajectory_ids=[name for piece in pieces for name in piece.trajectory_ids],
            steps=torch.cat([piece.steps for piece in pieces]),
            has_action=torch.cat([piece.has_action for piece in pieces]),
            states=torch.cat([piece.states for piece in pieces]),
            actions=torch.cat([piece.actions for piece in pieces]),
        )


def step_features(
    model: Any, rows: Sequence[FeatureRow], batch: PaddedBatch, *, layers: tuple[int, ...]
) -> StepFeatures:
    """The features of all steps of a padded batch of segments, from one forward pass.

    Raises:
        DataError: A segment starts with an action token, so there is no state to act in.
    """
    states, offset = hidden_states(
        model,
        batch.input_ids,
        batch.attention_mask,
        layers=layers,
        shared_prefix=batch.shared_prefix,
    )
    spans = [_spans(row) for row in rows]
    counts = [len(steps) for steps, _, _ in spans]
    batch_row = torch.from_numpy(np.repeat(np.arange(len(rows)), counts))
    first = torch.from_numpy(np.concatenate([first for _, first, _ in spans]))
    last = torch.from_numpy(np.concatenate([last for _, _, last in spans]))
    has_action = last >= first
    state = states[batch_row, first - 1 - offset]
    at_last = states[batch_row, torch.where(has_action, last - offset, 0)]
    mean = _span_means(states, batch_row, first - offset, last - offset)
    action = torch.cat([at_last, mean], dim=-1) * has_action.unsqueeze(-1).to(states)
    return StepFeatures(
        trajectory_ids=[row.trajectory_id for row, count in zip(rows, counts, strict=True) for _ in range(count)],
        steps=torch.from_numpy(np.concatenate([steps for steps, _, _ in spans])),
        has_action=has_action,
        states=state,
        actions=action,
    )


def _spans(row: FeatureRow) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(step, first action token, last action token) of each step; a final state has last = first - 1 = T - 1."""
    positions = np.flatnonzero(row.step_index >= 0)
    step_of = row.step_index[positions].astype(np.int64)
    steps, starts = np.unique(step_of, return_index=True)
    _, ends = np.unique(step_of[::-1], return_index=True)
    first, last = positions[starts], positions[len(positions) - 1 - ends]
    if len(first) and first[0] == 0:
        raise DataError(f"trajectory {row.trajectory_id}: a segment starts with an action, there is no state before it")
    if row.final_state and row.n_steps is not None:
        end = len(row.token_ids)
        return np.append(steps, row.n_steps), np.append(first, end), np.append(last, end - 1)
    return steps, first, last


def _span_means(states: Tensor, batch_row: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """[N, H] mean of the states over each span [first, last]; 0 for empty spans."""
    lengths = last - first + 1
    span = torch.repeat_interleave(torch.arange(len(first)), lengths)
    within = torch.arange(len(span)) - torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    gathered = states[batch_row[span], first[span] + within].float()
    sums = torch.zeros(len(first), states.shape[-1], device=states.device).index_add_(
        0, span.to(states.device), gathered
    )
    return (sums / lengths.clamp_min(1).unsqueeze(-1).to(states.device)).to(states.dtype)


def features_fingerprint(*, model_fingerprint: str, dataset_sha256: str, config: FeatureConfig) -> str:
    """Names all that the features depend on."""
    text = f"{model_fingerprint} {dataset_sha256} {config.layers} {config.dtype} 1"
    return hashlib.sha256(text.encode()).hexdigest()


def write_feature_cache(
    model: Any,
    batches: Iterable[tuple[Sequence[FeatureRow], PaddedBatch]],
    output: str | Path,
    *,
    config: FeatureConfig,
    fingerprint: str,
) -> FeatureManifest:
    """Run the frozen model over all batches and write the cache; memory is bounded by a batch and a shard.

    The folder appears when complete. The model's training mode is restored.
    """
    output = Path(output)
    temporary = output.parent / f".{output.name}.{uuid.uuid4().hex[:8]}.tmp"
    temporary.mkdir(parents=True)
    was_training = model.training
    model.eval()
    try:
        manifest = _write_shards(model, batches, temporary, config, fingerprint)
        (temporary / MANIFEST_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        if output.exists():
            shutil.rmtree(output)
        temporary.rename(output)
    finally:
        model.train(was_training)
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def _write_shards(
    model: Any,
    batches: Iterable[tuple[Sequence[FeatureRow], PaddedBatch]],
    folder: Path,
    config: FeatureConfig,
    fingerprint: str,
) -> FeatureManifest:
    dtype = getattr(torch, config.dtype)
    pending: list[StepFeatures] = []
    index: list[pl.DataFrame] = []
    sizes = (0, 0)
    rows = 0

    def flush() -> None:
        shard = StepFeatures.concatenate(pending)
        tensors = {"states": shard.states.to(dtype).contiguous(), "actions": shard.actions.to(dtype).contiguous()}
        save_file(tensors, folder / f"features-{len(index):05d}.safetensors")
        columns = {
            "trajectory_id": shard.trajectory_ids,
            "step": shard.steps.numpy(),
            "has_action": shard.has_action.numpy(),
        }
        index.append(pl.DataFrame(columns))
        pending.clear()

    with torch.inference_mode():
        for batch_rows, batch in batches:
            features = step_features(model, batch_rows, batch, layers=config.layers)
            sizes = (features.states.shape[-1], features.actions.shape[-1])
            rows += len(features)
            pending.append(features)
            if sum(map(len, pending)) >= config.rows_per_shard:
                flush()
        if pending:
            flush()
    if not index:
        raise DataError("there is no segment to make features of")
    pl.concat(index).write_parquet(folder / INDEX_NAME)
    return FeatureManifest(
        fingerprint=fingerprint,
        layers=config.layers,
        state_size=sizes[0],
        action_size=sizes[1],
        rows=rows,
        shards=len(index),
    )


def cached_fingerprint(folder: str | Path) -> str | None:
    """The fingerprint of the cache in a folder, or None where there is no complete cache."""
    try:
        manifest = msgspec.json.decode((Path(folder) / MANIFEST_NAME).read_bytes(), type=FeatureManifest)
    except (OSError, msgspec.DecodeError):
        return None
    return manifest.fingerprint


def load_features(folder: str | Path) -> StepFeatures:
    """Read a cache into memory, as float32: 4 bytes times (state_size + action_size) a step.

    Raises:
        DataError: The folder is no feature cache, or it is damaged.
    """
    folder = Path(folder)
    try:
        manifest = msgspec.json.decode((folder / MANIFEST_NAME).read_bytes(), type=FeatureManifest)
        index = pl.read_parquet(folder / INDEX_NAME)
        shards = [load_file(folder / f"features-{shard:05d}.safetensors") for shard in range(manifest.shards)]
    except (OSError, msgspec.DecodeError, pl.exceptions.PolarsError, SafetensorError) as error:
        raise DataError(f"{folder}: cannot read the feature cache ({error}); compute the features again") from error
    return StepFeatures(
        trajectory_ids=index["trajectory_id"].to_list(),
        steps=torch.tensor(index["step"].to_numpy()),
        has_action=torch.tensor(index["has_action"].to_numpy()),
        states=torch.cat([shard["states"].float() for shard in shards]),
        actions=torch.cat([shard["actions"].float() for shard in shards]),
    )
