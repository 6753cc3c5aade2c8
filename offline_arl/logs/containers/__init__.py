"""Files that are not JSON text and hold records nevertheless: tables, archives, HDF5, YAML.

A container is a module of this package with the two functions of `Container`. `records.read_records` asks them in
the order of `MODULES`; what they yield is JSON, so that an adapter never knows what its records came from.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from offline_arl.logs.adapter import RawRecord
    from offline_arl.logs.records import LogFile

HEAD_BYTES = 4096
# Binary formats, which their first bytes tell for certain, come before those that have to be guessed.
MODULES = ("tables", "hdf5", "zip_archive", "inspect_document", "cassette")


class Container(Protocol):
    """What a module of this package has. Importing it imports no optional package."""

    def matches(self, head: bytes, name: str) -> bool:
        """Whether a file of this name that starts with `head` (up to `HEAD_BYTES`) is such a container."""
        ...

    def read(self, file: LogFile) -> Iterator[RawRecord]:
        """The records of the file, their `raw` as JSON; whatever is wrong becomes a record with a `problem`.

        Raises:
            DataError: The file cannot be opened.
            MissingDependencyError: The package that reads the format is not installed.
        """
        ...


def container_of(head: bytes, name: str) -> Container | None:
    """The container that a file is, or None where it is JSON text (plain or gzip) or unknown."""
    for module_name in MODULES:
        module = cast(Container, importlib.import_module(f"{__name__}.{module_name}"))
        if module.matches(head, name):
            return module
    return None
