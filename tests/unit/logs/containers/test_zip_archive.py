"""Archives of Inspect: samples in order, and nothing that an archive can do to whoever reads it."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.containers import inspect_document, zip_archive
from offline_arl.logs.records import LogFile, read_records

START = {"version": 2, "eval": {"task": "t", "run_id": "r"}, "plan": {"steps": []}}
HEADER = {**START, "status": "success", "results": {"scores": []}, "stats": {}}


def sample(number: int) -> dict[str, Any]:
    return {"id": number, "epoch": 1, "input": "?", "target": "", "messages": []}


def archive(path: Path, members: list[tuple[str, Any]], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as written:
        for name, value in members:
            written.writestr(name, value if isinstance(value, bytes) else json.dumps(value))
    return path


def records(path: Path) -> list[RawRecord]:
    return list(read_records(LogFile(path, path.name, path.name)))


def read(path: Path) -> list[tuple[int, Any, str | None]]:
    return [
        (record.position, json.loads(record.raw) if record.raw else None, record.problem) for record in records(path)
    ]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_each_sample_is_a_record_that_carries_what_lasts_of_the_header(tmp_path: Path, method: int) -> None:
    members = [
        ("_journal/start.json", START),
        ("samples/2_epoch_1.json", sample(2)),
        ("samples/1_epoch_1.json", sample(1)),
        ("_journal/summaries/1.json", []),
        ("summaries.json", []),
        ("header.json", HEADER),
    ]
    expected = [(0, {**START, "samples": [sample(2)]}, None), (1, {**START, "samples": [sample(1)]}, None)]
    assert read(archive(tmp_path / "a.eval", members, method)) == expected
    # The same samples while the run goes on: the records do not change when it ends.
    assert read(archive(tmp_path / "b.eval", members[:3], method)) == expected


def test_a_header_with_nan_is_read(tmp_path: Path) -> None:
    header = json.dumps({**HEADER, "results": {"mean": float("nan")}}).encode()
    path = archive(tmp_path / "a.eval", [("samples/1.json", sample(1)), ("header.json", header)])
    assert read(path) == [(0, {**START, "samples": [sample(1)]}, None)]


def test_a_log_without_samples_is_one_record(tmp_path: Path) -> None:
    assert read(archive(tmp_path / "a.eval", [("header.json", HEADER)])) == [(0, {**START, "samples": []}, None)]


@pytest.mark.parametrize(
    "name", ["../samples/1.json", "samples/../../1.json", "/etc/passwd", "C:/samples/1.json", "..\\samples\\1.json"]
)
def test_members_that_point_outside_are_told_and_written_nowhere(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    path = archive(inside / "a.eval", [("header.json", HEADER), (name, sample(1)), ("samples/2.json", sample(2))])
    found = read(path)
    assert [(position, problem is None) for position, _, problem in found] == [(0, False), (1, True)]
    assert "outside of the archive" in str(found[0][2])
    assert sorted(tmp_path.rglob("*")) == [inside, path]


def test_members_that_are_unknown_or_replaced_are_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = archive(
            tmp_path / "a.eval",
            [
                ("header.json", HEADER),
                ("notes/", b""),
                ("notes/readme.md", b"hello"),
                ("samples/1.json", sample(1)),
                ("samples/1.json", {**sample(1), "epoch": 2}),
            ],
        )
    found = read(path)
    assert [problem for _, _, problem in found] == [
        "the member 'notes/readme.md' is not a part of an Inspect log that is known",
        "the member 'samples/1.json' is replaced by a later one of the same name",
        None,
    ]
    assert found[2][1]["samples"][0]["epoch"] == 2


def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    # 64 MiB of zeros deflate to 65 kB, at 1,028 to 1; what may be unpacked of it is 500 times its size, 32.6 MB.
    path = archive(
        tmp_path / "a.eval",
        [("header.json", HEADER), ("samples/1.json", bytes(64 * 2**20)), ("samples/2.json", sample(2))],
    )
    tracemalloc.start()
    try:
        found = read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "which no honest log does" in str(found[0][2])
    assert found[1][2] is None
    assert peak < 40 * 2**20


def test_honest_samples_may_repeat_themselves(tmp_path: Path) -> None:
    # 900 kB of one word shrink 300 times: below the free size no ratio is asked for.
    repetitive = {**sample(1), "input": "word " * 180_000}
    [(_, log, problem)] = read(archive(tmp_path / "a.eval", [("header.json", HEADER), ("samples/1.json", repetitive)]))
    assert problem is None
    assert log["samples"] == [repetitive]


def test_a_member_larger_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_archive, "MAX_MEMBER_BYTES", 10_000)
    path = archive(
        tmp_path / "a.eval",
        [("header.json", HEADER), ("samples/1.json", bytes(range(256)) * 40)],
        zipfile.ZIP_STORED,
    )
    [(_, _, problem)] = read(path)
    assert problem == "'samples/1.json': unpacks to more than 10000 bytes from 10240, which no honest log does"


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    # The index lists one member 40 times: a quoted-overlap bomb in small.
    path = archive(tmp_path / "a.eval", [("header.json", HEADER), ("samples/1.json", sample(1))], zipfile.ZIP_STORED)
    with zipfile.ZipFile(path) as written:
        start, size = written.start_dir, len(written.infolist())
    data = path.read_bytes()
    entries, end = data[start : data.rindex(b"PK\x05\x06")], bytearray(data[data.rindex(b"PK\x05\x06") :])
    end[8:12] = (size * 40).to_bytes(2, "little") * 2
    end[12:16] = (len(entries) * 40).to_bytes(4, "little")
    path.write_bytes(data[:start] + entries * 40 + end)
    assert read(path) == [(0, None, "the zip archive is damaged: its members overlap")]


def test_a_cut_archive_gives_its_whole_samples_and_the_reason(tmp_path: Path) -> None:
    members = [("_journal/start.json", START), *((f"samples/{number}.json", sample(number)) for number in range(3))]
    path = archive(tmp_path / "a.eval", members)
    with zipfile.ZipFile(path) as whole:
        offset = whole.infolist()[3].header_offset
    path.write_bytes(path.read_bytes()[: offset + 45])
    found = read(path)
    assert [log and log["samples"] for _, log, _ in found] == [[sample(0)], [sample(1)], None]
    assert [problem is None for _, _, problem in found] == [True, True, False]
    assert "cut off or damaged" in str(found[2][2])


def test_a_damaged_member_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "a.eval",
        [("header.json", HEADER), ("samples/1.json", sample(1)), ("samples/2.json", sample(2))],
        zipfile.ZIP_STORED,
    )
    path.write_bytes(path.read_bytes().replace(b'{"id": 1', b'{"id": 7'))
    found = read(path)
    assert found[0][2] == "'samples/1.json': is damaged: its checksum is wrong"
    assert found[1][1]["samples"] == [sample(2)]


def test_other_archives_and_encrypted_members_are_told(tmp_path: Path) -> None:
    assert read(archive(tmp_path / "a.eval", [("data.csv", b"1,2")])) == [
        (0, None, "the zip archive has no header.json: it is not an Inspect log")
    ]
    path = archive(tmp_path / "b.eval", [("header.json", HEADER), ("samples/1.json", sample(1))])
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\x01\x02")
    data[place + 8] |= 1
    path.write_bytes(bytes(data))
    assert read(path) == [(0, None, "'samples/1.json': is encrypted")]


def test_an_unknown_method_is_told(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.eval", [("header.json", HEADER), ("samples/1.json", sample(1))], zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\x01\x02")
    data[place + 10 : place + 12] = (99).to_bytes(2, "little")
    path.write_bytes(bytes(data))
    assert read(path) == [(0, None, "'samples/1.json': is packed by method 99, which is not known")]


def zstandard_archive(path: Path, members: list[tuple[str, bytes, bytes]]) -> Path:
    """An archive of (name, content, content as Zstandard packed it): `zipfile` writes method 93 from Python 3.14 on."""
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as written:
        for name, _, packed in members:
            written.writestr(name, packed)
    data = bytearray(stored.getvalue())
    with zipfile.ZipFile(io.BytesIO(data)) as whole:
        infos, place = whole.infolist(), whole.start_dir
    for info, (name, content, _) in zip(infos, members, strict=True):
        told = zlib.crc32(content).to_bytes(4, "little")
        for start, method, checksum, size in (
            (info.header_offset, 8, 14, 22),
            (place, 10, 16, 24),
        ):
            data[start + method : start + method + 2] = (93).to_bytes(2, "little")
            data[start + checksum : start + checksum + 4] = told
            data[start + size : start + size + 4] = len(content).to_bytes(4, "little")
        place += 46 + len(name)
    path.write_bytes(bytes(data))
    return path


def test_zstandard_members_of_several_frames(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    header, first = json.dumps(HEADER).encode(), json.dumps(sample(1)).encode()
    frames = zstandard.compress(first[:20]) + zstandard.compress(first[20:])
    bomb = bytes(64 * 2**20)
    path = zstandard_archive(
        tmp_path / "a.eval",
        [
            ("header.json", header, zstandard.compress(header)),
            ("samples/1.json", first, frames),
            ("samples/2.json", bomb, zstandard.compress(bomb)),
            ("samples/3.json", first, zstandard.compress(first)[:-3]),
        ],
    )
    found = read(path)
    assert found[0] == (0, {**START, "samples": [sample(1)]}, None)
    assert "which no honest log does" in str(found[1][2])
    assert "is damaged" in str(found[2][2])


def test_a_document_is_cut_into_the_same_records(tmp_path: Path) -> None:
    log = {"version": 2, "status": "success", **HEADER, "samples": [sample(1), sample(2)]}
    document = tmp_path / "a.json"
    document.write_text(json.dumps(log, indent=2))
    assert inspect_document.matches(document.read_bytes()[:4096], "a.json")
    found = read(document)
    assert found == [(0, {**START, "samples": [sample(1)]}, None), (1, {**START, "samples": [sample(2)]}, None)]


def test_a_document_with_nan_is_cut_too(tmp_path: Path) -> None:
    log = {**HEADER, "status": "success", "samples": [{**sample(1), "scores": {"s": {"value": float("nan")}}}]}
    ordered = {"version": 2, "status": "success", **log}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ordered))
    [(_, found, problem)] = read(path)
    assert problem is None
    assert found["samples"][0]["scores"] == {"s": {"value": "NaN"}}


def test_a_document_that_cannot_be_cut_is_one_record(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"version": 2, "status": "started", "eval": {"task": "t"}, "samples": [{"id": 1')
    assert [record.raw for record in records(path)] == [path.read_bytes()]
