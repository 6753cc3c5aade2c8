"""No split leaks into another, whatever trajectories share, and splits stay as they are when the store grows."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_arl.errors import UsageError
from offline_arl.trajectories.families import KEYS, SplitBy
from offline_arl.trajectories.schema import Branch, Source, Trajectory, text_message
from offline_arl.trajectories.splits import assign_splits, extend_splits
from offline_arl.trajectories.store import Store

few = st.none() | st.sampled_from("abcdefgh")
REFERENCES = ("parent_trajectory_id", "branch_trajectory_id", "duplicate_of", "near_duplicate_of")


@st.composite
def trajectory_lists(draw: st.DrawFn) -> list[Trajectory]:
    """Trajectories that share what trajectories can share, some of it with trajectories that are not there."""
    ids = st.none() | st.integers(0, 30).map("t{}".format)
    found = []
    for number in range(draw(st.integers(1, 24))):
        other = draw(ids)
        fields: dict[str, Any] = {name: draw(few) for name in ("task_id", "group_id", "episode_id", "user_id")}
        fields["session_id"] = draw(few)
        fields["task_type"] = draw(st.sampled_from([None, "x", "y"]))
        fields["started_at"] = f"2026-01-{draw(st.integers(1, 28)):02}"
        fields["parent_trajectory_id"] = draw(st.sampled_from([None, None, other]))
        branch = draw(st.sampled_from([None, None, None, other]))
        text = draw(st.sampled_from([f"text {number}"] * 3 + ["the same"]))
        messages = [text_message("user", text), text_message("assistant", "done")]
        fields["branch"] = None if branch is None else Branch(branch, 1)
        found.append(Trajectory(f"t{number}", messages, Source("test"), **fields))
    return found


def add(store: Store, trajectories: Sequence[Trajectory]) -> None:
    with store.writer() as writer:
        for trajectory in trajectories:
            writer.add(trajectory)


def rows(store: Store) -> pl.DataFrame:
    near = store.side_table("near_duplicates")
    return store.trajectories.join(near, on="trajectory_id", how="left").collect()


def leaks(frame: pl.DataFrame, by: SplitBy) -> list[str]:
    """Identities that are in two splits, in the plainest way to say it."""
    split = dict(frame.select("trajectory_id", "split").iter_rows())
    found = []
    for key in ("episode_id", *KEYS[by], *REFERENCES):
        named = frame.filter(pl.col(key).is_not_null() & pl.col("split").is_not_null())
        several = named.group_by(key).agg(pl.col("split").n_unique()).filter(pl.col("split") > 1)
        found += [f"{key} {name}" for name in several[key]]
    for name, *targets in frame.select("trajectory_id", *REFERENCES).iter_rows():
        found += [f"{name} and {target}" for target in targets if split.get(target, split[name]) != split[name]]
    return found


@pytest.mark.parametrize("by", ["task", "user", "session", "time"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_identity_is_in_two_splits_also_when_the_store_grows(by: SplitBy, data: st.DataObject) -> None:
    trajectories = data.draw(trajectory_lists())
    cut = data.draw(st.integers(1, len(trajectories)))
    pairs = data.draw(st.lists(st.tuples(st.integers(0, cut - 1), st.integers(0, cut - 1)), max_size=3))
    near = {f"t{one}": f"t{other}" for one, other in pairs if one != other}
    fractions = {"train": 0.5, "test": 0.5}
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder, "store"))
        add(store, trajectories[:cut])
        marks = pl.DataFrame(
            list(near.items()), schema={"trajectory_id": pl.String(), "near_duplicate_of": pl.String()}, orient="row"
        )
        store.write_side_table("near_duplicates", marks)
        if by == "time" and len({item.started_at for item in trajectories[:cut]}) < 2:
            return
        if by in ("user", "session") and all(getattr(item, f"{by}_id") is None for item in trajectories[:cut]):
            return
        report = None
        with suppress(UsageError) if by == "time" else nullcontext():  # families may leave too few times
            report = assign_splits(store, fractions, seed=1, by=by)
        if report is None:
            return
        before = dict(report.table.iter_rows())
        assert leaks(rows(store), by) == []
        assert dict(assign_splits(store, fractions, seed=1, by=by).table.iter_rows()) == before

        add(store, trajectories[cut:])
        grown = extend_splits(store)
        assert grown is not None
        frame = rows(store)
        assert leaks(frame, by) == []
        assert frame["split"].null_count() == 0
        after = dict(frame.select("trajectory_id", "split").iter_rows())
        changed = {name for name, split in before.items() if after[name] != split}
        assert grown.moved == len(changed)
        assert all(after[name] == "train" for name in changed), "only to the first of the splits that were joined"
        if by == "time":
            times = {split: frame.filter(pl.col("split") == split)["started_at"] for split in before.values()}
            assert len(before) == len(after) or set(times) <= {"train", "test"}
            if len(before) == len(after) and len(times) == 2:
                assert times["train"].max() < times["test"].max()  # type: ignore[operator]


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(3, 40), min_size=1, max_size=4),
    train=st.floats(0.3, 0.8),
    seed=st.integers(0, 5),
)
def test_shares_are_what_was_asked_for(sizes: list[int], train: float, seed: int) -> None:
    """Of n families of a type, each split gets its share rounded up or down; at least one where the share is less."""
    rest = (1 - train) / 2
    fractions = {"train": train, "validation": rest, "test": 1 - train - rest}
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder, "store"))
        made = [
            Trajectory(f"{kind}-{number}", [text_message("assistant", f"{kind} {number}")], Source("test"),
                       task_type=str(kind), task_id=f"{kind}-{number // 2}")
            for kind, size in enumerate(sizes) for number in range(2 * size)
        ]  # fmt: skip
        add(store, made)
        report = assign_splits(store, fractions, seed)
        assert report.not_everywhere == {}
        for kind, size in enumerate(sizes):
            for split, share in fractions.items():
                number = report.recipe.counts[split].task_types[str(kind)] / 2
                forced = sum(max(0, 1 - fraction * size) for fraction in fractions.values())
                assert max(1, share * size) - 1 - forced < number < max(1, share * size) + 1, (kind, split)
        total = sum(sizes)
        for split, share in fractions.items():
            assert abs(report.recipe.counts[split].families - share * total) <= 1 + len(sizes)
