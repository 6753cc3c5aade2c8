"""One update of the value heads, for each algorithm: implicit Q-learning, conservative Q-learning, behavior values.

Papers: Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", algorithm 1; Kumar et al.
2020, "Conservative Q-Learning for Offline Reinforcement Learning", equation 4, in the discrete form over candidate
actions; Nakamoto et al. 2023, "Cal-QL"; Sutton 1988 (TD(lambda)). A decision is one message of the agent, not one
token: Q(s, a) and V(s) have one value a step.

# Deviation: all losses use the values before the update (IQL's algorithm 1 updates V first), which saves a pass.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from offline_arl.models.features import StepFeatures
from offline_arl.models.value_heads import ValueHeads
from offline_arl.objectives import (
    calibrated_q_values,
    candidate_conservative_loss,
    critic_loss,
    double_q_values,
    expectile_loss,
    masked_mean,
    td_loss,
)
from offline_arl.trainers.candidates import Candidates
from offline_arl.trainers.config import BehaviorValuesConfig, CQLConfig, IQLConfig, ValueConfig
from offline_arl.trainers.transitions import AttemptReturns, TransitionTable

ROWS_PER_PIECE = 16_384  # where all transitions are gone through


class ValueLearner(ABC):
    """Heads, target critics and optimizer. Subclasses say what the losses are.

    Args:
        heads: To train, in place.
        features: Of all steps; rows are gathered and normalized a batch at a time.
        config: Hyperparameters.
    """

    def __init__(self, heads: ValueHeads, features: StepFeatures, config: ValueConfig) -> None:
        self.heads = heads
        self.features = features
        self.target = copy.deepcopy(heads.critics).requires_grad_(False)
        self._update_rate = config.target_update_rate
        self._optimizer = torch.optim.AdamW(
            heads.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )

    @abstractmethod
    def losses(self, part: TransitionTable, rows: Int[Tensor, " B"]) -> dict[str, Tensor]:
        """The reduced losses of some transitions (names that end in `_loss`, to be summed) and other diagnostics."""

    def update(self, part: TransitionTable, rows: Int[Tensor, " B"], learning_rate: float) -> dict[str, Tensor]:
        """One gradient step on the sum of the losses, then the targets move by `target_update_rate`."""
        losses = self.losses(part, rows)
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(sum_of_losses(losses))
        self._optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.heads.critics.parameters(), strict=True):
                slow.lerp_(fast, self._update_rate)
        return losses

    @torch.no_grad()
    def evaluate(self, part: TransitionTable) -> dict[str, float]:
        """Losses over all transitions of a part."""
        totals: dict[str, float] = {}
        for rows in torch.split(torch.arange(len(part)), ROWS_PER_PIECE):
            for name, value in self.losses(part, rows).items():
                totals[name] = totals.get(name, 0.0) + float(value) * len(rows) / len(part)
        return totals

    def final_heads(self) -> ValueHeads:
        """The heads with the target critics in place of the fast ones."""
        final = copy.deepcopy(self.heads)
        final.critics.load_state_dict(self.target.state_dict())
        return final.eval().requires_grad_(False)

    def state(self) -> dict[str, Tensor]:
        """All that a learner of the same heads needs to go on from here, by name: weights, targets, moments."""
        tensors = {f"heads.{name}": value for name, value in self.heads.state_dict().items()}
        tensors |= {f"target.{name}": value for name, value in self.target.state_dict().items()}
        for index, moments in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `state` of another learner gave.

        Raises:
            RuntimeError: The tensors are not those of such heads.
        """
        parts: dict[str, dict[str, Tensor]] = {"heads": {}, "target": {}, "optimizer": {}}
        for name, value in tensors.items():
            part, rest = name.split(".", 1)
            parts[part][rest] = value
        self.heads.load_state_dict(parts["heads"])
        self.target.load_state_dict(parts["target"])
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in parts["optimizer"].items():
            index, rest = name.split(".", 1)
            moments.setdefault(int(index), {})[rest] = value
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": moments})

    def q_inputs(self, state_rows: Tensor, action_rows: Tensor) -> Float[Tensor, "B SA"]:
        """What the critics read of the state of one row and the action of another."""
        return self.heads.q_inputs(self.features.states[state_rows], self.features.actions[action_rows])

    def v(self, rows: Tensor) -> Float[Tensor, " B"]:
        """V of the states of some rows."""
        values: Tensor = self.heads.v(self.features.states[rows])
        return values


def sum_of_losses(losses: dict[str, Tensor]) -> Tensor:
    """What an update descends on."""
    return torch.stack([value for name, value in losses.items() if name.endswith("_loss")]).sum()


class IQLLearner(ValueLearner):
    """V is an upper expectile of the target critics; the critics' targets read V of the next state."""

    def __init__(self, heads: ValueHeads, features: StepFeatures, config: IQLConfig) -> None:
        super().__init__(heads, features, config)
        self.config = config

    def losses(self, part: TransitionTable, rows: Int[Tensor, " B"]) -> dict[str, Tensor]:
        batch = part.select(rows)
        chosen = self.q_inputs(batch.state_rows, batch.state_rows)
        values = self.heads.v_by_member(self.features.states[batch.state_rows])
        with torch.no_grad():
            next_values = self.heads.v_by_member(self.features.states[batch.next_rows])
            target_q = self.heads.by_member(self.target(chosen)).amin(dim=1)
        everywhere = torch.ones_like(batch.has_target)
        q_values = self.heads.by_member(self.heads.critics(chosen))
        value_losses, q_losses = [], []
        for member in range(len(values)):  # each learns from its own critics alone
            value_loss = expectile_loss(target_q[member], values[member], everywhere, expectile=self.config.expectile)
            value_losses.append(masked_mean(value_loss, everywhere, denominator=len(batch)))
            q_loss = td_loss(
                q_values[member], batch.rewards, next_values[member], batch.terminated, batch.has_target,
                discount=self.config.discount,
            )  # fmt: skip
            q_losses.append(mean_over(q_loss, batch.has_target))
        return {
            "value_loss": torch.stack(value_losses).mean(),
            "q_loss": torch.stack(q_losses).mean(),
            "mean_q": q_values.mean(),
            "mean_v": values.mean(),
        }


class CQLLearner(ValueLearner):
    """Double Q-learning over the candidate actions of a state, and a penalty on those that this attempt did not take.

    Args:
        heads: To train, in place.
        features: Of all steps.
        config: Hyperparameters.
        candidates: Of all rows; rows from `len(features)` on are rows of `proposed`.
        proposed: Features of actions that a policy proposed and nobody logged.
    """

    def __init__(
        self,
        heads: ValueHeads,
        features: StepFeatures,
        config: CQLConfig,
        candidates: Candidates,
        proposed: StepFeatures | None = None,
    ) -> None:
        super().__init__(heads, features, config)
        self.config = config
        self.candidates = candidates
        self._proposed = proposed

    def losses(self, part: TransitionTable, rows: Int[Tensor, " B"]) -> dict[str, Tensor]:
        batch = part.select(rows)
        candidates, exists, is_own = self.candidates.at(batch.state_rows)
        q_values = self._over(batch.state_rows, candidates, exists, target=False)
        logged = torch.where(is_own, q_values, 0.0).sum(dim=-1)
        with torch.no_grad():
            target_q = self.target(self.q_inputs(batch.state_rows, batch.state_rows)).amin(dim=0)
        values = self.v(batch.state_rows)
        everywhere = torch.ones_like(batch.has_target)
        q_losses = td_loss(
            logged, batch.rewards, self._next_values(batch), batch.terminated, batch.has_target,
            discount=self.config.discount,
        )  # fmt: skip
        soft = q_values
        if self.config.calibrated:
            # Without proposals the learned policy is one over the logged actions, and all others are its own.
            of_policy = ~is_own if self._proposed is None else candidates >= len(self.features)
            soft = calibrated_q_values(q_values, batch.logged_returns, exists & of_policy)
        pushes = candidate_conservative_loss(
            soft, exists, logged, everywhere, temperature=self.config.conservative_temperature
        )
        push = masked_mean(pushes, everywhere, denominator=len(batch))
        return {
            "value_loss": masked_mean(
                expectile_loss(target_q, values, everywhere, expectile=0.5), everywhere, denominator=len(batch)
            ),
            "q_loss": mean_over(q_losses, batch.has_target),
            "conservative_loss": self.config.conservative_weight * push,
            "conservative_gap": push.detach(),
            "mean_q": logged.mean(),
            "mean_v": values.mean(),
        }

    @torch.no_grad()
    def _next_values(self, batch: TransitionTable) -> Float[Tensor, " B"]:
        """The best candidate of the next state, judged by the targets; V where nothing was ever done in it."""
        rows, exists, _ = self.candidates.at(batch.next_rows)
        online = self._over(batch.next_rows, rows, exists, target=False)
        best = double_q_values(online, self._over(batch.next_rows, rows, exists, target=True), exists)
        return torch.where(exists.any(dim=-1), best, self.v(batch.next_rows))

    def _over(
        self, state_rows: Int[Tensor, " B"], rows: Int[Tensor, "B A"], exists: Bool[Tensor, "B A"], *, target: bool
    ) -> Float[Tensor, "2 B A"]:
        """Q of each candidate that exists; 0 for the others, which are not computed."""
        state, place = exists.nonzero(as_tuple=True)
        critics = self.target if target else self.heads.critics
        states, actions = self.features.states[state_rows[state]], self._actions(rows[state, place])
        found = critics(self.heads.q_inputs(states, actions))
        spread: Tensor = found.new_zeros(len(found), *exists.shape)
        return spread.index_put((torch.arange(len(found)).unsqueeze(1), state, place), found)

    def _actions(self, rows: Int[Tensor, " R"]) -> Float[Tensor, "R A"]:
        if self._proposed is None:
            return self.features.actions[rows]
        logged = rows < len(self.features)
        actions = torch.empty(len(rows), self.features.actions.shape[1], dtype=self.features.actions.dtype)
        actions[logged] = self.features.actions[rows[logged]]
        actions[~logged] = self._proposed.actions[rows[~logged] - len(self.features)]
        return actions


class BehaviorLearner(ValueLearner):
    """Q and V are both fitted to the lambda-returns of the logs."""

    def __init__(self, heads: ValueHeads, features: StepFeatures, config: BehaviorValuesConfig) -> None:
        super().__init__(heads, features, config)
        self.config = config
        self._updates = 0
        self._targets = torch.zeros(0)

    def update(self, part: TransitionTable, rows: Int[Tensor, " B"], learning_rate: float) -> dict[str, Tensor]:
        """As the others, with targets of the V of at most `refresh_every` updates ago."""
        if self._updates % self.config.refresh_every == 0:
            self._refresh(part)
        self._updates += 1
        return super().update(part, rows, learning_rate)

    def turn_to(self, features: StepFeatures) -> None:
        """Go on with other features; the next update is on transitions of theirs, whose targets it computes."""
        self.features = features
        self._updates = 0

    def evaluate(self, part: TransitionTable) -> dict[str, float]:
        """As the others, with the targets of the present V."""
        self._refresh(part)
        return super().evaluate(part)

    @torch.no_grad()
    def _refresh(self, part: TransitionTable) -> None:
        values, next_values = (
            torch.cat([self.v(piece) for piece in torch.split(rows, ROWS_PER_PIECE)])
            for rows in (part.state_rows, part.next_rows)
        )
        self._targets = AttemptReturns(part).of(
            values, next_values, discount=self.config.discount, trace_decay=self.config.trace_decay
        )

    def losses(self, part: TransitionTable, rows: Int[Tensor, " B"]) -> dict[str, Tensor]:
        batch, targets = part.select(rows), self._targets[rows]
        q_values = self.heads.critics(self.q_inputs(batch.state_rows, batch.state_rows))
        values = self.v(batch.state_rows)
        value_losses = critic_loss(values.unsqueeze(0), targets, batch.has_target)
        return {
            "value_loss": mean_over(value_losses, batch.has_target),
            "q_loss": mean_over(critic_loss(q_values, targets, batch.has_target), batch.has_target),
            "mean_q": q_values.mean(),
            "mean_v": values.mean(),
        }


def mean_over(losses: Tensor, mask: Bool[Tensor, " B"]) -> Tensor:
    """The mean over what the mask selects; 0 where it selects nothing."""
    mean: Tensor = masked_mean(losses, mask, denominator=mask.sum().clamp_min(1))
    return mean
