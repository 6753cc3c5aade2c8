"""Ingestion of OpenAI chat JSON Lines against Hugging Face `datasets`, on the same file in the same run.

The peer loads the file, maps it to the columns of the store's table and writes Parquet, as fast as it can be told
to: rows in batches, and the types of the new columns given (else `datasets` 5 takes the new text `messages` for the
old list of that name, and encodes its characters one by one, 13 times slower). It neither checks calls against their
schemas nor keeps what was refused, splits steps, finds duplicates or remembers what it has seen. Importing modules is
timed of neither: a quarter of a second for the log adapters, more for `datasets`.

`OFFLINE_ARL_BENCH_MB` sets the size (default 220), `OFFLINE_ARL_BENCH_RUNS` the number of runs (default 5).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks.long_logs import write_long, write_short

MEGABYTES = int(os.environ.get("OFFLINE_ARL_BENCH_MB", "220"))
RUNS = int(os.environ.get("OFFLINE_ARL_BENCH_RUNS", "5"))

OURS = """
    import sys, time
    from offline_arl.logs.adapter import adapters
    from offline_arl.workflows.ingest import ingest

    adapters()
    started = time.perf_counter()
    report = ingest(sys.argv[1], sys.argv[2])
    assert report.quarantined == report.set_apart == report.duplicates == 0
    print(time.perf_counter() - started)
"""
PEER = """
    import json, sys, time
    import datasets

    datasets.disable_progress_bars()
    started = time.perf_counter()
    loaded = datasets.load_dataset("json", data_files=sys.argv[1], split="train", cache_dir=sys.argv[2] + "/cache")

    text, number = datasets.Value("string"), datasets.Value("int64")
    features = datasets.Features(
        messages=text, tools=text, task_id=text, success=datasets.Value("bool"), n_messages=number, n_steps=number,
        n_tool_calls=number,
    )

    def columns(batch):
        conversations = batch["messages"]
        rows = len(conversations)
        return {
            "messages": [json.dumps(messages) for messages in conversations],
            "tools": [json.dumps(tools) for tools in batch.get("tools", [None] * rows)],
            "task_id": [str(name) for name in batch["task_id"]],
            "success": batch.get("success", [None] * rows),
            "n_messages": [len(messages) for messages in conversations],
            "n_steps": [sum(message["role"] == "assistant" for message in messages) for messages in conversations],
            "n_tool_calls": [
                sum(len(message.get("tool_calls") or []) for message in messages) for messages in conversations
            ],
        }

    mapped = loaded.map(columns, batched=True, remove_columns=loaded.column_names, features=features)
    mapped.to_parquet(sys.argv[2] + "/out.parquet")
    print(time.perf_counter() - started)
"""


def seconds(script: str, log: Path, folder: Path) -> float:
    folder.mkdir()
    command = [sys.executable, "-c", textwrap.dedent(script), str(log), str(folder / "store")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("write", [write_short, write_long])
def test_ingest_against_datasets(tmp_path: Path, write: Callable[[Path, float], None]) -> None:
    pytest.importorskip("datasets")
    log = tmp_path / "log.jsonl"
    write(log, MEGABYTES)
    size = log.stat().st_size / 1e6
    rates: dict[str, list[float]] = {"ours": [], "datasets": []}
    for run in range(RUNS):
        for name, script in (("ours", OURS), ("datasets", PEER)):
            rates[name].append(size / seconds(script, log, tmp_path / f"{name}{run}"))
    ours, peer = (statistics.median(values) for values in rates.values())
    print(f"{write.__name__}: {size:.0f} MB, ours {ours:.1f} MB/s, datasets {peer:.1f} MB/s, ratio {ours / peer:.1f}")
