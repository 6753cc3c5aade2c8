"""Writing the cache of step features, batch by batch; a pass that was interrupted goes on where it stopped.

Until it is complete, the cache `name` lies in `.name.unfinished` beside it, with a journal that says, every few
seconds, how much of it is safely on disk. A later pass over the same batches cuts off what came after the last line of
the journal and computes the rest, so that the files are those of a pass in one go.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import polars as pl
import torch
from torch import Tensor

from offline_arl.errors import DataError, UsageError
from offline_arl.models.config import FeatureConfig
from offline_arl.models.feature_cache import ACTIONS_NAME, INDEX_NAME, MANIFEST_NAME, STATES_NAME, FeatureManifest
from offline_arl.models.features import (
    EncodedSteps,
    FeatureRow,
    PaddedBatch,
    StepFeatures,
    StepPlaces,
    step_features,
    step_places,
)

_logger = logging.getLogger(__name__)

JOURNAL_NAME = "journal.jsonl"
SECONDS_BETWEEN_SAVES = 10.0  # what a killed pass loses, and the batch that it was at
_HEADER_BYTES = 512
_DTYPE_CODES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


class _Pass(msgspec.Struct, frozen=True):
    """The first line of a journal: which pass it is of."""

    fingerprint: str
    tokens_per_batch: int


class _Saved(msgspec.Struct, frozen=True):
    """A line of a journal: what is on disk. `tokens` is the number of positions that the model computed."""

    batches: int = 0
    rows: int = 0
    tokens: int = 0
    state_size: int = 0
    action_size: int = 0


class _Journal:
    """The journal of an unfinished cache, held by one process. It begins anew where it is of another pass.

    Raises:
        UsageError: Another process holds it.
    """

    def __init__(self, folder: Path, identity: _Pass) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / JOURNAL_NAME).open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UsageError(f"{folder}: another process computes these features; wait for it or stop it") from None
        self._file.seek(0)
        head, *lines = self._file.read().split(b"\n")
        self.saved = _Saved()
        if lines and head == msgspec.json.encode(identity):
            torn = lines.pop()  # or nothing, after the last line's end
            self._file.truncate(self._file.tell() - len(torn))
            self.saved = msgspec.json.decode(lines[-1], type=_Saved) if lines else self.saved
        else:
            self._file.truncate(0)
            self._append(identity)

    def __enter__(self) -> _Journal:
        return self

    def add(self, saved: _Saved) -> None:
        """Say that the disk has this much."""
        self.saved = saved
        self._append(saved)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def _append(self, line: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


class _RowFile:
    """A safetensors file with one tensor [N, size] whose rows come one batch at a time.

    The header has a fixed place, filled with spaces as the format allows, and is written at the end of the block,
    when N is known.

    Args:
        path: The file.
        name: Of the tensor.
        dtype: Of the tensor.
        rows: How many rows of an earlier pass stay; what comes after them is cut off.
        size: Of a row.
    """

    def __init__(self, path: Path, name: str, dtype: torch.dtype, *, rows: int, size: int) -> None:
        self._name, self._dtype = name, dtype
        self._shape = (rows, size)
        self._file = path.open("r+b" if rows else "wb")
        self._file.truncate(_HEADER_BYTES + rows * size * dtype.itemsize)
        self._file.seek(0, os.SEEK_END)

    def __enter__(self) -> _RowFile:
        return self

    def write(self, rows: Tensor) -> None:
        """Append rows [n, size]."""
        self._shape = (self._shape[0] + len(rows), rows.shape[1])
        self._file.write(rows.to("cpu", self._dtype).contiguous().view(torch.uint8).numpy().data)

    def save(self) -> None:
        """Have the disk keep what was written."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._file:
            if error is None:
                size = self._shape[0] * self._shape[1] * self._dtype.itemsize
                tensor = {"dtype": _DTYPE_CODES[self._dtype], "shape": self._shape, "data_offsets": [0, size]}
                header = json.dumps({self._name: tensor}).encode().ljust(_HEADER_BYTES - 8)
                self._file.seek(0)
                self._file.write(struct.pack("<Q", len(header)) + header)


def write_feature_cache(
    model: Any,
    batches: Sequence[Sequence[int]],
    output: str | Path,
    *,
    rows_of: Callable[[Sequence[int]], Sequence[FeatureRow]],
    collate: Callable[[Sequence[Any]], PaddedBatch],
    config: FeatureConfig,
    fingerprint: str,
    report: Callable[[int], None] | None = None,
) -> FeatureManifest:
    """Run the frozen model over all batches, each once, and write the cache; memory is bounded by a batch.

    The folder appears when complete. The model's training mode is restored.

    Args:
        model: Computes the hidden states.
        batches: Numbers of rows. The data and `config.tokens_per_batch` alone decide them.
        output: The folder of the cache; one that is there is replaced.
        rows_of: Gives the rows of a batch.
        collate: Pads rows.
        config: Layers and type.
        fingerprint: `feature_cache.features_fingerprint`.
        report: Told the number of batches that are done.

    Raises:
        DataError: There is no segment, or one starts with an action.
        UsageError: Another process is writing this cache.
    """
    output = Path(output)
    unfinished = output.with_name(f".{output.name}.unfinished")
    was_training = model.training
    model.eval()

    def encode(rows: Sequence[FeatureRow]) -> EncodedSteps:
        return step_features(model, rows, collate(rows), layers=config.layers, state_window=config.state_window)

    try:
        with _Journal(unfinished, _Pass(fingerprint, config.tokens_per_batch)) as journal, torch.inference_mode():
            dtype = getattr(torch, config.dtype)
            written = _write_rows(
                batches, unfinished, journal, rows_of=rows_of, encode=encode, dtype=dtype, report=report
            )
            manifest = FeatureManifest(
                fingerprint=fingerprint,
                layers=config.layers,
                state_size=written.state_size,
                action_size=written.action_size,
                rows=written.rows,
                tokens=written.tokens,
            )
            text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
            (unfinished / MANIFEST_NAME).write_bytes(text + b"\n")
            (unfinished / JOURNAL_NAME).unlink()
            if output.exists():
                shutil.rmtree(output)
            unfinished.rename(output)
    except DataError:
        shutil.rmtree(unfinished, ignore_errors=True)  # another time would end the same
        raise
    finally:
        model.train(was_training)
    return manifest


def _write_rows(
    batches: Sequence[Sequence[int]],
    folder: Path,
    journal: _Journal,
    *,
    rows_of: Callable[[Sequence[int]], Sequence[FeatureRow]],
    encode: Callable[[Sequence[FeatureRow]], EncodedSteps],
    dtype: torch.dtype,
    report: Callable[[int], None] | None,
) -> _Saved:
    """Write states, actions and index of all batches, beginning where the journal ends.

    Raises:
        DataError: There is no batch.
    """
    if not batches:
        raise DataError("there is no segment to make features of")
    done = journal.saved
    index = [_index(step_places(rows_of(batch))) for batch in batches[: done.batches]]
    if sum(map(len, index)) != done.rows or not _is_there(done, folder, dtype):
        done, index = _Saved(), []
    elif done.batches:
        _logger.info("hidden states of %d of %d batches are there from a pass before", done.batches, len(batches))
    saved_at = time.monotonic()
    with (
        _RowFile(folder / STATES_NAME, "states", dtype, rows=done.rows, size=done.state_size) as states,
        _RowFile(folder / ACTIONS_NAME, "actions", dtype, rows=done.rows, size=done.action_size) as actions,
    ):
        for batch in batches[done.batches :]:
            features, computed = encode(rows_of(batch))
            states.write(features.states)
            actions.write(features.actions)
            index.append(_index(features))
            done = _Saved(
                batches=done.batches + 1,
                rows=done.rows + len(features),
                tokens=done.tokens + computed,
                state_size=features.states.shape[-1],
                action_size=features.actions.shape[-1],
            )
            if time.monotonic() - saved_at >= SECONDS_BETWEEN_SAVES:
                states.save()
                actions.save()
                journal.add(done)
                saved_at = time.monotonic()
            if report is not None:
                report(done.batches)
    pl.concat(index).write_parquet(folder / INDEX_NAME)
    return done


def _index(steps: StepPlaces | StepFeatures) -> pl.DataFrame:
    """What names each row."""
    return pl.DataFrame(
        {
            "trajectory_id": steps.trajectory_ids,
            "step": steps.steps.numpy(),
            "has_action": steps.has_action.numpy(),
        }
    )


def _is_there(saved: _Saved, folder: Path, dtype: torch.dtype) -> bool:
    """Whether the files have the rows that the journal tells of."""
    for name, size in ((STATES_NAME, saved.state_size), (ACTIONS_NAME, saved.action_size)):
        path, needed = folder / name, _HEADER_BYTES + saved.rows * size * dtype.itemsize
        if saved.rows and not (path.is_file() and path.stat().st_size >= needed):
            return False
    return True
