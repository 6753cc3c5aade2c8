"""Choosing among sampled steps: the best, the draw by Q, scores from the features that the heads were trained on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys.llama import random_llama

from offline_arl.datasets.collate import collate_segments
from offline_arl.datasets.segments import SegmentRow
from offline_arl.errors import DataError, UsageError
from offline_arl.models.features import step_features
from offline_arl.models.reranked_policy import RerankingConfig, load_reranking, save_reranked_policy
from offline_arl.models.value_heads import HeadShape, ValueHeads
from offline_arl.rollouts.backends import make_sampler
from offline_arl.rollouts.reranking import RerankingSampler, StepScorer, StreamingRerankingSampler, candidate_seed
from offline_arl.rollouts.sampler import Completion, SamplingConfig, StreamingSampler
from offline_arl.rollouts.transformers_sampler import TransformersSampler

MODEL = random_llama()
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12]]
LAYERS = (1, -1)


def heads(seed: int = 0) -> ValueHeads:
    made = ValueHeads(HeadShape(64, 128, 16, 1), generator=torch.Generator().manual_seed(seed))
    return made.eval().requires_grad_(False)


def plain(model: Any = MODEL) -> TransformersSampler:
    return TransformersSampler(model, stop_token_ids=[3], max_model_len=64)


def reranking(n: int, **fields: float) -> RerankingSampler:
    return RerankingSampler(plain(), StepScorer(MODEL, heads(), layers=LAYERS), RerankingConfig(n, LAYERS, **fields))


def candidates(prompt: Sequence[int], seed: int, n: int, max_tokens: int) -> list[tuple[int, ...]]:
    return many_candidates(prompt, [seed], n, max_tokens)[0]


def many_candidates(
    prompt: Sequence[int], seeds: Sequence[int], n: int, max_tokens: int
) -> list[list[tuple[int, ...]]]:
    drawn = plain().generate(
        [prompt] * (n * len(seeds)),
        SamplingConfig(max_tokens=max_tokens),
        seeds=[candidate_seed(seed, i) for seed in seeds for i in range(n)],
    )
    steps = [tuple(one.token_ids) for one in drawn]
    return [steps[start : start + n] for start in range(0, len(steps), n)]


class Streaming(TransformersSampler):
    """Takes requests at any time and does the latest two at each advance."""

    def __init__(self) -> None:
        super().__init__(MODEL, stop_token_ids=[3], max_model_len=64)
        self._begun: list[tuple[int, Sequence[int], SamplingConfig, int]] = []
        self._count = 0

    def submit(self, prompt: Sequence[int], config: SamplingConfig, *, seed: int) -> int:
        self._count += 1
        self._begun.append((self._count, prompt, config, seed))
        return self._count

    def advance(self) -> list[tuple[int, Completion]]:
        done = [self._begun.pop() for _ in range(min(2, len(self._begun)))]
        return [(number, self.generate([prompt], config, seeds=[seed])[0]) for number, prompt, config, seed in done]


class TestScores:
    def test_are_those_of_the_features_of_a_whole_trajectory(self) -> None:
        """Two steps in one segment, as training reads them, against prompt and step apart."""
        tokens = np.array([5, 6, 7, 8, 9, 10, 11, 12, 13], dtype=np.int32)
        steps = np.array([-1, -1, 0, 0, -1, -1, 1, 1, 1], dtype=np.int32)
        row = SegmentRow("t", None, None, None, 0, tokens, steps >= 0, steps)
        features = step_features(MODEL, [row], collate_segments([row], pad_token_id=0), layers=LAYERS).features
        with torch.inference_mode():
            expected = heads().q(features.states, features.actions).amin(dim=0)
        scorer = StepScorer(MODEL, heads(), layers=LAYERS)
        found = scorer.q_values([tokens[:2].tolist(), tokens[:6].tolist()], [tokens[2:4].tolist(), tokens[6:].tolist()])
        assert found == pytest.approx(expected.double().numpy(), abs=1e-6)
        assert abs(found[0] - found[1]) > 1e-3

    def test_read_the_window_that_the_heads_were_trained_with(self) -> None:
        tokens = np.array([5, 6, 7, 8, 9, 10], dtype=np.int32)
        steps = np.array([-1, -1, -1, -1, 0, 0], dtype=np.int32)
        row = SegmentRow("t", None, None, None, 0, tokens, steps >= 0, steps)
        batch = collate_segments([row], pad_token_id=0)
        features = step_features(MODEL, [row], batch, layers=LAYERS, state_window=3).features
        shape = HeadShape(features.states.shape[1], features.actions.shape[1], hidden_size=8)
        wide = ValueHeads(shape, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            expected = wide.q(features.states, features.actions).amin(dim=0)
        scorer = StepScorer(MODEL, wide, layers=LAYERS, state_window=3)
        found = scorer.q_values([tokens[:4].tolist()], [tokens[4:].tolist()])
        assert found == pytest.approx(expected.double().numpy(), abs=1e-6)

    def test_do_not_depend_on_what_is_scored_beside(self) -> None:
        scorer = StepScorer(MODEL, heads(), layers=LAYERS)
        steps = [[4], [9, 10, 11], [20, 21]]
        together = scorer.q_values(PROMPTS, steps)
        alone = [scorer.q_values([prompt], [step])[0] for prompt, step in zip(PROMPTS, steps, strict=True)]
        assert together == pytest.approx(alone, abs=1e-6)


class TestChoice:
    def test_a_greedy_request_takes_the_candidate_of_the_highest_q(self) -> None:
        scorer = StepScorer(MODEL, heads(), layers=LAYERS)
        completions = reranking(6).generate(PROMPTS, SamplingConfig(0.0, max_tokens=5), seeds=[1, 2, 3])
        changed = 0
        for prompt, completion, seed in zip(PROMPTS, completions, [1, 2, 3], strict=True):
            proposed = candidates(prompt, seed, 6, 5)
            scores = scorer.q_values([prompt] * 6, proposed)
            assert tuple(completion.token_ids) == proposed[int(scores.argmax())]
            changed += tuple(completion.token_ids) != proposed[0]
            assert all(math.isnan(value) for value in completion.logprobs)
            assert len(completion.logprobs) == len(completion.token_ids)
        assert changed

    def test_draws_follow_share_times_exp_q(self) -> None:
        """One token a step and 3 candidates: over many requests the chosen tokens follow the exact distribution."""
        sampler, scorer = reranking(3, inverse_temperature=20.0), StepScorer(MODEL, heads(), layers=LAYERS)
        n, temperature = 600, 2.0
        chosen = sampler.generate([PROMPTS[0]] * n, SamplingConfig(temperature, max_tokens=1), seeds=range(n))
        expected: dict[int, float] = {}
        groups = many_candidates(PROMPTS[0], range(n), 3, 1)
        every = sorted({step for group in groups for step in group})
        q_of = dict(zip(every, scorer.q_values([PROMPTS[0]] * len(every), every), strict=True))
        for group in groups:
            weights = np.exp([20.0 / temperature * q_of[step] for step in group])  # repeated ones count again
            for step, weight in zip(group, weights / weights.sum(), strict=True):
                expected[step[0]] = expected.get(step[0], 0.0) + weight
        counts = np.bincount([one.token_ids[0] for one in chosen], minlength=24)
        wanted = np.array([expected.get(token, 0.0) for token in range(24)])
        # Each draw has a known distribution, so counts differ from their sum of probabilities by a few deviations.
        assert float(np.abs(counts - wanted).max()) < 4.5 * math.sqrt(n) / 2
        uniform = np.bincount([step[0] for group in groups for step in group], minlength=24) / 3
        assert float(np.abs(wanted - uniform).max()) > 4.5 * math.sqrt(n) / 2

    def test_inverse_temperature_0_draws_one_of_the_candidates_at_random(self) -> None:
        sampler = reranking(2, inverse_temperature=0.0)
        chosen = sampler.generate([PROMPTS[0]] * 200, SamplingConfig(max_tokens=4), seeds=range(200))
        proposed = many_candidates(PROMPTS[0], range(200), 1, 4)
        first = sum(tuple(one.token_ids) == group[0] for one, group in zip(chosen, proposed, strict=True))
        assert 60 < first < 160  # about half, and those whose candidates are alike

    def test_one_candidate_is_the_policy_itself(self) -> None:
        config = SamplingConfig(max_tokens=8)
        assert reranking(1).generate(PROMPTS, config, seeds=[1, 2, 3]) == plain().generate(
            PROMPTS, config, seeds=[1, 2, 3]
        )

    def test_a_step_depends_on_its_prompt_and_seed_alone(self) -> None:
        config = SamplingConfig(max_tokens=6)
        together = reranking(4).generate(PROMPTS, config, seeds=[1, 2, 3])
        alone = [reranking(4).generate([p], config, seeds=[s])[0] for p, s in zip(PROMPTS, [1, 2, 3], strict=True)]
        assert [one.token_ids for one in together] == [one.token_ids for one in alone]
        assert reranking(4).generate([], config, seeds=[]) == []

    @pytest.mark.parametrize("n", [1, 3])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_requests_that_come_one_by_one_get_the_steps_of_those_that_come_together(
        self, n: int, temperature: float
    ) -> None:
        config = SamplingConfig(temperature, max_tokens=5)
        expected = reranking(n, inverse_temperature=4.0).generate(PROMPTS, config, seeds=[1, 2, 3])
        chosen = RerankingConfig(n, LAYERS, inverse_temperature=4.0)
        sampler = StreamingRerankingSampler(Streaming(), StepScorer(MODEL, heads(), layers=LAYERS), chosen)
        assert isinstance(sampler, StreamingSampler)
        assert not isinstance(reranking(n), StreamingSampler)
        assert sampler.advance() == []
        numbers, found = [], {}
        for prompt, seed in zip(PROMPTS, [1, 2, 3], strict=True):
            numbers.append(sampler.submit(prompt, config, seed=seed))
            found |= dict(sampler.advance())
        while len(found) < len(PROMPTS):
            found |= dict(sampler.advance())
        assert [found[number].token_ids for number in numbers] == [one.token_ids for one in expected]
        assert sampler.advance() == []
        with pytest.raises(DataError, match="prompt 0 is empty"):
            sampler.submit([], config, seed=0)

    def test_nothing_is_scored_where_there_is_no_choice(self) -> None:
        class Never(StepScorer):
            def q_values(self, prompts: Sequence[Sequence[int]], steps: Sequence[Sequence[int]]) -> Any:
                raise AssertionError("one step, and it was scored")

        cold = RerankingConfig(5, LAYERS, candidate_temperature=1e-4)
        sampler = RerankingSampler(plain(), Never(MODEL, heads(), layers=LAYERS), cold)
        (completion,) = sampler.generate([PROMPTS[0]], SamplingConfig(max_tokens=4), seeds=[0])
        (greedy,) = plain().generate([PROMPTS[0]], SamplingConfig(0.0, max_tokens=4), seeds=[0])
        assert completion.token_ids == greedy.token_ids

    def test_weights_are_not_exchanged_under_the_heads(self) -> None:
        weights: Iterable[tuple[str, torch.Tensor]] = []
        with pytest.raises(UsageError, match="keeps its weights"):
            reranking(2).load_weights(weights)


class TestFolder:
    def test_make_sampler_chooses_as_the_folder_says(self, tmp_path: Path) -> None:
        MODEL.save_pretrained(tmp_path / "policy")
        save_reranked_policy(tmp_path / "policy", heads(), RerankingConfig(6, LAYERS), tmp_path / "best")
        config = SamplingConfig(0.0, max_tokens=5)
        sampler = make_sampler(tmp_path / "best", stop_token_ids=[3], backend="transformers", max_model_len=64)
        found = sampler.generate(PROMPTS, config, seeds=[1, 2, 3])
        expected = reranking(6).generate(PROMPTS, config, seeds=[1, 2, 3])
        assert [one.token_ids for one in found] == [one.token_ids for one in expected]
        sampler.close()

    def test_the_features_may_be_those_of_another_model(self, tmp_path: Path) -> None:
        MODEL.save_pretrained(tmp_path / "policy")
        random_llama(seed=4).save_pretrained(tmp_path / "backbone")
        save_reranked_policy(
            tmp_path / "policy", heads(), RerankingConfig(6, LAYERS), tmp_path / "best",
            feature_model=tmp_path / "backbone",
        )  # fmt: skip
        assert load_reranking(tmp_path / "best").feature_model == tmp_path / "best" / "reranking" / "features"
        sampler = make_sampler(tmp_path / "best", stop_token_ids=[3], backend="transformers", max_model_len=64)
        (found,) = sampler.generate([PROMPTS[0]], SamplingConfig(0.0, max_tokens=5), seeds=[1])
        proposed = candidates(PROMPTS[0], 1, 6, 5)
        scores = StepScorer(random_llama(seed=4), heads(), layers=LAYERS).q_values([PROMPTS[0]] * 6, proposed)
        assert tuple(found.token_ids) == proposed[int(scores.argmax())]

    def test_what_cannot_be_meant_is_refused(self, tmp_path: Path) -> None:
        MODEL.save_pretrained(tmp_path / "policy")
        save_reranked_policy(tmp_path / "policy", heads(), RerankingConfig(2, LAYERS), tmp_path / "best")
        with pytest.raises(UsageError, match="already"):
            save_reranked_policy(tmp_path / "best", heads(), RerankingConfig(2, LAYERS), tmp_path / "twice")
        with pytest.raises(UsageError, match="candidates is 0"):
            RerankingConfig(0, LAYERS)
        with pytest.raises(UsageError, match="all alike"):
            RerankingConfig(2, LAYERS, candidate_temperature=0.0)
