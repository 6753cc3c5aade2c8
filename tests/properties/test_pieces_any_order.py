"""However pieces come in and whenever groups are assembled, the store ends up the same."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_sessions import add_piece, assemble_all, index_content, record_key, texts

from offline_arl.trajectories.store import Store

# A record: the sessions that it belongs to (one piece each, or two of one), and what it says there.
records = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["p", "q", "r"]), min_size=1, max_size=3),
        st.sampled_from(["one", "two", "bad", "head"]),
    ),
    min_size=1,
    max_size=8,
)
events = st.lists(
    st.tuples(st.integers(0, 8), st.sampled_from(["commit", "reopen", "assemble", "crash", "lose index"])), max_size=6
)


def write(store: Store, chosen: Sequence[tuple[list[str], str]], happenings: dict[int, list[str]]) -> None:
    """Add the records one after another; before some of them something happens, after which all come again."""
    while True:
        try:
            with store.writer(max_part_bytes=12) as writer:
                for position, (sessions, text) in enumerate(chosen):
                    while coming := happenings.get(position):
                        happening = coming.pop(0)
                        if happening == "commit":
                            writer.commit()
                        elif happening == "assemble":
                            assemble_all(writer)
                        else:
                            raise InterruptedError(happening)
                    for session in sessions:
                        add_piece(writer, f"log:{position}", key=session, text=text)
                    writer.commit_if_full()
                assemble_all(writer)
                return
        except InterruptedError as interruption:
            if str(interruption) == "lose index":
                (store.path / "index.sqlite").unlink()


def outcome(store: Store, chosen: Sequence[tuple[list[str], str]]) -> dict[str, Any]:
    copies: dict[str, set[str]] = {}
    for name, original in store.trajectories.select("trajectory_id", "duplicate_of").collect().iter_rows():
        copies.setdefault(original or name, set()).add(name)
    with store.writer() as writer:
        states = [writer.record_state(record_key(f"log:{position}")) for position in range(len(chosen))]
    return {
        "texts": texts(store),
        "count": (len(store), store.manifest.counts.steps),
        "copies": sorted(map(sorted, copies.values())),
        "quarantined": sorted(store.quarantined.collect().rows()),
        "states": states,
        "damage": store.verify(),
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records, events)
def test_any_interleaving_gives_the_same_store(
    chosen: list[tuple[list[str], str]], drawn: list[tuple[int, str]]
) -> None:
    happenings: dict[int, list[str]] = {}
    for position, happening in drawn:
        happenings.setdefault(position, []).append(happening)
    with tempfile.TemporaryDirectory() as folder:
        undisturbed, store = Store.create(Path(folder, "one")), Store.create(Path(folder, "other"))
        write(undisturbed, chosen, {})
        write(store, chosen, happenings)
        assert outcome(store, chosen) == outcome(undisturbed, chosen)
        assert outcome(store, chosen)["count"] == (
            len(outcome(store, chosen)["texts"]),
            sum(map(len, outcome(store, chosen)["texts"].values())),
        )
        grown = index_content(store)
        (store.path / "index.sqlite").unlink()
        with store.writer():
            pass
        assert index_content(store) == grown
