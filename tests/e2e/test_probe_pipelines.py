"""The pipelines of the probes, from generated logs to the table, with fewer logs and updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra train")

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.models.policy import load_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.trajectories.store import open_store
from offline_arl.workflows.config import Pipeline, load_pipeline
from offline_arl.workflows.run import run_pipeline
from offline_arl.workflows.stages import Evaluate

pytestmark = pytest.mark.e2e
PIPELINES = Path(__file__).parents[2] / "pipelines"
PROBES = ("double_t_maze", "random_walks", "stitching")
TASKS = 3


def smaller(name: str, *, trajectories: int, updates: int, value_steps: int, **evaluation: Any) -> Pipeline:
    """A pipeline file whose training stages take at most so many updates, with rollouts by transformers."""
    whole = load_pipeline(PIPELINES / f"{name}.yaml")
    settings = [f"stages.logs.trajectories={trajectories}"]
    for stage, config in whole.stages.items():
        if hasattr(config, "max_steps"):
            settings.append(f"stages.{stage}.max_steps={updates}")
        elif config.kind == "train" and hasattr(config, "steps"):
            settings.append(f"stages.{stage}.steps={value_steps}")
        if isinstance(config, Evaluate):
            given = {"backend": "transformers", "split": "validation", **evaluation}
            settings += [f"stages.{stage}.{key}={value}" for key, value in given.items()]
    return load_pipeline(PIPELINES / f"{name}.yaml", settings)


@pytest.mark.parametrize("name", PROBES)
def test_every_policy_is_measured_as_the_logs_are(name: str, tmp_path: Path) -> None:
    """Two updates teach nothing; what stands in the results must still follow from what the stages left."""
    pipeline = smaller(
        name, trajectories=12, updates=2, value_steps=4, tasks=TASKS, sampled=False, max_tokens_per_step=2
    )
    metrics = run_pipeline(pipeline, tmp_path / "run").results["metrics"]
    stages = tmp_path / "run" / "stages"
    logged = [item.outcome.components for item in open_store(stages / "store" / "store").iter_trajectories()]
    for measure in logged[0]:
        mean = sum(components[measure] for components in logged) / len(logged)
        assert metrics[f"{measure}/behavior"]["estimate"] == pytest.approx(mean)
        for policy in pipeline.stages["evaluation"].policies:
            assert metrics[f"{measure}/{policy}"]["n"] == TASKS
    transitions = SegmentDataset.load(stages / "transitions" / "dataset")
    returns = dict.fromkeys(transitions.column("trajectory_id"), 0.0)
    for row in transitions:
        returns[row.trajectory_id] += float(row.rewards.sum())
    assert sorted(returns.values()) == pytest.approx(sorted(components["return"] for components in logged), abs=1e-5)
    policy = Renderer(load_tokenizer(stages / "iql" / "policy"))
    assert policy.fingerprint == transitions.manifest.fingerprint
    windowed = name != "random_walks"
    assert policy.history_steps == (0 if windowed else None)
    per_trajectory = metrics["steps/transitions"]["estimate"] if windowed else len(logged)
    with_action = sum(len(row.steps) > 0 for row in transitions)
    assert with_action == per_trajectory
