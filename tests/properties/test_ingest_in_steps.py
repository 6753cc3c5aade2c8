"""However a folder grows, and whenever it is ingested meanwhile, the store ends up as if it were ingested once.

Two exceptions, both on purpose: what was cut off when it was read stays in quarantine although the line was completed
later, and of equal records the one that was read first is the original.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_arl.trajectories.store import Store
from offline_arl.workflows.ingest import ingest
from offline_arl.workflows.ingest_report import IngestReport

Record = dict[str, Any]


def time(number: int) -> str:
    return f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"


def conversation(turns: int, name: str) -> list[Record]:
    messages = []
    for number in range(turns):
        messages += [
            {"role": "user", "content": f"{name} asks {number}"},
            {"role": "assistant", "content": f"{name} hears {number}"},
        ]
    return messages


def claude_code() -> list[bytes]:
    """Three sessions that are interleaved; one has a rewind, one a line that is said twice, one a broken message."""
    lines: list[Record] = []
    for number in range(6):
        for session in ("p", "q", "r"):
            role = "user" if number % 2 == 0 else "assistant"
            message: Record = {"role": role, "content": f"{session} {number}"}
            if role == "assistant":
                message = {**message, "content": [{"type": "text", "text": f"{session} {number}"}], "model": "m"}
                message |= {"id": f"m-{session}-{number}", "type": "message"}
            parent = None if number == 0 else f"{session}-{1 if (session, number) == ('p', 4) else number - 1}"
            lines.append(
                {"type": role, "uuid": f"{session}-{number}", "parentUuid": parent, "sessionId": session}
                | {"timestamp": time(number), "message": message if (session, number) != ("r", 4) else "broken"}
            )
    lines.insert(9, lines[4])
    lines.insert(11, {"type": "summary", "summary": "What was said", "leafUuid": "p-1"})
    return [json.dumps(line).encode() + b"\n" for line in lines]


def openai_chat() -> list[bytes]:
    records: list[Any] = [
        {"messages": conversation(number % 2 + 1, "ann"), "task_id": "t", "success": number % 3 == 0}
        for number in range(6)
    ]
    records[3:3] = [{"messages": []}, "no record", {"messages": [{"role": "nobody"}]}]
    return [json.dumps(record).encode() + b"\n" for record in records]


def langsmith() -> list[bytes]:
    """Runs of two traces and of one thread, judged before and after they come."""
    lines: list[Record] = []
    for trace in ("a", "b", "c"):
        for turn in (1, 2):
            answer = {"role": "assistant", "content": f"{trace} hears {turn - 1}"}
            lines.append(
                {"id": f"{trace}{turn}", "trace_id": trace, "parent_run_id": None if turn == 1 else f"{trace}1"}
                | {"run_type": "llm", "name": "model", "start_time": time(turn), "end_time": time(turn + 1)}
                | {"inputs": {"messages": conversation(turn, trace)[:-1]}}
                | {"outputs": {"choices": [{"index": 0, "message": answer, "finish_reason": "stop"}]}}
                | {"extra": {"metadata": {"thread_id": "thread"} if trace != "a" else {}}}
            )
    for number, run in enumerate(("b1", "b1", "c2", "nothing")):
        lines.insert(
            number * 3,
            {"id": f"f{number // 2}{run}", "run_id": run, "trace_id": run[0], "key": "helpful", "score": number}
            | {"created_at": time(number), "modified_at": time(number)},
        )
    return [json.dumps(line).encode() + b"\n" for line in lines]


def otlp() -> list[bytes]:
    """A line for each span of a session, its turns out of order, and a span without messages."""
    lines = []
    for session, turn in (("s", 2), ("s", 1), ("t", 1), ("s", 3), ("t", 2), ("u", 0)):
        prompt = [
            {"role": message["role"], "parts": [{"type": "text", "content": message["content"]}]}
            for message in conversation(turn, session)
        ]
        values = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.conversation.id": session}
        if turn:
            values |= {"gen_ai.input.messages": json.dumps(prompt[:-1])}
            values |= {"gen_ai.output.messages": json.dumps(prompt[-1:])}
        span = {
            "traceId": f"{ord(session):032x}",
            "spanId": f"{ord(session) * 10 + turn:016x}",
            "name": "chat m",
            "startTimeUnixNano": str(10**18 + turn * 10**9),
            "endTimeUnixNano": str(10**18 + turn * 10**9 + 5),
            "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in values.items()],
        }
        lines.append({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [span]}]}]})
    return [json.dumps(line).encode() + b"\n" for line in lines]


def cassette() -> list[bytes]:
    """The beginning of a cassette, and its interactions."""
    parts = [b"interactions:\n"]
    for turn in (1, 2, 3):
        messages = conversation(turn, "cas")
        answer = {"choices": [{"index": 0, "message": messages[-1], "finish_reason": "stop"}], "id": f"r{turn}"}
        interaction = {
            "request": {
                "method": "POST",
                "uri": "https://api.example.com/v1/chat/completions",
                "body": json.dumps({"model": "m", "messages": messages[:-1]}),
                "headers": {},
            },
            "response": {
                "status": {"code": 200, "message": "OK"},
                "headers": {},
                "body": {"string": json.dumps(answer)},
            },
        }
        parts.append(yaml.safe_dump([interaction]).encode())
    return [parts[0] + parts[1], *parts[2:]]


LOGS = {
    "claude.jsonl": claude_code(),
    "chat.jsonl": openai_chat(),
    "runs.jsonl": langsmith(),
    "more_chat.jsonl": openai_chat(),
    "spans.jsonl": otlp(),
    "calls.yaml": cassette(),
}
# A step: to a file so many pieces are added, perhaps only the beginning of the last one; then all is ingested, or not.
steps = st.lists(
    st.tuples(st.sampled_from(sorted(LOGS)), st.integers(1, 12), st.booleans(), st.booleans()), min_size=1, max_size=10
)


class Growing:
    """A folder of logs that are still being written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._written = dict.fromkeys(LOGS, 0)

    def write(self, name: str, count: int, *, is_cut: bool) -> None:
        self._written[name] = min(self._written[name] + count, len(LOGS[name]))
        content = b"".join(LOGS[name][: self._written[name]])
        # Another piece begins, and is not complete yet. YAML would make something else of it.
        rest = LOGS[name][self._written[name] :]
        if is_cut and rest and name.endswith(".jsonl"):
            content += rest[0][: len(rest[0]) // 2]
        (self.folder / name).write_bytes(content)

    def complete(self) -> None:
        for name in self._written:
            if self._written[name]:
                self.write(name, 0, is_cut=False)


def adds_up(report: IngestReport) -> None:
    assert report.records == report.records_used + report.quarantined + report.duplicates + report.set_apart
    assert sum(report.by_format.values()) == report.records


def content(store: Store) -> dict[str, Any]:
    copies: dict[str, set[str]] = {}
    for name, original in store.trajectories.select("trajectory_id", "duplicate_of").collect().iter_rows():
        copies.setdefault(original or name, set()).add(name)
    return {
        "damage": store.verify(),
        "trajectories": sorted(msgspec.json.encode(trajectory) for trajectory in store.iter_trajectories()),
        "steps": sorted(store.steps.collect().rows(), key=repr),
        "feedback": sorted(store.feedback.collect().rows(), key=repr),
        "findings": sorted(store.findings.collect().rows(), key=repr),
        "copies": sorted(map(sorted, copies.values())),
        "set apart": sorted(store.set_apart.collect().rows(), key=repr),
        "repeated": sorted(store.repeated.collect().rows(), key=repr),
        "counts": (len(store), store.manifest.counts.steps),
    }


def refused(store: Store) -> set[tuple[Any, ...]]:
    return set(store.quarantined.select("file", "record", "line", "reason", "raw").collect().rows())


def run(chosen: Sequence[tuple[str, int, bool, bool]], root: Path) -> None:
    growing = Growing(root / "logs")
    for name, count, is_cut, is_ingested in chosen:
        growing.write(name, count, is_cut=is_cut)
        if is_ingested:
            adds_up(ingest(growing.folder, root / "grown"))
    growing.complete()
    adds_up(ingest(growing.folder, root / "grown"))
    last = ingest(growing.folder, root / "grown")
    adds_up(last)
    fresh = ingest(growing.folder, root / "fresh")
    adds_up(fresh)
    assert (last.records, last.records_used, last.trajectories) == (fresh.records, 0, 0)
    assert last.quarantined == fresh.quarantined
    grown, once = Store(root / "grown"), Store(root / "fresh")
    assert content(grown) == content(once)
    assert refused(grown) >= refused(once)
    assert all("truncated" in row[3] for row in refused(grown) - refused(once))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_a_folder_that_grows(chosen: list[tuple[str, int, bool, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(chosen, Path(folder))
