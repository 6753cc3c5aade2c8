"""Multi-turn rollouts with a sampler that says what it is told: every token, mask, reward and ending is known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from toys.lookup import PENALTY, Lookup, LookupFamily, ScriptedSampler, call_text, demonstrations, task

from offline_arl.environments.protocol import Task
from offline_arl.errors import DataError, TemplateError, UsageError
from offline_arl.models.tiny import CHAT_TEMPLATE, train_tiny_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.rollouts.collect import collect, step_seed
from offline_arl.rollouts.episode import Episode
from offline_arl.trajectories.step_table import step_rows

FAMILY = LookupFamily()


def tokenizer() -> Any:
    texts = [message.text for item in demonstrations(50, accuracy=1.0, seed=0) for message in item.messages]
    return train_tiny_tokenizer(["what is 123?", *texts], vocabulary_size=300)


RENDERER = Renderer(tokenizer())


def look_then_answer(answer: str = "A") -> Callable[[str, int], str]:
    def script(prompt: str, seed: int) -> str:
        key = prompt.split("what is ")[1][:3]
        return call_text(key) if "<|tool|>" not in prompt else answer

    return script


def play(script: Callable[[str, int], str | None], *tasks: Task, **fields: Any) -> list[Episode]:
    settings: dict[str, Any] = {"temperature": 1.0, "max_tokens_per_step": 40, "seed": 0}
    settings.update(fields)
    renderer = settings.pop("renderer", RENDERER)
    sampler = settings.pop("sampler", None) or ScriptedSampler(renderer, script)
    return collect(settings.pop("family", FAMILY), tasks or [task("123", "A")], sampler, renderer, **settings)


def said(episode: Episode) -> str:
    return str(RENDERER.tokenizer.decode(episode.token_ids[episode.action_mask]))


def test_an_episode_is_the_tokens_that_were_sampled_and_nothing_else() -> None:
    (episode,) = play(look_then_answer())
    assert said(episode) == call_text("123") + "<|end|>A<|end|>"
    assert episode.rewards == [0.0, 1.0]
    assert episode.total_reward == 1.0
    assert episode.success is True
    assert (episode.n_steps, episode.n_tool_calls, episode.n_invalid) == (2, 1, 0)
    trajectory = episode.trajectory
    assert [message.role for message in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    assert (trajectory.terminated, trajectory.truncated, trajectory.stop_reason) == (True, False, "answered")
    assert (trajectory.task_id, trajectory.task_type, trajectory.source.format) == ("lookup-123", "odd", "rollout")
    assert trajectory.messages[1].tool_calls[0].arguments == {"key": "123"}
    assert episode.token_ids[: episode.prompt_length].tolist() == RENDERER.prompt(
        trajectory.messages[:1], trajectory.tools_at(0)
    )


def test_rendering_the_trajectory_gives_the_very_rows_of_the_rollout() -> None:
    """What training will see when the stored rollout is rendered again: same ids, mask, steps and logprobs."""
    for script in (look_then_answer(), look_then_answer("A <|end|> B"), lambda prompt, seed: "<tool_call>{bad"):
        (episode,) = play(script)
        (segment,) = RENDERER.render(episode.trajectory)
        assert np.array_equal(segment.token_ids, episode.token_ids)
        assert np.array_equal(segment.action_mask, episode.action_mask)
        assert np.array_equal(segment.step_index, episode.segments[0].step_index)
        assert np.array_equal(segment.logprobs, episode.logprobs, equal_nan=True)
        assert not segment.rendered


def test_logprobs_lie_on_their_tokens() -> None:
    (episode,) = play(look_then_answer())
    spans = episode.segments[0].step_spans()
    for step, start, end in spans:
        first = -0.01 * (step_seed(0, "lookup-123", 0, step) % 7)
        expected = [first - 0.01 * position for position in range(end - start)]
        assert episode.logprobs[start:end].tolist() == pytest.approx(expected, abs=1e-6)
    assert np.isnan(episode.logprobs[~episode.action_mask]).all()
    assert [step for step, _, _ in spans] == [0, 1]


def test_a_step_cut_for_length_gets_its_stop_token_as_context() -> None:
    """Sixteen tokens without an end: the template's end follows, but it was not sampled and is not trained."""
    (episode,) = play(lambda prompt, seed: None, family=Endless, max_tokens_per_step=16)
    assert episode.n_steps == 3
    _, _, end = episode.segments[0].step_spans()[0]
    assert episode.token_ids[end] == RENDERER.stop_token_ids[0]
    assert not episode.action_mask[end]


class Endless(Lookup):
    """Never ends by itself, not even at its own limit."""

    def step(self, message: Any) -> Any:
        result = super().step(message)
        return dataclasses.replace(result, terminated=False, truncated=False, stop_reason=None)


def test_malformed_calls_cost_a_penalty_and_the_episode_goes_on() -> None:
    (episode,) = play(lambda prompt, seed: "<tool_call>{bad" if "<|tool|>" not in prompt else "A")
    assert episode.rewards == pytest.approx([-PENALTY, 1.0])
    assert episode.total_reward == pytest.approx(1.0 - PENALTY)
    assert (episode.n_tool_calls, episode.n_invalid) == (1, 1)
    steps = step_rows(episode.trajectory)
    assert [step.reward for step in steps] == pytest.approx([-PENALTY, 1.0])
    assert [step.invalid_action for step in steps] == [True, False]


def test_empty_answers_count_as_the_environment_counts_them() -> None:
    """A message without text and calls is invalid to the support desk, although no call could be checked."""
    from offline_arl.environments.support_desk import family

    sampler = ScriptedSampler(RENDERER, lambda prompt, seed: "", max_model_len=1024)
    (episode,) = play(
        look_then_answer(), *family.tasks("train", 1, seed=0), family=family, sampler=sampler, max_tokens_per_step=4
    )
    assert episode.n_invalid == episode.n_steps == 8
    assert episode.total_reward == pytest.approx(-8 * 0.05)
    assert all(step.invalid_action for step in step_rows(episode.trajectory))


def test_the_environments_limit_truncates_also_where_it_forgets_to() -> None:
    (own,) = play(lambda prompt, seed: call_text("123"))
    (forgotten,) = play(lambda prompt, seed: call_text("123"), family=Endless)
    for episode in (own, forgotten):
        assert episode.n_steps == 3
        assert (episode.trajectory.terminated, episode.trajectory.truncated) == (False, True)
        assert episode.trajectory.stop_reason == "max_steps"
        assert episode.success is False


def test_an_episode_that_outgrows_the_context_is_truncated() -> None:
    """No step is sampled that might not fit; what was judged until then is the outcome."""
    full = len(play(look_then_answer())[0].token_ids)
    (episode,) = play(look_then_answer(), max_total_tokens=full + 10)
    assert (episode.n_steps, episode.trajectory.stop_reason) == (1, "context_length")
    assert (episode.trajectory.truncated, episode.success, episode.total_reward) == (True, False, 0.0)
    (unstarted,) = play(look_then_answer(), max_total_tokens=41)
    assert (unstarted.n_steps, unstarted.trajectory.stop_reason) == (0, "context_length")
    assert len(unstarted.token_ids) == unstarted.prompt_length
    assert not unstarted.action_mask.any()


@pytest.mark.parametrize(("fail", "steps"), [("reset", 0), ("step", 1), ("outcome", 1)])
def test_a_failing_environment_is_an_infrastructure_error_not_a_failure(fail: str, steps: int) -> None:
    broken, sound = play(look_then_answer(), task("123", "A", fail=fail), task("126", "A"))
    assert broken.infrastructure_error
    assert broken.trajectory.outcome.status == "infrastructure_error"
    assert (broken.success, broken.total_reward) == (None, None)
    assert broken.trajectory.stop_reason == "infrastructure_error"
    assert broken.n_steps >= steps
    assert sound.success is True


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_an_infrastructure_error_that_nothing_learns_from(reward: float) -> None:
    class Wild(Lookup):
        def step(self, message: Any) -> Any:
            return dataclasses.replace(super().step(message), reward=reward)

    (episode,) = play(look_then_answer(), family=Wild)
    assert (episode.infrastructure_error, episode.rewards, episode.total_reward) == (True, [], None)


def test_episodes_come_in_the_order_of_tasks_and_attempts() -> None:
    tasks = [task("003", "A"), task("001", "B"), task("002", "A")]
    episodes = play(look_then_answer(), *tasks, group_size=2)
    assert [(episode.task.task_id, episode.attempt) for episode in episodes] == [
        ("lookup-003", 0), ("lookup-003", 1), ("lookup-001", 0), ("lookup-001", 1), ("lookup-002", 0), ("lookup-002", 1)
    ]  # fmt: skip
    assert [episode.success for episode in episodes] == [True, True, False, False, True, True]
    assert len({episode.trajectory.trajectory_id for episode in episodes}) == 6
    assert len({episode.trajectory.group_id for episode in episodes}) == 3


def test_what_runs_beside_an_episode_does_not_change_it() -> None:
    """Answers depend on the step's seed; two at a time, all at once or alone, they are the same."""

    def script(prompt: str, seed: int) -> str:
        return call_text("1") if seed % 3 == 0 else "ABCD"[seed % 4]

    tasks = FAMILY.tasks("train", 20, seed=1)
    together = play(script, *tasks, group_size=2)
    narrow_sampler = ScriptedSampler(RENDERER, script)
    narrow = play(script, *tasks, group_size=2, max_live=3, sampler=narrow_sampler)
    alone = play(script, tasks[7], group_size=2)
    assert [said(episode) for episode in narrow] == [said(episode) for episode in together]
    assert [said(episode) for episode in alone] == [said(episode) for episode in together[14:16]]
    assert max(narrow_sampler.batches) == 3
    other_seed = play(script, *tasks, group_size=2, seed=1)
    assert [said(episode) for episode in other_seed] != [said(episode) for episode in together]


def test_ids_name_who_played() -> None:
    (one,), (same,), (other,) = (play(look_then_answer(), policy=name) for name in ("bc", "bc", "iql"))
    assert one.trajectory == same.trajectory
    assert other.trajectory.trajectory_id != one.trajectory.trajectory_id
    assert other.trajectory.messages[1].producer.name == "iql"


def test_progress_counts_finished_episodes() -> None:
    seen: list[tuple[int, int]] = []
    play(look_then_answer(), *FAMILY.tasks("train", 4, seed=0), progress=lambda *counts: seen.append(counts))
    assert seen == [(0, 4), (4, 4)]


def test_a_template_that_rewrites_turns_gives_one_segment_a_step() -> None:
    """Earlier assistant text is shortened to "...": each step is sampled from a prompt rendered anew."""
    template = CHAT_TEMPLATE.replace(
        "{{- message.content or '' -}}", "{{- (message.content or '') if loop.last else '...' -}}"
    )
    renderer = Renderer(tokenizer(), chat_template=template)
    assert not renderer.prefix_preserving
    (episode,) = play(
        lambda prompt, seed: "hm " + call_text("123") if "<|tool|>" not in prompt else "A", renderer=renderer
    )
    assert len(episode.segments) == 2
    decoded = [renderer.tokenizer.decode(segment.token_ids) for segment in episode.segments]
    assert decoded[0].endswith("hm " + call_text("123") + "<|end|>")
    assert "<|assistant|>...<tool_call>" in decoded[1]
    assert [set(segment.step_index[segment.action_mask].tolist()) for segment in episode.segments] == [{0}, {1}]
    with pytest.raises(DataError, match="2 segments"):
        _ = episode.token_ids


def test_changed_tokens_are_caught() -> None:
    class Forgetful(Renderer):
        def extend(self, token_ids: Any, new_messages: Any, tools: Any) -> list[int]:
            return super().extend(token_ids, new_messages, tools)[1:]

    with pytest.raises(TemplateError, match="already sampled"):
        play(look_then_answer(), renderer=Forgetful(tokenizer()))


def test_limits_that_cannot_work_are_refused() -> None:
    with pytest.raises(UsageError, match="above the sampler's max_model_len"):
        play(look_then_answer(), max_total_tokens=1000)
    with pytest.raises(UsageError, match="fills the whole episode"):
        play(look_then_answer(), max_total_tokens=40)
    with pytest.raises(UsageError, match="group_size is 0"):
        play(look_then_answer(), group_size=0)
