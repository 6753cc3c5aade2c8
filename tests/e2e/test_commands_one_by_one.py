"""The commands of the README, one after the other, on generated logs: ingest, build, train, evaluate."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra train")

from offline_arl import environments
from offline_arl.cli.entry import run
from offline_arl.datasets import SegmentDataset

EPISODES = 80
pytestmark = pytest.mark.e2e


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command that must succeed and return its JSON."""
    monkeypatch.setattr(os, "environ", os.environ.copy())

    def run_one(*arguments: str | Path) -> Any:
        code = run([*map(str, arguments), "--json"])
        out, err = capfd.readouterr()
        assert code == 0, err
        assert out.count("\n") == 1, out
        return json.loads(out)

    return run_one


def test_logs_become_policies_that_are_evaluated(tmp_path: Path, command: Callable[..., Any]) -> None:
    logs, store = tmp_path / "logs.jsonl", tmp_path / "store"
    environments.load("support_desk").write_logs(logs, EPISODES, seed=0)
    assert command("ingest", logs, "--store", store)["trajectories"] == EPISODES
    successes = command("show", store)["successes"]

    cloned = command("build", "bc", "--store", store, "--output", tmp_path / "good", "--only-successes")
    assert set(cloned["artifacts"]) == {"dataset", "policy"}
    good = SegmentDataset.load(cloned["artifacts"]["dataset"])
    assert len({row.trajectory_id for row in good}) == successes
    assert all(row.success for row in good)

    policy = tmp_path / "good"  # what build made holds the policy that fits the dataset
    transitions = tmp_path / "transitions"
    command("build", "transitions", "--store", store, "--output", transitions, "--model", policy / "policy")
    bc = command("train", "bc", "--dataset", tmp_path / "good", "--policy", policy, "--output", tmp_path / "bc",
                 "--rehearsal", tmp_path / "good", "--set", "epochs=1")  # fmt: skip
    assert Path(bc["artifacts"]["policy"], "model.safetensors").is_file()
    values = command("train", "iql_values", "--dataset", transitions, "--policy", tmp_path / "bc", "--output",
                     tmp_path / "values", "--set", "steps=20", "--set", "holdout_fraction=0.3")  # fmt: skip
    held_out = [metric["n"] for name, metric in values["metrics"].items() if name.startswith("value_auc")]
    assert held_out
    assert all(0 < number < EPISODES for number in held_out)
    command("train", "iql", "--dataset", transitions, "--policy", tmp_path / "bc", "--values", tmp_path / "values",
            "--output", tmp_path / "iql", "--set", "max_steps=2")  # fmt: skip

    policies = ["--policy", f"bc={tmp_path / 'bc'}", "--policy", f"iql={tmp_path / 'iql'}"]
    report = command("evaluate", *policies, "--store", store, "--tasks", "8", "--backend", "transformers",
                     "--output", tmp_path / "evaluation")  # fmt: skip
    metrics = report["metrics"]
    assert report["backend"] == "transformers"
    assert metrics["success/behavior"]["estimate"] == pytest.approx(successes / EPISODES)
    assert {metrics[f"success/{name}"]["n"] for name in ("bc", "iql")} == {8}
    assert metrics["success_gain_sampled/iql-bc"]["estimate"] == pytest.approx(
        metrics["success_sampled/iql"]["estimate"] - metrics["success_sampled/bc"]["estimate"]
    )

    results = json.loads((tmp_path / "evaluation/results.json").read_text())
    assert results["metrics"] == metrics
    assert (results["pipeline"], results["seed"], results["backend"]) == ("evaluate", 0, "transformers")
    summary = (tmp_path / "evaluation/summary.md").read_text()
    assert "## Gain in success over the policy before, paired over tasks" in summary
    assert "- tool call accuracy: share of the calls that fit the tools" in summary
    compared = command("compare", tmp_path / "evaluation")
    for mode, name in (("greedy", "success_gain"), ("sampled", "success_gain_sampled")):
        assert compared["differences"][f"iql-bc/{mode}"]["estimate"] == pytest.approx(
            metrics[f"{name}/iql-bc"]["estimate"]
        )


def test_an_output_that_is_not_empty_is_left_as_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs, store = tmp_path / "logs.jsonl", tmp_path / "store"
    environments.load("support_desk").write_logs(logs, 4, seed=0)
    assert run(["ingest", str(logs), "--store", str(store)]) == 0
    output = tmp_path / "mine"
    output.mkdir()
    (output / "precious.txt").write_text("keep me")
    assert run(["build", "bc", "--store", str(store), "--output", str(output)]) == 2
    assert "exists and is not empty" in capfd.readouterr().err
    assert [path.name for path in output.iterdir()] == ["precious.txt"]


def test_a_stage_that_fails_leaves_no_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs, store = tmp_path / "logs.jsonl", tmp_path / "store"
    logs.write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}]}) + "\n")
    assert run(["ingest", str(logs), "--store", str(store)]) == 0
    assert run(["build", "transitions", "--store", str(store), "--output", str(tmp_path / "data")]) == 1
    assert capfd.readouterr().err.splitlines()[-1].startswith("error: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs.jsonl", "store"]
