"""Oracles of the ms-swift files, read with the standard library.

Run: `python tests/golden/oracle_scripts/ms_swift.py`. `history` is pairs of query and response before the last one. In
`<img>address</img>` the address is a picture and not text.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle

Row = dict[str, Any]
UNSCORED = {"status": "unscored", "success": None, "score": None}


def text_of(query: str) -> str:
    return re.sub(r"<img>.+?</img>", "", query)


def queries(row: Row) -> list[Row]:
    turns = [*row.get("history", []), [row["query"], row["response"]]]
    return [
        message(role, text_of(text)) for turn in turns for role, text in zip(("user", "assistant"), turn, strict=True)
    ]


def conversations(row: Row) -> list[Row]:
    return [message(turn["from"], turn["value"]) for turn in row["conversations"]]


def write(name: str, conversations: list[list[Row]]) -> None:
    trajectories = [
        {
            "messages": messages,
            "outcome": UNSCORED,
            "scores": [],
            "branch": None,
            "parent": None,
            "terminated": False,
            "truncated": False,
            "tools": None,
        }
        for messages in conversations
    ]
    oracle = {
        "made_by": "plain JSON reading",
        "records": {"used": len(trajectories)},
        "trajectories": trajectories,
    }
    write_oracle(f"ms-swift/{name}", oracle)


def rows(name: str) -> list[Row]:
    return [json.loads(line) for line in (REAL_LOGS / "ms-swift" / name).read_text().splitlines()]


if __name__ == "__main__":
    write("conversations.jsonl", [conversations(row) for row in rows("conversations.jsonl")])
    write("multi_modal_1.jsonl", [queries(row) for row in rows("multi_modal_1.jsonl")])
