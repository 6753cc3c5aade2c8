"""Preference datasets of random tokens: several turns a side, with a tool's words between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from offline_arl.datasets.pairs import PairDataset, PairRow, PreferenceWriter, UnpairedDataset, UnpairedRow
from toys import VOCABULARY


def completion(generator: np.random.Generator, turns: int) -> tuple[list[int], list[bool]]:
    """Turns of two to five sampled tokens with two to four of a tool between them; masks them out."""
    tokens: list[int] = []
    mask: list[bool] = []
    for turn in range(turns):
        for sampled, low, high in ((True, 2, 6), (False, 2, 5)):
            if sampled or turn < turns - 1:
                count = int(generator.integers(low, high))
                tokens += generator.integers(2, VOCABULARY, size=count).tolist()
                mask += [sampled] * count
    return tokens, mask


def toy_prompt(generator: np.random.Generator, *, common: int, length: int) -> list[int]:
    """`common` tokens that all prompts start with, then `length` of its own."""
    return [2 + position % 7 for position in range(common)] + generator.integers(2, VOCABULARY, size=length).tolist()


def _side(prompt: Sequence[int], generator: np.random.Generator, turns: int) -> tuple[np.ndarray, np.ndarray]:
    tokens, mask = completion(generator, turns)
    return np.array([*prompt, *tokens], dtype=np.int32), np.array([False] * len(prompt) + mask)


def toy_pairs(count: int, *, seed: int = 0, common: int = 12, prompt: int = 14, turns: int = 3) -> list[PairRow]:
    """Pairs with one to `turns` turns a side, prompts of up to `prompt` tokens beyond the common ones."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        tokens = toy_prompt(generator, common=common, length=int(generator.integers(3, prompt + 1)))
        chosen, rejected = (_side(tokens, generator, int(generator.integers(1, turns + 1))) for _ in range(2))
        rows.append(
            PairRow(
                pair_id=f"p{number}", kind="step", task_id=f"task {number}", task_type=None, split=None,
                weight=float(generator.choice([0.5, 1.0, 2.0])), margin=1.0, scorer="outcome", chosen_score=1.0,
                rejected_score=0.0, chosen_trajectory_id=f"c{number}", rejected_trajectory_id=f"r{number}",
                chosen_message=1, rejected_message=1, same_prompt=True, prompt_length=len(tokens),
                chosen_token_ids=chosen[0], chosen_action_mask=chosen[1], rejected_token_ids=rejected[0],
                rejected_action_mask=rejected[1], prompt="[]", chosen="[]", rejected="[]", tools=None, evidence="{}",
            )
        )  # fmt: skip
    return rows


def toy_answers(count: int, *, seed: int = 0, common: int = 12, turns: int = 3) -> list[UnpairedRow]:
    """Labeled answers, about half of them desirable."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        tokens = toy_prompt(generator, common=common, length=int(generator.integers(3, 12)))
        side = _side(tokens, generator, int(generator.integers(1, turns + 1)))
        rows.append(
            UnpairedRow(
                row_id=f"u{number}", source="outcome", task_id=f"task {number}", task_type=None, split=None,
                label=number % 2 == 0, weight=float(generator.choice([0.5, 1.0, 2.0])), scorer=None, score=None,
                trajectory_id=f"t{number}", message=1, prompt_length=len(tokens), token_ids=side[0],
                action_mask=side[1], prompt="[]", completion="[]", tools=None, evidence="{}",
            )
        )  # fmt: skip
    return rows


def pair_dataset(folder: Path, rows: Sequence[PairRow]) -> PairDataset:
    """Write pairs and load them."""
    with PreferenceWriter(folder, kind="pairs", fingerprint="toy", config={}) as writer:
        for row in rows:
            writer.add(row)
    return PairDataset.load(folder)


def answer_dataset(folder: Path, rows: Sequence[UnpairedRow]) -> UnpairedDataset:
    """Write labeled answers and load them."""
    with PreferenceWriter(folder, kind="unpaired", fingerprint="toy", config={}) as writer:
        for row in rows:
            writer.add(row)
    return UnpairedDataset.load(folder)
