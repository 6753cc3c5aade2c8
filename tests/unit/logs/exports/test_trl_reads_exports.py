"""Exports for TRL load with `datasets` as they are, and go through TRL's own functions and a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from export_examples import ADD, compared, rich, text, tools

from offline_arl.models.tiny import train_tiny_tokenizer
from offline_arl.trajectories.schema import Context, Message, Outcome, Source, TextPart, Trajectory, tool_call
from offline_arl.trajectories.store import Store
from offline_arl.workflows.export import export

datasets = pytest.importorskip("datasets")
data_utils = pytest.importorskip("trl.data_utils")


def caller(number: int, arguments: dict[str, Any]) -> Trajectory:
    """A conversation whose call has arguments that others do not have."""
    return Trajectory(
        f"caller-{number}",
        [
            text("user", f"question {number}"),
            Message("assistant", None, [tool_call("add", arguments, id="c")]),
            text("tool", "3", tool_call_id="c"),
            Message("assistant", [TextPart("three")]),
        ],
        Source("test"),
        contexts=[Context(0, tools(ADD))],
        outcome=Outcome("scored", success=number % 2 == 0),
    )


ARGUMENTS: list[dict[str, Any]] = [
    {"a": 1, "b": 2},
    {"a": "1"},
    {"time": None, "list": [1, "x"]},
    {},
    {"a": {"b": 1.5}},
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store.create(tmp_path_factory.mktemp("trl") / "store")
    plain = Trajectory("plain", [text("user", "hello"), text("assistant", "good day")], Source("test"))
    with store.writer() as writer:
        for trajectory in (rich(), plain, *compared(), *(caller(*item) for item in enumerate(ARGUMENTS))):
            writer.add(trajectory)
    return store


def load(store: Store, name: str, ending: str, tmp_path: Path) -> Any:
    output = tmp_path / f"out{ending}"
    export(store, output, format=name)
    kind = "parquet" if ending == ".parquet" else "json"
    return datasets.load_dataset(kind, data_files=str(output), cache_dir=str(tmp_path / "cache"))["train"]


BOTH = pytest.mark.parametrize("ending", [".jsonl", ".parquet"])


@BOTH
def test_no_call_gets_the_keys_of_another(store: Store, ending: str, tmp_path: Path) -> None:
    rows = load(store, "trl", ending, tmp_path)
    assert len(rows) == 9
    calls = {row["messages"][0]["content"]: row["messages"][1].get("tool_calls") for row in rows}
    found = [calls[f"question {number}"][0]["function"]["arguments"] for number in range(len(ARGUMENTS))]
    assert found == ARGUMENTS


@BOTH
@pytest.mark.parametrize("name", ["trl", "trl_prompt_completion", "trl_unpaired", "trl_preference"])
def test_rows_go_through_a_chat_template(store: Store, name: str, ending: str, tmp_path: Path) -> None:
    rows = load(store, name, ending, tmp_path)
    assert len(rows) == {"trl": 9, "trl_prompt_completion": 9, "trl_unpaired": 6, "trl_preference": 1}[name]
    tokenizer = train_tiny_tokenizer(["hello there, what is the sum"], vocabulary_size=300)
    for row in rows:
        assert data_utils.is_conversational(row)
        example = {key: value for key, value in row.items() if key not in ("tools", "offline_arl")}
        row_tools = json.loads(row["tools"]) if row["tools"] else None
        done = data_utils.maybe_apply_chat_template(example, tokenizer, tools=row_tools)
        assert all("<|end|>" in value for value in done.values() if isinstance(value, str))
    if name == "trl":
        texts = [
            tokenizer.apply_chat_template(row["messages"], tools=json.loads(row["tools"] or "null"), tokenize=False)
            for row in rows
        ]
        assert '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>' in "".join(texts)
        assert "<|system|>You add.\nadd(" in texts[0]


def test_preferences_make_unpaired_rows(store: Store, tmp_path: Path) -> None:
    rows = load(store, "trl_preference", ".parquet", tmp_path).remove_columns(["tools", "offline_arl"])
    unpaired = data_utils.maybe_unpair_preference_dataset(rows)
    found = [(row["completion"][0]["content"], row["label"]) for row in unpaired]
    assert found == [("5", True), ("6", False)]


def test_rows_that_datasets_saved_are_the_same_trajectories(store: Store, tmp_path: Path) -> None:
    from offline_arl.logs.reading import read_logs

    saved = tmp_path / "saved.parquet"
    load(store, "trl", ".parquet", tmp_path).shuffle(seed=0).to_parquet(str(saved))
    wanted = {trajectory.trajectory_id: trajectory for trajectory in store.iter_trajectories()}
    found = {trajectory.trajectory_id: trajectory for trajectory in read_logs(saved).trajectories}
    assert found.keys() == wanted.keys()
    for name, trajectory in found.items():
        assert msgspec.structs.replace(trajectory, source=wanted[name].source) == wanted[name]
