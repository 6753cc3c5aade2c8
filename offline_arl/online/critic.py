"""The critic of a warm start: value heads that were fitted to logs, which judge and learn beside the online policy.

The heads read hidden states of the model that they were trained on, which stays frozen; only they learn. Generalized
advantage estimates: Schulman et al. 2016, arXiv:1506.02438; a critic that is trained beside the policy on
lambda-returns: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", arXiv:1707.06347. A decision is one
message of the agent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from offline_arl.datasets.collate import collate_segments, length_sorted_batches
from offline_arl.datasets.segments import SegmentRow
from offline_arl.environments.protocol import EnvironmentFamily, Task
from offline_arl.errors import DataError
from offline_arl.models.features import StepFeatures, step_features
from offline_arl.models.policy import load_policy, policy_fingerprint
from offline_arl.models.value_heads import HeadShape, ValueHeads
from offline_arl.online.config import TurnAdvantageConfig
from offline_arl.rendering import Renderer
from offline_arl.rollouts.episode import Episode
from offline_arl.rollouts.play import first_prompt
from offline_arl.trainers.config import BehaviorValuesConfig
from offline_arl.trainers.transitions import AttemptReturns, TransitionTable, transition_table
from offline_arl.trainers.value import continue_values
from offline_arl.trainers.value_learners import BehaviorLearner
from offline_arl.trainers.value_record import ValueRecord, load_step_values

if TYPE_CHECKING:
    from offline_arl.trajectories.segment import Segment

logger = logging.getLogger(__name__)

STATE_NAME = "critic.safetensors"
TOKENS_PER_BATCH = 8_192  # of a forward pass, padding included


class _Judged(NamedTuple):
    """The steps of the episodes that were judged last."""

    features: StepFeatures
    transitions: TransitionTable


class TurnCritic:
    """Says how much better each step of an episode was than the critic expected.

    Args:
        model: The language model whose hidden states the heads read; frozen here, on its own device.
        heads: Step-level value heads; moved to the CPU, where they learn in place.
        record: How they were made.
        renderer: Of the model's tokenizer, for the state after the last step of a truncated episode.
        config: Discount, lambda, updates.
        seed: Of the batches of the updates.
    """

    def __init__(
        self,
        model: Any,
        heads: ValueHeads,
        record: ValueRecord,
        renderer: Renderer,
        *,
        config: TurnAdvantageConfig,
        seed: int,
    ) -> None:
        self.explained_variance = float("nan")
        self._model = model.eval().requires_grad_(False)
        self._renderer = renderer
        self._layers, self._state_window = record.layers, record.state_window
        self._truncation = str(record.config.get("truncation", "bootstrap"))
        self._config = config
        self._origin = policy_fingerprint(heads)
        self._learner = BehaviorLearner(
            heads.cpu().requires_grad_(True), _no_features(heads.shape), _learner_config(config, record)
        )
        self._generator = torch.Generator().manual_seed(seed)
        self._judged: _Judged | None = None

    @classmethod
    def load(
        cls, values: Path, feature_policy: Path, *, config: TurnAdvantageConfig, dtype: str, seed: int
    ) -> TurnCritic:
        """Read value heads and the policy whose hidden states they read.

        Args:
            values: Folder of step-level value heads.
            feature_policy: Folder of the policy that they were trained on.
            config: Discount, lambda, updates.
            dtype: Of the policy, as when the values were trained.
            seed: Of the batches of the updates.

        Raises:
            DataError: The folder holds no step-level heads, they are damaged, or read another policy.
            UsageError: The policy cannot be loaded.
        """
        model, tokenizer = load_policy(feature_policy, dtype)
        heads, record = load_step_values(
            values,
            model,
            policy=feature_policy,
            remedy="name the policy that they were trained on (--feature-policy), in the same dtype",
        )
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return cls(model.to(device), heads, record, Renderer(tokenizer), config=config, seed=seed)

    def judge(self, episodes: Sequence[Episode]) -> list[NDArray[np.float64]]:
        """The generalized advantage estimate of each step that the environment took, in units of return.

        A terminated episode is worth nothing after its end; a truncated one is continued by V of the state after its
        last step, unless the values were trained with truncation "terminal". A truncated episode after whose last step
        nothing came has no such state: that step gets 0, and what came before it is continued by V of the state in
        which it was taken.

        Sets `explained_variance`: 1 - Var(G - V) / Var(G) over these steps, G the discounted return (continued by V
        in the same way); NaN where all returns are equal.

        Returns:
            An array [len(episode.rewards)] for each episode; zeros where the harness failed.

        Raises:
            DataError: An episode was rendered with another tokenizer or chat template than the values' dataset.
        """
        advantages = [np.zeros(len(episode.rewards)) for episode in episodes]
        judged = [
            (found, row)
            for found, episode in zip(advantages, episodes, strict=True)
            if (row := self._row(episode)) is not None
        ]
        self._judged, self.explained_variance = None, float("nan")
        if not judged:
            return advantages
        rows = [row for _, row in judged]
        features = _encode(self._model, rows, layers=self._layers, state_window=self._state_window)
        transitions = transition_table(features, rows, truncation=self._truncation, discount=self._config.discount)
        self._judged = _Judged(features, transitions)
        estimates = self._estimates(self._judged)
        taken = np.cumsum([len(row.steps) for row in rows if row.steps is not None])
        for (found, row), part in zip(judged, np.split(estimates, taken[:-1]), strict=True):
            found[row.steps] = part
        return advantages

    def learn(self) -> dict[str, float]:
        """Make `config.updates` updates on the lambda-returns of the episodes that were judged last.

        Returns:
            The means of the losses over the updates; empty where nothing was judged, or no update is wanted.

        Raises:
            DataError: Training diverged.
        """
        if self._judged is None:
            return {}
        return continue_values(self._learner, *self._judged, updates=self._config.updates, generator=self._generator)

    def first_values(self, family: EnvironmentFamily, tasks: Sequence[Task], renderer: Renderer) -> NDArray[np.float64]:
        """V of the first state of each task, in units of return.

        Args:
            family: Is started once a task.
            tasks: What will be attempted.
            renderer: That of the rollouts.

        Returns:
            [N]; NaN where the environment does not start.

        Raises:
            DataError: The renderer is not that of the values' dataset.
        """
        self._check_renderer(renderer.fingerprint)
        values = np.full(len(tasks), np.nan)
        prompts = [first_prompt(family.make, task, renderer) for task in tasks]
        rows = [_prompt_row(str(index), prompt) for index, prompt in enumerate(prompts) if prompt]
        if rows:
            features = _encode(self._model, rows, layers=self._layers, state_window=self._state_window)
            places = [int(name) for name in features.trajectory_ids]
            with torch.no_grad():
                values[places] = self._learner.heads.v(features.states).double().numpy()
        return values

    def save(self, folder: str | Path) -> None:
        """Write all that `restore` needs: heads, targets, moments of the optimizer, random state."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {**self._learner.state(), "random": self._generator.get_state()}
        temporary = folder / f".{STATE_NAME}"
        save_file(
            {name: value.contiguous() for name, value in tensors.items()}, temporary, metadata={"values": self._origin}
        )
        temporary.replace(folder / STATE_NAME)

    def restore(self, folder: str | Path) -> None:
        """Go on as the critic that was saved would have.

        Raises:
            DataError: The state is missing or damaged, or that of a critic from other values.
        """
        path = Path(folder) / STATE_NAME
        try:
            with safe_open(path, framework="pt") as file:
                origin = (file.metadata() or {}).get("values")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if origin != self._origin:
                raise DataError(f"{path}: is the state of a critic from other values; name those, or begin anew")
            self._generator.set_state(tensors.pop("random"))
            self._learner.restore(tensors)
        except (OSError, KeyError, SafetensorError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{path}: cannot read the state of the critic ({reason}); begin anew") from error
        self._judged, self.explained_variance = None, float("nan")

    @torch.no_grad()
    def _estimates(self, judged: _Judged) -> NDArray[np.float64]:
        """Advantages of all transitions; takes note of how much of the returns V explains."""
        table, config = judged.transitions, self._config
        states = judged.features.states
        values = self._learner.heads.v(states[table.state_rows])
        next_values = self._learner.heads.v(states[table.next_rows])
        attempts = AttemptReturns(table)
        returns = attempts.of(values, next_values, discount=config.discount, trace_decay=1.0)
        known = table.has_target
        self.explained_variance = _explained_variance(values[known].double(), returns[known].double())
        advantages = attempts.advantages(values, next_values, discount=config.discount, trace_decay=config.trace_decay)
        return advantages.double().numpy()

    def _row(self, episode: Episode) -> SegmentRow | None:
        """The steps that the environment took as a row of a dataset of transitions; None where there are none."""
        if episode.infrastructure_error or not episode.rewards:
            return None
        trajectory = episode.trajectory
        segment = self._segment(episode)
        sampled = np.unique(segment.step_index[segment.action_mask])
        steps = sampled[sampled < len(episode.rewards)]
        ending = steps == len(episode.rewards) - 1
        token_ids = segment.token_ids
        following = trajectory.messages[trajectory.step_indices()[-1] + 1 :]
        continued = not trajectory.terminated and len(sampled) == len(steps) and bool(following)
        if continued:
            tools = trajectory.tools_at(len(trajectory.messages) - 1)
            extended = self._renderer.extend(token_ids.tolist(), following, tools)
            token_ids = np.array(extended, dtype=np.int32)
        behind = len(token_ids) - len(segment)
        return SegmentRow(
            trajectory_id=trajectory.trajectory_id,
            task_id=trajectory.task_id,
            task_type=trajectory.task_type,
            success=episode.success,
            segment=0,
            token_ids=token_ids,
            action_mask=np.pad(segment.action_mask, (0, behind)),
            step_index=np.pad(segment.step_index, (0, behind), constant_values=-1),
            n_steps=len(episode.rewards),
            steps=steps,
            rewards=np.array(episode.rewards, dtype=np.float32)[steps],
            terminated=ending & trajectory.terminated,
            truncated=ending & (not trajectory.terminated),
            final_state=continued,
        )

    def _segment(self, episode: Episode) -> Segment:
        """The tokens as the values know them: what a policy is asked for, where it reads returns, is not in them."""
        self._check_renderer(episode.segments[0].fingerprint)
        if "target_return" not in episode.trajectory.metadata:
            return episode.segments[0]
        return self._renderer.render(episode.trajectory)[0]

    def _check_renderer(self, fingerprint: str) -> None:
        if fingerprint != self._renderer.fingerprint:
            raise DataError(
                "the critic's values were trained on another tokenizer or chat template than that of the rollouts; "
                "train values on a dataset that is built for this policy"
            )


def _learner_config(config: TurnAdvantageConfig, record: ValueRecord) -> BehaviorValuesConfig:
    """How the critic learns: targets once a step, as in PPO; what the configuration does not say as it was offline."""
    kept = {name: record.config[name] for name in ("target_update_rate", "weight_decay") if name in record.config}
    return BehaviorValuesConfig(
        discount=config.discount,
        trace_decay=config.trace_decay,
        learning_rate=config.learning_rate,
        batch_size=config.batch_size,
        refresh_every=max(config.updates, 1),
        **kept,
    )


def _no_features(shape: HeadShape) -> StepFeatures:
    nothing = torch.zeros(0)
    return StepFeatures(
        [], nothing.long(), nothing.bool(), nothing.view(0, shape.state_size), nothing.view(0, shape.action_size)
    )


def _prompt_row(name: str, prompt: Sequence[int]) -> SegmentRow:
    """A state and nothing that was done in it."""
    none = np.zeros(len(prompt), dtype=np.bool_)
    index = np.full(len(prompt), -1, dtype=np.int32)
    token_ids = np.array(prompt, dtype=np.int32)
    return SegmentRow(name, None, None, None, 0, token_ids, none, index, n_steps=0, final_state=True)


def _explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float:
    if len(returns) < 2 or not float(returns.var()):
        return float("nan")
    return 1.0 - float((returns - values).var() / returns.var())


@torch.no_grad()
def _encode(model: Any, rows: Sequence[SegmentRow], *, layers: tuple[int, ...], state_window: int) -> StepFeatures:
    """Features of all steps of some rows, float32 on the CPU, batch by batch: not in the order of the rows."""
    parts = []
    for indices in length_sorted_batches(np.array([len(row) for row in rows]), max_tokens=TOKENS_PER_BATCH):
        chosen = [rows[index] for index in indices]
        batch = collate_segments(chosen, pad_token_id=0).to(model.device)
        parts.append(step_features(model, chosen, batch, layers=layers, state_window=state_window).features)
    return StepFeatures(
        trajectory_ids=[name for part in parts for name in part.trajectory_ids],
        steps=torch.cat([part.steps for part in parts]),
        has_action=torch.cat([part.has_action for part in parts]),
        states=torch.cat([part.states.float().cpu() for part in parts]),
        actions=torch.cat([part.actions.float().cpu() for part in parts]),
    )
