"""The runner: what is done again and what is not, after changes, failures and kill -9."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import offline_arl
from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.store import open_store
from offline_arl.workflows.config import Pipeline, parse_pipeline
from offline_arl.workflows.records import RECORD_NAME
from offline_arl.workflows.run import RunResult, run_pipeline

EPISODES = 24


def two_chains(*, seed: int = 0, first: int = EPISODES, second: int = EPISODES) -> Pipeline:
    """Two independent chains of generated logs and their store, on the real support desk."""
    stages = {
        "logs": {"kind": "generate_logs", "trajectories": first},
        "store": {"kind": "ingest", "logs": "logs"},
        "more_logs": {"kind": "generate_logs", "trajectories": second},
        "more": {"kind": "ingest", "logs": "more_logs"},
    }
    return parse_pipeline({"name": "two_chains", "seed": seed, "stages": stages}, "test")


def from_file(source: Path) -> Pipeline:
    raw = {"name": "from_file", "source": str(source), "stages": {"store": {"kind": "ingest"}}}
    return parse_pipeline(raw, "test")


def stamps(output: Path) -> dict[str, int]:
    """When each stage's record was written; a stage that is not done again keeps its stamp."""
    return {path.parent.name: path.stat().st_mtime_ns for path in (output / "stages").glob(f"*/{RECORD_NAME}")}


def chat_line(text: str, *, success: bool = True) -> str:
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "Done."}]
    return json.dumps({"messages": messages, "task_id": text, "success": success}) + "\n"


def test_results_have_the_promised_form_and_say_what_the_store_holds(tmp_path: Path) -> None:
    result = run_pipeline(two_chains(seed=3), tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results == result.results
    assert set(results) == {"pipeline", "seed", "metrics", "seconds", "versions", "backend"}
    assert (results["pipeline"], results["seed"], results["backend"]) == ("two_chains", 3, None)
    assert list(results["seconds"]) == ["logs", "store", "more_logs", "more"]
    assert results["versions"]["offline_arl"] == offline_arl.__version__
    # Both stores report; of metrics with one name the later stage's counts.
    store = open_store(tmp_path / "run" / "stages" / "more" / "store").trajectories.collect()
    successes = int(store["success"].sum())
    assert results["metrics"]["trajectories"] == dict.fromkeys(("estimate", "low", "high", "n"), EPISODES)
    assert results["metrics"]["successes"]["estimate"] == successes
    behavior = results["metrics"]["success/behavior"]
    assert (behavior["estimate"], behavior["n"]) == (successes / EPISODES, EPISODES)
    assert 0 <= behavior["low"] < behavior["estimate"] < behavior["high"] <= 1
    summary = (tmp_path / "run" / "summary.md").read_text()
    assert f"| behavior | {behavior['estimate']:.3f} [" in summary
    assert f"| trajectories | {EPISODES} |" in summary


def test_a_second_run_does_nothing_again(tmp_path: Path) -> None:
    first = run_pipeline(two_chains(), tmp_path / "run")
    before = stamps(tmp_path / "run")
    second = run_pipeline(two_chains(), tmp_path / "run")
    assert first.executed == ("logs", "store", "more_logs", "more")
    assert second.executed == ()
    assert stamps(tmp_path / "run") == before
    assert second.results == first.results


@pytest.mark.parametrize(
    ("changed", "executed"),
    [
        (two_chains(second=EPISODES + 1), ("more_logs", "more")),
        (two_chains(first=EPISODES + 1), ("logs", "store")),
        (two_chains(seed=1), ("logs", "store", "more_logs", "more")),
    ],
)
def test_a_change_is_done_again_with_all_that_follows_from_it_and_nothing_else(
    tmp_path: Path, changed: Pipeline, executed: tuple[str, ...]
) -> None:
    run_pipeline(two_chains(), tmp_path / "run")
    assert run_pipeline(changed, tmp_path / "run").executed == executed


def test_a_change_of_the_source_file_is_noticed_and_a_touch_is_not(tmp_path: Path) -> None:
    source = tmp_path / "logs.jsonl"
    source.write_text(chat_line("one"))
    assert run_pipeline(from_file(source), tmp_path / "run").executed == ("store",)
    os.utime(source, (0, 0))
    assert run_pipeline(from_file(source), tmp_path / "run").executed == ()
    source.write_text(chat_line("one") + chat_line("two", success=False))
    result = run_pipeline(from_file(source), tmp_path / "run")
    assert result.executed == ("store",)
    assert result.results["metrics"]["trajectories"]["estimate"] == 2
    assert result.results["metrics"]["success/behavior"]["estimate"] == 0.5


def test_fresh_does_everything_again(tmp_path: Path) -> None:
    run_pipeline(two_chains(), tmp_path / "run")
    assert run_pipeline(two_chains(), tmp_path / "run", fresh=True).executed == ("logs", "store", "more_logs", "more")


def test_equal_seeds_give_equal_logs_and_different_stages_different_ones(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run_pipeline(two_chains(seed=5), tmp_path / name)
    texts = [(tmp_path / name / "stages" / "logs" / "logs.jsonl").read_bytes() for name in ("a", "b")]
    assert texts[0] == texts[1]
    assert (tmp_path / "a" / "stages" / "more_logs" / "logs.jsonl").read_bytes() != texts[0]


KILLED = """
import os, signal, sys
from offline_arl.workflows.run import run_pipeline
sys.path.insert(0, os.path.dirname(sys.argv[1]))
from test_pipeline_run import two_chains

stage = None
def observe(name, state, seconds):
    global stage
    stage = name
def progress(description, completed, total):
    if stage == "more_logs" and completed == 7:
        os.kill(os.getpid(), signal.SIGKILL)
run_pipeline(two_chains(), sys.argv[2], progress=progress, observe=observe)
"""


def test_kill_9_in_the_middle_of_a_stage_costs_that_stage_alone(tmp_path: Path) -> None:
    output = tmp_path / "run"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, __file__, str(output)], capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (output / "results.json").exists()
    assert (output / "stages" / "more_logs").is_dir()
    assert set(stamps(output)) == {"logs", "store"}
    leftover = output / "stages" / "more_logs" / "leftover"
    leftover.write_text("half a result")
    resumed = run_pipeline(two_chains(), output)
    assert resumed.executed == ("more_logs", "more")
    assert not leftover.exists()
    clean = run_pipeline(two_chains(), tmp_path / "clean")
    assert resumed.results["metrics"] == clean.results["metrics"]


def test_a_judgement_in_the_logs_can_be_the_outcome(tmp_path: Path) -> None:
    source = tmp_path / "logs.jsonl"
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi, kim@example.com"}]
    thumbs: list[float | None] = [1, 0, 1, None]
    records = [
        {"messages": messages, "task_id": str(number)}
        | ({} if value is None else {"scores": [{"name": "thumbs", "value": value, "direction": "higher_is_better"}]})
        for number, value in enumerate(thumbs)
    ]
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    stage = {"kind": "ingest", "outcome": "thumbs", "outcome_threshold": 0.5, "redact": True}
    raw = {"name": "judged", "source": str(source), "stages": {"store": stage}}
    metrics = run_pipeline(parse_pipeline(raw, "test"), tmp_path / "run").results["metrics"]
    assert metrics["successes"]["estimate"] == 2
    assert metrics["success/behavior"]["estimate"] == pytest.approx(2 / 3)  # without a judgement: not a failure
    store = offline_arl.open_store(tmp_path / "run/stages/store/store")
    assert all("kim@example.com" not in trajectory.messages[1].text for trajectory in store.iter_trajectories())
    raw["stages"] = {"store": {**stage, "outcome": "stars"}}
    with pytest.raises(UsageError, match="no judgement 'stars' with a number; there are: thumbs"):
        run_pipeline(parse_pipeline(raw, "test"), tmp_path / "other")


def test_a_stage_that_fails_leaves_no_folder_and_no_results_and_the_rest_is_kept(tmp_path: Path) -> None:
    source = tmp_path / "logs.jsonl"
    source.write_text(chat_line("one"))
    stages = {
        "logs": {"kind": "generate_logs", "trajectories": 4},
        "good": {"kind": "ingest", "logs": "logs"},
        "mine": {"kind": "ingest", "source": str(source)},
    }
    pipeline = parse_pipeline({"name": "mixed", "stages": stages}, "test")
    output = tmp_path / "run"
    run_pipeline(pipeline, output)
    source.write_text("this is no JSON\n")
    with pytest.raises(DataError, match=r"every record was refused; the first: .*logs\.jsonl:1: "):
        run_pipeline(pipeline, output)
    assert not (output / "stages" / "mine").exists()
    assert not (output / "results.json").exists()
    assert set(stamps(output)) == {"logs", "good"}
    source.write_text(chat_line("two"))
    assert run_pipeline(pipeline, output).executed == ("mine",)


def test_a_full_disk_is_one_line_that_names_the_stage_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead of the process
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, limit[1]))
    try:
        with pytest.raises(DataError, match=r"^stages\.logs: .*check the free space"):
            run_pipeline(two_chains(), tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list((tmp_path / "run/stages").iterdir()) == []
    assert run_pipeline(two_chains(), tmp_path / "run").executed == ("logs", "store", "more_logs", "more")


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": 1}'])
def test_a_damaged_record_means_that_the_stage_is_not_done(tmp_path: Path, damage: str) -> None:
    run_pipeline(two_chains(), tmp_path / "run")
    (tmp_path / "run" / "stages" / "more" / RECORD_NAME).write_text(damage)
    assert run_pipeline(two_chains(), tmp_path / "run").executed == ("more",)


def test_a_stage_whose_artifact_is_gone_is_done_again(tmp_path: Path) -> None:
    """A record alone must not count: the next stage would find nothing, or `show` would."""
    run_pipeline(two_chains(), tmp_path / "run")
    shutil.rmtree(tmp_path / "run/stages/more/store")
    assert run_pipeline(two_chains(), tmp_path / "run").executed == ("more",)
    assert len(open_store(tmp_path / "run/stages/more/store")) == EPISODES


@pytest.mark.parametrize(
    ("stage", "reason"),
    [
        ({"source": []}, "--set source=FILE"),
        ({"source": ""}, "--set source=FILE"),
        ({"source": [""]}, r"stages\.store\.source: a path is empty"),  # not the working directory
        ({"source": __file__, "format": "xml"}, "unknown log format 'xml'"),
    ],
)
def test_an_ingestion_that_cannot_work_is_found_before_anything_is_made(
    tmp_path: Path, stage: dict[str, Any], reason: str
) -> None:
    pipeline = parse_pipeline({"name": "x", "stages": {"store": {"kind": "ingest", **stage}}}, "test")
    with pytest.raises(UsageError, match=reason):
        run_pipeline(pipeline, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_source_is_found_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"stages\.store\.source: .*nothing\.jsonl does not exist"):
        run_pipeline(from_file(tmp_path / "nothing.jsonl"), tmp_path / "run")
    raw = {"name": "x", "stages": {"store": {"kind": "ingest"}}}
    with pytest.raises(UsageError, match="--set source=FILE"):
        run_pipeline(parse_pipeline(raw, "test"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model", ["./nowhere", "/no/such/model", "a/b/c", "some.safetensors"])
def test_a_missing_model_is_found_before_the_logs_are_read(tmp_path: Path, model: str) -> None:
    stages = {
        "logs": {"kind": "generate_logs"},
        "store": {"kind": "ingest", "logs": "logs"},
        "start": {"kind": "initial_policy", "store": "store"},
    }
    pipeline = parse_pipeline({"name": "x", "model": model, "stages": stages}, "test")
    with pytest.raises(UsageError, match=r"stages\.start\.model: no model at .*; give 'tiny'"):
        run_pipeline(pipeline, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_environment_is_found_before_anything_is_made(tmp_path: Path) -> None:
    raw = {"name": "x", "environment": "support_disk", "stages": {"logs": {"kind": "generate_logs"}}}
    with pytest.raises(UsageError, match=r"unknown environment 'support_disk'; available: .*support_desk"):
        run_pipeline(parse_pipeline(raw, "test"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_pipeline_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    source = tmp_path / "logs.jsonl"
    source.write_text(chat_line("one"))
    output = tmp_path / "run"
    run_pipeline(from_file(source), output)
    before = stamps(output)
    with pytest.raises(UsageError, match="holds results of the pipeline 'from_file', not 'two_chains'"):
        run_pipeline(two_chains(), output)
    assert stamps(output) == before
    assert (output / "results.json").exists()


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """A finished `online` output has no pipeline.json."""
    source, output = tmp_path / "logs.jsonl", tmp_path / "run"
    source.write_text(chat_line("one"))
    (output / "policy").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"run is not empty and holds no pipeline\.json, .*; choose another folder"):
        run_pipeline(from_file(source), output)
    assert [path.name for path in output.iterdir()] == ["policy"]
    (output / "policy").rename(output / ".lock")  # what a run leaves that was killed at its very beginning
    (output / ".lock").rmdir()
    run_pipeline(from_file(source), output)


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    output = tmp_path / "run"
    errors = []

    def intrude(name: str, state: str, seconds: float, /) -> None:
        if name == "store" and state == "start":
            with pytest.raises(UsageError, match="in use by another run") as caught:
                run_pipeline(two_chains(), output)
            errors.append(caught.value)

    result = run_pipeline(two_chains(), output, observe=intrude)
    assert len(errors) == 1
    assert result.executed == ("logs", "store", "more_logs", "more")


def test_the_observer_hears_of_every_stage_in_order(tmp_path: Path) -> None:
    def events(run: Any) -> list[tuple[str, str]]:
        heard: list[tuple[str, str]] = []
        result: RunResult = run(lambda name, state, seconds: heard.append((name, state)))
        assert result.output == tmp_path / "run"
        return heard

    def run(observe: Any) -> RunResult:
        return run_pipeline(two_chains(), tmp_path / "run", observe=observe)

    names = ("logs", "store", "more_logs", "more")
    assert events(run) == [(name, state) for name in names for state in ("start", "done")]
    assert events(run) == [(name, "skip") for name in names]
