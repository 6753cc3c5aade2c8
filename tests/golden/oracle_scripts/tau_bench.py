"""Oracles of the tau-bench files, read with the standard library.

Run: `python tests/golden/oracle_scripts/tau_bench.py`. In the result file every call is followed by its result
(call ids are used again within an episode, so the id alone does not tell). An episode ends when the simulated user
says ###STOP### or when the agent hands over to a human; the other 5 have 30 actions (62 messages), which is
tau-bench's limit of steps. The reward is 1 or 0; the text of a failed tool ("Error: ...") carries no mark as an error.
The few-shot transcripts are one text each, a turn for each line that starts with a role. A turn that called a tool
reads "assistant: None": its calls are lost, so that a tool message answers nothing.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, compact, message, write_oracle

Row = dict[str, Any]


def messages_of(turns: list[Row]) -> list[Row]:
    rows = []
    for index, turn in enumerate(turns):
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in turn.get("tool_calls", [])]
        answers = None
        if turn["role"] == "tool":
            answers = index - 1
            assert [call["id"] for call in turns[answers]["tool_calls"]] == [turn["tool_call_id"]]
        rows.append(message(turn["role"], turn["content"] or "", calls=calls, answers=answers))
    return rows


def episode(result: Row, group: int) -> Row:
    last = result["traj"][-1]
    stopped = last["role"] == "user" and "###STOP###" in last["content"]
    terminated = stopped or last.get("name") == "transfer_to_human_agents"
    assert terminated or len(result["traj"]) == 62
    return {
        "messages": compact(messages_of(result["traj"])),
        "outcome": {"status": "scored", "success": result["reward"] == 1.0, "score": result["reward"]},
        "scores": [],
        "branch": None,
        "parent": None,
        "terminated": terminated,
        "truncated": not terminated,
        "tools": None,
        "task_id": str(result["task_id"]),
        "group": group,
    }


def transcript(text: str) -> Row:
    turns = [turn.partition(": ") for turn in re.split(r"\n(?=(?:user|assistant|tool): )", text)]
    roles = [role for role, _, _ in turns]
    assert roles[0] == "user"
    assert all(previous != role for previous, role in pairwise(roles))
    stopped = roles[-1] == "user" and "###STOP###" in turns[-1][2]
    return {
        "messages": [
            message(role, "" if role == "assistant" and content == "None" else content) for role, _, content in turns
        ],
        "outcome": {"status": "unscored", "success": None, "score": None},
        "scores": [],
        "branch": None,
        "parent": None,
        "terminated": stopped or turns[-1] == ("tool", ": ", "Transfer successful"),
        "truncated": False,
        "tools": None,
    }


if __name__ == "__main__":
    file = "tau-bench/gpt-4o-airline.json"
    results = json.loads((REAL_LOGS / file).read_text())
    tasks = [result["task_id"] for result in results]
    assert all(tasks.count(task) == 4 for task in tasks)
    trajectories = [episode(result, tasks.index(result["task_id"])) for result in results]
    assert len(trajectories) == 200
    oracle: Row = {"made_by": "plain JSON reading", "records": {"used": 200}, "trajectories": trajectories}
    write_oracle(file, oracle)

    file = "tau-bench/MockAirlineDomainEnv-few_shot.jsonl"
    lines = [json.loads(line) for line in (REAL_LOGS / file).read_text().split("\n") if line]
    assert all(list(line) == ["messages_display"] for line in lines)
    trajectories = [transcript(line["messages_display"]) for line in lines]
    made_by = "plain text reading; setting the file apart, as a text that lost its tool calls, would be as right"
    write_oracle(file, {"made_by": made_by, "records": {"used": len(lines)}, "trajectories": trajectories})
