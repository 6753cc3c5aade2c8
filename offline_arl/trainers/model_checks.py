"""What can be seen before training: whether a dataset fits a model, and what will not train well."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from offline_arl.errors import DataError

_logger = logging.getLogger(__name__)


class TokenSequences(Protocol):
    """What is read of a dataset."""

    @property
    def lengths(self) -> NDArray[np.int64]: ...
    def __len__(self) -> int: ...
    def largest_token(self) -> int: ...


def check_fits(model: Any, dataset: TokenSequences) -> None:
    """Refuse what would end in an index error deep inside the model.

    Raises:
        DataError: The dataset is empty, a token is not in the model's vocabulary, or a segment is longer than the
            table of learned positions.
    """
    if len(dataset) == 0:
        raise DataError("the dataset is empty; build it again from a store that has trajectories")
    vocabulary = model.get_input_embeddings().weight.shape[0]
    largest = dataset.largest_token()
    if largest >= vocabulary:
        raise DataError(
            f"the dataset has token {largest} and the model only {vocabulary} tokens; "
            "build the dataset with this model's own tokenizer"
        )
    longest, config = int(np.max(dataset.lengths)), model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or longest <= positions:
        return
    rotary = getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None)
    if rotary is None:
        raise DataError(
            f"a segment has {longest} tokens and the model takes {positions}; "
            f"build the dataset with max_tokens={positions}"
        )
    _logger.warning(
        "segments have up to %d tokens and the model was made for %d; what lies beyond is trained, but badly "
        "(build with max_tokens=%d)", longest, positions, positions,
    )  # fmt: skip


def warn_of_half_precision(model: Any) -> None:
    """Weights in half precision lose every update smaller than about 1/256 (bfloat16) of a weight."""
    halves = [p for p in model.parameters() if p.requires_grad and p.dtype in (torch.bfloat16, torch.float16)]
    if halves:
        _logger.warning(
            "%d weights are trained in %s, which rounds small updates away; load the policy with dtype=float32 and set "
            "precision=bfloat16, or train adapters (lora_rank)",
            sum(parameter.numel() for parameter in halves), str(halves[0].dtype).removeprefix("torch."),
        )  # fmt: skip
