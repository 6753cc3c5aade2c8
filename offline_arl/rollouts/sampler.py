"""The seam between rollouts and what samples tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SamplingConfig:
    """How tokens are drawn. Temperature 0 is greedy. No top-p or top-k: truncation biases importance ratios."""

    temperature: float = 1.0
    max_tokens: int = 64  # per step


@dataclass(frozen=True)
class Completion:
    """One sampled step."""

    token_ids: list[int]  # ends with the stop token when finish_reason is "stop"
    logprobs: list[float]  # log-probability of each token under the sampler at the given temperature
    finish_reason: str  # "stop" or "length"


class Sampler(Protocol):
    """Samples completions of token-id prompts with the policy's current weights."""

    backend: str  # "vllm" or "transformers"

    def generate(
        self, prompts: Sequence[Sequence[int]], config: SamplingConfig, *, seeds: Sequence[int]
    ) -> list[Completion]:
        """One completion a prompt, in order. `seeds` (one a prompt) make sampling reproducible."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace the weights by the given (name, tensor) pairs of a transformers state dict."""
        ...

    def close(self) -> None:
        """Free the engine."""
        ...
