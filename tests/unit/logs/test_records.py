"""Cutting files into records, whatever state they are in."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from offline_arl.errors import DataError
from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.records import LogFile, read_records


def records(path: Path, content: bytes | str, **options: int) -> list[RawRecord]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_records(LogFile(path, path.name, path.name), **options))


def cut(path: Path, content: bytes | str) -> list[tuple[int, int | None, bytes]]:
    found = records(path, content)
    assert all(record.problem is None for record in found)
    return [(record.position, record.line, record.raw) for record in found]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def test_lines(path: Path) -> None:
    assert cut(path, '{"a":1}\n{"a":2}\n') == [(0, 1, b'{"a":1}'), (1, 2, b'{"a":2}')]


def test_blank_lines_count_as_lines_and_not_as_records(path: Path) -> None:
    text = '\n\n{"a":1}\r\n   \r\n{"a":2}'
    assert cut(path, text) == [(0, 3, b'{"a":1}'), (1, 5, b'{"a":2}')]


def test_a_byte_order_mark_is_skipped(path: Path) -> None:
    assert cut(path, b'\xef\xbb\xbf{"a":1}\n') == [(0, 1, b'{"a":1}')]


def test_arrays_on_one_line_and_on_many(path: Path) -> None:
    expected = [(0, None, b'{"a": 1}'), (1, None, b'{"a": [2, 3]}')]
    assert cut(path, '[{"a": 1}, {"a": [2, 3]}]') == expected
    assert cut(path, '[\n  {"a": 1},\n  {"a": [2, 3]}\n]\n') == expected


def test_one_document_over_many_lines(path: Path) -> None:
    text = json.dumps({"messages": [{"role": "user"}], "more": {"x": {}}}, indent=2)
    assert cut(path, text) == [(0, None, text.encode())]


def test_lines_of_arrays_are_lines(path: Path) -> None:
    assert [record[2] for record in cut(path, '["a", {}]\n["b", {}]\n')] == [b'["a", {}]', b'["b", {}]']


def test_a_broken_line_does_not_hide_the_others(path: Path) -> None:
    for lines in (['{"a": [', '{"a": 2}'], ["garbage", '{"a": 2}'], ['{"a": 1}', '{"a":'], ["[1,", '{"a": 2}']):
        assert [record[2].decode() for record in cut(path, "\n".join(lines))] == lines


def test_only_broken_lines_stay_lines_where_the_name_says_so(path: Path) -> None:
    assert len(records(path, '{"a": [\n{"b": [\n')) == 2
    assert len(records(path.with_suffix(".json"), '{"a": [\n{"b": [\n')) == 1


def test_an_array_that_is_cut_off_gives_its_whole_elements_and_the_rest(path: Path) -> None:
    found = records(path, '[{"a": "é"}, {"b": [1, 2]}, {"c": "cut o')
    assert [record.raw.decode() for record in found] == ['{"a": "é"}', '{"b": [1, 2]}', '{"c": "cut o']
    assert [record.problem is None for record in found] == [True, True, False]
    assert "truncated" in str(found[2].problem)


@pytest.mark.parametrize("content", ["", "\n \n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_one_problem(path: Path, content: bytes | str) -> None:
    (record,) = records(path, content)
    assert record.problem == "the file is empty"


def test_an_empty_list_is_one_problem(path: Path) -> None:
    (record,) = records(path, "[]")
    assert record.problem == "the list is empty"


def test_compressed_files_are_known_by_their_content(path: Path) -> None:
    assert cut(path, gzip.compress(b'{"a":1}\n{"a":2}\n')) == [(0, 1, b'{"a":1}'), (1, 2, b'{"a":2}')]
    assert len(cut(path, gzip.compress(b'[{"a":1},{"a":2}]'))) == 2


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_compressed_file_gives_what_is_readable(path: Path, damage: str) -> None:
    lines = b"".join(b'{"a": "%d-%d"}\n' % (number, number**7) for number in range(20000))
    packed = bytearray(gzip.compress(lines))
    if damage == "cut":
        del packed[len(packed) // 2 :]
    else:
        packed[-6] ^= 255  # the checksum at the end
    found = records(path, bytes(packed))
    assert len(found) > 1000
    assert [record.raw for record in found[:-1]] == lines.split(b"\n")[: len(found) - 1]
    assert str(found[-1].problem).startswith("the file cannot be read further: C")


def test_a_damaged_compressed_array_gives_its_whole_elements(path: Path) -> None:
    elements = [json.dumps({"number": number**5}).encode() for number in range(20000)]
    packed = gzip.compress(b"[" + b",".join(elements) + b"]")
    found = records(path, packed[: len(packed) // 2])
    assert len(found) > 1000
    assert [record.raw for record in found[:-1]] == elements[: len(found) - 1]
    assert str(found[-1].problem).startswith("the file cannot be read further: Compressed file ended")


def test_a_line_that_is_too_long_is_a_problem_and_the_next_line_is_read(path: Path) -> None:
    found = records(path, b'{"a":1}\n' + b"x" * 5000 + b'\n{"a":2}\n', max_record_bytes=1000)
    assert [(record.line, record.problem) for record in found] == [
        (1, None),
        (2, "the line is longer than 1000 bytes"),
        (3, None),
    ]


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.jsonl: cannot be read: No such file"):
        list(read_records(LogFile(tmp_path / "gone.jsonl", "gone.jsonl", "gone.jsonl")))


def test_lines_are_read_in_bounded_memory(path: Path) -> None:
    line = b'{"messages": "' + b"x" * 10_000 + b'"}\n'
    path.write_bytes(line * 3000)
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_records(LogFile(path, path.name, path.name)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 3000
    assert peak < 2_000_000, "30 MB of lines took more than 2 MB of memory"


def test_a_record_of_a_document_that_is_too_long_is_a_problem(path: Path) -> None:
    long = '{\n"a": "' + "x" * 5000 + '"}'
    problem = "the record is longer than 1000 bytes"
    for content, expected in (
        (long, [(4096, problem)]),
        (f'[{{"a": 1}},\n{long},\n{{"b": 2}}]', [(8, None), (4096, problem), (8, None)]),
    ):
        found = records(path, content, max_record_bytes=1000)
        assert [(len(record.raw), record.problem) for record in found] == expected
