"""A part whose files are on their way to the disk while the next one is being made.

Making the files (compressing, hashing, waiting for the disk) needs no Python, so a thread does it at the side. It
changes nothing about a commit: the manifest and the index learn of a part when its files are in place, in order, and
from the thread that writes the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from offline_arl.trajectories.files import FileEntry, Part
from offline_arl.trajectories.index import IndexRows
from offline_arl.trajectories.parts import PartBuffer


class PartInFlight:
    """One part, from the moment at which nothing is added to it any more.

    Args:
        buffer: What it holds.
        root: Folder of the store.
        number: Number of the part.
        copies: The files of the side table `duplicates` from this part on.
    """

    def __init__(self, buffer: PartBuffer, root: Path, number: int, copies: list[FileEntry]) -> None:
        self.buffer = buffer
        self.number = number
        self.copies = copies
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="part")
        self._part = self._thread.submit(buffer.write, root, number)

    def __enter__(self) -> PartInFlight:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()

    def part(self) -> Part:
        """The part, when its files are in place.

        Raises:
            DataError: They cannot be written.
        """
        return self._part.result()


def newest_content(trajectory_id: str, parts: Iterable[IndexRows]) -> tuple[bool, bytes | None]:
    """Whether parts that the index does not know yet, the newest first, say of an id what it stands for, and what."""
    for rows in parts:
        content = rows.trajectories.get(trajectory_id)
        if content is not None or trajectory_id in rows.removed:
            return True, content
    return False, None


def newest_first(content: bytes, parts: Iterable[IndexRows]) -> tuple[bool, str | None]:
    """Whether parts that the index does not know yet say which trajectory is the first of a content, and which."""
    for rows in parts:
        first = rows.contents.get(content)
        if first is not None or content in rows.released:
            return True, first
    return False, None
