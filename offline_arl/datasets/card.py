"""The card of a dataset folder: README.md, from which `datasets.load_dataset(folder)` learns what to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from offline_arl.datasets.manifest import DatasetManifest

CARD_NAME = "README.md"

_TITLES = {
    "bc": "Segments to clone",
    "transitions": "Segments with rewards and endings",
    "return_conditioned": "Segments with the reward-to-go of each step",
    "pairs": "Preference pairs",
    "unpaired": "Answers labeled desirable or not",
}
_MEANINGS = {
    "trajectory_id": "the attempt that the row is from",
    "task_id": "the task that was attempted; attempts at the same task share it",
    "task_type": "the kind of task",
    "success": "whether the attempt succeeded; null where nobody judged it",
    "segment": "position among the segments of the attempt",
    "token_ids": "tokens of the tokenizer named above",
    "action_mask": "which tokens the agent wrote; only these are trained",
    "step_index": "step (message of the agent) of each action token, -1 elsewhere",
    "logprobs": "log-probability of each token when it was sampled; NaN where unknown, null where nothing is known",
    "n_steps": "steps of the whole attempt",
    "steps": "the steps whose action tokens are in this row; the columns below have a value for each",
    "rewards": "what arrives after a step and before the next one",
    "terminated": "whether the task ended with the step",
    "truncated": "whether the attempt was cut off after the step",
    "final_state": "whether the row ends with the state after the last step",
    "reward_to_go": "rewards from the step on, its own included, undiscounted",
}


def write_card(folder: Path, manifest: DatasetManifest, schema: pa.Schema) -> None:
    """Write README.md: metadata for the Hugging Face libraries, numbers, columns; nothing of what the logs say."""
    (folder / CARD_NAME).write_text(dataset_card(manifest, schema), encoding="utf-8")


def dataset_card(manifest: DatasetManifest, schema: pa.Schema) -> str:
    """The card's text.

    Args:
        manifest: Of the dataset.
        schema: Of its parts.
    """
    counts = "\n".join(f"| {name} | {number:,} |" for name, number in manifest.counts.items())
    left_out = "".join(f"| left out: {reason} | {number:,} |\n" for reason, number in manifest.excluded.items())
    columns = "\n".join(f"| `{field.name}` | {field.type} | {_MEANINGS.get(field.name, '')} |" for field in schema)
    return f"""---
pretty_name: {_TITLES[manifest.kind]}
tags:
- offline_arl
- agents
configs:
- config_name: default
  data_files: part-*.parquet
---

# {_TITLES[manifest.kind]}

A dataset of kind `{manifest.kind}`, made by offline_arl out of a trajectory store. `manifest.json` holds its
configuration and checksums. Tokens are those of the tokenizer and chat template `{manifest.fingerprint}`.

```python
from datasets import load_dataset

rows = load_dataset("path/to/this/folder", split="train")  # streaming=True reads it bit by bit
```

| | |
|---|---|
{counts}
{left_out}
| column | type | |
|---|---|---|
{columns}
"""
