"""The one place where TRL's `GRPOTrainer` is subclassed.

Six methods are wrapped, each by calling TRL's own. `_generate_and_score_completions`: the advantages in its output
are replaced by ours, [B, T], weighed where sampler and trainer disagree. `_compute_loss`: a cloning term is added to
its result. `training_step`: not called for the rest of a batch that the policy has moved too far from.
`_get_per_token_logps_and_entropies`: the same numbers from the same fused output layer on fewer tokens; TRL's own for
what is not plain text. `create_optimizer`: Muon on request. `create_scheduler`: the schedule is over with the run's
budget. The version of TRL is pinned and `tests/contracts/test_trl_contract.py` checks what is relied on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor
from transformers import PrinterCallback

from offline_arl.models.policy import load_tokenizer, supports_shared_prefix
from offline_arl.objectives import mismatch_weights
from offline_arl.online.compact import CompactLayout, compact_layout, completion_places
from offline_arl.online.config import GrpoConfig, MismatchConfig
from offline_arl.trainers.adapters import lora_settings
from offline_arl.trainers.optimizers import MuonWithAdamW

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="TRL currently supports vLLM")  # TRL's own vLLM code is not used
    from trl import GRPOConfig as TrlConfig
    from trl import GRPOTrainer

_CHUNK_ROWS = 32  # of similar length; more rows waste padding, fewer waste the shared prefix

CloningTerm = Callable[[Any], tuple[Tensor, float]]  # model -> (cloning loss in nats a token, its coefficient)
RolloutFunction = Callable[..., dict[str, list[object]]]  # (prompts, trainer) -> rows, as TRL takes them


class BatchWatch:
    """What the updates of one batch of rollouts say about it; sums over the tokens of this process."""

    def __init__(self) -> None:
        self.drift: float | None = None  # mean |log(new : old)| a token before the latest update
        self.mismatch: float | None = None  # mean |trainer - sampler| a token before the first update
        self.cloning: list[float] = []


class OnlineTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer with our advantages, on compact batches.

    Attributes:
        row_advantages: Advantages of the completion tokens of each row of the next batch, set by `rollout_func`; None
            leaves TRL's.
        mismatch: How ratios are bounded once `correct_ratios` is set.
        cloning: Gives the term that is added to the loss of each update.
        reuse_limit: Mean |log ratio| a token beyond which the other updates of a batch are left out.
        muon: Muon trains the hidden matrices, in place of AdamW alone.
        share_done: Gives the share of the run that is done, where that can be ahead of its updates.
        watch: Of the current batch.
    """

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        super().__init__(*arguments, **fields)
        self.remove_callback(PrinterCallback)  # standard output belongs to the caller
        self.row_advantages: Sequence[NDArray[np.float64]] | None = None
        self.mismatch = MismatchConfig()
        self.correct_ratios = False
        self.cloning: CloningTerm | None = None
        self.reuse_limit = float("inf")
        self.muon = False
        self.share_done: Callable[[], float] | None = None
        self.watch = BatchWatch()
        self._logprobs: Tensor | None = None  # of the latest forward pass with gradients
        self._window: list[tuple[float, float, int]] = []  # (sum of drift, of mismatch, tokens) of micro-batches

    def create_optimizer(self, *arguments: Any, **fields: Any) -> Any:
        """Muon where `muon` is set, with the settings of the arguments; else TRL's AdamW."""
        if self.muon and getattr(self, "optimizer", None) is None:
            self.optimizer = MuonWithAdamW(
                self.model,
                learning_rate=self.args.learning_rate,
                weight_decay=self.args.weight_decay,
                adam_beta2=self.args.adam_beta2,
            )
        return super().create_optimizer(*arguments, **fields)

    def create_scheduler(self, num_training_steps: int, *arguments: Any, **fields: Any) -> Any:
        """The schedule of the arguments; where the run is further than its updates say, read at the later update."""
        scheduler = super().create_scheduler(num_training_steps, *arguments, **fields)
        if self.share_done is not None:
            warmup = self.args.get_warmup_steps(num_training_steps)
            scheduler.lr_lambdas = [
                _ahead(factor, self.share_done, warmup=warmup, updates=num_training_steps)
                for factor in scheduler.lr_lambdas
            ]
        return scheduler

    def create_model_card(self, *arguments: Any, **fields: Any) -> None:
        """Checkpoints are not published."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """TRL's, or nothing at all where the policy has moved too far from the one that sampled the batch."""
        position = self._step % (self.args.steps_per_generation * self.num_iterations)
        if position == 0:
            self.watch = BatchWatch()
        if position and (self.watch.drift or 0.0) > self.reuse_limit:
            # No gradient at all: the optimizer leaves parameters without one alone, momentum included.
            self._step += 1
            return torch.zeros((), device=self.accelerator.device)
        if self._step % self.args.gradient_accumulation_steps == 0:
            self._window.clear()
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        if self._step % self.args.gradient_accumulation_steps == 0:
            self._note_window(first=position < self.args.gradient_accumulation_steps)
        return loss

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        completions = output["completion_ids"]
        if self.row_advantages is not None:
            advantages = torch.zeros(completions.shape, device=completions.device)
            for row, values in enumerate(self.row_advantages):
                advantages[row, : len(values)] = torch.from_numpy(values).float()
            output["advantages"] = advantages
        if self.correct_ratios:
            advantages = output["advantages"]
            advantages = advantages[:, None] if advantages.dim() == 1 else advantages
            output["advantages"] = advantages * self._mismatch_weights(output)
        return output

    def _mismatch_weights(self, output: dict[str, Any]) -> Tensor:
        """[B, T] bounded ratios trainer : sampler.

        A weight of at least 0 times the advantage equals TRL's own correction on clipped losses.
        """
        logprobs = output.get("old_per_token_logps")
        if logprobs is None:
            with torch.no_grad():
                logprobs, _, _ = self._get_per_token_logps_and_entropies(
                    self.model,
                    torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1),
                    torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1),
                    output["completion_ids"].shape[1],
                    batch_size=self.args.per_device_train_batch_size,
                )
        return mismatch_weights(
            logprobs,
            output["sampling_per_token_logps"],
            _loss_mask(output).bool(),
            level=self.mismatch.level,
            bound=self.mismatch.bound,
            cap=self.mismatch.cap,
            floor=self.mismatch.floor,
        )

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss: Tensor = super()._compute_loss(model, inputs)
        self._note_ratios(inputs)
        if self.cloning is not None and self._step % self.args.gradient_accumulation_steps == 0:
            # Once an update, and past the wrapper of several processes: its hooks sit on the parameters.
            term, coefficient = self.cloning(self.accelerator.unwrap_model(model))
            self.watch.cloning.append(float(term.detach()))
            loss = loss + coefficient * term
        return loss

    def _note_ratios(self, inputs: dict[str, Any]) -> None:
        assert self._logprobs is not None
        mask = _loss_mask(inputs).bool()
        new = self._logprobs[mask]
        old = inputs.get("old_per_token_logps")
        sampled = inputs["sampling_per_token_logps"][mask]
        drift = 0.0 if old is None else float((new - old[mask]).abs().sum())
        mismatch = float((new - sampled).abs().nan_to_num(nan=0.0).sum())
        self._window.append((drift, mismatch, int(mask.sum())))
        self._logprobs = None

    def _note_window(self, *, first: bool) -> None:
        """After all micro-batches of an update: means over the tokens of all processes."""
        sums = torch.tensor(self._window, dtype=torch.float64, device=self.accelerator.device).sum(dim=0)
        drift, mismatch, tokens = self.accelerator.reduce(sums, reduction="sum").tolist()
        if first:
            self.watch.mismatch = mismatch / tokens if tokens else None
        if self.args.steps_per_generation * self.num_iterations > self.args.gradient_accumulation_steps:
            self.watch.drift = drift / tokens if tokens else 0.0

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **modalities: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Logprobs and entropies [B, logits_to_keep] of the completion tokens; 0 on padding.

        TRL pads prompts on the left and completions on the right, each to the longest of the generation batch; most
        of that is padding, and what remains begins with the same system prompt in every row. Here rows are moved to
        the left, sorted by length, cut to the longest of their chunk, and the prefix that they share is encoded once
        a chunk, with gradients.
        """
        if compute_aux_loss or any(value is not None for value in modalities.values()):
            result: tuple[Tensor, Tensor | None, Tensor | None] = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, compute_aux_loss,
                **modalities,
            )  # fmt: skip
            self._logprobs = result[0].detach()
            return result
        layout = compact_layout(input_ids, attention_mask, logits_to_keep)
        inner = self._inner_model(model) if layout.shared_prefix else None
        shared = layout.shared_prefix if inner is not None else 0
        logprobs = torch.zeros(input_ids.shape[0], logits_to_keep, device=input_ids.device)
        entropies = torch.zeros_like(logprobs) if compute_entropy else None
        order = layout.lengths.argsort()
        for rows in torch.split(order, min(batch_size or _CHUNK_ROWS, _CHUNK_ROWS)):
            width = int(layout.lengths[rows].max())
            outputs = self._fused_forward(model, inner, layout, rows, width)
            # Position t of the fused output scores token shared + t + 1.
            places, slots = completion_places(layout, rows, width, shared)
            logprobs = logprobs.index_put((rows[places[0]], slots), outputs.log_probs[places].float())
            if entropies is not None:
                entropies = entropies.index_put((rows[places[0]], slots), outputs.entropy[places].float())
        self._logprobs = logprobs.detach()
        return logprobs, entropies, None

    def _fused_forward(self, model: Any, inner: Any | None, layout: CompactLayout, rows: Tensor, width: int) -> Any:
        shared = 0 if inner is None else layout.shared_prefix
        ids = layout.token_ids[rows, :width]
        mask = layout.attention_mask[rows, :width]
        labels = ids.masked_fill(~layout.is_completion[rows, :width], -100)[:, shared:]
        arguments: dict[str, Any] = {}
        with self.accelerator.autocast():
            if inner is not None:
                cache = inner.base_model(input_ids=ids[:1, :shared], use_cache=True).past_key_values
                cache.batch_repeat_interleave(len(rows))
                arguments["past_key_values"] = cache
            return model(input_ids=ids[:, shared:], attention_mask=mask, labels=labels, fused_lm_head=True, **arguments)

    def _inner_model(self, model: Any) -> Any | None:
        """The causal language model under adapters, where a prefix can be encoded once; None where it cannot.

        A call of the inner model would bypass the hooks of a wrapper (DDP, FSDP). Adapters sit in its layers.
        """
        unwrapped = self.accelerator.unwrap_model(model)
        if unwrapped is not model:
            return None
        inner = unwrapped.get_base_model() if hasattr(unwrapped, "peft_config") else unwrapped
        return inner if supports_shared_prefix(inner) else None


def _ahead(
    factor: Callable[[int], float], share_done: Callable[[], float], *, warmup: int, updates: int
) -> Callable[[int], float]:
    """A schedule that has no more updates left than its run; the warmup is one of updates."""

    def factor_ahead(update: int) -> float:
        return factor(update if update < warmup else max(update, round(share_done() * updates)))

    return factor_ahead


def _loss_mask(batch: dict[str, Any]) -> Tensor:
    mask: Tensor = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def trl_arguments(config: GrpoConfig, output_dir: Path, *, seed: int, processes: int = 1) -> TrlConfig:
    """Our configuration in TRL's words.

    Rollouts, advantages and checkpoints are ours: TRL's own vLLM stays off, `save_strategy` is "no" (a callback asks
    for checkpoints between two batches of rollouts) and nothing is logged.
    """
    episodes = config.prompts_per_step * config.group_size // processes
    part = episodes // config.minibatches
    rows = min(config.rows_per_batch, part)
    while part % rows:
        rows -= 1
    return TrlConfig(
        output_dir=str(output_dir),
        max_steps=config.total_updates,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=part // rows,
        steps_per_generation=episodes // rows,
        num_iterations=config.updates_per_step,
        num_generations=config.group_size,
        max_completion_length=config.max_total_tokens,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.schedule,
        warmup_steps=config.warmup_steps * config.step_updates,
        max_grad_norm=config.max_gradient_norm,
        weight_decay=0.0,
        beta=config.kl_coefficient,
        loss_type=config.loss_type,
        scale_rewards="none",  # the advantages are ours
        importance_sampling_level=config.importance_level,
        epsilon=config.clip_low,
        epsilon_high=config.clip_high,
        entropy_coef=config.entropy_coefficient,
        temperature=config.temperature,
        use_vllm=False,
        bf16=config.dtype == "bfloat16",
        model_init_kwargs={"dtype": config.dtype},
        gradient_checkpointing=False,
        disable_dropout=True,
        seed=seed,
        shuffle_dataset=False,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_strategy="steps",
        logging_steps=1,
        log_completions=False,
        report_to=[],
        save_strategy="no",
        save_total_limit=2,
        disable_tqdm=True,
        use_cpu=not torch.accelerator.is_available(),  # said aloud: only then do processes on a CPU find one another
    )


def make_trainer(
    policy_path: Path, config: GrpoConfig, output_dir: Path, rollout: RolloutFunction, *, seed: int
) -> OnlineTrainer:
    """A trainer of the policy at a path, which is also its KL reference; with `config.lora` it trains adapters alone.

    Raises:
        MissingDependencyError: Adapters are wanted and peft is not installed.
    """
    tokenizer = load_tokenizer(policy_path)
    tokenizer.padding_side = "left"
    arguments = trl_arguments(config, output_dir, seed=seed, processes=PartialState().num_processes)
    slots = [str(slot) for slot in range(config.steps * config.prompts_per_step)]
    lora = config.lora
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*rollout_func.*")  # experimental in TRL; pinned and tested
        trainer = OnlineTrainer(
            model=str(policy_path),
            reward_funcs=_episode_return,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": slots}),
            processing_class=tokenizer,
            rollout_func=rollout,
            peft_config=lora and lora_settings(rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout),
        )
    trainer.mismatch = config.mismatch
    trainer.reuse_limit = config.reuse_limit
    trainer.muon = config.optimizer == "muon"
    return trainer


def _episode_return(*, episode_return: list[float | None], **_: Any) -> list[float | None]:
    """TRL's reward function: the returns that `rollout_func` handed over."""
    return episode_return
