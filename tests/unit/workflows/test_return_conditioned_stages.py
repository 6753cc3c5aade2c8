"""The Decision Transformer as stages: what is saved with the policy, and what an evaluation asks it for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offline_arl.datasets.manifest import load_manifest
from offline_arl.datasets.return_conditioned import conditioning_of
from offline_arl.datasets.return_conditioning import load_conditioning
from offline_arl.environments.probes.stitching import best_logged_return
from offline_arl.errors import UsageError
from offline_arl.models.policy import load_policy
from offline_arl.rendering.return_conditioning import return_token, return_token_ids
from offline_arl.trajectories.store import open_store
from offline_arl.workflows.config import parse_pipeline
from offline_arl.workflows.run import RunResult, run_pipeline

LOGS: dict[str, Any] = {
    "logs": {"kind": "generate_logs", "trajectories": 40},
    "store": {"kind": "ingest", "logs": "logs"},
    "start": {
        "kind": "initial_policy", "store": "store", "model": "tiny", "vocabulary_size": 300, "return_tokens": 3,
    },
}  # fmt: skip
DATA: dict[str, Any] = {
    "kind": "dataset", "form": "return_conditioned", "store": "store", "policy": "start",
    "rewards": {"source": "logged"}, "conditioning": {"form": "quantile_tokens"},
}  # fmt: skip
TRAINED: dict[str, Any] = {
    "policy": "start", "kind": "train", "dataset": "data", "max_steps": 3, "tokens_per_batch": 512,
}  # fmt: skip
EVALUATION: dict[str, Any] = {
    "kind": "evaluate", "policies": ["dt"], "tasks": 6, "backend": "transformers", "max_tokens_per_step": 2,
    "max_total_tokens": 96, "sampled": False, "target_returns": ["task", 1.0, "best", 0.5],
}  # fmt: skip


def run(folder: Path, environment: str = "stitching", **stages: dict[str, Any]) -> RunResult:
    raw = {"name": "returns", "environment": environment, "stages": {**LOGS, **stages}}
    return run_pipeline(parse_pipeline(raw, "test"), folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    folder = tmp_path_factory.mktemp("dt") / "run"
    return run(folder, data=DATA, dt={**TRAINED, "algorithm": "dt"}, evaluation=EVALUATION)


def test_the_policy_carries_how_its_dataset_wrote_returns(finished: RunResult) -> None:
    stages = finished.output / "stages"
    saved = load_conditioning(stages / "dt" / "policy")
    assert saved is not None
    assert saved == conditioning_of(load_manifest(stages / "data" / "dataset"))
    assert saved.edges == (0.5, 1.0)
    assert saved.default_target == 1.0
    assert json.loads((stages / "dt" / "policy" / "training.json").read_text())["algorithm"] == "dt"
    (note,) = [note for note in finished.records[-2].outputs.notes if "returns of the training data" in note]
    assert note.startswith("returns of the training data: 0 to 1,")
    assert note.endswith("written as quantile_tokens in 3 classes")


def test_the_tokens_are_in_the_tokenizer_and_the_model(finished: RunResult) -> None:
    model, tokenizer = load_policy(finished.output / "stages" / "dt" / "policy")
    ids = [tokenizer.convert_tokens_to_ids(return_token(level)) for level in (1, 2, 3)]
    assert ids == list(range(len(tokenizer) - 3, len(tokenizer)))
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer)


def test_the_first_target_gives_the_figures_and_the_numbers_the_curve(finished: RunResult) -> None:
    """The best of the training data is 1, which is wanted already: it is played once."""
    metrics = finished.results["metrics"]
    assert [name for name in metrics if name.startswith(("achieved_return", "calibration_error"))] == [
        "achieved_return/dt/0.5",
        "achieved_return/dt/1",
        "calibration_error/dt",
    ]
    achieved = {target: metrics[f"achieved_return/dt/{target}"]["estimate"] for target in ("0.5", "1")}
    error = (abs(achieved["0.5"] - 0.5) + abs(achieved["1"] - 1)) / 2
    assert metrics["calibration_error/dt"]["estimate"] == pytest.approx(error)
    folder = finished.output / "stages" / "evaluation"
    figures = pl.read_parquet(folder / "episodes.parquet")
    assert figures["target_return"].to_list() == [
        best_logged_return(task.removeprefix("stitching-test-")) for task in figures["task_id"]
    ]
    assert set(figures["target_return"]) == {0.5, 1.0}
    curve = pl.read_parquet(folder / "calibration.parquet")
    assert curve["target_return"].to_list() == [1.0] * 6 + [0.5] * 6
    # An attempt that is asked for the target of its task a second time, as a number, is the same attempt.
    assert len(open_store(folder / "store")) == 12
    assert "dt is asked for a return of that of each task" in finished.records[-1].outputs.notes


def test_an_environment_without_targets_of_its_own_is_told_before_work_begins(tmp_path: Path) -> None:
    stages = {"data": DATA, "dt": {**TRAINED, "algorithm": "dt"}, "evaluation": EVALUATION}
    with pytest.raises(UsageError, match="'double_t_maze' has no target return for its tasks; give numbers, or best"):
        run(tmp_path / "run", "double_t_maze", **stages)
    assert not (tmp_path / "run").exists()


def test_cloning_does_not_take_a_dataset_with_returns_nor_dt_one_without(finished: RunResult) -> None:
    with pytest.raises(UsageError, match="returns in its context, which bc would not be asked for; use dt"):
        run(finished.output, data=DATA, bc={**TRAINED, "algorithm": "bc"})
    plain = {**DATA, "form": "bc"}
    with pytest.raises(UsageError, match="the rehearsal has returns in its context, which bc would not be asked for"):
        run(finished.output, plain=plain, data=DATA,
            bc={**TRAINED, "algorithm": "bc", "dataset": "plain", "rehearsal": "data"})  # fmt: skip
    with pytest.raises(UsageError, match="makes a dataset of form bc, and dataset takes return_conditioned"):
        run(finished.output, plain=plain, dt={**TRAINED, "algorithm": "dt", "dataset": "plain"})


def test_what_cannot_be_written_is_told_when_the_dataset_is_built(finished: RunResult) -> None:
    """Fewer tokens than classes; a return said once to a policy that forgets it."""
    few = {**LOGS["start"], "return_tokens": 1}
    with pytest.raises(UsageError, match="set return_tokens: 3 in the stage initial_policy"):
        run(finished.output, few=few, data={**DATA, "policy": "few"})
    window = {**LOGS["start"], "history_steps": 0}
    once = {**DATA, "policy": "window", "conditioning": {"scope": "trajectory"}}
    with pytest.raises(UsageError, match=r"conditioning\.scope: step"):
        run(finished.output, window=window, data=once)


def test_adapters_learn_the_tokens_of_returns_too(finished: RunResult) -> None:
    pytest.importorskip("peft")
    lora = {**TRAINED, "algorithm": "dt", "lora_rank": 2, "learning_rate": 1e-2}
    stages = run(finished.output, data=DATA, adapters=lora).output / "stages"
    start, _ = load_policy(stages / "start" / "policy")
    trained, tokenizer = load_policy(stages / "adapters" / "policy")
    inputs = [model.get_input_embeddings().weight for model in (start, trained)]
    moved = (inputs[1] - inputs[0]).abs().amax(dim=1).nonzero().flatten().tolist()
    assert moved == return_token_ids(tokenizer, 3)
    assert load_conditioning(stages / "adapters" / "policy" / "adapter") is not None
