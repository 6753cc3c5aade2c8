"""Step features on disk: made once for a model and a dataset, mapped into memory by whatever trains on them.

A cache is a folder with `states.safetensors` and `actions.safetensors` (one tensor each, rows in index order), an
index of (trajectory_id, step) and a manifest with the fingerprint of model and dataset. The files are written row by
row and mapped when read, so neither has to fit into memory.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import polars as pl
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from offline_arl.errors import DataError
from offline_arl.models.config import FeatureConfig
from offline_arl.models.features import FeatureRow, PaddedBatch, StepFeatures, step_features

MANIFEST_NAME = "manifest.json"
INDEX_NAME = "index.parquet"
STATES_NAME = "states.safetensors"
ACTIONS_NAME = "actions.safetensors"
_LAYOUT = 2  # of the files; part of the fingerprint
_HEADER_BYTES = 512
_DTYPE_CODES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


class FeatureManifest(msgspec.Struct, frozen=True):
    """What a cache holds. `fingerprint` names model, dataset, layers and dtype: equal means nothing to recompute.

    `tokens` is the number of positions that the model computed, padding included.
    """

    fingerprint: str
    layers: tuple[int, ...]
    state_size: int
    action_size: int
    rows: int
    tokens: int


class _RowFile:
    """A safetensors file with one tensor [N, size] whose rows come one batch at a time.

    The header has a fixed place, filled with spaces as the format allows, and is written at the end of the block,
    when N is known.
    """

    def __init__(self, path: Path, name: str, dtype: torch.dtype) -> None:
        self._name, self._dtype = name, dtype
        self._shape = (0, 0)
        self._file = path.open("wb")
        self._file.write(bytes(_HEADER_BYTES))

    def __enter__(self) -> _RowFile:
        return self

    def write(self, rows: Tensor) -> None:
        """Append rows [n, size]."""
        self._shape = (self._shape[0] + len(rows), rows.shape[1])
        self._file.write(rows.to("cpu", self._dtype).contiguous().view(torch.uint8).numpy().data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            size = self._shape[0] * self._shape[1] * self._dtype.itemsize
            tensor = {"dtype": _DTYPE_CODES[self._dtype], "shape": self._shape, "data_offsets": [0, size]}
            header = json.dumps({self._name: tensor}).encode().ljust(_HEADER_BYTES - 8)
            self._file.seek(0)
            self._file.write(struct.pack("<Q", len(header)) + header)
        self._file.close()


def features_fingerprint(*, model_fingerprint: str, dataset_sha256: str, config: FeatureConfig) -> str:
    """Names all that the features depend on."""
    text = f"{model_fingerprint} {dataset_sha256} {config.layers} {config.dtype} {_LAYOUT}"
    return hashlib.sha256(text.encode()).hexdigest()


def write_feature_cache(
    model: Any,
    batches: Iterable[tuple[Sequence[FeatureRow], PaddedBatch]],
    output: str | Path,
    *,
    config: FeatureConfig,
    fingerprint: str,
) -> FeatureManifest:
    """Run the frozen model over all batches, each once, and write the cache; memory is bounded by a batch.

    The folder appears when complete. The model's training mode is restored.

    Raises:
        DataError: There is no segment, or one starts with an action.
    """
    output = Path(output)
    temporary = output.parent / f".{output.name}.{uuid.uuid4().hex[:8]}.tmp"
    temporary.mkdir(parents=True)
    was_training = model.training
    model.eval()
    try:
        manifest = _write_rows(model, batches, temporary, config, fingerprint)
        (temporary / MANIFEST_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        if output.exists():
            shutil.rmtree(output)
        temporary.rename(output)
    finally:
        model.train(was_training)
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def _write_rows(
    model: Any,
    batches: Iterable[tuple[Sequence[FeatureRow], PaddedBatch]],
    folder: Path,
    config: FeatureConfig,
    fingerprint: str,
) -> FeatureManifest:
    dtype = getattr(torch, config.dtype)
    index: list[pl.DataFrame] = []
    sizes = (0, 0)
    tokens = 0
    with (
        torch.inference_mode(),
        _RowFile(folder / STATES_NAME, "states", dtype) as states,
        _RowFile(folder / ACTIONS_NAME, "actions", dtype) as actions,
    ):
        for batch_rows, batch in batches:
            features, computed = step_features(model, batch_rows, batch, layers=config.layers)
            sizes = (features.states.shape[-1], features.actions.shape[-1])
            states.write(features.states)
            actions.write(features.actions)
            tokens += computed
            columns = {
                "trajectory_id": features.trajectory_ids,
                "step": features.steps.numpy(),
                "has_action": features.has_action.numpy(),
            }
            index.append(pl.DataFrame(columns))
    if not index:
        raise DataError("there is no segment to make features of")
    table = pl.concat(index)
    table.write_parquet(folder / INDEX_NAME)
    return FeatureManifest(
        fingerprint=fingerprint,
        layers=config.layers,
        state_size=sizes[0],
        action_size=sizes[1],
        rows=len(table),
        tokens=tokens,
    )


def load_manifest(folder: str | Path) -> FeatureManifest | None:
    """The manifest of the cache in a folder, or None where there is no complete cache of this layout."""
    try:
        return msgspec.json.decode((Path(folder) / MANIFEST_NAME).read_bytes(), type=FeatureManifest)
    except (OSError, msgspec.DecodeError):
        return None


def load_features(folder: str | Path) -> StepFeatures:
    """Map a cache into memory: rows are read from disk when they are used, and the system may drop them again.

    Raises:
        DataError: The folder is no feature cache, or it is damaged.
    """
    folder = Path(folder)
    try:
        manifest = msgspec.json.decode((folder / MANIFEST_NAME).read_bytes(), type=FeatureManifest)
        index = pl.read_parquet(folder / INDEX_NAME)
        # safetensors maps the file and gives views of it; nothing is copied here.
        states = load_file(folder / STATES_NAME)["states"]
        actions = load_file(folder / ACTIONS_NAME)["actions"]
        if not len(index) == len(states) == len(actions) == manifest.rows:
            raise DataError(f"{len(states)} states and {len(index)} steps where {manifest.rows} should be")
    except (OSError, KeyError, msgspec.DecodeError, pl.exceptions.PolarsError, SafetensorError, DataError) as error:
        raise DataError(f"{folder}: cannot read the feature cache ({error}); compute the features again") from error
    return StepFeatures(
        trajectory_ids=index["trajectory_id"].to_list(),
        steps=torch.tensor(index["step"].to_numpy()),
        has_action=torch.tensor(index["has_action"].to_numpy()),
        states=states,
        actions=actions,
    )
