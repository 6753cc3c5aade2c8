"""Token-level values that several processes fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra train")

import torch
from toys.token_transitions import walk_transitions

from offline_arl.models.token_heads import load_token_heads
from offline_arl.trainers.value_record import load_value_record
from offline_arl.workflows.single import run_stage

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize(
    "settings",
    [{"batch_size": 6}, {"language_model": "trained", "tokens_per_batch": 64, "gradient_accumulation_steps": 2}],
    ids=["kept states", "trained model"],
)
def test_two_processes_fit_the_heads_of_one(settings: dict[str, Any], tmp_path: Path) -> None:
    """An update is shared out, so heads and a model that is trained along come out alike."""
    data = walk_transitions(tmp_path)
    raw = {
        "kind": "train", "algorithm": "token_iql_values", "max_steps": 4, "holdout_fraction": 0.0,
        "learning_rate": 1e-4, **settings,
    }  # fmt: skip
    for processes in (1, 2):
        inputs = {"dataset": data, "policy": data / "policy"}
        run_stage(raw, inputs, tmp_path / f"{processes}", name="values", processes=processes)
    one, two = (load_token_heads(tmp_path / f"{processes}" / "values").state_dict() for processes in (1, 2))
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=2e-5)
    metrics = [load_value_record(tmp_path / f"{processes}" / "values").metrics for processes in (1, 2)]
    assert metrics[0]["updates"] == metrics[1]["updates"] == 4
    assert metrics[1]["train/q_loss"] == pytest.approx(metrics[0]["train/q_loss"], rel=1e-3)
