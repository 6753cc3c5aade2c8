"""Each step of an online training is in its store once, wherever it was interrupted and went on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from toys.lookup import demonstrations, task
from toys.online_runs import train

from offline_arl.online import state
from offline_arl.online.episode_store import EpisodeStore, training_policy
from offline_arl.rollouts.episode import Episode
from offline_arl.trajectories.store import Store

SETTINGS: dict[str, Any] = {"steps": 4, "save_every": 2, "validation_every": 10}
EACH = {training_policy(step): 16 for step in range(4)}


def steps_of(store: Path) -> Counter[str | None]:
    return Counter(trajectory.model for trajectory in Store(store).iter_trajectories())


def episodes(step: int, seed: int) -> list[Episode]:
    """Two attempts; another seed, other attempts."""
    played = [
        msgspec.structs.replace(found, trajectory_id=f"{step}-{seed}-{number}", model=training_policy(step))
        for number, found in enumerate(demonstrations(2, accuracy=1.0, seed=seed))
    ]
    return [Episode(task("000", "A"), 0, trajectory, [], 0, [], 1, 0, 0) for trajectory in played]


def test_an_interruption_loses_no_step_that_a_state_covers(lookup_policy: Path, tmp_path: Path) -> None:
    """Interrupted a step after the state: the two steps before it stay, the third is played again."""
    with pytest.raises(KeyboardInterrupt):
        train(lookup_policy, tmp_path, interrupt_at=3, **SETTINGS)
    store = tmp_path / "state/store"
    assert steps_of(store) == {training_policy(0): 16, training_policy(1): 16}
    told: list[str] = []
    result = train(lookup_policy, tmp_path, tell=told.append, **SETTINGS)
    assert told[0] == f"going on after step 2 of 4, from {tmp_path / 'state/checkpoint-2'}"
    assert told[1].startswith("step 4 of 4: validation success ")
    assert len(told) == 2
    assert steps_of(store) == EACH
    assert len(Store(store)) == sum(record.n_episodes for record in result.history)
    assert Store(store).verify() == []


def test_killed_between_the_store_and_the_state(
    lookup_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has steps that no state covers; they are played again, from the earlier state on."""
    complete, marked = state.resuming.mark_complete, []

    def killed(checkpoint: Path) -> None:
        marked.append(checkpoint.name)
        if checkpoint.name == "checkpoint-4":
            raise KeyboardInterrupt
        complete(checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr(state.resuming, "mark_complete", killed)
        with pytest.raises(KeyboardInterrupt):
            train(lookup_policy, tmp_path, **SETTINGS)
    assert marked == ["checkpoint-2", "checkpoint-4"]
    assert steps_of(tmp_path / "state/store") == EACH
    train(lookup_policy, tmp_path, **SETTINGS)
    assert steps_of(tmp_path / "state/store") == EACH


def test_a_training_with_other_settings_begins_with_an_empty_store(lookup_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(lookup_policy, tmp_path, interrupt_at=3, **SETTINGS)
    train(lookup_policy, tmp_path, **{**SETTINGS, "steps": 1, "learning_rate": 1e-4})
    assert steps_of(tmp_path / "state/store") == {training_policy(0): 16}


def test_what_is_played_again_replaces_what_no_state_covers(tmp_path: Path) -> None:
    """A sampler that gives other tokens the second time makes other ids."""
    with EpisodeStore(tmp_path / "store") as kept:
        kept.begin(0)
        for step, seed in ((0, 0), (1, 1)):
            kept.add(step, episodes(step, seed))
            kept.commit()
    with EpisodeStore(tmp_path / "store") as kept:
        kept.begin(1)
        kept.add(1, episodes(1, 2))
    expected = [*episodes(0, 0), *episodes(1, 2)]
    assert list(Store(tmp_path / "store").iter_trajectories()) == [episode.trajectory for episode in expected]
