"""A trail shows whatever is done to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from offline_arl.environments.audit import AuditTrail, verify
from offline_arl.errors import DataError, UsageError
from offline_arl.workflows.environments import verify_audit_trail


@pytest.fixture
def trail(tmp_path: Path) -> Path:
    path = tmp_path / "audit.jsonl"
    with AuditTrail(path) as audit:
        for number in range(5):
            audit.append("task-1", "call", tool="refund", arguments=f'{{"n": {number}}}')
    return path


def test_an_untouched_trail_holds_and_can_be_continued(trail: Path) -> None:
    first = verify(trail)
    assert first.entries == 5
    with AuditTrail(trail) as audit:
        entry = audit.append("task-2", "end")
        assert entry.previous == first.last_hash
        assert audit.last_hash == entry.hash
    assert verify(trail, last_hash=entry.hash).entries == 6


@pytest.mark.parametrize(("text", "told"), [("", "is empty; name the file"), ("hello\n", "or the file is none")])
def test_files_that_are_no_trail_are_told(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(DataError, match=told):
        verify_audit_trail(tmp_path / "file")


def changed(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2].replace(b'\\"n\\": 2', b'\\"n\\": 3'), *lines[3:]]


def respelled(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2].replace(b'"number":2', b'"number": 2'), *lines[3:]]


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (changed, 3),
        (respelled, 3),
        (lambda lines: [*lines[:2], *lines[3:]], 3),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3),
        (lambda lines: [*lines[:4], b"{}\n"], 5),
        (lambda lines: [*lines[:4], b"\xff\n"], 5),
    ],
    ids=["changed", "respelled", "removed", "moved", "repeated", "no entry", "no text"],
)
def test_each_kind_of_edit_is_found_and_located(trail: Path, edit: object, line: int) -> None:
    lines = trail.read_bytes().splitlines(keepends=True)
    edited = edit(lines)  # type: ignore[operator]
    assert edited != lines
    trail.write_bytes(b"".join(edited))
    with pytest.raises(DataError, match=rf"audit\.jsonl:{line}:"):
        verify(trail)
    with pytest.raises(DataError, match=rf"audit\.jsonl:{line}:"):
        AuditTrail(trail)


def test_a_cut_end_is_found_where_the_last_hash_is_known(trail: Path) -> None:
    last = verify(trail).last_hash
    trail.write_bytes(b"".join(trail.read_bytes().splitlines(keepends=True)[:-1]))
    assert verify(trail).entries == 4
    with pytest.raises(DataError, match="cut off"):
        verify(trail, last_hash=last)


def test_an_entry_that_a_killed_process_did_not_finish_is_dropped_and_told(trail: Path) -> None:
    data = trail.read_bytes()
    trail.write_bytes(data[:-20])
    with pytest.raises(DataError, match=r"audit\.jsonl:5:"):
        verify(trail)
    with AuditTrail(trail):
        pass
    lines = trail.read_bytes().splitlines()
    assert verify(trail).entries == 5
    assert b"unfinished_entry_dropped" in lines[-1]


def test_a_second_process_is_refused(trail: Path) -> None:
    code = f"from offline_arl.environments.audit import AuditTrail\nAuditTrail({str(trail)!r})"
    with AuditTrail(trail):
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "another process writes to this audit trail" in result.stderr
        with pytest.raises(UsageError, match="another process"):
            AuditTrail(trail)


def test_a_trail_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        verify(tmp_path / "missing.jsonl")
    with pytest.raises(DataError, match="cannot be written"):
        AuditTrail(tmp_path)
