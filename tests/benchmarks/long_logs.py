"""Logs of any size in which no two records are alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offline_arl.environments.support_desk.logs import write_logs

AIRLINE = Path(__file__).resolve().parents[3] / "shared/real_logs/tau-bench/gpt-4o-airline.json"
_CONVERSATIONS = 5_000
_USER = b'{"role":"user","content":"'


def write_short(path: Path, megabytes: float) -> None:
    """Support-desk conversations, about 2 kB each, a third of it tools; a number makes each another one."""
    small = path.with_suffix(".small")
    write_logs(small, _CONVERSATIONS, seed=0)
    lines = small.read_bytes().splitlines(keepends=True)
    small.unlink()
    size = number = 0
    with path.open("wb", buffering=1 << 20) as stream:
        while size < megabytes * 1e6:
            before, user, after = lines[number % len(lines)].partition(_USER)
            assert user, "the support desk writes its messages in another way now"
            size += stream.write(b"%s%s(%d) %s" % (before, user, number, after))
            number += 1


def write_long(path: Path, megabytes: float) -> None:
    """Real airline conversations of about 18 kB, 27 messages, results of every length; a number tells them apart."""
    if not AIRLINE.exists():
        pytest.skip(f"{AIRLINE} is not here")
    results = json.loads(AIRLINE.read_bytes())
    size = number = 0
    with path.open("w") as stream:
        while size < megabytes * 1e6:
            result = results[number % len(results)]
            messages = [*result["traj"], {"role": "user", "content": f"Attempt {number}"}]
            record = {"messages": messages, "task_id": result["task_id"], "success": result["reward"] == 1}
            size += stream.write(json.dumps(record) + "\n")
            number += 1
