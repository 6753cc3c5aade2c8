"""Finding the log files that a list of sources names."""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from offline_arl.errors import DataError, UsageError
from offline_arl.logs.records import LogFile
from offline_arl.trajectories.store import is_store

# Files with these endings are logs whatever they hold: one that is broken is told, not passed over.
LOG_SUFFIXES = frozenset(
    (".json", ".jsonl", ".ndjson", ".traj", ".eval", ".parquet", ".arrow", ".hdf5", ".h5", ".responses")
)
_MAGIC = (b"PAR1", b"ARROW1", b"\x89HDF")
_GZIP = b"\x1f\x8b"
_SNIFFED_BYTES = 1 << 16
# A JSON object, or a list of them, from its first characters: `{"`, `{}`, `[{"`, with any white space between.
_JSON_START = re.compile(rb'\s*(?:\[\s*)?\{\s*["}]')
_CASSETTE = re.compile(rb"^(?:http_)?interactions:", re.MULTILINE)


@dataclass(frozen=True)
class FoundFiles:
    """The files of some sources, each once: `logs` to read, and the paths of `others`, which are no logs.

    `links` are the links to folders.
    """

    logs: list[LogFile]
    others: list[str]
    links: list[str]

    @property
    def bytes(self) -> int:
        """Size of the log files on disk."""
        return sum(file.path.stat().st_size for file in self.logs)


def find_files(sources: Sequence[str | Path]) -> FoundFiles:
    """The files of the sources; folders are walked in a fixed order, hidden files and stores are passed over.

    A file that is named itself is always read. In a folder, files with the ending of a log are, and others that
    start like one. Links to files are followed; links to folders are not, as they may lead anywhere, or in a circle.

    Raises:
        UsageError: No source is named.
        DataError: A source is missing, may not be read, is a pipe or device, or is a folder without files.
    """
    if not sources:
        raise UsageError("no sources; name log files or folders")
    logs: dict[str, LogFile] = {}
    others: dict[str, str] = {}
    links: list[str] = []
    for source in map(Path, sources):
        try:
            mode = source.stat().st_mode
        except FileNotFoundError:
            raise DataError(f"{shown(source)}: no such file or folder") from None
        except OSError as error:
            raise DataError(f"{shown(source)}: cannot be read ({error.strerror})") from error
        if stat.S_ISDIR(mode):
            before = len(logs) + len(others) + len(links)
            for path in _walk(source):
                if path.is_dir():
                    links.append(shown(path))
                elif looks_like_log(path):
                    relative = shown(path.relative_to(source))
                    logs.setdefault(os.path.realpath(path), LogFile(path, shown(path), relative))
                else:
                    others.setdefault(os.path.realpath(path), shown(path))
            if len(logs) + len(others) + len(links) == before:
                raise DataError(f"{shown(source)}: the folder holds no files; name a folder with log files")
        elif stat.S_ISREG(mode):
            logs.setdefault(os.path.realpath(source), LogFile(source, shown(source), source.name))
        else:
            # What a pipe gives cannot be read a second time, which running again after an interruption needs.
            raise DataError(f"{shown(source)}: is a pipe or a device; write it to a file and name that")
    for file in logs.values():
        if not os.access(file.path, os.R_OK):
            raise DataError(f"{file.shown}: cannot be read (Permission denied); check its permissions")
    return FoundFiles(list(logs.values()), [name for path, name in others.items() if path not in logs], links)


def shown(path: Path) -> str:
    r"""The path as text for messages and provenance; bytes that are not UTF-8 become `\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def looks_like_log(path: Path) -> bool:
    """Whether a file in a folder is to be read, by its ending or its first bytes."""
    endings = [suffix.lower() for suffix in path.suffixes[-2:]]
    ending = endings[0] if endings[-1:] == [".gz"] and len(endings) == 2 else (endings[-1:] or [""])[0]
    if ending in LOG_SUFFIXES:
        return True
    head = _head(path)
    if ending in (".yaml", ".yml"):
        return _CASSETTE.search(head) is not None
    return head.startswith(_MAGIC) or _JSON_START.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            head = stream.read(_SNIFFED_BYTES)
    except OSError:
        return b""
    if head.startswith(_GZIP):
        try:
            return zlib.decompressobj(wbits=31).decompress(head, _SNIFFED_BYTES)
        except zlib.error:
            return b""
    return head


def _walk(folder: Path) -> Iterator[Path]:
    """The files in a folder, and the links to folders in it."""

    def refuse(error: OSError) -> None:  # os.walk would pass over the folder without a word
        raise DataError(f"{error.filename}: cannot be read ({error.strerror}); check its permissions") from error

    for parent, folders, names in os.walk(folder, onerror=refuse):
        if is_store(parent):
            # A store among the logs is not a log: its quarantine would be refused anew at every run.
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (path for name in folders if (path := Path(parent, name)).is_symlink())
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield path
