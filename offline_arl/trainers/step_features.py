"""The feature cache of a dataset: computed where it is missing or of another model, read where it fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from offline_arl.datasets.collate import collate_segments, length_sorted_batches
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.models.config import FeatureConfig
from offline_arl.models.feature_cache import features_fingerprint, load_features, load_manifest
from offline_arl.models.feature_writer import write_feature_cache
from offline_arl.models.features import StepFeatures
from offline_arl.models.policy import policy_fingerprint
from offline_arl.trainers.model_checks import check_fits
from offline_arl.trainers.run import pad_token_id
from offline_arl.trainers.update_trainer import Report


def compute_features(
    model: Any,
    tokenizer: Any,
    dataset: SegmentDataset,
    output: str | Path,
    *,
    config: FeatureConfig,
    report: Report | None = None,
) -> StepFeatures:
    """Features of all steps of a dataset from a frozen policy; taken from the cache at `output` where it fits.

    Args:
        model: The policy.
        tokenizer: Its tokenizer.
        dataset: What to compute features of.
        output: Folder of the cache. A pass that is interrupted goes on from `.NAME.unfinished` beside it.
        config: Which states, and how they are kept.
        report: Told (tokens done, tokens in all) as they are computed, padding not counted.

    Raises:
        DataError: The dataset is empty or does not fit the model, or a segment starts with an action token.
        UsageError: The tokenizer has no token that can fill rows, or another process writes the cache.
    """
    check_fits(model, dataset)
    fingerprint = features_fingerprint(
        model_fingerprint=policy_fingerprint(model), dataset_sha256=dataset.manifest.content_sha256, config=config
    )
    manifest = load_manifest(output)
    if manifest is None or manifest.fingerprint != fingerprint:
        pad = pad_token_id(tokenizer)
        batches = length_sorted_batches(dataset.lengths, max_tokens=config.tokens_per_batch)
        tokens = np.cumsum([dataset.lengths[batch].sum() for batch in batches]).tolist()
        write_feature_cache(
            model,
            batches,
            output,
            rows_of=lambda batch: [dataset[index] for index in batch],
            collate=lambda rows: collate_segments(rows, pad_token_id=pad).to(model.device),
            config=config,
            fingerprint=fingerprint,
            report=None if report is None else lambda done: report(tokens[done - 1], tokens[-1]),
        )
    return load_features(output)
