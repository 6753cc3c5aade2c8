"""Reading stores where something may be wrong with their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from offline_arl.errors import DataError, OfflineArlError, UsageError, alternatives
from offline_arl.trajectories.select import in_split
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


def split_names(store: Store) -> list[str]:
    """The splits of a store, in the order of the alphabet."""
    with told_damage(store):
        return store.trajectories.select(pl.col("split").drop_nulls().unique().sort()).collect()["split"].to_list()


def of_splits(store: Store, names: Sequence[str]) -> pl.Expr | None:
    """The condition on trajectories that they are of one of these splits; None where none is named.

    Raises:
        UsageError: The store has no such split.
    """
    if not names:
        return None
    known = split_names(store)
    for name in names:
        if name not in known:
            raise UsageError(f"{store.path}: no split {name!r}; {alternatives(name, known)}")
    return in_split(*names)
