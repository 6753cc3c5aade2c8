"""Ingestion end to end: counts that add up, bad input told by file and line, nothing twice, nothing lost."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.store import Store, open_store
from offline_arl.workflows.ingest import IngestReport, ingest


def chat(number: int, **fields: Any) -> str:
    messages = [{"role": "user", "content": f"Question {number}"}, {"role": "assistant", "content": "Answer"}]
    return json.dumps({"messages": messages, "task_id": f"task-{number}", **fields})


def write_log(path: Path, count: int = 5, first: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(chat(number) + "\n" for number in range(first, first + count)))
    return path


def counts(report: IngestReport) -> dict[str, Any]:
    assert report.records == report.records_used + report.quarantined + report.duplicates + report.set_apart
    assert sum(report.by_format.values()) == report.records
    values = report.to_json()
    return {key: value for key, value in values.items() if value and key not in ("seconds", "megabytes")}


def test_a_log_becomes_a_store(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl")
    report = ingest(log, tmp_path / "store")
    assert counts(report) == {
        "records": 5,
        "records_used": 5,
        "trajectories": 5,
        "by_format": {"openai_chat": 5},
    }
    assert report.megabytes == log.stat().st_size / 1e6
    table = Store(tmp_path / "store").trajectories.collect()
    assert table["task_id"].to_list() == [f"task-{number}" for number in range(5)]
    assert table["source_file"].unique().to_list() == [str(log)]
    assert table["source_record"].to_list() == [0, 1, 2, 3, 4]


def test_the_report_is_the_promised_object(tmp_path: Path) -> None:
    report = ingest(write_log(tmp_path / "log.jsonl"), tmp_path / "store")
    assert list(report.to_json()) == [
        "records",
        "trajectories",
        "quarantined",
        "duplicates",
        "set_apart",
        "by_format",
        "seconds",
        "megabytes",
        "records_used",
        "feedback",
        "findings",
        "set_apart_reasons",
    ]
    assert msgspec.json.decode(msgspec.json.encode(report.to_json())) == report.to_json()


def test_a_second_run_finds_everything_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "logs/log.jsonl")
    ingest(tmp_path / "logs", tmp_path / "store")
    monkeypatch.chdir(tmp_path / "logs")
    # The same file, named in three other ways.
    for source in ("log.jsonl", "../logs/log.jsonl", "."):
        report = ingest(source, tmp_path / "store")
        assert counts(report) == {"records": 5, "duplicates": 5, "by_format": {"openai_chat": 5}}
        assert not report.all_refused
    assert len(Store(tmp_path / "store").manifest.parts) == 1


def test_a_log_that_grew_adds_what_is_new(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", 3)
    ingest(log, tmp_path / "store")
    write_log(log, 5)
    report = ingest(log, tmp_path / "store")
    assert (report.duplicates, report.records_used) == (3, 2)
    store = Store(tmp_path / "store")
    assert [trajectory.task_id for trajectory in store.iter_trajectories()] == [f"task-{n}" for n in range(5)]


def test_identical_attempts_stay_and_are_marked(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(f"{chat(1)}\n{chat(1)}\n")
    report = ingest(log, tmp_path / "store")
    assert (report.records_used, report.duplicates) == (2, 0)
    first, second = Store(tmp_path / "store").trajectories.select("trajectory_id", "duplicate_of").collect().rows()
    assert second[1] == first[0] != second[0]


def test_files_of_one_name_in_two_folders_stay_apart(tmp_path: Path) -> None:
    one, other = write_log(tmp_path / "one/log.jsonl", 1), write_log(tmp_path / "other/log.jsonl", 1)
    report = ingest([one, other, one], tmp_path / "store")
    assert (report.records, report.trajectories) == (2, 2)
    table = Store(tmp_path / "store").trajectories.collect()
    assert table["trajectory_id"].n_unique() == 2
    assert table["duplicate_of"].to_list() == [None, table["trajectory_id"][0]]
    assert ingest([other, one], tmp_path / "store").duplicates == 2


def test_ids_do_not_depend_on_where_the_log_lies(tmp_path: Path) -> None:
    def ids(folder: str) -> list[str]:
        write_log(tmp_path / folder / "log.jsonl")
        ingest(tmp_path / folder / "log.jsonl", tmp_path / folder / "store")
        return Store(tmp_path / folder / "store").trajectories.collect()["trajectory_id"].to_list()

    assert ids("here") == ids("somewhere/else")


def test_folders_are_walked_and_other_files_counted(tmp_path: Path) -> None:
    write_log(tmp_path / "logs/b/log.jsonl", 2)
    (tmp_path / "logs/a.json").write_text(f"[{chat(10)}, {chat(11)}]")
    (tmp_path / "logs/c.ndjson.gz").write_bytes(gzip.compress(chat(12).encode()))
    (tmp_path / "logs/README.md").write_text("not a log")
    (tmp_path / "logs/.hidden.jsonl").write_text(chat(13))
    report = ingest(tmp_path / "logs", tmp_path / "store")
    assert counts(report) == {
        "records": 6,
        "records_used": 5,
        "trajectories": 5,
        "set_apart": 1,
        "set_apart_reasons": {"the file is not a log": 1},
        "by_format": {"openai_chat": 5, "unknown": 1},
    }
    tasks = Store(tmp_path / "store").trajectories.collect()["task_id"].to_list()
    assert tasks == ["task-10", "task-11", "task-12", "task-0", "task-1"]  # files before folders


def test_links_to_files_are_followed_and_links_to_folders_are_counted(tmp_path: Path) -> None:
    """A link to a folder may lead in a circle or out of the logs; passing over it without a word would lose logs."""
    write_log(tmp_path / "elsewhere/a.jsonl", 1)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/b.jsonl").symlink_to("../elsewhere/a.jsonl")
    (tmp_path / "logs/c.jsonl").symlink_to("../elsewhere/a.jsonl")
    (tmp_path / "logs/circle").symlink_to(".")
    (tmp_path / "logs/other").symlink_to("../elsewhere")
    for expected in ((1, 0, 2), (0, 1, 2)):
        report = ingest(tmp_path / "logs", tmp_path / "store")
        assert (report.records_used, report.duplicates, report.set_apart) == expected
        assert report.records == 3
    apart = Store(tmp_path / "store").set_apart.collect()
    assert apart["file"].sort().to_list() == [str(tmp_path / "logs/circle"), str(tmp_path / "logs/other")]
    assert apart["reason"].unique().to_list() == [
        "a link to a folder, which is not followed; name the folder as a source"
    ]


def test_a_store_among_the_logs_is_not_a_log(tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl").write_text(chat(0) + "\nbroken\n")
    for expected in ({"records_used": 1, "trajectories": 1}, {"duplicates": 1}):
        report = ingest(tmp_path, tmp_path / "store")
        assert counts(report) == {"records": 2, "quarantined": 1, "by_format": {"openai_chat": 2}, **expected}


BAD_LINES = [
    ('{"messages": [{"role": "user"', "invalid JSON: Input data was truncated"),
    ("not json", "invalid JSON: JSON is malformed: invalid character"),
    ("[1, 2]", "expected an object with messages, got a list"),
    ('"text"', "expected an object with messages, got a string"),
    ("{}", "no key messages; the record has: nothing"),
    ('{"messages": []}', "messages: there are none"),
    ('{"messages": [{"role": "robot"}]}', "messages[0].role: expected one of"),
    ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "invalid JSON"),
    ("[" * 100_000, "nested too deeply"),
    ('{"messages": [{"role": "user", "content": "x"}], "terminated": true, "truncated": true}', "both terminated and"),
]


def test_bad_lines_go_to_quarantine_and_good_lines_to_the_store(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f"{line}\n{chat(number)}\n" for number, (line, _) in enumerate(BAD_LINES)))
    report = ingest(log, tmp_path / "store")
    assert (report.records_used, report.quarantined) == (len(BAD_LINES), len(BAD_LINES))
    assert not report.all_refused
    store = Store(tmp_path / "store")
    assert len(store) == len(BAD_LINES)
    refused = store.quarantined.collect().to_dicts()
    for number, ((line, reason), row) in enumerate(zip(BAD_LINES, refused, strict=True)):
        assert row["line"] == 2 * number + 1
        assert row["raw"] == line
        assert reason in row["reason"]
        assert report.reasons[number].startswith(f"{log}:{2 * number + 1}: ")
        assert "\n" not in report.reasons[number]
    again = ingest(log, store)
    assert (again.duplicates, again.quarantined) == (len(BAD_LINES), len(BAD_LINES))
    assert store.quarantined.collect().height == len(BAD_LINES), "a refused record is kept once"


def test_bytes_that_are_not_utf8_are_refused_and_kept(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(chat(0).encode() + b"\n" + chat(1).encode().replace(b"Answer", b"An\xffswer") + b"\n")
    report = ingest(log, tmp_path / "store")
    assert report.records_used == report.quarantined == 1
    (row,) = Store(tmp_path / "store").quarantined.collect().to_dicts()
    assert row["reason"].startswith("not UTF-8: byte 0xff at byte ")
    assert row["raw"] is None
    assert row["raw_base64"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "log.jsonl[0]: the file is empty"),
        (b"\n\n", "log.jsonl[0]: the file is empty"),
        (b"[]", "log.jsonl[0]: the list is empty"),
        (b"hello\n", "log.jsonl:1: invalid JSON"),
        (b'{"prompt": 1}\n', "log.jsonl:1: not of a known log format"),
        (b'[{"prompt": 1}]', "log.jsonl[0]: not of a known log format"),
        (b"\x00\x01\x02", "log.jsonl:1: invalid JSON"),
        (gzip.compress(b"x" * 100)[:-4], "log.jsonl:1: the file cannot be read further"),
    ],
)
def test_a_file_with_nothing_usable_is_all_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(content)
    report = ingest(log, tmp_path / "store")
    assert report.all_refused
    assert (report.records, report.quarantined) == (1, 1)
    assert report.by_format == {"unknown": 1}
    assert reason in report.reasons[0]


def test_one_empty_file_among_others_stops_nothing(tmp_path: Path) -> None:
    write_log(tmp_path / "logs/a.jsonl")
    (tmp_path / "logs/b.jsonl").touch()
    report = ingest(tmp_path / "logs", tmp_path / "store")
    assert (report.records_used, report.quarantined, report.all_refused) == (5, 1, False)


def test_the_format_is_found_after_many_broken_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("broken\n" * 50 + chat(0) + "\n")
    report = ingest(log, tmp_path / "store")
    assert (report.quarantined, report.records_used) == (50, 1)


def test_a_named_format_is_used_as_it_is(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl")
    assert ingest(log, tmp_path / "store", format="openai_chat").records_used == 5
    wrong = ingest(log, tmp_path / "other", format="tau_bench")
    assert wrong.all_refused
    assert "expected an object with traj" in wrong.reasons[0]


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        ({"sources": "gone.jsonl"}, DataError, "gone.jsonl: no such file or folder"),
        ({"sources": ["log.jsonl", "gone.jsonl"]}, DataError, "gone.jsonl: no such file or folder"),
        ({"sources": "empty"}, DataError, "empty: the folder holds no files"),
        ({"sources": []}, UsageError, "no sources"),
        ({"sources": "log.jsonl", "format": "xml"}, UsageError, "unknown log format 'xml'"),
        ({"sources": "log.jsonl", "workers": 0}, UsageError, "workers: must be at least 1"),
    ],
)
def test_wrong_arguments_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], error: type[Exception], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=reason):
        ingest(store="store", **arguments)
    assert not (tmp_path / "store").exists()


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.jsonl")
    with pytest.raises(DataError, match=r"log.jsonl: is a pipe or a device; write it to a file"):
        ingest(tmp_path / "log.jsonl", tmp_path / "store")
    with pytest.raises(DataError, match="the folder holds no files"):
        ingest(tmp_path, tmp_path / "store")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("place", ["logs", "logs/deeper", "logs/deeper/b.jsonl"])
def test_what_may_not_be_read_is_told_before_a_store_is_made(tmp_path: Path, place: str) -> None:
    write_log(tmp_path / "logs/a.jsonl")
    write_log(tmp_path / "logs/deeper/b.jsonl")
    (tmp_path / place).chmod(0)
    try:
        with pytest.raises(DataError, match=rf"{place}: cannot be read \(Permission denied\)"):
            ingest(tmp_path / "logs", tmp_path / "store")
    finally:
        (tmp_path / place).chmod(0o755)
    assert not (tmp_path / "store").exists()


def test_a_link_that_leads_to_itself_is_told(tmp_path: Path) -> None:
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    with pytest.raises(DataError, match=r"loop.jsonl: cannot be read \(Too many levels of symbolic links\)"):
        ingest(tmp_path / "loop.jsonl", tmp_path / "store")


def test_a_file_name_that_is_not_utf8_is_shown_escaped(tmp_path: Path) -> None:
    log = Path(os.fsdecode(os.fsencode(tmp_path) + b"/log\xff.jsonl"))
    write_log(log)
    with log.open("a") as stream:
        stream.write("{")
    report = ingest(log, tmp_path / "store")
    assert report.quarantined == 1
    assert r"log\xff.jsonl:" in report.reasons[0]
    (file,) = open_store(tmp_path / "store").trajectories.collect()["source_file"].unique()
    assert file.endswith(r"log\xff.jsonl")


def test_several_processes_give_the_same_store(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", 5000)
    with log.open("a") as stream:
        stream.write("broken\n" + chat(3) + "\n")
    single = ingest(log, tmp_path / "single")
    double = ingest(log, tmp_path / "double", workers=2)
    assert counts(single) == counts(double)
    one, two = Store(tmp_path / "single"), Store(tmp_path / "double")
    assert [entry.sha256 for entry in one.manifest.files()] == [entry.sha256 for entry in two.manifest.files()]
    assert two.trajectories.collect()["duplicate_of"].null_count() == 5000


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []
    log = write_log(tmp_path / "log.jsonl", 5000)
    ingest(log, tmp_path / "store", progress=lambda done, total: seen.append((done, total)))
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1] == (log.stat().st_size / 1e6, log.stat().st_size / 1e6)


def test_ingestion_imports_no_training_packages(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl")
    script = """
        import sys
        import offline_arl
        assert "polars" not in sys.modules, "import offline_arl must stay light"
        from offline_arl.workflows.ingest import ingest
        report = ingest(sys.argv[1], sys.argv[2])
        offline_arl.open_store(sys.argv[2]).trajectories.collect()
        heavy = {"torch", "transformers", "trl", "vllm", "datasets", "ray"} & set(sys.modules)
        print(report.trajectories, sorted(heavy))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(log), str(tmp_path / "store")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ})
    assert result.stdout == "5 []\n", result.stderr
