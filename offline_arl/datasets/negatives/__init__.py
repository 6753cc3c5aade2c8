"""Tool-call negatives: good steps of good attempts, and how they go wrong."""

from offline_arl.datasets.negatives.generation import NegativeMaker, call_pressure, is_good_step
from offline_arl.datasets.negatives.judges import (
    Candidate,
    EnvironmentJudge,
    Judge,
    Verdict,
    log_judge,
    schema_judge,
)

__all__ = [
    "Candidate",
    "EnvironmentJudge",
    "Judge",
    "NegativeMaker",
    "Verdict",
    "call_pressure",
    "is_good_step",
    "log_judge",
    "schema_judge",
]
