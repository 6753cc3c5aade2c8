"""Parquet and Arrow tables as records, whole and damaged."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.reading import read_logs
from offline_arl.logs.records import LogFile, read_records

ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"add {number}", "tool_calls": None},
            {"role": "assistant", "content": None, "tool_calls": [{"name": "add", "arguments": '{"n": 1}'}]},
        ],
        "reward": number / 4,
        "tools": '[{"name": "add"}]',
        "note": None,
    }
    for number in range(10)
]


def records(path: Path) -> list[RawRecord]:
    return list(read_records(LogFile(path, path.name, path.name)))


def values(path: Path) -> list[Any]:
    found = records(path)
    assert [record.problem for record in found] == [None] * len(found)
    assert [record.position for record in found] == list(range(len(found)))
    return [json.loads(record.raw) for record in found]


def write(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=4)
    else:
        make = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    return path


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.stream"])
def test_rows_are_records(tmp_path: Path, name: str) -> None:
    found = values(write(tmp_path / name, pa.Table.from_pylist(ROWS)))
    assert len(found) == 10
    # A table gives each message all keys; null keys of nested structs are dropped, null columns stay.
    assert found[3] == {
        "messages": [
            {"role": "user", "content": "add 3"},
            {"role": "assistant", "tool_calls": [{"name": "add", "arguments": '{"n": 1}'}]},
        ],
        "reward": 0.75,
        "tools": '[{"name": "add"}]',
        "note": None,
    }


def test_rows_are_read_by_the_adapter_of_their_content(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet", pa.Table.from_pylist(ROWS))
    contents = read_logs(path)
    assert contents.formats == {str(path): "openai_chat"}
    assert contents.count("used") == len(contents.trajectories) == 10
    trajectory = contents.trajectories[3]
    assert trajectory.outcome.score == 0.75
    assert trajectory.messages[1].tool_calls[0].arguments == {"n": 1}
    assert trajectory.tools_at(0) == [{"type": "function", "function": {"name": "add"}}]


def test_values_that_json_does_not_have(tmp_path: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n\xff"
    table = pa.table(
        {
            "text": pa.array([b"plain \xc3\xa9"], pa.binary()),
            "picture": pa.array([png], pa.binary()),
            "number": pa.array([math.nan], pa.float64()),
            "price": pa.array([decimal.Decimal("1.50")], pa.decimal128(10, 2)),
            "big": pa.array([2**64 - 1], pa.uint64()),
            "map": pa.array([[("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.int64())),
            "nanos": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC")),
            "day": pa.array([dt.date(2026, 1, 2)]),
            "word": pa.array(["x"]).dictionary_encode(),
        }
    )
    (found,) = values(write(tmp_path / "odd.parquet", table))
    assert found == {
        "text": "plain é",
        "picture": "data:image/png;base64," + base64.b64encode(png).decode(),
        "number": "NaN",
        "price": 1.50,
        "big": 18446744073709551615,
        "map": {"a": 1, "b": 2},
        "nanos": "2023-11-14T22:13:20.123456Z",
        "day": "2026-01-02",
        "word": "x",
    }


def test_a_string_that_is_not_utf8_loses_its_row_only(tmp_path: Path) -> None:
    bad = pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary()).cast(pa.binary())
    column = pa.Array.from_buffers(pa.string(), 3, bad.buffers())
    path = tmp_path / "text.parquet"
    pyarrow.parquet.write_table(pa.table({"text": column}), path)
    found = records(path)
    assert [record.problem is None for record in found] == [True, False, True]
    assert found[1].problem is not None
    assert "utf-8" in found[1].problem


def test_a_table_without_rows_is_told(tmp_path: Path) -> None:
    (found,) = records(write(tmp_path / "none.parquet", pa.table({"messages": pa.array([], pa.string())})))
    assert found.problem == "the table has no rows"


def test_a_damaged_row_group_loses_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=4, compression="zstd")
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[column.dictionary_page_offset : column.data_page_offset + 8] = b"\x00" * (
        column.data_page_offset + 8 - column.dictionary_page_offset
    )
    path.write_bytes(data)
    found = records(path)
    good = [json.loads(record.raw)["reward"] * 4 for record in found if record.problem is None]
    assert good == [0, 1, 2, 3, 8, 9]
    (lost,) = [record for record in found if record.problem is not None]
    assert lost.position == 4
    assert lost.problem is not None
    assert lost.problem.startswith("row group 1 cannot be read after 0 of its 4 rows")


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.stream"])
def test_a_table_that_is_cut_off_is_told(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, pa.Table.from_pylist(ROWS))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    found = records(path)
    assert found[-1].problem is not None
    assert "cannot be read" in found[-1].problem
    # A stream gives the whole batches before the end; a file's index is at its end and lost.
    assert len(found) == (1 if name != "rows.stream" else 5)


STEPS = [
    {"observations": "Guess.", "actions": "1", "rewards": -0.1, "terminations": False, "truncations": False},
    {"observations": "Wrong.", "actions": "2", "rewards": 1.0, "terminations": True, "truncations": False},
    {"observations": "Right!", "actions": None, "rewards": 0.0, "terminations": False, "truncations": False},
]


def test_a_minari_table_is_one_episode(tmp_path: Path) -> None:
    folder = tmp_path / "data/4"
    folder.mkdir(parents=True)
    (tmp_path / "data/metadata.json").write_text(
        json.dumps({"dataset_id": "guess-v0", "algorithm_name": "expert", "total_episodes": 9, "total_steps": 30})
    )
    (folder / "metadata.json").write_text(json.dumps({"id": 4, "total_steps": 2, "seed": 7}))
    (episode,) = values(write(folder / "part-0.arrow", pa.Table.from_pylist(STEPS)))
    assert episode == {
        "id": 4,
        "total_steps": 2,
        "seed": 7,
        "observations": ["Guess.", "Wrong.", "Right!"],
        "actions": ["1", "2"],
        "rewards": [-0.1, 1.0],
        "terminations": [False, True],
        "truncations": [False, False],
        # Numbers of episodes and steps change when the dataset grows, and would make old episodes look new.
        "dataset": {"dataset_id": "guess-v0", "algorithm_name": "expert"},
    }


def test_a_minari_table_of_several_episodes(tmp_path: Path) -> None:
    rows = [{**step, "episode_id": number} for number in (0, 1) for step in STEPS]
    first, second = values(write(tmp_path / "all.parquet", pa.Table.from_pylist(rows)))
    assert (first["id"], second["id"]) == (0, 1)
    assert first["actions"] == second["actions"] == ["1", "2"]
