"""A corridor whose exact values are known: random walks in it as a transition dataset with one-hot features.

Each step is a segment of its own, as for a policy that sees the present cell and nothing before it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from offline_arl.datasets.segments import SegmentDataset, SegmentRow, SegmentWriter
from offline_arl.models.features import StepFeatures

CELLS, HORIZON, DISCOUNT, STEP_COST = 6, 8, 0.9, 0.1
ACTING_CELLS = CELLS - 1
FIRST_MOVE_TOKEN = CELLS


def move(cell: int, right: bool) -> tuple[int, float, bool]:
    """(next cell, reward, terminated): 1 at the right end, a cost a step, the left wall holds."""
    following = cell + 1 if right else max(cell - 1, 0)
    goal = following == CELLS - 1
    return following, float(goal) - STEP_COST, goal


def optimal_values() -> tuple[np.ndarray, np.ndarray]:
    """V* [ACTING_CELLS] and Q* [ACTING_CELLS, 2] by value iteration."""
    values = np.zeros(CELLS)
    for _ in range(200):
        q_values = np.zeros((ACTING_CELLS, 2))
        for cell in range(ACTING_CELLS):
            for right in (False, True):
                following, reward, goal = move(cell, right)
                q_values[cell, int(right)] = reward + (0.0 if goal else DISCOUNT * values[following])
        values = np.append(q_values.max(axis=1), 0.0)
    return values[:-1], q_values


def values_of_walking_at_random() -> tuple[np.ndarray, np.ndarray]:
    """V [ACTING_CELLS] and Q [ACTING_CELLS, 2] of going left or right alike, by solving the linear equations."""
    transition, reward = np.zeros((ACTING_CELLS, ACTING_CELLS)), np.zeros(ACTING_CELLS)
    for cell in range(ACTING_CELLS):
        for right in (False, True):
            following, earned, goal = move(cell, right)
            reward[cell] += 0.5 * earned
            if not goal:
                transition[cell, following] += 0.5
    values = np.linalg.solve(np.eye(ACTING_CELLS) - DISCOUNT * transition, reward)
    q_values = np.zeros((ACTING_CELLS, 2))
    for cell in range(ACTING_CELLS):
        for right in (False, True):
            following, earned, goal = move(cell, right)
            q_values[cell, int(right)] = earned + (0.0 if goal else DISCOUNT * values[following])
    return values, q_values


def walks(folder: Path, count: int, seed: int, *, right_share: float = 0.5) -> tuple[SegmentDataset, StepFeatures]:
    """Walks that go right in `right_share` of the steps; those that run out of steps are truncated, not terminated."""
    generator = np.random.default_rng(seed)
    rows: list[list[SegmentRow]] = []
    keys, cells, moves = [], [], []
    for number in range(count):
        name, cell = f"w{number}", int(generator.integers(ACTING_CELLS))
        steps: list[tuple[int, bool, float, bool]] = []
        goal = False
        while not goal and len(steps) < HORIZON:
            right = bool(generator.random() < right_share)
            keys.append((name, len(steps)))
            cells.append(cell)
            moves.append(int(right))
            following, reward, goal = move(cell, right)
            steps.append((cell, right, reward, goal))
            cell = following
        if not goal:
            keys.append((name, len(steps)))
            cells.append(cell)
            moves.append(-1)
        rows.append(_segments(name, steps, None if goal else cell))
    with SegmentWriter(folder, kind="transitions", fingerprint="corridor", config={}) as writer:
        for segments in rows:
            writer.add(segments)
    one_hot = torch.eye(2)[torch.tensor(moves).clamp_min(0)]
    features = StepFeatures(
        trajectory_ids=[name for name, _ in keys],
        steps=torch.tensor([step for _, step in keys]),
        has_action=torch.tensor(moves) >= 0,
        states=torch.eye(ACTING_CELLS)[torch.tensor(cells)],
        actions=one_hot * (torch.tensor(moves) >= 0).unsqueeze(-1),
    )
    return SegmentDataset.load(folder), features


def _segments(name: str, steps: list[tuple[int, bool, float, bool]], final_cell: int | None) -> list[SegmentRow]:
    """One segment a step, [cell, move]; a truncated walk has one more, its last cell."""
    segments = []
    for step, (cell, right, reward, goal) in enumerate(steps):
        last = step == len(steps) - 1
        segments.append(
            SegmentRow(
                trajectory_id=name, task_id=name, task_type=None, success=steps[-1][3], segment=step,
                token_ids=np.array([cell, FIRST_MOVE_TOKEN + right], dtype=np.int32),
                action_mask=np.array([False, True]), step_index=np.array([-1, step], dtype=np.int32),
                n_steps=len(steps), steps=np.array([step], dtype=np.int32),
                rewards=np.array([reward], dtype=np.float32), terminated=np.array([last and goal]),
                truncated=np.array([last and not goal]),
            )
        )  # fmt: skip
    if final_cell is not None:
        empty = np.zeros(0)
        segments.append(
            SegmentRow(
                trajectory_id=name, task_id=name, task_type=None, success=False, segment=len(steps),
                token_ids=np.array([final_cell], dtype=np.int32), action_mask=np.array([False]),
                step_index=np.array([-1], dtype=np.int32), n_steps=len(steps), steps=empty.astype(np.int32),
                rewards=empty.astype(np.float32), terminated=empty.astype(np.bool_), truncated=empty.astype(np.bool_),
                final_state=True,
            )
        )  # fmt: skip
    return segments
