"""What the episodes of a step show beyond their means."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from offline_arl.environments.protocol import Task
from offline_arl.online.diagnosis.facts import MAX_TASKS, MAX_TYPES, episode_facts
from offline_arl.rollouts.episode import Episode
from offline_arl.trajectories.schema import Message, Outcome, Source, Trajectory, text_message, tool_call
from offline_arl.trajectories.segment import Segment


def episode(
    task: str = "t",
    *,
    success: bool | None = False,
    score: float | None = None,
    reward: float = 0.0,
    tokens: tuple[int, ...] = (5, 6),
    logprobs: tuple[float, ...] | None = None,
    messages: list[Message] | None = None,
    task_type: str = "x",
    error: bool = False,
) -> Episode:
    """One prompt token and those that were sampled."""
    mask = np.array([False] + [True] * len(tokens))
    segment = Segment(
        trajectory_id="t",
        token_ids=np.array([1, *tokens], dtype=np.int32),
        action_mask=mask,
        step_index=np.where(mask, 0, -1).astype(np.int32),
        fingerprint="f",
        logprobs=np.array([np.nan, *(logprobs or [-0.5] * len(tokens))], dtype=np.float32),
    )
    outcome = Outcome("infrastructure_error") if error else Outcome("scored", success=success, score=score)
    said = [text_message("assistant", "done")] if messages is None else messages
    trajectory = Trajectory("t", [text_message("user", "go"), *said], Source("rollout"), outcome=outcome, group_id=task)
    return Episode(Task(task, task_type, {}), 0, trajectory, [segment], 1, [reward], 1, 0, 0)


def test_entropy_is_the_mean_over_sampled_tokens_of_sound_episodes() -> None:
    found = episode_facts(
        [
            episode(logprobs=(-1.0, -0.5)),
            episode(tokens=(5,), logprobs=(-0.3,)),
            episode(tokens=(5,), logprobs=(float("nan"),)),  # as some engines give now and then
            episode(logprobs=(-9.0, -9.0), error=True),
        ]
    )
    assert found["entropy"] == pytest.approx((1.0 + 0.5 + 0.3) / 3)


def test_a_group_is_uniform_where_all_sound_attempts_sampled_the_same_tokens() -> None:
    same = [episode("a"), episode("a"), episode("a", tokens=(9,), error=True)]
    other = [episode("b"), episode("b", tokens=(5, 7))]
    assert episode_facts([*same, *other])["uniform_groups"] == 0.5
    assert episode_facts([episode("a")])["uniform_groups"] is None  # a single attempt repeats nobody


def test_an_agent_that_said_and_called_nothing_is_empty() -> None:
    silent: list[list[Message]] = [[], [text_message("assistant", " \n")], [Message("assistant")]]
    calls = [Message("assistant", tool_calls=[tool_call("look", {}, id="a")])]
    episodes = [episode(messages=said) for said in (*silent, calls)]
    assert episode_facts(episodes)["empty_episodes"] == 0.75


def test_unjudged_has_neither_verdict_nor_score() -> None:
    episodes = [
        episode(success=None), episode(success=None, score=0.3), episode(success=False),
        episode(success=None, error=True),
    ]  # fmt: skip
    assert episode_facts(episodes)["unjudged"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("group", "share"),
    [
        ([(True, 1.0), (False, 0.0)], 0.0),
        ([(True, 1.0), (False, 1.0)], 0.0),  # a failure that is worth as much says nothing about who is right
        ([(True, 0.9), (False, 1.0)], 0.5),
        ([(True, -0.1), (False, -0.2)], 0.5),
        ([(True, -1.0), (False, 1.0)], 1.0),
        ([(False, 3.0), (False, -3.0)], 0.0),  # without a success there is nothing to be above
        ([(None, 5.0), (True, 1.0)], 0.0),
    ],
)
def test_returns_that_contradict_verdicts(group: list[tuple[bool | None, float]], share: float) -> None:
    episodes = [episode(success=success, reward=reward) for success, reward in group]
    assert episode_facts(episodes)["contradictions"] == share


def test_returns_are_compared_within_a_group_alone() -> None:
    """An easy task may pay less for success than a hard one for half of it."""
    episodes = [episode("easy", success=True, reward=0.2), episode("hard", success=False, reward=0.5)]
    assert episode_facts(episodes)["contradictions"] == 0.0


def test_successes_of_those_who_did_nothing() -> None:
    episodes = [episode(success=True), episode(success=True, messages=[]), episode(success=False, messages=[])]
    assert episode_facts(episodes)["idle_successes"] == 0.5
    assert episode_facts([episode(success=False)])["idle_successes"] is None


def test_types_count_groups_judged_attempts_successes_and_errors() -> None:
    episodes = [
        episode("a", success=True, task_type="x"), episode("a", error=True, task_type="x"),
        episode("b", success=None, task_type="x"), episode("c", success=False, task_type="y"),
    ]  # fmt: skip
    assert episode_facts(episodes)["types"] == {"x": [2, 2 - 1, 1, 1], "y": [1, 1, 0, 0]}


def test_what_is_written_is_json_of_a_bounded_size() -> None:
    episodes: list[Any] = [episode(f"task-{index}", task_type=f"type {index}") for index in range(5000)]
    found = episode_facts(episodes)
    assert found["tasks"] is None
    assert len(found["types"]) == MAX_TYPES
    assert len(json.dumps(found, allow_nan=False)) < 2000
    assert len(episode_facts(episodes[:MAX_TASKS])["tasks"]) == MAX_TASKS


def test_a_step_whose_harness_failed_throughout_has_no_shares() -> None:
    found = episode_facts([episode(error=True)])
    assert [found[name] for name in ("entropy", "empty_episodes", "unjudged", "contradictions")] == [None] * 4
    assert found["types"] == {"x": [1, 0, 0, 1]}
