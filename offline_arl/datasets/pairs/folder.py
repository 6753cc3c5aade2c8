"""Folders of preference datasets: `PairDataset` (kind "pairs") and `UnpairedDataset` (kind "unpaired").

    folder/manifest.json         kind, fingerprint, configuration, counts (also of what was left out, and why)
    folder/part-00000.parquet    the columns of `rows.PairRow` or `rows.UnpairedRow`

Read one with `PairDataset.load(folder)`: a sequence of rows whose arrays are views. `chosen_lengths`,
`rejected_lengths` and `lengths` have the token counts of all rows without touching them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_arl.datasets.folders import ColumnTable, read_parts
from offline_arl.datasets.manifest import DatasetManifest, PreferenceKind, load_manifest
from offline_arl.datasets.pairs.rows import PAIR_SCHEMA, UNPAIRED_SCHEMA, PairRow, UnpairedRow
from offline_arl.datasets.writer import DatasetWriter
from offline_arl.errors import UsageError

PreferenceRow = PairRow | UnpairedRow
RowT = TypeVar("RowT", PairRow, UnpairedRow)

ROWS_PER_GROUP = 256  # a row holds two whole sequences and their text
ROWS_PER_PART = 16_384

_SCHEMAS: dict[PreferenceKind, pa.Schema] = {"pairs": PAIR_SCHEMA, "unpaired": UNPAIRED_SCHEMA}


class PreferenceWriter(DatasetWriter):
    """Writes a preference dataset.

    The manifest's `counts` has rows, tokens and action_tokens (of all sides), of each kind of pair (`pairs/step`) or
    label (`desirable`, `undesirable`) how many rows, and the trajectories that some row is about.

    Args:
        output: Folder to create. An existing dataset there is replaced when the new one is complete.
        kind: What the rows are.
        fingerprint: Of the renderer that made the token ids.
        config: How it was built, for the manifest.
        may_be_empty: Whether a dataset without rows is fine.

    Raises:
        UsageError: `output` exists and is not a dataset folder.
    """

    def __init__(
        self,
        output: Path,
        *,
        kind: PreferenceKind,
        fingerprint: str,
        config: dict[str, Any],
        may_be_empty: bool = False,
    ) -> None:
        super().__init__(
            output,
            _SCHEMAS[kind],
            kind=kind,
            fingerprint=fingerprint,
            config=config,
            may_be_empty=may_be_empty,
            rows_per_group=ROWS_PER_GROUP,
            rows_per_part=ROWS_PER_PART,
        )
        self.counts.update({"rows": 0, "tokens": 0, "action_tokens": 0})
        self._trajectories: set[str] = set()

    def add(self, row: PreferenceRow) -> None:
        """Add a row."""
        label = f"pairs/{row.kind}" if isinstance(row, PairRow) else "desirable" if row.label else "undesirable"
        self.counts[label] += 1
        self.counts["tokens"] += len(row)
        for token_ids, action_mask in _sides(row):
            self.counts["action_tokens"] += int(action_mask.sum())
            self._hash.update(np.ascontiguousarray(token_ids).tobytes())
            self._hash.update(np.ascontiguousarray(action_mask).tobytes())
        self._hash.update(f"{_identity(row)}\0{label}\0{row.prompt_length}\0{row.weight:.6g}".encode())
        self._trajectories.update(row.trajectory_ids)
        self._write([row])

    def _commit(self) -> None:
        self.counts["trajectories"] = len(self._trajectories)
        super()._commit()


class _PreferenceDataset(Sequence[RowT], Generic[RowT]):
    """A folder in memory."""

    kind: PreferenceKind
    row_type: type[RowT]

    def __init__(self, table: pa.Table, manifest: DatasetManifest) -> None:
        self.manifest = manifest
        self._table = ColumnTable(table)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a folder.

        Raises:
            DataError: The folder is no dataset, or one of another format version, or damaged.
            UsageError: It is a dataset of another kind.
        """
        folder = Path(folder)
        manifest = load_manifest(folder)
        if manifest.kind != cls.kind:
            raise UsageError(f"{folder}: the dataset is of kind {manifest.kind}, this needs {cls.kind}")
        return cls(read_parts(folder, manifest.counts["rows"]), manifest)

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        return self.row_type(**self._table.values(self._table.position(index)))

    def __iter__(self) -> Iterator[RowT]:
        return (self[index] for index in range(len(self)))

    def column(self, name: str) -> list[Any]:
        """A column that is no list of tokens (`kind`, `task_id`, `weight`, `label`, ...)."""
        return self._table.scalars[name]


class PairDataset(_PreferenceDataset[PairRow]):
    """A dataset of pairs in memory: a sequence of `PairRow`."""

    kind = "pairs"
    row_type = PairRow

    @property
    def chosen_lengths(self) -> NDArray[np.int64]:
        """[rows] tokens of the chosen sides, the prompt included."""
        return self._table.lengths("chosen_token_ids")

    @property
    def rejected_lengths(self) -> NDArray[np.int64]:
        """[rows] tokens of the rejected sides, the prompt included."""
        return self._table.lengths("rejected_token_ids")

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[rows] tokens of both sides."""
        return self.chosen_lengths + self.rejected_lengths


class UnpairedDataset(_PreferenceDataset[UnpairedRow]):
    """A dataset of labeled answers in memory: a sequence of `UnpairedRow`."""

    kind = "unpaired"
    row_type = UnpairedRow

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[rows] tokens, the prompt included."""
        return self._table.lengths("token_ids")


def load_preferences(folder: str | Path) -> PairDataset | UnpairedDataset:
    """Read a preference dataset of either kind.

    Raises:
        DataError: The folder is no dataset, or damaged.
        UsageError: It is a dataset of segments.
    """
    kind = load_manifest(Path(folder)).kind
    if kind == "unpaired":
        return UnpairedDataset.load(folder)
    return PairDataset.load(folder)


def _sides(row: PreferenceRow) -> list[tuple[NDArray[np.int32], NDArray[np.bool_]]]:
    if isinstance(row, PairRow):
        return [
            (row.chosen_token_ids, row.chosen_action_mask),
            (row.rejected_token_ids, row.rejected_action_mask),
        ]
    return [(row.token_ids, row.action_mask)]


def _identity(row: PreferenceRow) -> str:
    return row.pair_id if isinstance(row, PairRow) else row.row_id
