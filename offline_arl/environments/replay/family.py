"""Replay tasks on disk: made from trajectories, found by the name `replay:FOLDER`.

folder/manifest.json       format, counts, the store that they come from
folder/recordings.jsonl    one `Recording` a line
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import msgspec

from offline_arl.environments.protocol import Examples, Task
from offline_arl.environments.replay.environment import Replay
from offline_arl.environments.replay.misses import MissCount, elsewhere, left_out
from offline_arl.environments.replay.recording import Recording, is_whole, recording_of
from offline_arl.environments.splits import SPLITS, require_split, split_of_content
from offline_arl.errors import DataError, UsageError, alternatives, reason_of
from offline_arl.trajectories.files import write_atomically
from offline_arl.trajectories.lineage import StoreReference
from offline_arl.trajectories.schema import Message, Trajectory

MANIFEST_NAME = "manifest.json"
RECORDINGS_NAME = "recordings.jsonl"
FORMAT = "offline_arl.replay_tasks"
FORMAT_VERSION = 1
_MORE_STEPS = 10  # than the longest recording


class ReplayManifest(msgspec.Struct, frozen=True):
    """What a folder of replay tasks holds. `writes`: see `environment.Replay`; None: all tools count."""

    format: str
    recordings: int
    tasks: int
    excluded: dict[str, int]
    writes: list[str] | None = None
    lineage: StoreReference | None = None
    format_version: int = FORMAT_VERSION


class ReplayFamily:
    """Replay tasks; satisfies `environments.protocol.EnvironmentFamily` and `HasExamples`.

    Attempts that begin alike (same task, system prompt, tools and first messages) and agree on what answers the same
    steps are one task; the other attempts lend it their tool results.

    Args:
        folder: Of the tasks.

    Raises:
        DataError: There are none, or they are damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self.name = f"replay:{folder}"
        try:
            self.manifest = msgspec.json.decode((self._folder / MANIFEST_NAME).read_bytes(), type=ReplayManifest)
        except (OSError, msgspec.DecodeError) as error:
            raise DataError(
                f"{folder}: no replay tasks here ({reason_of(error)}); make some with: offline-arl env tasks"
            ) from error
        if self.manifest.format != FORMAT or self.manifest.format_version != FORMAT_VERSION:
            raise DataError(
                f"{folder}: holds {self.manifest.format} of version {self.manifest.format_version}, not replay tasks "
                f"of version {FORMAT_VERSION}; make some with: offline-arl env tasks"
            )

    def make(self) -> Replay:
        """A fresh environment."""
        return Replay(self._by_task, writes=self._writes, max_steps=self._max_steps)

    def misses(self) -> dict[str, MissCount]:
        """What agents that were not recorded would meet: `left_out` and `elsewhere` (see `misses`)."""
        counts = {"left_out": left_out, "elsewhere": elsewhere}
        return {
            name: count(self._by_task, writes=self._writes, max_steps=self._max_steps) for name, count in counts.items()
        }

    def tasks(self, split: str, count: int, *, seed: int = 0) -> list[Task]:
        """The first `count` tasks of "train", "validation" or "test", fewer where there are no more, for any seed.

        Raises:
            UsageError: `split` is none of the three, or has no task.
        """
        require_split(split)
        found = [task for task in self._tasks if self._split_of[task.task_id] == split]
        if not found:
            raise UsageError(f"{self._folder}: no task of the split {split!r}; there are {self._counts()}")
        return found[:count]

    def examples(self, task: Task) -> Examples:
        """The recorded success and failure of a task; None where none was recorded."""
        group = self._same(task)
        return Examples(_first(group, success=True), _first(group, success=False))

    @property
    def _writes(self) -> frozenset[str] | None:
        return None if self.manifest.writes is None else frozenset(self.manifest.writes)

    @cached_property
    def _max_steps(self) -> int:
        return _MORE_STEPS + max(len(recording.steps) for group in self._by_task.values() for recording in group)

    @cached_property
    def _by_task(self) -> dict[str, list[Recording]]:
        path = self._folder / RECORDINGS_NAME
        found: dict[str, list[Recording]] = {}
        decoder = msgspec.json.Decoder(Recording)
        try:
            with path.open("rb") as file:
                for line in file:
                    recording = decoder.decode(line)
                    if not is_whole(recording):
                        raise msgspec.DecodeError(f"the recording {recording.trajectory_id!r} is not whole")
                    found.setdefault(recording.task_id, []).append(recording)
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            raise DataError(f"{path}: cannot be read ({reason_of(error)}); make the tasks again") from error
        if sum(map(len, found.values())) != self.manifest.recordings:
            raise DataError(f"{path}: has another number of recordings than {MANIFEST_NAME}; make the tasks again")
        if not found:
            raise DataError(f"{path}: holds no recording; make the tasks again")
        return found

    @cached_property
    def _tasks(self) -> list[Task]:
        tasks = []
        for name, recordings in self._by_task.items():
            groups: list[list[Recording]] = []
            for recording in recordings:
                fitting = (
                    group
                    for group in groups
                    if group[0].opening_key == recording.opening_key and all(map(recording.agrees_with, group))
                )
                group = next(fitting, None)
                if group is None:
                    groups.append([recording])
                else:
                    group.append(recording)
            for number, group in enumerate(groups):
                task_id = name if len(groups) == 1 else f"{name}/{number}"
                payload = {"task": name, "recordings": [recording.trajectory_id for recording in group]}
                tasks.append(Task(task_id, group[0].task_type, payload))
        return tasks

    @cached_property
    def _split_of(self) -> dict[str, str]:
        return {task.task_id: self._same(task)[0].split for task in self._tasks}

    def _same(self, task: Task) -> list[Recording]:
        group = self._by_task.get(str(task.payload.get("task")), [])
        return [recording for recording in group if recording.trajectory_id in task.payload.get("recordings", [])]

    def _counts(self) -> str:
        return ", ".join(f"{list(self._split_of.values()).count(split)} of {split}" for split in SPLITS)


def write_tasks(
    trajectories: Iterable[tuple[Trajectory, str | None]],
    folder: str | Path,
    *,
    writes: Iterable[str] | None = None,
    lineage: StoreReference | None = None,
) -> ReplayManifest:
    """Make replay tasks of trajectories.

    Args:
        trajectories: Each with its split; None: one by the hash of its task (60 % train, 20 % each of the others).
        folder: To write them to; must not exist, or be empty.
        writes: Tools that change something; None: all count.
        lineage: The store that the trajectories come from.

    Raises:
        DataError: No trajectory can be replayed.
        UsageError: `writes` names a tool that no recording has.
    """
    writes = None if writes is None else set(writes)
    known: set[str] = set()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    recordings = 0
    tasks: set[str] = set()
    excluded: dict[str, int] = {}

    def write(temporary: Path) -> None:
        nonlocal recordings
        with temporary.open("wb") as file:
            for trajectory, split in trajectories:
                recording = recording_of(trajectory, split=split or _split_of(trajectory))
                if recording is None:
                    reason = (
                        "infrastructure_error" if trajectory.outcome.status == "infrastructure_error" else "no_step"
                    )
                    excluded[reason] = excluded.get(reason, 0) + 1
                    continue
                file.write(msgspec.json.encode(recording) + b"\n")
                recordings += 1
                tasks.add(recording.task_id)
                known.update(recording.tool_names)

    write_atomically(folder / RECORDINGS_NAME, write)
    if recordings == 0:
        told = ", ".join(f"{reason}: {count}" for reason, count in excluded.items()) or "none was read"
        raise DataError(f"no trajectory can be replayed ({told})")
    for name in sorted((writes or set()) - known):
        raise UsageError(f"writes: no recording has a tool {name!r}; {alternatives(name, sorted(known))}")
    manifest = ReplayManifest(
        FORMAT, recordings, len(tasks), excluded, None if writes is None else sorted(writes), lineage
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    write_atomically(folder / MANIFEST_NAME, lambda temporary: temporary.write_bytes(text))
    return manifest


def _split_of(trajectory: Trajectory) -> str:
    name = trajectory.task_id or trajectory.trajectory_id
    return split_of_content(name.encode(errors="surrogatepass"))


def _first(group: list[Recording], *, success: bool) -> list[Message] | None:
    return next((recording.steps for recording in group if recording.outcome.success is success), None)
