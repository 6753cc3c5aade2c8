"""The program that reads an HDF5 file of Minari for `containers.hdf5`, in a process of its own.

The HDF5 library can loop for ever or crash on a damaged file, and no exception of Python ends that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offline_arl.logs.containers.minari import EPISODE_COLUMNS
from offline_arl.logs.containers.plain_json import encode, plain

_EPISODE = re.compile(r"episode_(\d{1,18})")
_TUPLE_ITEM = re.compile(r"_index_(\d{1,9})")
# An array with more elements is pixels or the like, not text: only its shape is told.
_MAX_ELEMENTS = 1 << 20
_MAX_DEPTH = 32
_READ_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, OverflowError, MemoryError, AttributeError)


class _StructureError(Exception):
    """The file is HDF5 and not laid out as an episode."""


def main(arguments: list[str]) -> None:
    """Write the episodes of a file to standard output, one JSON object a line: `{"episode"}` or `{"problem"}`."""
    for result in episodes(Path(arguments[0])):
        sys.stdout.buffer.write(_line(result))
        sys.stdout.buffer.flush()


def episodes(path: Path) -> Iterator[dict[str, Any]]:
    """The episodes in order of their numbers, each under the key `episode`, or `problem` where one is damaged."""
    import h5py

    try:
        with h5py.File(path, "r") as opened:
            numbers = sorted(int(found[1]) for name in opened if (found := _EPISODE.fullmatch(name)))
            if not numbers:
                held = ", ".join(sorted(opened)[:8]) or "nothing"
                yield {"problem": f"HDF5, but no episodes of Minari; it holds: {held}"}
            for number in numbers:
                try:
                    episode = _episode(opened, f"episode_{number}", h5py)
                except (_StructureError, *_READ_ERRORS) as error:
                    yield {"problem": f"episode {number} cannot be read: {_brief(error)}"}
                else:
                    yield {"episode": {"id": number} | episode}
    except _READ_ERRORS as error:
        yield {"problem": f"the HDF5 file cannot be read: {_brief(error)}"}


def _line(result: dict[str, Any]) -> bytes:
    try:
        return encode(result) + b"\n"
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return encode({"problem": f"an episode has no JSON form: {_brief(error)}"}) + b"\n"


def _episode(opened: Any, name: str, h5py: Any) -> dict[str, Any]:
    group = _member(opened, name, h5py)
    if not isinstance(group, h5py.Group):
        raise _StructureError("it is not a group")
    if missing := sorted(EPISODE_COLUMNS - set(group)):
        raise _StructureError(f"it has no {', '.join(missing)}")
    episode: dict[str, Any] = {}
    for key, value in group.attrs.items():
        _set_nested(episode, key.split("/"), plain(_python(value)))
    return episode | {key: _value(_member(group, key, h5py), h5py) for key in group}


def _set_nested(values: dict[str, Any], path: list[str], value: Any) -> None:
    """Put a value where its flattened name says: Minari stores `options/level` for `{"options": {"level": ..}}`."""
    for key in path[:-1]:
        inner = values.setdefault(key, {})
        if not isinstance(inner, dict):
            return
        values = inner
    values[path[-1]] = value


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
    return plain(_python(item[()]))


def _python(value: Any) -> Any:
    """Plain Python values of an array, of a scalar or of the arrays that an array of objects holds."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [_python(item) for item in value] if isinstance(value, list) else value


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1:])
