"""How to go on: the commands that a summary shows are those that the run has the parts for."""

from __future__ import annotations

from pathlib import Path

from offline_arl.workflows.config import load_pipeline
from offline_arl.workflows.context import StageOutputs
from offline_arl.workflows.next_steps import pipeline_steps, stage_steps
from offline_arl.workflows.records import StageRecord
from offline_arl.workflows.stages import Artifact, Online, Stage, TrainCloning

ROOT = Path(__file__).parents[3]


def records(stages: dict[str, Stage]) -> list[StageRecord]:
    """As if each stage had made what it produces."""
    return [
        StageRecord(name, "", "", StageOutputs(artifacts={kind: kind for kind in stage.produces}), 1.0)
        for name, stage in stages.items()
    ]


def lines(pipeline: str, output: str) -> str:
    loaded = load_pipeline(ROOT / "pipelines" / pipeline)
    return "\n".join(pipeline_steps(loaded, records(loaded.stages), Path(output)))


def test_a_run_with_values_and_successes_goes_on_online_with_them() -> None:
    """And the README shows the very same command for the quickstart."""
    told = lines("quickstart.yaml", "runs/quickstart")
    command = (
        "offline-arl online --policy runs/quickstart/stages/grpo/policy --critic runs/quickstart/stages/values/values "
        "--replay runs/quickstart/stages/success_data/dataset --set curriculum={} --output runs/quickstart-online"
    )
    assert command in told
    assert command in " ".join((ROOT / "README.md").read_text().replace("\\\n", " ").split())
    assert "`offline-arl diagnose runs/quickstart-online`" in told
    assert "`offline-arl diagnose runs/quickstart`" in told


def test_a_run_without_an_environment_shows_no_online_training() -> None:
    told = lines("tau_bench_airline.yaml", "out")
    assert "in an environment of your own" in told
    assert "offline-arl online" not in told
    assert "diagnose" not in told


def test_policies_that_decode_by_values_are_not_trained_on() -> None:
    told = lines("support_desk_offline.yaml", "out")
    policy = told.partition("offline-arl online --policy out/stages/")[2].partition("/")[0]
    stage = load_pipeline(ROOT / "pipelines/support_desk_offline.yaml").stages[policy]
    assert getattr(stage, "algorithm", "") not in ("value_guided", "reranked", "token_iql_values")


def test_a_stage_alone_says_what_takes_its_result() -> None:
    made: dict[Artifact, str] = {"policy": "policy", "store": "store"}
    record = StageRecord("grpo", "online", "", StageOutputs(artifacts=made), 1.0)
    online = Online(kind="online", algorithm="grpo", policy="p", environment="support_desk")
    told = "\n".join(stage_steps(online, record, Path("out")))
    for command in (
        "evaluate --policy grpo=out/policy",
        "diagnose out",
        "online --policy out/policy",
        "show out/store",
    ):
        assert f"offline-arl {command}" in told
    cloning = TrainCloning(kind="train", algorithm="bc", dataset="d", policy="p")
    assert "diagnose" not in "\n".join(stage_steps(cloning, record, Path("out")))
