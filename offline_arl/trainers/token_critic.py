"""What token-level value learning computes on a batch: heads, target critics, and the model where it is trained."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from offline_arl.models.policy import selected_states_and_logits
from offline_arl.models.token_heads import CriticValues, TokenHead, TokenValueHeads
from offline_arl.objectives import selected_token_logprobs, token_transition_losses, vocabulary_double_q_values
from offline_arl.trainers.config import TokenCQLConfig, TokenIQLConfig

CHUNK_NUMBERS = 2**24  # numbers of one pass over the vocabulary where `chunk_tokens` is not set: 64 MiB


class TokenCritic(nn.Module):
    """Heads with the target copies of their critics.

    A batch holds `states` [M, H], or the tokens from which `language_model` makes them, and N decisions: `state_index`
    and `next_index` (0 where there is no next state) into the states, `token_ids`, `rewards`, `discounts`,
    `terminated` and `has_target`.

    Args:
        heads: Trained in place.
        config: Which algorithm, and its weights.
        language_model: Trained along, with the heads on its states. None: batches bring states.
    """

    state_mean: Tensor
    state_matrix: Tensor

    def __init__(
        self, heads: TokenValueHeads, config: TokenIQLConfig | TokenCQLConfig, *, language_model: Any = None
    ) -> None:
        super().__init__()
        self.heads = heads
        self.target = copy.deepcopy(heads.critics).requires_grad_(False)
        self.language_model = language_model
        self._config = config  # not `config`: Trainer takes that for a model's own
        self.chunk_tokens = config.chunk_tokens or max(1, CHUNK_NUMBERS // heads.shape.vocabulary_size)
        self.register_buffer("state_mean", torch.zeros(heads.shape.state_size))
        self.register_buffer("state_matrix", torch.eye(heads.shape.state_size))

    def forward(self, **batch: Any) -> dict[str, Tensor]:
        """Sums over the decisions of a batch: `loss`, of which the others are parts, and `mean_q` and `mean_v`."""
        logprobs = None
        if self.language_model is not None:
            batch["states"], logprobs = self._read(batch)
        with torch.autocast(self.state_mean.device.type, enabled=False):  # errors of values are small differences
            sums = self.losses(batch)
        sums["loss"] = (
            sums["q_loss"] + sums["value_loss"] + self._config.conservative_weight * sums["conservative_loss"]
        )
        if logprobs is not None:
            sums["bc_loss"] = -logprobs.sum()
            sums["loss"] = sums["loss"] + self._config.bc_weight * sums["bc_loss"]
        return sums

    def losses(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sums of the unweighted losses of the heads over the decisions, and of Q and V at the tokens of the data."""
        states = (batch["states"].float() - self.state_mean) @ self.state_matrix
        here, tokens = states[batch["state_index"]], batch["token_ids"]
        every_value = self.heads.v(states)
        values = every_value[batch["state_index"]]
        q_values, logsumexp = self._critic_values(here, tokens)
        with torch.no_grad():
            target_q_values = torch.stack([critic.at(here, tokens) for critic in critics_of(self.target)])
            if isinstance(self._config, TokenCQLConfig):
                next_values = self._best_values(states[batch["next_index"]])
            else:
                next_values = every_value[batch["next_index"]]
        everywhere = torch.ones_like(batch["has_target"])
        losses = token_transition_losses(
            q_values, logsumexp, target_q_values, values, next_values, batch["rewards"], batch["terminated"],
            everywhere, batch["has_target"], discount=batch["discounts"], expectile=self._config.expectile,
        )  # fmt: skip
        return {
            "q_loss": losses.critics.sum(),
            "value_loss": losses.value.sum(),
            "conservative_loss": losses.conservative.sum(),
            "mean_q": q_values.detach().mean(dim=0).sum(),
            "mean_v": values.detach().sum(),
        }

    def gradient_checkpointing_enable(self, **settings: Any) -> None:
        """Trainer asks for it; heads have nothing to compute again."""
        if self.language_model is not None:
            self.language_model.gradient_checkpointing_enable(**settings)

    @torch.no_grad()
    def update_targets(self) -> None:
        """Move the target critics by `target_update_rate` towards the critics."""
        for slow, fast in zip(self.target.parameters(), self.heads.critics.parameters(), strict=True):
            slow.lerp_(fast, self._config.target_update_rate)

    def final_heads(self) -> TokenValueHeads:
        """Heads that read plain states, with the target critics (what V was fitted to) in place of the fast ones."""
        final = copy.deepcopy(self.heads)
        final.critics.load_state_dict(self.target.state_dict())
        final.absorb(self.state_mean, self.state_matrix)
        return final.cpu().eval().requires_grad_(False)

    def _read(self, batch: dict[str, Any]) -> tuple[Float[Tensor, "M H"], Float[Tensor, " N"]]:
        """States and log-probabilities of the batch's action tokens, from one pass of the model."""
        input_ids, selected = batch.pop("input_ids"), batch.pop("selected")
        states, logits = selected_states_and_logits(
            self.language_model,
            input_ids,
            batch.pop("attention_mask"),
            selected,
            shared_prefix=batch.pop("shared_prefix"),
        )
        return states, _logprobs(logits[batch["state_index"]], batch["token_ids"], self.chunk_tokens)

    def _critic_values(self, states: Float[Tensor, "N H"], tokens: Tensor) -> CriticValues:
        """The vocabulary is gone through only where the conservative term counts."""
        if self._config.conservative_weight > 0:
            temperature = self._config.conservative_temperature
            return self.heads.q_and_logsumexp(states, tokens, temperature=temperature, chunk_tokens=self.chunk_tokens)
        q_values = self.heads.q_at(states, tokens)
        return CriticValues(q_values, q_values.detach())

    def _best_values(self, states: Float[Tensor, "N H"]) -> Float[Tensor, " N"]:
        online, target = critics_of(self.heads.critics), critics_of(self.target)
        return vocabulary_double_q_values(
            torch.stack([critic.features(states) for critic in online]),
            [critic.output.weight for critic in online],
            [critic.output.bias for critic in online],
            torch.stack([critic.features(states) for critic in target]),
            [critic.output.weight for critic in target],
            [critic.output.bias for critic in target],
            chunk_tokens=self.chunk_tokens,
        )


def critics_of(critics: nn.ModuleList) -> list[TokenHead]:
    """The members of a list of critics, with their class."""
    return [critic for critic in critics if isinstance(critic, TokenHead)]


def _logprobs(logits: Float[Tensor, "N V"], token_ids: Tensor, chunk_tokens: int) -> Float[Tensor, " N"]:
    """Log-probability of each decision's token."""
    input_ids = F.pad(token_ids, (1, 0)).unsqueeze(0)
    mask: Bool[Tensor, "B T"] = F.pad(torch.ones_like(token_ids, dtype=torch.bool), (1, 0)).unsqueeze(0)
    return selected_token_logprobs(logits, input_ids, mask, chunk_tokens=chunk_tokens)[0, 1:]
