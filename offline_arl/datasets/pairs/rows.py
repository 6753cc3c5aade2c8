"""The rows of preference datasets: pairs of a chosen and a rejected side, and single sides with a label.

A side is a whole sequence: the prompt and what the policy sampled after it. `action_mask` is True on the tokens that
a preference loss is about and nowhere else: on what the policy sampled from the divergence on, never on the answers of
tools and users in between, and never on turns that both sides share (in DPO they would cancel, in SimPO and KTO not).

Of a pair, the first `prompt_length` tokens are the same on both sides and hold no action token, so one pass can serve
them. Where both sides answer the same prompt (`same_prompt`), `prompt_length` is the length of that prompt with its
generation prompt, and the first token behind it is an action token on either side. Trajectory pairs of attempts whose
users spoke differently share less: the system prompt, or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_arl.rewards.preferences import PairKind


@dataclass(frozen=True, eq=False)
class PairRow:
    """One pair and its evidence.

    `margin` is how much better the chosen side is in units of `scorer`, always positive where the evidence is a
    number; None where it is a bare preference. `chosen_score` and `rejected_score` are the two numbers it comes from.
    `chosen_message` and `rejected_message` are the positions in either trajectory of the first message that differs.
    Where a side was written by somebody else (a correction, a negative), its trajectory is the one it was made from.

    `weight` multiplies the loss of the pair. `prompt`, `chosen` and `rejected` are the messages as JSON text (lists of
    `schema.Message`), `tools` those in force (OpenAI form): for people, and for trainers that tokenize themselves.
    `evidence` is a JSON object: `chosen` and `rejected` each with its source (format, file, record, sha256), and what
    else the kind knows (number of attempts behind a step, why a negative is wrong, who compared).
    """

    pair_id: str
    kind: PairKind
    task_id: str | None
    task_type: str | None
    split: str | None  # of the store, where both trajectories are in the same one; else "train+test", sorted
    weight: float
    margin: float | None
    scorer: str | None
    chosen_score: float | None
    rejected_score: float | None
    chosen_trajectory_id: str
    rejected_trajectory_id: str
    chosen_message: int
    rejected_message: int
    same_prompt: bool
    prompt_length: int
    chosen_token_ids: NDArray[np.int32]  # [C], the prompt included
    chosen_action_mask: NDArray[np.bool_]  # [C]
    rejected_token_ids: NDArray[np.int32]  # [R], the prompt included
    rejected_action_mask: NDArray[np.bool_]  # [R]
    prompt: str
    chosen: str
    rejected: str
    tools: str | None
    evidence: str

    def __len__(self) -> int:
        """Tokens of both sides, the shared ones counted twice."""
        return len(self.chosen_token_ids) + len(self.rejected_token_ids)

    @property
    def trajectory_ids(self) -> tuple[str, ...]:
        """Whose text the row holds."""
        return tuple(dict.fromkeys((self.chosen_trajectory_id, self.rejected_trajectory_id)))


@dataclass(frozen=True, eq=False)
class UnpairedRow:
    """One answer with a label, for KTO.

    `label`: desirable or not. `source` says where it comes from: "outcome", "thumb" or "score"; `scorer` names the
    judge and `score` is the number it gave. `message` is the position of the first labeled message: of a labeled step
    only that step is trained, of a labeled attempt all steps. The tokens before `prompt_length` hold no action token.
    `weight` is 1 times what the audit made of it; the weights of the two classes are the trainer's
    (`manifest.config["recommended"]`).
    """

    row_id: str
    source: str
    task_id: str | None
    task_type: str | None
    split: str | None
    label: bool
    weight: float
    scorer: str | None
    score: float | None
    trajectory_id: str
    message: int
    prompt_length: int
    token_ids: NDArray[np.int32]  # [T], the prompt included
    action_mask: NDArray[np.bool_]  # [T]
    prompt: str
    completion: str
    tools: str | None
    evidence: str

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def trajectory_ids(self) -> tuple[str, ...]:
        """Whose text the row holds."""
        return (self.trajectory_id,)


def _fields(**types: pa.DataType | list[pa.DataType]) -> list[pa.Field]:
    """Columns; a type in a list of one may be null."""
    return [
        pa.field(name, kind[0] if isinstance(kind, list) else kind, nullable=isinstance(kind, list))
        for name, kind in types.items()
    ]


_TEXT, _NUMBER, _COUNT = pa.string(), pa.float32(), pa.int32()
_TOKENS, _MASK = pa.large_list(pa.int32()), pa.large_list(pa.bool_())

PAIR_SCHEMA = pa.schema(
    _fields(
        pair_id=_TEXT, kind=_TEXT, task_id=[_TEXT], task_type=[_TEXT], split=[_TEXT], weight=_NUMBER, margin=[_NUMBER],
        scorer=[_TEXT], chosen_score=[_NUMBER], rejected_score=[_NUMBER], chosen_trajectory_id=_TEXT,
        rejected_trajectory_id=_TEXT, chosen_message=_COUNT, rejected_message=_COUNT, same_prompt=pa.bool_(),
        prompt_length=_COUNT, chosen_token_ids=_TOKENS, chosen_action_mask=_MASK, rejected_token_ids=_TOKENS,
        rejected_action_mask=_MASK, prompt=_TEXT, chosen=_TEXT, rejected=_TEXT, tools=[_TEXT], evidence=_TEXT,
    )
)  # fmt: skip
UNPAIRED_SCHEMA = pa.schema(
    _fields(
        row_id=_TEXT, source=_TEXT, task_id=[_TEXT], task_type=[_TEXT], split=[_TEXT], label=pa.bool_(), weight=_NUMBER,
        scorer=[_TEXT], score=[_NUMBER], trajectory_id=_TEXT, message=_COUNT, prompt_length=_COUNT, token_ids=_TOKENS,
        action_mask=_MASK, prompt=_TEXT, completion=_TEXT, tools=[_TEXT], evidence=_TEXT,
    )
)  # fmt: skip
