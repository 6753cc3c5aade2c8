"""Finished value heads on disk: safetensors weights, a record of how they were made, and a model card for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from offline_arl.errors import DataError, reason_of
from offline_arl.models.adapters import is_model_folder
from offline_arl.models.policy import policy_fingerprint
from offline_arl.models.value_heads import CONFIG_NAME, WEIGHTS_NAME, ValueHeads, load_heads, save_heads
from offline_arl.trajectories.places import located

RECORD_NAME = "values.json"
CARD_NAME = "README.md"

_TITLES = {
    "iql_values": "Implicit Q-learning (Kostrikov et al. 2021): V is an upper expectile of Q over the logged actions",
    "cql_values": (
        "Conservative Q-learning (Kumar et al. 2020) over the logged actions of each state: V is the mean of their Q"
    ),
    "behavior_values": "Values of the logged behavior: Q and V are fitted to lambda-returns",
}


class ValueRecord(msgspec.Struct, frozen=True):
    """How value heads were made.

    `policy` is where the language model lay whose hidden states they read, `policy_relative` the same as seen from
    their folder, so that both can be moved together, and `policy_sha256` its fingerprint. They read its states in
    `layers`, with the mean over `state_window` tokens before each action. `dataset_fingerprint` names tokenizer and
    template, `dataset_sha256` the content. `metrics` are means over steps.
    """

    algorithm: str
    config: dict[str, Any]
    seed: int
    policy: str
    policy_sha256: str
    layers: tuple[int, ...]
    dataset_fingerprint: str
    dataset_sha256: str
    state_window: int = 0
    metrics: dict[str, float] = {}
    policy_relative: str | None = None  # records of earlier versions have none


def save_values(heads: ValueHeads, record: ValueRecord, folder: str | Path, *, intervals: dict[str, str]) -> None:
    """Write heads, record and card into a folder, which may hold a feature cache already.

    Args:
        heads: Trained heads.
        record: How they were made.
        folder: Where.
        intervals: Measures with their intervals, as they are to be read, by name.
    """
    folder = Path(folder)
    save_heads(heads, folder)
    (folder / RECORD_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    (folder / CARD_NAME).write_text(_card(heads, record, intervals))


def load_value_record(folder: str | Path) -> ValueRecord:
    """Read the record of value heads.

    Raises:
        DataError: It is missing or damaged.
    """
    path = Path(folder) / RECORD_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=ValueRecord)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(
            f"{path}: cannot read the record of the value heads ({reason_of(error)}); train them again"
        ) from error


def find_policy(folder: str | Path) -> Path:
    """The policy whose hidden states values read, also where both were moved or renamed together.

    Raises:
        DataError: The record cannot be read, or the policy that it names is not there.
    """
    record = load_value_record(folder)
    found = located(folder, record.policy, record.policy_relative)
    if found is None or not is_model_folder(found):
        raise DataError(
            f"{folder}: these values read the hidden states of the policy {record.policy}, which is not there; say "
            "where it lies now with --feature-policy (in a pipeline: feature_policy)"
        )
    return found


def check_feature_policy(folder: str | Path, model: nn.Module, *, policy: str | Path, remedy: str) -> ValueRecord:
    """The record of values, if they read the hidden states of this very model.

    Args:
        folder: Step-level or token-level values.
        model: Fingerprinted as it was loaded; another dtype makes another model of it.
        policy: Where it was loaded from, for the message.
        remedy: What to do where it is another model.

    Raises:
        DataError: The record cannot be read, or names another model.
    """
    record = load_value_record(folder)
    if policy_fingerprint(model) != record.policy_sha256:
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        raise DataError(
            f"{folder}: these values read the hidden states of {record.policy}, not of {policy} in {dtype}; {remedy}"
        )
    return record


def load_step_values(
    folder: str | Path, model: nn.Module, *, policy: str | Path, remedy: str
) -> tuple[ValueHeads, ValueRecord]:
    """Step-level value heads and their record; see `check_feature_policy`.

    Raises:
        DataError: The folder holds no step-level heads, they are damaged, or read another model.
    """
    if not (Path(folder) / CONFIG_NAME).is_file():
        raise DataError(f"{folder}: holds no step-level value heads; name a stage such as iql_values")
    record = check_feature_policy(folder, model, policy=policy, remedy=remedy)
    return load_heads(folder), record


def _card(heads: ValueHeads, record: ValueRecord, intervals: dict[str, str]) -> str:
    shape = heads.shape
    title = _TITLES.get(record.algorithm, record.algorithm)
    settings = [(f"`{name}`", f"{value}") for name, value in record.config.items()]
    measures = [*intervals.items(), *((name, f"{value:.5g}") for name, value in record.metrics.items())]
    layers = ", ".join(str(layer) for layer in record.layers)
    window = f" with the mean over the {record.state_window} tokens before it" if record.state_window else ""
    return f"""---
library_name: offline_arl
tags:
- offline-reinforcement-learning
- value-function
---

# Value heads: {record.algorithm}

{title}.

Twin critics Q(s, a) and a value function V(s) for one decision of an agent, a message with all its tool calls. They
read hidden states (layers {layers}) of a frozen language model: the state just before the message{window},
and of the message its last token and the mean over its tokens. Values are discounted returns of the rewards in the
dataset.

| | |
|---|---|
| language model | `{record.policy_relative or record.policy}` |
| its weights (SHA-256) | `{record.policy_sha256}` |
| dataset content (SHA-256) | `{record.dataset_sha256}` |
| tokenizer and chat template | `{record.dataset_fingerprint}` |
| size of state and action features | {shape.state_size}, {shape.action_size} |
| hidden layers | {shape.hidden_layers} of {shape.hidden_size} |
| parameters | {sum(parameter.numel() for parameter in heads.parameters()):,} |
| seed | {record.seed} |

## How to load

```python
from offline_arl.models.feature_cache import load_features
from offline_arl.models.value_heads import load_heads

heads = load_heads("FOLDER")  # this folder: {WEIGHTS_NAME}, {CONFIG_NAME}
features = load_features("FOLDER/features")  # of the training data, where it was kept
q_values = heads.q(features.states[:8], features.actions[:8])  # [2, 8], one row a critic
values = heads.v(features.states[:8])  # [8]
```

They mean nothing on the hidden states of another model, or of this one after further training. Features of other
conversations come from `offline_arl.trainers.step_features.compute_features`.

## Measured

{_table(("what", "value"), measures)}

## Settings

{_table(("setting", "value"), settings)}
"""


def _table(header: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    lines = [header, ("---", "---"), *rows]
    return "\n".join(f"| {name} | {value} |" for name, value in lines)
