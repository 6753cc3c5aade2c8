"""Rows of pairs and labels on the disk: exact tokens and masks, evidence, deletion."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from pair_examples import attempt, look, result, say

from offline_arl.datasets.deletion import remove_trajectories, rows_by_trajectory
from offline_arl.datasets.pairs import PairDataset, PairRow, UnpairedDataset, load_preferences
from offline_arl.datasets.pairs.build import build_pairs, build_unpaired
from offline_arl.datasets.pairs.mining import families_of
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import DataError, UsageError
from offline_arl.rendering import Renderer
from offline_arl.rewards.preferences import NATURAL_KINDS, PairsConfig, UnpairedConfig
from offline_arl.trajectories.schema import Message, Score, Trajectory

_messages = msgspec.json.Decoder(list[Message])


def built(trajectories: Sequence[Trajectory], renderer: Renderer, folder: Path, **settings: Any) -> PairDataset:
    config = PairsConfig(**settings)
    build_pairs(families_of(trajectories, config), renderer, folder, config=config)
    return PairDataset.load(folder)


def sides(row: PairRow) -> list[tuple[Any, Any, str]]:
    return [
        (row.chosen_token_ids, row.chosen_action_mask, row.chosen),
        (row.rejected_token_ids, row.rejected_action_mask, row.rejected),
    ]


def spans(mask: Any) -> list[tuple[int, int]]:
    """Where runs of True begin and end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def test_the_trained_tokens_spell_the_agents_messages_and_nothing_else(
    attempts: list[Trajectory], renderer: Renderer, tmp_path: Path
) -> None:
    dataset = built(attempts, renderer, tmp_path / "data")
    assert len(dataset) >= 20
    seen = 0
    for row in dataset:
        prompt = _messages.decode(row.prompt)
        tools = json.loads(row.tools or "null")
        for token_ids, mask, text in sides(row):
            messages = [*prompt, *_messages.decode(text)]
            acting = [index for index in range(len(prompt), len(messages)) if messages[index].role == "assistant"]
            assert len(spans(mask)) == len(acting)
            for (start, end), index in zip(spans(mask), acting, strict=True):
                assert token_ids[:start].tolist() == renderer.prompt(messages[:index], tools)
                spelled = renderer.parse(token_ids[start:end].tolist(), tools)
                assert spelled.text == messages[index].text
                assert [call.name for call in spelled.tool_calls] == [call.name for call in messages[index].tool_calls]
                seen += 1
    assert seen > 50


def test_both_sides_begin_with_the_same_prompt(attempts: list[Trajectory], renderer: Renderer, tmp_path: Path) -> None:
    for row in built(attempts, renderer, tmp_path / "data"):
        length = row.prompt_length
        assert row.same_prompt
        assert row.chosen_token_ids[:length].tolist() == row.rejected_token_ids[:length].tolist()
        assert (row.chosen_action_mask[length], row.rejected_action_mask[length]) == (True, True)
        assert not row.chosen_action_mask[:length].any()
        assert not row.rejected_action_mask[:length].any()
        if row.kind == "step":
            assert len(spans(row.chosen_action_mask)) == len(spans(row.rejected_action_mask)) == 1
            assert (row.chosen_action_mask[-1], row.rejected_action_mask[-1]) == (True, True)


def test_a_row_keeps_its_evidence(renderer: Renderer, tmp_path: Path) -> None:
    good = attempt("good", look("a"), result("found"), say("yes"), success=True, task_type="search")
    bad = attempt("bad", say("no"), success=False)
    trajectory, step = built([good, bad], renderer, tmp_path / "data")
    assert (trajectory.kind, step.kind) == ("trajectory", "step")
    assert (step.task_id, step.task_type, step.margin, step.scorer) == ("task", "search", 1.0, "judge")
    assert (step.chosen_score, step.rejected_score, step.weight) == (1.0, 0.0, 1.0)
    assert (step.chosen_trajectory_id, step.rejected_trajectory_id, step.chosen_message) == ("good", "bad", 2)
    assert json.loads(step.evidence) == {
        "chosen": {"trajectory_id": "good", "message": 2, "format": "test", "record": 0},
        "rejected": {"trajectory_id": "bad", "message": 2, "format": "test", "record": 0},
        "chosen_attempts": 1,
        "rejected_attempts": 1,
    }
    assert len({trajectory.pair_id, step.pair_id}) == 2


def test_splits_of_both_sides_are_told(renderer: Renderer, tmp_path: Path) -> None:
    family = [attempt("good", say("yes"), success=True), attempt("bad", say("no"), success=False)]
    config = PairsConfig(pair_kinds=("step",))
    for splits, told in (({}, None), ({"good": "train", "bad": "train"}, "train"), ({"good": "x", "bad": "a"}, "a+x")):
        build_pairs([family], renderer, tmp_path / "data", config=config, splits=splits)
        assert PairDataset.load(tmp_path / "data")[0].split == told


def test_the_manifest_counts_what_is_there_and_what_is_not(
    attempts: list[Trajectory], renderer: Renderer, tmp_path: Path
) -> None:
    dataset = built(attempts, renderer, tmp_path / "data")
    counts = dataset.manifest.counts
    assert counts["rows"] == len(dataset) == sum(counts[f"pairs/{kind}"] for kind in NATURAL_KINDS)
    assert counts["tokens"] == dataset.lengths.sum() == sum(len(row) for row in dataset)
    assert counts["action_tokens"] == sum(mask.sum() for row in dataset for _, mask, _ in sides(row))
    assert counts["trajectories"] == len({name for row in dataset for name in row.trajectory_ids})
    assert counts["compared_groups"] == 30
    assert dataset.manifest.fingerprint == renderer.fingerprint
    assert dataset.chosen_lengths.tolist() == [len(row.chosen_token_ids) for row in dataset]


def test_a_trajectory_pair_of_single_steps_is_no_second_row(renderer: Renderer, tmp_path: Path) -> None:
    family = [attempt("good", say("yes"), success=True), attempt("bad", say("no"), success=False)]
    dataset = built(family, renderer, tmp_path / "data")
    assert [row.kind for row in dataset] == ["trajectory"]
    assert dataset.manifest.excluded == {"duplicate": 1}


def test_sides_beyond_the_limit_are_left_out_and_counted(renderer: Renderer, tmp_path: Path) -> None:
    good = attempt("good", look("a"), result("found " * 50), say("yes"), success=True)
    bad = attempt("bad", say("no"), success=False)
    dataset = built([good, bad], renderer, tmp_path / "data", max_tokens=100)
    assert [row.kind for row in dataset] == ["step"]
    assert dataset.manifest.excluded == {"too_long": 1}
    with pytest.raises(DataError, match=r"the pairs dataset would be empty \(too_long: 2\)"):
        built([good, bad], renderer, tmp_path / "data", max_tokens=10)


@pytest.mark.parametrize("kind", ["pairs", "unpaired"])
def test_without_a_trajectory_it_is_the_dataset_that_was_built_without_it(
    kind: str, attempts: list[Trajectory], renderer: Renderer, tmp_path: Path
) -> None:
    def build(chosen: list[Trajectory], folder: Path) -> None:
        if kind == "pairs":
            built(chosen, renderer, folder)
        else:
            build_unpaired(chosen, renderer, folder, config=UnpairedConfig())

    build(attempts, tmp_path / "data")
    gone = {item.trajectory_id for item in attempts[::5]}
    before = rows_by_trajectory(tmp_path / "data")
    held = gone & set(before["trajectory_id"])
    manifest = remove_trajectories(tmp_path / "data", [*gone, "somebody else's"])
    build([item for item in attempts if item.trajectory_id not in gone], tmp_path / "expected")
    loaded, expected = (load_preferences(tmp_path / name) for name in ("data", "expected"))
    assert manifest.content_sha256 == expected.manifest.content_sha256
    shared = ("rows", "tokens", "action_tokens", "trajectories")
    assert [manifest.counts[name] for name in shared] == [expected.manifest.counts[name] for name in shared]
    identity = "pair_id" if kind == "pairs" else "row_id"
    assert loaded.column(identity) == expected.column(identity)
    assert manifest.deleted == len(held) > 0
    assert not gone & set(rows_by_trajectory(tmp_path / "data")["trajectory_id"])


def test_a_correction_is_trained_like_the_step_in_whose_place_it_stands(renderer: Renderer, tmp_path: Path) -> None:
    edit = Score("edit", correction='{"content": "aha"}', scorer_kind="human")
    (row,) = built([attempt("one", say("hm"), scores=(edit,))], renderer, tmp_path / "data")
    spelled = [renderer.tokenizer.decode(token_ids[mask]) for token_ids, mask, _ in sides(row)]
    assert (row.kind, spelled, row.margin) == ("correction", ["aha<|end|>", "hm<|end|>"], None)
    assert json.loads(row.evidence)["chosen_is_written_by"] == "scorer"


def test_the_wrong_kind_is_told(attempts: list[Trajectory], renderer: Renderer, tmp_path: Path) -> None:
    built(attempts, renderer, tmp_path / "pairs")
    with pytest.raises(UsageError, match="the dataset is of kind pairs, this needs unpaired"):
        UnpairedDataset.load(tmp_path / "pairs")
    with pytest.raises(UsageError, match="the dataset is of kind pairs, this needs segments"):
        SegmentDataset.load(tmp_path / "pairs")


def test_labels_of_attempts_and_of_single_steps(renderer: Renderer, tmp_path: Path) -> None:
    down = Score("user-feedback", 0.0, scorer_kind="human", message_index=2)
    rated = attempt("rated", look("a"), result("found"), say("yes"), success=True, scores=(down,))
    build_unpaired([rated], renderer, tmp_path / "data", config=UnpairedConfig(), splits={"rated": "train"})
    whole, step = UnpairedDataset.load(tmp_path / "data")
    assert (whole.source, whole.label, whole.scorer, whole.split) == ("outcome", True, "judge", "train")
    assert (step.source, step.label, step.scorer, step.score) == ("thumb", False, "user-feedback", 0.0)
    assert len(spans(whole.action_mask)) == 2
    assert [renderer.tokenizer.decode(step.token_ids[start:end]) for start, end in spans(step.action_mask)] == [
        '<tool_call>{"name": "look", "arguments": {"id": "a"}}</tool_call><|end|>'
    ]
    assert step.prompt_length == whole.prompt_length == spans(step.action_mask)[0][0]
    assert [message.role for message in _messages.decode(whole.completion)] == ["assistant", "tool", "assistant"]
