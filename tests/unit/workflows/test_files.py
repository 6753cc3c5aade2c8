"""What the system refuses is told in one line, whichever library was writing."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import save_file

from offline_arl.errors import DataError, UsageError
from offline_arl.workflows.files import told_refusals

MUCH = 100_000
WRITERS: dict[str, Callable[[Path], object]] = {
    "python": lambda path: path.write_bytes(bytes(MUCH)),
    "safetensors": lambda path: save_file({"weight": torch.zeros(MUCH)}, path),
    "torch": lambda path: torch.save({"weight": torch.zeros(MUCH)}, path),
    "polars": lambda path: pl.DataFrame({"a": np.random.default_rng(0).random(MUCH)}).write_parquet(path),
}


@contextmanager
def small_files() -> Iterator[None]:
    """Files of 1,000 bytes at most; a write beyond that fails, as on a full disk."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("library", WRITERS)
def test_a_file_that_cannot_be_written_is_told_in_one_line(library: str, tmp_path: Path) -> None:
    reason = "a file could not be written" if library == "torch" else "File too large"
    message = f"^stages\\.it: {reason}; check the free space and the permissions, then run it again$"
    with small_files(), pytest.raises(DataError, match=message), told_refusals("stages.it"):
        WRITERS[library](tmp_path / "file")


@pytest.mark.parametrize("error", [ValueError("a fault of the code"), UsageError("told (os error 28) already")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, told_refusals("stages.it"):
        raise error
    assert raised.value is error
