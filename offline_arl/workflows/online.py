"""The online stage: GRPO from a warm start; its episodes become trajectories of a store."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from offline_arl import environments
from offline_arl.datasets.manifest import load_manifest
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.evaluation.intervals import Estimate, wilson_interval
from offline_arl.models.reranked_policy import require_plain_policy
from offline_arl.online.config import GrpoConfig
from offline_arl.online.diagnosis import History
from offline_arl.online.diagnosis.figures import figures, parts_of
from offline_arl.online.diagnosis.metrics import METRICS_NAME
from offline_arl.online.diagnosis.setup import Setup
from offline_arl.online.episode_store import EpisodeStore
from offline_arl.online.grpo import GrpoResult, train_grpo
from offline_arl.online.processes import Processes
from offline_arl.warmstart import WarmStart
from offline_arl.workflows.bounds import bounded, keep_trails, trail_notes
from offline_arl.workflows.context import StageContext, StageOutputs, count
from offline_arl.workflows.files import content_hash
from offline_arl.workflows.stages import Online, part_of

if TYPE_CHECKING:
    from offline_arl.online.critic import TurnCritic
    from offline_arl.online.replay import LoggedSuccesses

STORE = "store"


def train_online(config: Online, context: StageContext) -> StageOutputs:
    """Train with GRPO; the policy at the start is also the KL reference. An interrupted stage goes on.

    Raises:
        GateError: The warm start succeeds too seldom, or the sampler does not run the trainer's weights.
        TemplateError: The chat template rewrites earlier turns.
        DataError: Policy and reference differ at step 0, the critic reads another policy, the replay dataset holds no
            success or is for another tokenizer, or the sampler failed too often.
        UsageError: The policy's choices are not in its weights alone.
    """
    policy = context.path(config.policy, "policy")
    require_plain_policy(policy)
    family = environments.load(config.environment)
    tasks = family.tasks("train", config.tasks, seed=context.shared_seed("tasks"))
    validation = family.tasks("validation", config.validation_tasks, seed=context.shared_seed("validation"))
    values = None if config.critic is None else context.path(config.critic, "values")
    warm_start = WarmStart.from_policy(
        policy,
        value_heads_path=values,
        feature_policy_path=None if values is None else _feature_policy(config, context, values),
        successes_path=None if config.replay is None else context.path(config.replay, "dataset"),
        curriculum=None if config.curriculum is None else config.curriculum.model_dump(mode="json"),
        stage=config.policy,
    )
    warm_start.save(context.folder)
    successes = _successes(warm_start, config, context)
    grpo = part_of(config, GrpoConfig)
    process = 0 if context.first else Processes().index
    setup = Setup.of(grpo, critic=config.critic is not None, replay=config.replay is not None)
    bounds = bounded(family, config.safety, context.checkpoints, process=process)
    kept = EpisodeStore(context.checkpoints / STORE) if context.first else None
    with kept or nullcontext(), bounds as (bounded_family, trail):
        result = train_grpo(
            warm_start.policy_path,
            bounded_family,
            tasks,
            grpo,
            context.folder,
            seed=context.integer_seed(),
            validation_tasks=validation,
            critic=_critic(warm_start, config, context),
            successes=successes,
            expected_fingerprint=warm_start.policy_fingerprint,
            state_dir=context.checkpoints,
            identity=_identity(warm_start),
            progress=lambda done, total: context.progress("steps", done, total),
            episodes=kept,
            tell=context.tell,
        )
    if config.safety is not None:
        Processes().wait()  # until each has closed its trail
    if context.first:
        shutil.move(context.checkpoints / STORE, context.folder / STORE)
        if config.safety is not None and config.safety.audit is not None:
            keep_trails(config.safety.audit, context.checkpoints, context.folder)
    return StageOutputs(
        artifacts={"policy": "policy", "store": STORE, "history": METRICS_NAME},
        metrics=_metrics(result, context.name),
        notes=(*_notes(result, setup), *trail_notes(trail)),
        backend=result.backend,
    )


def _identity(start: WarmStart) -> dict[str, object]:
    """What makes two trainings the same besides policy and settings, by content: folders may have been moved."""
    from offline_arl.models.value_heads import WEIGHTS_NAME

    values, successes = start.value_heads_path, start.successes_path
    return {
        "critic": None if values is None else content_hash(values / WEIGHTS_NAME),
        "replay": None if successes is None else load_manifest(successes).content_sha256,
    }


def _feature_policy(config: Online, context: StageContext, values: Path) -> Path:
    """The policy that the values read: the one that is named, or the one that their record names."""
    if config.feature_policy is not None:
        return context.path(config.feature_policy, "policy")
    from offline_arl.trainers.value_record import find_policy

    return find_policy(values)


def _critic(start: WarmStart, config: Online, context: StageContext) -> TurnCritic | None:
    if start.value_heads_path is None or start.feature_policy_path is None:
        return None
    from offline_arl.online.critic import TurnCritic

    return TurnCritic.load(
        start.value_heads_path,
        start.feature_policy_path,
        config=config.turn_advantages,
        dtype=config.dtype,
        seed=context.integer_seed("critic"),
    )


def _successes(start: WarmStart, config: Online, context: StageContext) -> LoggedSuccesses | None:
    if start.successes_path is None:
        return None
    from offline_arl.models.policy import load_tokenizer
    from offline_arl.online.replay import LoggedSuccesses
    from offline_arl.rendering import Renderer

    fingerprint = Renderer(load_tokenizer(start.policy_path)).fingerprint
    dataset = SegmentDataset.load(start.successes_path)
    return LoggedSuccesses(dataset, config.cloning, seed=context.integer_seed("replay"), fingerprint=fingerprint)


def _metrics(result: GrpoResult, name: str) -> dict[str, Estimate]:
    worst = max((report.max_abs_difference for report in result.sync_reports), default=float("nan"))
    metrics = {
        f"online_episodes/{name}": count(sum(record.n_episodes for record in result.history)),
        f"environment_steps/{name}": count(result.environment_steps),
        f"sync_difference/{name}": Estimate(worst, worst, worst, len(result.sync_reports)),
    }
    if result.start is not None and result.best is not None:
        for moment, validation in (("start", result.start), ("best", result.best)):
            for kind in ("greedy", "sampled"):
                successes = round(getattr(validation, kind) * validation.n_tasks)
                metrics[f"validation_{kind}_{moment}/{name}"] = wilson_interval(successes, validation.n_tasks)
    return metrics


def _notes(result: GrpoResult, setup: Setup) -> tuple[str, ...]:
    seconds = ", ".join(f"{part} {value:.0f} s" for part, value in result.seconds.items())
    episodes = sum(record.n_episodes for record in result.history)
    notes = [
        f"{episodes} episodes, {result.environment_steps} environment steps in {len(result.history)} steps of training "
        f"on {result.backend}; {seconds}"
    ]
    history = History(records=result.history, setup=setup)
    now, parts = figures(history), parts_of(history)
    if (explained := now.get("explained_variance")) is not None:
        parts[0] = f"a critic that explains {explained:.3f} of the variance of returns (last {now['over_steps']} steps)"
    if parts:
        notes.append(f"with {', '.join(parts)}")
    if result.start is not None and result.best is not None:
        notes.append(
            f"validation, greedy and sampled: {result.start.greedy:.3f} and {result.start.sampled:.3f} at the start, "
            f"{result.best.greedy:.3f} and {result.best.sampled:.3f} at step {result.best.step}, which is kept"
        )
        if result.best.step == 0:
            notes.append("nothing was gained: no later policy did better on the validation tasks, so the start is kept")
    if result.stopped is not None:
        notes.append(f"stopped after step {result.history[-1].step}: {result.stopped}")
    notes += [f"{found.kind} at step {found.step}: {found.evidence}; {found.remedy}" for found in result.findings]
    return tuple(notes)
