"""Policies that choose the best of several sampled steps, on disk: a policy folder, how it chooses, and value heads.

    policy/config.json, model.safetensors ...   the policy that proposes steps
    policy/reranking.json                       `RerankingConfig`
    policy/reranking/                           step-level value heads
    policy/reranking/features/                  the model whose hidden states they read, where it is another one

A server of another kind serves the policy that proposes.
"""

from __future__ import annotations

import math
import shutil
import uuid
from pathlib import Path
from typing import NamedTuple

import msgspec

from offline_arl.errors import DataError, UsageError, reason_of
from offline_arl.models.guided_policy import is_value_guided
from offline_arl.models.value_heads import ValueHeads, load_heads, save_heads

RERANKING_NAME = "reranking.json"
HEADS_FOLDER = "reranking"
MODEL_FOLDER = "features"


class RerankingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a step is chosen: `candidates` are sampled at `candidate_temperature`, the value heads score them.

    A greedy request takes the candidate of the highest Q. A request at temperature T draws one with probability
    proportional to its share of the candidates times `exp(inverse_temperature * Q / T)`. The heads read the hidden
    states of `layers`, with a `state_window` as in `models.config.FeatureConfig`.

    Raises:
        UsageError: A number is out of range.
    """

    candidates: int
    layers: tuple[int, ...]
    state_window: int = 0
    candidate_temperature: float = 1.0
    inverse_temperature: float = 10.0

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise UsageError(f"candidates is {self.candidates}; use 1 or more")
        if not 0 < self.candidate_temperature < math.inf:
            raise UsageError(f"candidate_temperature is {self.candidate_temperature}; greedy candidates are all alike")
        if not 0 <= self.inverse_temperature < math.inf:
            raise UsageError(f"inverse_temperature is {self.inverse_temperature}; use 0 or a positive number")


class Reranking(NamedTuple):
    """How a policy folder chooses steps."""

    config: RerankingConfig
    heads: ValueHeads
    feature_model: Path  # folder of the model whose hidden states the heads read


def is_reranked(policy: str | Path) -> bool:
    """Whether a policy folder is that of a policy that chooses among several steps."""
    return (Path(policy) / RERANKING_NAME).is_file()


def require_plain_policy(policy: str | Path) -> None:
    """Refuse to train on from a policy whose choices are not in its weights alone.

    Raises:
        UsageError: It is guided by values, or chooses among several steps.
    """
    if is_value_guided(policy) or is_reranked(policy):
        raise UsageError(
            f"{policy}: decodes by values, which training would leave out; "
            "train from the policy that it was made of, or from a folded one (value_folded)"
        )


def load_reranking(policy: str | Path) -> Reranking:
    """Read how a policy chooses steps.

    Raises:
        DataError: A file is missing or damaged.
    """
    policy = Path(policy)
    path = policy / RERANKING_NAME
    try:
        config = msgspec.json.decode(path.read_bytes(), type=RerankingConfig)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(
            f"{path}: cannot read how steps are chosen ({reason_of(error)}); make the policy again"
        ) from error
    own = policy / HEADS_FOLDER / MODEL_FOLDER
    return Reranking(config, load_heads(policy / HEADS_FOLDER), own if own.is_dir() else policy)


def save_reranked_policy(
    policy: str | Path,
    heads: ValueHeads,
    config: RerankingConfig,
    output: str | Path,
    *,
    feature_model: str | Path | None = None,
) -> None:
    """Copy a policy folder and add heads and settings; the folder appears complete or not at all.

    Args:
        policy: Proposes steps; it may be guided by token-level values.
        heads: Step-level value heads.
        config: How steps are chosen.
        output: Folder to make.
        feature_model: Folder of the model whose hidden states the heads read, if that is not `policy` itself.

    Raises:
        UsageError: `policy` chooses among several steps already.
    """
    policy, output = Path(policy), Path(output)
    if is_reranked(policy):
        raise UsageError(f"{policy}: chooses among several steps already; give the policy that proposes them")
    temporary = output.parent / f".{output.name}.{uuid.uuid4().hex[:8]}.tmp"
    unwanted = shutil.ignore_patterns("checkpoint-*")
    try:
        shutil.copytree(policy, temporary, ignore=unwanted)
        save_heads(heads, temporary / HEADS_FOLDER)
        if feature_model is not None:
            shutil.copytree(feature_model, temporary / HEADS_FOLDER / MODEL_FOLDER, ignore=unwanted)
        (temporary / RERANKING_NAME).write_bytes(msgspec.json.encode(config) + b"\n")
        if output.exists():
            shutil.rmtree(output)
        temporary.rename(output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
