"""Finished policies on disk: the Hugging Face folder plus a record of how it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from offline_arl.errors import DataError, reason_of
from offline_arl.models.policy import policy_fingerprint, save_policy

RECORD_NAME = "training.json"


class TrainingRecord(msgspec.Struct, frozen=True):
    """How a policy was made.

    `dataset_fingerprint` names tokenizer and template, `dataset_sha256` the dataset's content, `weights_sha256` the
    weights as saved (`models.policy.policy_fingerprint`): online training asserts that its reference is these.
    `rehearsal_sha256`: of the content of the dataset that was rehearsed, where one was.
    """

    algorithm: str
    config: dict[str, Any]
    seed: int
    dataset_fingerprint: str
    dataset_sha256: str
    weights_sha256: str
    metrics: dict[str, float] = {}
    rehearsal_sha256: str | None = None


def save_checkpoint(
    model: Any,
    tokenizer: Any,
    folder: str | Path,
    *,
    algorithm: str,
    config: dict[str, Any],
    seed: int,
    dataset_fingerprint: str,
    dataset_sha256: str,
    metrics: dict[str, float],
    rehearsal_sha256: str | None = None,
    write: bool = True,
) -> TrainingRecord:
    """Save a policy with its record; without `write` only make the record, as all processes but one do.

    Raises:
        DataError: Training diverged; nothing is written.
    """
    require_finite(model)
    record = TrainingRecord(
        algorithm=algorithm,
        config=config,
        seed=seed,
        dataset_fingerprint=dataset_fingerprint,
        dataset_sha256=dataset_sha256,
        weights_sha256=policy_fingerprint(model),
        metrics=metrics,
        rehearsal_sha256=rehearsal_sha256,
    )
    if not write:
        return record
    save_policy(model, tokenizer, folder)
    text = msgspec.json.format(msgspec.json.encode(record), indent=2)
    (Path(folder) / RECORD_NAME).write_bytes(text + b"\n")
    return record


def require_finite(model: nn.Module) -> None:
    """Refuse a model that training has ruined.

    Raises:
        DataError: A parameter is infinite or not a number.
    """
    broken = [name for name, value in model.named_parameters() if not bool(value.isfinite().all())]
    if broken:
        raise DataError(
            f"training diverged: {len(broken)} parameters are not finite, the first {broken[0]!r}; "
            "set a smaller learning_rate"
        )


def load_record(folder: str | Path) -> TrainingRecord:
    """Read the record of a policy folder.

    Raises:
        DataError: It is missing or damaged.
    """
    path = Path(folder) / RECORD_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrainingRecord)
    except (FileNotFoundError, msgspec.DecodeError) as error:
        raise DataError(
            f"{path}: cannot read the training record ({reason_of(error)}); train the policy again"
        ) from error
