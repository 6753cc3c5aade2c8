"""`check` and `ingest --report`: what stands where, and how the exit code tells CI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toys.commands import Command

from offline_arl.trajectories.validate import CODES

SOUND = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
ORPHAN = [
    *SOUND,
    {"role": "tool", "tool_call_id": "\x1b[31mred[/red]", "content": "x"},
    {"role": "assistant", "content": "so"},
]


def log(path: Path, *records: Any) -> Path:
    path.write_text("".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records))
    return path


@pytest.fixture
def sound(tmp_path: Path, command: Command) -> Path:
    assert command("ingest", log(tmp_path / "a.jsonl", {"messages": SOUND}), "--store", tmp_path / "sound").code == 0
    return tmp_path / "sound"


@pytest.fixture
def odd(tmp_path: Path, command: Command) -> Path:
    """A store with one refused record and one warning."""
    records = ({"messages": SOUND}, {"messages": ORPHAN}, "broken")
    assert command("ingest", log(tmp_path / "b.jsonl", *records), "--store", tmp_path / "odd").code == 0
    return tmp_path / "odd"


def test_the_terminal_tells_findings_with_what_they_mean(odd: Path, command: Command) -> None:
    done = command("check", odd)
    assert done.code == 0
    assert "error   1 record refused; invalid JSON" in done.stdout
    assert (
        "orphan_result: a tool result answers a call that was never made (1 in 1 trajectory, 50.0% of all)"
        in done.stdout
    )
    assert "The call was cut away" in done.stdout
    assert f"{odd.parent}/b.jsonl[1]" in done.stdout.replace("\n", "")
    assert f"{odd.parent}/b.jsonl:3" in done.stdout.replace("\n", "")
    assert "looked for and not found: empty_id, no_messages" in done.stdout
    assert "\x1b" not in done.stdout  # what a log says moves no cursor
    assert "[31mred[/red]" in done.stdout  # and is no markup


def test_json_is_one_object_with_the_same_content(odd: Path, command: Command) -> None:
    done = command("check", odd, "--json")
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    assert (done.code, done.stderr) == (0, "")
    assert {finding["code"] for finding in report["findings"]} == set(CODES)
    assert [problem["severity"] for problem in report["problems"]][:2] == ["error", "warning"]
    assert report["holdings"]["trajectories"] == 2
    assert report["refused"]["rows"][0]["examples"][0]["line"] == 3


@pytest.mark.parametrize(
    ("store", "level", "code"),
    [("odd", "error", 1), ("odd", "warning", 1), ("sound", "error", 0), ("sound", "warning", 0)],
)
def test_fail_on(store: str, level: str, code: int, command: Command, request: pytest.FixtureRequest) -> None:
    done = command("check", request.getfixturevalue(store), "--fail-on", level)
    assert done.code == code
    assert "Trajectory store" in done.stdout
    assert done.stderr.count("\n") == code
    if code:
        counts = "1 error" if level == "error" else "1 error, 1 warning"
        assert done.stderr.startswith(
            f"error: {request.getfixturevalue(store)}: {counts} (--fail-on {level}); the first"
        )


def test_warnings_alone_fail_only_where_asked(tmp_path: Path, command: Command) -> None:
    store = tmp_path / "store"
    command("ingest", log(tmp_path / "log.jsonl", {"messages": ORPHAN}), "--store", store)
    assert command("check", store, "--fail-on", "error").code == 0
    done = command("check", store, "--fail-on", "warning", "--json")
    assert done.code == 1
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["error"].startswith(f"{store}: 1 warning (--fail-on warning); the first: orphan_result")
    assert json.loads(line)["holdings"]["trajectories"] == 1


def test_html_is_written_and_replaced(odd: Path, tmp_path: Path, command: Command) -> None:
    page = tmp_path / "report.html"
    page.write_text("old")
    done = command("check", odd, "--html", page, "--fail-on", "error")
    assert done.code == 1
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert f"report: {page}" in done.stderr


def test_ingest_writes_a_report_also_when_everything_was_refused(tmp_path: Path, command: Command) -> None:
    page = tmp_path / "report.html"
    bad = log(tmp_path / "bad.jsonl", "broken", "broken too")
    done = command("ingest", bad, "--store", tmp_path / "store", "--report", page, "--json")
    assert done.code == 1
    assert json.loads(done.stdout)["quarantined"] == 2
    assert "2 records refused" in page.read_text()
    good = log(tmp_path / "good.jsonl", {"messages": SOUND})
    done = command("ingest", good, "--store", tmp_path / "store", "--report", page)
    assert done.code == 0
    assert "<b>1</b><span>trajectories</span>" in page.read_text()
    assert "2 records refused" in page.read_text()  # the report is about the whole store


def test_a_page_that_cannot_be_written_is_told_before_the_work(sound: Path, tmp_path: Path, command: Command) -> None:
    for wrong, why in ((tmp_path, "is a folder"), (tmp_path / "no/report.html", "is missing")):
        done = command("check", sound, "--html", wrong)
        assert (done.code, done.stdout) == (2, "")
        assert why in done.stderr
        done = command("ingest", tmp_path / "a.jsonl", "--store", tmp_path / "new", "--report", wrong)
        assert done.code == 2
        assert not (tmp_path / "new").exists()


def test_a_folder_that_is_no_store(tmp_path: Path, command: Command) -> None:
    done = command("check", tmp_path)
    assert done.code == 1
    assert done.stderr.startswith(f"error: {tmp_path}: no trajectory store here")
