"""A log format that is made for tests: a session is one trajectory of all its payloads, each a message."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offline_arl.trajectories.encoding import encode_trajectory
from offline_arl.trajectories.pieces import PendingGroup
from offline_arl.trajectories.record_states import RecordState
from offline_arl.trajectories.schema import Context, Feedback, Message, Score, Source, TextPart, Trajectory
from offline_arl.trajectories.splits import assign_splits
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.writer import RefusedRecord, StoreWriter

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


def plain(name: str, user: str, **changes: Any) -> Trajectory:
    """A trajectory of which each text names its user."""
    fields: dict[str, Any] = {
        "messages": [
            Message("system", [TextPart(f"prompt of {user}")]),
            Message("user", [TextPart(f"question of {user}")], id=f"{user}-0"),
            Message("assistant", [TextPart(f"answer to {user}")], id=f"{user}-1"),
            Message("tool", [TextPart(f"result for {user}")], tool_call_id=f"orphan of {user}"),
        ],
        "contexts": [Context(0, f'[{{"function": {{"name": "tool of {user}"}}}}]')],
        "user_id": user,
        "metadata": {"note": f"note on {user}"},
        "scores": [Score("own", 1.0, comment=f"comment on {user}")],
        "identifiers": {"trace": f"trace of {user}"},
    }
    return Trajectory(name, source=Source("test", f"{user}.jsonl"), **{**fields, **changes})


def rich_store(path: Path, *users: str) -> Store:
    """A store of many parts, with plain records, sessions that grew, copies, refusals, feedback and side tables."""
    store = Store.create(path)
    for number, user in enumerate(users):
        with store.writer() as writer:
            writer.add(plain(f"{user}-1", user))
            writer.add(plain(f"{user}-2", user))  # a copy
            add_piece(writer, f"{user}:0", key=user, text=f"{user} says hello")
            add_piece(writer, f"{user}:1", key=user, text="bad")
            add_piece(writer, f"{user}:2", key=f"pending {user}", text=f"{user} waits")
            key = b"%d" % number
            writer.refuse(RefusedRecord.of(b"{", file="log", record=9, line=1, format=None, reason="no", key=key))
            writer.add_feedback(
                [
                    Feedback("call", f"{user}-1", Score("thumb", number / 2, comment=f"thumb of {user}")),
                    Feedback("trace", f"trace of {user}", Score("quality", 0.5, comment=f"quality of {user}")),
                    Feedback("session", "all", Score("day", 0.5, comment="a comment on everyone")),
                ],
                record_key=record_key(f"feedback {user}"),
            )
            for batch in writer.dirty_groups():
                for group in batch:
                    if group.key == user:
                        judged = Feedback("trajectory", f"t-{user}", Score("group", 0.5, comment=f"session of {user}"))
                        good, bad = group.pieces
                        fates: Fates = [(good.record_key, "used", ""), (bad.record_key, "refused", f"for {user}")]
                        made = plain(f"t-{user}", user, session_id=user, metadata={"pieces": 2})
                        finish(writer, group, [made], fates, [judged])
    for user in users[:2]:
        with store.writer() as writer:
            add_piece(writer, f"{user}:3", key=user, text=f"{user} says more")
            for batch in writer.dirty_groups():
                for group in batch:
                    if group.key == user:
                        judged = Feedback("trajectory", f"t-{user}", Score("group", 0.75, comment=f"second of {user}"))
                        finish(writer, group, [plain(f"t-{user}", user, session_id=user)], feedback=[judged])
    assign_splits(store, {"train": 0.5, "test": 0.5}, seed=0)
    return store


def content(store: Store) -> dict[str, Any]:
    """All that readers see, in order, and what the writer knows."""
    with store.writer() as writer:
        groups = [group for batch in writer.dirty_groups() for group in batch]
    index = index_content(store)
    return {
        "trajectories": list(store.iter_trajectories()),
        "table": store.trajectories.collect().rows(),
        "steps": store.steps.collect().rows(),
        "findings": store.findings.collect().rows(),
        "feedback": store.feedback.collect().rows(),
        "quarantined": store.quarantined.collect().rows(),
        "length": len(store),
        "records": index["records"],
        "made": index["group_trajectories"],
        "groups": [(row[0], row[1], row[2], row[3], row[5], row[6]) for row in index["groups"]],
        "dirty": groups,
    }
