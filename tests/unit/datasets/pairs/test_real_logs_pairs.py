"""Pairs and labels of real logs, counted exactly."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from offline_arl.datasets.pairs import PairDataset, UnpairedDataset
from offline_arl.datasets.pairs.build import build_pairs, build_unpaired
from offline_arl.datasets.pairs.labels import labels_of
from offline_arl.datasets.pairs.mining import families_of, mine
from offline_arl.models.tiny import tokenizer_texts, train_tiny_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.rewards.preferences import PairsConfig, UnpairedConfig
from offline_arl.trajectories.schema import Trajectory
from offline_arl.trajectories.store import open_store
from offline_arl.workflows.ingest import ingest

LOGS = Path(__file__).parents[5] / "shared/real_logs"


def read(name: str, tmp_path: Path) -> list[Trajectory]:
    if not (LOGS / name).exists():
        pytest.skip(f"{LOGS / name} is not there")
    ingest([LOGS / name], tmp_path / "store")
    return list(open_store(tmp_path / "store").iter_trajectories())


def test_the_airline_logs_have_88_trajectory_pairs_from_26_tasks_and_no_step_pair(tmp_path: Path) -> None:
    trajectories = read("tau-bench/gpt-4o-airline.json", tmp_path)
    counts: Counter[str] = Counter()
    config = PairsConfig()
    pairs = [pair for family in families_of(trajectories, config) for pair in mine(family, config, counts)]
    assert Counter(pair.kind for pair in pairs) == {"trajectory": 88}
    assert len({pair.chosen.trajectory.task_id for pair in pairs}) == counts["mixed_groups"] == 26
    assert (counts["compared_groups"], counts["shared_states"]) == (50, 0)
    verdicts = [label.label for item in trajectories for label in labels_of(item, UnpairedConfig(), counts)]
    assert (verdicts.count(True), verdicts.count(False)) == (84, 116)


def test_the_airline_logs_become_rows(tmp_path: Path) -> None:
    trajectories = read("tau-bench/gpt-4o-airline.json", tmp_path)[:80]
    texts = (text for trajectory in trajectories[:10] for text in tokenizer_texts(trajectory))
    renderer = Renderer(train_tiny_tokenizer(texts, vocabulary_size=400))
    config = PairsConfig()
    manifest = build_pairs(families_of(trajectories, config), renderer, tmp_path / "pairs", config=config)
    assert manifest.counts["rows"] == manifest.counts["pairs/trajectory"] == len(PairDataset.load(tmp_path / "pairs"))
    labels = build_unpaired(trajectories, renderer, tmp_path / "labels", config=UnpairedConfig())
    assert len(UnpairedDataset.load(tmp_path / "labels")) == labels.counts["rows"] == 80


def test_the_forked_session_has_the_answer_to_the_request_that_stands(tmp_path: Path) -> None:
    trajectories = read("claude-code/claude_forked_session.jsonl", tmp_path)
    counts: Counter[str] = Counter()
    ((pair,),) = [mine(family, PairsConfig(), counts) for family in families_of(trajectories, PairsConfig())]
    assert (pair.kind, pair.scorer, pair.margin) == ("fork", "kept", None)
    assert pair.chosen.messages[:3] == pair.rejected.messages[:3]
    assert pair.chosen.messages[2].text.startswith("Actually, let's try MergeSort instead")
    written = [side.messages[-1].tool_calls[0].arguments for side in (pair.chosen, pair.rejected)]
    assert [str((arguments or {})["file_path"]).rsplit("/")[-1] for arguments in written] == [
        "mergesort.py",
        "quicksort.py",
    ]


def test_a_langfuse_correction_that_repeats_the_answer_or_changes_it_is_told_apart(tmp_path: Path) -> None:
    trajectories = read("langfuse", tmp_path)
    counts: Counter[str] = Counter()
    pairs = [
        pair for family in families_of(trajectories, PairsConfig()) for pair in mine(family, PairsConfig(), counts)
    ]
    corrected = [item for item in trajectories if any(score.correction is not None for score in item.scores)]
    assert len(corrected) == 1
    assert len(pairs) + counts["correction_equals_the_answer"] == 1
