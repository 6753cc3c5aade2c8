"""Oracle of the chat-messages-jsonl file: one conversation a line, read with the standard library.

Run: `python tests/golden/oracle_scripts/chat_messages_jsonl.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle

UNSCORED = {"status": "unscored", "success": None, "score": None}

if __name__ == "__main__":
    file = "chat-messages-jsonl/tinker_conversations.jsonl"
    rows = [json.loads(line) for line in (REAL_LOGS / file).read_text().splitlines()]
    assert all(list(row) == ["messages"] for row in rows)
    assert all(set(turn) == {"role", "content"} for row in rows for turn in row["messages"])
    trajectories = [
        {
            "messages": [message(turn["role"], turn["content"]) for turn in row["messages"]],
            "outcome": UNSCORED,
            "scores": [],
            "branch": None,
            "parent": None,
            "terminated": False,
            "truncated": False,
            "tools": None,
        }
        for row in rows
    ]
    records = {"used": len(rows), "refused": 0, "set_apart": 0, "duplicate": 0}
    write_oracle(file, {"made_by": "plain JSON reading", "records": records, "trajectories": trajectories})
