"""A pass of hidden states that is killed, and run again, leaves the cache of an undisturbed one for less work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from toys import ToyTokenizer, toy_dataset, toy_model, toy_rows

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.models.config import FeatureConfig
from offline_arl.models.feature_cache import load_manifest
from offline_arl.trainers.step_features import compute_features

CONFIG = FeatureConfig(tokens_per_batch=60, layers=(0, -1))
KILLED = """
import os, signal, sys
from toys import ToyTokenizer, toy_model
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.models import feature_writer
from offline_arl.models.config import FeatureConfig
from offline_arl.trainers.step_features import compute_features

def report(done, total):
    if done > total / 2:
        os.kill(os.getpid(), signal.SIGKILL)

feature_writer.SECONDS_BETWEEN_SAVES = 0.0
config = FeatureConfig(tokens_per_batch=60, layers=(0, -1))
compute_features(
    toy_model(), ToyTokenizer(), SegmentDataset.load(sys.argv[1]), sys.argv[2], config=config, report=report
)
"""


def computed(dataset: SegmentDataset, output: Path) -> tuple[int, list[int]]:
    """Make a cache; the number of positions that the model computed for it, and the tokens that were told as done."""
    model = toy_model()
    positions: list[int] = []
    told: list[int] = []
    layer = model.get_decoder().layers[0].mlp
    layer.register_forward_hook(lambda module, inputs, output: positions.append(output.shape[:-1].numel()))
    compute_features(
        model, ToyTokenizer(), dataset, output, config=CONFIG, report=lambda done, total: told.append(done)
    )
    return sum(positions), told


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_killed_pass_goes_on_with_the_bytes_of_an_undisturbed_one(tmp_path: Path) -> None:
    """What was written after the last save, also of the journal, is cut off."""
    dataset = toy_dataset(tmp_path / "data", toy_rows(30))
    command = [sys.executable, "-c", KILLED, str(tmp_path / "data"), str(tmp_path / "cache")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    unfinished = tmp_path / ".cache.unfinished"
    for name, torn in (
        ("states.safetensors", b"the beginning of a batch"),
        ("actions.safetensors", b"the beginning of a batch"),
        ("journal.jsonl", b'{"batches":9'),
    ):
        with (unfinished / name).open("ab") as file:
            file.write(torn)
    positions, told = computed(dataset, tmp_path / "cache")
    straight, all_told = computed(dataset, tmp_path / "straight")
    manifest = load_manifest(tmp_path / "straight")
    assert manifest is not None
    assert straight == manifest.tokens
    assert 0 < positions < 0.6 * straight
    assert told == all_told[-len(told) :]
    assert all_told[-1] == dataset.manifest.counts["tokens"]
    assert content(tmp_path / "cache") == content(tmp_path / "straight")
    assert not unfinished.exists()
