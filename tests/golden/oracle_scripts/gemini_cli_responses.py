"""Oracles of the gemini-cli-responses files: recorded answers of the model, without the prompts.

Run: `python tests/golden/oracle_scripts/gemini_cli_responses.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, write_oracle

WHY = "answers of the model without the prompts: what they answered, and which belong together, was not recorded"

if __name__ == "__main__":
    for path in sorted((REAL_LOGS / "gemini-cli-responses").iterdir()):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert all(set(row) == {"method", "response"} for row in rows)
        records = {"used": 0, "refused": 0, "set_apart": len(rows), "duplicate": 0}
        oracle = {"made_by": "by hand", "records": records, "no_trajectory": WHY, "trajectories": []}
        write_oracle(f"gemini-cli-responses/{path.name}", oracle)
