"""HDF5 files of Minari: one episode a record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from offline_arl import optional
from offline_arl.errors import DataError
from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.containers.minari import EPISODE_COLUMNS, dataset_header, episode_record
from offline_arl.logs.containers.values import plain, text_of
from offline_arl.logs.records import LogFile

_MAGIC = b"\x89HDF\r\n\x1a\n"
_EPISODE = re.compile(r"episode_(\d{1,18})")
_TUPLE_ITEM = re.compile(r"_index_(\d{1,9})")
# An array with more elements is pixels or the like, not text: only its shape is told.
_MAX_ELEMENTS = 1 << 20
_MAX_DEPTH = 32
_READ_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, OverflowError, MemoryError, AttributeError)


class _StructureError(Exception):
    """The file is HDF5 and not laid out as an episode."""


def matches(head: bytes, name: str) -> bool:
    """Whether the first bytes are those of an HDF5 file."""
    return head.startswith(_MAGIC)


def read(file: LogFile) -> Iterator[RawRecord]:
    """Yield the episodes in order of their numbers; a damaged one becomes a record with a `problem`."""
    if not file.path.is_file():
        raise DataError(f"{file.shown}: cannot be read: not a file")
    h5py = optional.require("h5py", extra="tables")
    dataset = dataset_header(file.path.parent)
    try:
        with h5py.File(file.path, "r") as opened:
            numbers = sorted(int(found[1]) for name in opened if (found := _EPISODE.fullmatch(name)))
            if not numbers:
                problem = f"HDF5, but no episodes of Minari; it holds: {', '.join(sorted(opened)[:8]) or 'nothing'}"
                yield RawRecord(file.shown, file.label, 0, b"", problem=problem)
            for position, number in enumerate(numbers):
                try:
                    episode = _episode(opened, f"episode_{number}", h5py)
                except (_StructureError, *_READ_ERRORS) as error:
                    problem = f"episode {number} cannot be read: {_brief(error)}"
                    yield RawRecord(file.shown, file.label, position, b"", problem=problem)
                else:
                    yield episode_record(file, position, {"id": number} | episode | dataset)
    except _READ_ERRORS as error:
        problem = f"the HDF5 file cannot be read: {_brief(error)}"
        yield RawRecord(file.shown, file.label, 0, b"", problem=problem)


def _episode(opened: Any, name: str, h5py: Any) -> dict[str, Any]:
    group = _member(opened, name, h5py)
    if not isinstance(group, h5py.Group):
        raise _StructureError("it is not a group")
    if missing := sorted(EPISODE_COLUMNS - set(group)):
        raise _StructureError(f"it has no {', '.join(missing)}")
    episode: dict[str, Any] = {}
    for key, value in group.attrs.items():
        _set_nested(episode, key.split("/"), _attribute(value))
    return episode | {key: _value(_member(group, key, h5py), h5py) for key in group}


def _set_nested(values: dict[str, Any], path: list[str], value: Any) -> None:
    """Put a value where its flattened name says: Minari stores `options/level` for `{"options": {"level": ..}}`."""
    for key in path[:-1]:
        inner = values.setdefault(key, {})
        if not isinstance(inner, dict):
            return
        values = inner
    values[path[-1]] = value


def _attribute(value: Any) -> Any:
    return plain(value.tolist() if hasattr(value, "tolist") else value)


def _member(group: Any, name: str, h5py: Any) -> Any:
    """A member that lies in this file: a link elsewhere would read a file that nobody named."""
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise _StructureError(f"{name} is a link")
    return group[name]


def _value(item: Any, h5py: Any, depth: int = 0) -> Any:
    """An array as nested lists; a group as an object, a tuple as one with the keys "0", "1" and so on."""
    if depth > _MAX_DEPTH:
        raise _StructureError("groups are nested too deeply")
    if isinstance(item, h5py.Group):
        members = {name: _value(_member(item, name, h5py), h5py, depth + 1) for name in item}
        if members and all(_TUPLE_ITEM.fullmatch(name) for name in members):
            return {name.removeprefix("_index_"): value for name, value in members.items()}
        return members
    if not isinstance(item, h5py.Dataset):
        raise _StructureError(f"holds a {type(item).__name__}")
    if item.external is not None or item.is_virtual:
        raise _StructureError("an array is stored in another file")
    if item.size is not None and item.size > _MAX_ELEMENTS:
        return {"shape": list(item.shape), "dtype": str(item.dtype)}
    value = item[()]
    return _texts(value.tolist() if hasattr(value, "tolist") else value)


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_texts(item) for item in value]
    if isinstance(value, bytes):
        return text_of(value)
    return _texts(value.tolist()) if hasattr(value, "tolist") else value


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
