"""From value heads to a policy: advantages of the logged steps, and the weights with which they are cloned.

The advantage is the smaller critic's Q(s, a) minus V(s). What V is depends on how the heads were trained: for IQL an
upper expectile of Q over the logged actions, for CQL and behavior values their mean. The weights are those of Peng et
al. 2019 ("Advantage-Weighted Regression") either way: V is the same for all actions of a state, so it decides how
much a state counts and not which action wins in it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import torch

from offline_arl.datasets.collate import StepWeights
from offline_arl.models.features import StepFeatures
from offline_arl.models.value_heads import ValueHeads
from offline_arl.objectives import advantage_weights, effective_sample_size

_logger = logging.getLogger(__name__)
FEW_STEPS, SMALL_SHARE = 100, 0.02  # an effective sample size below both is worth a warning


class WeightSpread(NamedTuple):
    """How evenly the weights fall on the steps."""

    n: int
    effective_sample_size: float  # so many equally weighted steps would be worth the same
    clipped_share: float  # of the steps, at the cap
    mean: float
    median: float

    @property
    def effective_share(self) -> float:
        """Effective sample size as a share of the steps; 0 where there are none."""
        return self.effective_sample_size / self.n if self.n else 0.0

    def warning(self) -> str | None:
        """One line where the policy would be cloned from next to nothing, else None."""
        if self.effective_sample_size >= FEW_STEPS or self.effective_share >= SMALL_SHARE:
            return None
        return (
            f"the weights of {self.n} steps are worth {self.effective_sample_size:.1f} equally weighted ones: "
            "the policy is cloned from next to nothing; lower inverse_temperature or max_weight"
        )


def advantages(
    heads: ValueHeads, features: StepFeatures, *, rows_per_batch: int = 16_384
) -> dict[tuple[str, int], float]:
    """The smaller of the two Q(s, a) minus V(s) for every (trajectory_id, step), in units of return."""
    rows = torch.nonzero(features.has_action).flatten()
    with torch.inference_mode():
        pieces = [heads.advantages(*piece) for piece in features.pieces(rows, rows_per_batch)]
    values = torch.cat(pieces).tolist() if pieces else []
    steps = features.steps[rows].tolist()
    keys = zip((features.trajectory_ids[row] for row in rows.tolist()), steps, strict=True)
    return dict(zip(keys, values, strict=True))


def awr_step_weights(
    step_advantages: Mapping[tuple[str, int], float], *, inverse_temperature: float, max_weight: float
) -> StepWeights:
    """The cloning weight of each step, `objectives.advantage_weights` of its advantage."""
    values = torch.tensor(list(step_advantages.values()))
    weights = advantage_weights(values, inverse_temperature=inverse_temperature, max_weight=max_weight)
    return dict(zip(step_advantages, weights.tolist(), strict=True))


def weight_spread(weights: StepWeights, *, max_weight: float) -> WeightSpread:
    """Effective sample size and clipped share of step weights; logs a warning where the former is tiny."""
    values = torch.tensor(list(weights.values()), dtype=torch.float64)
    if len(values) == 0:
        return WeightSpread(0, 0.0, 0.0, 0.0, 0.0)
    spread = WeightSpread(
        n=len(values),
        effective_sample_size=float(effective_sample_size(values, torch.ones_like(values, dtype=torch.bool))),
        clipped_share=float((values >= max_weight).double().mean()),
        mean=float(values.mean()),
        median=float(values.median()),
    )
    if (warning := spread.warning()) is not None:
        _logger.warning("%s", warning)
    return spread
