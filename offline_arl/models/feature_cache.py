"""Step features on disk: made once for a model and a dataset, mapped into memory by whatever trains on them.

A cache is a folder with `states.safetensors` and `actions.safetensors` (one tensor each, rows in index order), an
index of (trajectory_id, step) and a manifest with the fingerprint of model and dataset. The files are written batch by
batch (`feature_writer`) and mapped when read, so neither has to fit into memory.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import polars as pl
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from offline_arl.errors import DataError, reason_of
from offline_arl.models.config import FeatureConfig
from offline_arl.models.features import StepFeatures

MANIFEST_NAME = "manifest.json"
INDEX_NAME = "index.parquet"
STATES_NAME = "states.safetensors"
ACTIONS_NAME = "actions.safetensors"
_LAYOUT = 2  # of the files; part of the fingerprint


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


def features_fingerprint(*, model_fingerprint: str, dataset_sha256: str, config: FeatureConfig) -> str:
    """Names all that the features depend on."""
    text = f"{model_fingerprint} {dataset_sha256} {config.layers} {config.state_window} {config.dtype} {_LAYOUT}"
    return hashlib.sha256(text.encode()).hexdigest()


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
        raise DataError(
            f"{folder}: cannot read the feature cache ({reason_of(error)}); compute the features again"
        ) from error
    return StepFeatures(
        trajectory_ids=index["trajectory_id"].to_list(),
        steps=torch.tensor(index["step"].to_numpy()),
        has_action=torch.tensor(index["has_action"].to_numpy()),
        states=states,
        actions=actions,
    )
