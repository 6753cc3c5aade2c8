"""The online stage: GRPO from a warm start; its episodes become trajectories of a store."""

from __future__ import annotations

from offline_arl import environments
from offline_arl.evaluation.intervals import Estimate
from offline_arl.models.reranked_policy import require_plain_policy
from offline_arl.online.config import GrpoConfig
from offline_arl.online.grpo import GrpoResult, train_grpo
from offline_arl.rollouts.episode import Episode
from offline_arl.trajectories.store import Store
from offline_arl.warmstart import WarmStart
from offline_arl.workflows.context import StageContext, StageOutputs, count
from offline_arl.workflows.stages import Online, part_of


def train_online(config: Online, context: StageContext) -> StageOutputs:
    """Train with GRPO; the policy at the start is also the KL reference.

    Raises:
        GateError: The warm start succeeds too seldom, or the sampler does not run the trainer's weights.
        TemplateError: The chat template rewrites earlier turns.
        DataError: Policy and reference differ at step 0.
        UsageError: The policy's choices are not in its weights alone.
    """
    require_plain_policy(context.path(config.policy, "policy"))
    family = environments.load(config.environment)
    tasks = family.tasks("train", config.tasks, seed=context.integer_seed("tasks"))
    validation = family.tasks("validation", config.validation_tasks, seed=context.integer_seed("validation"))
    warm_start = WarmStart.from_policy(context.path(config.policy, "policy"), stage=config.policy)
    warm_start.save(context.folder)
    episodes_seen = 0
    with Store.create(context.folder / "store").writer() as writer:

        def keep(step: int, episodes: list[Episode]) -> None:
            nonlocal episodes_seen
            episodes_seen += len(episodes)
            for episode in episodes:
                writer.add(episode.trajectory)

        result = train_grpo(
            warm_start.policy_path,
            family,
            tasks,
            part_of(config, GrpoConfig),
            context.folder,
            seed=context.integer_seed(),
            validation_tasks=validation,
            expected_fingerprint=warm_start.policy_fingerprint,
            progress=lambda done, total: context.progress("updates", done, total),
            on_episodes=keep,
        )
    return StageOutputs(
        artifacts={"policy": str(result.policy_path.relative_to(context.folder)), "store": "store"},
        metrics=_metrics(result, episodes_seen, context.name),
        notes=_notes(result, episodes_seen),
        backend=result.backend,
    )


def _metrics(result: GrpoResult, episodes: int, name: str) -> dict[str, Estimate]:
    worst = max((report.max_abs_difference for report in result.sync_reports), default=float("nan"))
    return {
        f"online_episodes/{name}": count(episodes),
        f"sync_difference/{name}": Estimate(worst, worst, worst, len(result.sync_reports)),
    }


def _notes(result: GrpoResult, episodes: int) -> tuple[str, ...]:
    seconds = ", ".join(f"{part} {value:.0f} s" for part, value in result.seconds.items())
    notes = [f"{episodes} episodes in {len(result.history)} updates on {result.backend}; {seconds}"]
    if result.start is not None and result.best is not None:
        notes.append(
            f"validation, greedy and sampled: {result.start.greedy:.3f} and {result.start.sampled:.3f} at the start, "
            f"{result.best.greedy:.3f} and {result.best.sampled:.3f} at step {result.best.step}, which is kept"
        )
    notes += [f"alarm: {alarm} in {number} updates" for alarm, number in result.alarms.items()]
    return tuple(notes)
