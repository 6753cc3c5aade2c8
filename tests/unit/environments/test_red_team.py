"""Attacks that a desk can resist, and data made of those that a policy falls for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from toys.lookup import LookupFamily

from offline_arl.environments import load
from offline_arl.environments.checking import check
from offline_arl.environments.demonstrations import demonstration, training_cases
from offline_arl.environments.protocol import Task, task_metadata, task_of
from offline_arl.environments.support_desk import family as desk
from offline_arl.environments.support_desk.red_team import ATTACKS, family
from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.schema import Outcome, Source, Trajectory
from offline_arl.trajectories.store import Store, open_store
from offline_arl.workflows.environments import training_cases_of


def test_every_attack_can_be_resisted_and_giving_in_fails() -> None:
    tasks = [task for split in ("train", "validation", "test") for task in family.tasks(split, 100, seed=0)]
    assert {task.task_type for task in tasks} == set(ATTACKS)
    assert check(family, tasks).problems == []
    assert load("support_desk_red_team") is family


def test_splits_share_no_conversation() -> None:
    openings = [{task.payload["opening"] for task in family.tasks(split, 200, seed=1)} for split in ("train", "test")]
    assert not openings[0] & openings[1]
    assert family.tasks("test", 5, seed=3) == family.tasks("test", 10, seed=3)[:5]


def test_a_task_survives_the_way_through_metadata() -> None:
    (task,) = [task for task in family.tasks("test", 5, seed=0) if task.task_type == "note"]
    kept = msgspec.json.decode(msgspec.json.encode(task_metadata(task)))
    episode = Trajectory(
        "t", [], Source("rollout"), task_id=task.task_id, task_type=task.task_type, metadata={"task": kept}
    )
    assert task_of(episode) == task
    assert task.allowed_tools == ("get_order",)
    assert task_of(msgspec.structs.replace(episode, metadata={})) is None


def failed(task: Task) -> Trajectory:
    return demonstration(family, task, family.examples(task).failure or (), agent="policy")


def test_failures_become_pairs_with_the_example_of_success(tmp_path: Path) -> None:
    tasks = family.tasks("test", 4, seed=0)
    good = demonstration(family, tasks[0], family.examples(tasks[0]).success or (), agent="policy")
    crashed = msgspec.structs.replace(failed(tasks[1]), trajectory_id="x", outcome=Outcome("infrastructure_error"))
    episodes = [good, crashed, failed(tasks[2]), msgspec.structs.replace(failed(tasks[2]), trajectory_id="again")]
    cases = list(training_cases(family, episodes))
    assert [(case.agent, case.outcome.success) for case in cases] == [
        ("example", True), ("policy", False), ("policy", False),
    ]  # fmt: skip
    assert {case.group_id for case in cases} == {tasks[2].task_id}
    assert sum(message.metadata.get("reward", 0.0) for message in cases[0].messages) == pytest.approx(1.0)

    with Store.create(tmp_path / "episodes").writer() as writer:
        for episode in episodes:
            writer.add(episode)
    made = training_cases_of("support_desk_red_team", tmp_path / "episodes", tmp_path / "cases")
    assert (made["failures"], made["examples"]) == (2, 1)
    assert [item.trajectory_id for item in open_store(tmp_path / "cases").iter_trajectories()] == [
        case.trajectory_id for case in cases
    ]


def test_where_nothing_failed_or_nothing_is_known_it_is_told(tmp_path: Path) -> None:
    with Store.create(tmp_path / "episodes").writer() as writer:
        task = desk.tasks("test", 1, seed=0)[0]
        writer.add(demonstration(desk, task, desk.examples(task).success or (), agent="policy"))
    with pytest.raises(DataError, match="no failed episode"):
        training_cases_of("support_desk", tmp_path / "episodes", tmp_path / "cases")
    assert not (tmp_path / "cases").exists()
    with pytest.raises(UsageError, match="no examples"):
        list(training_cases(LookupFamily(), []))
