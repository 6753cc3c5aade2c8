"""Datasets of segments: one row a segment, with its tokens, masks and, where the kind has them, signals of its steps.

A folder (`datasets.writer`) has the columns of `SegmentRow`, those of the kind alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_arl.datasets.folders import ColumnTable, read_parts
from offline_arl.datasets.manifest import DatasetManifest, Kind, SegmentKind, load_manifest
from offline_arl.datasets.writer import DatasetWriter
from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import Message, Outcome, Trajectory
from offline_arl.trajectories.segment import Segment

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


def steps_of(row: SegmentRow) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """[S] the steps whose action tokens are in a row, ascending."""
    return np.unique(row.step_index[row.action_mask]).astype(np.int32)


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


class SegmentWriter(DatasetWriter):
    """Writes a dataset of segments; `counts` has rows, trajectories, steps, tokens and action_tokens.

    Args:
        output: Folder to create. An existing dataset there is replaced when the new one is complete.
        kind: Which per-step columns the rows have.
        fingerprint: Of the renderer that made the token ids.
        config: The builder's configuration, for the manifest.
        may_be_empty: Whether a dataset without rows is fine.

    Raises:
        UsageError: `output` exists and is not a dataset folder.
    """

    def __init__(
        self, output: Path, *, kind: SegmentKind, fingerprint: str, config: dict[str, Any], may_be_empty: bool = False
    ) -> None:
        super().__init__(
            output,
            pa.schema(_BASE_FIELDS + _KIND_FIELDS[kind]),
            kind=kind,
            fingerprint=fingerprint,
            config=config,
            may_be_empty=may_be_empty,
            rows_per_group=ROWS_PER_GROUP,
            rows_per_part=ROWS_PER_PART,
        )
        self.counts.update({"rows": 0, "trajectories": 0, "steps": 0, "tokens": 0, "action_tokens": 0})

    def add(self, rows: Sequence[SegmentRow]) -> None:
        """Add the rows of one trajectory."""
        self.counts["trajectories"] += 1
        for row in rows:
            self.counts["tokens"] += len(row)
            self.counts["action_tokens"] += int(row.action_mask.sum())
            self.counts["steps"] += len(steps_of(row))
            self._update_hash(row)
        self._write(rows)

    def _update_hash(self, row: SegmentRow) -> None:
        self._hash.update(row.trajectory_id.encode())
        self._hash.update(np.array([row.segment, len(row)], dtype=np.int64).tobytes())
        arrays = (row.token_ids, row.step_index, row.rewards, row.terminated, row.truncated, row.reward_to_go)
        for array in arrays:
            if array is not None:
                self._hash.update(np.ascontiguousarray(array).tobytes())


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
