"""The JSON Schema of a trajectory, generated from the record types.

Usage:
    python -m offline_arl.trajectories.json_schema            write data_schemas/trajectory-VERSION.schema.json
    python -m offline_arl.trajectories.json_schema --check    exit 1 if the file is not fresh
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from offline_arl.errors import DataError, OfflineArlError, UsageError
from offline_arl.trajectories.schema import SCHEMA_VERSION, Trajectory

DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "data_schemas"


def trajectory_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of one trajectory as it is exchanged: self-contained, blobs in place."""
    schema = msgspec.json.schema(Trajectory)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"trajectory-{SCHEMA_VERSION}.schema.json",
        "title": f"offline_arl trajectory, schema version {SCHEMA_VERSION}",
        **schema,
    }


def schema_text() -> bytes:
    """The text of the schema file."""
    encoder = msgspec.json.Encoder(order="deterministic")
    return msgspec.json.format(encoder.encode(trajectory_schema()), indent=2) + b"\n"


def schema_path(folder: Path = DEFAULT_FOLDER) -> Path:
    """Where the schema of this version lies."""
    return folder / f"trajectory-{SCHEMA_VERSION}.schema.json"


def check(folder: Path = DEFAULT_FOLDER) -> None:
    """Compare the file with the record types.

    Raises:
        DataError: The file is missing or not what the record types say.
    """
    path = schema_path(folder)
    if not path.exists() or path.read_bytes() != schema_text():
        raise DataError(f"{path}: does not match the record types; run: python -m {__spec__.name}")


def main(arguments: Sequence[str]) -> int:
    """Write or check the schema file; returns the exit status."""
    try:
        if list(arguments) == ["--check"]:
            check()
        elif not arguments:
            path = schema_path()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(schema_text())
        else:
            raise UsageError(f"json_schema: unknown arguments {' '.join(arguments)!r}; the only one is --check")
    except OfflineArlError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
