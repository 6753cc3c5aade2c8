"""The command line in this process, which is faster than in one of its own."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from toys.commands import Answer, Command

from offline_arl.cli.entry import run


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command; `answer` is what is typed where it asks. What it changes in the environment is put back."""
    monkeypatch.setattr(os, "environ", os.environ.copy())

    def run_here(*arguments: str | Path, answer: str = "") -> Answer:
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        code = run([str(argument) for argument in arguments])
        return Answer(code, *capfd.readouterr())

    return run_here
