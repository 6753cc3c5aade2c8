"""Finished token-level heads on disk: safetensors weights, a record of how they were made, a model card for people."""

from __future__ import annotations

from pathlib import Path

import msgspec

from offline_arl.models.token_heads import CONFIG_NAME, WEIGHTS_NAME, TokenValueHeads, save_token_heads
from offline_arl.trainers.value_record import CARD_NAME, RECORD_NAME, ValueRecord

_TITLES = {
    "token_iql_values": (
        "Implicit Q-learning with one decision a token (ILQL, Snell et al. 2023): V is an expectile of Q over the "
        "tokens of the data"
    ),
    "token_cql_values": (
        "Conservative Q-learning (Kumar et al. 2020) with one decision a token: targets are the best token's value by "
        "double Q-learning, V is the mean of Q over the tokens of the data"
    ),
}


def save_token_values(heads: TokenValueHeads, record: ValueRecord, folder: str | Path) -> None:
    """Write heads, record and card into a folder."""
    folder = Path(folder)
    save_token_heads(heads, folder)
    (folder / RECORD_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    (folder / CARD_NAME).write_text(_card(heads, record))


def _card(heads: TokenValueHeads, record: ValueRecord) -> str:
    shape = heads.shape
    layers = f"{shape.hidden_layers} of {shape.hidden_size}" if shape.hidden_layers else "none: each head is linear"
    support = (
        "Q of tokens that the data lack was pushed down by the conservative term, not learned"
        if record.config.get("conservative_weight")
        else "Q of tokens that the data lack was never trained and may be anything"
    )
    return f"""---
library_name: offline_arl
tags:
- offline-reinforcement-learning
- value-function
---

# Token-level value heads: {record.algorithm}

{_TITLES.get(record.algorithm, record.algorithm)}.

Q(s, token) by {shape.critics} critics over a vocabulary of {shape.vocabulary_size:,} tokens, and a value function V(s).
They read the last hidden state (after the final norm) of a language model at the position in front of a token. Values
are discounted returns of the rewards in the dataset, one discount a {record.config.get("discount_unit", "token")}.

| | |
|---|---|
| language model | `{record.policy_relative or record.policy}` |
| its weights (SHA-256) | `{record.policy_sha256}` |
| dataset content (SHA-256) | `{record.dataset_sha256}` |
| tokenizer and chat template | `{record.dataset_fingerprint}` |
| size of the states | {shape.state_size} |
| hidden layers | {layers} |
| parameters | {sum(parameter.numel() for parameter in heads.parameters()):,} |
| seed | {record.seed} |

## How to use

`value_guided` stages make a policy of them: log behavior + inverse_temperature * (Q - V) on the tokens that the
behavior policy supports. By themselves:

```python
from offline_arl.models.token_heads import load_token_heads

heads = load_token_heads("FOLDER")  # this folder: {WEIGHTS_NAME}, {CONFIG_NAME}
q_values = heads.q(states)  # [{shape.critics}, N, {shape.vocabulary_size}], of a few states [N, {shape.state_size}]
q_chosen = heads.q_at(states, token_ids)  # [{shape.critics}, N], of one token a state
values = heads.v(states)  # [N]
```

## Limits

They mean nothing on the hidden states of another model, or of this one after further training. {support}: decode with a
support threshold. Values are those of one decision a token; the advantage of a message is the sum over its tokens.

## Measured

Means over tokens; `q_loss` is the squared temporal-difference error summed over the critics.

{_table(("what", "value"), [(name, f"{value:.5g}") for name, value in record.metrics.items()])}

## Settings

{_table(("setting", "value"), [(f"`{name}`", f"{value}") for name, value in record.config.items()])}
"""


def _table(header: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    lines = [header, ("---", "---"), *rows]
    return "\n".join(f"| {name} | {value} |" for name, value in lines)
