"""A folder of another kind than an option needs, and settings that nothing reads, are told before anything runs."""

from __future__ import annotations

import json
import re
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
    ("option", "given", "told"),
    [
        ("--policy", "run", "--policy needs a policy, and {run} is the run of a whole pipeline; name one of {policy}"),
        ("--policy", "run/stages/values", "and {run}/stages/values holds value heads; name one of {policy}"),
        ("--policy", "empty", "and {empty} holds nothing of the kind; name another folder"),
        ("--critic", "run", "--critic needs value heads, .* name one of {run}/stages/values/values"),
        ("--replay", "transitions", "--replay takes a dataset of the kind bc, filtered_bc or return_conditioned, and "
         "{transitions} is of the kind transitions; build one with: offline-arl build bc"),
    ],
)  # fmt: skip
def test_where_the_right_folders_are(folders: Path, command: Command, option: str, given: str, told: str) -> None:
    """A run, and a stage of it, name what they hold of the kind; nothing is loaded for it."""
    policy, values = folders / "run/stages/bc/policy", folders / "run/stages/values/values"
    for name, folder in (("policy", policy), ("values", values)):
        folder.mkdir(parents=True)
        (folder / CONTENTS[name][0]).write_text(json.dumps(CONTENTS[name][1]))
    (folders / "run/pipeline.json").write_text("{}")
    (folders / "empty").mkdir()
    (folders / "transitions").mkdir()
    (folders / "transitions/manifest.json").write_text(
        json.dumps({"kind": "transitions", "fingerprint": "", "config": {}, "counts": {}, "excluded": {},
                    "content_sha256": ""})
    )  # fmt: skip
    inputs = {"--policy": folders / "policy", option: folders / given}
    answer = command("online", *chain(*inputs.items()), "--output", folders / "out")
    assert answer.code == 2
    names = {"run": folders / "run", "policy": policy, "empty": folders / "empty"}
    assert re.search(told.format(**names, transitions=folders / "transitions"), answer.stderr), answer.stderr
    assert not (folders / "out").exists()


def test_an_environment_of_tasks_that_are_not_there(tmp_path: Path, command: Command) -> None:
    for name in ("replay:", "file:"):
        answer = command("env", "check", f"{name}{tmp_path / 'x'}")
        assert answer.code == 1
        assert "(No such file or directory)" in answer.stderr
        assert "Errno" not in answer.stderr


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
