"""The trajectory store: a folder of immutable Parquet parts that a manifest lists.

    manifest.json      schema version, counts, configuration, every file with its SHA-256
    trajectories/      one row a trajectory: scalars, and messages, contexts and metadata as JSON
    steps/             the derived step table
    findings/          what validation found in them
    scores/            their scores, a row each
    identities/        ids by which feedback finds them and their messages
    blobs/             system prompts and tool lists of the part of the same number, content-addressed
    side_tables/       what changes: duplicates, splits, rewards, scores; keyed by trajectory_id
    quarantine/        refused records, raw, with the reason (JSON Lines)
    pieces/            parts of records that are assembled to trajectories, kept for when more of them come
    assemblies/        which trajectories each group of pieces became
    fates/             what each piece's record became
    set_apart/         places of records that are no interactions, with the reason
    feedback/          judgements that came apart from what they judge
    removed/           rows of earlier parts that are void
    deleted/           keys of records that were deleted and must not come back
    index.sqlite       what makes writing idempotent; rebuilt from the parts when lost
    lock               held by the one writer

Each part carries the blobs it refers to, so that reading one needs no other file, and parts can be merged or
copied alone; a shared prompt costs one copy a part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories import encoding, files
from offline_arl.trajectories.files import Manifest, Part
from offline_arl.trajectories.index import part_of
from offline_arl.trajectories.judgements import judgements
from offline_arl.trajectories.part_frames import Void, read_void, scan
from offline_arl.trajectories.quarantine import QUARANTINE_COLUMNS, RefusedRecord
from offline_arl.trajectories.schema import Trajectory
from offline_arl.trajectories.side_tables import check_side_table, read_side_table, with_side_tables
from offline_arl.trajectories.unused_records import unused_records
from offline_arl.trajectories.upgrade import upgraded
from offline_arl.trajectories.writer import StoreWriter

MAX_PART_BYTES = 32 * 2**20
MAX_PART_TRAJECTORIES = 20_000


def open_store(path: str | Path) -> Store:
    """Open an existing trajectory store.

    >>> import offline_arl
    >>> store = offline_arl.open_store("runs/quickstart/store")  # doctest: +SKIP
    >>> store.trajectories.group_by("task_type").agg(pl.col("success").mean()).collect()  # doctest: +SKIP

    Raises:
        DataError: There is no store at `path`, or this version cannot read it.
    """
    return Store(path)


def is_store(path: str | Path) -> bool:
    """Whether a folder is a trajectory store (of whatever version)."""
    try:
        manifest = msgspec.json.decode(Path(path, files.MANIFEST).read_bytes())
    except (OSError, msgspec.DecodeError):
        return False
    return isinstance(manifest, dict) and manifest.get("store_format") == files.STORE_FORMAT


class Store:
    """A trajectory store. Reading needs no lock and always sees the last commit."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._void_read: tuple[tuple[str, ...], Void] = ((), Void({}, {}))
        files.read_manifest(self.path)

    @classmethod
    def create(
        cls, path: str | Path, *, configuration: Mapping[str, Any] | None = None, exist_ok: bool = False
    ) -> Store:
        """Make an empty store.

        Args:
            path: Folder of the store; made with its parents. It must be empty or missing.
            configuration: Kept in the manifest as it is.
            exist_ok: Open the store that is there instead of failing.

        Raises:
            UsageError: There is a store already, the folder holds something else, or it cannot be made.
        """
        root = Path(path)
        try:
            str(root).encode()
        except UnicodeEncodeError:  # polars takes paths as text
            raise UsageError(f"{str(root)!r}: the name is not UTF-8; choose another folder for the store") from None
        try:
            if (root / files.MANIFEST).exists():
                if exist_ok:
                    return cls(root)
                raise UsageError(f"{root}: there is a store already; open it, or choose another folder")
            if root.exists() and not root.is_dir():
                raise UsageError(f"{root}: is a file; choose a folder for the store")
            if root.exists() and any(name.name != files.LOCK and name.name[:5] != ".tmp-" for name in root.iterdir()):
                raise UsageError(f"{root}: the folder is not empty and is not a store; choose another folder")
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{root}: no store can be made here ({error.strerror}); choose another folder") from error
        with files.writer_lock(root):
            # Under the lock: a manifest that another process made meanwhile must not be replaced by an empty one.
            if not (root / files.MANIFEST).exists():
                files.write_manifest(root, Manifest(configuration=dict(configuration or {})))
            elif not exist_ok:
                raise UsageError(f"{root}: there is a store already; open it, or choose another folder")
        return cls(root)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the last commit."""
        return files.read_manifest(self.path)

    def __len__(self) -> int:
        return self.manifest.counts.trajectories

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    @property
    def trajectories(self) -> pl.LazyFrame:
        """One row a trajectory, scalars only (`encoding.SCALAR_COLUMNS`), with `duplicate_of` and `split`.

        The last two are null where no side table says otherwise; a side table `outcomes` takes the place of the
        outcomes that were logged, here and in `iter_trajectories`.
        """
        manifest = self.manifest
        return self._scan_trajectories(manifest, manifest.parts, content=False)

    @property
    def logged_trajectories(self) -> pl.LazyFrame:
        """`trajectories` as they were logged: no side table is looked at."""
        manifest = self.manifest
        return self._scan_trajectories(manifest, manifest.parts, content=False, with_tables=False)

    @property
    def steps(self) -> pl.LazyFrame:
        """The step table: one row a step, scalars only (`encoding.STEP_COLUMNS`)."""
        manifest = self.manifest
        return scan(self.path, manifest.parts, "steps", encoding.STEP_COLUMNS, self._void(manifest))

    @property
    def feedback(self) -> pl.LazyFrame:
        """Every judgement, one row for each trajectory that it is about (`judgements.COLUMNS`).

        Those of the trajectories' own records (`Trajectory.scores`) come first, then those that were found elsewhere
        and joined by id; where the store does not hold what they are about (yet), trajectory_id is null.
        """
        manifest = self.manifest
        sessions = self.trajectories.select("trajectory_id", "session_id")
        return judgements(self.path, manifest.parts, self._void(manifest), sessions)

    @property
    def findings(self) -> pl.LazyFrame:
        """What validation found worth a warning: trajectory_id, code (see `validate.CODES`), severity, where, text."""
        manifest = self.manifest
        return scan(self.path, manifest.parts, "findings", encoding.FINDING_COLUMNS, self._void(manifest))

    @property
    def quarantined(self) -> pl.LazyFrame:
        """One row a refused record: file, record, line, format, reason, raw, raw_base64."""
        rows: list[RefusedRecord] = []
        for part in self.manifest.parts:
            if part.quarantine is not None:
                with files.whole_file(self.path, part.quarantine).open("rb") as stream:
                    rows.extend(msgspec.json.decode(line, type=RefusedRecord) for line in stream)
        values = [tuple(getattr(row, name) for name in QUARANTINE_COLUMNS) for row in rows]
        return pl.DataFrame(values, schema=QUARANTINE_COLUMNS, orient="row").lazy()

    @property
    def set_apart(self) -> pl.LazyFrame:
        """One row a record that is no interaction: format, file, record, line, reason. Its content is not kept."""
        manifest = self.manifest
        return unused_records(self.path, manifest.parts, self._void(manifest), "set_apart")

    @property
    def repeated(self) -> pl.LazyFrame:
        """One row a record that repeats another one of its session or trace: columns as of `set_apart`."""
        manifest = self.manifest
        return unused_records(self.path, manifest.parts, self._void(manifest), "duplicate")

    def iter_trajectories(self, where: pl.Expr | None = None) -> Iterator[Trajectory]:
        """Yield trajectories in the order in which they were written, one part in memory at a time.

        Args:
            where: Condition on the columns of `Store.trajectories`, for example
                `(pl.col("success")) & (pl.col("split") == "train")`; see also `select`.
        """
        manifest = self.manifest
        for part in manifest.parts:
            if part.trajectories is not None:
                yield from self._read_part(manifest, part, where)

    def iter_frames(self, columns: Sequence[str], where: pl.Expr | None = None) -> Iterator[pl.DataFrame]:
        """Yield columns of trajectories as they are stored, a frame a part, in the order of `iter_trajectories`.

        Args:
            columns: Columns of `Store.trajectories`, or of `encoding.CONTENT_COLUMNS`: JSON text, in which the
                texts of system messages and the tools are left to the blobs.
            where: Condition on the columns of `Store.trajectories`.
        """
        manifest = self.manifest
        # Side tables are whole tables; reading them for each part would make many parts slow.
        unchanging = {"trajectory_id", *encoding.CONTENT_COLUMNS}
        with_tables = where is not None or not unchanging.issuperset(columns)
        for part in manifest.parts:
            if part.trajectories is not None:
                frame = self._scan_trajectories(manifest, [part], content=True, with_tables=with_tables)
                yield (frame if where is None else frame.filter(where)).select(*columns).collect()

    def part_ids(self, part: Part, where: pl.Expr) -> list[str]:
        """Ids of the trajectories of a part that satisfy a condition on the columns of `trajectories`."""
        frame = self._scan_trajectories(self.manifest, [part], content=False)
        return frame.filter(where).select("trajectory_id").collect()["trajectory_id"].to_list()

    def get(self, trajectory_id: str) -> Trajectory:
        """The trajectory with this id; one part is read, where the index is up to date.

        Raises:
            DataError: There is none.
        """
        manifest = self.manifest
        number = part_of(self.path, manifest, trajectory_id)
        for part in manifest.parts:
            if part.trajectories is not None and number in (None, part.number):
                for trajectory in self._read_part(manifest, part, pl.col("trajectory_id") == trajectory_id):
                    return trajectory
        raise DataError(f"{self.path}: no trajectory {trajectory_id!r}; ids are in Store.trajectories")

    def writer(
        self, *, max_part_bytes: int = MAX_PART_BYTES, max_part_trajectories: int = MAX_PART_TRAJECTORIES
    ) -> StoreWriter:
        """A writer, to be used in a `with` block; there is one at a time (see `StoreWriter`).

        Args:
            max_part_bytes: JSON bytes at which a part is committed; bounds the memory of writers and readers.
            max_part_trajectories: Trajectories at which a part is committed.

        Entering the block raises UsageError where another writer is at work.
        """
        return StoreWriter(self.path, max_part_bytes=max_part_bytes, max_part_trajectories=max_part_trajectories)

    def write_side_table(
        self, name: str, frame: pl.DataFrame, *, configuration: Mapping[str, Any] | None = None
    ) -> None:
        """Write or replace a side table, atomically.

        Args:
            name: Lowercase letters, digits and underscores.
            frame: Any columns, with a non-null `trajectory_id` among them. The table `splits` has a column
                `split`, `outcomes` has status, success, score and scorer, and both have one row a trajectory at
                most; `duplicates` is kept by the writer.
            configuration: Entries of the manifest's configuration that are written with it. What it says under the
                table's name (how the table was made) goes where nothing is given for it.

        Raises:
            UsageError: The name or the columns do not fit, or another writer is at work.
        """
        check_side_table(name, frame)
        with files.writer_lock(self.path):
            manifest = self.manifest
            number = manifest.next_number
            entry = files.write_parquet(self.path, f"side_tables/{name}/{number:06}.parquet", frame)
            kept = {key: value for key, value in manifest.configuration.items() if key != name}
            # The replaced file stays until the next writer starts: readers may be at work on it.
            files.write_manifest(
                self.path,
                msgspec.structs.replace(
                    manifest,
                    next_number=number + 1,
                    configuration={**kept, **(configuration or {})},
                    side_tables={**manifest.side_tables, name: [entry]},
                ),
            )

    def side_table(self, name: str) -> pl.LazyFrame:
        """A side table.

        Raises:
            DataError: There is none of this name.
        """
        tables = self.manifest.side_tables
        if name not in tables:
            known = ", ".join(sorted(tables)) or "none"
            raise DataError(f"{self.path}: no side table {name!r}; there are: {known}")
        return read_side_table(self.path, tables[name])

    @property
    def side_tables(self) -> list[str]:
        """Names of the side tables."""
        return sorted(self.manifest.side_tables)

    def verify(self) -> list[str]:
        """Compare every file with the manifest; returns one line for each that is missing or was changed."""
        found = []
        for entry in self.manifest.files():
            path = self.path / entry.path
            if not path.is_file():
                found.append(f"{path}: missing")
                continue
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if digest != entry.sha256:
                found.append(f"{path}: changed since it was written (SHA-256 {digest[:12]}, not {entry.sha256[:12]})")
        return found

    def _void(self, manifest: Manifest) -> Void:
        """The rows that do not count; the files that say so are read once."""
        key = tuple(part.removed.path for part in manifest.parts if part.removed is not None)
        if self._void_read[0] != key:
            self._void_read = (key, read_void(self.path, manifest))
        return self._void_read[1]

    def _scan_trajectories(
        self, manifest: Manifest, parts: Sequence[Part], *, content: bool, with_tables: bool = True
    ) -> pl.LazyFrame:
        frame = scan(self.path, parts, "trajectories", encoding.TRAJECTORY_COLUMNS, self._void(manifest))
        shown = {**encoding.SCALAR_COLUMNS, **(encoding.CONTENT_COLUMNS if content else {})}
        frame = upgraded(frame.select(*shown), shown)
        return with_side_tables(self.path, manifest, frame) if with_tables else frame

    def _read_part(self, manifest: Manifest, part: Part, where: pl.Expr | None) -> Iterator[Trajectory]:
        frame = self._scan_trajectories(manifest, [part], content=True)
        if where is not None:
            frame = frame.filter(where)
        rows = frame.collect()
        if rows.is_empty() or part.blobs is None:
            return
        path = files.whole_file(self.path, part.blobs)
        with files.told_reading(path):
            texts = pl.read_parquet(path, columns=["blob_id", "text"])
        blobs = dict(texts.select("blob_id", "text").iter_rows())
        for row in rows.iter_rows(named=True):
            yield encoding.decode_trajectory(row, blobs)
