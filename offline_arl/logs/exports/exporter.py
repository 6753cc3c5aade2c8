"""The seam between trajectories and the formats of other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from offline_arl.logs.adapter import RawRecord, adapter_named
from offline_arl.logs.convert import PiecePosition, assemble_group, split_record
from offline_arl.logs.slots.slot import Slot
from offline_arl.logs.slots.writing import Layout, make_slot
from offline_arl.trajectories.schema import Trajectory

Container = Literal["json_lines", "parquet", "folder"]


class NoRecordError(Exception):
    """A trajectory has no record in a format, and why: an answer without a verdict, a pair without a difference."""


@dataclass(frozen=True)
class NativeRecord:
    """A record without its slot, as its reader sees it, and where each message of each trajectory is in it."""

    values: dict[str, Any]
    layouts: Sequence[Layout | None] = (None,)


class Exporter(Protocol):
    """A format of another tool.

    Attributes:
        name: As in `--format`.
        title: For people.
        adapter: Name of the log adapter that reads it.
        containers: What files it can be written to, the usual one first.
        per_record: How many trajectories one record holds: 1, or 2 where they are compared.
        leaves_out: What the other tool does not get to see, one line; it is in the slot.
    """

    name: str
    title: str
    adapter: str
    containers: Sequence[Container]
    per_record: int
    leaves_out: str

    def native(self, trajectories: Sequence[Trajectory]) -> NativeRecord:
        """The record of `per_record` trajectories.

        Raises:
            NoRecordError: They have none in this format.
        """
        ...

    def place(self, record: dict[str, Any], slots: Sequence[Slot]) -> None:
        """Put the slots where the format lets a record be extended."""
        ...

    def arrow_columns(self) -> Mapping[str, Any]:
        """Arrow types of the columns, where it is written as Parquet."""
        ...


@runtime_checkable
class ToolAwareExporter(Protocol):
    """A format whose columns depend on the tools of all trajectories that it will get."""

    def with_tools(self, shapes: ToolShapes) -> Exporter:
        """The exporter for these."""
        ...


@dataclass(frozen=True)
class ToolShapes:
    """What tools a table will hold; its columns have one type for all of them.

    Attributes:
        lists: Different tool lists, parsed; not all of them where there are very many.
        is_complete: Whether these are all.
    """

    lists: Sequence[Sequence[Mapping[str, Any]]] = ()
    is_complete: bool = True


def record_of(exporter: Exporter, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """The record of a format, with its slots: the other tool reads it, and the adapter gets the trajectories back.

    Raises:
        NoRecordError: They have none in this format.
    """
    native = exporter.native(trajectories)
    read = _read(exporter.adapter, native.values)
    if len(read) != len(trajectories):
        raise NoRecordError(f"its record reads as {len(read)} trajectories")
    slots = [
        make_slot(known, trajectory, layout)
        for known, trajectory, layout in zip(read, trajectories, native.layouts, strict=True)
    ]
    exporter.place(native.values, slots)
    return native.values


def _read(adapter: str, values: dict[str, Any]) -> Sequence[Trajectory]:
    """What the adapter makes of a record."""
    raw = RawRecord("export", "export", 0, msgspec.json.encode(values))
    split = split_record(adapter_named(adapter), raw)
    found = list(split.trajectories)
    reason = split.refused or split.set_apart
    for fragment in split.fragments:
        group = assemble_group(adapter, fragment.key, [(PiecePosition.of(raw), fragment.payload)])
        found.extend(group.trajectories)
        reason = reason or next((text for fate, text in group.fates if fate != "used"), None)
    if reason is not None:
        raise NoRecordError(reason)
    return found
