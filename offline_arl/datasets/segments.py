"""The folder that all segment datasets share: Parquet parts, one row a segment, and a manifest.

    folder/manifest.json         kind, fingerprint, configuration, counts (also of what was left out, and why)
    folder/part-00000.parquet    token_ids, action_mask, step_index, ...
    folder/README.md             the card, by which `datasets.load_dataset(folder)` reads the parts

A dataset is written to a temporary folder beside its place and renamed when complete, so a killed build leaves
nothing half-written.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, get_args

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_arl.datasets.card import write_card
from offline_arl.datasets.folders import ColumnTable, FolderWriter, read_parts
from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.lineage import StoreReference
from offline_arl.trajectories.schema import Message, Outcome, Trajectory
from offline_arl.trajectories.segment import Segment

FORMAT_VERSION = 1
SegmentKind = Literal["bc", "transitions", "return_conditioned"]
Kind = Literal[SegmentKind, "pairs", "unpaired"]
MANIFEST_NAME = "manifest.json"
ROWS_PER_GROUP = 2_048
ROWS_PER_PART = 65_536
TOKENS_TO_MAP = 200_000_000  # about 2.6 GB of rows

_BASE_FIELDS = [
    pa.field("trajectory_id", pa.string(), nullable=False),
    pa.field("task_id", pa.string()),
    pa.field("task_type", pa.string()),
    pa.field("success", pa.bool_()),
    pa.field("segment", pa.int32(), nullable=False),
    pa.field("token_ids", pa.large_list(pa.int32()), nullable=False),
    pa.field("action_mask", pa.large_list(pa.bool_()), nullable=False),
    pa.field("step_index", pa.large_list(pa.int32()), nullable=False),
    pa.field("logprobs", pa.large_list(pa.float32())),
]
_STEP_FIELDS = [
    pa.field("n_steps", pa.int32(), nullable=False),
    pa.field("steps", pa.large_list(pa.int32()), nullable=False),
]
_KIND_FIELDS: dict[str, list[pa.Field]] = {
    "bc": [],
    "transitions": [
        *_STEP_FIELDS,
        pa.field("rewards", pa.large_list(pa.float32()), nullable=False),
        pa.field("terminated", pa.large_list(pa.bool_()), nullable=False),
        pa.field("truncated", pa.large_list(pa.bool_()), nullable=False),
        pa.field("final_state", pa.bool_(), nullable=False),
    ],
    "return_conditioned": [
        *_STEP_FIELDS,
        pa.field("reward_to_go", pa.large_list(pa.float32()), nullable=False),
    ],
}


class SegmentRenderer(Protocol):
    """What dataset building needs of `rendering.Renderer`."""

    @property
    def fingerprint(self) -> str:
        """Names the tokenizer and the chat template."""
        ...

    @property
    def prefix_preserving(self) -> bool:
        """Whether `extend` works: the template never rewrites earlier turns."""
        ...

    def prompt(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None) -> list[int]:
        """The messages and the generation prompt for the next assistant message."""
        ...

    def render(self, trajectory: Trajectory, max_tokens: int | None = None) -> list[Segment]:
        """The segments of a trajectory, each sampled step in exactly one of them."""
        ...

    def extend(
        self, token_ids: Sequence[int], new_messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None
    ) -> list[int]:
        """Append messages that follow an assistant completion and the next generation prompt."""
        ...


class DatasetManifest(msgspec.Struct, frozen=True):
    """What a dataset folder holds.

    `counts` has rows, trajectories, steps, tokens and action_tokens. `excluded` counts the trajectories that were
    left out by reason; their sum and `counts["trajectories"]` is the number read. `assumed` counts what the logs do
    not say and the configuration filled in. `content_sha256` covers the token ids, masks and signals of all rows.
    `lineage` names the store, `deleted` counts trajectories that were deleted from the dataset after it was built;
    they still count in `assumed`.
    """

    kind: Kind
    fingerprint: str
    config: dict[str, Any]
    counts: dict[str, int]
    excluded: dict[str, int]
    content_sha256: str
    assumed: dict[str, int] = {}
    lineage: StoreReference | None = None
    deleted: int = 0
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, eq=False)
class SegmentRow:
    """One row: a segment, the labels of its trajectory, and per-step signals where the kind has them.

    The per-step arrays are aligned with `steps`, the steps whose action tokens are in this segment.
    """

    trajectory_id: str
    task_id: str | None
    task_type: str | None
    success: bool | None
    segment: int  # position among the segments of its trajectory
    token_ids: NDArray[np.int32]  # [T]
    action_mask: NDArray[np.bool_]  # [T]
    step_index: NDArray[np.int32]  # [T], -1 where action_mask is False
    logprobs: NDArray[np.float32] | None = None  # [T], behavior logprobs; NaN where unknown
    n_steps: int | None = None  # steps of the whole trajectory
    steps: NDArray[np.int32] | None = None  # [S]
    rewards: NDArray[np.float32] | None = None  # [S], what arrives before the next step
    terminated: NDArray[np.bool_] | None = None  # [S]
    truncated: NDArray[np.bool_] | None = None  # [S]
    reward_to_go: NDArray[np.float32] | None = None  # [S], from this step on, undiscounted
    final_state: bool = False  # the last token ends a generation prompt: the state after step n_steps - 1

    def __len__(self) -> int:
        return len(self.token_ids)


def success_of(outcome: Outcome) -> bool | None:
    """Whether an attempt succeeded: the scorer's verdict, else a score of at least 1; None where unscored.

    >>> success_of(Outcome(status="scored", score=1.0)), success_of(Outcome())
    (True, None)
    """
    if outcome.status != "scored":
        return None
    if outcome.success is not None:
        return outcome.success
    return None if outcome.score is None else outcome.score >= 1.0


class SegmentWriter:
    """Writes a dataset folder; use as a context manager. Nothing appears at `output` before the block ends well.

    Args:
        output: Folder to create. An existing dataset there is replaced when the new one is complete.
        kind: Which per-step columns the rows have.
        fingerprint: Of the renderer that made the token ids.
        config: The builder's configuration, for the manifest.
        may_be_empty: Whether a dataset without rows is fine.

    Raises:
        UsageError: `output` exists and is not a dataset folder.
        DataError: No row was written (raised at the end of the block).
    """

    def __init__(
        self, output: Path, *, kind: SegmentKind, fingerprint: str, config: dict[str, Any], may_be_empty: bool = False
    ) -> None:
        self._folder = FolderWriter(
            output,
            pa.schema(_BASE_FIELDS + _KIND_FIELDS[kind]),
            manifest_name=MANIFEST_NAME,
            rows_per_group=ROWS_PER_GROUP,
            rows_per_part=ROWS_PER_PART,
        )
        self._kind: SegmentKind = kind
        self._fingerprint = fingerprint
        self._config = config
        self._may_be_empty = may_be_empty
        self._hash = hashlib.sha256()
        self._counts = Counter({"rows": 0, "trajectories": 0, "steps": 0, "tokens": 0, "action_tokens": 0})
        self._excluded: Counter[str] = Counter()
        self._assumed: Counter[str] = Counter()
        self.manifest: DatasetManifest | None = None

    def __enter__(self) -> SegmentWriter:
        self._folder.__enter__()
        return self

    def add(self, rows: Sequence[SegmentRow]) -> None:
        """Add the rows of one trajectory."""
        self._counts["trajectories"] += 1
        for row in rows:
            self._counts["rows"] += 1
            self._counts["tokens"] += len(row)
            self._counts["action_tokens"] += int(row.action_mask.sum())
            self._counts["steps"] += len(np.unique(row.step_index[row.action_mask]))
            self._update_hash(row)
        self._folder.add(rows)

    def exclude(self, reason: str) -> None:
        """Count a trajectory that is left out."""
        self._excluded[reason] += 1

    def assume(self, what: str) -> None:
        """Count something that the log does not say and the configuration decided."""
        self._assumed[what] += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._commit()
        finally:
            self._folder.__exit__(kind, error, traceback)

    def _update_hash(self, row: SegmentRow) -> None:
        self._hash.update(row.trajectory_id.encode())
        self._hash.update(np.array([row.segment, len(row)], dtype=np.int64).tobytes())
        arrays = (row.token_ids, row.step_index, row.rewards, row.terminated, row.truncated, row.reward_to_go)
        for array in arrays:
            if array is not None:
                self._hash.update(np.ascontiguousarray(array).tobytes())

    def _commit(self) -> None:
        nothing = self._counts["rows"] == 0
        self._folder.finish(even_nothing=nothing and self._may_be_empty)
        if nothing and not self._may_be_empty:
            reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(self._excluded.items()))
            raise DataError(f"the {self._kind} dataset would be empty ({reasons or 'no trajectory was read'})")
        self.manifest = DatasetManifest(
            kind=self._kind,
            fingerprint=self._fingerprint,
            config=self._config,
            counts=dict(self._counts),
            excluded=dict(sorted(self._excluded.items())),
            assumed=dict(sorted(self._assumed.items())),
            content_sha256=self._hash.hexdigest(),
        )
        write_manifest(self._folder.folder, self.manifest)
        write_card(self._folder.folder, self.manifest, self._folder.schema)
        self._folder.publish()


class SegmentDataset(Sequence[SegmentRow]):
    """A dataset folder as flat arrays: 4 bytes a token and a few more for masks and step indices, in memory or mapped.

    Indexing gives `SegmentRow`s whose arrays are views.
    """

    def __init__(self, table: pa.Table, manifest: DatasetManifest, *, mapped: bool = False) -> None:
        self.manifest = manifest
        self._table = ColumnTable(table, mapped=mapped)
        self.lengths: NDArray[np.int64] = self._table.lengths("token_ids")  # [rows], tokens of each row

    @classmethod
    def load(cls, folder: str | Path, *, memory_map: bool | None = None) -> SegmentDataset:
        """Read a dataset folder.

        Args:
            folder: The dataset.
            memory_map: Read rows from the disk when they are asked for, so that a dataset can be larger than the
                memory; the folder then gets an uncompressed copy of the rows. None: from 200 million tokens on.

        Raises:
            DataError: The folder is no dataset, or one of another format version, or damaged.
            UsageError: It holds pairs or labeled answers, not segments.
        """
        folder = Path(folder)
        manifest = load_manifest(folder)
        if manifest.kind not in get_args(SegmentKind):
            raise UsageError(f"{folder}: the dataset is of kind {manifest.kind}, this needs segments")
        if memory_map is None:
            memory_map = manifest.counts["tokens"] >= TOKENS_TO_MAP
        mapped_as = manifest.content_sha256 if memory_map else None
        return cls(read_parts(folder, manifest.counts["rows"], mapped_as=mapped_as), manifest, mapped=memory_map)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        return SegmentRow(**self._table.values(self._table.position(index)))

    def __iter__(self) -> Iterator[SegmentRow]:
        return (self[index] for index in range(len(self)))

    def column(self, name: str) -> list[Any]:
        """A scalar column (`trajectory_id`, `task_id`, `task_type`, `success`, `segment`, `n_steps`) as a list."""
        return self._table.scalars[name]

    def largest_token(self) -> int:
        """The largest token id of all rows; -1 where there is none."""
        return self._table.largest("token_ids") if len(self) else -1

    def require_kind(self, *kinds: Kind) -> None:
        """Raise a `UsageError` unless the dataset is of one of `kinds`."""
        if self.manifest.kind not in kinds:
            raise UsageError(f"the dataset is of kind {self.manifest.kind}, this needs {' or '.join(kinds)}")


def load_manifest(folder: Path) -> DatasetManifest:
    """Read the manifest of a dataset folder.

    Raises:
        DataError: It is missing, damaged or of another format version.
    """
    path = folder / MANIFEST_NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=DatasetManifest)
    except FileNotFoundError:
        raise DataError(f"{folder} is not a dataset folder: it has no {MANIFEST_NAME}") from None
    except msgspec.DecodeError as error:
        raise DataError(f"{path}: {error}; build the dataset again") from error
    if manifest.format_version != FORMAT_VERSION:
        raise DataError(f"{path}: format version {manifest.format_version} is not {FORMAT_VERSION}; build it again")
    return manifest


def write_manifest(folder: Path, manifest: DatasetManifest) -> None:
    """Write or replace the manifest of a dataset folder, all of it or nothing."""
    temporary = folder / f".{MANIFEST_NAME}.{uuid.uuid4().hex[:8]}"
    try:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        temporary.replace(folder / MANIFEST_NAME)
    finally:
        temporary.unlink(missing_ok=True)


def rows_of(trajectory: Trajectory, segments: Sequence[Segment]) -> list[SegmentRow]:
    """The rows of a trajectory's segments, without per-step signals; segments with no action token are dropped."""
    success = success_of(trajectory.outcome)
    return [
        SegmentRow(
            trajectory_id=trajectory.trajectory_id,
            task_id=trajectory.task_id,
            task_type=trajectory.task_type,
            success=success,
            segment=position,
            token_ids=segment.token_ids,
            action_mask=segment.action_mask,
            step_index=segment.step_index,
            logprobs=segment.logprobs,
        )
        for position, segment in enumerate(segments)
        if segment.action_mask.any()
    ]
