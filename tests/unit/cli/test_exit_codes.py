"""The command line in processes of its own: exit codes, one-line errors, and what stands on stdout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toys.commands import Answer, Command

from offline_arl.cli.entry import run

ROOT = Path(__file__).parents[3]
PIPELINE = """\
name: small
stages:
  logs: {kind: generate_logs, trajectories: 6}
  store: {kind: ingest, logs: logs}
"""


def offline_arl(*arguments: str | Path) -> Answer:
    """Run a command in a process of its own."""
    command = [sys.executable, "-m", "offline_arl.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
    return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process, which is faster."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.chdir(ROOT)

    def run_here(*arguments: str | Path) -> Answer:
        code = run([str(argument) for argument in arguments])
        return Answer(code, *capfd.readouterr())

    return run_here


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipelines") / "small.yaml"
    path.write_text(PIPELINE)
    return path


@pytest.fixture(scope="module")
def finished(pipeline: Path) -> tuple[Path, Answer]:
    output = pipeline.parent / "run"
    return output, offline_arl("run", pipeline, "--output", output, "--json")


def test_run_prints_what_it_wrote_and_reports_stages_on_stderr(
    finished: tuple[Path, Answer],
) -> None:
    output, done = finished
    assert done.code == 0, done.stderr
    assert done.json == json.loads((output / "results.json").read_text())
    assert "[1/2] logs done in" in done.stderr


def test_a_second_run_says_that_all_is_done(pipeline: Path, finished: tuple[Path, Answer]) -> None:
    done = offline_arl("run", pipeline, "--output", finished[0])
    assert done.code == 0
    assert "[2/2] store already done" in done.stderr
    assert "behavior" in done.stdout
    assert "trajectories: 6" in done.stdout


def test_show_tells_the_same_as_the_store(here: Command, finished: tuple[Path, Answer]) -> None:
    store = finished[0] / "stages" / "store" / "store"
    view = here("show", store, "--json").json
    assert (view["trajectories"], len(view["first"])) == (6, 6)
    assert sum(row["trajectories"] for row in view["by_task_type"]) == 6
    first = view["first"][0]["trajectory_id"]
    trajectory = here("show", store, "--trajectory", first[:10], "--json").json
    assert trajectory["trajectory_id"] == first
    assert len(trajectory["step_messages"]) == view["first"][0]["n_steps"]
    steps = here("show", store, "--trajectory", first, "--steps", "--json").json["steps"]
    assert [row["message_index"] for row in steps] == trajectory["step_messages"]
    drawn = here("show", store, "--trajectory", first).stdout
    assert trajectory["messages"][1]["content"][0]["text"] in drawn


def test_an_id_that_fits_no_trajectory_or_all_is_an_error(
    here: Command,
    finished: tuple[Path, Answer],
) -> None:
    store = finished[0] / "stages" / "store" / "store"
    for identifier, words in (("zzz", "no trajectory begins with 'zzz'"), ("", "more than one trajectory begins")):
        done = here("show", store, "--trajectory", identifier)
        assert done.code == 1
        assert words in done.stderr


def test_ingest_counts_every_record_and_again_finds_all_there(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
    logs = tmp_path / "logs.jsonl"
    logs.write_text(json.dumps({"messages": messages, "success": True}) + "\nnot JSON\n")
    first = offline_arl("ingest", logs, "--store", tmp_path / "store", "--json")
    assert first.code == 0, first.stderr
    counts = first.json
    assert {"records", "trajectories", "quarantined", "duplicates", "set_apart", "by_format", "seconds", "megabytes",
            "records_used"} <= set(counts)  # fmt: skip
    assert (counts["records"], counts["records_used"], counts["quarantined"]) == (2, 1, 1)
    logs.write_text(json.dumps({"messages": messages, "success": True}) + "\n")
    again = offline_arl("ingest", logs, "--store", tmp_path / "store", "--json")
    assert again.code == 0
    assert (again.json["duplicates"], again.json["trajectories"]) == (1, 0)


COUNTS = ("records", "trajectories", "quarantined", "duplicates", "set_apart", "records_used")


@pytest.mark.parametrize("content", ["", "not JSON\n", '{"messages": [{"role": "user"', None])
def test_ingest_of_nothing_usable_exits_with_1_and_still_prints_its_counts(
    here: Command, tmp_path: Path, content: str | None
) -> None:
    logs = tmp_path / "logs.jsonl"
    if content is not None:
        logs.write_text(content)
    done = here("ingest", logs, "--store", tmp_path / "store", "--json")
    assert done.code == 1
    result = done.json
    assert "logs.jsonl" in result["error"]
    assert (
        result["records"] == result["records_used"] + result["quarantined"] + result["duplicates"] + result["set_apart"]
    )
    assert set(COUNTS) <= set(result)
    assert done.stderr.splitlines()[-1] == f"error: {result['error']}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nowhere.yaml", "--output", "{out}"], ["nowhere.yaml", "cannot read"]),
        (
            ["run", "pipelines/quickstart.yaml", "--output", "{out}", "--set", "sed=1"],
            ["quickstart.yaml", "'sed'", "seed"],
        ),
        (
            ["run", "pipelines/quickstart.yaml", "--output", "{out}", "--set", "model=./no"],
            ["stages.start.model", "./no"],
        ),
        (["run", "pipelines/tau_bench_airline.yaml", "--output", "{out}"], ["--set source=FILE"]),
        (["run", "--output", "{out}"], ["PIPELINE.yaml"]),
        (["run", "pipelines/quickstart.yaml"], ["--output"]),
        (
            ["ingest", "README.md", "--store", "{out}", "--format", "opnai"],
            ["unknown log format 'opnai'", "openai_chat"],
        ),
        (["ingest", "README.md"], ["--store"]),
        (["build", "bcc", "--store", "x", "--output", "{out}"], ["bcc", "return-conditioned"]),
        (["build", "bc", "--store", "{out}", "--output", "{out}"], ["--store", "does not exist"]),
        (["build", "transitions", "--store", "x", "--output", "{out}", "--only-successes"], ["--only-successes"]),
        (["train", "iql", "--dataset", "x", "--policy", "y", "--output", "{out}"], ["--values", "iql_values"]),
        (
            ["train", "iql_values", "--dataset", "x", "--policy", "y", "--rehearsal", "z", "--output", "{out}"],
            ["reads no rehearsal", "--rehearsal"],
        ),
        (
            ["train", "bc", "--dataset", "{out}", "--policy", "{out}", "--output", "{out}"],
            ["--dataset", "does not exist"],
        ),
        (["evaluate", "--policy", "a=x", "--policy", "a=y", "--output", "{out}"], ["--policy a=y", "stands twice"]),
        (["ingest", "", "--store", "{out}"], ["SOURCE", "is empty"]),
        (["ingest", "README.md", "--store", ""], ["--store", "is empty"]),
        (["ingest", "README.md", "--store", "README.md/store"], ["README.md/store", "Not a directory"]),
        (["show", "x", "--limit", "99999999999999999999"], ["--limit"]),
        (["evaluate", "--policy", "bc", "--output", "{out}"], ["NAME=DIR"]),
        (["evaluate", "--policy", "bc={out}", "--output", "{out}"], ["--policy bc", "does not exist"]),
        (["online", "--policy", "{out}", "--output", "{out}", "--set", "step=1"], ["'step'", "steps"]),
        (["nonsense"], ["nonsense"]),
        (["show", "x", "--colour"], ["--colour"]),
    ],
)
def test_wrong_use_exits_with_2_names_what_is_wrong_and_leaves_nothing(
    here: Command, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    out = tmp_path / "out"
    filled = [argument.format(out=out) for argument in arguments]
    done = here(*filled, "--json")
    assert done.code == 2, done.stderr
    error = done.json["error"]
    assert all(word in error for word in words), error
    assert done.stderr == f"error: {error}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_not_there_is_bad_data(tmp_path: Path) -> None:
    done = offline_arl("show", tmp_path)
    assert done.code == 1
    assert done.stderr.startswith("error: ")
    assert str(tmp_path) in done.stderr
    assert done.stdout == ""


def test_steps_are_found_by_the_beginning_of_an_id(here: Command, finished: tuple[Path, Answer]) -> None:
    store = finished[0] / "stages" / "store" / "store"
    first = here("show", store, "--json").json["first"][0]
    steps = here("show", store, "--steps", "--trajectory", first["trajectory_id"][:10], "--json").json["steps"]
    assert [row["trajectory_id"] for row in steps] == [first["trajectory_id"]] * first["n_steps"]
    wrong = here("show", store, "--steps", "--trajectory", "zzz", "--json")
    assert (wrong.code, "no trajectory begins with 'zzz'" in wrong.json["error"]) == (1, True)


def test_what_the_system_refuses_is_one_line(here: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    policy, output = tmp_path / "config.json", tmp_path / ("a" * 300)
    done = here("evaluate", "--policy", f"bc={policy.parent}", "--output", output, "--json")
    assert "File name too long" in done.json["error"]
    assert done.stderr.count("\n") == 1
    (tmp_path / "run/pipeline.json").mkdir(parents=True)
    done = here("run", "pipelines/quickstart.yaml", "--output", tmp_path / "run", "--json")
    assert done.code == 2
    assert "pipeline.json: cannot be read (Is a directory)" in done.json["error"]
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_name_that_the_terminal_cannot_show_is_escaped(tmp_path: Path, encoding: str) -> None:
    log = os.fsencode(tmp_path) + "/é".encode() + b"\xff.jsonl"
    Path(os.fsdecode(log)).write_text("{")
    command = [sys.executable, "-m", "offline_arl.cli", "ingest", log, "--store", str(tmp_path / "store"), "--json"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, check=False, cwd=ROOT, env=environment, timeout=120)
    assert done.returncode == 1
    assert "é\\xff.jsonl:" in json.loads(done.stdout)["error"]
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("sent", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_an_interrupt_is_told_and_the_run_can_go_on(tmp_path: Path, sent: signal.Signals, code: int, word: str) -> None:
    path = tmp_path / "long.yaml"
    path.write_text(PIPELINE.replace("trajectories: 6", "trajectories: 200000"))
    command = [sys.executable, "-m", "offline_arl.cli", "run", str(path), "--output", str(tmp_path / "run"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("[1/2] logs")
        time.sleep(0.3)
        process.send_signal(sent)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert json.loads(stdout) == {"error": word}
    assert stderr.splitlines() == [
        f"{tmp_path / 'run'} has what was done; the same command goes on from there",
        f"error: {word}",
    ]
    assert list((tmp_path / "run" / "stages").iterdir()) == []
    done = offline_arl("run", path, "--output", tmp_path / "run", "--set", "stages.logs.trajectories=6", "--json")
    assert done.code == 0, done.stderr


def test_doctor_names_what_it_looked_at_and_a_command_for_what_is_missing() -> None:
    done = offline_arl("doctor", "--json")
    report = done.json
    assert done.code == (0 if report["ok"] else 1)
    assert {"python", "training", "vllm", "gpu", "threads", "disk"} <= {item["subject"] for item in report["findings"]}
    assert all(item["remedy"] for item in report["findings"] if item["status"] in ("slow", "problem"))


def test_a_library_that_writes_to_stdout_does_not_reach_it(tmp_path: Path) -> None:
    code = (
        "import os, sys; from offline_arl.cli.output import Output\n"
        "with Output(as_json=True) as out:\n"
        "    print('python'); os.write(1, b'descriptor\\n'); os.system('echo child')\n"
        "    out.finish({'answer': 42}, lambda console: None)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == '{"answer": 42}\n'
    assert sorted(done.stderr.split()) == ["child", "descriptor", "python"]
