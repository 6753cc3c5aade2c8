"""Online trainings of the lookup toy that run in processes of their own: killed, resumed, shared by two.

    python online_runs.py killed POLICY FOLDER NAME    # straight and, killed with SIGKILL and resumed, again
    python online_runs.py shared POLICY FOLDER         # under accelerate launch

The critic needs values: `save_values` makes heads of chance, which learn along.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from offline_arl.datasets.segments import SegmentDataset, SegmentRow, SegmentWriter
from offline_arl.online.config import (
    CloningConfig,
    CurriculumConfig,
    GrpoConfig,
    LoraConfig,
    StopConfig,
    TurnAdvantageConfig,
)
from offline_arl.online.episode_store import EpisodeStore
from offline_arl.online.grpo import GrpoResult, train_grpo
from offline_arl.online.replay import LoggedSuccesses
from offline_arl.rollouts.episode import Episode
from toys.lookup import LookupFamily

FAMILY = LookupFamily()

RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "reused": {"updates_per_step": 3, "clip_high": 0.3},
    "minibatches": {"minibatches": 2, "updates_per_step": 2, "optimizer": "muon", "rows_per_batch": 4},
    "critic": {"critic": True, "curriculum": CurriculumConfig(levels=2, promote_at=0.9), "refill_rounds": 1},
    "adapters": {"lora": LoraConfig(rank=2)},
    "replay": {"cloning": CloningConfig(rows=2, own_rows=4), "refill_rounds": 1},
    "budget": {"steps": 30, "stop": StopConfig(environment_steps=190), "cloning": CloningConfig(rows=2)},
}


def config(**fields: Any) -> GrpoConfig:
    values: dict[str, Any] = {
        "steps": 6,
        "group_size": 4,
        "prompts_per_step": 4,
        "rows_per_batch": 8,
        "warmup_steps": 0,
        "learning_rate": 1e-3,
        "max_tokens_per_step": 24,
        "max_total_tokens": 128,
        "validation_every": 2,
        "save_every": 2,
        "gate": None,
        "backend": "transformers",
    }
    return GrpoConfig(**{**values, **fields})


def save_values(policy: Path, folder: Path) -> None:
    """Value heads for the hidden states of a policy, as they are before they learn."""
    import torch

    from offline_arl.models.policy import load_model, policy_fingerprint
    from offline_arl.models.value_heads import HeadShape, ValueHeads
    from offline_arl.trainers.value_record import ValueRecord
    from offline_arl.trainers.value_record import save_values as save

    model = load_model(policy, "float32")
    size = model.config.hidden_size
    heads = ValueHeads(HeadShape(size, 2 * size, hidden_size=16), generator=torch.Generator().manual_seed(0))
    record = ValueRecord(
        algorithm="behavior_values",
        config={"truncation": "terminal", "discount": 1.0},
        seed=0,
        policy=str(policy),
        policy_sha256=policy_fingerprint(model),
        layers=(-1,),
        dataset_fingerprint="",
        dataset_sha256="",
    )
    save(heads, record, folder, intervals={})


def logged_successes(folder: Path, config: CloningConfig) -> LoggedSuccesses:
    """Three rows that count as successes; what they say does not matter."""
    mask = np.array([False, True, True])
    rows = [
        SegmentRow(f"t{index}", "task", "lookup", True, 0, np.array([5, 6 + index, 7], np.int32), mask,
                   np.where(mask, 0, -1).astype(np.int32))
        for index in range(3)
    ]  # fmt: skip
    with SegmentWriter(folder, kind="bc", fingerprint="f", config={"only_successes": True}) as writer:
        for row in rows:
            writer.add([row])
    return LoggedSuccesses(SegmentDataset.load(folder), config, seed=0)


def train(
    policy: Path,
    folder: Path,
    *,
    die_at: int | None = None,
    interrupt_at: int | None = None,
    tell: Callable[[str], None] | None = None,
    **fields: Any,
) -> GrpoResult:
    """One run, its episodes in `state/store`.

    After `die_at` steps the process ends as if it were killed, after `interrupt_at` as by Ctrl-C.
    """
    critic = None
    if fields.pop("critic", False):
        from offline_arl.online.critic import TurnCritic

        if not (folder / "values").is_dir():
            save_values(policy, folder / "values")
        critic = TurnCritic.load(
            folder / "values", policy, config=TurnAdvantageConfig(updates=3, batch_size=16), dtype="float32", seed=0
        )

    def progress(done: int, total: int) -> None:
        if done == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if done == interrupt_at:
            raise KeyboardInterrupt

    with EpisodeStore(folder / "state" / "store") as episodes:
        return train_grpo(
            policy,
            FAMILY,
            FAMILY.tasks("train", 60, seed=0),
            config(**fields),
            folder / "out",
            seed=0,
            validation_tasks=FAMILY.tasks("validation", 12, seed=0),
            critic=critic,
            successes=logged_successes(folder / "logged", fields["cloning"]) if "cloning" in fields else None,
            state_dir=folder / "state",
            progress=progress,
            episodes=episodes,
            tell=tell,
        )


class HandedOut:
    """The episodes of each step that was told of."""

    def __init__(self) -> None:
        self.steps: list[list[Episode]] = []

    def begin(self, step: int) -> None:
        del self.steps[step:]

    def add(self, step: int, episodes: Sequence[Episode]) -> None:
        self.steps.append(list(episodes))

    def commit(self) -> None:
        pass


def _killed(policy: Path, folder: Path, name: str) -> None:
    train(policy, folder / "straight", **RUNS[name])
    # Three steps are one behind a state; with episodes used three times that is within a run of updates.
    process = multiprocessing.get_context("spawn").Process(
        target=train, args=(policy, folder / "resumed"), kwargs={"die_at": 3, **RUNS[name]}
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    train(policy, folder / "resumed", **RUNS[name])


if __name__ == "__main__":
    what, policy, folder, *rest = sys.argv[1:]
    if what == "killed":
        _killed(Path(policy), Path(folder), *rest)
    else:
        train(Path(policy), Path(folder), steps=2, validation_every=2)
