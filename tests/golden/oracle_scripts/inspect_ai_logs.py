"""Oracles of the inspect-ai files: read with inspect-ai's own reader, the two files of events by hand.

Run: `python tests/golden/oracle_scripts/inspect_ai_logs.py` (needs inspect-ai; written with 0.3.285).

The files of events are fixtures of inspect-ai's timeline, which its log reader does not take; what belongs to which
agent is in their own `expected`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import inspect_ai
from inspect_ai.log import EvalSample, read_eval_log
from inspect_ai.model import ContentReasoning

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle

GRADES = {"C": 1.0, "I": 0.0}
UNSCORED = {"status": "unscored", "success": None, "score": None}


def sample_messages(sample: EvalSample) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    callers: dict[str, int] = {}
    for turn in sample.messages:
        calls = turn.tool_calls or [] if turn.role == "assistant" else []
        callers |= {call.id: len(messages) for call in calls}
        parts = turn.content if isinstance(turn.content, list) else []
        reasoning = "".join(part.reasoning for part in parts if isinstance(part, ContentReasoning))
        messages.append(
            message(
                turn.role,
                turn.text,
                reasoning=reasoning,
                calls=[(call.function, call.arguments) for call in calls],
                answers=callers.get(turn.tool_call_id or "") if turn.role == "tool" else None,
                error=turn.role == "tool" and turn.error is not None,
            )
        )
    return messages


def sample_tools(sample: EvalSample) -> list[str]:
    """Tools of the last call of the solver; the scorer's calls come after the sample's end and have none."""
    offers = [[tool.name for tool in event.tools] for event in sample.events if event.event == "model"]
    return next((offer for offer in reversed(offers) if offer), [])


def log_file(name: str) -> None:
    log = read_eval_log(str(REAL_LOGS / "inspect-ai" / name), resolve_attachments=True)
    (sample,) = log.samples or []
    trajectory: dict[str, Any] = {"messages": sample_messages(sample), "branch": None, "parent": None}
    trajectory |= {"outcome": UNSCORED, "scores": [], "truncated": False}
    if log.status == "success" and sample.output.choices and sample.error is None and sample.limit is None:
        trajectory["terminated"] = True
    for score_name, score in (sample.scores or {}).items():  # one at most in each of the files
        if isinstance(score.value, str):
            grade = GRADES[score.value]
            trajectory["outcome"] = {"status": "scored", "success": grade == 1.0, "score": grade}
            value, label = None, score.value  # a letter is a category; first its number stood here too
        else:
            assert isinstance(score.value, float)
            trajectory["outcome"] = {"status": "scored", "success": None, "score": score.value}
            value, label = score.value, None
        trajectory["scores"] = [{"name": score_name, "value": value, "label": label, "message_index": None}]
    if tools := sample_tools(sample):
        trajectory["tools"] = tools
    records = {"used": 1, "refused": 0, "set_apart": 0, "duplicate": 0}
    made_by = f"inspect-ai {inspect_ai.__version__}"
    write_oracle(f"inspect-ai/{name}", {"made_by": made_by, "records": records, "trajectories": [trajectory]})


def event_messages(events: list[dict[str, Any]], model: str, tool: str | None = None) -> list[dict[str, Any]]:
    """Prompt and answer of a model event, and the tool event that followed."""
    by_uuid = {event["uuid"]: event for event in events}
    messages = [message(turn["role"], turn["content"]) for turn in by_uuid[model]["input"]]
    answer = by_uuid[model]["output"]["choices"][0]["message"]
    calls = [(call["function"], call["arguments"]) for call in answer.get("tool_calls", ())]
    messages.append(message("assistant", answer["content"], calls=calls))
    if tool is not None:
        messages.append(message("tool", by_uuid[tool]["result"], answers=len(messages) - 1))
    return messages


def event_trajectory(messages: list[dict[str, Any]], branch: dict[str, int] | None = None) -> dict[str, Any]:
    return {"messages": messages, "outcome": UNSCORED, "scores": [], "branch": branch, "parent": None}


def event_files() -> None:
    """In both files `m3` goes on without the turns of `m1`: another thread, which shares what is in both prompts."""
    records = {"used": 1, "refused": 0, "set_apart": 0, "duplicate": 0}
    oracle = {"made_by": "by hand", "records": records}

    # m2 is the one call of a helper, which `expected` calls a utility: no trajectory.
    file = "inspect-ai/utility_subagent_loop.json"
    events = json.loads((REAL_LOGS / file).read_text())["events"]
    first, second = event_messages(events, "m1", "t1"), event_messages(events, "m3")
    found = [event_trajectory(first), event_trajectory(second, {"of": 0, "at": 1})]
    write_oracle(file, oracle | {"trajectories": found})

    # m2 is a branch of the agent, m3 the agent again with the same prompt; w1 is a warm-up call: no trajectory.
    file = "inspect-ai/utility_branch_warmup.json"
    events = json.loads((REAL_LOGS / file).read_text())["events"]
    first = event_messages(events, "m1", "t1")
    again = {"of": 0, "at": 2}
    found = [event_trajectory(first), *(event_trajectory(event_messages(events, name), again) for name in ("m2", "m3"))]
    write_oracle(file, oracle | {"trajectories": found})


if __name__ == "__main__":
    for path in sorted((REAL_LOGS / "inspect-ai").iterdir()):
        if not path.name.startswith("utility_"):
            log_file(path.name)
    event_files()
