"""Oracles of the claude-code files, by hand: each conversation is listed by its line numbers.

Run: `python tests/golden/oracle_scripts/claude_code.py`.

Lines of one `message.id` and `requestId` are one turn; here each id has one line. A tool result is a message of its
own. A `summary` is the answer of a utility call that names the session, so it is set apart (first it counted as used).
In a branch the turns before the fork are copies: each turn is a step once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle


def lines(name: str) -> list[Any]:
    return [json.loads(line) for line in (REAL_LOGS / "claude-code" / name).read_text().splitlines()]


def conversation(records: list[Any], numbers: list[int], *, copied: int = 0) -> list[dict[str, Any]]:
    """Messages of the lines with these numbers (from 1); assistant messages among the first `copied` are copies."""
    messages: list[dict[str, Any]] = []
    callers: dict[str, int] = {}
    for number in numbers:
        content = records[number - 1]["message"]["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        if records[number - 1]["type"] == "assistant":
            calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
            callers |= {block["id"]: len(messages) for block in blocks if block["type"] == "tool_use"}
            messages.append(message("assistant", text, calls=calls, trained=len(messages) >= copied))
        elif blocks[0]["type"] == "tool_result":
            (block,) = blocks
            answers, error = callers[block["tool_use_id"]], bool(block.get("is_error"))
            messages.append(message("tool", block["content"], answers=answers, error=error))
        else:
            messages.append(message("user", text))
    return messages


def trajectory(messages: list[dict[str, Any]], model: str, branch: dict[str, int] | None = None) -> dict[str, Any]:
    return {
        "messages": messages,
        "outcome": {"status": "unscored", "success": None, "score": None},
        "scores": [],
        "branch": branch,
        "parent": None,
        "terminated": False,
        "truncated": False,
        "tools": None,
        "model": model,
    }


def write(name: str, trajectories: list[dict[str, Any]], used: int, refused: int = 0, set_apart: int = 0) -> None:
    records = {"used": used, "refused": refused, "set_apart": set_apart, "duplicate": 0}
    write_oracle(f"claude-code/{name}", {"made_by": "by hand", "records": records, "trajectories": trajectories})


if __name__ == "__main__":
    session_b = lines("session_b.jsonl")
    write("session_b.jsonl", [trajectory(conversation(session_b, [1, 2, 3]), "claude-3-sonnet-20240229")], used=3)

    # fa1-fork (line 2) has two children: lines 3-6 and lines 7-14.
    forked = lines("claude_forked_session.jsonl")
    sonnet = "claude-sonnet-4-20250514"
    first = trajectory(conversation(forked, [1, 2, 3, 4, 5, 6]), sonnet)
    second = conversation(forked, [1, 2, *range(7, 15)], copied=2)
    write("claude_forked_session.jsonl", [first, trajectory(second, sonnet, {"of": 0, "at": 2})], used=14)

    todo = lines("todowrite_examples.jsonl")
    tasks = trajectory(conversation(todo, list(range(1, 12))), "claude-sonnet-4")
    write("todowrite_examples.jsonl", [tasks], used=11, set_apart=1)

    # Refused: 10 (no `content`), 11 (a text for the message), 13-16 (no records of a session), 18 (no block but a
    # text in the content). Line 17 belongs to another session, of which the file has nothing else; 19 is the summary.
    edges = lines("edge_cases.jsonl")
    main = trajectory(conversation(edges, [*range(1, 10), 12]), "claude-3-sonnet-20240229")
    stray = trajectory(conversation(edges, [17]), "claude-sonnet-4")
    write("edge_cases.jsonl", [main, stray], used=11, refused=7, set_apart=1)
