"""Progress where stderr is no terminal: a line now and then, so that a log says that work goes on."""

from __future__ import annotations

import pytest

from offline_arl.cli import output
from offline_arl.cli.output import Output


def test_a_log_gets_a_line_a_minute(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    with Output(as_json=False) as out, out.progress() as progress:
        for second in range(0, 150, 10):
            now[0] = float(second)
            progress("steps", second, 200 if second < 100 else None)
    assert capfd.readouterr().err.splitlines() == ["steps: 60 of 200", "steps: 120"]
    with Output(as_json=False) as out, out.progress(shown=False) as progress:
        now[0] += 100
        progress("steps", 1, 2)
    assert capfd.readouterr().err == ""
