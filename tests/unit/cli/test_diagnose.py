"""`diagnose`: what stands in the terminal, in JSON and on the page, and what the exit code says."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from toys.commands import Command
from toys.training_history import history, step_record

from offline_arl.online.diagnosis import KINDS, History
from offline_arl.online.diagnosis.metrics import setup_line, step_line, validation_line, write_lines
from offline_arl.online.diagnosis.setup import Setup
from offline_arl.online.records import Validation

HOSTILE = "</td><script>alert(1)</script>\x1b[31m[red]"


def save(found: History, folder: Path) -> Path:
    lines = [] if found.setup is None else [setup_line(found.setup)]
    lines += [validation_line(validation) for validation in found.validations]
    lines += [
        step_line(record, facts, steady_tasks=True) for record, facts in zip(found.records, found.facts, strict=True)
    ]
    write_lines(folder / "metrics.jsonl", lines)
    return folder


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return save(history(12), tmp_path / "healthy")


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A run with two online stages: one whose groups fall silent, one with an environment that fails a type."""
    silent = history(20, lambda step: {"idle_groups": 1.0} if step > 4 else {})
    silent.validations = [Validation(0, 0.9, 0.7, 100)]
    save(silent, tmp_path / "run" / "stages" / "grpo")
    types = {"types": {HOSTILE: [2, 0, 0, 16], "status": [14, 112, 60, 0]}}
    save(history(6, facts=types), tmp_path / "run" / "stages" / "again")
    (tmp_path / "run" / "stages" / "bc").mkdir()
    return tmp_path / "run"


def test_a_healthy_training_is_said_to_be_so(healthy: Path, command: Command) -> None:
    answer = command("diagnose", healthy)
    assert answer.code == 0
    assert "healthy: 12 steps" in answer.stdout
    assert "nothing was found" in answer.stdout
    assert command("diagnose", healthy / "metrics.jsonl").code == 0


def test_an_interrupted_training_is_found_under_the_name_that_it_was_to_have(tmp_path: Path, command: Command) -> None:
    save(history(12), tmp_path / "grpo.training" / "checkpoints")
    assert "grpo: 12 steps" in command("diagnose", tmp_path / "grpo").stdout


@pytest.mark.parametrize(
    ("below", "asked", "name"),
    [
        ("run/stages/grpo", "run", "grpo"),
        ("run/training/grpo/checkpoints", "run", "grpo"),
        ("run/training/grpo/checkpoints", "run/training/grpo", "grpo"),
        ("out", "out", "out"),
        ("out.training/checkpoints", "out", "out"),
        ("out.training/checkpoints", "out.training/checkpoints/metrics.jsonl", "out"),
        ("a/out", ".", "a/out"),
        ("a/out.training/checkpoints", ".", "a/out"),
    ],
)
def test_a_training_has_one_name_in_every_state(
    below: str, asked: str, name: str, tmp_path: Path, command: Command
) -> None:
    save(history(12), tmp_path / below)
    assert command("diagnose", tmp_path / asked, "--json").json["trainings"][0]["name"] == name


def test_key_figures_and_the_parts_of_the_warm_start_are_told(tmp_path: Path, command: Command) -> None:
    setup = Setup(
        steps=60, critic=True, replay=False, curriculum_levels=3, refill_rounds=0, group_gate="outcome",
        on_mismatch="refuse",
    )  # fmt: skip
    found = history(6, lambda step: {"success": 0.1 * step, "explained_variance": 0.4}, setup=setup)
    found.validations = [Validation(0, 0.9, 0.7, 100), Validation(3, 0.95, 0.8, 100), Validation(6, 0.9, 0.75, 100)]
    told = " ".join(command("diagnose", save(found, tmp_path / "grpo")).stdout.split())
    assert "grpo: 6 of 60 steps, with critic, curriculum" in told
    assert "last 5 steps: success 0.400, KL 0.020, variance of returns explained by the critic 0.400" in told
    assert "0.900 and 0.700 at step 0, 0.950 and 0.800 at step 3 (best), 0.900 and 0.750 at step 6" in told
    assert "healthy: nothing was found; what needs more to be told for sure: reward_variance (10 steps)," in told
    assert "success_drop" not in told
    (training,) = command("diagnose", tmp_path / "grpo", "--json").json["trainings"]
    assert (training["healthy"], training["planned_steps"], training["with"]) == (True, 60, ["critic", "curriculum"])
    assert training["now"]["success"] == pytest.approx(0.4)  # mean of 0.2 to 0.6
    assert (training["now"]["step"], training["now"]["explained_variance"]) == (6, 0.4)
    assert {name: item["step"] for name, item in training["validation"].items()} == {"start": 0, "best": 3, "last": 6}
    assert training["undecided"]["kl_growth"] == "15 steps"


def test_of_a_training_without_a_step_nothing_can_be_told(tmp_path: Path, command: Command) -> None:
    begun = save(History(validations=[Validation(0, 0.9, 0.7, 100)]), tmp_path / "runs/begun")
    answer = command("diagnose", begun)
    assert answer.code == 1
    assert "no step is finished, so nothing can be told yet" in answer.stdout
    assert "healthy" not in answer.stdout
    answer = command("diagnose", begun, "--json")
    assert (answer.code, answer.json["healthy"], answer.json["trainings"][0]["healthy"]) == (1, None, None)
    save(history(20), tmp_path / "runs/done")
    answer = command("diagnose", tmp_path / "runs", "--json")
    assert (answer.code, answer.json["healthy"]) == (0, True)


def test_a_pipeline_is_no_run(tmp_path: Path, command: Command) -> None:
    (tmp_path / "p.yaml").write_text("name: p\n")
    answer = command("diagnose", tmp_path / "p.yaml")
    assert answer.code == 2
    assert "is a pipeline; name the folder that its run was written to" in answer.stderr


def test_findings_have_evidence_threshold_and_remedy_and_exit_with_1(pipeline: Path, command: Command) -> None:
    answer = command("diagnose", pipeline)
    assert answer.code == 1
    told = " ".join(answer.stdout.split())
    for words in ("grpo: 20 steps", "again: 6 steps", "reward_variance", "fatal", "threshold", "remedy"):
        assert words in told
    assert "\x1b" not in answer.stdout
    assert answer.stderr == ""


def test_json_holds_every_finding_of_every_training(pipeline: Path, command: Command) -> None:
    answer = command("diagnose", pipeline, "--json")
    assert answer.code == 1
    found = json.loads(answer.stdout)
    assert found["healthy"] is False
    again, grpo = found["trainings"]
    assert (again["name"], grpo["name"], grpo["steps"]) == ("again", "grpo", 20)
    assert [(item["symptom"], item["severity"], item["step"]) for item in grpo["findings"]] == [
        ("idle_groups", "warning", 8), ("no_signal", "fatal", 14),
    ]  # fmt: skip
    assert again["findings"][0]["symptom"] == f"failing_type:{HOSTILE}"
    assert all(item["evidence"] and item["threshold"] and item["remedy"] for item in grpo["findings"])


class Page(HTMLParser):
    """The tags of a page and what a reader sees; every element is closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.seen: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.seen.append(data)


def test_the_page_needs_nothing_else_and_shows_names_as_text(pipeline: Path, tmp_path: Path, command: Command) -> None:
    answer = command("diagnose", pipeline, "--output", tmp_path / "page.html")
    assert answer.code == 1
    assert f"page: {tmp_path / 'page.html'}" in answer.stderr
    page = Page((tmp_path / "page.html").read_text())
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert all(address.startswith("#") for address in page.addresses)
    text = "".join(page.seen)
    assert "<script>alert(1)</script>" in text
    assert "\x1b" not in text
    assert KINDS["reward_variance"] in text
    assert KINDS["mismatch"] in text  # looked for and not found
    charts = page.tags.count("figure")
    assert charts == page.tags.count("svg")
    assert charts >= 2 * 7
    assert text.count("step 8: reward_variance") == charts / 2  # a mark on every chart of the stage


def test_the_page_of_a_training_that_has_just_begun(tmp_path: Path, command: Command) -> None:
    begun = History(validations=[Validation(0, 0.9, 0.7, 100)])
    answer = command("diagnose", save(begun, tmp_path / "begun"), "-o", tmp_path / "page.html")
    assert answer.code == 1
    assert "nothing can be told yet" in answer.stdout
    page = (tmp_path / "page.html").read_text()
    assert "No step is finished, so nothing can be told yet." in page
    assert "Healthy" not in page
    single = History(records=[step_record(1)], facts=[{}])
    assert command("diagnose", save(single, tmp_path / "single"), "-o", tmp_path / "page.html").code == 0


def test_wrong_use_is_said_in_one_line(tmp_path: Path, healthy: Path, command: Command) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, words in (
        ((tmp_path / "missing",), "does not exist"),
        ((tmp_path / "empty",), "no online training has begun"),
        ((healthy, "--output", tmp_path), "is a folder"),
    ):
        answer = command("diagnose", *arguments)
        assert answer.code == 2
        assert answer.stderr.startswith("error: ")
        assert answer.stderr.count("\n") == 1
        assert words in answer.stderr
    (healthy / "metrics.jsonl").write_text("something else\nand more\n")
    answer = command("diagnose", healthy, "--json")
    assert answer.code == 1
    assert "is not JSON" in json.loads(answer.stdout)["error"]
