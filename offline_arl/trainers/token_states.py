"""Batches of token-level decisions: from kept hidden states, or as trajectories whose states a model has to make.

Both give what `token_critic.TokenCritic` reads. Kept states are drawn decision by decision, independently; where a
model runs for every batch, whole trajectories are drawn, since the next state of a decision may lie in another segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from offline_arl.datasets.collate import IGNORED_LABEL, collate_segments, length_sorted_batches
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.datasets.token_transitions import NO_STATE, TokenTransitions
from offline_arl.models.policy import hidden_states


class StateTransform(NamedTuple):
    """What heads read while they train: `(state - mean) @ matrix`."""

    mean: Float[Tensor, " H"]
    matrix: Float[Tensor, "H H"]


class KeptStates:
    """Collates decision numbers into batches with their states and the states after them.

    Args:
        table: The decisions.
        states: [M, H] hidden states, on the processor.
    """

    def __init__(self, table: TokenTransitions, states: Float[Tensor, "M H"]) -> None:
        self._table = table
        self._states = states

    def __call__(self, decisions: Sequence[int]) -> dict[str, Any]:
        """The batch of some decisions."""
        chosen = np.asarray(decisions, dtype=np.int64)
        following = self._table.next_states[chosen]
        rows = np.concatenate([self._table.states[chosen], np.where(following == NO_STATE, 0, following)])
        here = np.arange(len(chosen))
        return {
            "states": self._states[torch.from_numpy(rows)],
            **_signals(self._table, chosen, here, here + len(chosen)),
        }


class TrajectorySegments:
    """Collates trajectory numbers into padded segments, with where their states lie.

    Args:
        table: The decisions.
        dataset: The segments.
        pad_token_id: Fills rows behind their end.
    """

    def __init__(self, table: TokenTransitions, dataset: SegmentDataset, *, pad_token_id: int) -> None:
        self._table = table
        self._dataset = dataset
        self._pad_token_id = pad_token_id
        rows = np.arange(len(dataset) + 1)
        self._state_starts = np.searchsorted(table.state_rows, rows)
        self._decision_starts = np.searchsorted(table.decision_rows, rows)
        self._row_starts = np.searchsorted(table.trajectories, np.arange(table.trajectories[-1] + 2))
        longest = np.maximum.reduceat(dataset.lengths, self._row_starts[:-1])
        self.lengths: NDArray[np.int64] = longest * np.diff(self._row_starts)  # [trajectories], padded tokens

    def __call__(self, trajectories: Sequence[int]) -> dict[str, Any]:
        """The batch of some whole trajectories; of none, a batch with tokens for the model and without decisions."""
        rows = _ranges(self._row_starts, np.asarray(trajectories or [0], dtype=np.int64))
        states = _ranges(self._state_starts, rows)
        decisions = _ranges(self._decision_starts, rows if trajectories else rows[:0])
        order = np.argsort(states)
        wanted = np.stack([self._table.states[decisions], self._table.next_states[decisions]])
        here, following = order[np.searchsorted(states, np.where(wanted == NO_STATE, states[0], wanted), sorter=order)]
        return {**self._tokens(rows, states), **_signals(self._table, decisions, here, following)}

    @property
    def n_states(self) -> int:
        """States of all trajectories."""
        return int(self._state_starts[-1])

    def states_of(self, trajectories: Sequence[int]) -> NDArray[np.int64]:
        """The numbers of the states of some trajectories, in the order of their batch."""
        return _ranges(self._state_starts, _ranges(self._row_starts, np.asarray(trajectories, dtype=np.int64)))

    def owners_of(self, trajectories: Sequence[int]) -> NDArray[np.int64]:
        """The trajectory of each of these states."""
        return self._table.trajectories[self._table.state_rows[self.states_of(trajectories)]]

    def decisions_in(self, trajectories: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of decisions of each of some trajectories."""
        starts = self._decision_starts[self._row_starts]
        return np.asarray(np.diff(starts)[trajectories])

    def _tokens(self, rows: NDArray[np.int64], states: NDArray[np.int64]) -> dict[str, Any]:
        batch = collate_segments([self._dataset[row] for row in rows], pad_token_id=self._pad_token_id)
        selected = torch.zeros_like(batch.action_mask)
        columns = torch.from_numpy(self._table.state_positions[states])
        counts = np.diff(self._state_starts)[rows]
        selected[torch.from_numpy(np.repeat(np.arange(len(rows)), counts)), columns] = True
        return {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "selected": selected,
            # A row that holds a final state alone may be shorter than what the others share.
            "shared_prefix": min(batch.shared_prefix, int(columns.min())),
        }


@torch.no_grad()
def selected_states(model: Any, batch: dict[str, Any]) -> Float[Tensor, "M H"]:
    """Last hidden states at the positions of `selected`, in row-major order, without gradients; no logits are made."""
    selected: Bool[Tensor, "B T"] = batch["selected"]
    states, offset = hidden_states(
        model,
        batch["input_ids"].to(model.device),
        batch["attention_mask"].to(model.device),
        layers=(-1,),
        shared_prefix=batch["shared_prefix"],
    )
    return states[selected[:, offset:].to(states.device)]


def read_states(
    model: Any,
    segments: TrajectorySegments,
    *,
    trained: NDArray[np.bool_],
    tokens_per_batch: int,
    kept_megabytes: float,
    whiten: bool,
    center: bool,
) -> tuple[Float[Tensor, "M H"] | None, StateTransform]:
    """One pass of a frozen model over all trajectories.

    Args:
        model: The language model.
        segments: The trajectories.
        trained: [trajectories] those whose states decide the transformation; at least one.
        tokens_per_batch: Padded tokens of a forward pass.
        kept_megabytes: What the states may take.
        whiten: See `state_transform`.
        center: See `state_transform`.

    Returns:
        The states in the order of the table, on the processor in the dtype of the model, or None where they take
        more than `kept_megabytes`; and the transformation.
    """
    kept: Tensor | None = None
    count, total, products = 0, torch.zeros(()), torch.zeros(())
    for batch in length_sorted_batches(segments.lengths, max_tokens=tokens_per_batch):
        states = selected_states(model, segments(batch))
        chosen = states[torch.from_numpy(trained[segments.owners_of(batch)]).to(states.device)].double()
        count, total, products = (
            count + len(chosen),
            total + chosen.sum(dim=0).cpu(),
            products + (chosen.T @ chosen).cpu(),
        )
        if kept is None and segments.n_states * states[0].nbytes <= kept_megabytes * 1e6:
            kept = torch.empty(segments.n_states, states.shape[1], dtype=states.dtype)
        if kept is not None:
            kept[torch.from_numpy(segments.states_of(batch))] = states.cpu()
    mean = total / count
    covariance = products / count - torch.outer(mean, mean)
    return kept, state_transform(mean, covariance, dtype=states.dtype, whiten=whiten, center=center)


def state_transform(
    mean: Float[Tensor, " H"], covariance: Float[Tensor, "H H"], *, dtype: torch.dtype, whiten: bool, center: bool
) -> StateTransform:
    """Give the states unit variance: in every direction, or in every dimension alone.

    The states of a policy that behaves alike everywhere lie close together, apart from where in a message they stand:
    what tells them apart has a hundredth of the variance of what does not, and heads would need very long to find it.
    Whitening (symmetric, so that dimensions keep their meaning) gives it the same weight. Directions of less than a
    millionth of the mean variance, or less than the rounding of `dtype`, are not amplified any further.

    Args:
        mean: Of the states, in float64.
        covariance: Of the states, in float64.
        dtype: That the states were computed in.
        whiten: False scales each dimension by itself.
        center: Take the mean away. Heads without a bias cannot make up for that: False leaves it in, and gives the
            states a second moment of 1 instead.

    >>> covariance = torch.tensor([[1.0, 0.99], [0.99, 1.0]]).double()
    >>> mean = torch.zeros(2).double()
    >>> white = state_transform(mean, covariance, dtype=torch.float32, whiten=True, center=True).matrix.double()
    >>> torch.allclose(white @ covariance @ white, torch.eye(2).double(), atol=1e-3)
    True
    """
    variances = covariance.diagonal()
    rounding = torch.finfo(dtype).eps ** 2 * (mean.square() + variances).mean()
    floor = torch.maximum(1e-6 * variances.mean(), rounding)
    taken_away = mean if center else torch.zeros_like(mean)
    moments = covariance if center else covariance + torch.outer(mean, mean)
    if not whiten:
        return StateTransform(taken_away.float(), (moments.diagonal() + floor).rsqrt().diag().float())
    eigenvalues, directions = torch.linalg.eigh(moments)
    scaled = directions * (eigenvalues.clamp_min(0) + floor).rsqrt()
    return StateTransform(taken_away.float(), (scaled @ directions.T).float())


def _signals(
    table: TokenTransitions, decisions: NDArray[np.int64], here: NDArray[np.int64], following: NDArray[np.int64]
) -> dict[str, Tensor]:
    labels = np.append(IGNORED_LABEL, table.token_ids[decisions])  # Trainer counts these; some ways skip the first
    columns: dict[str, NDArray[Any]] = {
        "state_index": here,
        "next_index": following,
        "token_ids": table.token_ids[decisions],
        "rewards": table.rewards[decisions],
        "discounts": table.discounts[decisions],
        "terminated": table.terminated[decisions],
        "has_target": table.has_target[decisions],
        "labels": labels,
    }
    return {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in columns.items()}


def _ranges(starts: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The members of each chosen group, groups in the order given.

    >>> _ranges(np.array([0, 2, 5, 6]), np.array([2, 0])).tolist()
    [5, 0, 1]
    """
    first, counts = starts[chosen], starts[chosen + 1] - starts[chosen]
    offsets = np.cumsum(counts) - counts
    return np.asarray(np.arange(counts.sum()) + np.repeat(first - offsets, counts))
