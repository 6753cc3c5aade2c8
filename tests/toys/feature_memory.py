"""Memory that fitting value heads takes on top of a feature cache, in a process of its own (Linux)."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

PROGRAM = """
import sys
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import torch

from offline_arl.datasets.segments import SegmentDataset, SegmentRow, SegmentWriter
from offline_arl.models import feature_cache
from offline_arl.models.feature_writer import _RowFile
from offline_arl.trainers.config import IQLConfig
from offline_arl.trainers.value import fit_values

torch.set_num_threads(1)
folder, attempts, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
STEPS = 4


def memory(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


index = np.arange(-1, STEPS, dtype=np.int32)
with SegmentWriter(folder / "data", kind="transitions", fingerprint="", config={}) as writer:
    for number in range(attempts):
        last = np.arange(STEPS) == STEPS - 1
        writer.add([SegmentRow(
            f"t{number}", f"t{number}", None, bool(number % 2), 0, np.zeros(STEPS + 1, dtype=np.int32), index >= 0,
            index, None, STEPS, np.arange(STEPS, dtype=np.int32), (last * (number % 2)).astype(np.float32), last,
            last & False,
        )])
cache = folder / "cache"
cache.mkdir()
generator = torch.Generator().manual_seed(0)
with (
    _RowFile(cache / feature_cache.STATES_NAME, "states", torch.float32, rows=0, size=size) as states,
    _RowFile(cache / feature_cache.ACTIONS_NAME, "actions", torch.float32, rows=0, size=2 * size) as actions,
):
    for _ in range(0, attempts * STEPS, 1000):
        states.write(torch.randn(1000, size, generator=generator))
        actions.write(torch.randn(1000, 2 * size, generator=generator))
rows = attempts * STEPS
pl.DataFrame({
    "trajectory_id": [f"t{row // STEPS}" for row in range(rows)],
    "step": [row % STEPS for row in range(rows)],
    "has_action": [True] * rows,
}).write_parquet(cache / feature_cache.INDEX_NAME)
manifest = feature_cache.FeatureManifest("", (-1,), size, 2 * size, rows, 0)
(cache / feature_cache.MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest))

dataset = SegmentDataset.load(folder / "data")
warm = torch.ones(8, 8, requires_grad=True)  # libraries that load on first use
(warm @ warm).sum().backward()
before = memory("RssAnon")
features = feature_cache.load_features(cache)
peak = 0.0


def watch(update, losses):
    global peak
    peak = max(peak, memory("RssAnon"))


result = fit_values(features, dataset, IQLConfig(steps=60, log_every=1), generator=generator, report=watch)
print(rows * 3 * size * 4 / 2**20, max(peak, memory("RssAnon")) - before)
"""


class Measurement(NamedTuple):
    """Mebibytes of the features on disk, and of what the process took for itself (mapped files do not count)."""

    features: float
    process: float


def measure(folder: str, *, attempts: int, size: int) -> Measurement:
    """Fit heads to `attempts` attempts of 4 steps (a multiple of 250) with states of `size` numbers."""
    arguments = [folder, str(attempts), str(size)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    return Measurement(*(float(number) for number in done.stdout.split()))
