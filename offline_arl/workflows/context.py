"""What a stage gets and what it gives back.

A stage is one function `run(config, context) -> StageOutputs`. It writes only below `context.folder`, reads earlier
results through `context.path`, and draws randomness from `context.generator`; it prints nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from offline_arl.workflows.stages import Artifact


class Progress(Protocol):
    """Called as work goes on: what is being done, how much of it is done, and of how much (None: unknown)."""

    def __call__(self, description: str, completed: float, total: float | None, /) -> None: ...


def no_progress(description: str, completed: float, total: float | None, /) -> None:
    """The callback for callers that show nothing."""


@dataclass(frozen=True)
class Metric:
    """An estimate with its 95 % interval over `n` cases. Where nothing is estimated the three numbers are equal."""

    estimate: float
    low: float
    high: float
    n: int

    @classmethod
    def count(cls, value: int) -> Metric:
        """A plain count."""
        return cls(value, value, value, value)

    def as_dict(self) -> dict[str, float | None]:
        """The form of `results.json`; a number that is not finite is None there, since JSON has none such."""
        numbers = {"estimate": self.estimate, "low": self.low, "high": self.high}
        return {**{name: value if math.isfinite(value) else None for name, value in numbers.items()}, "n": self.n}


@dataclass(frozen=True)
class StageOutputs:
    """What a stage made.

    `artifacts` maps each name in the stage's `produces` to a path below its folder (relative). `metrics` are named
    `measure/policy` (or `measure/policy/task_type`; counts have one word). `notes` are lines for `summary.md`.
    `backend` is the rollout backend ("vllm" or "transformers") of a stage that sampled.
    """

    artifacts: Mapping[Artifact, str] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    backend: str | None = None


@dataclass(frozen=True)
class StageContext:
    """Where a stage works. `inputs` maps the names that its configuration refers to onto their artifacts."""

    name: str
    folder: Path
    seed: int
    inputs: Mapping[str, Mapping[Artifact, Path]]
    progress: Progress = no_progress

    def path(self, stage: str, artifact: Artifact) -> Path:
        """Where the artifact of an earlier stage lies."""
        return self.inputs[stage][artifact]

    def integer_seed(self, purpose: str = "") -> int:
        """A seed below 2**31 that depends on the pipeline's seed, this stage and `purpose`."""
        digest = hashlib.sha256(f"{self.seed}/{self.name}/{purpose}".encode()).digest()
        return int.from_bytes(digest[:4], "big") >> 1

    def generator(self, purpose: str = "") -> np.random.Generator:
        """A random generator of its own for each purpose, so that one draw more here changes nothing there."""
        return np.random.default_rng([self.seed, self.integer_seed(purpose)])


def metric_from(value: Any) -> Metric:
    """The `Metric` stored as in `results.json`."""
    estimate, low, high = (math.nan if value[key] is None else value[key] for key in ("estimate", "low", "high"))
    return Metric(estimate, low, high, value["n"])
