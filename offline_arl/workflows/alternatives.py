"""Actions that the logs lack: a policy proposes some in every logged state, for conservative Q-learning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from offline_arl.datasets.segments import SegmentDataset, SegmentRow, SegmentWriter
from offline_arl.errors import DataError
from offline_arl.rollouts.sampler import Sampler, SamplingConfig

PROMPTS_PER_CALL = 2_048


def propose_alternatives(
    dataset: SegmentDataset, sampler: Sampler, output: Path, *, per_state: int, max_tokens: int, seed: int
) -> SegmentDataset:
    """Sample actions at temperature 1 in each different state of a dataset and write them as one.

    A row is a state and one proposed action; its `trajectory_id` is that of an attempt in this state with the number
    of the proposal behind it, and its `step` the step that the attempt took there. Proposals that did not end within
    `max_tokens`, and states that leave no room for as many, are left out. What was logged may be proposed as well.

    Args:
        dataset: Whose states.
        sampler: Of the policy that proposes.
        output: Folder of the dataset to write.
        per_state: Proposals a state.
        max_tokens: Of a proposal.
        seed: Of the sampling.

    Raises:
        DataError: Not one proposal is left.
    """
    config = SamplingConfig(temperature=1.0, max_tokens=max_tokens)
    room = sampler.max_model_len - max_tokens
    states = [(row, step, prompt) for row, step, prompt in _states(dataset) if len(prompt) <= room]
    generator = np.random.default_rng(seed)
    manifest = {"per_state": per_state, "max_tokens": max_tokens, "seed": seed}
    with SegmentWriter(
        output, kind="bc", fingerprint=dataset.manifest.fingerprint, config=manifest, may_be_empty=True
    ) as writer:
        for start in range(0, len(states), PROMPTS_PER_CALL):
            part = states[start : start + PROMPTS_PER_CALL]
            prompts = [prompt.tolist() for _, _, prompt in part for _ in range(per_state)]
            seeds = generator.integers(2**31, size=len(prompts)).tolist()
            completions = sampler.generate(prompts, config, seeds=seeds)
            for number, completion in enumerate(completions):
                row, step, prompt = part[number // per_state]
                if completion.finish_reason == "stop":
                    writer.add([_proposal(row, step, prompt, completion.token_ids, number % per_state)])
    made = SegmentDataset.load(output)
    if len(made) == 0:
        raise DataError(
            f"none of the proposals in {len(states)} states ended within {max_tokens} tokens; raise max_tokens_per_step"
        )
    return made


def _states(dataset: SegmentDataset) -> Iterator[tuple[SegmentRow, int, np.ndarray[tuple[int], np.dtype[np.int32]]]]:
    """(row, step, tokens before its action) of each different state, where it is met first."""
    seen: set[bytes] = set()
    for row in dataset:
        positions = np.flatnonzero(row.step_index >= 0)
        steps, starts = np.unique(row.step_index[positions], return_index=True)
        for step, start in zip(steps, starts, strict=True):
            prompt = row.token_ids[: positions[start]]
            key = prompt.tobytes()
            if key not in seen:
                seen.add(key)
                yield row, int(step), prompt


def _proposal(
    row: SegmentRow, step: int, prompt: np.ndarray[tuple[int], np.dtype[np.int32]], action: list[int], number: int
) -> SegmentRow:
    token_ids = np.concatenate([prompt, np.array(action, dtype=np.int32)])
    step_index = np.full(len(token_ids), -1, dtype=np.int32)
    step_index[len(prompt) :] = step
    return SegmentRow(
        trajectory_id=f"{row.trajectory_id}/{step}/{number}",
        task_id=row.task_id,
        task_type=row.task_type,
        success=None,
        segment=0,
        token_ids=token_ids,
        action_mask=step_index >= 0,
        step_index=step_index,
    )
