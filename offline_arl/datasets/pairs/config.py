"""What goes into preference datasets."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from offline_arl.datasets.pairs.rows import PairKind
from offline_arl.rewards.components import RewardConfig
from offline_arl.trajectories.schema import Direction

NATURAL_KINDS: tuple[PairKind, ...] = (
    "trajectory", "step", "fork", "regeneration", "choice", "comparison", "correction",
)  # fmt: skip


class PairsConfig(BaseModel):
    """Which pairs to make, and of what.

    `kinds`: see `rows.PairKind`. "value" needs value heads. `within`: attempts are compared that share their task_id
    ("task"; where they have none, their group_id) or their group_id ("group"). `by`: attempts differ by success, or by
    the undiscounted return that `rewards` gives them; a pair needs a gap of more than `min_margin`, in units of either
    (a success counts 1). `value_margin`: the gap in Q that a value pair needs. `max_pairs_per_task`: of trajectory
    pairs; those with the largest margins are kept. `max_tokens`: of one side; None is no bound.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kinds: tuple[PairKind, ...] = NATURAL_KINDS
    within: Literal["task", "group"] = "task"
    by: Literal["success", "return"] = "success"
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
