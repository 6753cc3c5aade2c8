"""LoRA adapters: put around a policy, and kept beside the policy that they are merged into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from offline_arl.models.adapters import remember_base
from offline_arl.optional import require
from offline_arl.trainers.config import WeightedBCConfig

ADAPTER_FOLDER = "adapter"  # in a policy folder


def with_adapter(model: Any, config: WeightedBCConfig, *, seed: int, new_tokens: Sequence[int] = ()) -> Any:
    """Wrap a model so that only low-rank adapters of its linear layers train, the output layer left out.

    The adapters are float32 also where the model is not. Draws from torch's global random state.

    Args:
        model: The policy.
        config: Rank, scale and dropout.
        seed: Of the adapters.
        new_tokens: Tokens that the model has not met: the rows of their embeddings train as well.

    Raises:
        MissingDependencyError: peft is not installed.
    """
    peft = require("peft", extra="train")
    torch.manual_seed(seed)
    assert config.lora_rank is not None
    settings = lora_settings(rank=config.lora_rank, alpha=config.lora_alpha, dropout=config.lora_dropout)
    settings.trainable_token_indices = list(new_tokens) or None
    return peft.get_peft_model(model, settings)


def lora_settings(*, rank: int, alpha: float, dropout: float) -> Any:
    """The configuration of PEFT for adapters on all linear layers, the output layer left out.

    Raises:
        MissingDependencyError: peft is not installed.
    """
    return require("peft", extra="train").LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def save_adapter(adapted: Any, tokenizer: Any, folder: Path, *, place: Path) -> None:
    """Write the adapters alone, to be served on the base model, with the tokenizer; a policy folder of its own.

    Args:
        adapted: The policy with its adapters.
        tokenizer: Its tokenizer.
        folder: Where they are written.
        place: Where they will lie.
    """
    adapted.save_pretrained(folder, safe_serialization=True)
    remember_base(folder, place)
    tokenizer.save_pretrained(folder)
