"""Oracle of the gemini-cli-session file: a header and messages, one a line, read with the standard library.

Run: `python tests/golden/oracle_scripts/gemini_cli_session.py`.

A call holds its result (`functionResponse`); `output`, and for a failed call `error`, is what the model was given.
Thoughts are summaries with a subject and a description; both are readable reasoning.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle

FILE = "gemini-cli-session/gemini_with_tool_error.jsonl"

if __name__ == "__main__":
    header, *rows = [json.loads(line) for line in (REAL_LOGS / FILE).read_text().splitlines()]
    assert "type" not in header
    assert len({row["id"] for row in rows}) == len(rows) == 9
    messages: list[dict[str, Any]] = []
    for row in rows:
        if row["type"] == "user":
            messages.append(message("user", row["content"]))
            continue
        calls = row.get("toolCalls", [])
        reasoning = "\n\n".join(f"**{thought['subject']}**\n{thought['description']}" for thought in row["thoughts"])
        turn = message(
            "assistant", row["content"], reasoning=reasoning, calls=[(call["name"], call["args"]) for call in calls]
        )
        asked = len(messages)
        messages.append(turn)
        for call in calls:
            (part,) = call["result"]
            response = part["functionResponse"]["response"]
            failed = call["status"] == "error"
            messages.append(message("tool", response["error" if failed else "output"], answers=asked, error=failed))
    trajectory = {
        "messages": messages,
        "outcome": {"status": "unscored", "success": None, "score": None},
        "scores": [],
        "branch": None,
        "parent": None,
        "terminated": False,
        "truncated": False,
        "tools": None,
        "model": "gemini-2.5-pro",
    }
    records = {"used": 10, "refused": 0, "set_apart": 0, "duplicate": 0}
    write_oracle(FILE, {"made_by": "plain JSON reading", "records": records, "trajectories": [trajectory]})
