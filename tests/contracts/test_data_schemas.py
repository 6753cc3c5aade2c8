"""The JSON Schema files are what the record types say, and stored trajectories satisfy them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest

from offline_arl.errors import DataError
from offline_arl.trajectories import json_schema
from offline_arl.trajectories.schema import (
    SCHEMA_VERSION,
    Context,
    Message,
    Outcome,
    Source,
    TextPart,
    Trajectory,
    tool_call,
)
from offline_arl.trajectories.upgrade import EARLIER_VERSIONS

EXAMPLE = Trajectory(
    "t",
    [Message("user", [TextPart("Hi")]), Message("assistant", None, [tool_call("f", '{"a": ')])],
    Source("openai_chat", "a.jsonl", 0, "00"),
    contexts=[Context(0, tools="[]")],
    outcome=Outcome("scored", success=True),
)


# SHA-256 of the files of versions that were published: they never change.
FROZEN = {"1.0": "4bf7e598a43a00ca99197803bf4a893250c9f64e31724b374980f4310e494c51"}


def test_schema_files_are_fresh() -> None:
    json_schema.check()


def test_every_version_that_can_be_read_has_its_frozen_file() -> None:
    assert sorted(FROZEN) == sorted(EARLIER_VERSIONS)
    names = {path.name for path in json_schema.DEFAULT_FOLDER.glob("*.schema.json")}
    assert names == {f"trajectory-{version}.schema.json" for version in (*EARLIER_VERSIONS, SCHEMA_VERSION)}
    for version, digest in FROZEN.items():
        text = (json_schema.DEFAULT_FOLDER / f"trajectory-{version}.schema.json").read_bytes()
        assert hashlib.sha256(text).hexdigest() == digest, f"the published schema {version} was changed"


def test_a_trajectory_of_an_earlier_version_satisfies_this_one() -> None:
    record = msgspec.json.decode(msgspec.json.encode(EXAMPLE))
    for version in (*EARLIER_VERSIONS, SCHEMA_VERSION):
        path = json_schema.DEFAULT_FOLDER / f"trajectory-{version}.schema.json"
        jsonschema.Draft202012Validator(json.loads(path.read_bytes())).validate({**record, "schema_version": version})


def test_a_stale_file_is_told_with_the_command(tmp_path: Path) -> None:
    json_schema.schema_path(tmp_path).write_bytes(json_schema.schema_text() + b" ")
    with pytest.raises(DataError, match=r"run: python -m offline_arl\.trajectories\.json_schema"):
        json_schema.check(tmp_path)


def test_trajectories_satisfy_the_schema_and_other_things_do_not() -> None:
    schema = json.loads(json_schema.schema_path().read_bytes())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    record = msgspec.json.decode(msgspec.json.encode(EXAMPLE))
    validator.validate(record)
    record["messages"][0]["role"] = "robot"
    assert [error.json_path for error in validator.iter_errors(record)] == ["$.messages[0].role"]


def test_the_command_checks_and_refuses_what_it_does_not_know() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "offline_arl.trajectories.json_schema", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert run("--check").returncode == 0
    wrong = run("--fix")
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)
