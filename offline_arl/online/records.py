"""What each step of online training looked like: records that are written as they come and read by everyone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from offline_arl.rollouts.episode import Episode


@dataclass(frozen=True)
class StepRecord:
    """One step of online training: one batch of rollouts and the updates made from it.

    NaN (null in the file) where a step has nothing to measure, None where a quantity does not exist in this run.
    """

    step: int  # 1 for the first batch of rollouts
    n_episodes: int
    environment_steps: int  # messages of the agent that the environment took, all episodes of the step together
    success: float  # of the sampled episodes; NaN without a judged one
    mean_return: float
    return_spread: float  # mean over groups of the standard deviation of returns within a group
    mean_steps: float  # of an episode
    mean_tokens: float  # sampled in an episode
    invalid_actions: float  # an episode
    truncated: float  # share
    infrastructure_errors: int
    idle_groups: float  # share of groups that teach nothing: all attempts are worth the same
    identical_episodes: float  # share of episodes whose sampled tokens another attempt of their group has too
    refilled_groups: int  # drawn in place of idle ones
    kl: float | None  # to the warm start, a token, before the first update; None without a reference or a trained token
    entropy: float  # nats a token, before the first update
    loss: float
    gradient_norm: float
    ratio_drift: float | None  # mean |log(new : old)| a token before the last update; None where a batch is used once
    clipped: float  # share of tokens whose ratio was clipped, mean over the updates
    mismatch: float | None  # mean |trainer - sampler| logprob a token; None: not measured in this step
    sync_difference: float | None  # largest such difference on the checked episodes; None: not checked
    cloning_loss: float | None  # nats a token on logged successes; None without replay
    explained_variance: float | None  # of the returns by the critic, before it learns from them; None without one
    learning_rate: float = float("nan")  # of the first update
    seconds: dict[str, float] = field(default_factory=dict)  # rollout, sync, train, critic, validation


@dataclass(frozen=True)
class Validation:
    """Held-out success at one point of training."""

    step: int  # 0 is the warm start
    greedy: float
    sampled: float
    n_tasks: int
    environment_steps: int = 0  # that training had used up to here
    full: bool = True  # on all validation tasks; otherwise on the small set
    small_score: float = 0.0  # mean of greedy and sampled success on the small set

    @property
    def score(self) -> float:
        """Mean of greedy and sampled success: by this validations are compared."""
        return (self.greedy + self.sampled) / 2


def describe_validation(validation: Validation, steps: int) -> str:
    """A validation in one line, of a training of so many steps."""
    return (
        f"step {validation.step} of {steps}: validation success {validation.greedy:.3f} greedy, "
        f"{validation.sampled:.3f} sampled on {validation.n_tasks} tasks; {validation.environment_steps:,} environment "
        "steps so far"
    )


def environment_steps(episodes: Sequence[Episode]) -> int:
    """Messages of the agent that the environment took."""
    return sum(len(episode.rewards) for episode in episodes)


def summarize_episodes(episodes: Sequence[Episode], *, group_size: int) -> dict[str, float | int]:
    """The fields of a `StepRecord` that come from its episodes.

    Args:
        episodes: Groups next to one another.
        group_size: Episodes a group.
    """
    sound = [episode for episode in episodes if not episode.infrastructure_error]
    verdicts = [episode.success for episode in sound if episode.success is not None]
    returns = [episode.total_reward for episode in sound if episode.total_reward is not None]
    groups = [episodes[start : start + group_size] for start in range(0, len(episodes), group_size)]
    return {
        "n_episodes": len(episodes),
        "environment_steps": environment_steps(episodes),
        "success": mean(verdicts),
        "mean_return": mean(returns),
        "return_spread": mean([_spread(group) for group in groups]),
        "mean_steps": mean([episode.n_steps for episode in sound]),
        "mean_tokens": mean([len(episode.sampled_tokens) for episode in sound]),
        "invalid_actions": mean([episode.n_invalid for episode in sound]),
        "truncated": mean([episode.trajectory.truncated for episode in sound]),
        "infrastructure_errors": len(episodes) - len(sound),
        "identical_episodes": _identical(groups),
    }


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return float(np.mean(values)) if values else float("nan")


def _spread(group: Sequence[Episode]) -> float:
    returns = [episode.total_reward for episode in group if episode.total_reward is not None]
    return float(np.std(returns)) if returns else 0.0


def _identical(groups: Sequence[Sequence[Episode]]) -> float:
    twins, total = 0, 0
    for group in groups:
        sampled = [episode.sampled_tokens.tobytes() for episode in group if not episode.infrastructure_error]
        twins += sum(sampled.count(text) > 1 for text in sampled)
        total += len(sampled)
    return twins / total if total else float("nan")
