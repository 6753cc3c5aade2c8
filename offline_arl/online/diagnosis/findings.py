"""`Finding`: one thing that is wrong with a training, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["warning", "fatal"]  # fatal: going on only costs time
Kind = Literal[
    "reward_variance",
    "loss_oscillation",
    "kl_growth",
    "data_quality",
    "environment",
    "entropy_collapse",
    "length_drift",
    "mismatch",
    "success_drop",
]

KINDS: dict[Kind, str] = {
    "reward_variance": "reward variance near zero: groups teach nothing",
    "loss_oscillation": "loss oscillation: loss or gradient swing, grow or are not numbers",
    "kl_growth": "KL growth: the policy leaves the warm start, in the end for gibberish",
    "data_quality": "data quality: the episodes hold little to learn from",
    "environment": "environment: it fails, or its judge does not say what the policy did",
    "entropy_collapse": "entropy collapse: the policy explores no longer, with tasks left to solve",
    "length_drift": "length drift: episodes grow or shrink by a large factor",
    "mismatch": "mismatch: the episodes are not those of the policy that learns from them",
    "success_drop": "success drop: the policy is worse than the warm start",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, at the first step that shows it."""

    kind: Kind
    symptom: str  # what shows it; a kind has several
    severity: Severity
    step: int
    evidence: str  # the numbers, in one sentence
    threshold: str  # the number that was passed, and why it is that
    remedy: str  # what to change, with the field of `GrpoConfig`

    @property
    def key(self) -> tuple[Kind, str, Severity]:
        """What makes it the same finding at a later step."""
        return self.kind, self.symptom, self.severity

    def as_dict(self) -> dict[str, str | int]:
        """Plain data."""
        return asdict(self)
