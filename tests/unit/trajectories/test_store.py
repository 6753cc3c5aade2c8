"""The store as its users see it: what goes in comes out, commits are whole, damage is told."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace

import offline_arl
from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories import files
from offline_arl.trajectories.files import Manifest, write_parquet
from offline_arl.trajectories.schema import (
    Branch,
    Context,
    ImagePart,
    Message,
    Outcome,
    Producer,
    ReasoningPart,
    Source,
    TextPart,
    TokenRecord,
    Trajectory,
    Usage,
    text_message,
    tool_call,
)
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.writer import RefusedRecord

TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "get_order",
                "parameters": {
                    "type": "object",
                    "properties": {"order_id": {"type": "string"}},
                    "required": ["order_id"],
                },
            },
        }
    ]
)


def make_trajectory(name: str, **changes: object) -> Trajectory:
    fields: dict[str, object] = {
        "trajectory_id": name,
        "messages": [
            text_message("system", "You are a desk."),
            text_message("user", f"Where is order {name}?"),
            Message("assistant", tool_calls=[tool_call("get_order", f'{{"order_id": "{name}"}}', id="c1")]),
            Message("tool", [TextPart('{"status": "sent"}')], tool_call_id="c1", producer=Producer("environment")),
            text_message("assistant", "It was sent."),
        ],
        "source": Source("test", "file.jsonl", 3, "00ff"),
        "task_id": f"task-{name}",
        "contexts": [Context(0, tools=TOOLS)],
        "terminated": True,
        "outcome": Outcome("scored", success=True, score=1.0),
    }
    return Trajectory(**{**fields, **changes})  # type: ignore[arg-type]


RICH = make_trajectory(
    "rich",
    messages=[
        Message("system", [TextPart("One."), TextPart(""), ReasoningPart("hidden", "sig", True)], name="operator"),
        Message("developer", [TextPart("Two.")]),
        Message("user", [TextPart("See"), ImagePart("data:image/png;base64,AA==", "low")]),
        Message("user", []),
        Message("user", None),
        Message(
            "assistant",
            [ReasoningPart("think"), TextPart("")],
            tool_calls=[tool_call("get_order", '{"order_id": 17'), tool_call("fly", {"to": "é\u2028"})],
            tokens=TokenRecord([1, 2], "print", [-0.5, -1e-30], [7]),
            usage=Usage(3, 2, 0.25),
            trainable=False,
            metadata={"a": [None, {"b": 1.5}], "reward": 0.5},
        ),
    ],
    group_id="",
    episode_id="episode",
    parent_trajectory_id="parent",
    branch=Branch("origin", 2),
    task_type="status",
    agent="agent",
    model="model",
    started_at="2026-01-01T00:00:00Z",
    ended_at="2026-01-01T00:01:00Z",
    contexts=[Context(0, tools=TOOLS, tools_id="t", system_id="s"), Context(3, tools=None), Context(4, tools="[]")],
    terminated=False,
    truncated=True,
    stop_reason="max_steps",
    outcome=Outcome("scored", None, -2.5, {"format": 0.0}, "judge"),
    metadata={"k": {"n": None}},
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def test_what_goes_in_comes_out_equal(store: Store) -> None:
    plain = make_trajectory("plain")
    bare = Trajectory("bare", [Message("assistant")], Source("test"))
    with store.writer() as writer:
        assert [writer.add(record) for record in (plain, RICH, bare)] == [True, True, True]
    assert list(store.iter_trajectories()) == [plain, RICH, bare]
    assert offline_arl.open_store(store.path).get("rich") == RICH
    assert store.verify() == []


def test_system_prompts_and_tools_lie_on_disk_once_a_part(store: Store) -> None:
    with store.writer() as writer:
        for number in range(50):
            writer.add(make_trajectory(str(number)))
    (part,) = store.manifest.parts
    assert part.blobs is not None
    assert part.trajectories is not None
    blobs = pl.read_parquet(store.path / part.blobs.path)
    assert sorted(blobs["kind"]) == ["system", "tools"]
    messages = pl.read_parquet(store.path / part.trajectories.path)["messages"]
    assert not messages.str.contains("You are a desk.", literal=True).any()


def test_trajectory_table_holds_the_scalars(store: Store) -> None:
    with store.writer() as writer:
        writer.add(make_trajectory("a"))
        writer.add(RICH)
    first, second = store.trajectories.collect().to_dicts()
    assert first["n_messages"] == 5
    assert (first["n_steps"], first["n_tool_calls"], first["n_invalid_calls"]) == (2, 1, 0)
    assert (first["status"], first["success"], first["score"]) == ("scored", True, 1.0)
    assert (first["duplicate_of"], first["split"]) == (None, None)
    # The tools in force at message 5 are [], so the call with broken JSON and the unknown tool are both invalid.
    assert (second["n_tool_calls"], second["n_invalid_calls"], second["n_invalid_actions"]) == (2, 2, 1)
    assert (second["terminated"], second["truncated"], second["stop_reason"]) == (False, True, "max_steps")
    assert (second["branch_trajectory_id"], second["branch_message_index"]) == ("origin", 2)


def test_step_table_has_a_row_a_step(store: Store) -> None:
    with store.writer() as writer:
        writer.add(make_trajectory("a"))
        writer.add(RICH)
    rows = store.steps.collect().to_dicts()
    assert [(row["trajectory_id"], row["step"], row["message_index"]) for row in rows] == [
        ("a", 0, 2),
        ("a", 1, 4),
        ("rich", 0, 5),
    ]
    assert rows[0]["tool_names"] == ["get_order"]
    assert rows[1]["tool_names"] == []
    assert [row["is_last"] for row in rows] == [False, True, True]
    assert [row["characters"] for row in rows[:2]] == [len('{"order_id": "a"}'), len("It was sent.")]
    assert (rows[2]["n_tokens"], rows[2]["reward"], rows[2]["reasoning_characters"]) == (2, 0.5, 5)
    assert (rows[2]["invalid_action"], rows[2]["problem"]) == (True, "invalid_json")


def test_filter_uses_the_columns_of_the_table(store: Store) -> None:
    with store.writer() as writer:
        for number in range(4):
            writer.add(make_trajectory(str(number), outcome=Outcome("scored", success=number % 2 == 0)))
    found = [record.trajectory_id for record in store.iter_trajectories(pl.col("success"))]
    assert found == ["0", "2"]


def test_frames_hold_what_was_asked_for_part_by_part(store: Store) -> None:
    with store.writer(max_part_trajectories=2) as writer:
        for number in range(3):
            writer.add(make_trajectory(str(number), messages=[Message("user", [TextPart(f"Hi {number}")])]))
    frames = store.iter_frames(["trajectory_id", "messages"], pl.col("trajectory_id") != "0")
    assert [frame.rows() for frame in frames] == [
        [("1", '[{"role":"user","content":[{"type":"text","text":"Hi 1"}]}]')],
        [("2", '[{"role":"user","content":[{"type":"text","text":"Hi 2"}]}]')],
    ]


def test_parts_are_bounded_and_read_in_order(store: Store) -> None:
    with store.writer(max_part_trajectories=3) as writer:
        for number in range(8):
            writer.add(make_trajectory(str(number)))
    assert [part.trajectories and part.trajectories.rows for part in store.manifest.parts] == [3, 3, 2]
    assert [record.trajectory_id for record in store.iter_trajectories()] == [str(number) for number in range(8)]
    assert len(store) == store.trajectories.collect().height == 8


def test_size_in_bytes_bounds_a_part_too(store: Store) -> None:
    with store.writer(max_part_bytes=2000) as writer:
        for number in range(6):
            writer.add(make_trajectory(str(number), metadata={"padding": "x" * 900}))
    assert len(store.manifest.parts) == 3


def test_get_reads_one_part_and_needs_no_index(store: Store) -> None:
    with store.writer(max_part_trajectories=2) as writer:
        for number in range(6):
            writer.add(make_trajectory(str(number)))
    first, _, _ = store.manifest.parts
    assert first.trajectories is not None
    (store.path / first.trajectories.path).unlink()
    assert store.get("3").trajectory_id == "3"
    with pytest.raises(DataError, match=first.trajectories.path):
        store.get("0")
    (store.path / "index.sqlite").unlink()
    (store.path / "index.sqlite").write_bytes(b"damaged" * 1000)
    with pytest.raises(DataError, match=first.trajectories.path):  # all parts are searched
        store.get("3")


def write_and_fail(store: Store) -> None:
    with store.writer() as writer:
        writer.add(make_trajectory("kept"))
        writer.commit()
        writer.add(make_trajectory("lost"))
        raise RuntimeError("stop")


def test_an_exception_discards_what_was_not_committed(store: Store) -> None:
    with pytest.raises(RuntimeError, match="stop"):
        write_and_fail(store)
    assert [record.trajectory_id for record in store.iter_trajectories()] == ["kept"]
    with store.writer() as writer:
        assert writer.add(make_trajectory("lost"))
    assert len(store) == 2


def test_an_invalid_trajectory_is_refused_and_nothing_is_written(store: Store) -> None:
    wrong = make_trajectory("x", terminated=True, truncated=True)
    with pytest.raises(DataError, match="terminated: a trajectory cannot be both"), store.writer() as writer:
        writer.add(wrong)
    assert len(store) == 0
    assert store.manifest.parts == []


def test_values_that_json_cannot_hold_are_refused(store: Store) -> None:
    with pytest.raises(DataError, match="cannot be stored as JSON"), store.writer() as writer:
        writer.add(make_trajectory("x", metadata={"path": Path}))


def test_adding_again_adds_nothing(store: Store) -> None:
    for _ in range(2):
        with store.writer() as writer:
            writer.add(make_trajectory("a"))
            assert not writer.add(make_trajectory("a"))
    assert len(store) == 1
    with pytest.raises(DataError, match="'a' is taken by a trajectory with other content"), store.writer() as writer:
        writer.add(make_trajectory("a", task_id="another"))


def test_copies_are_marked_with_the_first_of_them_and_kept(store: Store) -> None:
    def attempt(name: str) -> Trajectory:
        return make_trajectory("same", trajectory_id=name)

    with store.writer() as writer:
        for name in ("first", "second"):
            writer.add(attempt(name))
        writer.add(make_trajectory("same", trajectory_id="other task", task_id="elsewhere"))
    with store.writer() as writer:
        writer.add(attempt("third"))
    table = store.trajectories.collect()
    assert dict(zip(table["trajectory_id"], table["duplicate_of"], strict=True)) == {
        "first": None,
        "second": "first",
        "other task": None,
        "third": "first",
    }


@pytest.mark.parametrize("damage", ["delete", "garbage"])
def test_a_lost_index_is_rebuilt(store: Store, damage: str) -> None:
    with store.writer(max_part_trajectories=1) as writer:
        writer.add(make_trajectory("a"))
        writer.add(make_trajectory("b"))
    index = store.path / "index.sqlite"
    if damage == "delete":
        index.unlink()
    else:
        index.write_bytes(b"not a database" * 1000)
    with store.writer() as writer:
        assert not writer.add(make_trajectory("a"))
        assert writer.add(make_trajectory("a", trajectory_id="copy"))
    assert store.side_table("duplicates").collect().rows() == [("copy", "a")]


def test_a_commit_that_failed_after_the_index_leaves_no_ghosts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of a failed commit knows a record that no part holds; it must not count as there."""

    def fail(root: Path, manifest: Manifest) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_manifest", fail)
        with pytest.raises(OSError, match="disk full"), store.writer() as writer:
            writer.add(make_trajectory("a"))
    # A side table takes the number that the failed commit had taken.
    store.write_side_table("scores", pl.DataFrame({"trajectory_id": ["a"], "score": [1.0]}))
    with store.writer() as writer:
        assert writer.add(make_trajectory("a"))
    assert [trajectory.trajectory_id for trajectory in store.iter_trajectories()] == ["a"]
    assert store.trajectories.collect()["duplicate_of"].to_list() == [None]


def test_side_tables_are_replaced_and_joined(store: Store) -> None:
    with store.writer() as writer:
        writer.add(make_trajectory("a"))
        writer.add(make_trajectory("b"))
    store.write_side_table("splits", pl.DataFrame({"trajectory_id": ["a"], "split": ["test"]}))
    store.write_side_table("splits", pl.DataFrame({"trajectory_id": ["b"], "split": ["train"]}))
    assert store.trajectories.select("trajectory_id", "split").collect().rows() == [("a", None), ("b", "train")]
    scores = pl.DataFrame({"trajectory_id": ["a", "a"], "step": [0, 1], "score": [0.5, 1.0]})
    store.write_side_table("scores", scores)
    assert store.side_table("scores").collect().equals(scores)
    assert store.side_tables == ["scores", "splits"]
    # Nothing refers to the first table any more; the next writer removes its file.
    assert len(list((store.path / "side_tables/splits").iterdir())) == 2
    with store.writer():
        pass
    assert len(list((store.path / "side_tables/splits").iterdir())) == 1
    assert store.verify() == []


@pytest.mark.parametrize(
    ("name", "columns", "reason"),
    [
        ("../up", {"trajectory_id": ["a"]}, "lowercase"),
        ("scores", {"id": ["a"]}, "needs a string column trajectory_id"),
        ("scores", {"trajectory_id": ["a", None]}, "null in some rows"),
        ("splits", {"trajectory_id": ["a"]}, "needs a string column split"),
        ("splits", {"trajectory_id": ["a", "a"], "split": ["x", "y"]}, "occurs twice"),
        ("duplicates", {"trajectory_id": ["a"], "duplicate_of": ["b"]}, "kept by the writer"),
    ],
)
def test_side_tables_that_would_break_the_joins_are_refused(
    store: Store, name: str, columns: dict[str, list[str]], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        store.write_side_table(name, pl.DataFrame(columns))


def test_missing_names_are_told_with_what_there_is(store: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no trajectory 'x'"):
        store.get("x")
    with pytest.raises(DataError, match="no side table 'rewards'; there are: none"):
        store.side_table("rewards")
    with pytest.raises(DataError, match="no trajectory store here"):
        offline_arl.open_store(tmp_path / "nothing")


def test_create_touches_nothing_that_is_there(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is a store already"):
        Store.create(store.path)
    assert Store.create(store.path, exist_ok=True).path == store.path
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep me")
    with pytest.raises(UsageError, match="not empty"):
        Store.create(tmp_path / "mine", exist_ok=True)
    with pytest.raises(UsageError, match="is a file"):
        Store.create(tmp_path / "mine/notes.txt")


def test_configuration_stays_in_the_manifest(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "configured", configuration={"origin": "test"})
    with store.writer() as writer:
        writer.add(make_trajectory("a"))
    manifest = json.loads((store.path / "manifest.json").read_text())
    assert manifest["configuration"] == {"origin": "test"}
    assert manifest["schema_version"] == "1.1"
    assert manifest["counts"] == {"trajectories": 1, "steps": 2, "quarantined": 0}


def test_damage_is_found_and_named(store: Store) -> None:
    with store.writer() as writer:
        writer.add(make_trajectory("a"))
    (part,) = store.manifest.parts
    assert part.steps is not None
    assert part.blobs is not None
    (store.path / part.steps.path).write_bytes(b"changed")
    pl.DataFrame({"blob_id": ["x"], "kind": ["tools"], "text": ["[]"]}).write_parquet(store.path / part.blobs.path)
    problems = store.verify()
    assert [problem.split(": ")[1].split(" ")[0] for problem in problems] == ["changed", "changed"]
    with pytest.raises(DataError, match=f"{part.blobs.path}: is damaged"):
        store.get("a")
    with pytest.raises(DataError, match=f"{part.steps.path}: is damaged"):
        _ = store.steps
    with pytest.raises(DataError, match=r"is damaged .* ingest again"), store.writer():
        pass  # what the lost part held must not count as there


@pytest.mark.parametrize("place", ["trajectories", "steps", "blobs", "quarantine"])
def test_a_missing_part_is_named_by_whatever_needs_it(store: Store, place: str) -> None:
    with store.writer() as writer:
        writer.add(make_trajectory("a"))
        writer.refuse(RefusedRecord.of(b"{", file="log", record=0, line=1, format=None, reason="broken", key=b"k"))
    (part,) = store.manifest.parts
    entry = getattr(part, place)
    (store.path / entry.path).unlink()
    uses: dict[str, Callable[[], object]] = {
        "trajectories": lambda: store.trajectories,
        "steps": lambda: store.steps,
        "blobs": lambda: store.get("a"),
        "quarantine": lambda: store.quarantined,
    }
    with pytest.raises(DataError, match=rf"{entry.path}: .*No such file.*remove the store and ingest again"):
        uses[place]()
    with pytest.raises(DataError, match=entry.path), store.writer():
        pass


def test_a_stored_row_that_does_not_decode_is_named(store: Store) -> None:
    with store.writer() as writer:
        writer.add(make_trajectory("a"))
    (part,) = store.manifest.parts
    assert part.blobs is not None
    other = pl.DataFrame({"blob_id": ["x"], "kind": ["tools"], "text": ["[]"]})
    blobs = write_parquet(store.path, part.blobs.path, other)
    files.write_manifest(store.path, replace(store.manifest, parts=[replace(part, blobs=blobs)]))
    with pytest.raises(DataError, match="'a': the stored row is damaged"):
        store.get("a")


def test_a_full_disk_ends_a_commit_in_one_line_and_keeps_the_store(store: Store) -> None:
    with store.writer() as writer:
        writer.add(make_trajectory("a"))
    before = sorted(path.name for path in store.path.rglob("*"))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead of the process
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limit[1]))
    try:
        with pytest.raises(DataError, match=r"cannot be written .*free space"), store.writer() as writer:
            writer.add(make_trajectory("b"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    assert sorted(path.name for path in store.path.rglob("*")) == before
    assert [trajectory.trajectory_id for trajectory in store.iter_trajectories()] == ["a"]
    assert store.verify() == []


def test_a_store_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file/store", tmp_path / ("a" * 300), Path("/proc/store")):
        with pytest.raises(UsageError, match="no store can be made here"):
            Store.create(place)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "the manifest is damaged"),
        ('{"store_format": "another"}', "store_format is 'another'"),
        ('{"store_format": "offline_arl.trajectory_store", "schema_version": "9.0"}', "schema version '9.0' cannot be"),
        ("{}", "the manifest is damaged"),  # taken for an empty store, its parts would be removed as unlisted
        ('{"store_format": "offline_arl.trajectory_store", "schema_version": "1.0", "parts": 5}', "is damaged"),
    ],
)
def test_an_unreadable_manifest_is_told(store: Store, text: str, reason: str) -> None:
    (store.path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=reason):
        offline_arl.open_store(store.path)


def test_a_folder_in_place_of_the_manifest_is_told(store: Store) -> None:
    (store.path / "manifest.json").unlink()
    (store.path / "manifest.json").mkdir()
    with pytest.raises(DataError, match=r"manifest.json: cannot be read \(Is a directory\)"):
        offline_arl.open_store(store.path)


def test_an_empty_store_has_typed_tables(store: Store) -> None:
    assert store.trajectories.filter(pl.col("success") & pl.col("split").is_null()).collect().height == 0
    assert store.steps.select(pl.col("invalid_action").sum()).collect().item() == 0
    assert store.quarantined.collect().columns[:5] == ["file", "record", "line", "format", "reason"]
    assert list(store.iter_trajectories()) == []
