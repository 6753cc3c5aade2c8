"""What an offline run hands to online training, and the gate in front of it.

A warm start names the policy (which is also the KL reference), the value heads of the critic with the policy whose
hidden states they read, the dataset of logged successes, the settings of the curriculum, and where all that came from.
The gate
refuses to start online RL from a policy that hardly ever succeeds: with few successes nearly every group of
attempts is all failures, which teaches nothing, and the first lucky ones are then imitated too much.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offline_arl.errors import DataError, GateError
from offline_arl.rollouts.episode import Episode
from offline_arl.trajectories.places import located, seen_from

FILE_NAME = "warm_start.json"
MINIMUM_SUCCESS = 0.30
MINIMUM_TASKS = 100

_PATHS = ("policy_path", "value_heads_path", "feature_policy_path", "successes_path")


@dataclass(frozen=True)
class WarmStart:
    """The start of online training."""

    policy_path: Path  # folder with safetensors weights and the tokenizer; loaded by path, it is the KL reference
    policy_fingerprint: str  # of the weights, `models.policy.policy_fingerprint`
    value_heads_path: Path | None = None  # of the critic
    feature_policy_path: Path | None = None  # whose hidden states it reads
    successes_path: Path | None = None  # dataset of logged successes
    curriculum: dict[str, Any] | None = None  # JSON, a `CurriculumConfig`
    metadata: dict[str, Any] = field(default_factory=dict)  # JSON: algorithm, dataset, seed, validation success

    def save(self, folder: str | Path) -> Path:
        """Write `warm_start.json`, atomically, and return its path.

        Paths inside are absolute, and beside them stands how each is seen from the folder, so that a run can be moved.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = {name: getattr(self, name) for name in _PATHS}
        record = {
            **{name: None if path is None else str(path.resolve()) for name, path in paths.items()},
            "relative": {name: None if path is None else seen_from(folder, path) for name, path in paths.items()},
            "policy_fingerprint": self.policy_fingerprint,
            "curriculum": self.curriculum,
            "metadata": self.metadata,
        }
        target = folder / FILE_NAME
        temporary = target.with_suffix(".tmp")
        temporary.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
        temporary.replace(target)
        return target

    @classmethod
    def load(cls, folder: str | Path) -> WarmStart:
        """Read `warm_start.json`.

        Raises:
            DataError: The file is missing or not a warm start, or what it names is gone.
        """
        path = Path(folder) / FILE_NAME
        try:
            record = json.loads(path.read_text())
            relative = record.get("relative", {})  # earlier versions had none
            paths: dict[str, Any] = {name: record[name] for name in _PATHS}
            for name, place in paths.items():
                if place is not None:
                    paths[name] = located(path.parent, place, relative.get(name)) or Path(place)
            found = cls(
                policy_fingerprint=record["policy_fingerprint"],
                curriculum=record["curriculum"],
                metadata=record["metadata"],
                **paths,
            )
        except FileNotFoundError as error:
            raise DataError(f"{path} is missing; write it with WarmStart.save") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is not a warm start ({error}); write it anew with WarmStart.save") from error
        for name in _PATHS:
            part = getattr(found, name)
            if part is not None and not part.exists():
                raise DataError(f"{path}: {name} {part} does not exist; train it again or correct the path")
        return found

    @classmethod
    def from_policy(
        cls,
        policy_path: str | Path,
        *,
        value_heads_path: str | Path | None = None,
        feature_policy_path: str | Path | None = None,
        successes_path: str | Path | None = None,
        curriculum: dict[str, Any] | None = None,
        **metadata: Any,
    ) -> WarmStart:
        """A warm start of a saved policy, its weights fingerprinted here.

        Args:
            policy_path: From cloning, IQL, CQL, the Decision Transformer (it is asked for its best return) or
                preferences.
            value_heads_path: Step-level values, or None.
            feature_policy_path: The policy that they read; None where there are none.
            successes_path: A dataset, or None.
            curriculum: Settings, or None.
            metadata: JSON.

        Raises:
            UsageError: The policy cannot be loaded.
        """
        from offline_arl.models.policy import load_policy, policy_fingerprint

        model, _ = load_policy(policy_path)
        return cls(
            policy_path=Path(policy_path),
            policy_fingerprint=policy_fingerprint(model),
            value_heads_path=None if value_heads_path is None else Path(value_heads_path),
            feature_policy_path=None if feature_policy_path is None else Path(feature_policy_path),
            successes_path=None if successes_path is None else Path(successes_path),
            curriculum=curriculum,
            metadata=metadata,
        )


@dataclass(frozen=True)
class GateReport:
    """What the gate measured."""

    success: float  # share of judged episodes that succeed, sampled
    n_tasks: int
    n_episodes: int


def check_gate(
    episodes: Sequence[Episode], *, minimum_success: float = MINIMUM_SUCCESS, minimum_tasks: int = MINIMUM_TASKS
) -> GateReport:
    """Let a policy into online training or refuse it.

    Args:
        episodes: Of the policy, sampled at the temperature of the training, on validation tasks.
        minimum_success: Share of judged episodes that have to succeed.
        minimum_tasks: Different tasks that have to be judged; on fewer the share is too uncertain.

    Raises:
        GateError: Too few tasks, greedy episodes, or too little success; the message says what to do.
    """
    if any(episode.trajectory.metadata.get("temperature") == 0 for episode in episodes):
        raise GateError("the gate needs sampled episodes, these are greedy; collect them at the training temperature")
    judged = [episode for episode in episodes if episode.success is not None]
    n_tasks = len({episode.task.task_id for episode in judged})
    if n_tasks < minimum_tasks:
        raise GateError(
            f"the gate judged {n_tasks} validation tasks and needs {minimum_tasks}; give more validation_tasks, or "
            f"judge by fewer: --set gate.minimum_tasks={max(1, n_tasks)}"
        )
    success = sum(bool(episode.success) for episode in judged) / len(judged)
    if success < minimum_success:
        raise GateError(
            f"the warm start succeeds in {success:.1%} of {len(judged)} sampled validation episodes and online RL "
            f"needs {minimum_success:.0%}: clone successes longer or from more logs, choose easier tasks, or lower "
            f"the bar at the risk of a collapse: --set gate.minimum_success={_bar_below(success)} (in a pipeline: "
            "--set stages.NAME.gate.minimum_success=...)"
        )
    return GateReport(success, n_tasks, len(judged))


def _bar_below(success: float) -> str:
    """A round number that the success passes."""
    return f"{math.floor(20 * success) / 20:g}"
