"""What is preferred to what: kinds of evidence, and the configuration of preference datasets."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from offline_arl.rewards.components import RewardConfig
from offline_arl.trajectories.schema import Direction

PairKind = Literal[
    "trajectory",  # two attempts at one task, the better one chosen
    "step",  # the first step in which attempts with a common beginning differ, by what became of either
    "fork",  # a branch and what it branched off from, by their outcomes
    "regeneration",  # an answer that was thrown away, and the one in its place
    "choice",  # several answers of one model call (n > 1), of which one was gone on with
    "comparison",  # compared by a person or a judge
    "correction",  # a step and what a person would have had instead
    "value",  # two steps in the same state, by a critic
    "negative",  # a good call and one that is wrong in a known way
]
NATURAL_KINDS: tuple[PairKind, ...] = (
    "trajectory", "step", "fork", "regeneration", "choice", "comparison", "correction",
)  # fmt: skip


class PairsConfig(BaseModel):
    """Which pairs to make, and of what.

    `pair_kinds`: see `PairKind`; "value" needs value heads. `compare_within`: attempts are compared that share
    their task_id ("task"; where they have none, their group_id) or their group_id ("group"). `compare_by`: attempts
    differ by success, or by the undiscounted return that `rewards` gives them; a pair needs a gap of more than
    `min_margin`, in units of either (a success counts 1). `value_margin`: the gap in Q that a value pair needs.
    `max_pairs_per_task`: of trajectory pairs; those with the largest margins are kept. `max_tokens`: of one side; None
    is no bound.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    pair_kinds: tuple[PairKind, ...] = NATURAL_KINDS
    compare_within: Literal["task", "group"] = "task"
    compare_by: Literal["success", "return"] = "success"
    min_margin: float = Field(0.0, ge=0)
    rewards: RewardConfig = RewardConfig()
    value_margin: float = Field(0.1, gt=0)
    max_pairs_per_task: PositiveInt | None = None
    max_tokens: PositiveInt | None = None


class UnpairedConfig(BaseModel):
    """Where the labels of answers come from.

    `sources`: "outcome" labels attempts by their success; "thumb" labels what people gave a thumb (an attempt, or the
    step it was given for); "score" labels by the judgement named `score`: desirable is at least `threshold` (at most,
    where lower is better). `direction`: of that judgement, where the log does not say. Where an attempt has labels of
    several sources, each becomes a row.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    sources: tuple[Literal["outcome", "thumb", "score"], ...] = ("outcome", "thumb")
    score: str | None = None
    threshold: float | None = None
    direction: Direction = "unknown"
    max_tokens: PositiveInt | None = None
