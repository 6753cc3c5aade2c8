"""A folder of another kind than an option needs, and settings that nothing reads, are told before anything runs."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest
from toys.commands import Command

CONTENTS = {
    "store": ("manifest.json", {"store_format": "offline_arl.trajectory_store"}),
    "dataset": ("manifest.json", {"kind": "bc"}),
    "policy": ("config.json", {"model_type": "llama"}),
    "values": ("values.json", {}),
}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for kind, (name, content) in CONTENTS.items():
        (tmp_path / kind).mkdir()
        (tmp_path / kind / name).write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(
    ("option", "given", "told"),
    [
        ("--critic", "policy", "--critic needs value heads, and {folder} holds a policy"),
        ("--critic", "dataset", "--critic needs value heads, and {folder} holds a dataset"),
        ("--replay", "store", "--replay needs a dataset, and {folder} holds a store"),
        ("--feature-policy", "values", "--feature-policy needs a policy, and {folder} holds value heads"),
    ],
)
def test_folders_of_another_kind(folders: Path, command: Command, option: str, given: str, told: str) -> None:
    inputs = {"--policy": folders / "policy", "--critic": folders / "values", option: folders / given}
    answer = command("online", *chain(*inputs.items()), "--output", folders / "out")
    assert answer.code == 2
    assert told.format(folder=folders / given) in answer.stderr


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("turn_advantages.weight=1", "turn_advantages is for a warm start with a critic"),
        ("cloning.rows=8", "cloning is for a warm start with a replay"),
        ("stepss=3", "online: unknown key 'stepss'; did you mean steps"),
    ],
)
def test_settings_that_nothing_reads(folders: Path, command: Command, setting: str, told: str) -> None:
    answer = command("online", "--policy", folders / "policy", "--output", folders / "out", "--set", setting)
    assert (answer.code, (folders / "out").exists()) == (2, False)
    assert told in answer.stderr
