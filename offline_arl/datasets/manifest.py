"""The manifest of a dataset folder: what it holds, how it was built and what was left out."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, Literal

import msgspec

from offline_arl.errors import DataError
from offline_arl.trajectories.lineage import StoreReference

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
SegmentKind = Literal["bc", "transitions", "return_conditioned"]
PreferenceKind = Literal["pairs", "unpaired"]
Kind = Literal[SegmentKind, PreferenceKind]


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
