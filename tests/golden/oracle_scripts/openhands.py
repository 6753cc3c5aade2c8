"""Oracles of the openhands files: events in order, read with the standard library.

Run: `python tests/golden/oracle_scripts/openhands.py`.

An action with `tool_call_metadata` is the model's response that it holds; the observation that names the action as
its `cause` is the result. Changes of the agent's state and "null" observations were not shown to the model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle

SILENT = ("agent_state_changed", "null")


def event_messages(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of a V0 list of events in which each response has one call."""
    messages: list[dict[str, Any]] = []
    places: dict[int, int] = {}
    for event in events:
        if event.get("observation") in SILENT or event.get("action") == "change_agent_state":
            continue
        sampled = event.get("tool_call_metadata")
        if "observation" in event:
            messages.append(message("tool", event["content"], answers=places[event["cause"]]))
            continue
        places[event["id"]] = len(messages)
        if sampled is None:
            role = "user" if event["source"] == "user" else "assistant"
            messages.append(message(role, event["args"]["content"]))
        else:
            (choice,) = sampled["model_response"]["choices"]
            answer = choice["message"]
            calls = [(call["function"]["name"], call["function"]["arguments"]) for call in answer["tool_calls"]]
            messages.append(message("assistant", answer["content"] or "", calls=calls))
    return messages


def old_messages(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of the resolver's rows: no ids, no responses; an action is its name, thought and arguments.

    Which arguments the model gave, and which the program added, is known from the actions' definitions: `run` has a
    command, `run_ipython` has code, `finish` has none (its empty outputs are the program's; first they stood here).
    """
    messages: list[dict[str, Any]] = []
    given = {"run": "command", "run_ipython": "code"}
    for event in history:
        if "observation" in event:
            messages.append(message("tool", event["content"], answers=len(messages) - 1))
        elif event["action"] == "message":
            messages.append(message("user", event["content"]))
        else:
            arguments = {key: event[key] for name, key in given.items() if name == event["action"]}
            messages.append(message("assistant", event["thought"], calls=[(event["action"], arguments)]))
    return messages


def trajectory(messages: list[dict[str, Any]], *, terminated: bool, success: bool | None = None) -> dict[str, Any]:
    """`success` is the resolver's verdict: the outcome, and as a judgement of the record a score."""
    value = None if success is None else float(success)
    judged = [] if success is None else [{"name": "success", "value": value, "label": None, "message_index": None}]
    return {
        "messages": messages,
        "outcome": {"status": "scored" if judged else "unscored", "success": success, "score": value},
        "scores": judged,
        "branch": None,
        "parent": None,
        "terminated": terminated,
        "truncated": False,
        "tools": None,
    }


if __name__ == "__main__":
    # The agent of basic_gui_mode ended by waiting for the user; the others called `finish`.
    for name, used, terminated in (("basic", 4, True), ("basic_gui_mode", 10, False), ("basic_interactions", 6, True)):
        events = json.loads((REAL_LOGS / f"openhands/{name}.json").read_text())
        records = {"used": used, "refused": 0, "set_apart": len(events) - used, "duplicate": 0}
        oracle: dict[str, Any] = {"made_by": "plain JSON reading", "records": records}
        found = [trajectory(event_messages(events), terminated=terminated)]
        write_oracle(f"openhands/{name}.json", oracle | {"trajectories": found})
    rows = [json.loads(line) for line in (REAL_LOGS / "openhands/resolver_output.jsonl").read_text().splitlines()]
    found = [trajectory(old_messages(row["history"]), terminated=True, success=row["success"]) for row in rows]
    records = {"used": 2, "refused": 0, "set_apart": 0, "duplicate": 0}
    oracle = {"made_by": "plain JSON reading", "records": records, "trajectories": found}
    write_oracle("openhands/resolver_output.jsonl", oracle)
