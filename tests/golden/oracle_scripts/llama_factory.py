"""Oracles of the LLaMA-Factory files, read with the standard library.

Run: `python tests/golden/oracle_scripts/llama_factory.py`. The tags are those of LLaMA-Factory's data README: a
`function_call` is a turn of the model whose value is JSON of name and arguments, an `observation` what the tool gave
back for it. In the newer layout content is a list of `type` and `value`, where a `tool_call` is that same JSON. The
format has no ids: a result answers the turn before it. A tool turn of the reasoning set that holds the results of
several calls as one JSON list stays one message; whether the list is an envelope or the result itself differs from
row to row.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, compact, message, write_oracle

Row = dict[str, Any]
UNSCORED = {"status": "unscored", "success": None, "score": None}
MADE_BY = "plain JSON reading"


def trajectory(messages: list[Row], tools: list[str] | None, outcome: Row = UNSCORED) -> Row:
    return {
        "messages": messages,
        "outcome": outcome,
        "scores": [],
        "branch": None,
        "parent": None,
        "terminated": False,
        "truncated": False,
        "tools": tools,
    }


def call(text: str) -> tuple[str, Any]:
    value = json.loads(text)
    assert set(value) == {"name", "arguments"}
    return value["name"], value["arguments"]


def glaive_turn(index: int, turn: Row) -> Row:
    value = turn["value"]
    if turn["from"] == "function_call":
        return message("assistant", calls=[call(value)])
    if turn["from"] == "observation":
        return message("tool", value, answers=index - 1)
    return message({"human": "user", "gpt": "assistant"}[turn["from"]], value)


def glaive(row: Row) -> Row:
    messages = [glaive_turn(index, turn) for index, turn in enumerate(row["conversations"])]
    return trajectory(messages, [tool["name"] for tool in json.loads(row["tools"])])


def kto(row: Row) -> Row:
    messages = [message(turn["role"], turn["content"]) for turn in row["messages"]]
    return trajectory(messages, None, {"status": "scored", "success": row["label"], "score": None})


def pictures(row: Row) -> Row:
    # The markers become pictures; as many of them as paths in every row, so the text is what is left.
    assert sum(turn["content"].count("<image>") for turn in row["messages"]) == len(row["images"])
    messages = [message(turn["role"], turn["content"].replace("<image>", "")) for turn in row["messages"]]
    return trajectory(messages, None)


def reasoning_turn(index: int, turn: Row) -> Row:
    def values(kind: str) -> list[str]:
        return [part["value"] for part in turn["content"] if part["type"] == kind]

    return message(
        turn["role"],
        "".join(values("text")),
        reasoning="".join(values("reasoning")),
        calls=[call(value) for value in values("tool_call")],
        answers=index - 1 if turn["role"] == "tool" else None,
    )


def reasoning(row: Row) -> Row:
    messages = [reasoning_turn(index, turn) for index, turn in enumerate(row["messages"])]
    return trajectory(messages, [tool["function"]["name"] for tool in json.loads(row["tools"])])


def write(name: str, trajectories: list[Row], *, short: bool = False) -> None:
    for row in trajectories if short else []:
        row["messages"] = compact(row["messages"])
    records = {"used": len(trajectories)}
    write_oracle(f"llama-factory/{name}", {"made_by": MADE_BY, "records": records, "trajectories": trajectories})


if __name__ == "__main__":
    folder = REAL_LOGS / "llama-factory"
    write_oracle(
        "llama-factory/dataset_info.json",
        {
            "made_by": "by hand",
            "records": {"set_apart": 1},
            "no_trajectory": "an index of 104 data sets: file names and column names, no rows",
            "trajectories": [],
        },
    )
    rows = json.loads((folder / "glaive_toolcall_en_demo.json").read_text())
    write("glaive_toolcall_en_demo.json", [glaive(row) for row in rows], short=True)
    rows = json.loads((folder / "kto_en_demo.json").read_text())
    write("kto_en_demo.json", [kto(row) for row in rows], short=True)
    rows = json.loads((folder / "mllm_demo.json").read_text())
    write("mllm_demo.json", [pictures(row) for row in rows])
    lines = (folder / "reason_tool_use_demo_50.jsonl").read_text().split("\n")
    write("reason_tool_use_demo_50.jsonl", [reasoning(json.loads(line)) for line in lines if line])
