"""Oracles of the files of openinference, otel-genai and vercel-ai-sdk-otel.

Run: `python tests/golden/oracle_scripts/telemetry.py`. The four attribute files of openinference and otel-genai are
one call in three conventions and one tool run; they are written by hand. The spans of the Vercel AI SDK are read with
the standard library: the spans of the steps (`.doGenerate`, `.doStream`) hold the calls, the spans around them lie in
other traces and repeat them, and an embedding is no conversation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle

Row = dict[str, Any]
VERCEL = "vercel-ai-sdk-otel/all-spans.json"
# The history of the call is logged without its own calls: its assistant turn may be the model's.
WEATHER = [
    message("user", "Weather in Paris?"),
    message(
        "assistant",
        "Absolutely! Let me check the weather for you.",
        calls=[("get_weather", {"location": "Paris"})],
    ),
    message("tool", "rainy, 57°F", answers=1),
    message("assistant", "The weather in Paris is currently rainy with a temperature of 57°F."),
]


def conversation(messages: list[Row], model: str) -> Row:
    return {
        "messages": messages,
        "outcome": {"status": "unscored", "success": None, "score": None},
        "scores": [],
        "branch": None,
        "parent": None,
        "terminated": False,
        "truncated": False,
        "tools": None,
        "model": model,
    }


def vercel_message(turn: Row) -> Row:
    content = turn["content"]
    return message(turn["role"], content if isinstance(content, str) else "".join(part["text"] for part in content))


def vercel_step(attributes: Row) -> Row:
    prompt = [vercel_message(turn) for turn in json.loads(attributes["ai.prompt.messages"])]
    answer = attributes.get("ai.response.text") or attributes["ai.response.object"]
    return conversation([*prompt, message("assistant", answer)], attributes["ai.response.model"])


def write_vercel() -> None:
    spans = json.loads((REAL_LOGS / VERCEL).read_text())
    steps = [span["attributes"] for span in spans if "ai.prompt.messages" in span["attributes"]]
    traces = {span["spanContext"]["traceId"] for span in spans}
    assert len(traces) == len(spans) == 10
    records = {"used": len(steps), "set_apart": len(spans) - len(steps)}
    oracle = {"made_by": "plain JSON reading", "records": records, "trajectories": [vercel_step(row) for row in steps]}
    write_oracle(VERCEL, oracle)


if __name__ == "__main__":
    for file in (
        "openinference/openinference_client_span_tool_calls.json",
        "otel-genai/otel_genai_client_span_tool_calls.json",
        "otel-genai/otel_genai_deprecated_client_span_tool_calls.json",
    ):
        one: Row = {"made_by": "by hand", "records": {"used": 1}}
        write_oracle(file, one | {"trajectories": [conversation(WEATHER, "gpt-4-0613")]})
    for file, reason in (
        ("otel-genai/gen-ai-input-messages.json", "a JSON Schema of gen_ai.input.messages, no log"),
        ("otel-genai/otel_genai_tool_execution_span.json", "the run of one tool, without any call of a model"),
    ):
        none: Row = {"made_by": "by hand", "records": {"set_apart": 1}, "no_trajectory": reason}
        write_oracle(file, none | {"trajectories": []})
    write_vercel()
