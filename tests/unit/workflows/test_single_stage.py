"""One stage at a time: what may not be combined is refused, and a refusal leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import polars as pl
import pytest

from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.splits import assign_splits
from offline_arl.trajectories.store import Store
from offline_arl.workflows.ingest import ingest
from offline_arl.workflows.single import build_from_store, new_folder, run_stage


@pytest.fixture
def built(tmp_path: Path) -> dict[str, Path]:
    """Two datasets of stores with different words, hence with different tiny tokenizers."""
    made = {}
    for name, text in (("one", "Where is the parcel?"), ("two", "Play a song.")):
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": f"{text} Done."}]
        log = tmp_path / f"{name}.jsonl"
        log.write_text(json.dumps({"messages": messages, "success": True}))
        ingest(log, tmp_path / f"{name}-store")
        made[name] = tmp_path / name
        build_from_store(tmp_path / f"{name}-store", made[name], form="bc")
    return made


def test_a_dataset_for_another_tokenizer_is_refused(built: dict[str, Path], tmp_path: Path) -> None:
    """Its token ids are in range and would train without an error."""
    raw = {"kind": "train", "algorithm": "bc", "max_steps": 1}
    with pytest.raises(DataError, match=r"two/dataset: was built for another tokenizer .* build it again"):
        run_stage(raw, {"dataset": built["two"], "policy": built["one"]}, tmp_path / "bc", name="bc")
    assert not list(tmp_path.glob("*bc*"))
    run_stage(raw, {"dataset": str(built["one"]), "policy": str(built["one"])}, str(tmp_path / "bc"), name="bc")
    assert (tmp_path / "bc/policy/model.safetensors").exists()


def test_what_a_killed_command_left_goes_when_the_same_output_is_begun_again(tmp_path: Path) -> None:
    """Process numbers come again: in a container a command has the number of the one before it. Others stay."""
    with subprocess.Popen(["true"]) as dead:
        pass
    for number in (dead.pid, os.getpid(), os.getppid(), "x"):
        (tmp_path / f".out.unfinished-{number}").mkdir()
    (tmp_path / f".other.unfinished-{dead.pid}").mkdir()
    with new_folder(tmp_path / "out") as work:
        (work / "made").touch()
    assert {path.name for path in tmp_path.iterdir()} == {
        "out", f".out.unfinished-{os.getppid()}", ".out.unfinished-x", f".other.unfinished-{dead.pid}",
    }  # fmt: skip


def test_a_setting_cannot_name_another_input(built: dict[str, Path], tmp_path: Path) -> None:
    raw = {"kind": "train", "algorithm": "bc"}
    inputs = {"dataset": built["one"], "policy": built["one"]}
    with pytest.raises(UsageError, match="bc: dataset cannot be set to 'other'; name the folder with its own option"):
        run_stage(raw, inputs, tmp_path / "bc", name="bc", overrides=["dataset=other"])
    with pytest.raises(UsageError, match="build: store cannot be set to 'other'"):
        build_from_store(tmp_path / "one-store", tmp_path / "bc", form="bc", overrides=["store=other"])
    assert not list(tmp_path.glob("*bc*"))


def test_steps_beyond_the_limit_are_counted_once_with_the_setting_that_admits_them(tmp_path: Path) -> None:
    log, store = tmp_path / "log.jsonl", tmp_path / "store"
    numbers = " ".join(map(str, range(400)))  # a repeated word would become a few long tokens
    short, long = ({"role": "assistant", "content": text} for text in ("Yes.", numbers))
    question = {"role": "user", "content": "Well?"}
    log.write_text("\n".join(json.dumps({"messages": [question, answer, question, long]}) for answer in (short, long)))
    ingest(log, store)
    outputs = build_from_store(store, tmp_path / "some", form="bc", overrides=["max_tokens=100"])
    (note,) = outputs.notes
    assert "1 trajectories, 1 steps" in note
    assert "; 3 steps have more than 100 tokens even without their history: left out; raise max_tokens" in note
    (note,) = build_from_store(store, tmp_path / "all", form="bc", overrides=["max_tokens=null"]).notes
    assert "2 trajectories, 4 steps" in note
    assert "left out" not in note

    log.write_text(json.dumps({"messages": [question, long]}))
    ingest(log, tmp_path / "long")
    with pytest.raises(DataError, match=r"would be empty .*; 1 steps have more than 100 tokens .* set it to null"):
        build_from_store(tmp_path / "long", tmp_path / "none", form="bc", overrides=["max_tokens=100"])
    assert not (tmp_path / "none").exists()


def test_a_dataset_of_one_split_holds_nothing_of_the_others(tmp_path: Path) -> None:
    log, store = tmp_path / "log.jsonl", tmp_path / "store"
    answers = [{"role": "assistant", "content": f"Parcel {number} is on its way."} for number in range(10)]
    question = {"role": "user", "content": "Where is it?"}
    log.write_text(
        "\n".join(json.dumps({"messages": [question, answer], "task_id": str(n)}) for n, answer in enumerate(answers))
    )
    ingest(log, store)
    (note,) = build_from_store(store, tmp_path / "before", form="bc").notes
    assert "10 trajectories" in note
    assign_splits(Store(store), {"train": 0.7, "test": 0.3}, seed=0)
    whole, warning = build_from_store(store, tmp_path / "whole", form="bc").notes
    assert "10 trajectories" in whole
    assert warning == "all splits of the store are in it: test, train"
    (note,) = build_from_store(store, tmp_path / "train", form="bc", splits=["train"]).notes
    assert "7 trajectories" in note
    rows = pl.read_parquet(tmp_path / "train/dataset/*.parquet")
    of_train = Store(store).trajectories.filter(pl.col("split") == "train").collect()["trajectory_id"]
    assert set(rows["trajectory_id"]) == set(of_train)
    with pytest.raises(UsageError, match="no split 'tran'; did you mean train"):
        build_from_store(store, tmp_path / "none", form="bc", splits=["tran"])


def test_logs_that_nobody_judged_are_told_what_they_need(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}))
    ingest(log, tmp_path / "store")
    for form in ("filtered_bc", "transitions", "return_conditioned"):
        with pytest.raises(DataError, match=r"unscored: 1\); what nobody judged needs an outcome \(offline-arl label"):
            build_from_store(tmp_path / "store", tmp_path / form, form=form)
