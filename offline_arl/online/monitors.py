"""What each online step looked like, and alarms for the ways in which online RL goes wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from offline_arl.errors import DataError
from offline_arl.rollouts.episode import Episode

logger = logging.getLogger(__name__)

ENTROPY_SHARE = 0.2  # alarm below this share of the entropy at the start
SUCCESS_DROP = 0.15  # alarm this far below the sampled success at the start
WINDOW = 5  # steps that are averaged


@dataclass(frozen=True)
class StepRecord:
    """One step of online training."""

    step: int  # 1 for the first update
    n_episodes: int
    success: float  # of the sampled episodes; NaN without a judged one
    mean_return: float
    mean_steps: float
    invalid_actions: float  # an episode
    truncated: float  # share
    infrastructure_errors: int
    idle_groups: float  # share of groups that teach nothing: all attempts are worth the same
    kl: float | None  # to the warm start, a token, before the update; None without a reference
    entropy: float  # nats a token, before the update
    loss: float
    gradient_norm: float
    sync_difference: float | None  # largest logprob difference of sampler and trainer; None: not checked
    seconds: dict[str, float] = field(default_factory=dict)  # rollout, sync, train, validation


@dataclass(frozen=True)
class Validation:
    """Held-out success at one point of training."""

    step: int  # 0 is the warm start
    greedy: float
    sampled: float
    n_tasks: int


def summarize_episodes(episodes: Sequence[Episode]) -> dict[str, float | int]:
    """The fields of a `StepRecord` that come from its episodes."""
    sound = [episode for episode in episodes if not episode.infrastructure_error]
    verdicts = [episode.success for episode in sound if episode.success is not None]
    returns = [episode.total_reward for episode in sound if episode.total_reward is not None]
    return {
        "n_episodes": len(episodes),
        "success": _mean(verdicts),
        "mean_return": _mean(returns),
        "mean_steps": _mean([episode.n_steps for episode in sound]),
        "invalid_actions": _mean([episode.n_invalid for episode in sound]),
        "truncated": _mean([episode.trajectory.truncated for episode in sound]),
        "infrastructure_errors": len(episodes) - len(sound),
    }


class Monitor:
    """Keeps the history, writes it to a JSONL file as it grows, and warns once a kind of trouble.

    Alarms: "entropy_collapse" (the policy hardly explores any more), "success_drop" (sampled success fell well
    below its start, on the validation tasks or in the steps) and "harness" (more than a tenth of the episodes of a
    step are infrastructure errors).

    Args:
        path: The JSONL file to make.
        steady_tasks: Whether the steps draw their tasks alike throughout. Under a curriculum they do not, harder
            tasks come up as easy ones are solved, and success of the steps says nothing about a drop.
    """

    def __init__(self, path: Path, *, steady_tasks: bool = True) -> None:
        self.history: list[StepRecord] = []
        self.validations: list[Validation] = []
        self.alarms: dict[str, int] = {}  # kind to the step at which it was raised
        self._path = path
        self._steady_tasks = steady_tasks
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def add_step(self, record: StepRecord) -> None:
        """Take the record of a finished step."""
        self.history.append(record)
        self._write("step", asdict(record))
        self._watch(record)

    def add_validation(self, validation: Validation) -> None:
        """Take a validation."""
        self.validations.append(validation)
        self._write("validation", asdict(validation))
        self._watch_success(validation.step, self.validations[0].sampled, validation.sampled)

    def check_reference(self, record: StepRecord, *, tolerance: float) -> None:
        """Assert that the reference is the policy that training started from.

        Raises:
            DataError: At the first step the KL to the reference is not 0.
        """
        if record.step == 1 and record.kl is not None and not record.kl <= tolerance:
            raise DataError(
                f"at step 0 the KL to the reference is {record.kl:.2e} a token and has to be 0 (tolerance "
                f"{tolerance:.0e}): the reference is not the warm start; load the policy by its path"
            )

    def _watch(self, record: StepRecord) -> None:
        first, recent = self.history[:WINDOW], self.history[-WINDOW:]
        if record.infrastructure_errors > 0.1 * record.n_episodes:
            self._alarm(
                record.step, "harness", f"{record.infrastructure_errors} of {record.n_episodes} episodes failed"
            )
        if len(self.history) < 2 * WINDOW:
            return
        entropy, entropy_now = _mean([r.entropy for r in first]), _mean([r.entropy for r in recent])
        if entropy_now < ENTROPY_SHARE * entropy:
            text = f"entropy fell from {entropy:.3f} to {entropy_now:.3f} nats a token; lower the learning rate"
            self._alarm(record.step, "entropy_collapse", text)
        if self._steady_tasks:
            self._watch_success(record.step, _mean([r.success for r in first]), _mean([r.success for r in recent]))

    def _watch_success(self, step: int, start: float, now: float) -> None:
        if now < start - SUCCESS_DROP:
            text = f"sampled success fell from {start:.2f} to {now:.2f}; raise kl_coefficient"
            self._alarm(step, "success_drop", text)

    def _alarm(self, step: int, kind: str, text: str) -> None:
        if kind not in self.alarms:
            self.alarms[kind] = step
            logger.warning("step %d: %s: %s", step, kind, text)

    def _write(self, kind: str, record: dict[str, object]) -> None:
        finite = {name: None if value != value else value for name, value in record.items()}
        with self._path.open("a") as file:
            file.write(json.dumps({"kind": kind, **finite}) + "\n")


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
