"""Oracle of the open-instruct file, written by hand.

Run: `python tests/golden/oracle_scripts/open_instruct.py`. One greedy generation: a prompt as plain text and what the
model wrote. No tool ran: the text holds code in tags and no output of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle

if __name__ == "__main__":
    file = "open-instruct/generation_with_tools_expected.json"
    row = json.loads((REAL_LOGS / file).read_text())
    trajectory = {
        "messages": [message("user", row["prompt"]), message("assistant", row["expected_text"])],
        "outcome": {"status": "unscored", "success": None, "score": None},
        "scores": [],
        "branch": None,
        "parent": None,
        "terminated": False,
        "tools": None,
        "model": "Qwen/Qwen3-0.6B",
    }
    write_oracle(file, {"made_by": "by hand", "records": {"used": 1}, "trajectories": [trajectory]})
