"""A log format that is made for tests: a session is one trajectory of all its payloads, each a message."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from typing import Any

from offline_arl.trajectories.encoding import encode_trajectory
from offline_arl.trajectories.pieces import PendingGroup
from offline_arl.trajectories.record_states import RecordState
from offline_arl.trajectories.schema import Feedback, Message, Source, TextPart, Trajectory
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.writer import StoreWriter

Fates = list[tuple[bytes, RecordState, str]]


def record_key(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def add_piece(writer: StoreWriter, record: str, *, key: str | None = "s", text: str = "x", **changes: Any) -> bool:
    """Add a piece of a record; `record` is "file:position"."""
    file, position = record.split(":")
    fields: dict[str, Any] = {
        "format": "test",
        "key": key,
        "scope": f"/logs/{file}",
        "record_key": record_key(record),
        "label": file,
        "file": f"logs/{file}",
        "position": int(position),
        "line": int(position) + 1,
        "sha256": record,
        "payload": text.encode(),
    }
    return writer.add_piece(**{**fields, **changes})


def trajectory(name: str, *texts: str, **changes: Any) -> Trajectory:
    messages = [Message("assistant", [TextPart(text)]) for text in texts]
    return Trajectory(name, messages, Source("test"), **changes)


def assemble(group: PendingGroup) -> tuple[list[Trajectory], Fates]:
    """One trajectory of all payloads; a payload "bad" is refused, "head" set apart."""
    fates: Fates = []
    texts = []
    for piece in group.pieces:
        text = piece.payload.decode()
        state: RecordState = {"bad": "refused", "head": "set_apart"}.get(text, "used")  # type: ignore[assignment]
        fates.append((piece.record_key, state, "" if state == "used" else f"{text}!"))
        if state == "used":
            texts.append(text)
    return [trajectory(f"t-{group.key}", *texts)] if texts else [], fates


def finish(
    writer: StoreWriter,
    group: PendingGroup,
    records: Sequence[Trajectory],
    fates: Fates | None = None,
    feedback: Sequence[Feedback] = (),
) -> list[str]:
    used: Fates = [(piece.record_key, "used", "") for piece in group.pieces]
    chosen = used if fates is None else fates
    return writer.finish_group(group, [encode_trajectory(record) for record in records], feedback, chosen)


def assemble_all(writer: StoreWriter) -> list[str | None]:
    """Assemble every dirty group; returns their keys."""
    done = []
    for batch in writer.dirty_groups():
        for group in batch:
            finish(writer, group, *assemble(group))
            writer.commit_if_full()
            done.append(group.key)
    return done


def texts(store: Store) -> dict[str, list[str]]:
    return {record.trajectory_id: [m.text for m in record.messages] for record in store.iter_trajectories()}


def index_content(store: Store) -> dict[str, list[Any]]:
    connection = sqlite3.connect(store.path / "index.sqlite")
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    content = {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in names}
    connection.close()
    return content
