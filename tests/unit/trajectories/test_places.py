"""What remembers a model finds it again from another directory, and where both were moved together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from offline_arl.errors import DataError
from offline_arl.models.adapters import adapter_base, remember_base
from offline_arl.trainers.value_record import RECORD_NAME, find_policy
from offline_arl.trajectories.places import located, seen_from
from offline_arl.warmstart import WarmStart

RECORD = {
    "algorithm": "iql_values", "config": {}, "seed": 0, "policy_sha256": "", "layers": [-1], "dataset_fingerprint": "",
    "dataset_sha256": "",
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a policy and values, named by paths that are relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    policy, values = Path("run/stages/bc/policy"), Path("run/stages/values/values")
    for folder in (policy, values):
        folder.mkdir(parents=True)
    (policy / "config.json").write_text(json.dumps({"model_type": "llama"}))
    place = {"policy": str(policy.absolute()), "policy_relative": seen_from(values, policy)}
    (values / RECORD_NAME).write_text(json.dumps({**RECORD, **place}))
    monkeypatch.chdir("/")
    return tmp_path / "run"


def test_values_find_their_policy_from_another_directory(run: Path) -> None:
    assert find_policy(run / "stages/values/values") == run / "stages/bc/policy"


def test_values_find_their_policy_in_a_run_that_was_renamed(run: Path) -> None:
    renamed = run.rename(run.with_name("renamed"))
    assert find_policy(renamed / "stages/values/values") == renamed / "stages/bc/policy"


def test_values_that_were_moved_away_find_the_policy_where_it_was(run: Path, tmp_path: Path) -> None:
    moved = (run / "stages/values/values").rename(tmp_path / "elsewhere")
    assert find_policy(moved) == run / "stages/bc/policy"


def test_a_policy_that_is_gone_is_told_with_the_option_that_names_it(run: Path) -> None:
    shutil.rmtree(run / "stages/bc")
    told = r"values/values: these values read .* the policy .*/stages/bc/policy, which is not there; .*--feature-policy"
    with pytest.raises(DataError, match=told):
        find_policy(run / "stages/values/values")


def test_records_of_earlier_versions_name_a_path_alone(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run / "stages/values/values" / RECORD_NAME
    record.write_text(json.dumps({**RECORD, "policy": "run/stages/bc/policy"}))
    with pytest.raises(DataError, match="--feature-policy"):
        find_policy(record.parent)
    monkeypatch.chdir(run.parent)
    assert find_policy(record.parent).resolve() == run / "stages/bc/policy"


def test_adapters_find_their_base_in_a_run_that_was_renamed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, written = run / "stages/lora/policy/adapter", run / "stages/lora/.policy.adapter"
    written.mkdir(parents=True)
    (written / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "run/stages/bc/policy"}))
    monkeypatch.chdir(run.parent)
    remember_base(written, place)
    monkeypatch.chdir("/")
    place.parent.mkdir()
    written.rename(place)
    assert adapter_base(place) == str(run / "stages/bc/policy")
    renamed = run.rename(run.with_name("renamed"))
    assert adapter_base(renamed / "stages/lora/policy/adapter") == str(renamed / "stages/bc/policy")


def test_a_warm_start_is_found_in_a_run_that_was_renamed(run: Path) -> None:
    start = WarmStart(run / "stages/bc/policy", "abc", value_heads_path=run / "stages/values/values")
    start.save(run / "stages/grpo")
    renamed = run.rename(run.with_name("renamed"))
    found = WarmStart.load(renamed / "stages/grpo")
    assert found.policy_path == renamed / "stages/bc/policy"
    assert found.value_heads_path == renamed / "stages/values/values"


def test_what_lies_beside_comes_before_what_lies_where_it_was(tmp_path: Path) -> None:
    for folder in ("old/policy", "new/policy", "new/values"):
        (tmp_path / folder).mkdir(parents=True)
    relative = seen_from(tmp_path / "old/values", tmp_path / "old/policy")
    assert located(tmp_path / "new/values", tmp_path / "old/policy", relative) == tmp_path / "new/policy"
    assert located(tmp_path / "new/values", tmp_path / "gone", None) is None
