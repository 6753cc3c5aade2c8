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


NegativeKind = Literal[
    "wrong_type",  # an argument of another type than the schema asks for
    "missing_argument",  # a required argument is left out
    "unknown_tool",  # a tool that does not exist
    "value_from_another_turn",  # an argument's value that belongs to something else in the conversation
    "missing_call",  # an answer where a call is due first
    "wrong_order",  # a call before the one whose result it needs
    "needless_call",  # a call where none is due
]
NEGATIVE_KINDS: tuple[NegativeKind, ...] = (
    "wrong_type", "missing_argument", "unknown_tool", "value_from_another_turn", "missing_call", "wrong_order",
    "needless_call",
)  # fmt: skip


class NegativesConfig(BaseModel):
    """Tool-call negatives, made from good steps (pairs of kind "negative").

    `kinds`: see `NegativeKind`. `per_step`: at most so many of one step, of kinds that are rare so far. `source`: which
    attempts are good enough to learn from: the successful ones, or all that did not crash. `grades`: how bad each kind
    is, at most 1: the margin and the weight of its pairs. `environment`: one that judges too, by playing attempts with
    the wrong step in them; it is asked about those that know their task, as what was sampled or played in an
    environment does. `seed`: of the choices.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kinds: tuple[NegativeKind, ...] = NEGATIVE_KINDS
    per_step: PositiveInt = 1
    source: Literal["successes", "all"] = "successes"
    grades: dict[NegativeKind, float] = {
        "wrong_type": 1.0, "missing_argument": 1.0, "unknown_tool": 1.0, "value_from_another_turn": 0.75,
        "missing_call": 1.0, "wrong_order": 0.75, "needless_call": 0.5,
    }  # fmt: skip
    environment: str | None = None
    seed: int = Field(0, ge=0)


class PairsConfig(BaseModel):
    """Which pairs to make, and of what.

    `pair_kinds`: see `PairKind`; "value" needs value heads. `compare_within`: attempts are compared that share
    their task_id ("task"; where they have none, their group_id) or their group_id ("group"). `compare_by`: attempts
    differ by success, or by the undiscounted return that `rewards` gives them; a pair needs a gap of more than
    `min_margin`, in units of either (a success counts 1). `value_margin`: the gap in Q that a value pair needs.
    `max_pairs_per_task`: of trajectory pairs; those with the largest margins are kept. `negatives`: of the kind
    "negative", which is made on request only. `max_tokens`: of one side; None is no bound.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    pair_kinds: tuple[PairKind, ...] = NATURAL_KINDS
    compare_within: Literal["task", "group"] = "task"
    compare_by: Literal["success", "return"] = "success"
    min_margin: float = Field(0.0, ge=0)
    rewards: RewardConfig = RewardConfig()
    value_margin: float = Field(0.1, gt=0)
    max_pairs_per_task: PositiveInt | None = None
    negatives: NegativesConfig = NegativesConfig()
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
