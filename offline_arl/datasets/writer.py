"""Writing a dataset folder: Parquet parts, a manifest and a card.

    folder/manifest.json         kind, fingerprint, configuration, counts (also of what was left out, and why)
    folder/part-00000.parquet    the rows
    folder/README.md             the card, by which `datasets.load_dataset(folder)` reads the parts

A dataset is written to a temporary folder beside its place and renamed when complete, so a killed build leaves
nothing half-written.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from offline_arl.datasets.card import write_card
from offline_arl.datasets.folders import FolderWriter
from offline_arl.datasets.manifest import MANIFEST_NAME, DatasetManifest, Kind, write_manifest
from offline_arl.errors import DataError


class DatasetWriter:
    """What writers of all kinds of rows share; use as a context manager.

    Nothing appears at `output` before the block ends well. A subclass adds rows with `_write`, and takes what makes
    the content another into `_hash`.

    Args:
        output: Folder to create. An existing dataset there is replaced when the new one is complete.
        schema: The columns; a row has an attribute for each.
        kind: What the rows are.
        fingerprint: Of the renderer that made the token ids.
        config: How it was built, for the manifest; it may be added to until the block ends.
        may_be_empty: Whether a dataset without rows is fine.
        rows_per_group: Rows that are held in memory.
        rows_per_part: Rows at which a new file begins.

    Attributes:
        counts: Of the manifest, by name.
        manifest: What was written; None before the block has ended well.

    Raises:
        UsageError: `output` exists and is not a dataset folder.
        DataError: No row was written (raised at the end of the block).
    """

    def __init__(
        self,
        output: Path,
        schema: pa.Schema,
        *,
        kind: Kind,
        fingerprint: str,
        config: dict[str, Any],
        may_be_empty: bool,
        rows_per_group: int,
        rows_per_part: int,
    ) -> None:
        self._folder = FolderWriter(
            output,
            schema,
            manifest_name=MANIFEST_NAME,
            rows_per_group=rows_per_group,
            rows_per_part=rows_per_part,
        )
        self._kind = kind
        self._fingerprint = fingerprint
        self.config = config
        self._may_be_empty = may_be_empty
        self._hash = hashlib.sha256()
        self.counts: Counter[str] = Counter()
        self._excluded: Counter[str] = Counter()
        self._assumed: Counter[str] = Counter()
        self.manifest: DatasetManifest | None = None

    def __enter__(self) -> Self:
        self._folder.__enter__()
        return self

    def exclude(self, reason: str, times: int = 1) -> None:
        """Count what is left out: an attempt of which no row can be made, or a pair that could be made and was not."""
        self._excluded[reason] += times

    def assume(self, what: str, times: int = 1) -> None:
        """Count something that the log does not say and the configuration decided."""
        self._assumed[what] += times

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._commit()
        finally:
            self._folder.__exit__(kind, error, traceback)

    def _write(self, rows: Sequence[Any]) -> None:
        self.counts["rows"] += len(rows)
        self._folder.add(rows)

    def _commit(self) -> None:
        nothing = self.counts["rows"] == 0
        if nothing and not self._may_be_empty:
            reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(self._excluded.items()))
            raise DataError(f"the {self._kind} dataset would be empty ({reasons or 'no trajectory was read'})")
        self._folder.finish(even_nothing=nothing)
        self.manifest = DatasetManifest(
            kind=self._kind,
            fingerprint=self._fingerprint,
            config=self.config,
            counts=dict(self.counts),
            excluded=dict(sorted(self._excluded.items())),
            assumed=dict(sorted(self._assumed.items())),
            content_sha256=self._hash.hexdigest(),
        )
        write_manifest(self._folder.folder, self.manifest)
        write_card(self._folder.folder, self.manifest, self._folder.schema)
        self._folder.publish()
