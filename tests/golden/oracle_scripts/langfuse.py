"""Oracles of the langfuse files: the observations that matter named by hand, texts read with the standard library.

Run: `python tests/golden/oracle_scripts/langfuse.py`.

Where a `.chatml.json` twin holds an observation, its output is compared with what is taken from the trace. The twins
have no trace, order or kind of the observations: they are no logs themselves, of no format, and refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle

WHY_TWINS = (
    "the expected output of a converter: messages by observation, without trace, time, order or kind of observation"
)


class Trace:
    """A saved trace: `value(prefix, key)` is the parsed input or output of the observation whose id starts so."""

    def __init__(self, stem: str) -> None:
        document = json.loads((REAL_LOGS / f"langfuse/{stem}.trace.json").read_text())
        self.stem, self.trace = stem, document["trace"]
        self.observations = {row["id"]: row for row in document["observations"]}
        twin = REAL_LOGS / f"langfuse-chatml-expected/{stem}.chatml.json"
        self.twin = json.loads(twin.read_text()) if twin.exists() else {}

    def raw(self, prefix: str, key: str = "output") -> str:
        (row,) = [row for id_, row in self.observations.items() if id_.startswith(prefix)]
        assert isinstance(row[key], str)
        return str(row[key])

    def value(self, prefix: str, key: str = "output") -> Any:
        return json.loads(self.raw(prefix, key))

    def expected(self, prefix: str, key: str = "output") -> list[dict[str, Any]]:
        """The messages that the twin has for the observation."""
        (row,) = [row for id_, row in self.twin.items() if id_.startswith(prefix)]
        assert row[key]["success"]
        return list(row[key]["data"])

    def scores(self) -> list[dict[str, Any]]:
        """Scores of the trace, and its corrections, which have no value."""
        rows = [(score["name"], score["value"]) for score in self.trace["scores"]]
        rows += [(correction["name"], None) for correction in self.trace.get("corrections") or []]
        return [{"name": name, "value": value, "label": None, "message_index": None} for name, value in rows]

    def write(self, messages: list[dict[str, Any]], tools: list[str] | None, *, made_by: str = "by hand") -> None:
        trajectory: dict[str, Any] = {
            "messages": messages,
            "outcome": {"status": "unscored", "success": None, "score": None},
            "scores": self.scores(),
            "branch": None,
            "parent": None,
            "truncated": False,
        }
        if tools is not None:
            trajectory["tools"] = tools
        records = {"used": 1, "refused": 0, "set_apart": 0, "duplicate": 0}
        oracle = {"made_by": made_by, "records": records, "trajectories": [trajectory]}
        write_oracle(f"langfuse/{self.stem}.trace.json", oracle)


def claude_agent() -> None:
    """One model turn is three generations: the text and each call. Their inputs say nothing; tools ran in between."""
    trace = Trace("claude-agent-2025-12-22")
    asked = trace.value("805dc5df", "input")
    (first,), (berlin,), (new_york,), (last,) = (
        trace.value(prefix)["content"] for prefix in ("e9aac170", "2cc13e77", "f8e8f040", "371496f7")
    )
    for prefix, block in (("e9aac170", first), ("2cc13e77", berlin), ("f8e8f040", new_york), ("371496f7", last)):
        assert trace.expected(prefix)[0]["content"] == [block]
    results = [trace.value(prefix)["content"][0]["text"] for prefix in ("f411dab6", "edbd987c")]
    trace.write(
        [
            message("system", asked["system"]),
            message("user", asked["prompt"]),
            message("assistant", first["text"], calls=[(call["name"], call["input"]) for call in (berlin, new_york)]),
            message("tool", results[0], answers=2),
            message("tool", results[1], answers=2),
            message("assistant", last["text"]),
        ],
        None,
        made_by="by hand, checked against the .chatml.json twin",
    )


def pydantic_ai() -> None:
    trace = Trace("pydantic-ai-2025-06-06")
    system, user = trace.value("5cb389a3", "input")
    answer = trace.value("5cb389a3")["message"]["content"]
    assert [row["content"] for row in trace.expected("0a4fac25")] == [system["content"], user["content"], answer]
    trace.write(
        [message("system", system["content"]), message("user", user["content"]), message("assistant", answer)],
        None,
        made_by="by hand, checked against the .chatml.json twin",
    )


def openai_agents() -> None:
    """The system prompt stands in the response (`instructions`) and not in the input."""
    trace = Trace("openai-agents-2025-09-30")
    first, second = trace.value("98870087"), trace.value("90d94774")
    (user,) = trace.value("98870087", "input")
    (call,) = first["output"]
    (answer,) = second["output"]
    result = trace.value("90d94774", "input")[-1]["output"]
    text = answer["content"][0]["text"]
    assert trace.expected("98870087")[0]["tool_calls"][0]["arguments"] == call["arguments"]
    assert [row.get("content") for row in trace.expected("90d94774", "input")] == [user["content"], None, result]
    assert trace.expected("90d94774")[0]["content"] == text
    trace.write(
        [
            message("system", first["instructions"]),
            message("user", user["content"]),
            message("assistant", calls=[(call["name"], call["arguments"])]),
            message("tool", result, answers=2),
            message("assistant", text),
        ],
        ["get_weather"],
        made_by="by hand, checked against the .chatml.json twin",
    )


def langgraph() -> None:
    """The tools stand in the prompt as a message of the role "tool", which is no message."""
    trace = Trace("langgraph-python-2025-08-22")
    prompt = trace.value("5ba09605", "input")
    helpful, search, asked, result, tool = prompt
    assert tool["content"]["function"]["name"] == "Web-Search"
    (call,) = asked["additional_kwargs"]["tool_calls"]
    answer = trace.value("5ba09605")["content"]
    twin = trace.expected("5ba09605", "input")
    assert [row["role"] for row in twin] == ["user", "user", "assistant", "tool"]
    assert [row["content"] for row in twin] == [row["content"] for row in prompt[:4]]
    assert twin[2]["tool_calls"][0]["arguments"] == call["function"]["arguments"]
    assert trace.expected("5ba09605")[0]["content"] == answer
    trace.write(
        [
            message("user", helpful["content"]),
            message("user", search["content"]),
            message("assistant", calls=[(call["function"]["name"], call["function"]["arguments"])]),
            message("tool", result["content"], answers=2),
            message("assistant", answer),
        ],
        ["Web-Search"],
        made_by="by hand, checked against the .chatml.json twin",
    )


def llamaindex() -> None:
    trace = Trace("llamaindex-2025-06-05")
    (prompt,) = trace.value("7ca8b22f", "input")["args"]
    answer = trace.raw("7ca8b22f")
    trace.write([message("user", prompt), message("assistant", answer)], None)


def microsoft_agent() -> None:
    """The second prompt is the result alone; the system prompt stands in the input of the agent around both calls."""
    trace = Trace("microsoft-agent-2025-12-17")
    system, user = trace.value("4cd6caa3", "input")
    call = trace.value("2406e834")[0]["parts"][0]
    result = trace.value("b0913e7c", "input")[0]["parts"][0]["response"]
    result = json.loads(result) if isinstance(result, str) else result
    answer = trace.value("b0913e7c")[0]["parts"][0]["content"]
    assert result["result"] == trace.value("a2de97aa")
    trace.write(
        [
            message("system", system["parts"][0]["content"]),
            message("user", user["parts"][0]["content"]),
            message("assistant", calls=[(call["name"], call["arguments"])]),
            message("tool", result["result"], answers=2),
            message("assistant", answer),
        ],
        ["get_weather"],
    )


def vercel() -> None:
    """The step is the inner generation; the tool ran after it and no prompt repeats the result."""
    trace = Trace("vercel-aisdk-2025-11-17")
    (user,) = trace.value("91a17a22", "input")
    (call,) = trace.value("91a17a22")
    trace.write(
        [
            message("user", user["content"][0]["text"]),
            message("assistant", calls=[(call["toolName"], call["input"])]),
            message("tool", trace.raw("e9bb8c19"), answers=1),
        ],
        ["getWeather"],
    )


def gemini(stem: str, prefix: str) -> None:
    trace = Trace(stem)
    contents = trace.value(prefix, "input")["contents"]
    prompt = contents if isinstance(contents, str) else contents[0]["parts"][0]["text"]
    (candidate,) = trace.value(prefix)["candidates"]
    (part,) = candidate["content"]["parts"]
    assert not part.get("thought")
    trace.write([message("user", prompt), message("assistant", part["text"])], None)


def koog() -> None:
    """Each call is a choice of its own, its JSON the content; the prompt repeats them with the role "tool"."""
    trace = Trace("koog-2025-08-26")
    system, user, _, hello, _, bye = trace.value("e44e72cf", "input")
    calls = [json.loads(choice["content"])[0]["function"] for choice in trace.value("042f9350")]
    trace.write(
        [
            message("system", system["content"]),
            message("user", user["content"]),
            message("assistant", calls=[(call["name"], call["arguments"]) for call in calls]),
            message("tool", hello["content"], answers=2),
            message("tool", bye["content"], answers=2),
            message("assistant", trace.value("e44e72cf")[0]["content"]),
        ],
        None,
    )


if __name__ == "__main__":
    claude_agent()
    pydantic_ai()
    openai_agents()
    langgraph()
    llamaindex()
    microsoft_agent()
    vercel()
    gemini("google-gemini-2025-08-01", "b7a63ca7")
    gemini("vertex-ai-2025-08-01", "125abcbf")
    koog()
    for twin in sorted((REAL_LOGS / "langfuse-chatml-expected").iterdir()):
        records = {"used": 0, "refused": 1, "set_apart": 0, "duplicate": 0}
        oracle = {"made_by": "by hand", "records": records, "no_trajectory": WHY_TWINS, "trajectories": []}
        write_oracle(f"langfuse-chatml-expected/{twin.name}", oracle)
