"""Minari's text episodes. The rows have the shape that its DataCollector (0.5.4) wrote, by way of `logs.containers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Outcome, Producer
from offline_arl.trajectories.validate import errors_of

EPISODE: dict[str, Any] = {
    "id": 3,
    "seed": 7,
    "options": {"level": "easy"},
    "observations": ["Guess.", "Wrong.", "Right!"],
    "actions": ["1", "2"],
    "rewards": [-0.25, 1.0],
    "terminations": [False, True],
    "truncations": [False, False],
    "infos": {"hint": ["a", "b", "c"]},
    "dataset": {"dataset_id": "guess-v0", "algorithm_name": "expert"},
}


def read(tmp_path: Path, *rows: Any) -> LogContents:
    path = tmp_path / "episodes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    contents = read_logs(path)
    assert list(contents.formats.values()) == ["minari"]
    assert [errors_of(trajectory) for trajectory in contents.trajectories] == [[]] * len(contents.trajectories)
    return contents


def test_an_episode(tmp_path: Path) -> None:
    (trajectory,) = read(tmp_path, EPISODE).trajectories
    assert [(message.role, message.text) for message in trajectory.messages] == [
        ("user", "Guess."),
        ("assistant", "1"),
        ("user", "Wrong."),
        ("assistant", "2"),
        ("user", "Right!"),
    ]
    assert trajectory.messages[0].producer == Producer("environment")
    assert trajectory.messages[1].producer == Producer("unknown", "expert")
    assert trajectory.step_indices() == [1, 3]
    assert [(score.value, score.message_index) for score in trajectory.scores] == [(-0.25, 1), (1.0, 3)]
    assert trajectory.outcome == Outcome("scored", score=0.75, scorer="environment")
    assert trajectory.messages[4].metadata == {"info": {"hint": "c"}}
    assert (trajectory.task_type, trajectory.episode_id) == ("guess-v0", "guess-v0/3")


def test_the_same_seed_and_options_are_the_same_task(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        EPISODE,
        EPISODE | {"id": 4, "actions": ["3", "2"]},
        EPISODE | {"options": {"level": "hard"}},
        {key: value for key, value in EPISODE.items() if key != "seed"},
    )
    groups = [trajectory.group_id for trajectory in contents.trajectories]
    assert groups[0] == groups[1] == 'guess-v0/seed 7/{"level":"easy"}'
    assert groups[2] == 'guess-v0/seed 7/{"level":"hard"}'
    assert groups[3] is None


@pytest.mark.parametrize(
    ("terminations", "truncations", "expected"),
    [
        ([False, True], [False, False], (True, False)),
        ([False, False], [False, True], (False, True)),
        # Gymnasium allows both; nothing comes after the end of a task, so it is the end.
        ([False, True], [False, True], (True, False)),
        ([False, False], [False, False], (False, False)),
    ],
)
def test_terminated_and_truncated_are_apart(
    tmp_path: Path, terminations: list[bool], truncations: list[bool], expected: tuple[bool, bool]
) -> None:
    episode = EPISODE | {"terminations": terminations, "truncations": truncations}
    (trajectory,) = read(tmp_path, episode).trajectories
    assert (trajectory.terminated, trajectory.truncated) == expected


def test_observations_with_one_text_and_numbers_as_actions(tmp_path: Path) -> None:
    episode = EPISODE | {"observations": {"text": ["a", "b", "c"], "mask": [[1], [0], [1]]}, "actions": [0, 4]}
    (trajectory,) = read(tmp_path, episode).trajectories
    assert [message.text for message in trajectory.messages] == ["a", "0", "b", "4", "c"]
    assert trajectory.messages[2].metadata["observations"] == {"mask": [0]}


def test_what_is_no_episode_of_text_is_told(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        EPISODE | {"observations": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]},
        EPISODE | {"observations": ["one"]},
        {"id": 0, "total_steps": 3, "seed": 7, "rewards_sum": 0.75},
        {"total_episodes": 3, "total_steps": 7, "data_format": "arrow", "dataset_id": "guess-v0"},
    )
    assert [(fate.fate, fate.reason) for fate in contents.fates] == [
        ("set_apart", "the observations are not text"),
        ("refused", "1 observations, 2 actions and 2 rewards do not fit"),
        ("set_apart", "Minari's metadata of a dataset or episode"),
        ("set_apart", "Minari's metadata of a dataset or episode"),
    ]


def test_a_missing_reward_leaves_the_episode_unscored(tmp_path: Path) -> None:
    (trajectory,) = read(tmp_path, EPISODE | {"rewards": [None, 1.0]}).trajectories
    assert trajectory.outcome == Outcome()
    assert [(score.value, score.message_index) for score in trajectory.scores] == [(1.0, 3)]
