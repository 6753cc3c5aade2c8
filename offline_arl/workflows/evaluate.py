"""The evaluation stage: every policy plays the same held-out tasks, greedily and sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from offline_arl import environments
from offline_arl.datasets.return_conditioning import ReturnConditioning, load_conditioning
from offline_arl.environments.audit import AuditTrail
from offline_arl.environments.protocol import EnvironmentFamily, Task
from offline_arl.errors import UsageError
from offline_arl.evaluation.intervals import Estimate
from offline_arl.evaluation.policy import evaluate as measure
from offline_arl.evaluation.policy import paired_difference
from offline_arl.models.guided_policy import is_value_guided
from offline_arl.models.policy import load_policy
from offline_arl.models.reranked_policy import is_reranked
from offline_arl.rendering import Renderer
from offline_arl.rollouts.backends import make_sampler
from offline_arl.rollouts.collect import collect
from offline_arl.rollouts.episode import Episode
from offline_arl.rollouts.sampler import Sampler
from offline_arl.rollouts.server_sampler import ServerSampler
from offline_arl.rollouts.weights import model_weights
from offline_arl.trajectories.store import Store, open_store
from offline_arl.workflows.bounds import bounded, trail_notes
from offline_arl.workflows.context import StageContext, StageOutputs
from offline_arl.workflows.stages import Evaluate
from offline_arl.workflows.target_returns import Target, calibration_curve, targets_for

_MODES = {"": 0.0, "_sampled": 1.0}  # suffix of the measure's name -> temperature
EPISODES_NAME = "episodes.parquet"
CALIBRATION_NAME = "calibration.parquet"


def evaluate(config: Evaluate, context: StageContext) -> StageOutputs:
    """Measure policies and write `episodes.parquet` (one row an episode) and a store of all episodes.

    Metrics are `measure/policy` for greedy episodes and `measure_sampled/policy` at temperature 1;
    `success_gain/b-a` is the paired difference between neighbors in the list of policies. Return-conditioned policies
    add `achieved_return/policy/target` for each number that they are asked for, and `calibration_error/policy`; their
    episodes under other targets than the first are in `calibration.parquet`.

    Raises:
        UsageError: A policy cannot be loaded.
        DataError: The harness failed in every episode of a policy.
    """
    with bounded(environments.load(config.environment), config.safety, context.folder) as (family, trail):
        return _evaluate(config, context, family, trail)


def _evaluate(
    config: Evaluate, context: StageContext, family: EnvironmentFamily, trail: AuditTrail | None
) -> StageOutputs:
    tasks = family.tasks(config.split, config.tasks, seed=context.integer_seed("tasks"))
    modes = {suffix: t for suffix, t in _MODES.items() if (config.greedy if t == 0 else config.sampled)}
    metrics: dict[str, Estimate] = {}
    if config.store is not None:
        records = list(open_store(context.path(config.store, "store")).iter_trajectories())
        metrics.update(_named(measure(records, generator=context.generator("behavior")), "", "behavior"))
    played: dict[tuple[str, str], list[Episode]] = {}
    asked: dict[tuple[str, str], list[Episode]] = {}  # episodes under further targets
    notes: list[str] = []
    players = _Players(config)
    try:
        for index, policy in enumerate(config.policies):
            player = players.player(context.path(policy, "policy"))
            targets = [] if player.conditioning is None else targets_for(config, player.conditioning, family, tasks)
            notes += [f"{policy} is asked for a return of {targets[0].label}"] if targets else []
            for suffix, temperature in modes.items():
                context.progress(f"{policy}{suffix}", index, len(config.policies))
                play = partial(_play, family, tasks, player, config, context, policy, temperature)
                runs = [play(target) for target in targets] or [play(None)]
                played[policy, suffix], asked[policy, suffix] = runs[0], list(chain(*runs[1:]))
                generator = context.generator(f"{policy}{suffix}")
                measured = measure(runs[0], generator=generator)
                metrics.update(_named(measured, suffix, policy))
                notes += _not_judged(f"{policy}{suffix}", measured)
                if player.conditioning is not None:
                    curve = calibration_curve(targets, runs, player.conditioning.rewards, generator=generator)
                    metrics.update(_named(curve, suffix, policy))
        backend = players.backend
    finally:
        players.close()
    metrics.update(_gains(config.policies, modes, played, context))
    _write(played, asked, context.folder)
    return StageOutputs(
        metrics=metrics,
        notes=(
            f"{len(tasks)} {config.split} tasks of {config.environment}, rollouts by {backend}",
            *notes,
            *trail_notes(trail),
        ),
        backend=backend,
    )


class _Player(NamedTuple):
    """A policy, ready to act."""

    sampler: Sampler
    renderer: Renderer
    conditioning: ReturnConditioning | None


class _Players:
    """One engine for all policies of the same architecture and tokenizer; another policy is a change of weights."""

    def __init__(self, config: Evaluate) -> None:
        self._config = config
        self._sampler: Sampler | None = None
        self._key: tuple[str, str, Path | None] | None = None

    @property
    def backend(self) -> str | None:
        """Of the engine in use."""
        return None if self._sampler is None else self._sampler.backend

    def player(self, path: Path) -> _Player:
        """A sampler that holds the weights at `path`, the renderer of its tokenizer, and how it reads returns."""
        model, tokenizer = load_policy(path, self._config.dtype)
        renderer = Renderer(tokenizer)
        shape = {name: value for name, value in model.config.to_dict().items() if not name.startswith("_")}
        # Values that steer a policy belong to it: it gets an engine of its own.
        own = path if is_value_guided(path) or is_reranked(path) else None
        key = (renderer.fingerprint, repr(sorted(shape.items())), own)
        if self._sampler is not None and key == self._key:
            self._sampler.load_weights(model_weights(model))
            return _Player(self._sampler, renderer, load_conditioning(path))
        self.close()
        self._key = key
        if self._config.servers:
            self._sampler = self._on_servers(path, own, renderer)
            self._sampler.load_weights(model_weights(model))
            return _Player(self._sampler, renderer, load_conditioning(path))
        self._sampler = make_sampler(
            path,
            stop_token_ids=renderer.stop_token_ids,
            backend=self._config.backend,
            max_model_len=self._config.max_total_tokens,
            dtype=self._config.dtype,
        )
        return _Player(self._sampler, renderer, load_conditioning(path))

    def _on_servers(self, path: Path, values: Path | None, renderer: Renderer) -> Sampler:
        if values is not None:
            raise UsageError(
                f"{path}: is steered by values, which weights that are loaded into servers do not carry; evaluate it "
                "without servers"
            )
        return ServerSampler(
            self._config.servers,
            model=self._config.served_model,
            stop_token_ids=renderer.stop_token_ids,
            max_model_len=self._config.max_total_tokens,
        )

    def close(self) -> None:
        """Free the engine."""
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None


def _play(
    family: EnvironmentFamily,
    tasks: Sequence[Task],
    player: _Player,
    config: Evaluate,
    context: StageContext,
    policy: str,
    temperature: float,
    target: Target | None,
) -> list[Episode]:
    return collect(
        family,
        tasks,
        player.sampler,
        player.renderer,
        temperature=temperature,
        max_tokens_per_step=config.max_tokens_per_step,
        seed=context.integer_seed("episodes"),
        policy=f"{policy}-{'greedy' if temperature == 0 else 'sampled'}",
        conditioning=player.conditioning,
        target_returns=None if target is None else target.per_task,
        schedule=config.schedule,
    )


def _not_judged(policy: str, measured: Mapping[str, Estimate]) -> list[str]:
    if "judged" not in measured:
        return []
    judged = measured["judged"]
    return [f"{policy}: {round(judged.estimate * judged.n)} of {judged.n} episodes were judged; success is of these"]


def _named(measured: Mapping[str, Estimate], suffix: str, policy: str) -> dict[str, Estimate]:
    """`success/address` of policy bc becomes `success/bc/address`."""
    named: dict[str, Estimate] = {}
    for name, value in measured.items():
        base, _, part = name.partition("/")
        named[f"{base}{suffix}/{policy}" + (f"/{part}" if part else "")] = value
    return named


def _gains(
    policies: Sequence[str],
    modes: Mapping[str, float],
    played: Mapping[tuple[str, str], list[Episode]],
    context: StageContext,
) -> dict[str, Estimate]:
    """Paired differences of success between each policy and the one listed before it."""
    return {
        f"success_gain{suffix}/{after}-{before}": paired_difference(
            played[after, suffix], played[before, suffix], generator=context.generator(f"gain {after} {before}")
        )
        for before, after in pairwise(policies)
        for suffix in modes
    }


def _write(
    played: Mapping[tuple[str, str], list[Episode]], asked: Mapping[tuple[str, str], list[Episode]], folder: Path
) -> None:
    """One row an episode, for paired tests across runs, and the episodes themselves as trajectories."""
    _table(played).write_parquet(folder / EPISODES_NAME)
    if any(asked.values()):
        _table(asked).write_parquet(folder / CALIBRATION_NAME)
    with Store.create(folder / "store").writer() as writer:
        for episodes in (*played.values(), *asked.values()):
            for episode in episodes:
                writer.add(episode.trajectory)


def _table(played: Mapping[tuple[str, str], list[Episode]]) -> pl.DataFrame:
    rows: list[dict[str, Any]] = [
        {
            "policy": policy,
            "sampled": bool(suffix),
            "task_id": episode.task.task_id,
            "task_type": episode.task.task_type,
            "success": episode.success,
            "return": episode.total_reward,
            "target_return": episode.trajectory.metadata.get("target_return"),
            "steps": episode.n_steps,
            "invalid_actions": episode.n_invalid,
            "trajectory_id": episode.trajectory.trajectory_id,
        }
        for (policy, suffix), episodes in played.items()
        for episode in episodes
    ]
    # Columns that may be null in all rows have a type all the same: tables of several runs are put together.
    return pl.DataFrame(
        rows, schema_overrides={"success": pl.Boolean, "return": pl.Float64, "target_return": pl.Float64}
    )
