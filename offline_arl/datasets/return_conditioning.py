"""What a return-conditioned policy has to know to be asked for a return: kept with its data and beside its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from offline_arl.datasets.transitions import scored_rewards
from offline_arl.errors import DataError
from offline_arl.rendering.return_conditioning import ConditioningConfig, ConditionWriter, rounded_return
from offline_arl.rewards.components import RewardConfig
from offline_arl.rewards.returns import reward_to_go
from offline_arl.trajectories.schema import Trajectory

FILE_NAME = "return_conditioning.json"


class TrainingReturns(BaseModel):
    """The returns of the attempts in the training data, each from its first step on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempts: int
    minimum: float
    maximum: float
    mean: float
    deciles: tuple[float, ...]  # 11, from the minimum to the maximum


class ReturnConditioning(BaseModel):
    """How returns are written into messages, fitted to training data.

    `rewards` says what a return is the sum of: in a rollout the target falls by the reward of each step, computed in
    the same way. `edges` are the lower borders of all classes but the first. `default_target` is what the policy is
    asked for where nothing else is said: the best return of an attempt in the training data.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    conditioning: ConditioningConfig
    rewards: RewardConfig
    edges: tuple[float, ...]
    class_counts: tuple[int, ...]  # how many conditions of the training data fall into each class
    returns: TrainingReturns
    default_target: float

    @property
    def writer(self) -> ConditionWriter:
        """Writes the conditions."""
        return ConditionWriter(self.conditioning, self.edges)

    def save(self, folder: str | Path) -> Path:
        """Write `return_conditioning.json` into a policy folder, atomically, and return its path."""
        path = Path(folder) / FILE_NAME
        temporary = path.with_suffix(".tmp")
        temporary.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return temporary.replace(path)


def load_conditioning(folder: str | Path) -> ReturnConditioning | None:
    """The conditioning of a policy folder; None for a policy that reads no returns.

    Raises:
        DataError: The file is damaged.
    """
    path = Path(folder) / FILE_NAME
    try:
        return ReturnConditioning.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: is no return conditioning ({reason}); train the policy again") from error


def fit_conditioning(
    trajectories: Iterable[Trajectory], *, rewards: RewardConfig, config: ConditioningConfig
) -> ReturnConditioning:
    """Read the returns of the training data and divide them into classes.

    The classes hold about equal shares of the values that will be written: the returns-to-go of all steps, or the
    returns of whole attempts where the scope is the trajectory. Undiscounted, as in Chen et al. 2021, section 3.

    Args:
        trajectories: The training data; read once. Attempts without a reward are passed over.
        rewards: What the steps earn.
        config: How returns are written.

    Raises:
        DataError: No attempt has a reward (the message gives the reasons), or a return is infinite.
    """
    totals: list[float] = []
    written: list[float] = []
    reasons: list[str] = []
    for trajectory in trajectories:
        earned = scored_rewards(trajectory, rewards, reasons.append)
        if earned is not None:
            to_go = [rounded_return(value) for value in reward_to_go(earned)]
            totals.append(to_go[0])
            written += to_go if config.scope == "step" else to_go[:1]
    if not totals:
        told = ", ".join(f"{reason}: {count}" for reason, count in sorted(Counter(reasons).items()))
        raise DataError(f"the return_conditioned dataset would be empty ({told or 'no trajectory was read'})")
    edges, counts = _classes(np.array(written), config)
    array = np.array(totals)
    deciles = np.quantile(array, np.linspace(0, 1, 11), method="inverted_cdf")
    return ReturnConditioning(
        conditioning=config,
        rewards=rewards,
        edges=edges,
        class_counts=counts,
        returns=TrainingReturns(
            attempts=len(totals),
            minimum=float(array.min()),
            maximum=float(array.max()),
            mean=float(array.mean()),
            deciles=tuple(float(value) for value in deciles),
        ),
        default_target=float(array.max()),
    )


def _classes(values: NDArray[np.float64], config: ConditioningConfig) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Borders of the classes and how many values each class holds; one class where numbers are written."""
    import torch  # imported here: a store is read and deleted from without torch

    from offline_arl.objectives.return_conditioning import quantile_edges, quantize_returns

    returns = torch.from_numpy(values)
    if config.form == "number":
        return (), (len(values),)
    edges = quantile_edges(returns, bins=config.bins)
    counts = torch.bincount(quantize_returns(returns, edges), minlength=len(edges) + 1)
    return tuple(edges.tolist()), tuple(counts.tolist())
