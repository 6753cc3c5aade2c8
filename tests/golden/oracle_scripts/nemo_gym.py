"""Oracles of the NeMo Gym files, read with the standard library.

Run: `python tests/golden/oracle_scripts/nemo_gym.py`. A turn of the model is all that it put out (reasoning, text,
calls) up to the next result of a tool or message of the environment. The reward is on the verifier's own scale (-1 to
1, 0 to 2, ...), so it tells no success. Judgements beside it: the verifier's fields of SCORES where they are not null
(`num_correct` may as well be taken for a plain count; the adapter's reading is kept). `correctness`, `schema_valid`
and `format` only repeat `reward_components`. Terminated and truncated are compared where the row has them, or an agent
`finished_naturally`. An empty list of tools says nothing: agents that use tools of their own list none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle

Row = dict[str, Any]
SCORES = ("library_reward", "tool_name_match", "target_match", "similarity_score", "diff_size_penalty", "num_correct")
FOLDER = REAL_LOGS / "nemo-gym"
ROLLOUTS = (
    "blackjack.example_rollouts.jsonl",
    "claude_code_agent.example_math_rollouts.jsonl",
    "example_multi_turn_gymnasium.example_rollouts.jsonl",
    "example_single_tool_call.example_rollouts.jsonl",
    "example_tool_call_multireward.example_rollouts.jsonl",
    "pi_agent.example_rollout.jsonl",
    "swe_pivot.example_rollouts.jsonl",
    "terminal_multi_harness.example_rollouts.jsonl",
    "xlam_fc.example_rollouts.jsonl",
)
EMPTY = {
    "genrm_compare.example_rollouts.jsonl": "prompts only: no row has a response or a reward",
    "gymnasium.example_rollouts.jsonl": "placeholders: the response of every row is empty (id x, model x, time 0)",
}


def model_turn(items: list[Row]) -> Row:
    texts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
    thoughts = [part["text"] for item in items if item["type"] == "reasoning" for part in item["summary"]]
    calls = [(item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]
    return message("assistant", "".join(texts), reasoning="".join(thoughts), calls=calls)


def messages_of(row: Row) -> list[Row]:
    messages = [message(item["role"], item["content"]) for item in row["responses_create_params"]["input"]]
    called: dict[str, int] = {}
    turn: list[Row] = []

    def end_turn() -> None:
        if turn:
            called.update({item["call_id"]: len(messages) for item in turn if item["type"] == "function_call"})
            messages.append(model_turn(turn))
            turn.clear()

    for item in row["response"]["output"]:
        if item["type"] == "function_call_output":
            end_turn()
            messages.append(message("tool", item["output"], answers=called[item["call_id"]]))
        elif item["type"] == "message" and item["role"] == "user":
            end_turn()
            messages.append(message("user", item["content"]))
        else:
            turn.append(item)
    end_turn()
    return messages


def rollout(row: Row, tasks: list[Any]) -> Row:
    scores = [
        {"name": name, "value": float(row[name]), "label": None, "message_index": None}
        for name in SCORES
        if row.get(name) is not None
    ]
    oracle = {
        "messages": messages_of(row),
        "outcome": {"status": "scored", "success": None, "score": row["reward"]},
        "scores": scores,
        "branch": None,
        "parent": None,
        "model": row["response"]["model"],
    }
    oracle |= {key: row[key] for key in ("terminated", "truncated") if key in row}
    if row.get("finished_naturally"):
        oracle |= {"terminated": True, "truncated": False}
    if "_ng_task_index" in row:
        oracle["group"] = tasks.index(row["_ng_task_index"])
    tools = row["responses_create_params"].get("tools")
    oracle["tools"] = [tool["name"] for tool in tools] if tools else None
    return oracle


def write_rollouts(name: str) -> None:
    rows = [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]
    tasks = [row.get("_ng_task_index") for row in rows]
    oracle = {
        "made_by": "plain JSON reading",
        "records": {"used": len(rows)},
        "trajectories": [rollout(row, tasks) for row in rows],
    }
    write_oracle(f"nemo-gym/{name}", oracle)


def write_empty(name: str, records: int, reason: str) -> None:
    oracle = {"made_by": "by hand", "records": {"set_apart": records}, "no_trajectory": reason, "trajectories": []}
    write_oracle(f"nemo-gym/{name}", oracle)


if __name__ == "__main__":
    for name in ROLLOUTS:
        write_rollouts(name)
    for name, reason in EMPTY.items():
        write_empty(name, len((FOLDER / name).read_text().splitlines()), reason)
    fixture = json.loads((FOLDER / "nemo_rl_test_nemo_gym_sanity.json").read_text())
    logs = [entry for expected in fixture["expected_output"] for entry in expected["message_log"]]
    assert not any(entry["content"] for entry in logs)
    assert not any(entry["token_ids"] for entry in logs if entry["role"] == "assistant")
    reason = (
        "inputs and expected output of a test: two requests without responses, and message logs whose texts and "
        "sampled token ids are all empty"
    )
    write_empty("nemo_rl_test_nemo_gym_sanity.json", 1, reason)
