"""What a stage gets and what it gives back.

A stage is one function `run(config, context) -> StageOutputs`. It writes only below `context.folder`, reads earlier
results through `context.path`, and draws randomness from `context.generator`; it prints nothing.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from offline_arl.evaluation.intervals import Estimate
from offline_arl.workflows.stages import Artifact

CHECKPOINTS_NAME = "checkpoints"


class Progress(Protocol):
    """Called as work goes on: what is being done, how much of it is done, and of how much (None: unknown)."""

    def __call__(self, description: str, completed: float, total: float | None, /) -> None: ...


def no_progress(description: str, completed: float, total: float | None, /) -> None:
    """The callback for callers that show nothing."""


Tell = Callable[[str], None]  # called with a line for the person who waits


def no_tell(line: str) -> None:
    """The callback for callers that tell nobody."""


@dataclass(frozen=True)
class StageOutputs:
    """What a stage made.

    `artifacts` maps each name in the stage's `produces` to a path below its folder (relative). `metrics` are named
    `measure/policy` (`measure/policy/task_type` for a part of the tasks; a count has no policy: `trajectories`).
    `notes` are lines for `summary.md`.
    `backend` is the rollout backend ("vllm" or "transformers") of a stage that sampled.
    """

    artifacts: Mapping[Artifact, str] = field(default_factory=dict)
    metrics: Mapping[str, Estimate] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    backend: str | None = None


@dataclass(frozen=True)
class StageContext:
    """Where a stage works. `inputs` maps the names that its configuration refers to onto their artifacts.

    `destination` is the folder that `folder` becomes when it is complete; None: it is there already. `lasting` is a
    folder that stays when the stage is interrupted, for checkpoints; None: nothing stays. `first` is False in all but
    one of the processes that share a stage: those leave no results.
    """

    name: str
    folder: Path
    seed: int
    inputs: Mapping[str, Mapping[Artifact, Path]]
    progress: Progress = no_progress
    tell: Tell = no_tell
    destination: Path | None = None
    lasting: Path | None = None
    first: bool = True

    def final(self, path: str) -> Path:
        """Where what is at this path below `folder` will lie."""
        return (self.destination or self.folder) / path

    def path(self, stage: str, artifact: Artifact) -> Path:
        """Where the artifact of an earlier stage lies."""
        return self.inputs[stage][artifact]

    def input_paths(self) -> dict[str, dict[str, str]]:
        """All inputs as absolute paths, to be written as JSON."""
        return {
            name: {kind: os.path.abspath(path) for kind, path in found.items()} for name, found in self.inputs.items()
        }

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go that an interrupted stage resumes from."""
        return (self.lasting or self.folder) / CHECKPOINTS_NAME

    @property
    def tensorboard(self) -> Path:
        """Where TensorBoard's events go."""
        return (self.lasting or self.folder) / "tensorboard"

    def forget_checkpoints(self) -> None:
        """Remove checkpoints, of no use any more once the stage is done, and the lasting folder where it is empty."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        if self.lasting is not None and self.lasting.is_dir() and not any(self.lasting.iterdir()):
            self.lasting.rmdir()

    def integer_seed(self, purpose: str = "") -> int:
        """A seed below 2**31 that depends on the pipeline's seed, this stage and `purpose`."""
        return self._hashed(self.name, purpose)

    def shared_seed(self, purpose: str) -> int:
        """The same for all stages of a run: what they have in common is then drawn alike, so that they compare."""
        return self._hashed("", purpose)

    def _hashed(self, *parts: str) -> int:
        digest = hashlib.sha256("/".join([str(self.seed), *parts]).encode()).digest()
        return int.from_bytes(digest[:4], "big") >> 1

    def generator(self, purpose: str = "") -> np.random.Generator:
        """A random generator of its own for each purpose, so that one draw more here changes nothing there."""
        return np.random.default_rng([self.seed, self.integer_seed(purpose)])


def count(value: int) -> Estimate:
    """A plain count as a metric: its three numbers are equal."""
    return Estimate(value, value, value, value)


def estimate_from(stored: Mapping[str, Any]) -> Estimate:
    """The estimate that `Estimate.as_dict` wrote."""
    estimate, low, high = (math.nan if stored[key] is None else stored[key] for key in ("estimate", "low", "high"))
    return Estimate(estimate, low, high, stored["n"])
