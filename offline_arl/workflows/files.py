"""Files of a run: written atomically, hashed by content, held by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offline_arl.errors import DataError, OfflineArlError, UsageError
from offline_arl.models.adapters import is_adapter
from offline_arl.trajectories.places import object_in
from offline_arl.workflows.stages import Artifact

CLAIM_NAME = "pipeline.json"  # in the output folder of a pipeline's run: whose it is
_DEPTH = 4  # folders below a run in which artifacts are looked for


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new, never half of it.

    Raises:
        DataError: It cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with told_refusals(str(path)):
        try:
            with partial.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def artifact_in(folder: Path) -> Artifact | None:
    """What a folder holds, by the file that says so; None where nothing does."""
    if (folder / "values.json").is_file():
        return "values"
    manifest, model = object_in(folder / "manifest.json"), object_in(folder / "config.json")
    if "model_type" in model or is_adapter(folder):
        return "policy"
    return "store" if "store_format" in manifest else "dataset" if "kind" in manifest else None


def artifacts_below(folder: Path, artifact: Artifact, *, most: int = 5) -> list[Path]:
    """The first folders below a folder that hold such an artifact, by name; hidden ones and checkpoints left out."""
    found: list[Path] = []
    for place, names, _ in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        names[:] = sorted(name for name in names if not name.startswith((".", "checkpoint")) and depth < _DEPTH)
        if artifact_in(Path(place)) == artifact:
            found.append(Path(place))
            names.clear()
        if len(found) == most:
            break
    return found


def run_of(path: Path) -> Path | None:
    """The folder of the pipeline's run that a path lies in; None where it is in none."""
    parents = (path, *path.parents)
    return next((folder for folder in parents if (folder / CLAIM_NAME).is_file()), None)


@contextmanager
def told_refusals(what: str) -> Iterator[None]:
    """Turn what the system refuses (full disk, no permission) into one line; the system names no file on a full disk.

    safetensors, polars and torch have errors of their own for what the system refuses; those are told too.

    Raises:
        DataError: The system refused something.
    """
    try:
        yield
    except OfflineArlError:
        raise
    except Exception as error:
        reason = _refusal(error)
        if reason is None:
            raise
        name = error.filename if isinstance(error, OSError) else None
        place = f"{name}: " if name and str(name) not in what else ""
        raise DataError(
            f"{what}: {place}{reason}; check the free space and the permissions, then run it again"
        ) from error


def _refusal(error: Exception) -> str | None:
    """What the system refused; None where the error is of something else."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    text = str(error)
    number = re.search(r"\(os error (\d+)\)", text)  # how libraries in Rust end such errors
    if number is not None:
        return os.strerror(int(number[1]))
    is_torch = isinstance(error, RuntimeError) and "inline_container.cc" in text  # torch.save loses the reason
    return "a file could not be written" if is_torch else None


def write_json(path: Path, value: Any) -> None:
    """As `write_text`, for JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def content_hash(path: Path) -> str:
    """The sha256 of a file, or of the names and contents of all files below a folder."""
    digest = hashlib.sha256()
    if path.is_dir():
        for file in sorted(item for item in path.rglob("*") if item.is_file()):
            digest.update(f"{file.relative_to(path).as_posix()}\0{content_hash(file)}\n".encode())
        return digest.hexdigest()
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Hold `output` for one process. The lock goes with the process, so a killed run leaves none behind."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        stream = (output / ".lock").open("a")
    except OSError as error:
        raise UsageError(f"--output {output}: cannot write there ({error.strerror})") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{output} is in use by another run; wait for it or choose another --output") from None
        yield
