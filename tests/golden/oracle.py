"""Oracles of the real log files: what each file holds, written down without the adapters.

One JSON file for each real log file, `tests/golden/oracles/<folder>/<file>.json`. The logs themselves stay where
they are, so texts appear as digests: `"<characters>:<first 10 hex digits of the SHA-256>"`. The scripts in
`tests/golden/oracle_scripts` made them, each with its own reading of the format or with the tool's own reader;
neither they nor this module import `offline_arl.logs`.

    {
      "made_by": "by hand" | "inspect-ai 0.3.x" | ...,
      "records": {"used": 3, "refused": 1, "set_apart": 0, "duplicate": 0},
      "no_trajectory": "why, where there is none",
      "trajectories": [
        {
          "messages": [{"role": "user", "text": "12:0a1b...", ...}],
          "outcome": {"status": "scored", "success": true, "score": 1.0},
          "scores": [{"name": ..., "value": ..., "label": ..., "message_index": ...}],
          "branch": {"of": 0, "at": 3}, "parent": 0, "terminated": true, "truncated": false, "tools": ["name", ...],
          "group": 0
        }
      ]
    }

A message has `role` and `text` (visible text; "" where there is none), and where they apply `reasoning` (readable
reasoning), `calls` (a list of `[name, digest of the arguments]`), `answers` (index of the message whose call a
tool message answers), `error` (true) and `trained` (false for an assistant message that the policy did not make).
A message without one of these keys must not have the thing. The keys of a trajectory beside `messages` are
compared where the oracle has them. `group` is the first trajectory with the same `group_id`. Long files have the
digest of all messages of a trajectory (`compact`) instead of the list.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

ORACLES = Path(__file__).parent / "oracles"
REAL_LOGS = Path(__file__).parents[3] / "shared" / "real_logs"


def digest(text: str) -> str:
    """How a text appears in an oracle; "" for no text."""
    if not text:
        return ""
    data = text.encode("utf-8", "surrogatepass")
    return f"{len(text)}:{hashlib.sha256(data).hexdigest()[:10]}"


def arguments_digest(arguments: Any) -> str:
    """How the arguments of a call appear: an object by its canonical JSON, anything else as the raw text."""
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            return digest(arguments)
        if parsed is None:
            parsed = {}
        if not isinstance(parsed, dict):
            return digest(arguments)
        arguments = parsed
    return digest(json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def message(
    role: str,
    text: str = "",
    *,
    reasoning: str = "",
    calls: list[tuple[str, Any]] | None = None,
    answers: int | None = None,
    error: bool = False,
    trained: bool = True,
) -> dict[str, Any]:
    """One message of an oracle; `calls` are (name, arguments as an object or as the raw string)."""
    row: dict[str, Any] = {"role": role, "text": digest(text)}
    if reasoning:
        row["reasoning"] = digest(reasoning)
    if calls:
        row["calls"] = [[name, arguments_digest(arguments)] for name, arguments in calls]
    if answers is not None:
        row["answers"] = answers
    if error:
        row["error"] = True
    if role == "assistant" and not trained:
        row["trained"] = False
    return row


def compact(messages: list[dict[str, Any]]) -> str:
    """How the messages of a trajectory appear in the oracle of a long file: their number and one digest."""
    text = json.dumps(messages, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{len(messages)}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def write_oracle(file: str, oracle: dict[str, Any]) -> Path:
    """Write the oracle of a real log file (`folder/name`)."""
    path = ORACLES / f"{file}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(oracle, indent=1, ensure_ascii=False) + "\n")
    return path


def oracle_files() -> list[str]:
    """Names (`folder/name`) of all real log files, the index aside; empty where they are missing."""
    return sorted(
        path.relative_to(REAL_LOGS).as_posix()
        for path in REAL_LOGS.rglob("*")
        if path.is_file() and path.parent != REAL_LOGS
    )
