"""Oracles of the langsmith files: one run each, as the SDK posts and patches it, read with the standard library.

Run: `python tests/golden/oracle_scripts/langsmith.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle

if __name__ == "__main__":
    for name in ("langsmith_py_wrap_openai_.json", "langsmith_py_wrap_openai_stream.json"):
        document = json.loads((REAL_LOGS / "langsmith" / name).read_text())
        (posted,), (patched,) = document["post"], document["patch"]
        assert posted["id"] == patched["id"]
        (asked,) = posted["inputs"]["messages"]
        (choice,) = patched["outputs"]["choices"]
        assert not choice["message"].get("tool_calls")
        trajectory = {
            "messages": [
                message(asked["role"], asked["content"]),
                message("assistant", choice["message"]["content"]),
            ],
            "outcome": {"status": "unscored", "success": None, "score": None},
            "scores": [],
            "branch": None,
            "parent": None,
            "truncated": False,
            "tools": None,
        }
        records = {"used": 1, "refused": 0, "set_apart": 0, "duplicate": 0}
        oracle = {"made_by": "plain JSON reading", "records": records, "trajectories": [trajectory]}
        write_oracle(f"langsmith/{name}", oracle)
