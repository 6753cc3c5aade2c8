"""The stage that samples a policy's own attempts and keeps those worth learning from."""

from __future__ import annotations

from offline_arl import environments
from offline_arl.errors import DataError
from offline_arl.evaluation.intervals import wilson_interval
from offline_arl.models.policy import load_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.rollouts.backends import make_sampler
from offline_arl.rollouts.collect import collect
from offline_arl.rollouts.episode import Episode
from offline_arl.rollouts.rejection_sampling import kept_successes
from offline_arl.trajectories.store import Store
from offline_arl.workflows.bounds import bounded, trail_notes
from offline_arl.workflows.context import StageContext, StageOutputs, count
from offline_arl.workflows.stages import Sample


def sample(config: Sample, context: StageContext) -> StageOutputs:
    """Play training tasks at a temperature and write what is kept to a store.

    Raises:
        UsageError: The policy cannot be loaded.
        DataError: No attempt succeeded, where successes are to be kept.
    """
    family = environments.load(config.environment)
    tasks = family.tasks("train", config.tasks, seed=context.integer_seed("tasks"))
    path = context.path(config.policy, "policy")
    renderer = Renderer(load_tokenizer(path))
    sampler = make_sampler(
        path,
        stop_token_ids=renderer.stop_token_ids,
        backend=config.backend,
        max_model_len=config.max_total_tokens,
        dtype=config.dtype,
    )
    try:
        with bounded(family, config.safety, context.folder) as (bounded_family, trail):
            episodes = collect(
                bounded_family,
                tasks,
                sampler,
                renderer,
                temperature=config.temperature,
                max_tokens_per_step=config.max_tokens_per_step,
                seed=context.integer_seed("episodes"),
                group_size=config.attempts,
                policy=config.policy,
                progress=lambda done, total: context.progress("attempts", done, total),
            )
        backend = sampler.backend
    finally:
        sampler.close()
    judged = [episode for episode in episodes if episode.success is not None]
    successes = sum(bool(episode.success) for episode in judged)
    kept = _kept(config, episodes)
    with Store.create(context.folder / "store").writer() as writer:
        for episode in kept:
            writer.add(episode.trajectory)
    solved = len({episode.task.task_id for episode in judged if episode.success})
    return StageOutputs(
        artifacts={"store": "store"},
        metrics={
            f"success_sampled/{context.name}": wilson_interval(successes, len(judged)),
            f"kept_attempts/{context.name}": count(len(kept)),
        },
        notes=(
            f"{len(episodes)} attempts at {len(tasks)} tasks by {backend}: {successes} successes at {solved} tasks; "
            f"{len(kept)} attempts are kept",
            *trail_notes(trail),
        ),
        backend=backend,
    )


def _kept(config: Sample, episodes: list[Episode]) -> list[Episode]:
    if config.keep == "all":
        return [episode for episode in episodes if not episode.infrastructure_error]
    kept = kept_successes(episodes, per_task=config.per_task, prefer=config.prefer)
    if not kept:
        raise DataError(
            f"none of {len(episodes)} attempts succeeded, so there is nothing to learn from; start from a better "
            "policy, or raise attempts"
        )
    return kept
