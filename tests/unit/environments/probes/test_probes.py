"""What holds for every probe: names, tasks, logs that ingest, rollouts, and that nothing an agent says raises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys.lookup import ScriptedSampler

from offline_arl import environments
from offline_arl.environments.probes import double_t_maze, key_to_door, random_walks, stitching
from offline_arl.environments.probes.dynamic_programming import action_values
from offline_arl.environments.probes.environment import episode_measures
from offline_arl.environments.probes.family import Behavior, ProbeFamily, play
from offline_arl.errors import UsageError
from offline_arl.logs.reading import read_logs
from offline_arl.models.tiny import tokenizer_texts, train_tiny_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.rollouts.collect import collect
from offline_arl.trajectories.schema import Message, ToolCall, Trajectory, text_message
from offline_arl.trajectories.step_table import step_rows

FAMILIES: dict[str, ProbeFamily] = {
    module.family.name: module.family for module in (random_walks, double_t_maze, key_to_door, stitching)
}
ILLEGAL_REWARDS = {"random_walks": 0.0, "double_t_maze": -4.0, "key_to_door": 0.0, "stitching": 0.0}
every_probe = pytest.mark.parametrize("name", FAMILIES)


def logged(name: str, folder: Path, count: int) -> list[Trajectory]:
    path = folder / "logs.jsonl"
    FAMILIES[name].write_logs(path, count, seed=0)
    return read_logs(path).trajectories


@every_probe
def test_families_are_found_by_name(name: str) -> None:
    assert environments.load(name) is FAMILIES[name]


@every_probe
def test_tasks_have_their_own_ids_and_longer_lists_extend_shorter_ones(name: str) -> None:
    family = FAMILIES[name]
    splits = {split: family.tasks(split, 300, seed=0) for split in ("train", "validation", "test")}
    ids = [task.task_id for tasks in splits.values() for task in tasks]
    assert len(set(ids)) == 900
    assert splits["test"][:7] == family.tasks("test", 7, seed=0)
    assert all(json.loads(json.dumps(task.payload)) == task.payload for task in splits["test"])
    with pytest.raises(UsageError, match="unknown split 'dev'"):
        family.tasks("dev", 1, seed=0)


@every_probe
def test_the_same_seed_writes_the_same_bytes(name: str, tmp_path: Path) -> None:
    for file, seed in (("a", 1), ("b", 1), ("c", 2)):
        FAMILIES[name].write_logs(tmp_path / file, 12, seed=seed)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]
    with pytest.raises(UsageError, match="positive"):
        FAMILIES[name].write_logs(tmp_path / "d", 0, seed=1)


@every_probe
def test_logs_ingest_without_loss(name: str, tmp_path: Path) -> None:
    trajectories = logged(name, tmp_path, 40)
    records = [json.loads(line) for line in (tmp_path / "logs.jsonl").read_text().splitlines()]
    assert len(trajectories) == len(records) == 40
    for trajectory, record in zip(trajectories, records, strict=True):
        assert [(message.role, message.text) for message in trajectory.messages] == [
            (message["role"], message["content"]) for message in record["messages"]
        ]
        assert trajectory.outcome == msgspec.convert(record["outcome"], type(trajectory.outcome))
        for field in ("task_id", "group_id", "task_type", "agent", "terminated", "truncated", "stop_reason"):
            assert getattr(trajectory, field) == record[field]
        assert trajectory.terminated != trajectory.truncated
        assert (trajectory.messages[-1].role == "user") == trajectory.truncated
        assert trajectory.metadata["id"] == record["id"]


@every_probe
def test_the_logged_rewards_sum_to_the_return(name: str, tmp_path: Path) -> None:
    trajectories = logged(name, tmp_path, 40)
    returns = [sum(row.reward for row in step_rows(item) if row.reward is not None) for item in trajectories]
    assert returns == pytest.approx([item.outcome.components["return"] for item in trajectories])
    assert [episode_measures(item)["return"] for item in trajectories] == returns
    assert [episode_measures(item)["success"] for item in trajectories] == [
        float(item.outcome.success or False) for item in trajectories
    ]
    assert len(set(returns)) > 1


@every_probe
def test_states_and_actions_are_few_tokens(name: str, tmp_path: Path) -> None:
    trajectories = logged(name, tmp_path, 300)
    tokenizer = train_tiny_tokenizer(text for item in trajectories for text in tokenizer_texts(item))
    for trajectory in trajectories[:20]:
        for message in trajectory.messages[1:]:
            tokens = tokenizer.encode(message.text, add_special_tokens=False)
            longest = 3 if name == "key_to_door" else 2  # the room, the column and the row
            assert len(tokens) <= (1 if message.role == "assistant" else longest)


def best_actions(name: str) -> dict[str, str]:
    """The best action for each state that a probe shows (in random_walks, the first edge of a shortest walk)."""
    if name == "random_walks":
        lengths = random_walks.shortest_lengths()
        return {node: min(near, key=lengths.__getitem__) for node, near in random_walks.graph().items() if near}
    mdp = {
        "double_t_maze": double_t_maze.mdp(),
        "stitching": stitching.mdp(),
        "key_to_door": key_to_door.door_room(),
    }[name]
    best = action_values(mdp, discount=0.9).argmax(axis=1)
    found = {state: mdp.actions[action] for state, action in zip(mdp.states, best, strict=True)}
    if name == "key_to_door":
        found |= {f"key {cell}": "left" if cell[0] != "A" else "up" for cell in key_to_door.ROOM.cells}
        found |= {f"{room} {cell}": "up" for room in ("taken", "hall") for cell in key_to_door.ROOM.cells}
    return found


@every_probe
def test_rollouts_play_plain_text_and_the_best_policy_gets_the_exact_optimum(name: str, tmp_path: Path) -> None:
    actions = best_actions(name)
    texts = [text for item in logged(name, tmp_path, 50) for text in tokenizer_texts(item)]
    renderer = Renderer(train_tiny_tokenizer(texts))

    def script(prompt: str, seed: int) -> str:
        return actions[prompt.rsplit("<|user|>", 1)[1].removesuffix("<|end|><|assistant|>")]

    sampler = ScriptedSampler(renderer, script, max_model_len=1024)
    tasks = FAMILIES[name].tasks("test", 25 if name == "double_t_maze" else 20, seed=0)
    episodes = collect(FAMILIES[name], tasks, sampler, renderer, temperature=1.0, max_tokens_per_step=8, seed=0)
    assert np.mean([episode.total_reward for episode in episodes]) == pytest.approx(
        -6.84 if name == "double_t_maze" else 1.0
    )
    for episode in episodes:
        trajectory = episode.trajectory
        assert (trajectory.terminated, trajectory.outcome.success, episode.n_invalid) == (True, True, 0)
        assert episode_measures(trajectory)["return"] == pytest.approx(episode.total_reward)
        assert trajectory.outcome.components["return"] == pytest.approx(episode.total_reward)


@every_probe
def test_a_rollout_of_a_whole_horizon_fits_a_thousand_tokens(name: str, tmp_path: Path) -> None:
    texts = [text for item in logged(name, tmp_path, 300) for text in tokenizer_texts(item)]
    renderer = Renderer(train_tiny_tokenizer(texts))
    sampler = ScriptedSampler(renderer, lambda prompt, seed: "up", max_model_len=1024)
    episodes = collect(
        FAMILIES[name],
        FAMILIES[name].tasks("test", 6, seed=0),
        sampler,
        renderer,
        temperature=1.0,
        max_tokens_per_step=8,
        seed=0,
    )
    assert all(episode.trajectory.stop_reason != "context_length" for episode in episodes)
    if name == "double_t_maze":
        assert [episode.total_reward for episode in episodes] == [-101.0] * 6
        assert all(episode.trajectory.truncated for episode in episodes)


@every_probe
def test_illegal_moves_are_marked_in_the_logs(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    (task,) = family.tasks("train", 1, seed=0)
    behavior = Behavior("mute", lambda states, generator: "?!")
    record = play(family.make(), task, behavior, np.random.default_rng(0))
    (tmp_path / "logs.jsonl").write_bytes(msgspec.json.encode(record))
    (trajectory,) = read_logs(tmp_path / "logs.jsonl").trajectories
    rows = step_rows(trajectory)
    assert all(row.invalid_action for row in rows)
    assert rows[0].reward == ILLEGAL_REWARDS[name]
    assert sum(row.reward for row in rows if row.reward is not None) == trajectory.outcome.components["return"]


said = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["left", " RIGHT ", "up\n", "down", "a", "b", "h", "", "left up", "lef", "g8", "\ud800", "\x00"]),
)
messages = st.one_of(
    said.map(lambda text: text_message("assistant", text)),
    st.just(Message("assistant")),
    said.map(lambda text: Message("assistant", tool_calls=[ToolCall("left", text)])),
)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(list(FAMILIES)), st.lists(messages, min_size=1, max_size=30), st.integers(0, 19))
def test_nothing_an_agent_says_raises(name: str, spoken: list[Message], index: int) -> None:
    family = FAMILIES[name]
    environment = family.make()
    environment.reset(family.tasks("train", 20, seed=0)[index])
    total = 0.0
    for message in spoken:
        result = environment.step(message)
        total += result.reward
        assert (result.stop_reason is not None) == (result.terminated or result.truncated)
        assert not (result.terminated and result.truncated)
        assert len(result.messages) == int(not result.terminated)
        if not knows(name, message):
            assert result.info == {"invalid_actions": 1}
            assert result.reward == ILLEGAL_REWARDS[name]
        if result.terminated or result.truncated:
            with pytest.raises(UsageError, match="reset"):
                environment.step(message)
            break
    assert environment.outcome().components["return"] == pytest.approx(total)


def knows(name: str, message: Message) -> bool:
    """Whether a text could be an action at all."""
    words: Any = random_walks.NODES if name == "random_walks" else ("left", "right", "up", "down")
    return not message.tool_calls and message.text.strip().lower() in words
