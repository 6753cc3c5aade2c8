"""Llamas, and models of like families, of a few thousand parameters whose random weights make clear choices."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, PreTrainedConfig
from transformers.models.auto import AutoModelForCausalLM

VOCABULARY = 24


def random_llama(
    *, tied: bool = True, seed: int = 0, family: type[PreTrainedConfig] = LlamaConfig, **changes: Any
) -> Any:
    """Weights depend on `seed` alone; no token is special.

    Args:
        tied: Whether the output layer is the embeddings.
        seed: Of the weights.
        family: Configuration of a family with Llama's names for sizes.
        changes: To the configuration.
    """
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
    }
    no_tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = family(**{**sizes, **no_tokens, "tie_word_embeddings": tied, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).eval()
