"""Online GRPO from a warm start: our multi-turn rollouts, TRL's trainer, the best validated policy is kept.

Group-relative policy optimization (Shao et al. 2024, arXiv:2402.03300) with the token-mean loss of DAPO (Yu et al.
2025, arXiv:2503.14476) or the constant normalizer of Dr. GRPO (Liu et al. 2025, arXiv:2503.20783).
"""

from __future__ import annotations

import logging
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_arl.datasets.return_conditioning import load_conditioning
from offline_arl.environments.protocol import EnvironmentFamily, Task
from offline_arl.errors import DataError, TemplateError, UsageError
from offline_arl.online.config import GrpoConfig
from offline_arl.online.curriculum import TaskSchedule
from offline_arl.online.monitors import Monitor, StepRecord, Validation, summarize_episodes
from offline_arl.online.rows import idle_groups, rollout_rows, usable
from offline_arl.rollouts.backends import make_sampler
from offline_arl.rollouts.collect import collect, step_seed
from offline_arl.rollouts.episode import Episode
from offline_arl.rollouts.isolation import kept_random_states
from offline_arl.rollouts.sync import SyncReport, check_report, compare_logprobs
from offline_arl.rollouts.weights import model_weights
from offline_arl.warmstart import check_gate

if TYPE_CHECKING:
    from offline_arl.online.trl_trainer import OnlineTrainer
    from offline_arl.rendering.renderer import Renderer
    from offline_arl.rollouts.sampler import Sampler

logger = logging.getLogger(__name__)

KL_TOLERANCE = {"float32": 1e-6, "bfloat16": 1e-4}

Progress = Callable[[int, int], None]  # (steps done, steps in all)
EpisodesCallback = Callable[[int, list[Episode]], None]  # (step, its episodes)


@dataclass(frozen=True)
class GrpoResult:
    """What online training gave."""

    policy_path: Path  # the best validated policy; without validation the last one
    best: Validation | None  # None without validation tasks
    start: Validation | None
    validations: list[Validation]
    history: list[StepRecord]
    alarms: dict[str, int]
    backend: str  # of the rollouts
    sync_reports: list[SyncReport]
    seconds: dict[str, float]  # in all: rollout, sync, train, validation


def train_grpo(
    policy_path: str | Path,
    family: EnvironmentFamily,
    tasks: Sequence[Task],
    config: GrpoConfig,
    output_dir: str | Path,
    *,
    seed: int,
    validation_tasks: Sequence[Task] | None = None,
    expected_fingerprint: str | None = None,
    renderer: Renderer | None = None,
    progress: Progress | None = None,
    on_episodes: EpisodesCallback | None = None,
) -> GrpoResult:
    """Improve a policy by its own episodes.

    The policy at `policy_path` is also the KL reference: TRL loads both by this path, and training refuses to go on
    where their weights differ or the KL at step 0 is not 0. A step syncs the weights to the sampler (and checks the
    sync), samples groups of episodes, and makes one update. With validation tasks, greedy and sampled success are
    measured before the first step, every `validation_every` steps and at the end, always on the same tasks with the
    same seeds; kept is the policy with the best mean of the two among those whose greedy success is not below that
    of the start, which is itself a candidate.

    Args:
        policy_path: Folder with the warm start: weights as safetensors, tokenizer.
        family: The environment.
        tasks: Training tasks.
        config: How to train.
        output_dir: Gets `policy/` (weights and tokenizer) and `metrics.jsonl`.
        seed: Of rollouts, task order and TRL.
        validation_tasks: Held-out tasks; None: no gate, no validation, the last policy is kept.
        expected_fingerprint: Of the weights at `policy_path` (`WarmStart.policy_fingerprint`); None: not checked.
        renderer: Of the policy's tokenizer; None: made from the tokenizer.
        progress: Called after each step.
        on_episodes: Called with the training episodes of each step, for example to store them.

    Raises:
        UsageError: The policy cannot be loaded, there are fewer tasks than a step attempts, or training and
            validation share a task, or several processes were started.
        TemplateError: The chat template rewrites earlier turns.
        GateError: The warm start succeeds too seldom, or the sampler does not run the trainer's weights.
        DataError: The weights or the KL at step 0 are not those of the warm start.
    """
    shared = {task.task_id for task in tasks} & {task.task_id for task in validation_tasks or ()}
    if shared:
        raise UsageError(f"{len(shared)} tasks are in training and validation, such as {min(shared)}; separate them")
    with kept_random_states():
        run = _Run(Path(policy_path), family, tasks, config, Path(output_dir), seed, renderer, on_episodes)
        try:
            run.check_weights(expected_fingerprint)
            if validation_tasks is not None:
                run.validation_tasks = list(validation_tasks)
                run.validate(0)
            run.train(progress)
        finally:
            run.sampler.close()
    return run.result()


class _Run:
    """The state of one training, and the functions that TRL calls back."""

    def __init__(
        self,
        policy_path: Path,
        family: EnvironmentFamily,
        tasks: Sequence[Task],
        config: GrpoConfig,
        output_dir: Path,
        seed: int,
        renderer: Renderer | None,
        on_episodes: EpisodesCallback | None,
    ) -> None:
        from offline_arl.models.policy import load_policy, policy_fingerprint
        from offline_arl.rendering import Renderer

        model, self.tokenizer = load_policy(policy_path, config.dtype)
        self.fingerprint = policy_fingerprint(model)
        del model
        self.renderer = Renderer(self.tokenizer) if renderer is None else renderer
        _check_template(self.renderer)
        self.policy_path = policy_path
        self.conditioning = load_conditioning(policy_path)  # of a policy that reads returns: asked for the best
        self.family = family
        self.config = config
        self.output_dir = output_dir
        self.seed = seed
        self.validation_tasks: list[Task] = []
        self.monitor = Monitor(output_dir / "metrics.jsonl", steady_tasks=config.curriculum is None)
        self.sync_reports: list[SyncReport] = []
        self._on_episodes = on_episodes
        generator = np.random.default_rng([seed, 1])
        self._schedule = TaskSchedule(tasks, curriculum=config.curriculum, generator=generator)
        self._synced_step = 0  # the sampler starts with the weights of the warm start
        self._checked: SyncReport | None = None
        self._episodes: list[Episode] = []  # of the current step
        self._idle = np.zeros(0, dtype=np.bool_)
        self._train_started = 0.0
        self._best: Validation | None = None
        self._seconds: dict[str, float] = defaultdict(float)  # of the current step
        self._totals: dict[str, float] = defaultdict(float)
        self._schedule.check(config.prompts_per_step)
        self.trainer = self._make_trainer()
        self.sampler: Sampler = make_sampler(
            policy_path,
            stop_token_ids=self.renderer.stop_token_ids,
            backend=config.backend,
            max_model_len=config.max_total_tokens,
            dtype=config.dtype,
        )

    def check_weights(self, expected_fingerprint: str | None) -> None:
        """Policy and reference have to be the warm start, bit for bit."""
        from offline_arl.models.policy import policy_fingerprint

        if expected_fingerprint not in (None, self.fingerprint):
            raise DataError(
                f"{self.policy_path}: the weights are not those the warm start was made of; make the warm start anew"
            )
        models = {"policy": self.trainer.model, "reference": self.trainer.ref_model}
        for name, model in models.items():
            if (
                model is not None
                and policy_fingerprint(self.trainer.accelerator.unwrap_model(model)) != self.fingerprint
            ):
                raise DataError(
                    f"{self.policy_path}: the weights that TRL loaded as the {name} are not those of the warm start; "
                    "save it with save_policy and pass the folder"
                )

    def train(self, progress: Progress | None) -> None:
        """All steps."""
        from offline_arl.online.callbacks import step_callback

        total = self.config.steps

        def finished(step: int, logs: dict[str, Any]) -> None:
            self._finish_step(step, logs)
            if self.validation_tasks and (step % self.config.validation_every == 0 or step == total):
                self.validate(step)
            if progress is not None:
                progress(step, total)

        self.trainer.add_callback(step_callback(finished))
        self.trainer.train()
        if self._best is None:
            self._save()

    def validate(self, step: int) -> None:
        """Measure the current policy on the validation tasks and keep it where it is the best so far."""
        self._sync(step)
        started = time.perf_counter()
        greedy = self._collect(self.validation_tasks, "validation", 0, temperature=0.0)
        sampled = self._collect(self.validation_tasks, "validation", 0, temperature=self.config.temperature)
        if step == 0 and self.config.gate is not None:
            gate = self.config.gate
            check_gate(sampled, minimum_success=gate.minimum_success, minimum_tasks=gate.minimum_tasks)
        validation = Validation(step, _success(greedy), _success(sampled), len(self.validation_tasks))
        self.monitor.add_validation(validation)
        start = self.monitor.validations[0]
        if self._best is None or (validation.greedy >= start.greedy and _score(validation) > _score(self._best)):
            self._best = validation
            self._save()
        self._totals["validation"] += time.perf_counter() - started

    def rollout(self, prompts: list[str], trainer: OnlineTrainer) -> dict[str, list[object]]:
        """TRL's `rollout_func`: the episodes of one step. The prompts only say how many."""
        config, step = self.config, int(trainer.state.global_step)
        self._sync(step)
        started = time.perf_counter()
        drawn = self._schedule.draw(len(prompts) // config.group_size)
        episodes = self._collect(drawn, "training", step, temperature=config.temperature, group_size=config.group_size)
        self._seconds["rollout"] += time.perf_counter() - started
        self._check_sync(step, episodes)
        self._episodes = episodes
        if self._on_episodes is not None:
            self._on_episodes(step, episodes)
        self._schedule.update(_success_by_type(episodes, config.group_size))
        self._train_started = time.perf_counter()
        self._idle = idle_groups(episodes, group_size=config.group_size, by=config.group_gate)
        filler = self.renderer.stop_token_ids[0]
        rows = rollout_rows(episodes, idle=self._idle, group_size=config.group_size, filler_token=filler)
        return rows.as_output()

    def result(self) -> GrpoResult:
        """The outcome, once trained."""
        validations = self.monitor.validations
        return GrpoResult(
            policy_path=self.output_dir / "policy",
            best=self._best,
            start=validations[0] if validations else None,
            validations=validations,
            history=self.monitor.history,
            alarms=self.monitor.alarms,
            backend=self.sampler.backend,
            sync_reports=self.sync_reports,
            seconds=dict(self._totals),
        )

    def _make_trainer(self) -> OnlineTrainer:
        from datasets import Dataset
        from transformers import PrinterCallback

        from offline_arl.models.policy import load_tokenizer

        tokenizer = load_tokenizer(self.policy_path)
        tokenizer.padding_side = "left"
        slots = [str(slot) for slot in range(self.config.steps * self.config.prompts_per_step)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*rollout_func.*")  # experimental in TRL; pinned and tested
            warnings.filterwarnings("ignore", message="TRL currently supports vLLM")  # TRL's own vLLM code is not used
            from offline_arl.online.trl_trainer import OnlineTrainer, trl_arguments

            trainer = OnlineTrainer(
                model=str(self.policy_path),
                reward_funcs=_episode_return,
                args=trl_arguments(self.config, self.output_dir, seed=self.seed),
                train_dataset=Dataset.from_dict({"prompt": slots}),
                processing_class=tokenizer,
                rollout_func=self.rollout,
            )
        if trainer.accelerator.num_processes > 1:
            raise UsageError("online training runs in one process; start it without accelerate launch or torchrun")
        trainer.importance_cap = self.config.importance_cap
        trainer.remove_callback(PrinterCallback)
        return trainer

    def _collect(
        self, tasks: Sequence[Task], purpose: str, step: int, *, temperature: float, group_size: int = 1
    ) -> list[Episode]:
        return collect(
            self.family,
            tasks,
            self.sampler,
            self.renderer,
            temperature=temperature,
            max_tokens_per_step=self.config.max_tokens_per_step,
            max_total_tokens=self.config.max_total_tokens,
            seed=step_seed(self.seed, purpose, 0, step),
            group_size=group_size,
            policy=f"grpo-step-{step}" if purpose == "training" else None,
            conditioning=self.conditioning,
        )

    def _sync(self, step: int) -> None:
        """Give the sampler the weights after `step` updates, unless it has them."""
        if step == self._synced_step:
            return
        started = time.perf_counter()
        self.sampler.load_weights(model_weights(self._model()))
        self._synced_step = step
        self._seconds["sync"] += time.perf_counter() - started

    def _check_sync(self, step: int, episodes: Sequence[Episode]) -> None:
        """Compare the logprobs of some of the episodes with the trainer's."""
        config = self.config
        self._checked = None
        if step >= config.sync_check_first and step % config.sync_check_every != 0:
            return
        started = time.perf_counter()
        checked = [episode for episode in episodes if usable(episode)][:: config.group_size]
        checked = checked[: config.sync_check_episodes]
        if not checked:
            return
        report = compare_logprobs(
            self._model(),
            [episode.token_ids.tolist() for episode in checked],
            [episode.logprobs for episode in checked],
            temperature=config.temperature,
        )
        if config.on_mismatch == "refuse":
            check_report(report, config.sync_tolerance, backend=self.sampler.backend)
        elif report.max_abs_difference > config.sync_tolerance and not self.trainer.correct_ratios:
            logger.warning("logprobs differ by up to %.1e; importance weights from now on", report.max_abs_difference)
            self.trainer.correct_ratios = True
        self._checked = report
        self.sync_reports.append(report)
        self._seconds["sync"] += time.perf_counter() - started

    def _finish_step(self, step: int, logs: dict[str, Any]) -> None:
        self._seconds["train"] += time.perf_counter() - self._train_started
        record = StepRecord(
            step=step,
            idle_groups=float(self._idle.mean()),
            **summarize_episodes(self._episodes),  # type: ignore[arg-type]
            kl=logs.get("kl") if self.config.kl_coefficient else None,
            entropy=float(logs.get("entropy", float("nan"))),
            loss=float(logs.get("loss", float("nan"))),
            gradient_norm=float(logs.get("grad_norm", float("nan"))),
            sync_difference=None if self._checked is None else self._checked.max_abs_difference,
            seconds=dict(self._seconds),
        )
        for name, seconds in self._seconds.items():
            self._totals[name] += seconds
        self._seconds.clear()
        self.monitor.add_step(record)
        self.monitor.check_reference(record, tolerance=KL_TOLERANCE[self.config.dtype])

    def _save(self) -> None:
        from offline_arl.models.policy import save_policy

        # The template in use may be a training variant; whatever serves the policy has to render with it.
        self.tokenizer.chat_template = self.renderer.chat_template
        save_policy(self._model(), self.tokenizer, self.output_dir / "policy")
        if self.conditioning is not None:
            self.conditioning.save(self.output_dir / "policy")

    def _model(self) -> Any:
        return self.trainer.accelerator.unwrap_model(self.trainer.model)


def _episode_return(*, episode_return: list[float | None], **_: Any) -> list[float | None]:
    """TRL's reward function: the returns that `rollout_func` handed over."""
    return episode_return


def _check_template(renderer: Renderer) -> None:
    if renderer.prefix_preserving:
        return
    if renderer.history_steps is not None:
        raise TemplateError(
            f"the policy sees a window of its history (history_steps {renderer.history_steps}), so an episode is not "
            "one row of tokens; online training needs a policy that sees the whole chat"
        )
    from offline_arl.rendering.template import training_variant

    variant = training_variant(renderer.tokenizer)
    remedy = (
        "use TRL's training variant of it: Renderer(tokenizer, training_template=True)"
        if variant is not None
        else "TRL ships no training variant of it; pass a template that keeps earlier turns: "
        "Renderer(tokenizer, chat_template=...)"
    )
    raise TemplateError(f"the chat template rewrites earlier turns, so an episode is not one row of tokens; {remedy}")


def _success(episodes: Sequence[Episode]) -> float:
    verdicts = [episode.success for episode in episodes if episode.success is not None]
    if not verdicts:
        raise DataError("the environment judged no validation episode; look at the log of the rollouts")
    return float(np.mean(verdicts))


def _score(validation: Validation) -> float:
    return (validation.greedy + validation.sampled) / 2


def _success_by_type(episodes: Sequence[Episode], group_size: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for start in range(0, len(episodes), group_size):
        verdicts = [e.success for e in episodes[start : start + group_size] if e.success is not None]
        if verdicts:
            found[episodes[start].task.task_type].append(float(np.mean(verdicts)))
    return found
