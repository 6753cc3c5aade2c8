"""Oracles of the gemini-cli-responses files: recorded answers of the model, read with the standard library.

Run: `python tests/golden/oracle_scripts/gemini_cli_responses.py`.

The prompts and tool results were not recorded, so how the answers follow one another is not known. By the convention
of docs/formats.md a file is one trajectory of its answers. The JSON outside of the stream is the choice of a model,
an answer to the program and not a step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle


def answer(response: Any) -> dict[str, Any]:
    """The one candidate of a response, whole or in chunks; a chunk holds whole parts."""
    parts: list[dict[str, Any]] = []
    for chunk in response if isinstance(response, list) else [response]:
        (candidate,) = chunk["candidates"]
        parts += candidate["content"].get("parts", [])
    return message(
        "assistant",
        "".join(part["text"] for part in parts if "text" in part and not part.get("thought")),
        reasoning="".join(part["text"] for part in parts if part.get("thought")),
        calls=[
            (part["functionCall"]["name"], part["functionCall"]["args"]) for part in parts if "functionCall" in part
        ],
    )


if __name__ == "__main__":
    for path in sorted((REAL_LOGS / "gemini-cli-responses").iterdir()):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert all(set(row) == {"method", "response"} for row in rows)
        set_apart = 1 if path.name == "parallel-tools.responses" else 0
        trajectory = {
            "messages": [answer(row["response"]) for row in rows[set_apart:]],
            "outcome": {"status": "unscored", "success": None, "score": None},
            "scores": [],
            "branch": None,
            "parent": None,
            "terminated": False,
            "truncated": False,
            "tools": None,
        }
        records = {"used": len(rows) - set_apart, "refused": 0, "set_apart": set_apart, "duplicate": 0}
        made_by = "plain JSON reading; one trajectory a file by convention"
        oracle = {"made_by": made_by, "records": records, "trajectories": [trajectory]}
        write_oracle(f"gemini-cli-responses/{path.name}", oracle)
