"""Oracle of the codex-rollout file, by hand: items by line number, grouped to turns as they were sampled.

Run: `python tests/golden/oracle_scripts/codex_rollout.py`.

The items between two results or messages of the user are one turn. The `compacted` record (line 13) ends the first
history; what follows was sampled from the summary, and is a trajectory of its own with the first as its parent. What
else stood before the summary was not recorded (docs/formats.md). The `event_msg` holds counts only: set apart.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle

FILE = "codex-rollout/session_with_compaction.jsonl"

if __name__ == "__main__":
    rows = [json.loads(line)["payload"] for line in (REAL_LOGS / FILE).read_text().splitlines()]

    def said(number: int) -> str:
        return "".join(part["text"] for part in rows[number - 1]["content"])

    def thought(number: int) -> str:
        return "".join(part["text"] for part in rows[number - 1]["summary"])

    def call(number: int) -> tuple[str, Any]:
        return rows[number - 1]["name"], rows[number - 1]["arguments"]

    before = [
        message("user", said(3)),
        message("assistant", said(5), reasoning=thought(4), calls=[call(6)]),
        message("tool", rows[6]["output"], answers=1),
        message("assistant", said(8)),
        message("user", said(9)),
        message("assistant", said(10)),
        message("user", said(11)),
        message("assistant", said(12)),
    ]
    after = [
        message("user", rows[12]["message"]),
        message("user", said(14)),
        message("assistant", said(16), reasoning=thought(15), calls=[call(17)]),
        message("tool", rows[17]["output"], answers=2),
        message("assistant", said(19)),
    ]
    common: dict[str, Any] = {
        "outcome": {"status": "unscored", "success": None, "score": None},
        "scores": [],
        "branch": None,
        "terminated": False,
        "truncated": False,
        "tools": None,
        "model": "gpt-4.5-turbo",
    }
    records = {"used": 19, "refused": 0, "set_apart": 1, "duplicate": 0}
    trajectories = [{"messages": before, "parent": None} | common, {"messages": after, "parent": 0} | common]
    write_oracle(FILE, {"made_by": "by hand", "records": records, "trajectories": trajectories})
