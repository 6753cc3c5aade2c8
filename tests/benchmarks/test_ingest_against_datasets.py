"""Ingestion of OpenAI chat JSON Lines against Hugging Face `datasets`, on the same file in the same run.

The peer loads the file, maps it to the columns of the store's table and writes Parquet. It neither checks calls
against their schemas nor keeps what was refused, splits steps, finds duplicates or remembers what it has seen.

`OFFLINE_ARL_BENCH_MB` sets the size (default 220), `OFFLINE_ARL_BENCH_RUNS` the number of runs (default 5).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from offline_arl.environments.support_desk.logs import write_logs

MEGABYTES = int(os.environ.get("OFFLINE_ARL_BENCH_MB", "220"))
RUNS = int(os.environ.get("OFFLINE_ARL_BENCH_RUNS", "5"))
AIRLINE = Path(__file__).resolve().parents[3] / "shared/real_logs/tau-bench/gpt-4o-airline.json"

OURS = """
    import sys, time
    from offline_arl.workflows.ingest import ingest

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

    def columns(row):
        messages = row["messages"]
        calls = sum(len(message.get("tool_calls") or []) for message in messages)
        return {
            "messages": json.dumps(messages),
            "tools": json.dumps(row.get("tools")),
            "task_id": str(row["task_id"]),
            "success": row.get("success"),
            "n_messages": len(messages),
            "n_steps": sum(message["role"] == "assistant" for message in messages),
            "n_tool_calls": calls,
        }

    mapped = loaded.map(columns, remove_columns=loaded.column_names)
    mapped.to_parquet(sys.argv[2] + "/out.parquet")
    print(time.perf_counter() - started)
"""


def write_short(path: Path) -> None:
    """Support-desk conversations, about 2 kB each, a third of it tools; every record is another one."""
    count = 0
    with path.open("wb") as stream:
        while stream.tell() < MEGABYTES * 1e6:
            part = path.with_suffix(".part")
            write_logs(part, 20_000, seed=count)
            stream.write(part.read_bytes())
            part.unlink()
            count += 1


def write_long(path: Path) -> None:
    """Real airline conversations of about 18 kB, each made different by its number."""
    if not AIRLINE.exists():
        pytest.skip(f"{AIRLINE} is not here")
    results = json.loads(AIRLINE.read_bytes())
    number = 0
    with path.open("w") as stream:
        while stream.tell() < MEGABYTES * 1e6:
            result = results[number % len(results)]
            messages = [*result["traj"], {"role": "user", "content": f"Attempt {number}"}]
            record = {"messages": messages, "task_id": result["task_id"], "success": result["reward"] == 1}
            stream.write(json.dumps(record) + "\n")
            number += 1


def seconds(script: str, log: Path, folder: Path) -> float:
    folder.mkdir()
    command = [sys.executable, "-c", textwrap.dedent(script), str(log), str(folder / "store")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("write", [write_short, write_long])
def test_ingest_against_datasets(tmp_path: Path, write: object) -> None:
    pytest.importorskip("datasets")
    log = tmp_path / "log.jsonl"
    assert callable(write)
    write(log)
    size = log.stat().st_size / 1e6
    rates: dict[str, list[float]] = {"ours": [], "datasets": []}
    for run in range(RUNS):
        for name, script in (("ours", OURS), ("datasets", PEER)):
            rates[name].append(size / seconds(script, log, tmp_path / f"{name}{run}"))
    ours, peer = (statistics.median(values) for values in rates.values())
    print(f"{write.__name__}: {size:.0f} MB, ours {ours:.1f} MB/s, datasets {peer:.1f} MB/s, ratio {ours / peer:.1f}")
