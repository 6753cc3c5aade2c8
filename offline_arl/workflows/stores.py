"""Reading stores where something may be wrong with their files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from offline_arl.errors import DataError, OfflineArlError
from offline_arl.trajectories.store import Store, open_store


@contextmanager
def told_damage(store: Store) -> Iterator[None]:
    """Where the block fails over what stands in the files of the store, name the file that was changed.

    A file that is missing or has another size is told where it is opened. What changed within a file shows only in
    what becomes of it; the checksums in the manifest then tell damage from a mistake elsewhere.

    Raises:
        DataError: A file is not as it was written.
    """
    try:
        yield
    except OfflineArlError:
        raise
    except (Exception, pl.exceptions.PanicException) as error:
        damaged = store.verify()
        if not damaged:
            raise
        raise DataError(f"{damaged[0]}; restore it from a copy, or remove the store and ingest again") from error


@contextmanager
def reading(path: str | Path) -> Iterator[Store]:
    """Open a store and read it within the block, with damage told as by `told_damage`.

    Raises:
        DataError: There is no store at this path, or it is damaged.
    """
    store = open_store(path)
    with told_damage(store):
        yield store
