"""What was made from a store: datasets, exports, other stores. Deletion has to reach them, or at least name them.

The file `derived.jsonl` in the store has a line for each, after a first line with the store's own id. Appending
needs no lock: a line is one write.
"""

from __future__ import annotations

import logging
import os
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from offline_arl.errors import DataError, reason_of
from offline_arl.trajectories.places import located, seen_from

logger = logging.getLogger(__name__)

FILE = "derived.jsonl"
DerivedKind = Literal["dataset", "export", "policy", "store"]


class StoreReference(msgspec.Struct, frozen=True):
    """The store that something was made from: its id, and its folder, also as seen from what was made."""

    store_id: str
    path: str
    relative: str


class Derived(msgspec.Struct, frozen=True):
    """What was made from a store, and where it lay then; `relative` is as seen from the store."""

    kind: DerivedKind
    path: str
    relative: str
    made_at: str

    def locate(self, store: Path) -> Path | None:
        """Where it lies; None where it is gone. What was moved together with the store is found beside it."""
        return located(store, self.path, self.relative)


class _Identity(msgspec.Struct, frozen=True):
    store_id: str


def remember_derived(store: Path, kind: DerivedKind, path: Path) -> StoreReference | None:
    """Note in the store that something is made from it, and return what to note there.

    Args:
        store: Folder of the store.
        kind: What it is.
        path: Where it will lie when it is complete.

    Returns:
        None where the store cannot be written, so that it will not know.
    """
    folder, place = store.absolute(), path.absolute()
    entry = Derived(kind, str(place), seen_from(folder, place), datetime.now(UTC).isoformat(timespec="seconds"))
    try:
        own_id = _made_id(folder)
        _append(folder / FILE, entry)
    except (OSError, DataError) as error:
        reason = reason_of(error)
        logger.warning("%s: cannot be written (%s), so deletion will not reach %s", folder / FILE, reason, place)
        return None
    return StoreReference(own_id, str(folder), seen_from(place, folder))


def derived_from(store: Path) -> list[Derived]:
    """What was made from a store, oldest first; what was made again at the same place stands there once.

    Raises:
        DataError: The file cannot be read.
    """
    found: dict[str, Derived] = {}
    for line in _lines(store / FILE)[1:]:
        try:
            entry = msgspec.json.decode(line, type=Derived)
        except msgspec.DecodeError:
            logger.warning("%s: a line is damaged and is passed over", store / FILE)
            continue
        found.pop(entry.path, None)
        found[entry.path] = entry
    return list(found.values())


def store_id(store: Path) -> str | None:
    """The id of a store; None where nothing was made from it yet."""
    lines = _lines(store / FILE)
    try:
        return msgspec.json.decode(lines[0], type=_Identity).store_id if lines else None
    except msgspec.DecodeError as error:
        raise DataError(f"{store / FILE}:1: is damaged ({error}); datasets of this store cannot be told") from error


def _made_id(folder: Path) -> str:
    """The id of a store, which is made where there is none."""
    identity = _Identity(uuid.uuid4().hex)
    try:
        # Complete before it has its name: of two that come first, one wins, and both use its id.
        temporary = folder / f".tmp-{identity.store_id}"
        temporary.write_bytes(msgspec.json.encode(identity) + b"\n")
        try:
            os.link(temporary, folder / FILE)
        finally:
            temporary.unlink()
    except FileExistsError:
        return store_id(folder) or identity.store_id
    return identity.store_id


def _append(path: Path, entry: Derived) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, msgspec.json.encode(entry) + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the permissions") from error
