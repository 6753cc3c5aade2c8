"""Sampling with a transformers model: the sampler of machines without vLLM, and the oracle of the other one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from offline_arl.errors import DataError
from offline_arl.rollouts.sampler import Completion, SamplingConfig, check_request

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from offline_arl.models.value_guidance import ValueGuidance


class TransformersSampler:
    """Batched generation with a key-value cache, left-padded, one random stream a row.

    Rows are sorted by length and run in batches of `max_batch_size`; finished rows leave the batch. A row's draws
    come from a generator seeded with its own seed, one uniform vector over the vocabulary a token (Gumbel-max), so
    they do not depend on which other rows share the batch.

    A value-guided policy is sampled as such: draws and logprobs are those of the guided distribution.
    """

    backend = "transformers"

    def __init__(
        self,
        model: PreTrainedModel | str | Path,
        *,
        stop_token_ids: Sequence[int],
        max_model_len: int = 1024,
        max_batch_size: int = 128,
        dtype: str = "float32",
        guidance: ValueGuidance | None = None,
    ) -> None:
        """Hold a model.

        Args:
            model: A live model, used as it is (a trainer's own model needs no weight sync), or where to load it.
            stop_token_ids: Tokens that end a step (`Renderer.stop_token_ids`).
            max_model_len: Longest prompt and completion together, in tokens.
            max_batch_size: Rows that run at the same time.
            dtype: Of a model that is loaded here.
            guidance: Values that steer the model. None: those in the folder, where it is a value-guided policy's.

        Raises:
            UsageError: The model cannot be found or loaded.
            DataError: The folder's values cannot be read.
        """
        if isinstance(model, str | Path):
            guidance = _guidance_of(model) if guidance is None else guidance
            model = _load(model, dtype)
        self.model = model
        self.guidance = None if guidance is None else guidance.to(model.device)
        self.max_model_len = max_model_len
        self._max_batch_size = max_batch_size
        self._stop = frozenset(stop_token_ids)

    def generate(
        self, prompts: Sequence[Sequence[int]], config: SamplingConfig, *, seeds: Sequence[int]
    ) -> list[Completion]:
        """See `Sampler.generate`."""
        import torch

        check_request(prompts, config, seeds, self.max_model_len)
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        completions: dict[int, Completion] = {}
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                for start in range(0, len(order), self._max_batch_size):
                    rows = order[start : start + self._max_batch_size]
                    batch = [list(prompts[row]) for row in rows]
                    sampled = self._generate_batch(batch, config, [seeds[row] for row in rows])
                    completions.update(zip(rows, sampled, strict=True))
        finally:
            self.model.train(was_training)
        return [completions[index] for index in range(len(prompts))]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `Sampler.load_weights`.

        Raises:
            DataError: A name is unknown to the model or one of its weights is missing.
        """
        if self.guidance is not None:
            weights = self.guidance.take_weights(weights)
        result = self.model.load_state_dict(dict(weights), strict=False)
        self.model.tie_weights()
        tied = {"lm_head.weight"} if self.model.config.tie_word_embeddings else set()
        missing = sorted(set(result.missing_keys) - tied)
        if missing or result.unexpected_keys:
            wrong = ", ".join([*missing, *result.unexpected_keys][:3])
            raise DataError(f"these weights do not fit the sampler's model (for example {wrong})")

    def close(self) -> None:
        """Nothing to free: the model belongs to the caller."""

    def _generate_batch(self, prompts: list[list[int]], config: SamplingConfig, seeds: list[int]) -> list[Completion]:
        import torch
        from transformers import DynamicCache

        device = self.model.device
        input_ids, attention_mask = _left_pad(prompts, device)
        position_ids = (attention_mask.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.model.config)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        token_ids: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        live = list(range(len(prompts)))
        for step in range(config.max_tokens):
            logits = self._logits(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            drawn = _draw(logits, config.temperature, [generators[row] for row in live])
            keep = []
            for slot, row in enumerate(live):
                token = drawn.token_ids[slot]
                token_ids[row].append(token)
                logprobs[row].append(drawn.logprobs[slot])
                if token not in self._stop:
                    keep.append(slot)
            if not keep or step + 1 == config.max_tokens:
                break
            slots = torch.tensor(keep, device=device)
            if len(keep) < len(live):
                cache.batch_select_indices(slots)
                live = [live[slot] for slot in keep]
            input_ids = torch.tensor([[token_ids[row][-1]] for row in live], device=device)
            attention_mask = torch.cat([attention_mask[slots], attention_mask.new_ones(len(live), 1)], dim=1)
            position_ids = position_ids[slots, -1:] + 1
        return [
            Completion(tokens, values, "stop" if tokens[-1] in self._stop else "length")
            for tokens, values in zip(token_ids, logprobs, strict=True)
        ]

    def _logits(self, **inputs: Any) -> Tensor:
        """[B, V] what the next tokens are drawn from."""
        if self.guidance is None:
            logits: Tensor = self.model(**inputs).logits[:, -1]
            return logits
        from offline_arl.models.policy import logits_and_states

        logits, states = logits_and_states(self.model, **inputs)
        return self.guidance(logits[:, -1], states[:, -1])


class _Drawn(NamedTuple):
    token_ids: list[int]
    logprobs: list[float]


def _draw(logits: Tensor, temperature: float, generators: list[torch.Generator]) -> _Drawn:
    """One token a row of `logits` [B, V], by the Gumbel-max trick; the argmax at temperature 0."""
    import torch

    logprobs = (logits.float() / (temperature or 1.0)).log_softmax(-1).cpu()
    scores = logprobs
    if temperature > 0:
        uniform = torch.stack([torch.rand(logprobs.shape[-1], generator=generator) for generator in generators])
        # rand() may return 0; the smallest positive float keeps the noise finite.
        noise = -torch.log(-torch.log(uniform.clamp(min=torch.finfo(torch.float32).tiny)))
        scores = logprobs + noise
    chosen = scores.argmax(-1)
    return _Drawn(chosen.tolist(), logprobs.gather(-1, chosen[:, None])[:, 0].tolist())


def _left_pad(prompts: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, both [B, T]; the padding token is never attended to, so it is 0."""
    import torch

    longest = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros(len(prompts), longest, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return ids.to(device), mask.to(device)


def _guidance_of(path: str | Path) -> ValueGuidance | None:
    from offline_arl.models.guided_policy import is_value_guided, load_value_guidance

    return load_value_guidance(path) if is_value_guided(path) else None


def _load(path: str | Path, dtype: str) -> PreTrainedModel:
    import torch

    from offline_arl.models.policy import load_model

    model: PreTrainedModel = load_model(path, dtype)
    return model.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
