"""A run of preference training as a program, to be started with `accelerate launch`.

preference_runs.py ALGORITHM DATA OUTPUT
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from offline_arl.datasets.pairs import load_preferences
from offline_arl.trainers.preference import train_preferences
from offline_arl.trainers.preference_config import AnyPreferenceConfig, DPOConfig, KTOConfig
from toys import ToyTokenizer, toy_model

SETTINGS = {
    "epochs": 3, "tokens_per_batch": 300, "gradient_accumulation_steps": 3, "learning_rate": 3e-3, "logging_steps": 1,
}  # fmt: skip
CONFIGS: dict[str, AnyPreferenceConfig] = {
    "dpo": DPOConfig(**SETTINGS),  # type: ignore[arg-type]
    "kto": KTOConfig(**SETTINGS),  # type: ignore[arg-type]
}


def main(algorithm: str, data: Path, output: Path) -> None:
    """Train and save."""
    train_preferences(
        toy_model(), ToyTokenizer(), load_preferences(data), CONFIGS[algorithm], output / "policy",
        seed=0, reference_model=toy_model(seed=1), reference_folder=output / "reference",
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
