"""Building and reading dataset folders."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from offline_arl.datasets import (
    BCConfig,
    ReturnConditionedConfig,
    SegmentDataset,
    TransitionsConfig,
    build_bc,
    build_return_conditioned,
    build_transitions,
)
from offline_arl.datasets.bc import return_of_top_fraction
from offline_arl.datasets.return_conditioning import fit_conditioning
from offline_arl.errors import DataError, UsageError
from offline_arl.rendering import Renderer
from offline_arl.rendering.return_conditioning import ConditioningConfig
from offline_arl.rewards.components import RewardConfig
from offline_arl.trajectories.schema import Outcome, Source, Trajectory, text_message

CRASHED = Outcome(status="infrastructure_error")


def attempt(name: str, *replies: str, tail: str | None = None, **fields: object) -> Trajectory:
    """Replies of the agent, each after a message of the user; `tail` is what the user says last."""
    messages = [text_message("system", "Be brief.")]
    for number, reply in enumerate(replies):
        messages += [text_message("user", f"Question {number}?"), text_message("assistant", reply, kind="model")]
    if tail is not None:
        messages.append(text_message("user", tail))
    settings = {"outcome": Outcome("scored", success=True), "terminated": True, "task_id": f"task of {name}"}
    return Trajectory(name, messages, Source("test"), **{**settings, **fields})


def conditioned_by(
    trajectories: list[Trajectory],
    rewards: RewardConfig = RewardConfig(),  # noqa: B008 (frozen)
) -> ReturnConditionedConfig:
    fitted = fit_conditioning(trajectories, rewards=rewards, config=ConditioningConfig())
    return ReturnConditionedConfig(return_conditioning=fitted)


def test_rows_equal_the_rendered_segments(attempts: list[Trajectory], renderer: Renderer, tmp_path: Path) -> None:
    build_bc(attempts, renderer, tmp_path / "data", config=BCConfig())
    dataset = SegmentDataset.load(tmp_path / "data")
    expected = [segment for trajectory in attempts for segment in renderer.render(trajectory)]
    assert len(dataset) == len(expected)
    for row, segment in zip(dataset, expected, strict=True):
        assert row.trajectory_id == segment.trajectory_id
        np.testing.assert_array_equal(row.token_ids, segment.token_ids)
        np.testing.assert_array_equal(row.action_mask, segment.action_mask)
        np.testing.assert_array_equal(row.step_index, segment.step_index)
    assert dataset.lengths.tolist() == [len(segment) for segment in expected]


def test_the_manifest_counts_what_is_there(attempts: list[Trajectory], renderer: Renderer, tmp_path: Path) -> None:
    manifest = build_bc(attempts, renderer, tmp_path / "data", config=BCConfig())
    dataset = SegmentDataset.load(tmp_path / "data")
    assert dataset.manifest == manifest
    assert manifest.fingerprint == renderer.fingerprint
    assert manifest.counts == {
        "rows": len(dataset),
        "trajectories": len(attempts),
        "steps": sum(len(trajectory.step_indices()) for trajectory in attempts),
        "tokens": sum(len(row.token_ids) for row in dataset),
        "action_tokens": sum(int(row.action_mask.sum()) for row in dataset),
    }


def test_filtered_cloning_keeps_successes_and_counts_the_rest(renderer: Renderer, tmp_path: Path) -> None:
    trajectories = [
        attempt("good", "Yes."),
        attempt("full score", "Yes.", outcome=Outcome("scored", score=1.0)),
        attempt("half score", "Yes.", outcome=Outcome("scored", score=0.5)),
        attempt("bad", "No.", outcome=Outcome("scored", success=False)),
        attempt("unscored", "Maybe.", outcome=Outcome()),
        attempt("crashed", "Eh", outcome=CRASHED),
        attempt("silent"),
    ]
    manifest = build_bc(trajectories, renderer, tmp_path / "data", config=BCConfig(only_successes=True))
    assert [row.trajectory_id for row in SegmentDataset.load(tmp_path / "data")] == ["good", "full score"]
    assert manifest.excluded == {"failure": 2, "infrastructure_error": 1, "no_action_tokens": 1, "unscored": 1}


def earning(name: str, *rewards: float | None, **fields: object) -> Trajectory:
    """An attempt whose steps have logged rewards."""
    trajectory = attempt(name, *("Yes." for _ in rewards), **fields)
    for index, reward in zip(trajectory.step_indices(), rewards, strict=True):
        metadata = {} if reward is None else {"reward": reward}
        trajectory.messages[index] = msgspec.structs.replace(trajectory.messages[index], metadata=metadata)
    return trajectory


def test_cloning_the_best_by_logged_return(renderer: Renderer, tmp_path: Path) -> None:
    """Of the five attempts with a return (3, 2, 2, 1, -1), two fifths are two; the tie at the border makes three."""
    logged = RewardConfig(source="logged")
    trajectories = [
        earning("two", 2.0, None),
        earning("three", 1.0, 2.0, outcome=Outcome("scored", success=False)),  # returns decide, not success
        earning("also two", 0.5, 1.5),
        earning("one", 1.0),
        earning("less", -1.0),
        earning("nothing logged", None),
        earning("crashed", 9.0, outcome=CRASHED),
        attempt("silent"),
    ]
    border = return_of_top_fraction(trajectories, fraction=0.4, rewards=logged)
    assert border == 2.0
    manifest = build_bc(trajectories, renderer, tmp_path / "data", config=BCConfig(min_return=border, rewards=logged))
    rows = SegmentDataset.load(tmp_path / "data")
    assert [row.trajectory_id for row in rows] == ["two", "three", "also two"]
    assert manifest.excluded == {"infrastructure_error": 1, "low_return": 2, "unscored": 2}


def test_the_best_by_outcome_are_the_successes(renderer: Renderer) -> None:
    bad = attempt("bad", "No.", outcome=Outcome("scored", success=False))
    assert return_of_top_fraction([bad, attempt("good", "Yes.")], fraction=0.5, rewards=RewardConfig()) == 1.0
    assert return_of_top_fraction([bad, bad], fraction=0.1, rewards=RewardConfig()) == 0.0


def test_without_any_return_nobody_is_best() -> None:
    with pytest.raises(DataError, match="no attempt has a return"):
        return_of_top_fraction([attempt("a", "Yes.")], fraction=0.1, rewards=RewardConfig(source="logged"))


def test_unfiltered_cloning_keeps_failures_and_unscored_attempts(renderer: Renderer, tmp_path: Path) -> None:
    bad = attempt("bad", "No.", outcome=Outcome("scored", success=False))
    trajectories = [bad, attempt("unscored", "Maybe.", outcome=Outcome()), attempt("crashed", "Eh", outcome=CRASHED)]
    manifest = build_bc(trajectories, renderer, tmp_path / "data", config=BCConfig())
    assert [row.success for row in SegmentDataset.load(tmp_path / "data")] == [False, None]
    assert manifest.excluded == {"infrastructure_error": 1}


def test_a_reward_is_what_arrives_before_the_next_step(renderer: Renderer, tmp_path: Path) -> None:
    trajectory = attempt("three", "One.", "Two.", "Three.")
    config = TransitionsConfig(rewards=RewardConfig(step_cost=0.25))
    build_transitions([trajectory], renderer, tmp_path / "data", config=config)
    (row,) = SegmentDataset.load(tmp_path / "data")
    assert row.steps.tolist() == [0, 1, 2]
    assert row.rewards.tolist() == [-0.25, -0.25, 0.75]
    assert row.terminated.tolist() == [False, False, True]
    assert row.truncated.tolist() == [False, False, False]
    assert row.n_steps == 3
    assert not row.final_state


def test_a_truncated_attempt_keeps_its_last_observation(renderer: Renderer, tmp_path: Path) -> None:
    """The state after the last step is the prompt that the agent would have answered next."""
    trajectory = attempt("cut", "One.", "Two.", tail="And then?", terminated=False, truncated=True)
    build_transitions([trajectory], renderer, tmp_path / "data", config=TransitionsConfig())
    (row,) = SegmentDataset.load(tmp_path / "data")
    assert row.token_ids.tolist() == renderer.prompt(trajectory.messages, None)
    assert row.final_state
    assert row.terminated.tolist() == [False, False]
    assert row.truncated.tolist() == [False, True]
    (segment,) = renderer.render(trajectory)
    assert row.action_mask[: len(segment)].tolist() == segment.action_mask.tolist()
    assert not row.action_mask[len(segment) :].any()


def test_the_last_observation_of_a_template_that_rewrites_turns(renderer: Renderer, tmp_path: Path) -> None:
    """Where a conversation cannot be extended, the state after the last step is a row of its own."""
    rewriting = Rewriting(renderer)
    trajectory = attempt("cut", "One.", "Two.", tail="And then?", terminated=False, truncated=True)
    build_transitions([trajectory], rewriting, tmp_path / "data", config=TransitionsConfig())
    rows = list(SegmentDataset.load(tmp_path / "data"))
    assert [row.steps.tolist() for row in rows] == [[0, 1], []]
    assert [row.final_state for row in rows] == [False, True]
    assert rows[1].token_ids.tolist() == renderer.prompt(trajectory.messages, None)
    assert rows[1].n_steps == 2


class Rewriting:
    """The renderer, as if its template could not extend a conversation."""

    prefix_preserving = False

    def __init__(self, renderer: Renderer) -> None:
        self.fingerprint, self.render, self.prompt = renderer.fingerprint, renderer.render, renderer.prompt

    def extend(self, token_ids: object, new_messages: object, tools: object) -> list[int]:
        raise AssertionError("such a template cannot extend")


def test_a_step_cut_by_a_token_limit_has_no_next_state(renderer: Renderer, tmp_path: Path) -> None:
    trajectory = attempt("cut", "One.", "Two", terminated=False, truncated=True)
    build_transitions([trajectory], renderer, tmp_path / "data", config=TransitionsConfig())
    (row,) = SegmentDataset.load(tmp_path / "data")
    assert not row.final_state
    assert row.truncated.tolist() == [False, True]


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_an_unknown_ending_is_decided_by_the_configuration_and_counted(
    ending: str, renderer: Renderer, tmp_path: Path
) -> None:
    trajectory = attempt("open", "One.", terminated=False)
    config = TransitionsConfig(unknown_ending=ending)
    manifest = build_transitions([trajectory], renderer, tmp_path / "data", config=config)
    (row,) = SegmentDataset.load(tmp_path / "data")
    assert (row.terminated.tolist(), row.truncated.tolist()) == ([ending == "terminated"], [ending == "truncated"])
    assert manifest.assumed == {f"ending_{ending}": 1}


def test_attempts_without_a_reward_are_left_out_and_counted(renderer: Renderer, tmp_path: Path) -> None:
    trajectories = [
        attempt("good", "Yes."),
        attempt("unscored", "Maybe.", outcome=Outcome()),
        attempt("crashed", "Eh", outcome=CRASHED),
        attempt("crashed with a score", "Eh", outcome=Outcome("infrastructure_error", score=0.0)),
    ]
    expected = {"infrastructure_error": 2, "unscored": 1}
    transitions = build_transitions(trajectories, renderer, tmp_path / "a", config=TransitionsConfig())
    returns = build_return_conditioned(trajectories, renderer, tmp_path / "b", config=conditioned_by(trajectories))
    assert transitions.excluded == returns.excluded == expected
    assert transitions.counts["trajectories"] == returns.counts["trajectories"] == 1


def test_the_reward_to_go_of_a_step_includes_its_own_reward(renderer: Renderer, tmp_path: Path) -> None:
    trajectories = [attempt("three", "One.", "Two.", "Three.")]
    config = conditioned_by(trajectories, RewardConfig(step_cost=0.25))
    build_return_conditioned(trajectories, renderer, tmp_path / "data", config=config)
    (row,) = SegmentDataset.load(tmp_path / "data")
    assert row.reward_to_go.tolist() == [0.25, 0.5, 0.75]


def test_steps_keep_their_signals_when_a_trajectory_becomes_several_segments(
    attempts: list[Trajectory], renderer: Renderer, tmp_path: Path
) -> None:
    """With a tight token limit, every step still appears once, with the reward it has without the limit."""
    longest = max(attempts, key=lambda trajectory: len(trajectory.step_indices()))
    limit = int(0.8 * len(renderer.render(longest)[0]))
    build_transitions([longest], renderer, tmp_path / "whole", config=TransitionsConfig())
    build_transitions([longest], renderer, tmp_path / "cut", config=TransitionsConfig(max_tokens=limit))
    (whole,) = SegmentDataset.load(tmp_path / "whole")
    cut = list(SegmentDataset.load(tmp_path / "cut"))
    assert len(cut) > 1
    assert np.concatenate([row.steps for row in cut]).tolist() == whole.steps.tolist()
    assert np.concatenate([row.rewards for row in cut]).tolist() == whole.rewards.tolist()
    assert np.concatenate([row.terminated for row in cut]).tolist() == whole.terminated.tolist()


def test_the_content_hash_follows_the_content(renderer: Renderer, tmp_path: Path) -> None:
    def digest(name: str, *trajectories: Trajectory) -> str:
        return build_bc(trajectories, renderer, tmp_path / name, config=BCConfig()).content_sha256

    same = digest("a", attempt("x", "Yes.")), digest("b", attempt("x", "Yes."))
    assert same[0] == same[1]
    assert digest("c", attempt("x", "No.")) != same[0]


def test_an_empty_dataset_is_an_error_that_gives_the_reasons(renderer: Renderer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="unscored: 1"):
        build_transitions(
            [attempt("x", "Yes.", outcome=Outcome())], renderer, tmp_path / "data", config=TransitionsConfig()
        )
    assert list(tmp_path.iterdir()) == []


def test_a_failed_build_leaves_the_old_dataset(renderer: Renderer, tmp_path: Path) -> None:
    build_bc([attempt("old", "Yes.")], renderer, tmp_path / "data", config=BCConfig())

    def broken() -> object:
        yield attempt("new", "Yes.")
        raise RuntimeError("the store went away")

    with pytest.raises(RuntimeError, match="went away"):
        build_bc(broken(), renderer, tmp_path / "data", config=BCConfig())
    assert [row.trajectory_id for row in SegmentDataset.load(tmp_path / "data")] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_folder_of_something_else_is_not_overwritten(renderer: Renderer, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not a dataset folder"):
        build_bc([attempt("x", "Yes.")], renderer, tmp_path, config=BCConfig())
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_damaged_folders_are_one_line_errors(renderer: Renderer, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with pytest.raises(DataError, match="not a dataset folder"):
        SegmentDataset.load(folder)
    build_bc([attempt("x", "Yes."), attempt("y", "No.")], renderer, folder, config=BCConfig())
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
    manifest["counts"]["rows"] = 3
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(DataError, match="2 rows but its manifest says 3"):
        SegmentDataset.load(folder)
    (folder / "part-00000.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match="cannot read the dataset"):
        SegmentDataset.load(folder)
    (folder / "manifest.json").write_text('{"kind": ')
    with pytest.raises(DataError, match=r"manifest\.json"):
        SegmentDataset.load(folder)


def test_a_dataset_indexes_like_a_sequence(attempts: list[Trajectory], renderer: Renderer, tmp_path: Path) -> None:
    build_bc(attempts[:5], renderer, tmp_path / "data", config=BCConfig())
    dataset = SegmentDataset.load(tmp_path / "data")
    assert dataset[-1].trajectory_id == dataset[len(dataset) - 1].trajectory_id
    assert [row.trajectory_id for row in dataset[1:3]] == [dataset[1].trajectory_id, dataset[2].trajectory_id]
    with pytest.raises(IndexError):
        dataset[len(dataset)]
    with pytest.raises(UsageError, match="kind bc"):
        dataset.require_kind("transitions")
