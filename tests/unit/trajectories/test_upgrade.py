"""Stores that earlier versions wrote are read as if this version had written them.

`tests/golden/store_1_0` was written by the code of schema version 1.0: trajectories a, b (a copy of a) and c, one
refused record, and a side table of splits.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from offline_arl.errors import DataError
from offline_arl.trajectories.schema import (
    Branch,
    Context,
    Message,
    Outcome,
    Producer,
    Score,
    Source,
    TextPart,
    Trajectory,
    text_message,
    tool_call,
)
from offline_arl.trajectories.store import Store

GOLDEN = Path(__file__).resolve().parents[2] / "golden/store_1_0"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(shutil.copytree(GOLDEN, tmp_path / "store"))


def test_trajectories_of_1_0_have_the_fields_of_this_version(store: Store) -> None:
    assert json.loads((store.path / "manifest.json").read_text())["schema_version"] == "1.0"
    first, second, third = store.iter_trajectories()
    tools = first.contexts[0].tools
    assert tools is not None
    assert '"name":"get_order"' in tools
    assert first == Trajectory(
        "a",
        [
            text_message("system", "You are a desk."),
            text_message("user", "Where is order 17?"),
            Message(
                "assistant",
                tool_calls=[tool_call("get_order", '{"order_id": "17"}', id="c1")],
                producer=Producer("model", "small"),
            ),
            Message("tool", [TextPart('{"status": "sent"}')], tool_call_id="c1", producer=Producer("environment")),
            text_message("assistant", "It was sent."),
        ],
        Source("test", "file.jsonl", 17, "00ff"),
        task_id="order-17",
        contexts=[Context(0, tools=tools)],
        terminated=True,
        outcome=Outcome("scored", success=True, score=1.0, components={"order": 1.0}),
        identifiers={},
        scores=[],
        schema_version="1.1",
    )
    assert (second.stop_reason, third.branch, third.metadata) == ("max_steps", Branch("a", 2), {"k": [None]})


def test_tables_of_1_0_have_the_columns_of_this_version(store: Store) -> None:
    shown = store.trajectories.select(
        "trajectory_id", "session_id", "user_id", "n_scores", "schema_version", "duplicate_of", "split"
    )
    assert shown.collect().rows() == [
        ("a", None, None, 0, "1.1", None, "train"),
        ("b", None, None, 0, "1.1", "a", "train"),
        ("c", None, None, 0, "1.1", None, None),
    ]
    assert store.trajectories.filter(pl.col("n_scores") == 0).select(pl.len()).collect().item() == 3
    assert store.steps.collect()["tool_names"].to_list() == [["get_order"], []] * 3
    assert store.quarantined.collect()["reason"].to_list() == ["invalid JSON"]
    assert store.verify() == []


def test_writing_goes_on_and_the_store_is_of_this_version_from_then_on(store: Store) -> None:
    before = list(store.iter_trajectories())
    added = Trajectory(
        "d",
        [Message("assistant", [TextPart("Hello")], id="m1")],
        Source("test"),
        session_id="session",
        user_id="user",
        identifiers={"trace": "t1"},
        scores=[Score("helpful", 1.0, message_index=0, metadata={"by": "hand"})],
    )
    with store.writer() as writer:  # rebuilds the index, which the golden store lacks
        assert not writer.add(before[0])
        assert writer.record_refused(bytes(range(16)))
        assert writer.add(added)
    assert store.manifest.schema_version == "1.1"
    assert list(store.iter_trajectories()) == [*before, added]
    assert store.trajectories.select("session_id", "user_id", "n_scores").collect().rows()[-1] == ("session", "user", 1)
    assert len(store) == 4


@pytest.mark.parametrize("version", ["1.2", "2.0", "one"])
def test_a_store_of_a_later_version_is_not_guessed_at(store: Store, version: str) -> None:
    """A later version may keep rows void or data elsewhere, in files that this one does not know."""
    path = store.path / "manifest.json"
    path.write_text(path.read_text().replace('"schema_version": "1.0"', f'"schema_version": "{version}"'))
    with pytest.raises(DataError, match=rf"schema version '{version}' cannot be read .* upgrade offline_arl"):
        Store(store.path)
