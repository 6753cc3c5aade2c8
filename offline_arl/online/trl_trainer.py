"""The one place where TRL's `GRPOTrainer` is subclassed.

Two private methods are wrapped. `_generate_and_score_completions` is called and its advantages are weighed when
sampler and trainer disagree. `_get_per_token_logps_and_entropies` is called for what is not plain text; for the rest
it computes the same numbers with the same fused output layer on fewer tokens. The version of TRL is pinned and
`tests/contracts/test_trl_contract.py` checks what is relied on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from trl import GRPOConfig as TrlConfig
from trl import GRPOTrainer

from offline_arl.models.policy import MIN_SHARED_PREFIX, supports_shared_prefix

if TYPE_CHECKING:
    from offline_arl.online.config import GrpoConfig


_CHUNK_ROWS = 32  # of similar length; more rows waste padding, fewer waste the shared prefix


class OnlineTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer on compact batches, with importance weights once `correct_ratios` is set."""

    correct_ratios = False
    importance_cap = 2.0

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.correct_ratios:
            output["advantages"] = output["advantages"][:, None] * self._importance_weights(output)
        return output

    def _importance_weights(self, output: dict[str, Any]) -> Tensor:
        """[B, T] min(trainer probability / sampler probability, cap) of each completion token.

        A weight of at least 0 times the advantage equals TRL's own token-level correction on clipped losses.
        """
        with torch.no_grad():
            logprobs, _, _ = self._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1),
                torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1),
                output["completion_ids"].shape[1],
                batch_size=self.args.per_device_train_batch_size,
            )
        weights: Tensor = (logprobs - output["sampling_per_token_logps"]).exp().clamp(max=self.importance_cap)
        return weights

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
            return result
        layout = compact_layout(input_ids, attention_mask, logits_to_keep)
        shared = layout.shared_prefix if self._can_share(model) else 0
        logprobs = torch.zeros(input_ids.shape[0], logits_to_keep, device=input_ids.device)
        entropies = torch.zeros_like(logprobs) if compute_entropy else None
        order = layout.lengths.argsort()
        for rows in torch.split(order, min(batch_size or _CHUNK_ROWS, _CHUNK_ROWS)):
            width = int(layout.lengths[rows].max())
            outputs = self._fused_forward(model, layout, rows, width, shared)
            # Position t of the fused output scores token shared + t + 1.
            places, slots = completion_places(layout, rows, width, shared)
            logprobs = logprobs.index_put((rows[places[0]], slots), outputs.log_probs[places].float())
            if entropies is not None:
                entropies = entropies.index_put((rows[places[0]], slots), outputs.entropy[places].float())
        return logprobs, entropies, None

    def _fused_forward(self, model: Any, layout: CompactLayout, rows: Tensor, width: int, shared: int) -> Any:
        ids = layout.token_ids[rows, :width]
        mask = layout.attention_mask[rows, :width]
        labels = ids.masked_fill(~layout.is_completion[rows, :width], -100)[:, shared:]
        arguments: dict[str, Any] = {}
        with self.accelerator.autocast():
            if shared:
                base = self.accelerator.unwrap_model(model).base_model
                cache = base(input_ids=ids[:1, :shared], use_cache=True).past_key_values
                cache.batch_repeat_interleave(len(rows))
                arguments["past_key_values"] = cache
            return model(input_ids=ids[:, shared:], attention_mask=mask, labels=labels, fused_lm_head=True, **arguments)

    def _can_share(self, model: Any) -> bool:
        # A second call of the inner model would bypass the hooks of a wrapper (DDP, FSDP, PEFT).
        unwrapped = self.accelerator.unwrap_model(model)
        return unwrapped is model and not hasattr(model, "peft_config") and supports_shared_prefix(model)


class CompactLayout(NamedTuple):
    """Rows moved to the left: prompt and completion without the padding in front and in between."""

    token_ids: Tensor  # [B, T]
    attention_mask: Tensor  # [B, T] 1 on tokens
    is_completion: Tensor  # [B, T] bool
    lengths: Tensor  # [B]
    prompt_lengths: Tensor  # [B]
    shared_prefix: int  # first tokens that all rows share and that no completion token is predicted from


def compact_layout(input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int) -> CompactLayout:
    """Undo TRL's padding.

    Args:
        input_ids: [B, P + C] prompts padded on the left, completions padded on the right.
        attention_mask: [B, P + C] 1 on tokens.
        logits_to_keep: C.
    """
    mask = attention_mask.bool()
    # A stable sort of "is padding" moves the tokens of a row to its left and keeps their order.
    order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)
    lengths = mask.sum(dim=1)
    width = int(lengths.max())
    order = order[:, :width]
    token_ids = input_ids.gather(1, order)
    moved_mask = mask.gather(1, order)
    prompt_lengths = mask[:, : input_ids.shape[1] - logits_to_keep].sum(dim=1)
    positions = torch.arange(width, device=input_ids.device)
    is_completion = moved_mask & (positions >= prompt_lengths[:, None])
    limit = int(prompt_lengths.min()) - 1  # the last prompt token predicts the first completion token
    same = (token_ids[:, : max(limit, 0)] == token_ids[:1, : max(limit, 0)]).all(dim=0)
    shared = int(same.cumprod(0).sum()) if len(same) else 0
    if shared < MIN_SHARED_PREFIX or len(token_ids) == 1:
        shared = 0
    return CompactLayout(token_ids, moved_mask.long(), is_completion, lengths, prompt_lengths, shared)


def completion_places(
    layout: CompactLayout, rows: Tensor, width: int, shared: int
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Where the scores of completion tokens lie in a chunk's output and where they belong in [B, C].

    Returns:
        ((row of the chunk, position of the output), index into the completion), one entry a token.
    """
    chunk_rows, columns = layout.is_completion[rows, :width].nonzero(as_tuple=True)
    slots = columns - layout.prompt_lengths[rows][chunk_rows]
    return (chunk_rows, columns - shared - 1), slots


def trl_arguments(config: GrpoConfig, output_dir: Path, *, seed: int) -> TrlConfig:
    """Our configuration in TRL's words. Rollouts are ours, so TRL's own vLLM stays off; nothing is logged or saved."""
    episodes = config.prompts_per_step * config.group_size
    rows = min(config.rows_per_batch, episodes)
    while episodes % rows:
        rows -= 1
    return TrlConfig(
        output_dir=str(output_dir),
        max_steps=config.steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=episodes // rows,
        num_generations=config.group_size,
        max_completion_length=config.max_total_tokens,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.schedule,
        warmup_steps=config.warmup_steps,
        max_grad_norm=config.max_gradient_norm,
        weight_decay=0.0,
        beta=config.kl_coefficient,
        loss_type=config.loss_type,
        scale_rewards="none" if config.loss_type == "dr_grpo" else "group",
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
        disable_tqdm=True,
    )
