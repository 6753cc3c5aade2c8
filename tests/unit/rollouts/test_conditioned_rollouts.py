"""Rollouts of return-conditioned policies: what they are asked for, step by step, and that training sees the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys.lookup import PENALTY, LookupFamily, ScriptedSampler, call_text, demonstrations, task

from offline_arl.datasets import ReturnConditionedConfig, SegmentDataset, build_return_conditioned
from offline_arl.datasets.return_conditioning import ReturnConditioning, fit_conditioning
from offline_arl.environments.protocol import Task
from offline_arl.errors import UsageError
from offline_arl.models.tiny import CHAT_TEMPLATE, train_tiny_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.rendering.history import set_history_steps
from offline_arl.rendering.return_conditioning import ConditioningConfig, add_return_tokens
from offline_arl.rewards.components import RewardConfig
from offline_arl.rollouts.collect import collect
from offline_arl.rollouts.episode import Episode

REWRITING = CHAT_TEMPLATE.replace(
    "{{- message.content or '' -}}", "{{- (message.content or '') if loop.last else '...' -}}"
)
LOGGED = RewardConfig(source="logged")


def tokenizer() -> Any:
    texts = [message.text for item in demonstrations(50, accuracy=1.0, seed=0) for message in item.messages]
    made = train_tiny_tokenizer(["what is 123?", *texts], vocabulary_size=300)
    add_return_tokens(made, 5)
    return made


def windowed_tokenizer() -> Any:
    made = tokenizer()
    set_history_steps(made, 1)
    return made


RENDERERS = {
    "prefix_preserving": Renderer(tokenizer()),
    "rewriting": Renderer(tokenizer(), chat_template=REWRITING),
    "window": Renderer(windowed_tokenizer()),
}


def stumble(prompt: str, seed: int) -> str:
    """A malformed call, the right one, the answer: rewards of -0.1, 0 and 1."""
    return ("<tool_call>{bad", call_text("123"), "A")[min(prompt.count("<|tool|>"), 2)]


def play(renderer: Renderer, *tasks: Task, **fields: Any) -> list[Episode]:
    settings: dict[str, Any] = {"temperature": 1.0, "max_tokens_per_step": 40, "seed": 0, **fields}
    sampler = ScriptedSampler(renderer, stumble, max_model_len=512)
    return collect(LookupFamily(), tasks or [task("123", "A")], sampler, renderer, **settings)


def fitted(episodes: list[Episode], rewards: RewardConfig = LOGGED, **config: Any) -> ReturnConditioning:
    trajectories = [episode.trajectory for episode in episodes]
    return fit_conditioning(trajectories, rewards=rewards, config=ConditioningConfig(**config))


def number(**config: Any) -> ReturnConditioning:
    return fitted(play(RENDERERS["prefix_preserving"]), form="number", **config)


def conditions(episode: Episode, renderer: Renderer) -> list[str]:
    """What stands in the brackets of the episode's prompts, in order."""
    texts = [renderer.tokenizer.decode(segment.token_ids) for segment in episode.segments]
    return [part.split("]")[0] for text in texts for part in text.split("[return ")[1:]]


def test_the_target_falls_by_what_each_step_earned() -> None:
    renderer = RENDERERS["prefix_preserving"]
    (episode,) = play(renderer, conditioning=number(), target_returns=0.9)
    assert episode.rewards == pytest.approx([-PENALTY, 0.0, 1.0])
    assert conditions(episode, renderer) == ["0.90", "1.00", "1.00"]
    assert episode.trajectory.metadata["target_return"] == 0.9


def test_messages_are_what_was_said_and_conditions_are_in_the_tokens_alone() -> None:
    """A stored rollout can be conditioned anew, on what it achieved."""
    (plain,) = play(RENDERERS["prefix_preserving"])
    (asked,) = play(RENDERERS["prefix_preserving"], conditioning=number(), target_returns=0.9)
    assert [message.text for message in asked.trajectory.messages] == [m.text for m in plain.trajectory.messages]
    assert asked.trajectory.trajectory_id != plain.trajectory.trajectory_id


def test_a_target_of_the_whole_attempt_is_said_once() -> None:
    renderer = RENDERERS["prefix_preserving"]
    (episode,) = play(renderer, conditioning=number(scope="trajectory"), target_returns=0.9)
    assert conditions(episode, renderer) == ["0.90"]


def test_the_best_of_the_training_data_is_the_default() -> None:
    renderer = RENDERERS["prefix_preserving"]
    (episode,) = play(renderer, conditioning=number())
    assert conditions(episode, renderer)[0] == "0.90"


def test_rewards_count_as_in_the_training_data_not_as_the_environment_pays() -> None:
    """With a reward of the outcome, less 0.05 for an invalid action and 0.25 a step, the first step earns -0.3."""
    renderer = RENDERERS["prefix_preserving"]
    rewards = RewardConfig(step_cost=0.25)
    conditioning = fitted(play(renderer), rewards, form="number")
    assert conditioning.default_target == pytest.approx(1 - 0.05 - 3 * 0.25)
    (episode,) = play(renderer, conditioning=conditioning)
    assert conditions(episode, renderer) == ["0.20", "0.50", "0.75"]


@pytest.mark.parametrize("scope", ["step", "trajectory"])
@pytest.mark.parametrize("form", ["number", "quantile_text", "quantile_tokens"])
@pytest.mark.parametrize("name", RENDERERS)
@pytest.mark.parametrize("rewards", [LOGGED, RewardConfig(step_cost=0.25)], ids=["logged", "outcome"])
def test_training_sees_the_tokens_of_the_rollout(
    name: str, form: str, scope: str, rewards: RewardConfig, tmp_path: Path
) -> None:
    """An attempt that was asked for what it then got: built into a dataset, it has the very tokens of the rollout."""
    renderer = RENDERERS[name]
    conditioning = fitted(play(renderer), rewards, form=form, scope=scope)
    (episode,) = play(renderer, conditioning=conditioning)
    config = ReturnConditionedConfig(return_conditioning=conditioning)
    build_return_conditioned([episode.trajectory], renderer, tmp_path / "data", config=config)
    rows = list(SegmentDataset.load(tmp_path / "data"))
    assert len(rows) == len(episode.segments) == (1 if name == "prefix_preserving" else 3)
    for row, segment in zip(rows, episode.segments, strict=True):
        assert renderer.tokenizer.decode(row.token_ids) == renderer.tokenizer.decode(segment.token_ids)
        np.testing.assert_array_equal(row.token_ids, segment.token_ids)
        np.testing.assert_array_equal(row.action_mask, segment.action_mask)
        np.testing.assert_array_equal(row.step_index, segment.step_index)


def test_each_task_or_each_episode_may_have_a_target() -> None:
    renderer = RENDERERS["prefix_preserving"]
    tasks = [task("123", "A"), task("126", "B")]
    for targets, expected in (
        ([0.1, 0.2], ["0.10", "0.10", "0.20", "0.20"]),
        ([0.1, 0.2, 0.3, 0.4], ["0.10", "0.20", "0.30", "0.40"]),
    ):
        episodes = play(renderer, *tasks, conditioning=number(), target_returns=targets, group_size=2)
        assert [conditions(episode, renderer)[0] for episode in episodes] == expected
    with pytest.raises(UsageError, match="3 target returns for 2 tasks of 2 attempts"):
        play(renderer, *tasks, conditioning=number(), target_returns=[0.1, 0.2, 0.3], group_size=2)


def test_a_policy_that_reads_no_returns_is_asked_for_none() -> None:
    with pytest.raises(UsageError, match="reads none"):
        play(RENDERERS["prefix_preserving"], target_returns=1.0)
