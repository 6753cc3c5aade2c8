"""Ingestion of interactions that are spread over records and files: sessions that grow, join and are retried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.trajectories.schema import Trajectory
from offline_arl.trajectories.store import Store
from offline_arl.workflows.ingest import ingest
from offline_arl.workflows.ingest_report import IngestReport


def line(session: str, number: int, **fields: Any) -> str:
    """One line of a Claude Code session: user and assistant messages take turns, each the child of the last."""
    role = "user" if number % 2 == 0 else "assistant"
    content = f"question {number}" if role == "user" else [{"type": "text", "text": f"answer {number}"}]
    message: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        message |= {"id": f"msg-{session}-{number}", "model": "m", "type": "message"}
    return json.dumps(
        {
            "type": role,
            "uuid": f"{session}-{number}",
            "parentUuid": None if number == 0 else f"{session}-{number - 1}",
            "sessionId": session,
            "timestamp": f"2026-01-01T00:00:{number:02}Z",
            "message": message,
            **fields,
        }
    )


def write_lines(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(text + "\n" for text in lines))
    return path


def session(name: str, count: int, first: int = 0) -> list[str]:
    return [line(name, number) for number in range(first, first + count)]


def fates(report: IngestReport) -> tuple[int, int, int, int]:
    assert report.records == report.records_used + report.quarantined + report.duplicates + report.set_apart
    assert sum(report.by_format.values()) == report.records
    return report.records_used, report.quarantined, report.duplicates, report.set_apart


def content(folder: Path) -> list[Trajectory]:
    return sorted(Store(folder).iter_trajectories(), key=lambda trajectory: trajectory.trajectory_id)


def test_the_lines_of_a_session_become_one_trajectory(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.jsonl", [*session("one", 4), *session("two", 2)])
    report = ingest(log, tmp_path / "store")
    assert fates(report) == (6, 0, 0, 0)
    assert report.trajectories == 2
    assert report.by_format == {"claude_code": 6}
    texts = [
        [message.text for message in trajectory.messages]
        for trajectory in Store(tmp_path / "store").iter_trajectories()
    ]
    assert texts == [["question 0", "answer 1", "question 2", "answer 3"], ["question 0", "answer 1"]]


def test_a_session_that_grew_replaces_its_earlier_state(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.jsonl", [*session("one", 2), *session("other", 2)])
    ingest(log, tmp_path / "store")
    earlier = {trajectory.session_id: trajectory for trajectory in Store(tmp_path / "store").iter_trajectories()}
    write_lines(log, [*session("one", 2), *session("other", 2), *session("one", 2, first=2)])
    report = ingest(log, tmp_path / "store")
    assert fates(report) == (2, 0, 4, 0)
    assert report.trajectories == 1
    store = Store(tmp_path / "store")
    now = {trajectory.session_id: trajectory for trajectory in store.iter_trajectories()}
    assert len(store) == 2
    assert now["other"] == earlier["other"]
    assert now["one"].trajectory_id == earlier["one"].trajectory_id
    assert now["one"].messages[:2] == earlier["one"].messages
    assert len(now["one"].messages) == 4
    assert store.steps.collect().height == 3
    ingest(log, tmp_path / "fresh")
    assert content(tmp_path / "fresh") == content(tmp_path / "store")


def test_a_session_that_is_continued_in_another_file_is_joined(tmp_path: Path) -> None:
    write_lines(tmp_path / "logs/a.jsonl", session("one", 2))
    ingest(tmp_path / "logs/a.jsonl", tmp_path / "store")
    ingest(write_lines(tmp_path / "logs/b.jsonl", session("one", 2, first=2)), tmp_path / "store")
    (trajectory,) = Store(tmp_path / "store").iter_trajectories()
    assert [message.text for message in trajectory.messages] == ["question 0", "answer 1", "question 2", "answer 3"]
    report = ingest(tmp_path / "logs", tmp_path / "store")
    assert fates(report) == (0, 0, 4, 0)
    assert report.trajectories == 0


def test_a_line_that_is_refused_is_kept_once_and_counts_whenever_it_is_refused(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.jsonl", [*session("one", 2), line("one", 2, message="error"), "broken"])
    for expected in ((2, 2, 0, 0), (0, 2, 2, 0)):
        report = ingest(log, tmp_path / "store")
        assert fates(report) == expected
        assert [reason.split(": ")[0] for reason in report.reasons] == [f"{log}:{number}" for number in (4, 3)] or [
            reason.split(": ")[0] for reason in report.reasons
        ] == [f"{log}:{number}" for number in (3, 4)]
    store = Store(tmp_path / "store")
    assert store.quarantined.collect()["line"].sort().to_list() == [3, 4]
    assert len(store) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_sessions_that_are_interleaved_over_many_parts_are_whole(tmp_path: Path, workers: int) -> None:
    names = [f"s{number:03}" for number in range(150)]
    lines = [line(name, number) for number in range(6) for name in names]
    log = write_lines(tmp_path / "a.jsonl", lines)
    report = ingest(log, tmp_path / "store", workers=workers)
    assert fates(report) == (900, 0, 0, 0)
    lengths = {
        trajectory.session_id: len(trajectory.messages) for trajectory in Store(tmp_path / "store").iter_trajectories()
    }
    assert lengths == dict.fromkeys(names, 6)


def atif_trial(folder: Path, text: str, reward: float) -> Path:
    """A trial of Harbor: a trajectory, and beside its folder the result."""
    steps = [
        {"step_id": 1, "source": "user", "message": f"do {text}"},
        {"step_id": 2, "source": "agent", "message": text},
    ]
    document = {"schema_version": "ATIF-v1.6", "agent": {"name": "a", "version": "1"}, "steps": steps}
    result = {"task_name": "t", "task_id": {}, "trial_name": text, "agent_info": {}}
    write_lines(folder / "agent/trajectory.json", [json.dumps(document)])
    write_lines(folder / "result.json", [json.dumps(result | {"verifier_result": {"rewards": {"reward": reward}}})])
    return folder


def test_trials_of_the_same_file_names_in_different_sources_stay_apart(tmp_path: Path) -> None:
    """Each of the folders is a source, so that the labels of their files are the same."""
    sources = [atif_trial(tmp_path / "jobs" / name, name, reward) for name, reward in (("one", 1.0), ("two", 0.0))]
    expected = [("one", 1.0), ("two", 0.0)]

    def rewards(store: str) -> list[tuple[str, float | None]]:
        found = Store(tmp_path / store).iter_trajectories()
        return sorted((trajectory.messages[-1].text, trajectory.outcome.score) for trajectory in found)

    assert fates(ingest(sources, tmp_path / "together")) == (4, 0, 0, 0)
    for source in sources:
        assert fates(ingest(source, tmp_path / "in turn")) == (2, 0, 0, 0)
    ingest(tmp_path / "jobs", tmp_path / "whole")
    assert rewards("together") == rewards("in turn") == rewards("whole") == expected
    # A result that comes later joins its trial, also where the folder is named in another way then.
    (tmp_path / "jobs/two/result.json").rename(tmp_path / "result.json")
    ingest(tmp_path / "jobs", tmp_path / "later")
    (tmp_path / "result.json").rename(tmp_path / "jobs/two/result.json")
    assert rewards("later") == [("one", 1.0), ("two", None)]
    ingest(sources[1], tmp_path / "later")
    assert rewards("later") == expected
    assert content(tmp_path / "later") == content(tmp_path / "whole")


def test_a_record_with_several_pieces_of_one_group_counts_once(tmp_path: Path) -> None:
    def run(number: int, *, parent: str | None) -> dict[str, Any]:
        name = f"00000000-0000-0000-0000-{number:012}"
        return {
            "id": name,
            "trace_id": "00000000-0000-0000-0000-000000000001",
            "parent_run_id": parent,
            "name": "chat" if parent else "agent",
            "run_type": "llm" if parent else "chain",
            "start_time": f"2026-01-01T00:00:0{number}Z",
            "end_time": f"2026-01-01T00:00:0{number}Z",
            "inputs": {"messages": [{"role": "user", "content": "hello"}]},
            "outputs": {"choices": [{"message": {"role": "assistant", "content": "hi"}}]} if parent else {},
            "session_id": "00000000-0000-0000-0000-000000000009",
        }

    root = run(1, parent=None)
    log = write_lines(tmp_path / "a.jsonl", [json.dumps({"post": [root, run(2, parent=root["id"])], "patch": []})])
    for expected in ((1, 0, 0, 0), (0, 0, 1, 0)):
        report = ingest(log, tmp_path / "store")
        assert fates(report) == expected
        assert report.by_format == {"langsmith": 1}
    assert len(Store(tmp_path / "store")) == 1


def test_a_line_that_is_corrected_in_its_place_takes_the_place_of_the_refused_one(tmp_path: Path) -> None:
    """The two have one uuid; the refused one must not make a duplicate of the other."""
    log = write_lines(
        tmp_path / "a.jsonl", [*session("one", 2), line("one", 2, message="error"), *session("one", 1, 3)]
    )
    assert fates(ingest(log, tmp_path / "store")) == (3, 1, 0, 0)
    for attempt in ("still wrong", None):
        changes = {} if attempt is None else {"message": attempt}
        write_lines(log, [*session("one", 2), line("one", 2, **changes), *session("one", 1, 3)])
        report = ingest(log, tmp_path / "store")
        assert fates(report) == ((1, 0, 3, 0) if attempt is None else (0, 1, 3, 0))
    assert fates(ingest(log, tmp_path / "store")) == (0, 0, 4, 0)
    ingest(log, tmp_path / "fresh")
    assert content(tmp_path / "store") == content(tmp_path / "fresh")
    (trajectory,) = content(tmp_path / "store")
    assert [message.text for message in trajectory.messages] == ["question 0", "answer 1", "question 2", "answer 3"]
    # What was refused is kept as it was.
    assert Store(tmp_path / "store").quarantined.collect()["line"].to_list() == [3, 3]
    write_lines(log, [*session("one", 6)])
    assert fates(ingest(log, tmp_path / "store")) == (2, 0, 4, 0)
