"""Adapters of other packages, found by their entry points in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODULE = '''
import json

from offline_arl.logs.adapter import RawRecord
from offline_arl.trajectories.schema import Trajectory, text_message


class Turns:
    """The least that is an adapter."""

    name = "turns"

    def recognizes(self, record):
        return isinstance(record, dict) and "turns" in record

    def convert(self, record: RawRecord):
        messages = [text_message(role, text) for role, text in json.loads(record.raw)["turns"]]
        return [Trajectory(record.trajectory_id(), messages, record.source(self.name))]


class Nothing:
    name = "nothing"
'''


def offline_arl(folder: Path, value: str, *arguments: str | Path) -> tuple[int, Any]:
    """Run a command where a package with this entry point is installed; its exit code and its JSON."""
    (folder / "their_logs.py").write_text(MODULE)
    info = folder / "their_logs-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-logs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[offline_arl.log_adapters]\ntheirs = {value}\n")
    done = subprocess.run(
        [sys.executable, "-m", "offline_arl.cli", *map(str, arguments), "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_an_adapter_of_another_package_is_asked_and_listed(tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    log.write_text('{"turns": [["user", "hi"], ["assistant", "hello"]]}\n{"turns": 5}\n')
    code, report = offline_arl(tmp_path, "their_logs:Turns", "ingest", log, "--store", tmp_path / "store")
    assert (code, report["by_format"], report["trajectories"], report["quarantined"]) == (0, {"turns": 2}, 1, 1)
    _, found = offline_arl(tmp_path, "their_logs:Turns", "formats")
    assert found["formats"][-1] == {
        "name": "turns", "title": "", "keeps": "", "lacks": "", "unit": "record", "origin": "entry point",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("their_logs:Nothing", "is no log adapter, it lacks recognizes, convert"),
        ("their_logs:Missing", "cannot be loaded (AttributeError: module 'their_logs' has no attribute 'Missing')"),
    ],
)
def test_a_broken_plug_in_is_named(tmp_path: Path, value: str, reason: str) -> None:
    code, report = offline_arl(tmp_path, value, "formats")
    assert (code, report) == (2, {"error": f"entry point offline_arl.log_adapters: theirs = {value}: {reason}"})
