"""Writing parts anew without some of their rows: what compaction and deletion are made of.

A rewritten part keeps its number (one that is made of several takes the highest of theirs), so that what refers to
parts by number stays true and order stays order. Its files get names that were never used before, and the index is
made anew, because the generation of the manifest is raised.

Killed at any moment, the store is as before or as after: a new manifest lists the new files, then the old ones are
removed. Who reads the store meanwhile is told that a file is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import polars as pl

from offline_arl.trajectories import encoding, files
from offline_arl.trajectories.files import Counts, FileEntry, Manifest, Part
from offline_arl.trajectories.part_frames import Void, read_void, scan
from offline_arl.trajectories.parts import ASSEMBLY_COLUMNS, DELETED_COLUMNS, FATE_COLUMNS, SET_APART_COLUMNS
from offline_arl.trajectories.pieces import PIECE_COLUMNS, row_group_size
from offline_arl.trajectories.quarantine import RefusedRecord
from offline_arl.trajectories.rebuild import open_index
from offline_arl.trajectories.scores import FEEDBACK_COLUMNS, JUDGEMENT_COLUMNS

COLUMNS: Mapping[str, Mapping[str, pl.DataType]] = {
    "trajectories": encoding.TRAJECTORY_COLUMNS,
    "steps": encoding.STEP_COLUMNS,
    "findings": encoding.FINDING_COLUMNS,
    "identities": encoding.IDENTITY_COLUMNS,
    "scores": JUDGEMENT_COLUMNS,
    "pieces": PIECE_COLUMNS,
    "assemblies": ASSEMBLY_COLUMNS,
    "fates": FATE_COLUMNS,
    "set_apart": SET_APART_COLUMNS,
    "feedback": FEEDBACK_COLUMNS,
    "deleted": DELETED_COLUMNS,
}
OF_TRAJECTORIES = ("trajectories", "steps", "findings", "identities", "scores")
_NO_VOID = Void({}, {})


class Rewriter:
    """Writes parts of one store anew.

    Args:
        root: Folder of the store.
        generation: Of the manifest that will list the new files.
        void: Rows that do not count; they are left out.
        drop: For kinds of files, the rows that are left out besides.
        drop_refused: Whether a refused record, by its key, is left out of quarantine.
        part_numbers: What the number of a part becomes, where it changes.
    """

    def __init__(
        self,
        root: Path,
        generation: int,
        *,
        void: Void,
        drop: Mapping[str, pl.Expr] | None = None,
        drop_refused: Callable[[bytes], bool] | None = None,
        part_numbers: Mapping[int, int] | None = None,
    ) -> None:
        self._root = root
        self._generation = generation
        self._void = void
        self._drop = drop or {}
        self._drop_refused = drop_refused
        self._part_numbers = part_numbers or {}

    def rewrite(self, parts: Sequence[Part]) -> Part | None:
        """One part of the rows of several; None where none is left. A file that would stay the same stays."""
        number = parts[-1].number
        written: dict[str, FileEntry] = {}
        for kind in COLUMNS:
            entry = self._rewrite_kind(parts, kind, number)
            if entry is not None:
                written[kind] = entry
        if "trajectories" in written:
            same = len(parts) == 1 and written["trajectories"] == parts[0].trajectories
            written["blobs"] = _entry(parts[0].blobs) if same else self._blobs(parts, written["trajectories"], number)
        quarantine = self._quarantine(parts, number)
        if quarantine is not None:
            written["quarantine"] = quarantine
        return Part(number, **written) if written else None

    def _rewrite_kind(self, parts: Sequence[Part], kind: str, number: int) -> FileEntry | None:
        entries: list[FileEntry] = [entry for part in parts if (entry := getattr(part, kind)) is not None]
        if not entries:
            return None
        frame = scan(self._root, parts, kind, COLUMNS[kind], self._void)
        if kind in self._drop:
            frame = frame.filter(~self._drop[kind].fill_null(value=False))
        if kind == "assemblies":
            frame = frame.with_columns(pl.col("feedback_part").replace(dict(self._part_numbers)))
            frame = frame.unique("group", keep="last", maintain_order=True)
        if len(parts) == 1 and self._is_same(frame, entries[0], kind):
            return entries[0]
        rows = frame.collect()
        size = None
        if kind == "pieces":
            rows = rows.sort("group", maintain_order=True)
            size = row_group_size(rows.height, int(rows["payload"].bin.size().sum() or 0))
        if rows.is_empty():
            return None
        return files.write_parquet(self._root, self._name(kind, number, "parquet"), rows, row_group_size=size)

    def _is_same(self, frame: pl.LazyFrame, entry: FileEntry, kind: str) -> bool:
        if kind == "assemblies":
            return frame.collect().equals(pl.read_parquet(self._root / entry.path, columns=list(COLUMNS[kind])))
        return bool(frame.select(pl.len()).collect().item() == entry.rows)

    def _blobs(self, parts: Sequence[Part], trajectories: FileEntry, number: int) -> FileEntry:
        refs = pl.read_parquet(self._root / trajectories.path, columns=["blob_refs"])["blob_refs"]
        used = refs.str.extract_all("[0-9a-f]{64}").explode().drop_nulls().unique()
        frame = scan(self._root, parts, "blobs", encoding.BLOB_COLUMNS, _NO_VOID)
        rows = frame.filter(pl.col("blob_id").is_in(used.to_list())).unique("blob_id").sort("blob_id").collect()
        return files.write_parquet(self._root, self._name("blobs", number, "parquet"), rows)

    def _quarantine(self, parts: Sequence[Part], number: int) -> FileEntry | None:
        entries = [part.quarantine for part in parts if part.quarantine is not None]
        lines = list(self._refused_lines(entries))
        if not lines:
            return None
        if len(entries) == 1 and len(lines) == entries[0].rows:
            return entries[0]
        path = self._root / self._name("quarantine", number, "jsonl")
        files.write_atomically(path, lambda temporary: temporary.write_bytes(b"".join(lines)))
        return files.describe_file(self._root, path, len(lines))

    def _refused_lines(self, entries: Sequence[FileEntry]) -> Iterator[bytes]:
        for entry in entries:
            with files.whole_file(self._root, entry).open("rb") as stream:
                for line in stream:
                    if self._drop_refused is None or not self._drop_refused(_key_of(line)):
                        yield line

    def _name(self, kind: str, number: int, suffix: str) -> str:
        return f"{kind}/{number:06}-{self._generation}.{suffix}"


def counts_of(parts: Sequence[Part]) -> Counts:
    """Rows of parts of which none is void."""

    def rows(kind: str) -> int:
        return sum(entry.rows for part in parts if (entry := getattr(part, kind)) is not None)

    return Counts(rows("trajectories"), rows("steps"), rows("quarantine"))


def replace_parts(
    root: Path, manifest: Manifest, parts: Sequence[Part], *, side_tables: Mapping[str, list[FileEntry]] | None = None
) -> None:
    """Publish a manifest of other parts, and remove the files that it does not list."""
    published = msgspec.structs.replace(
        manifest,
        generation=manifest.generation + 1,
        counts=counts_of(parts),
        parts=list(parts),
        side_tables=dict(manifest.side_tables if side_tables is None else side_tables),
    )
    files.write_manifest(root, published)
    files.remove_unlisted(root, published)


@contextmanager
def to_be_replaced(root: Path) -> Iterator[tuple[Manifest, Void]]:
    """The locked store's manifest and void rows; makes the index anew at the end, where parts were replaced."""
    with files.writer_lock(root):
        manifest = files.read_manifest(root)
        for entry in manifest.files():
            files.whole_file(root, entry)
        files.remove_unlisted(root, manifest)
        yield manifest, read_void(root, manifest)
        open_index(root, files.read_manifest(root)).close()


def _key_of(line: bytes) -> bytes:
    return bytes.fromhex(msgspec.json.decode(line, type=RefusedRecord).key)


def _entry(entry: FileEntry | None) -> FileEntry:
    assert entry is not None  # a part with trajectories has blobs
    return entry
