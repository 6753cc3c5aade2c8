"""Multi-turn episodes in lockstep: every live episode's next step is one row of one sampler call."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Literal

import msgspec

from offline_arl.datasets.return_conditioning import ReturnConditioning
from offline_arl.environments.protocol import EnvironmentFamily, Task
from offline_arl.errors import UsageError
from offline_arl.rollouts.conditioning import TargetReturns, episode_targets
from offline_arl.rollouts.continuous import Continuous
from offline_arl.rollouts.episode import Episode
from offline_arl.rollouts.play import EnvironmentFactory, Rollout, Settings
from offline_arl.rollouts.sampler import Sampler, SamplingConfig

if TYPE_CHECKING:
    from offline_arl.rendering.renderer import Renderer

Schedule = Literal["lockstep", "continuous"]
Progress = Callable[[int, int], None]  # (episodes finished, episodes in all)


def collect(
    environments: EnvironmentFamily | EnvironmentFactory,
    tasks: Sequence[Task],
    sampler: Sampler,
    renderer: Renderer,
    *,
    temperature: float,
    max_tokens_per_step: int,
    seed: int,
    max_total_tokens: int | None = None,
    group_size: int = 1,
    max_live: int = 256,
    policy: str | None = None,
    conditioning: ReturnConditioning | None = None,
    target_returns: TargetReturns | None = None,
    schedule: Schedule = "lockstep",
    environment_workers: int = 64,
    progress: Progress | None = None,
) -> list[Episode]:
    """Run the sampler's policy in an environment.

    Sampled tokens are never tokenized again: a turn is appended to the very ids that were sampled. The seed of a
    step is derived from (seed, task, attempt, step), so an episode does not depend on which others run beside it.

    An episode whose next prompt leaves no room for a whole step is truncated (stop reason "context_length"). An
    exception of the environment ends the episode as an `infrastructure_error`, which is not a reward of 0.

    Args:
        environments: Where episodes are played; one fresh environment an episode.
        tasks: What to attempt.
        sampler: Holds the policy.
        renderer: Of the policy's tokenizer and template.
        temperature: 0 is greedy.
        max_tokens_per_step: Longest assistant message.
        seed: Of all episodes.
        max_total_tokens: Longest episode; None and at most: the sampler's `max_model_len`.
        group_size: Attempts at each task.
        max_live: Episodes played at the same time.
        policy: Name of the policy, recorded in the trajectories.
        conditioning: Of a return-conditioned policy (`load_conditioning` of its folder). Its conditions stand in the
            tokens of an episode; the trajectory's messages are what the environment said, and its metadata has the
            `target_return`.
        target_returns: What the policy is asked for: one number, one a task or one an episode; None is the best return
            of its training data. The target falls by what the steps earn.
        schedule: "lockstep": all live episodes take a step together, and the same call gives the same episodes to the
            last bit. "continuous": episodes do not wait for one another's tools, which pays where environments are
            slow; their results are then the same up to float rounding (see `continuous`).
        environment_workers: Environments that act at the same time, in threads, with "continuous".
        progress: Called now and then with the number of finished episodes.

    Returns:
        The episodes in the order of `tasks`, the attempts at one task next to one another.

    Raises:
        UsageError: `group_size`, `max_live`, the token limits or the target returns cannot work.
        TemplateError: `renderer.extend` changed sampled tokens.
    """
    budget = sampler.max_model_len if max_total_tokens is None else max_total_tokens
    _check_limits(budget, sampler.max_model_len, max_tokens_per_step, group_size, max_live)
    factory = environments if callable(environments) else environments.make
    config = SamplingConfig(temperature=temperature, max_tokens=max_tokens_per_step)
    targets = episode_targets(conditioning, target_returns, tasks=len(tasks), group_size=group_size)
    settings = Settings(renderer, factory, seed, config, budget, policy, group_size, conditioning, targets or ())
    waiting = ((index, task) for index, task in enumerate(task for task in tasks for _ in range(group_size)))
    total = len(tasks) * group_size
    finished: dict[int, Episode] = {}
    if schedule == "continuous":

        def note(index: int, episode: Episode) -> None:
            finished[index] = episode
            if progress is not None:
                progress(len(finished), total)

        run = Continuous(
            sampler, settings, seed_of=_seed_of(seed), max_live=max_live, workers=environment_workers, finished=note
        )
        run.play(waiting)
    else:
        for rollouts in _lockstep(waiting, sampler, settings, max_live=max_live):
            finished.update({rollout.index: rollout.episode() for rollout in rollouts})
            if progress is not None:
                progress(len(finished), total)
    return [finished[index] for index in range(total)]


def _lockstep(
    waiting: Iterator[tuple[int, Task]], sampler: Sampler, settings: Settings, *, max_live: int
) -> Iterator[list[Rollout]]:
    """Play episodes, one step of all live ones at a time; yields those that each step finished."""
    seed_of = _seed_of(settings.seed)
    live = _start(waiting, max_live, settings)
    while live:
        playing = [rollout for rollout in live if not rollout.ended]
        if playing:
            seeds = [seed_of(rollout) for rollout in playing]
            completions = sampler.generate([rollout.tokens for rollout in playing], settings.config, seeds=seeds)
            for rollout, completion in zip(playing, completions, strict=True):
                rollout.take(completion)
        yield [rollout for rollout in live if rollout.ended]
        live = [rollout for rollout in live if not rollout.ended]
        live.extend(_start(waiting, max_live - len(live), settings))


def _seed_of(seed: int) -> Callable[[Rollout], int]:
    return lambda rollout: step_seed(seed, rollout.task.task_id, rollout.attempt, rollout.n_steps)


def step_seed(seed: int, task_id: str, attempt: int, step: int) -> int:
    """The sampler's seed for one step of one episode, a non-negative 63-bit integer.

    >>> step_seed(0, "task-1", 0, 0) == step_seed(0, "task-1", 0, 0)
    True
    >>> step_seed(0, "task-1", 0, 0) == step_seed(0, "task-1", 1, 0)
    False
    """
    digest = hashlib.sha256(msgspec.json.encode([seed, task_id, attempt, step])).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _check_limits(budget: int, max_model_len: int, max_tokens: int, group_size: int, max_live: int) -> None:
    if group_size < 1 or max_live < 1:
        raise UsageError(f"group_size is {group_size} and max_live {max_live}; both must be at least 1")
    if budget > max_model_len:
        raise UsageError(f"max_total_tokens is {budget}, above the sampler's max_model_len, {max_model_len}; lower it")
    if max_tokens >= budget:
        raise UsageError(f"max_tokens_per_step is {max_tokens}, which fills the whole episode of {budget} tokens")


def _start(waiting: Iterator[tuple[int, Task]], count: int, settings: Settings) -> list[Rollout]:
    return [Rollout(index, task, settings) for index, task in islice(waiting, count)]
