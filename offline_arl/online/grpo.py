"""Online GRPO from a warm start: our multi-turn rollouts, TRL's trainer, the best validated policy is kept.

Group-relative policy optimization (Shao et al. 2024, arXiv:2402.03300) with the choices that came after it: the
token-mean loss, "clip higher" and dynamic sampling of DAPO (Yu et al. 2025, arXiv:2503.14476), the constant normalizer
and missing deviation of Dr. GRPO (Liu et al. 2025, arXiv:2503.20783), sequence-level ratios of GSPO (Zheng et al. 2025,
arXiv:2507.18071), the leave-one-out baseline of RLOO (Ahmadian et al. 2024, arXiv:2402.14740); and with what a warm
start carries: turn-level advantages by an offline critic, a curriculum that it predicts, logged successes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from offline_arl.environments.protocol import EnvironmentFamily, Task
from offline_arl.errors import DataError, GateError, TemplateError, UsageError
from offline_arl.online.config import GrpoConfig
from offline_arl.online.diagnosis import Finding
from offline_arl.online.episode_store import EpisodeKeeper
from offline_arl.online.records import StepRecord, Validation
from offline_arl.online.run import OnlineParts, OnlineRun, Progress
from offline_arl.rollouts.isolation import kept_random_states
from offline_arl.rollouts.sync import SyncReport

if TYPE_CHECKING:
    from offline_arl.online.critic import TurnCritic
    from offline_arl.online.replay import LoggedSuccesses
    from offline_arl.rendering.renderer import Renderer


@dataclass(frozen=True)
class GrpoResult:
    """What online training gave."""

    policy_path: Path  # the best validated policy; without validation the last one
    best: Validation | None  # None without validation tasks
    start: Validation | None
    validations: list[Validation]
    history: list[StepRecord]
    findings: list[Finding]
    stopped: str | None  # why training ended before its steps were done
    environment_steps: int  # that training took, validations left out
    backend: str  # of the rollouts
    sync_reports: list[SyncReport]
    seconds: dict[str, float]  # in all: rollout, sync, train, critic, validation


def train_grpo(
    policy_path: str | Path,
    family: EnvironmentFamily,
    tasks: Sequence[Task],
    config: GrpoConfig,
    output_dir: str | Path,
    *,
    seed: int,
    validation_tasks: Sequence[Task] | None = None,
    critic: TurnCritic | None = None,
    successes: LoggedSuccesses | None = None,
    expected_fingerprint: str | None = None,
    renderer: Renderer | None = None,
    state_dir: str | Path | None = None,
    identity: dict[str, object] | None = None,
    progress: Progress | None = None,
    episodes: EpisodeKeeper | None = None,
    tell: Callable[[str], None] | None = None,
) -> GrpoResult:
    """Improve a policy by its own episodes.

    The policy at `policy_path` is also the KL reference: TRL loads both by this path, and training refuses to go on
    where their weights differ or the KL at step 0 is not 0. A step syncs the weights to the sampler (and checks the
    sync), samples groups of episodes, and makes `updates_per_step` updates. With validation tasks, greedy and sampled
    success are measured before the first step, every `validation_every` steps and at the end; kept is the best policy,
    and the start is a candidate (`validation.Validator`).

    Every `save_every` steps the whole state is written to `state_dir`. The same call goes on from the last one, and
    ends with the same losses as if it had not been interrupted (on a CPU in float32, sampled by transformers). Under
    `accelerate launch` every process calls this with the same arguments; they share out episodes and updates.

    Args:
        policy_path: Folder with the warm start: weights as safetensors, tokenizer.
        family: The environment.
        tasks: Training tasks.
        config: How to train.
        output_dir: Gets `policy/` (weights and tokenizer) and `metrics.jsonl`.
        seed: Of rollouts, task order and TRL.
        validation_tasks: Held-out tasks; None: no gate, no validation, the last policy is kept.
        critic: Offline values, for turn-level advantages and for what the curriculum predicts; None: neither.
        successes: Logged successes that are cloned beside the policy's loss; None: none are.
        expected_fingerprint: Of the weights at `policy_path` (`WarmStart.policy_fingerprint`); None: not checked.
        renderer: Of the policy's tokenizer; None: made from the tokenizer.
        state_dir: Where the state of an interrupted run lies; None: in `output_dir`.
        identity: What else makes two runs the same, JSON: a state of another run is not gone on from.
        progress: Called after each step.
        episodes: Told of the training episodes of each step, for example to store them (`EpisodeStore`), and of where
            training begins and a state is saved; None: they are not kept.
        tell: Called with lines for the person who waits: where training goes on, and each validation.

    Raises:
        UsageError: The policy cannot be loaded, there are fewer tasks than a step attempts, or training and
            validation share a task.
        TemplateError: The chat template rewrites earlier turns.
        GateError: The warm start succeeds too seldom, or the sampler does not run the trainer's weights.
        DataError: The weights or the KL at step 0 are not those of the warm start, or the sampler failed too often.
    """
    policy_path, output_dir = Path(policy_path), Path(output_dir)
    validation_tasks = [] if validation_tasks is None else list(validation_tasks)
    shared = {task.task_id for task in tasks} & {task.task_id for task in validation_tasks}
    if shared:
        raise UsageError(f"{len(shared)} tasks are in training and validation, such as {min(shared)}; separate them")
    if validation_tasks and config.gate is not None and len(validation_tasks) < config.gate.minimum_tasks:
        raise GateError(
            f"the gate needs {config.gate.minimum_tasks} validation tasks, and there are {len(validation_tasks)}; give "
            "more validation_tasks, where the environment has them, or judge by fewer: "
            f"--set gate.minimum_tasks={len(validation_tasks)}"
        )
    renderer = _renderer(policy_path) if renderer is None else renderer
    check_template(renderer)
    with kept_random_states():
        run = OnlineRun(
            policy_path,
            OnlineParts(family, tasks, validation_tasks, critic, successes),
            config,
            output_dir if state_dir is None else Path(state_dir),
            seed=seed,
            renderer=renderer,
            identity=dict(identity or {}),
            episodes=episodes,
            tell=tell,
        )
        try:
            _check_weights(run, expected_fingerprint)
            run.train(progress)
        finally:
            run.rollouts.close()
    return _result(run, output_dir)


def _renderer(policy_path: Path) -> Renderer:
    from offline_arl.models.policy import load_tokenizer
    from offline_arl.rendering import Renderer

    return Renderer(load_tokenizer(policy_path))


def check_template(renderer: Renderer) -> None:
    """An episode has to be one row of tokens.

    Raises:
        TemplateError: It is not, because earlier turns change or leave the context.
    """
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


def _check_weights(run: OnlineRun, expected_fingerprint: str | None) -> None:
    """Policy and reference have to be the warm start, bit for bit; a warm start knows its weights in float32."""
    from offline_arl.models.policy import load_model, policy_fingerprint

    found = run.fingerprint
    if expected_fingerprint is not None and run.config.dtype != "float32":
        found = policy_fingerprint(load_model(run.policy_path))
    if expected_fingerprint not in (None, found):
        raise DataError(
            f"{run.policy_path}: the weights are not those the warm start was made of; make the warm start anew"
        )
    for name, model in {"policy": run.trainer.model, "reference": run.trainer.ref_model}.items():
        if model is not None and policy_fingerprint(run.trainer.accelerator.unwrap_model(model)) != run.fingerprint:
            raise DataError(
                f"{run.policy_path}: the weights that TRL loaded as the {name} are not those of the warm start; "
                "save it with save_policy and pass the folder"
            )


def _result(run: OnlineRun, output_dir: Path) -> GrpoResult:
    if run.processes.first and run.folder != output_dir:
        output_dir.mkdir(parents=True, exist_ok=True)
        for name in ("policy", "metrics.jsonl"):
            shutil.rmtree(output_dir / name, ignore_errors=True)
            shutil.move(run.folder / name, output_dir / name)
    run.processes.wait()
    validations = run.monitor.validations
    return GrpoResult(
        policy_path=output_dir / "policy",
        best=run.validator.best,
        start=validations[0] if validations else None,
        validations=validations,
        history=run.monitor.history,
        findings=run.monitor.findings,
        stopped=run.stopped,
        environment_steps=run.environment_steps,
        backend=run.rollouts.backend,
        sync_reports=run.sync_reports,
        seconds=dict(run.totals),
    )
