"""Reading logs in memory: files and folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offline_arl.errors import DataError
from offline_arl.logs.reading import read_logs
from offline_arl.trajectories.store import Store
from offline_arl.workflows.ingest import ingest


def test_a_folder_is_read_as_ingestion_reads_it(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "may").mkdir(parents=True)
    for number, name in enumerate(("a.jsonl", "may/b.jsonl")):
        messages = [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": "Yes."}]
        (logs / name).write_text(json.dumps({"messages": messages}))
    (logs / "notes.txt").write_text("No log.")
    contents = read_logs(logs)
    assert contents.formats == {str(logs / "a.jsonl"): "openai_chat", str(logs / "may/b.jsonl"): "openai_chat"}
    assert [item.fate for item in contents.fates] == ["used", "used"]
    ingest(logs, tmp_path / "store")
    stored = Store(tmp_path / "store").trajectories.collect()["trajectory_id"]
    assert [trajectory.trajectory_id for trajectory in contents.trajectories] == list(stored)
    assert len(read_logs([logs / "a.jsonl", logs]).trajectories) == 2, "each file once"
    with pytest.raises(DataError, match=r"absent\.jsonl: no such file or folder"):
        read_logs(tmp_path / "absent.jsonl")
