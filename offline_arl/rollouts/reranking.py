"""Best of n: several steps are sampled, a step-level Q scores them, and the best one, or a draw by Q, is taken.

Unlike value-guided decoding it needs no values of single tokens, and it weighs a whole message at once. The candidates
come from the policy, so no support mask is needed. Drawing with weights `exp(inverse_temperature * Q)` approaches, as
candidates get more, the policy that maximizes expected advantage under a KL penalty, behavior * exp(Q / temperature);
taking the best of n approaches the best step that the policy ever takes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offline_arl.errors import UsageError
from offline_arl.models.reranked_policy import RerankingConfig
from offline_arl.rollouts.sampler import (
    Completion,
    Sampler,
    SamplingConfig,
    StreamingSampler,
    check_request,
)

if TYPE_CHECKING:
    import torch

    from offline_arl.datasets.segments import SegmentRow
    from offline_arl.models.value_heads import ValueHeads

TOKENS_PER_BATCH = 8_192


class StepScorer:
    """Q(s, a) of steps, from hidden states of the model that the value heads were trained on."""

    def __init__(self, model: Any, heads: ValueHeads, *, layers: tuple[int, ...], state_window: int = 0) -> None:
        """Hold model and heads, which are read only.

        Args:
            model: A Hugging Face causal language model.
            heads: Step-level value heads on its hidden states.
            layers: Which ones, as in `models.config.FeatureConfig`.
            state_window: As there.
        """
        self._model = model.eval()
        self._heads = heads.to(model.device)
        self._layers = layers
        self._state_window = state_window

    def q_values(self, prompts: Sequence[Sequence[int]], steps: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """[N] the smaller of the two Q of taking each step after its prompt, in units of return.

        Args:
            prompts: All that precedes each step, token ids; not empty.
            steps: The tokens of each step; not empty.
        """
        import torch

        from offline_arl.datasets.collate import collate_segments, length_sorted_batches
        from offline_arl.models.features import step_features

        rows = [_row(prompt, step) for prompt, step in zip(prompts, steps, strict=True)]
        scores = np.empty(len(rows))
        lengths = np.array([len(row) for row in rows])
        with torch.inference_mode():
            for indices in length_sorted_batches(lengths, max_tokens=TOKENS_PER_BATCH):
                chosen = [rows[index] for index in indices]
                batch = collate_segments(chosen, pad_token_id=0).to(self._model.device)
                features = step_features(
                    self._model, chosen, batch, layers=self._layers, state_window=self._state_window
                ).features
                q_values = self._heads.q(features.states, features.actions).amin(dim=0)
                scores[np.asarray(indices)] = q_values.double().cpu().numpy()
        return scores


@dataclass(frozen=True, eq=False)
class _Request:
    """A step that is asked for, and what there is to choose from."""

    prompt: Sequence[int]
    temperature: float
    seed: int
    candidates: list[Completion]


_PENDING = Completion([], [], "length")


class RerankingSampler:
    """A sampler whose steps are chosen among several of another sampler's.

    The probability of a step that was chosen this way has no closed form, so its logprobs are not known (NaN), unless
    there was one candidate to choose from.
    """

    def __init__(self, sampler: Sampler, scorer: StepScorer, config: RerankingConfig) -> None:
        """Wrap a sampler, which this one closes with itself.

        Args:
            sampler: Of the policy that proposes steps.
            scorer: Says how good they are.
            config: How many there are and how one is chosen.
        """
        self.backend = sampler.backend
        self.max_model_len = sampler.max_model_len
        self._sampler = sampler
        self._scorer = scorer
        self._config = config

    def generate(
        self, prompts: Sequence[Sequence[int]], config: SamplingConfig, *, seeds: Sequence[int]
    ) -> list[Completion]:
        """See `Sampler.generate`. The temperature is that of the choice; candidates are drawn at their own."""
        check_request(prompts, config, seeds, self.max_model_len)
        count = self._config.candidates
        proposed = self._sampler.generate(
            [prompt for prompt in prompts for _ in range(count)],
            self._proposing(config),
            seeds=[candidate_seed(seed, number) for seed in seeds for number in range(count)],
        )
        groups = [proposed[start : start + count] for start in range(0, len(proposed), count)]
        return self._chosen(
            [
                _Request(prompt, config.temperature, seed, group)
                for prompt, seed, group in zip(prompts, seeds, groups, strict=True)
            ]
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Refused: the value heads read hidden states of the weights that they were trained on.

        Raises:
            UsageError: Always.
        """
        raise UsageError("a policy that chooses by values keeps its weights; make a sampler of the other policy's own")

    def close(self) -> None:
        """Close the wrapped sampler."""
        self._sampler.close()

    def _proposing(self, config: SamplingConfig) -> SamplingConfig:
        """How candidates are drawn."""
        return SamplingConfig(self._config.candidate_temperature, config.max_tokens)

    def _chosen(self, requests: Sequence[_Request]) -> list[Completion]:
        """The step of each request, scored together."""
        if self._config.candidates == 1:
            return [request.candidates[0] for request in requests]
        distinct = [list(dict.fromkeys(tuple(one.token_ids) for one in request.candidates)) for request in requests]
        scores = self._scores([request.prompt for request in requests], distinct)
        return [
            self._choose(request, steps, q_values)
            for request, steps, q_values in zip(requests, distinct, scores, strict=True)
        ]

    def _scores(
        self, prompts: Sequence[Sequence[int]], distinct: Sequence[Sequence[tuple[int, ...]]]
    ) -> list[NDArray[np.float64]]:
        """Q of the distinct candidates of each prompt; nothing is computed where there is no choice."""
        open_groups = [index for index, steps in enumerate(distinct) if len(steps) > 1]
        pairs = [(prompts[index], step) for index in open_groups for step in distinct[index]]
        scores = [np.zeros(len(steps)) for steps in distinct]
        if pairs:
            q_values = self._scorer.q_values(*map(list, zip(*pairs, strict=True)))
            ends = np.cumsum([len(distinct[index]) for index in open_groups])[:-1]
            for index, part in zip(open_groups, np.split(q_values, ends), strict=True):
                scores[index] = part
        return scores

    def _choose(self, request: _Request, steps: Sequence[tuple[int, ...]], q_values: NDArray[np.float64]) -> Completion:
        """One of the candidates; ties go to the one that was drawn first."""
        if request.temperature == 0:
            chosen = steps[int(q_values.argmax())]
        else:
            counts = Counter(tuple(one.token_ids) for one in request.candidates)
            preferences = np.log([counts[step] for step in steps])
            preferences += self._config.inverse_temperature / request.temperature * q_values
            weights = np.exp(preferences - preferences.max())
            chosen = steps[int(np.random.default_rng(request.seed).choice(len(steps), p=weights / weights.sum()))]
        taken = next(one for one in request.candidates if tuple(one.token_ids) == chosen)
        return Completion(taken.token_ids, [math.nan] * len(taken.token_ids), taken.finish_reason)


class StreamingRerankingSampler(RerankingSampler):
    """A `StreamingSampler`: candidates are sampled while other requests are; those that are complete are scored."""

    def __init__(self, sampler: StreamingSampler, scorer: StepScorer, config: RerankingConfig) -> None:
        """See `RerankingSampler`."""
        super().__init__(sampler, scorer, config)
        self._streaming = sampler
        self._begun: dict[int, _Request] = {}
        self._places: dict[int, tuple[int, int]] = {}  # of the wrapped sampler's numbers: request, candidate
        self._missing: Counter[int] = Counter()
        self._next = 0

    def submit(self, prompt: Sequence[int], config: SamplingConfig, *, seed: int) -> int:
        """See `StreamingSampler.submit`."""
        check_request([prompt], config, [seed], self.max_model_len)
        number, count = self._next, self._config.candidates
        self._next += 1
        self._begun[number] = _Request(prompt, config.temperature, seed, [_PENDING] * count)
        self._missing[number] = count
        for candidate in range(count):
            begun = self._streaming.submit(prompt, self._proposing(config), seed=candidate_seed(seed, candidate))
            self._places[begun] = (number, candidate)
        return number

    def advance(self) -> list[tuple[int, Completion]]:
        """See `StreamingSampler.advance`."""
        complete = []
        for begun, completion in self._streaming.advance():
            number, candidate = self._places.pop(begun)
            self._begun[number].candidates[candidate] = completion
            self._missing[number] -= 1
            if not self._missing[number]:
                complete.append(number)
        chosen = self._chosen([self._begun.pop(number) for number in complete])
        for number in complete:
            del self._missing[number]
        return list(zip(complete, chosen, strict=True))


def candidate_seed(seed: int, number: int) -> int:
    """The seed of a candidate, a non-negative 63-bit integer; the first candidate has the seed of the request.

    >>> candidate_seed(5, 0), candidate_seed(5, 1) != candidate_seed(5, 2)
    (5, True)
    """
    if number == 0:
        return seed
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _row(prompt: Sequence[int], step: Sequence[int]) -> SegmentRow:
    """Prompt and step as a segment with one step."""
    from offline_arl.datasets.segments import SegmentRow

    tokens = np.array([*prompt, *step], dtype=np.int32)
    action_mask = np.arange(len(tokens)) >= len(prompt)
    step_index = np.where(action_mask, 0, -1).astype(np.int32)
    return SegmentRow("", None, None, None, 0, tokens, action_mask, step_index)
