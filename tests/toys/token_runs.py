"""Token-level value learning that processes share, as a program: token_runs.py DATA FOLDER, with accelerate launch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.models.token_heads import save_token_heads
from offline_arl.trainers.config import TokenCQLConfig, TokenIQLConfig
from offline_arl.trainers.token_values import TokenValueResult, train_token_values
from toys import ToyTokenizer, toy_model

_SHARED: dict[str, Any] = {
    "max_steps": 11, "save_steps": 11, "logging_steps": 1, "batch_size": 15, "tokens_per_batch": 200, "hidden_size": 8,
    "holdout_fraction": 0.0, "learning_rate": 3e-3, "target_update_rate": 0.1,
}  # fmt: skip
# An update of one batch is cut in two; one of three batches into six parts, three for each process.
RUNS: dict[str, TokenIQLConfig | TokenCQLConfig] = {
    "iql_kept_states": TokenIQLConfig(**_SHARED),
    "cql_frozen_model": TokenCQLConfig(**_SHARED, cache_megabytes=0, gradient_accumulation_steps=3),
    "iql_with_adapters": TokenIQLConfig(
        **_SHARED, language_model="trained", lora_rank=2, gradient_accumulation_steps=3
    ),
    "cql_whole_model": TokenCQLConfig(**_SHARED, language_model="trained"),
}


def train(name: str, data: Path, folder: Path) -> TokenValueResult:
    """Train the toy policy's heads, and the policy where the run says so."""
    return train_token_values(
        toy_model(), ToyTokenizer(), SegmentDataset.load(data), RUNS[name], folder / name / "policy", seed=1
    )


def main(data: Path, folder: Path) -> None:
    """All runs; the first process saves the heads."""
    from accelerate import PartialState

    for name in RUNS:
        result = train(name, data, folder)
        if PartialState().is_main_process:
            save_token_heads(result.heads, folder / name / "values")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
