"""Transitions of a dataset as row numbers of a feature table, with the returns that were logged."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.datasets.transitions import rewards_of
from offline_arl.errors import DataError
from offline_arl.models.features import StepFeatures
from offline_arl.objectives import generalized_advantages, td_lambda_returns

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TransitionTable:
    """Transitions as row numbers of a feature table, trajectory by trajectory and step by step."""

    state_rows: Int[Tensor, " N"]
    next_rows: Int[Tensor, " N"]  # 0 where there is no next state
    rewards: Float[Tensor, " N"]
    terminated: Bool[Tensor, " N"]
    has_target: Bool[Tensor, " N"]  # terminated, or a next state exists
    trajectories: Int[Tensor, " N"]  # number of the trajectory
    logged_returns: Float[Tensor, " N"]  # discounted, from each step on; minus infinity where the attempt was cut off

    def __len__(self) -> int:
        return len(self.state_rows)

    def select(self, rows: Tensor) -> TransitionTable:
        """Some of the transitions."""
        return TransitionTable(**{name: value[rows] for name, value in vars(self).items()})


def join_transitions(
    features: StepFeatures, dataset: SegmentDataset, *, truncation: str, discount: float
) -> TransitionTable:
    """Match the steps of a transition dataset with their features.

    Args:
        features: Of the same dataset.
        dataset: Of kind "transitions".
        truncation: "bootstrap" or "terminal", see `trainers.config.ValueConfig`.
        discount: A step, for the logged returns.

    Raises:
        DataError: There is no step, a step has no features, or a reward is not a number.
        UsageError: The dataset is of another kind.
    """
    dataset.require_kind("transitions")
    return transition_table(features, dataset, truncation=truncation, discount=discount)


def transition_table(
    features: StepFeatures, rows: Iterable[SegmentRow], *, truncation: str, discount: float
) -> TransitionTable:
    """`join_transitions` for rows that need not be those of a dataset.

    Raises:
        DataError: There is no step, a step has no features, or a reward is not a number.
    """
    row_of = features.row_of()
    numbers: dict[str, int] = {}
    columns: list[tuple[int, int, float, bool, bool, int]] = []
    for row in rows:
        number = numbers.setdefault(row.trajectory_id, len(numbers))
        for step, reward, ended, cut_off in _signals(row):
            state = row_of.get((row.trajectory_id, step))
            if state is None:
                raise DataError(
                    f"trajectory {row.trajectory_id}: step {step} has no features; "
                    "compute the features from the same dataset"
                )
            terminated = ended or (cut_off and truncation == "terminal")
            following = None if terminated else row_of.get((row.trajectory_id, step + 1))
            columns.append((state, following or 0, reward, terminated, terminated or following is not None, number))
    if not columns:
        raise DataError("no step has action tokens, so there is nothing to learn values from; build the dataset again")
    states, following_rows, rewards, ends, targets, owners = zip(*columns, strict=True)
    table = TransitionTable(
        state_rows=torch.tensor(states),
        next_rows=torch.tensor(following_rows),
        rewards=torch.tensor(rewards),
        terminated=torch.tensor(ends),
        has_target=torch.tensor(targets),
        trajectories=torch.tensor(owners),
        logged_returns=torch.full((len(columns),), -math.inf),
    )
    table = replace(table, logged_returns=_logged_returns(table, discount=discount))
    missing = int((~table.has_target).sum())
    if missing:
        _logger.info("%d of %d steps have no next state and no ending; Q is not trained on them", missing, len(table))
    return table


def _signals(row: SegmentRow) -> Iterator[tuple[int, float, bool, bool]]:
    """(step, reward, terminated, truncated) of each step of a row."""
    assert row.steps is not None
    assert row.terminated is not None
    assert row.truncated is not None
    for step, reward, ended, cut_off in zip(row.steps, rewards_of(row), row.terminated, row.truncated, strict=True):
        yield int(step), float(reward), bool(ended), bool(cut_off)


class AttemptReturns:
    """Lambda-returns and advantages of the transitions of a table, which are laid out a trajectory a row.

    Steps without a target (nothing is known of what followed them) are no decisions here: what came before them is
    continued by the value of the state that they were taken in.
    """

    def __init__(self, table: TransitionTable) -> None:
        self._table = table
        _, row, counts = torch.unique_consecutive(table.trajectories, return_inverse=True, return_counts=True)
        starts = counts.cumsum(0) - counts
        column = torch.arange(len(table)) - starts[row]
        self._place = (row, column)
        self._shape = (len(counts), int(counts.max()) if len(counts) else 0)

    def of(
        self,
        values: Float[Tensor, " N"],
        next_values: Float[Tensor, " N"],
        *,
        discount: float,
        trace_decay: float,
    ) -> Float[Tensor, " N"]:
        """Lambda-returns of every transition; with a trace decay of 1 Monte-Carlo returns.

        Args:
            values: V of the state of each transition.
            next_values: V of the state after it, read where an attempt was cut off.
            discount: A step, between 0 and 1.
            trace_decay: Lambda, between 0 and 1.

        Returns:
            0 where there is no target.
        """
        found = td_lambda_returns(*self._laid_out(values, next_values), discount=discount, trace_decay=trace_decay)
        return found[self._place]

    def advantages(
        self,
        values: Float[Tensor, " N"],
        next_values: Float[Tensor, " N"],
        *,
        discount: float,
        trace_decay: float,
    ) -> Float[Tensor, " N"]:
        """Generalized advantage estimates: `of` minus V, and 0 where there is no target."""
        found = generalized_advantages(*self._laid_out(values, next_values), discount=discount, trace_decay=trace_decay)
        return found[self._place]

    def _laid_out(self, values: Tensor, next_values: Tensor) -> list[Tensor]:
        """Rewards, values, bootstrap values, endings and mask, a trajectory a row."""
        table = self._table
        # What follows in the table may not be what followed: steps without a target or outside the dataset cut.
        goes_on = torch.zeros_like(table.terminated)
        goes_on[:-1] = table.has_target[1:] & (table.next_rows[:-1] == table.state_rows[1:])
        cut_off = ~goes_on & ~table.terminated
        arguments = (table.rewards, values, next_values, table.terminated, cut_off, table.has_target)
        return [self._padded(argument) for argument in arguments]

    def _padded(self, column: Tensor) -> Tensor:
        laid_out = torch.zeros(self._shape, dtype=column.dtype)
        laid_out[self._place] = column
        return laid_out


def _logged_returns(table: TransitionTable, *, discount: float) -> Float[Tensor, " N"]:
    """Monte-Carlo returns; minus infinity for the steps of an attempt that could have gone on."""
    nothing = torch.full((len(table),), math.nan)
    # What would have followed a cut is not a number, and so is every return that has it in.
    returns = AttemptReturns(table).of(torch.zeros(len(table)), nothing, discount=discount, trace_decay=1.0)
    return torch.where(table.has_target & ~returns.isnan(), returns, -math.inf)


def held_out_trajectories(dataset: SegmentDataset, fraction: float, *, generator: torch.Generator) -> frozenset[str]:
    """Trajectories of a random `fraction` of the tasks; a trajectory of no known task is a task of its own."""
    tasks = [
        task if task is not None else f"trajectory {trajectory}"
        for task, trajectory in zip(dataset.column("task_id"), dataset.column("trajectory_id"), strict=True)
    ]
    names = sorted(set(tasks))
    order = torch.randperm(len(names), generator=generator)
    chosen = {names[int(position)] for position in order[: round(fraction * len(names))]}
    return frozenset(
        trajectory for task, trajectory in zip(tasks, dataset.column("trajectory_id"), strict=True) if task in chosen
    )
