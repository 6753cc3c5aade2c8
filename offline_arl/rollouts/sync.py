"""Does the sampler run the trainer's weights? Checked by comparing log-probabilities, never assumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_arl.errors import DataError, GateError
from offline_arl.rollouts.sampler import Sampler, SamplingConfig

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from offline_arl.models.value_guidance import ValueGuidance

FLOAT32_TOLERANCE = 1e-4  # nats a token


class SyncReport(NamedTuple):
    """How far the sampler's logprobs are from the trainer's, in nats a token."""

    max_abs_difference: float
    mean_abs_difference: float
    n_tokens: int


def score_tokens(
    model: PreTrainedModel,
    sequences: Sequence[Sequence[int]],
    *,
    temperature: float,
    batch_size: int = 16,
    guidance: ValueGuidance | None = None,
) -> list[NDArray[np.float32]]:
    """Log-probability of each token given those before it; no gradient, dropout off.

    Args:
        model: The trainer's model.
        sequences: Token ids, each of its own length.
        temperature: Logits are divided by it; 0 counts as 1, as in `Completion`.
        batch_size: Sequences a forward pass.
        guidance: Values that steer the model, of a value-guided policy.

    Returns:
        One float32 array a sequence, of its length. Entry 0 is NaN: nothing predicts the first token.
    """
    import torch

    scores: list[NDArray[np.float32]] = []
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for start in range(0, len(sequences), batch_size):
                batch = [list(sequence) for sequence in sequences[start : start + batch_size]]
                longest = max(len(sequence) for sequence in batch)
                ids = torch.tensor([sequence + [0] * (longest - len(sequence)) for sequence in batch])
                mask = torch.tensor([[1] * len(sequence) + [0] * (longest - len(sequence)) for sequence in batch])
                ids, mask = ids.to(model.device), mask.to(model.device)
                logits = _logits(model, guidance, ids, mask)[:, :-1].float()
                logprobs = (logits / (temperature or 1.0)).log_softmax(-1)
                taken = logprobs.gather(-1, ids[:, 1:, None])[..., 0].cpu().numpy()
                for row, sequence in enumerate(batch):
                    values = np.full(len(sequence), np.nan, dtype=np.float32)
                    values[1:] = taken[row, : len(sequence) - 1]
                    scores.append(values)
    finally:
        model.train(was_training)
    return scores


def _logits(
    model: PreTrainedModel, guidance: ValueGuidance | None, ids: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """[B, T, V] what the tokens after each position are drawn from."""
    from offline_arl.models.policy import logits_and_states

    logits, states = logits_and_states(model, input_ids=ids, attention_mask=mask, use_cache=False)
    if guidance is None:
        return logits
    return guidance(logits.flatten(0, 1), states.flatten(0, 1)).view(logits.shape)


def compare_logprobs(
    model: PreTrainedModel,
    sequences: Sequence[Sequence[int]],
    logprobs: Sequence[NDArray[np.floating]],
    *,
    temperature: float,
    guidance: ValueGuidance | None = None,
) -> SyncReport:
    """Score sampled sequences with the trainer's model and compare with what the sampler reported.

    Args:
        model: The trainer's model.
        sequences: Token ids: prompts, completions and what the environment said in between.
        logprobs: The sampler's logprobs, one array a sequence and of its length; NaN where a token was not sampled.
        temperature: Of the sampling.
        guidance: Values that steer the model, of a value-guided policy.

    Raises:
        DataError: No token was sampled.
    """
    scores = score_tokens(model, sequences, temperature=temperature, guidance=guidance)
    pairs = zip(scores, logprobs, strict=True)
    differences = np.abs(np.concatenate([score - np.asarray(logprob) for score, logprob in pairs]))
    known = differences[~np.isnan(differences)]
    if len(known) == 0:
        raise DataError("no sampled token to compare; give sequences with sampler logprobs")
    return SyncReport(float(known.max()), float(known.mean()), len(known))


def verify_sync(
    sampler: Sampler,
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    seed: int,
    temperature: float = 1.0,
    max_tokens: int = 16,
    tolerance: float = FLOAT32_TOLERANCE,
    guidance: ValueGuidance | None = None,
) -> SyncReport:
    """Sample from `prompts` and check that sampler and trainer agree on the logprobs.

    Args:
        sampler: Holds what should be the trainer's weights.
        model: The trainer's model.
        prompts: Token ids; a handful is enough, stale weights show on nearly every token.
        seed: Of the first prompt; the others count up from it.
        temperature: Of the sampling.
        max_tokens: Sampled a prompt.
        tolerance: Largest allowed difference, in nats a token; 1e-4 suits float32.
        guidance: Values that steer the model, of a value-guided policy.

    Raises:
        GateError: They differ by more than `tolerance`.
    """
    config = SamplingConfig(temperature=temperature, max_tokens=max_tokens)
    completions = sampler.generate(prompts, config, seeds=range(seed, seed + len(prompts)))
    sequences = [[*prompt, *completion.token_ids] for prompt, completion in zip(prompts, completions, strict=True)]
    logprobs = [
        np.array([np.nan] * len(prompt) + completion.logprobs, dtype=np.float32)
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    report = compare_logprobs(model, sequences, logprobs, temperature=temperature, guidance=guidance)
    check_report(report, tolerance, backend=sampler.backend)
    return report


def check_report(report: SyncReport, tolerance: float, *, backend: str) -> None:
    """Refuse to go on with a sampler that does not run the trainer's weights.

    Raises:
        GateError: The largest difference is above `tolerance` or not a number.
    """
    if not report.max_abs_difference <= tolerance:
        raise GateError(
            f"the {backend} sampler's logprobs differ from the trainer's by up to {report.max_abs_difference:.2e} nats "
            f"a token (tolerance {tolerance:.0e}, {report.n_tokens} tokens): its weights are stale or its precision "
            "is lower; sync the weights again, sample in float32, or raise the tolerance and correct the ratios"
        )
