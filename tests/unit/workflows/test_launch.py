"""What the processes of a stage say reaches the one that waits, each line once."""

from __future__ import annotations

from pathlib import Path

from offline_arl.workflows.launch import _appender, _tell_on


def test_lines_are_passed_on_once_and_whole(tmp_path: Path) -> None:
    path, heard = tmp_path / "told.jsonl", list[str]()
    assert _tell_on(path, heard.append, 0) == 0
    tell = _appender(path)
    tell("step 0")
    told = _tell_on(path, heard.append, 0)
    tell("two\nlines")
    with path.open("a") as file:
        file.write('"half')
    told = _tell_on(path, heard.append, told)
    assert (heard, told) == (["step 0", "two\nlines"], 2)
