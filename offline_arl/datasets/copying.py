"""Exercises in copying: random lines of tokens, then the same lines in another order.

Whatever a pretrained language model cannot do, it can say again what it has read: its induction heads look for what
followed the last time (Olsson et al. 2022, "In-context Learning and Induction Heads"). A model of random weights has to
form them first, and logs of a few thousand short conversations are too few for it, so an agent that starts from there
mixes up the two order numbers of one message however well its learning rule works. Cloning these exercises before
everything else forms them. They hold nothing of any log.

Most are made of the pieces of identifiers, letters and one or two digits: over a whole vocabulary a model first has to
learn what each token looks like, and is still guessing when it copies these without a fault. The others are made of any
tokens. Without them the embeddings of whatever is no identifier all drift the same way, because they are never the
answer, and a policy that starts from there hardly learns to tell one word from another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from offline_arl.datasets.manifest import DatasetManifest
from offline_arl.datasets.segments import SegmentRow, SegmentWriter
from offline_arl.errors import DataError

_PIECE = re.compile(r"[A-Z]|[0-9]{1,2}")


class CopyingConfig(BaseModel):
    """How many exercises, how large (ranges include both ends), and the part made of pieces of identifiers.

    `gap_tokens`: up to so many random tokens stand before a line, in one exercise more than in the next. Without them a
    model learns to copy from a few tokens back, and need not be able to from further away.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rows: PositiveInt = 100_000
    lines: tuple[int, int] = (2, 3)
    line_tokens: tuple[int, int] = (2, 4)
    gap_tokens: NonNegativeInt = 0
    identifier_fraction: float = Field(0.8, ge=0, le=1)

    @model_validator(mode="after")
    def _check_ranges(self) -> CopyingConfig:
        for name, (low, high) in (("lines", self.lines), ("line_tokens", self.line_tokens)):
            if not 2 <= low <= high:
                raise ValueError(f"{name}: [{low}, {high}] is no range from 2 on")
        return self


def identifier_tokens(vocabulary: Mapping[str, int]) -> NDArray[np.int64]:
    """The ids of the tokens that are a capital letter or up to two digits, in ascending order.

    >>> identifier_tokens({"A": 7, "71": 3, "the": 1, "100": 2, "b": 4}).tolist()
    [3, 7]
    """
    return np.array(sorted(index for token, index in vocabulary.items() if _PIECE.fullmatch(token)), dtype=np.int64)


def build_copying(
    identifiers: NDArray[np.int64],
    words: NDArray[np.int64],
    output: str | Path,
    *,
    fingerprint: str,
    config: CopyingConfig,
    seed: int,
) -> DatasetManifest:
    """Write exercises as a dataset of kind "bc", one row each.

    A row is lines [a b c] [d e] and then the lines in a random order, [d e] [a b c]. The tokens of lines all differ,
    and gaps hold none of them, so what follows a token is known from the first time alone. Trained are the tokens of
    the second part but the first of each line, which nobody can know.

    Args:
        identifiers: [I], token ids of pieces of identifiers (`identifier_tokens`).
        words: [V], the token ids that the other exercises are made of.
        output: Folder to create or replace.
        fingerprint: Of the renderer whose tokenizer the ids are of.
        config: How many and how large.
        seed: Of the draws.

    Raises:
        DataError: There are fewer tokens than the largest exercise needs, or none is left for its gaps.
    """
    needed = config.lines[1] * config.line_tokens[1]
    available = min(len(identifiers), len(words))
    if available < needed:
        have = f"the tokenizer has {available}"
        raise DataError(f"an exercise needs up to {needed} different pieces of identifiers; {have}")
    if config.gap_tokens and len(words) <= needed:
        raise DataError(
            f"lines take up to {needed} different tokens of {len(words)} words, which leaves none for the gaps; "
            "use fewer or shorter lines, or gap_tokens: 0"
        )
    generator = np.random.default_rng(seed)
    writer = SegmentWriter(
        Path(output), kind="bc", fingerprint=fingerprint, config={**config.model_dump(mode="json"), "seed": seed}
    )
    with writer:
        for index in range(config.rows):
            alphabet = identifiers if generator.random() < config.identifier_fraction else words
            writer.add([_exercise(f"copying-{index}", alphabet, words, config, generator)])
    assert writer.manifest is not None
    return writer.manifest


def _exercise(
    name: str,
    alphabet: NDArray[np.int64],
    words: NDArray[np.int64],
    config: CopyingConfig,
    generator: np.random.Generator,
) -> SegmentRow:
    lengths = generator.integers(
        *config.line_tokens, size=generator.integers(*config.lines, endpoint=True), endpoint=True
    )
    tokens = generator.choice(alphabet, int(lengths.sum()), replace=False)
    lines = np.split(tokens, np.cumsum(lengths)[:-1])
    widest = int(generator.integers(config.gap_tokens, endpoint=True))
    others = np.setdiff1d(words, tokens)
    parts: list[NDArray[np.int64]] = []
    trained: list[NDArray[np.bool_]] = []
    order = [*range(len(lines)), *generator.permutation(len(lines))]
    for position, index in enumerate(order):
        gap, line = generator.choice(others, int(generator.integers(widest, endpoint=True))), lines[index]
        parts += [gap, line]
        trained += [np.zeros(len(gap), dtype=np.bool_), (np.arange(len(line)) > 0) & (position >= len(lines))]
    action_mask = np.concatenate(trained)
    return SegmentRow(
        trajectory_id=name,
        task_id=None,
        task_type="copying",
        success=None,
        segment=0,
        token_ids=np.concatenate(parts).astype(np.int32),
        action_mask=action_mask,
        step_index=np.where(action_mask, 0, -1).astype(np.int32),
    )
