"""The seam between rollouts and what samples tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from offline_arl.errors import DataError, UsageError

if TYPE_CHECKING:
    import torch

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class SamplingConfig:
    """How tokens are drawn. Temperature 0 is greedy. No top-p or top-k: truncation biases importance ratios."""

    temperature: float = 1.0
    max_tokens: int = 64  # per step

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0:
            raise UsageError(f"temperature is {self.temperature}; use 0 (greedy) or a positive number")
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens is {self.max_tokens}; a step needs at least 1 token")


@dataclass(frozen=True)
class Completion:
    """One sampled step.

    `logprobs` are log-probabilities of the sampled tokens under the distribution they were drawn from, the
    tempered softmax over the whole vocabulary. At temperature 0 that distribution is a point; they are then those
    of the untempered softmax (temperature 1). NaN where the probability is not known (`reranking`).
    """

    token_ids: list[int]  # ends with the stop token when finish_reason is "stop"
    logprobs: list[float]  # one a token
    finish_reason: FinishReason


class Sampler(Protocol):
    """Samples completions of token-id prompts with the policy's current weights."""

    backend: str  # "vllm" or "transformers"
    max_model_len: int  # tokens, prompt and completion together

    def generate(
        self, prompts: Sequence[Sequence[int]], config: SamplingConfig, *, seeds: Sequence[int]
    ) -> list[Completion]:
        """One completion a prompt, in order. `seeds` (one a prompt) make sampling reproducible.

        A completion depends on its own prompt and seed alone, not on the others of the call (up to float rounding).

        Raises:
            DataError: A prompt is empty or leaves no room for `config.max_tokens` within `max_model_len`.
        """
        ...

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace the weights by the given (name, tensor) pairs of a transformers state dict."""
        ...

    def close(self) -> None:
        """Free the engine."""
        ...


@runtime_checkable
class StreamingSampler(Sampler, Protocol):
    """A sampler that takes a prompt at any time, while others are under way."""

    def submit(self, prompt: Sequence[int], config: SamplingConfig, *, seed: int) -> int:
        """Begin a completion; returns its number. As `generate` for what may go wrong."""
        ...

    def advance(self) -> list[tuple[int, Completion]]:
        """Sample on for a while; returns what was finished, with its number. Empty where nothing was, or is, begun."""
        ...


def check_request(
    prompts: Sequence[Sequence[int]], config: SamplingConfig, seeds: Sequence[int], max_model_len: int
) -> None:
    """What every sampler checks before it samples.

    Raises:
        UsageError: There is not one seed a prompt.
        DataError: A prompt is empty or leaves no room for `config.max_tokens` within `max_model_len`.
    """
    if len(seeds) != len(prompts):
        raise UsageError(f"{len(prompts)} prompts and {len(seeds)} seeds; give one seed a prompt")
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise DataError(f"prompt {index} is empty; a policy needs at least one token to continue")
        if len(prompt) + config.max_tokens > max_model_len:
            raise DataError(
                f"prompt {index} has {len(prompt)} tokens and max_tokens is {config.max_tokens}, together above the "
                f"sampler's max_model_len of {max_model_len}; raise max_model_len or end the episode earlier"
            )
