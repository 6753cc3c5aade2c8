"""Oracles of the swe-agent files: the history, and the last step where it lacks that; the standard library reads both.

Run: `python tests/golden/oracle_scripts/swe_agent.py`.

`trajectory` repeats the history step by step, so only a step beyond the history's end adds to it. What the last
action gave is in the history of some files only; no model saw it, so elsewhere it is no message (first it was, in one
of the files).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle


def history_messages(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    callers: dict[str, int] = {}  # ids are used again: the latest call counts
    for turn in history:
        calls = turn.get("tool_calls") or []
        names = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        answers = None
        if turn["role"] == "tool":
            (call_id,) = turn["tool_call_ids"]
            answers = callers[call_id]
        callers |= {call["id"]: len(messages) for call in calls}
        messages.append(message(turn["role"], turn["content"], calls=names, answers=answers))
    return messages


if __name__ == "__main__":
    for path in sorted((REAL_LOGS / "swe-agent").iterdir()):
        document = json.loads(path.read_text())
        messages = history_messages(document["history"])
        steps = document["trajectory"]
        turns = sum(turn["role"] == "assistant" for turn in document["history"])
        assert turns in (len(steps), len(steps) - 1)
        assert (turns == len(steps)) == (not path.name.startswith("6e44b9"))
        if turns < len(steps):
            # The last step, `submit`, has no call with an id; the action without arguments is the tool's name.
            assert steps[-1]["action"] == "submit"
            messages.append(message("assistant", steps[-1]["response"], calls=[("submit", {})]))
        assert document["info"]["exit_status"] == "submitted"
        trajectory = {
            "messages": messages,
            "outcome": {"status": "unscored", "success": None, "score": None},
            "scores": [],
            "branch": None,
            "parent": None,
            "terminated": True,
            "truncated": False,
        }
        records = {"used": 1, "refused": 0, "set_apart": 0, "duplicate": 0}
        oracle = {"made_by": "plain JSON reading", "records": records, "trajectories": [trajectory]}
        write_oracle(f"swe-agent/{path.name}", oracle)
