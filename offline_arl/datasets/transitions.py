"""Datasets for value learning: segments with the reward and the ending of each step.

Step i's reward is what arrives before step i + 1; its next state is the one in which step i + 1 is taken. After the
last step there are three cases, kept apart:

* terminated: the task came to its own end; the value of what follows is 0.
* truncated, and something followed the step: the observation is kept, with a generation prompt behind it, as the
  state after the last step (`final_state`), so that value learning can bootstrap from it.
* truncated by the step itself (a token limit): there is no next state, and value learning leaves the step out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, PositiveInt

from offline_arl.datasets.manifest import DatasetManifest
from offline_arl.datasets.segments import SegmentRenderer, SegmentRow, SegmentWriter, rows_of, steps_of
from offline_arl.errors import DataError
from offline_arl.rewards.components import RewardConfig, step_rewards
from offline_arl.trajectories.schema import Trajectory


class TransitionsConfig(BaseModel):
    """What the steps earn and how an attempt ends that the log calls neither terminated nor truncated.

    `unknown_ending`: a scored attempt of unknown ending counts as terminated by default, because the score is the
    verdict on the whole of it; the manifest counts how often this was assumed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rewards: RewardConfig = RewardConfig()
    unknown_ending: Literal["terminated", "truncated"] = "terminated"
    max_tokens: PositiveInt | None = None


def build_transitions(
    trajectories: Iterable[Trajectory], renderer: SegmentRenderer, output: str | Path, *, config: TransitionsConfig
) -> DatasetManifest:
    """Write a transition dataset, one row a segment, in the order of `trajectories`, with bounded memory.

    Attempts without a reward are left out and counted: infrastructure errors (a crash is not a reward of 0) and
    unscored ones.

    Args:
        trajectories: Scored attempts, good and bad; read once.
        renderer: Makes token ids and action masks.
        output: Folder to create or replace.
        config: Rewards and endings.

    Raises:
        DataError: No scored attempt is left; the message gives the reasons.
    """
    writer = SegmentWriter(
        Path(output), kind="transitions", fingerprint=renderer.fingerprint, config=config.model_dump(mode="json")
    )
    with writer:
        scored = scored_rows(trajectories, renderer, writer, rewards=config.rewards, max_tokens=config.max_tokens)
        for trajectory, rewards, rows in scored:
            if not (trajectory.terminated or trajectory.truncated):
                writer.assume(f"ending_{config.unknown_ending}")
            writer.add(_with_transitions(trajectory, rows, rewards, renderer, config))
    assert writer.manifest is not None
    return writer.manifest


def scored_rows(
    trajectories: Iterable[Trajectory],
    renderer: SegmentRenderer,
    writer: SegmentWriter,
    *,
    rewards: RewardConfig,
    max_tokens: int | None,
    shown: Callable[[Trajectory, list[float]], Trajectory] = lambda trajectory, _: trajectory,
) -> Iterator[tuple[Trajectory, list[float], list[SegmentRow]]]:
    """Each attempt that has a reward, with the reward of each step and its rows; `writer` counts the others.

    `shown` makes of an attempt and its rewards what is rendered, with the same steps.
    """
    for trajectory in trajectories:
        values = scored_rewards(trajectory, rewards, writer.exclude)
        if values is None:
            continue
        rows = rows_of(trajectory, renderer.render(shown(trajectory, values), max_tokens))
        if rows:
            yield trajectory, values, rows
        else:
            writer.exclude("no_action_tokens")


def scored_rewards(trajectory: Trajectory, config: RewardConfig, exclude: Callable[[str], None]) -> list[float] | None:
    """The reward of each step, or None after telling `exclude` why there is none."""
    if trajectory.outcome.status == "infrastructure_error":
        exclude("infrastructure_error")
        return None
    rewards = step_rewards(trajectory, config)
    if rewards is None:
        exclude("unscored")
    elif not rewards:
        exclude("no_action_tokens")
        return None
    return rewards


def rewards_of(row: SegmentRow) -> NDArray[np.float32]:
    """[S] the reward of each step of a row of transitions.

    Raises:
        DataError: One is not a number.
    """
    assert row.steps is not None
    assert row.rewards is not None
    wrong = np.flatnonzero(~np.isfinite(row.rewards))
    if len(wrong):
        raise DataError(
            f"trajectory {row.trajectory_id}: the reward of step {row.steps[wrong[0]]} is {row.rewards[wrong[0]]}; "
            "leave the trajectory out or give it a reward, and build the dataset again"
        )
    return row.rewards


def _with_transitions(
    trajectory: Trajectory,
    rows: list[SegmentRow],
    rewards: list[float],
    renderer: SegmentRenderer,
    config: TransitionsConfig,
) -> list[SegmentRow]:
    last = len(rewards) - 1
    terminated = trajectory.terminated or (not trajectory.truncated and config.unknown_ending == "terminated")
    labeled = []
    for row in rows:
        steps = steps_of(row)
        is_last = steps == last
        labeled.append(
            replace(
                row,
                n_steps=len(rewards),
                steps=steps,
                rewards=np.array([rewards[step] for step in steps], dtype=np.float32),
                terminated=is_last & terminated,
                truncated=is_last & (not terminated),
            )
        )
    return labeled if terminated else _with_final_state(trajectory, labeled, renderer, config.max_tokens)


def _with_final_state(
    trajectory: Trajectory, rows: list[SegmentRow], renderer: SegmentRenderer, max_tokens: int | None
) -> list[SegmentRow]:
    """Add the state after the last step, where something followed that step: the last row goes on to it, or, where
    the template cannot extend a conversation, a row of its own does.
    """
    following = trajectory.messages[trajectory.step_indices()[-1] + 1 :]
    if not following:
        return rows
    row = rows[-1]
    tools = trajectory.tools_at(len(trajectory.messages) - 1)
    acts_last = row.steps is not None and row.n_steps is not None and row.n_steps - 1 in row.steps
    end = int(np.flatnonzero(row.action_mask)[-1]) + 1
    if acts_last and renderer.prefix_preserving:
        token_ids = renderer.extend(row.token_ids[:end].tolist(), following, tools)
        extended = _padded(row, end, token_ids)
        others = rows[:-1]
    else:
        token_ids = renderer.prompt(trajectory.messages, tools)
        extended = replace(
            _padded(row, 0, token_ids),
            segment=row.segment + 1,
            steps=np.zeros(0, dtype=np.int32),
            rewards=np.zeros(0, dtype=np.float32),
            terminated=np.zeros(0, dtype=np.bool_),
            truncated=np.zeros(0, dtype=np.bool_),
        )
        others = rows
    if max_tokens is not None and len(token_ids) > max_tokens:
        return rows
    return [*others, replace(extended, final_state=True)]


def _padded(row: SegmentRow, end: int, token_ids: list[int]) -> SegmentRow:
    """`token_ids` with the masks of the row's first `end` tokens and no action behind them."""
    added = len(token_ids) - end
    unknown = np.full(added, np.nan, dtype=np.float32)
    return replace(
        row,
        token_ids=np.array(token_ids, dtype=np.int32),
        action_mask=np.concatenate([row.action_mask[:end], np.zeros(added, dtype=np.bool_)]),
        step_index=np.concatenate([row.step_index[:end], np.full(added, -1, dtype=np.int32)]),
        logprobs=None if row.logprobs is None else np.concatenate([row.logprobs[:end], unknown]),
    )
