"""One online training: what happens in a step, between two steps, and where it goes on after an interruption."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offline_arl.environments.protocol import EnvironmentFamily, Task
from offline_arl.errors import UsageError
from offline_arl.online.advantages import token_advantages, training_returns
from offline_arl.online.config import GrpoConfig
from offline_arl.online.curriculum import TaskSchedule
from offline_arl.online.diagnosis.setup import Setup
from offline_arl.online.episode_store import EpisodeKeeper
from offline_arl.online.groups import StepGroups, play_groups, success_by_type, tasks_without_success
from offline_arl.online.monitors import Monitor
from offline_arl.online.own_successes import OwnSuccesses
from offline_arl.online.policy_rollouts import PolicyRollouts
from offline_arl.online.processes import Processes
from offline_arl.online.records import StepRecord, describe_validation, environment_steps, mean, summarize_episodes
from offline_arl.online.rows import rollout_rows
from offline_arl.online.state import CRITIC_FOLDER, OWN_SUCCESSES_FOLDER, begin_run, read_state, write_state
from offline_arl.online.validation import Validator
from offline_arl.rollouts.sync import SyncReport

if TYPE_CHECKING:
    from transformers import TrainerControl

    from offline_arl.online.critic import TurnCritic
    from offline_arl.online.replay import LoggedSuccesses
    from offline_arl.online.trl_trainer import OnlineTrainer
    from offline_arl.rendering.renderer import Renderer

logger = logging.getLogger(__name__)

KL_TOLERANCE = {"float32": 1e-6, "bfloat16": 1e-4}

Progress = Callable[[int, int], None]  # (steps done, steps in all)


@dataclass(frozen=True)
class OnlineParts:
    """What a warm start carries besides the policy, and where the training happens."""

    family: EnvironmentFamily
    tasks: Sequence[Task]
    validation_tasks: Sequence[Task]
    critic: TurnCritic | None = None
    successes: LoggedSuccesses | None = None


class OnlineRun:
    """The state of one training, and the functions that TRL calls back.

    Args:
        policy_path: The warm start.
        parts: Tasks, critic, logged successes.
        config: How to train.
        folder: Checkpoints, `metrics.jsonl` and the best policy; where an earlier run with the same arguments left a
            state, this one goes on from it.
        seed: Of rollouts, task order and TRL.
        renderer: Of the policy's tokenizer.
        identity: What else makes two runs the same.
        episodes: Told of the episodes of each step, in the first process.
        tell: Called with lines for people, in the first process.
    """

    def __init__(
        self,
        policy_path: Path,
        parts: OnlineParts,
        config: GrpoConfig,
        folder: Path,
        *,
        seed: int,
        renderer: Renderer,
        identity: dict[str, Any],
        episodes: EpisodeKeeper | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        from offline_arl.models.policy import load_policy, policy_fingerprint
        from offline_arl.online.trl_trainer import make_trainer

        model, self.tokenizer = load_policy(policy_path, config.dtype)
        self.fingerprint = policy_fingerprint(model)
        del model
        self.processes = Processes()
        self._episodes = episodes if self.processes.first else None
        self._tell = tell if tell is not None and self.processes.first else lambda line: None
        if config.prompts_per_step % self.processes.count:
            raise UsageError(
                f"{config.prompts_per_step} prompts a step cannot be shared out evenly among {self.processes.count} "
                "processes; change prompts_per_step"
            )
        if config.prompts_per_step * config.group_size // self.processes.count % config.minibatches:
            raise UsageError(
                f"the {config.prompts_per_step * config.group_size} episodes of a step cannot be cut into "
                f"{config.minibatches} equal minibatches in each of {self.processes.count} processes; change "
                "minibatches"
            )
        self.policy_path, self.folder, self.config, self.seed = policy_path, folder, config, seed
        self.renderer = renderer
        self.parts = parts
        self.schedule = TaskSchedule(
            parts.tasks,
            curriculum=config.curriculum,
            generator=np.random.default_rng([seed, 1]),
            predictions=self._predictions(parts.tasks) if config.curriculum is not None else None,
        )
        self.schedule.check(config.prompts_per_step)
        self.own_successes = OwnSuccesses(config.cloning.own_capacity, seed=seed)
        self.sync_reports: list[SyncReport] = []
        self.environment_steps = 0
        self._played = 0  # environment steps of the step that is under way
        self.stopped: str | None = None  # why, where training ended before its steps were done
        self.totals: dict[str, float] = defaultdict(float)
        self._seconds: dict[str, float] = defaultdict(float)  # of the current step
        self._step_logs: list[dict[str, Any]] = []
        self._wanted: list[str] = []
        self._failures: dict[str, float] = {}  # share of attempts, of the last step that attempted a task type
        self._step = 0
        self._checkpoint = begin_run(
            folder,
            config,
            self.processes,
            seed=seed,
            start=self.fingerprint,
            tasks=[task.task_id for task in parts.tasks],
            validation=[task.task_id for task in parts.validation_tasks],
            **identity,
        )
        self.trainer = make_trainer(policy_path, config, folder, self.rollout, seed=seed)
        if parts.successes is not None:
            self.trainer.cloning = self._cloning_term
        self.trainer.share_done = lambda: config.share_done(self._step, self.environment_steps + self._played)
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        self.rollouts = PolicyRollouts(policy_path, model, parts.family, renderer, config, seed=seed)
        self.validator = Validator(self.rollouts, parts.validation_tasks, config, self.processes)
        self.monitor = self._restore()

    # What happens when.

    def train(self, progress: Progress | None) -> None:
        """All steps that are not done yet."""
        from offline_arl.online.callbacks import UpdateCallback

        if self._checkpoint is not None:
            self._tell(f"going on after step {self._step} of {self.config.steps}, from {self._checkpoint}")
        if self._episodes is not None:
            self._episodes.begin(self._step)
        if self._checkpoint is None and self.validator.tasks:
            self._validate(0)

        def finished(update: int, logs: dict[str, Any], control: TrainerControl) -> None:
            self._step_logs.append(logs)
            if update % self.config.step_updates == 0:
                self._finish_step(update // self.config.step_updates, control)
                if progress is not None:
                    progress(self._step, self.config.steps)

        self.trainer.add_callback(UpdateCallback(finished, self._save_state))
        self.trainer.train(resume_from_checkpoint=None if self._checkpoint is None else str(self._checkpoint))
        if self.validator.best is None:
            self._save_policy()

    def rollout(self, prompts: list[str], trainer: OnlineTrainer) -> dict[str, list[object]]:
        """TRL's `rollout_func`: the episodes of one step. The prompts only say how many."""
        step = int(trainer.state.global_step) // self.config.step_updates
        started = time.perf_counter()
        groups = play_groups(self.rollouts, self.schedule, self.config, self.processes, step=step)
        self._seconds["rollout"] += time.perf_counter() - started
        self._check_sync(step, groups)
        self.groups = groups
        self._played = environment_steps(groups.played)
        if self._episodes is not None:
            self._episodes.add(step, groups.played)
        success = success_by_type(groups.played, self.config.group_size)
        self.schedule.update(success)
        self._failures |= {task_type: 1.0 - mean(shares) for task_type, shares in success.items()}
        self._wanted = tasks_without_success(groups.episodes)
        if self.config.cloning.own_rows:
            self.own_successes.add(groups.played, group_size=self.config.group_size)
        returns = training_returns(groups.episodes, self.config.length)
        turns = self._judge(groups)
        advantages = token_advantages(groups.episodes, returns, self.config, turn_advantages=turns)
        self._train_started = time.perf_counter()
        share = self.processes.share
        rows = rollout_rows(
            share(groups.episodes),
            share(returns),
            idle=np.array(share(groups.idle.tolist()), dtype=np.bool_),
            group_size=self.config.group_size,
            filler_token=self.renderer.stop_token_ids[0],
        )
        trainer.row_advantages = [
            row if len(row) == len(ids) else np.zeros(len(ids))  # a filler
            for row, ids in zip(share(advantages), rows.completion_ids, strict=True)
        ]
        assert len(rows.completion_ids) == len(prompts)
        return rows.as_output()

    def _finish_step(self, step: int, control: TrainerControl) -> None:
        self._step = step
        self._seconds["train"] += time.perf_counter() - self._train_started
        for name, seconds in self.rollouts.seconds.items():
            self._seconds[name] += seconds
        self.rollouts.seconds.clear()
        record = self._record(step)
        self.environment_steps += record.environment_steps
        self._played = 0
        for name, seconds in self._seconds.items():
            self.totals[name] += seconds
        self._seconds.clear()
        self._step_logs.clear()
        self.monitor.add_step(record, self.groups.played)
        self.monitor.check_reference(record, tolerance=KL_TOLERANCE[self.config.dtype])
        if self.validator.is_due(step):
            self._validate(step)
        self._decide(step, control)

    def _decide(self, step: int, control: TrainerControl) -> None:
        """Whether to save the state, and whether to go on."""
        dead = self.processes.from_first(self.monitor.dead)
        if dead is not None:
            self.stopped = f"{dead.kind}: {dead.evidence}; {dead.remedy}"
            logger.error("step %d: training stops, its state is saved: %s", step, self.stopped)
        elif (budget := self.config.stop.environment_steps) is not None and self.environment_steps >= budget:
            self.stopped = f"{self.environment_steps} environment steps are used, of {budget}"
        elif self.validator.out_of_patience:
            self.stopped = f"no better policy in {self.config.stop.patience} validations"
            logger.info("step %d: training stops: %s", step, self.stopped)
        if self.stopped is not None and self.validator.tasks and self.validator.last_step < step:
            self._validate(step)
        control.should_training_stop = control.should_training_stop or self.stopped is not None
        if step % self.config.save_every == 0 or self.stopped is not None:
            control.should_save = True

    def _validate(self, step: int) -> None:
        started = time.perf_counter()
        validation, sampled = self.validator.measure(step, self.environment_steps)
        self.monitor.add_validation(validation)
        self._tell(describe_validation(validation, self.config.steps))
        if step == 0:
            values = self._predictions([episode.task for episode in sampled]) if self.config.curriculum else None
            self.schedule.calibrate(sampled, values)
        opened = [episode.success for episode in sampled if self.schedule.is_open(episode.task)]
        self.schedule.promote(mean([float(success) for success in opened if success is not None]))
        if self.validator.take(validation):
            self._save_policy()
        self.totals["validation"] += time.perf_counter() - started

    # What a warm start carries besides the policy.

    def _predictions(self, tasks: Sequence[Task]) -> dict[str, float] | None:
        if self.parts.critic is None:
            return None
        values = self.parts.critic.first_values(self.parts.family, tasks, self.renderer)
        return dict(zip((task.task_id for task in tasks), values.tolist(), strict=True))

    def _judge(self, groups: StepGroups) -> list[NDArray[np.float64]] | None:
        """Advantages of the turns; the critic learns from the episodes once it has judged them.

        It judges also what was replaced: the groups that are left have successes and failures alike, and a critic that
        saw these alone would take every task for one of intermediate difficulty.
        """
        critic = self.parts.critic
        if critic is None:
            return None
        started = time.perf_counter()
        turns = critic.judge(groups.played)
        critic.learn()
        self._seconds["critic"] += time.perf_counter() - started
        return turns[: len(groups.episodes)]

    def _cloning_term(self, model: Any) -> tuple[Any, float]:
        from offline_arl.trainers.run import pad_token_id

        successes = self.parts.successes
        assert successes is not None
        step, update = divmod(int(self.trainer.state.global_step), self.config.step_updates)
        rows = successes.draw(step, update, self._wanted, self._failures)
        rows += self.own_successes.draw(step, update, self.config.cloning.own_rows, self._failures)
        loss = successes.loss(model, rows, pad_token_id=pad_token_id(self.tokenizer))
        return loss, successes.coefficient(self.config.share_done(step, self.environment_steps))

    # Verification and records.

    def _check_sync(self, step: int, groups: StepGroups) -> None:
        self._checked = None
        report = self.rollouts.check(step, self.processes.share(groups.episodes))
        reports = [found for found in self.processes.gather([report]) if found is not None]
        if not reports:
            return
        worst = max(reports, key=lambda found: found.max_abs_difference)
        self._checked = worst.max_abs_difference
        self.sync_reports.append(worst)
        if worst.max_abs_difference > self.config.mismatch.tolerance and not self.trainer.correct_ratios:
            logger.warning("logprobs differ by up to %.1e; importance weights from now on", worst.max_abs_difference)
            self.trainer.correct_ratios = True

    def _record(self, step: int) -> StepRecord:
        logs, watch = self._step_logs, self.trainer.watch
        fillers = bool(self.groups.idle.all())  # nothing but fillers was computed: their KL and entropy say nothing
        return StepRecord(
            step=step,
            idle_groups=float(self.groups.idle.mean()),
            refilled_groups=self.groups.refilled,
            **summarize_episodes(self.groups.played, group_size=self.config.group_size),  # type: ignore[arg-type]
            kl=logs[0].get("kl") if self.config.kl_coefficient and not fillers else None,
            entropy=float("nan") if fillers else float(logs[0].get("entropy", float("nan"))),
            loss=mean([float(entry["loss"]) for entry in logs]),
            gradient_norm=max(float(entry.get("grad_norm", float("nan"))) for entry in logs),
            ratio_drift=watch.drift,
            clipped=mean([float(entry.get("clip_ratio/region_mean") or 0.0) for entry in logs]),
            mismatch=watch.mismatch,
            sync_difference=self._checked,
            cloning_loss=mean(watch.cloning) if watch.cloning else None,
            explained_variance=None if self.parts.critic is None else self.parts.critic.explained_variance,
            learning_rate=float(logs[0].get("learning_rate", float("nan"))),
            seconds=dict(self._seconds),
        )

    # From disk and to disk.

    def _restore(self) -> Monitor:
        """Everything but what Trainer restores itself; the history of the run."""
        state = {} if self._checkpoint is None else read_state(self._checkpoint)
        path = self.folder / "metrics.jsonl" if self.processes.first else self.folder / f".{self.processes.index}.jsonl"
        monitor = Monitor(
            path,
            setup=Setup.of(self.config, critic=self.parts.critic is not None, replay=self.parts.successes is not None),
            steady_tasks=self.config.curriculum is None,
            resume_at=state.get("step"),
            dead_steps=self.config.stop.dead_steps,
        )
        if self._checkpoint is not None:
            self._step = state["step"]
            self.environment_steps = state["environment_steps"]
            self.totals.update(state["totals"])
            self._failures = state["failures"]
            self.trainer.correct_ratios = state["correct_ratios"]
            self.schedule.restore(state["schedule"])
            for validation in self.processes.from_first(monitor.validations):
                self.validator.take(validation)
            if self.parts.critic is not None:
                self.parts.critic.restore(self._checkpoint / CRITIC_FOLDER)
            if self.config.cloning.own_rows:
                self.own_successes.restore(self._checkpoint / OWN_SUCCESSES_FOLDER)
        return monitor

    def _save_state(self, checkpoint: Path) -> None:
        state = {
            "step": self._step,
            "environment_steps": self.environment_steps,
            "totals": dict(self.totals),
            "failures": self._failures,
            "correct_ratios": self.trainer.correct_ratios,
            "schedule": self.schedule.state(),
        }
        parts: dict[str, Callable[[Path], None]] = {}
        if self.parts.critic is not None:
            parts[CRITIC_FOLDER] = self.parts.critic.save
        if self.config.cloning.own_rows:
            parts[OWN_SUCCESSES_FOLDER] = partial(self.own_successes.save, fingerprint=self.renderer.fingerprint)
        if self._episodes is not None:
            self._episodes.commit()
        write_state(checkpoint, state, parts, self.processes)

    def _save_policy(self) -> None:
        from offline_arl.models.policy import save_policy

        if not self.processes.first:
            return
        # The template in use may be a training variant; whatever serves the policy has to render with it.
        self.tokenizer.chat_template = self.renderer.chat_template
        save_policy(self.trainer.accelerator.unwrap_model(self.trainer.model), self.tokenizer, self.folder / "policy")
        if self.rollouts.conditioning is not None:
            self.rollouts.conditioning.save(self.folder / "policy")
