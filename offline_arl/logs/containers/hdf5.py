"""HDF5 files of Minari: one episode a record.

They are read by another process (`containers.hdf5_episodes`), which is ended where it does not answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from threading import Timer
from typing import IO

import msgspec

from offline_arl import optional
from offline_arl.errors import DataError
from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.containers.minari import dataset_header, episode_record
from offline_arl.logs.records import LogFile

_MAGIC = b"\x89HDF\r\n\x1a\n"
ANSWER_SECONDS = 30.0  # for one episode


def matches(head: bytes, name: str) -> bool:
    """Whether the first bytes are those of an HDF5 file."""
    return head.startswith(_MAGIC)


def read(file: LogFile) -> Iterator[RawRecord]:
    """Yield the episodes in order of their numbers; a damaged one becomes a record with a `problem`."""
    if not file.path.is_file():
        raise DataError(f"{file.shown}: cannot be read: not a file")
    optional.require("h5py", extra="logs")
    dataset = dataset_header(file.path.parent)
    position = 0
    command = [sys.executable, "-m", "offline_arl.logs.containers.hdf5_episodes", str(file.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            while line := _answer(process, process.stdout):
                result = msgspec.json.decode(line)
                if "episode" in result:
                    yield episode_record(file, position, result["episode"] | dataset)
                else:
                    yield RawRecord(file.shown, file.label, position, b"", problem=result["problem"])
                position += 1
        except BaseException:
            process.kill()  # whoever reads has had enough
            raise
    if process.returncode != 0:
        problem = f"the HDF5 file cannot be read further: its reader ended with status {process.returncode}"
        yield RawRecord(file.shown, file.label, position, b"", problem=problem)


def _answer(process: subprocess.Popen[bytes], stream: IO[bytes]) -> bytes:
    """The next line of the reader; b"" where it has ended, or has been ended because none came in time."""
    watchdog = Timer(ANSWER_SECONDS, process.kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        line = stream.readline()
    finally:
        watchdog.cancel()
    return line if line.endswith(b"\n") else b""
