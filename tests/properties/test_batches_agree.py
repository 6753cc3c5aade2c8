"""Trajectories that are written as batches, parts at the side, make the store that they make one by one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from offline_arl.trajectories.encoded_batch import BatchBuilder
from offline_arl.trajectories.encoding import EncodedTrajectory, encode_trajectory
from offline_arl.trajectories.schema import (
    Branch,
    Context,
    Message,
    Outcome,
    Score,
    Source,
    Trajectory,
    text_message,
    tool_call,
)
from offline_arl.trajectories.store import Store
from tests.toy_sessions import index_content

TOOLS = '[{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "required": ["x"]}}}]'


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    answer = draw(st.sampled_from(["yes", "no", ""]))
    calls = [tool_call("look", draw(st.sampled_from(['{"x": 1}', "{}", "["])), id="c")] if draw(st.booleans()) else []
    answered = Message(
        "assistant", text_message("assistant", answer).content, calls, id=draw(st.sampled_from([None, "m"]))
    )
    return Trajectory(
        trajectory_id=draw(st.sampled_from(["a", "a\0b", "a\0", "b", "ü", "c", "d"])),
        messages=[text_message("system", draw(st.sampled_from(["s", ""]))), text_message("user", "?"), answered],
        source=Source("format", "file", 0, "sha"),
        task_id=draw(st.sampled_from([None, "task"])),
        parent_trajectory_id=draw(st.sampled_from([None, "a", "b"])),
        branch=draw(st.sampled_from([None, Branch("a", 1)])),
        contexts=draw(st.sampled_from([[], [Context(0, TOOLS)]])),
        outcome=draw(st.sampled_from([Outcome(), Outcome("scored", True, 0.5, {"x": 1.0})])),
        identifiers=draw(st.sampled_from([{}, {"trace": "t"}])),
        scores=draw(st.sampled_from([[], [Score("judge", 1.0, metadata={"k": "v"})]])),
    )


# Records, some of them of several trajectories; batches of records; a commit between batches or none.
Log = list[tuple[list[list[Trajectory]], bool]]
logs = st.lists(
    st.tuples(st.lists(st.lists(trajectories(), min_size=1, max_size=2), min_size=1, max_size=4), st.booleans()),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(logs)
def test_the_same_store(log: Log) -> None:
    with tempfile.TemporaryDirectory() as folder:
        together, alone = Store.create(Path(folder, "together")), Store.create(Path(folder, "alone"))
        with together.writer(max_part_trajectories=1) as writer:
            for encoded, commits in keyed(log):
                builder = BatchBuilder()
                for item, key in encoded:
                    builder.add(item, key)
                for batch in builder.batches():
                    writer.add_batch(batch)
                if commits:
                    writer.commit_if_full()  # at the side, so that the next batch meets a part in flight
        with alone.writer() as writer:
            for encoded, commits in keyed(log):
                for item, key in encoded:
                    writer.add_encoded(item, record_key=key)
                if commits:
                    writer.commit()
        assert content(together) == content(alone)


def keyed(log: Log) -> list[tuple[list[tuple[EncodedTrajectory, bytes]], bool]]:
    number, found = 0, []
    for records, commits in log:
        encoded = []
        for record in records:
            number += 1
            encoded.extend((encode_trajectory(item), b"record %d" % number) for item in record)
        found.append((encoded, commits))
    return found


def content(store: Store) -> dict[str, Any]:
    files = {entry.path: entry.sha256 for entry in store.manifest.files()}
    return {"files": files, "counts": store.manifest.counts, "index": index_content(store)}


@settings(max_examples=60, deadline=None)
@given(st.lists(trajectories(), max_size=6))
def test_a_batch_comes_apart_into_what_was_put_in(items: list[Trajectory]) -> None:
    builder = BatchBuilder()
    encoded = [(encode_trajectory(item), b"key %d" % number) for number, item in enumerate(items)]
    for item, key in encoded:
        builder.add(item, key)
    assert [pair for batch in builder.batches() for pair in batch.items()] == encoded
    assert builder.batches() == []
