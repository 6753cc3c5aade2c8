"""Small real models and datasets that tests of several folders build."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from offline_arl.datasets.manifest import Kind
from offline_arl.datasets.segments import SegmentDataset, SegmentRow, SegmentWriter

VOCABULARY = 24


def toy_model(architecture: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A randomly initialized causal language model with two layers of 32 units, eager attention."""
    import transformers

    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "initializer_range": 0.2,
    }
    configs = {
        "llama": lambda: transformers.LlamaConfig(**sizes, tie_word_embeddings=True),
        "qwen2": lambda: transformers.Qwen2Config(**sizes, use_sliding_window=False),
        "gemma2": lambda: transformers.Gemma2Config(**sizes, final_logit_softcapping=2.0, sliding_window=4),
        "gpt2": lambda: transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=128, initializer_range=0.2,
            bos_token_id=None, eos_token_id=1, pad_token_id=0,
        ),
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(configs[architecture](), attn_implementation="eager")
    return model.to(dtype).eval()


def toy_row(name: str, generator: np.random.Generator, *, prefix: int = 10, steps: int = 3) -> SegmentRow:
    """A prefix of `prefix` tokens, the same for all rows, then `steps` times an observation and an action of 1 to 3."""
    tokens, step_index = [2 + position % 7 for position in range(prefix)], [-1] * prefix
    for step in range(steps):
        for owner in (-1, step):
            length = int(generator.integers(1, 4))
            tokens += generator.integers(2, VOCABULARY, size=length).tolist()
            step_index += [owner] * length
    index = np.array(step_index, dtype=np.int32)
    return SegmentRow(name, f"task of {name}", None, True, 0, np.array(tokens, dtype=np.int32), index >= 0, index)


def toy_rows(count: int, *, seed: int = 0, prefix: int = 10) -> list[SegmentRow]:
    generator = np.random.default_rng(seed)
    return [
        toy_row(f"t{number}", generator, prefix=prefix, steps=int(generator.integers(1, 4))) for number in range(count)
    ]


def toy_dataset(folder: Path, rows: list[SegmentRow], kind: Kind = "bc") -> SegmentDataset:
    """Write the rows as a dataset and load it."""
    with SegmentWriter(folder, kind=kind, fingerprint="toy", config={}) as writer:
        for row in rows:
            writer.add([row])
    return SegmentDataset.load(folder)


class ToyTokenizer:
    """The part of a tokenizer that trainers use."""

    pad_token_id = 0
    eos_token_id = 1

    def save_pretrained(self, folder: str | Path) -> None:
        """Nothing to save."""
