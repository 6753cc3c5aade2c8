"""Every pipeline file parses, says how to run it, and asks only for stages that exist."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from offline_arl.workflows.config import Pipeline, load_pipeline
from offline_arl.workflows.dispatch import stage_function
from offline_arl.workflows.stages import STAGE_TYPES

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "pipelines").glob("*.yaml"))


def test_there_are_pipelines() -> None:
    assert {"quickstart", "tau_bench_airline"} <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_parses_and_its_header_tells_command_result_and_time(path: Path) -> None:
    pipeline = load_pipeline(path, ["seed=2"])
    assert pipeline.name == path.stem
    assert pipeline.seed == 2
    header = path.read_text().split("\nname:")[0]
    for word in ("Command:", "Expect:", "Time:"):
        assert f"# {word}" in header
    assert f"pipelines/{path.name}" in header


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_evaluation_names_are_policies_of_the_published_vocabulary(path: Path) -> None:
    known = {"behavior", "bc", "filtered_bc", "iql", "cql", "dt", "dpo", "kto", "simpo", "grpo"} | {
        "dpo_trajectory",
        "grpo_bc",
        "grpo_cold",
        "grpo_policy",
        "grpo_critic",
        "grpo_curriculum",
        "grpo_replay",
        "ilql",
        "rft",
    }
    for stage in load_pipeline(path).stages.values():
        if stage.kind == "evaluate":
            assert set(stage.policies) <= known


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra train")
@pytest.mark.parametrize("kind", STAGE_TYPES, ids=lambda kind: kind.__name__)
def test_every_kind_of_stage_has_its_function(kind: type) -> None:
    assert callable(stage_function(kind))


def test_a_pipeline_of_every_kind_survives_plain_data() -> None:
    for path in FILES:
        pipeline = load_pipeline(path)
        assert Pipeline.model_validate(pipeline.model_dump(mode="json")) == pipeline
