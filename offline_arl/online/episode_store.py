"""The episodes of an online training as a store that an interruption leaves in step with the saved state."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol

import polars as pl

from offline_arl.rollouts.episode import Episode
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.writer import StoreWriter


class EpisodeKeeper(Protocol):
    """Told of the training episodes of a run, in the process that writes."""

    def begin(self, step: int) -> None:
        """Training begins, or goes on, after `step` steps: episodes of later steps are of no run any more."""
        ...

    def add(self, step: int, episodes: Sequence[Episode]) -> None:
        """Take the episodes that the policy of `step` steps played."""
        ...

    def commit(self) -> None:
        """Make what was added last, before a state is complete that covers it."""
        ...


def training_policy(step: int) -> str:
    """The name under which the policy of `step` steps plays its training episodes."""
    return f"grpo-step-{step}"


class EpisodeStore:
    """An `EpisodeKeeper` that writes a store; use it as a context manager around the training.

    Each step that a saved state covers is in the store exactly once. What is committed and lies beyond the state that
    training goes on from (it was killed between the two) is removed: played again, it may be other episodes, since not
    every sampler gives the same tokens twice.

    Args:
        folder: Of the store; it is made, and emptied where training begins anew.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._writer: StoreWriter | None = None

    def __enter__(self) -> EpisodeStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer = None
        self._stack.__exit__(kind, error, trace)

    def begin(self, step: int) -> None:
        """Open the store and remove what the state after `step` steps does not cover."""
        if step == 0:
            shutil.rmtree(self._folder, ignore_errors=True)
        store = Store(self._folder) if self._folder.is_dir() else Store.create(self._folder)
        covered = [training_policy(before) for before in range(step)]
        columns = store.trajectories.filter(~pl.col("model").is_in(covered)).select("trajectory_id")
        self._writer = self._stack.enter_context(store.writer())
        for trajectory_id in columns.collect()["trajectory_id"]:
            self._writer.remove(trajectory_id)
        self._writer.commit()

    def add(self, step: int, episodes: Sequence[Episode]) -> None:
        """Add episodes, to be committed later."""
        assert self._writer is not None
        for episode in episodes:
            self._writer.add(episode.trajectory)

    def commit(self) -> None:
        """Commit what was added."""
        assert self._writer is not None
        self._writer.commit()
