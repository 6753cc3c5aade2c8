"""A transition dataset with one decision a token: every action token with its state, its reward and its next state.

The state of a token is known at the position in front of it, so it is the (row, position) whose hidden state the
token-level heads read. The next state of a token is that of the next action token of the same trajectory, in whichever
segment that stands and however many observation tokens lie between them. The reward of a step arrives at its last
token. Endings are those of `transitions`: after a terminated step there is no next state and the value is 0; after a
truncated one it is the state behind the last observation, where the dataset has it (`final_state`); where it has not,
and where the next step was left out of the dataset, the token has no target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.datasets.transitions import rewards_of
from offline_arl.errors import DataError

DiscountUnit = Literal["step", "token"]
NO_STATE = -1


@dataclass(frozen=True, eq=False)
class TokenTransitions:
    """Decisions and states in the order of the dataset: by row, then by position.

    States are those of the decisions and, behind the last decision of its row, the state after a truncated attempt.
    """

    state_rows: NDArray[np.int64]  # [M] the dataset's row of each state
    state_positions: NDArray[np.int64]  # [M] the position in that row whose hidden state it is
    states: NDArray[np.int64]  # [N] the state of each decision
    next_states: NDArray[np.int64]  # [N] the state after it, or NO_STATE
    token_ids: NDArray[np.int64]  # [N]
    rewards: NDArray[np.float32]  # [N] of the step at its last token, 0 before
    discounts: NDArray[np.float32]  # [N] of the value of the next state
    terminated: NDArray[np.bool_]  # [N]
    trajectories: NDArray[np.int64]  # [rows] number of each row's trajectory; rows of a trajectory are neighbors

    def __len__(self) -> int:
        return len(self.states)

    @property
    def has_target(self) -> NDArray[np.bool_]:
        """[N] the decision ended the task, or its next state is known."""
        known: NDArray[np.bool_] = self.next_states != NO_STATE
        return self.terminated | known

    @property
    def decision_rows(self) -> NDArray[np.int64]:
        """[N] the dataset's row of each decision."""
        return self.state_rows[self.states]


class _RowDecisions(NamedTuple):
    """The decisions of one row."""

    positions: NDArray[np.int64]  # of the tokens
    steps: NDArray[np.int64]
    last_of_step: NDArray[np.bool_]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


def token_transitions(
    dataset: SegmentDataset,
    *,
    discount: float,
    discount_unit: DiscountUnit,
    truncation: Literal["bootstrap", "terminal"],
) -> TokenTransitions:
    """Lay out every action token of a transition dataset.

    Args:
        dataset: Of kind "transitions".
        discount: Between 0 and 1.
        discount_unit: "token": every token discounts the next, as in Snell et al. 2023. "step": only the last token
            of a step does, so that a token has the return of its step however long the messages are.
        truncation: "bootstrap" or "terminal"; the latter counts running out of steps as an end of value 0.

    Raises:
        DataError: A segment starts with an action token, so there is no state before it; there is no action token; or
            a reward is not a number.
        UsageError: The dataset holds no transitions.
    """
    dataset.require_kind("transitions")
    rows = list(dataset)
    found = [_decisions(row) for row in rows]
    counts = np.array([len(one.positions) for one in found])
    if not counts.any():
        raise DataError("no step has action tokens, so there is nothing to learn values from; build the dataset again")
    finals = np.array([row.final_state for row in rows], dtype=np.int64)
    trajectories = _numbered([row.trajectory_id for row in rows])
    state_starts = np.concatenate([[0], np.cumsum(counts + finals)])
    positions = [
        np.append(one.positions - 1, len(row) - 1) if row.final_state else one.positions - 1
        for one, row in zip(found, rows, strict=True)
    ]
    states = np.concatenate(
        [start + np.arange(count) for start, count in zip(state_starts[:-1], counts, strict=True)]
    ).astype(np.int64)
    after = np.full(trajectories[-1] + 1, NO_STATE)  # the state after each trajectory's last step
    after[trajectories[finals == 1]] = state_starts[1:][finals == 1] - 1
    owner = np.repeat(trajectories, counts)
    steps, last_of_step, rewards, terminated, truncated = (_joined(found, name) for name in _RowDecisions._fields[1:])
    ended = terminated | (truncated if truncation == "terminal" else False)
    following = _following(states, owner, steps, _joined(found, "positions"))
    return TokenTransitions(
        state_rows=np.repeat(np.arange(len(rows)), counts + finals),
        state_positions=np.concatenate(positions).astype(np.int64),
        states=states,
        next_states=np.where(ended, NO_STATE, np.where(truncated, after[owner], following)),
        token_ids=np.concatenate([row.token_ids[one.positions] for one, row in zip(found, rows, strict=True)]).astype(
            np.int64
        ),
        rewards=rewards,
        discounts=np.where(last_of_step | (discount_unit == "token"), discount, 1.0).astype(np.float32),
        terminated=ended,
        trajectories=trajectories,
    )


def _decisions(row: SegmentRow) -> _RowDecisions:
    assert row.steps is not None
    assert row.terminated is not None
    assert row.truncated is not None
    positions = np.flatnonzero(row.action_mask)
    if len(positions) and positions[0] == 0:
        raise DataError(f"trajectory {row.trajectory_id}: a segment starts with an action, there is no state before it")
    steps = row.step_index[positions].astype(np.int64)
    last = np.append(steps[1:] != steps[:-1], True) if len(steps) else np.zeros(0, dtype=np.bool_)
    place = np.searchsorted(row.steps, steps)
    return _RowDecisions(
        positions=positions,
        steps=steps,
        last_of_step=last,
        rewards=np.where(last, rewards_of(row)[place], np.float32(0)),
        terminated=row.terminated[place] & last,
        truncated=row.truncated[place] & last,
    )


def _joined(found: Sequence[_RowDecisions], name: str) -> Any:
    return np.concatenate([getattr(one, name) for one in found])


def _numbered(names: Sequence[str]) -> NDArray[np.int64]:
    """A number for each run of equal names.

    >>> _numbered(["a", "a", "b"]).tolist()
    [0, 0, 1]
    """
    changes = [name != before for name, before in zip(names[1:], names[:-1], strict=True)]
    return np.concatenate([[0], np.cumsum(changes)]).astype(np.int64)


def _following(
    states: NDArray[np.int64], owner: NDArray[np.int64], steps: NDArray[np.int64], positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[N] the state of the next decision of the same step or of the step after it, or NO_STATE."""
    order = np.lexsort((positions, steps, owner))
    here, then = order[:-1], order[1:]
    goes_on = (owner[then] == owner[here]) & (steps[then] - steps[here] <= 1)
    following = np.full(len(states), NO_STATE)
    following[here] = np.where(goes_on, states[then], NO_STATE)
    return following
