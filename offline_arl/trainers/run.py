"""One run of a trainer, on one process or many: its arguments, this process's share, checkpoints, saving.

Under `accelerate launch` (or torchrun) every process makes the same run from the same arguments; they share out each
update, and the first one writes.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import PartialState
from transformers import TrainerCallback, TrainingArguments

from offline_arl.datasets.manifest import DatasetManifest
from offline_arl.datasets.updates import MicroBatchSampler
from offline_arl.errors import UsageError
from offline_arl.models.policy import policy_fingerprint
from offline_arl.trainers import resuming
from offline_arl.trainers.adapters import ADAPTER_FOLDER, save_adapter, with_adapter
from offline_arl.trainers.checkpoint import TrainingRecord, require_finite, save_checkpoint
from offline_arl.trainers.config import OF_NO_CONSEQUENCE, WeightedBCConfig
from offline_arl.trainers.model_checks import warn_of_half_precision
from offline_arl.trainers.optimizers import MuonWithAdamW
from offline_arl.trainers.tracking import tracker_callbacks, tracker_names
from offline_arl.trainers.update_trainer import Report, UpdateTrainer

_logger = logging.getLogger(__name__)

ResumeFrom = str | Path | Literal["latest"] | None

_SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")  # what accelerate launch may ask for by environment variable


@dataclass(frozen=True)
class RunFolders:
    """The name of a run for trackers, and where it keeps what outlives it when it is interrupted.

    `tell` is called with a line for people where the run goes on from a checkpoint; None: nobody is told.
    """

    name: str
    checkpoints: Path
    tensorboard: Path
    tell: Callable[[str], None] | None = None

    @classmethod
    def beside(cls, output_dir: Path) -> RunFolders:
        """`<name>.checkpoints` and `<name>.tensorboard` beside the policy."""
        place, name = output_dir.parent, output_dir.name
        return cls(name, place / f"{name}.checkpoints", place / f"{name}.tensorboard")


class TrainingRun:
    """What trainers on `UpdateTrainer` have in common besides their loss.

    Args:
        config: How to train.
        model: The policy to start from.
        batches: Row numbers of all batches of the run.
        folders: Of checkpoints and TensorBoard's events.
        seed: Of the run.
        algorithm: Its name, for the record of the policy.
        dataset: The manifest of what is trained on.
        resume_from: A checkpoint of an earlier run with the same arguments. "latest": the newest complete one in the
            folder of checkpoints if it is of such a run, else the beginning.
        identity: What else makes two runs the same, such as weights of rows.

    Raises:
        UsageError: The checkpoint is of another run, or a tracker is not installed.
    """

    def __init__(
        self, config: WeightedBCConfig, model: Any, batches: list[list[int]], *, folders: RunFolders, seed: int,
        algorithm: str, dataset: DatasetManifest, resume_from: ResumeFrom = None, **identity: Any,
    ) -> None:  # fmt: skip
        self.config = config
        self.seed = seed
        self._algorithm = algorithm
        self._dataset = dataset
        self.arguments = _arguments(config, folders, model, seed=seed, n_batches=len(batches))
        self.sampler = MicroBatchSampler(
            batches,
            batches_per_update=config.gradient_accumulation_steps,
            process=self.arguments.process_index,
            processes=self.arguments.world_size,
        )
        self.arguments.gradient_accumulation_steps = self.sampler.per_update
        same = {"algorithm": algorithm, "dataset": dataset.content_sha256, **identity}
        self.checkpoint = self._begin(resume_from, model, same)
        if self.checkpoint is not None and folders.tell is not None and self.arguments.process_index == 0:
            done = self.checkpoint.name.removeprefix("checkpoint-")
            folders.tell(f"going on after update {done}, from {self.checkpoint}")
        self.callbacks: list[TrainerCallback] = tracker_callbacks(
            config,
            folders.tensorboard,
            goes_on=self.checkpoint is not None,
            first=self.arguments.process_index == 0,
        )
        self._uses_cache = getattr(model.config, "use_cache", None)

    def adapted(self, model: Any, new_tokens: Sequence[int] = ()) -> Any:
        """The model to train: `model`, or adapters around it. Draws from torch's global random state.

        Args:
            model: The policy.
            new_tokens: Tokens that it has not met. Their embeddings train beside adapters, too.
        """
        trained = model
        if self.config.lora_rank is not None:
            trained = with_adapter(model, self.config, seed=self.seed, new_tokens=new_tokens)
        warn_of_half_precision(trained)
        return trained

    def trainer_arguments(self, trained: Any, tokenizer: Any, report: Report | None) -> dict[str, Any]:
        """What trainers of a policy's weights are told alike.

        Args:
            trained: What to train (`adapted`).
            tokenizer: Of the policy.
            report: Told (updates done, updates in all).

        Raises:
            UsageError: No token can fill rows.
        """
        return {
            "model": trained,
            "args": self.arguments,
            "sampler": self.sampler,
            "pad_token_id": pad_token_id(tokenizer),
            "share_prefix": self.config.share_prefix and not self.config.gradient_checkpointing,
            "report": report,
            "callbacks": self.callbacks,
            "optimizers": (make_optimizer(self.config, trained), None),
        }

    def train(self, trainer: UpdateTrainer) -> dict[str, float]:
        """Train, from the checkpoint on where there is one.

        Returns:
            `loss`: the mean of the run, `last_loss`: that of its last log line, both also over what came before an
            interruption; `updates`, and `seconds` of this call.
        """
        result = trainer.train(resume_from_checkpoint=None if self.checkpoint is None else str(self.checkpoint))
        lines = [entry for entry in trainer.state.log_history if "loss" in entry]
        steps = np.diff([0, *(entry["step"] for entry in lines)])
        return {
            "loss": float(np.average([entry["loss"] for entry in lines], weights=steps)),
            "last_loss": float(lines[-1]["loss"]),
            "updates": float(trainer.state.global_step),
            "seconds": float(result.metrics["train_runtime"]),
        }

    def save(
        self, trained: Any, model: Any, tokenizer: Any, output_dir: Path, *, metrics: dict[str, float],
        rehearsal_sha256: str | None = None,
    ) -> TrainingRecord:  # fmt: skip
        """The first process saves the policy, adapters merged into it and kept beside it; all leave together.

        Args:
            trained: What was trained (`adapted`).
            model: The policy inside it.
            tokenizer: Saved with it.
            output_dir: The policy's folder.
            metrics: For the record.
            rehearsal_sha256: For the record: what was rehearsed.

        Raises:
            DataError: Training diverged; nothing is written.
        """
        first = PartialState().is_main_process
        adapter = output_dir.with_name(f".{output_dir.name}.{uuid.uuid4().hex[:8]}.adapter")
        if self._uses_cache is not None:  # Trainer turns it off, and it would be saved so
            model.config.use_cache = self._uses_cache
        try:
            if trained is not model:
                require_finite(trained)
                if first:
                    save_adapter(trained, tokenizer, adapter, place=output_dir / ADAPTER_FOLDER)
                trained.merge_and_unload()
            model.eval()
            saved = save_checkpoint(
                model,
                tokenizer,
                output_dir,
                algorithm=self._algorithm,
                config=self.config.model_dump(mode="json"),
                seed=self.seed,
                dataset_fingerprint=self._dataset.fingerprint,
                dataset_sha256=self._dataset.content_sha256,
                metrics=metrics,
                rehearsal_sha256=rehearsal_sha256,
                write=first,
            )
            if adapter.is_dir():
                adapter.rename(output_dir / ADAPTER_FOLDER)
        finally:
            shutil.rmtree(adapter, ignore_errors=True)
        folder = Path(self.arguments.output_dir)
        if first and folder.is_dir() and not any(folder.iterdir()):  # Trainer makes it also for no checkpoint at all
            folder.rmdir()
        PartialState().wait_for_everyone()
        return saved

    def _begin(self, resume_from: ResumeFrom, model: Any, identity: dict[str, Any]) -> Path | None:
        """The checkpoint to go on from. Checkpoints of another run are removed, by the first process."""
        if self.config.save_steps is None and resume_from in (None, "latest"):
            return None
        settings = self.config.model_dump(mode="json", exclude=set(OF_NO_CONSEQUENCE))
        run = resuming.run_identity(settings=settings, seed=self.seed, start=policy_fingerprint(model), **identity)
        if resume_from not in (None, "latest"):
            resuming.check_owner(Path(str(resume_from)), run)
            return Path(str(resume_from))
        folder = Path(self.arguments.output_dir)
        if self.arguments.process_index == 0:
            resuming.begin(folder, run, resume=resume_from == "latest")
        PartialState().wait_for_everyone()
        return resuming.latest(folder)


def make_optimizer(config: WeightedBCConfig, trained: Any) -> MuonWithAdamW | None:
    """The optimizer of the configuration; None: Trainer makes the AdamW of its arguments."""
    if config.optimizer == "adamw":
        return None
    return MuonWithAdamW(
        trained,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        adam_beta2=config.adam_beta2,
    )


def pad_token_id(tokenizer: Any) -> int:
    """The token that fills rows: the pad token, else the end-of-sequence token.

    Raises:
        UsageError: There is neither.
    """
    pad: int | None = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if pad is None:
        raise UsageError("the tokenizer has neither a pad nor an end-of-sequence token; set tokenizer.pad_token")
    return pad


def _arguments(
    config: WeightedBCConfig, folders: RunFolders, model: Any, *, seed: int, n_batches: int
) -> TrainingArguments:
    updates = -(-n_batches // config.gradient_accumulation_steps)
    arguments = TrainingArguments(
        output_dir=str(folders.checkpoints),
        num_train_epochs=1,  # the sampler lays out all epochs
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.schedule,
        warmup_steps=round(config.warmup_fraction * updates),
        weight_decay=config.weight_decay,
        adam_beta2=config.adam_beta2,
        max_grad_norm=config.max_gradient_norm,
        optim="adamw_torch_fused",
        bf16=config.precision == "bfloat16",
        gradient_checkpointing=config.gradient_checkpointing,
        save_strategy="no" if config.save_steps is None else "steps",
        save_steps=config.save_steps or 500,
        save_total_limit=2,
        logging_steps=config.logging_steps,
        logging_nan_inf_filter=False,  # it would hide them; the trainer stops instead
        report_to=tracker_names(config) or "none",
        run_name=f"{folders.name}-seed{seed}",
        project=config.project,
        trackio_static_space_id=False,  # nothing leaves this machine
        disable_tqdm=not config.progress,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        # Experts that no token of a batch was sent to get no gradient; looking for such parameters costs time.
        ddp_find_unused_parameters=any("expert" in name for name, _ in model.named_parameters()),
        use_cpu=not torch.accelerator.is_available(),  # said aloud: only then do processes on a CPU find one another
        seed=seed,
    )
    sharded = [name for name in _SHARDED if os.environ.get(f"ACCELERATE_USE_{name}", "").lower() in ("true", "1")]
    if sharded:
        raise UsageError(
            f"{sharded[0]} shards the weights over processes, which training here does not support; choose multi-GPU "
            "in accelerate's configuration, or start with --processes"
        )
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != arguments.world_size:
        raise UsageError(
            f"{started} processes were started and see {arguments.world_size}; start them with --processes, "
            "accelerate launch or torchrun"
        )
    if arguments.n_gpu > 1:  # the loss reaches into the model, which replicas in one process do not allow
        _logger.warning(
            "%d GPUs are there and one is used; start with: accelerate launch --num_processes %d",
            arguments.n_gpu, arguments.n_gpu,
        )  # fmt: skip
        arguments._n_gpu = 1
    return arguments
