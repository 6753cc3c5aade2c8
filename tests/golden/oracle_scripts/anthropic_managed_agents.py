"""Oracle of the anthropic-managed-agents file, by hand: the turns are few and named here by their event ids.

Run: `python tests/golden/oracle_scripts/anthropic_managed_agents.py`.

What `events.send` sends comes back in the stream with an id: two duplicates. The eight events of the session's state
say no turn and are set apart (docs/formats.md; first they counted as used here, for their stop reason).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle

FILE = "anthropic-managed-agents/anthropic_managed_custom_tools.jsonl"


def text(event: dict[str, Any]) -> str:
    return "".join(block["text"] for block in event["content"])


if __name__ == "__main__":
    rows = [json.loads(line) for line in (REAL_LOGS / FILE).read_text().splitlines()]
    assert len(rows) == 19
    session = rows[0][1]
    events = {payload["id"]: payload for method, payload in rows if method == "client.beta.sessions.events.stream"}
    question = events["sevt_01212YBhhxJuNCLVndXX8vZ5"]
    call = events["sevt_018iPB2RYrthWNKugV6ehDxH"]
    result = events["sevt_01N6qTAumErPqiuFkK6syGod"]
    answer = events["sevt_01Q8GarQqkPv2TRV9LF6FKxd"]
    trajectory = {
        "messages": [
            message("system", session["agent"]["system"]),
            message("user", text(question)),
            message("assistant", calls=[(call["name"], call["input"])]),
            message("tool", text(result), answers=2),
            message("assistant", text(answer)),
        ],
        "outcome": {"status": "unscored", "success": None, "score": None},
        "scores": [],
        "branch": None,
        "parent": None,
        "truncated": False,
        "model": "claude-sonnet-5",
    }
    records = {"used": 9, "refused": 0, "set_apart": 8, "duplicate": 2}
    write_oracle(FILE, {"made_by": "by hand", "records": records, "trajectories": [trajectory]})
