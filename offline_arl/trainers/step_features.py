"""The feature cache of a dataset: computed where it is missing or of another model, read where it fits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offline_arl.datasets.collate import SegmentBatch, collate_segments, length_sorted_batches
from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.models.config import FeatureConfig
from offline_arl.models.feature_cache import features_fingerprint, load_features, load_manifest, write_feature_cache
from offline_arl.models.features import StepFeatures
from offline_arl.models.policy import policy_fingerprint


def compute_features(
    model: Any, tokenizer: Any, dataset: SegmentDataset, output: str | Path, *, config: FeatureConfig
) -> StepFeatures:
    """Features of all steps of a dataset from a frozen policy; taken from the cache at `output` where it fits.

    Raises:
        DataError: A segment starts with an action token.
    """
    fingerprint = features_fingerprint(
        model_fingerprint=policy_fingerprint(model), dataset_sha256=dataset.manifest.content_sha256, config=config
    )
    manifest = load_manifest(output)
    if manifest is None or manifest.fingerprint != fingerprint:
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id

        def batches() -> Iterator[tuple[list[SegmentRow], SegmentBatch]]:
            for indices in length_sorted_batches(dataset.lengths, max_tokens=config.tokens_per_batch):
                rows = [dataset[index] for index in indices]
                yield rows, collate_segments(rows, pad_token_id=pad).to(model.device)

        write_feature_cache(model, batches(), output, config=config, fingerprint=fingerprint)
    return load_features(output)
