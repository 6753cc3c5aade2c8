"""Exported pairs and labels go into TRL's own trainers as they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pair_examples import attempt, look, result, say, user

from offline_arl.datasets.pairs.build import build_pairs, build_unpaired
from offline_arl.datasets.pairs.mining import families_of
from offline_arl.errors import DataError, UsageError
from offline_arl.logs.reading import read_logs
from offline_arl.models.policy import save_policy
from offline_arl.models.tiny import build_tiny_policy
from offline_arl.rendering import Renderer
from offline_arl.rewards.preferences import PairsConfig, UnpairedConfig
from offline_arl.trajectories.schema import Trajectory
from offline_arl.workflows.preferences import export_dataset

datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")


def family() -> list[Trajectory]:
    """Attempts that part at a step, after a call, and at once."""
    return [
        attempt("good", look("a"), result("found"), say("yes"), success=True),
        attempt("bad", look("a"), result("found"), say("no"), success=False),
        attempt("worse", look("a"), result("gone"), say("hm"), success=False),
        attempt("worst", say("I do not know."), success=False),
    ]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, attempts: list[Trajectory], renderer: Renderer) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    config = PairsConfig(pair_kinds=("trajectory", "step"))
    both = [*family(), *attempts]
    build_pairs(families_of(both, config), renderer, folder / "pairs", config=config)
    build_unpaired(both, renderer, folder / "labels", config=UnpairedConfig())
    for name in ("pairs", "labels"):
        for ending in ("jsonl", "parquet"):
            export_dataset(folder / name, folder / f"{name}.{ending}", format="trl")
    policy = build_tiny_policy(renderer.tokenizer, seed=0, tie_embeddings=True)
    save_policy(policy, renderer.tokenizer, folder / "policy")
    return folder


def load(path: Path, tmp_path: Path) -> Any:
    kind = {".jsonl": "json", ".parquet": "parquet"}[path.suffix]
    return datasets.load_dataset(kind, data_files=str(path), cache_dir=str(tmp_path / "cache"))["train"]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_sides_begin_where_the_agent_acts(exported: Path, ending: str, tmp_path: Path) -> None:
    rows = load(exported / f"pairs.{ending}", tmp_path)
    assert len(rows) > 20
    for row in rows:
        assert row["prompt"][-1]["role"] in ("user", "tool")
        assert row["chosen"][0]["role"] == row["rejected"][0]["role"] == "assistant"
        assert row["chosen"] != row["rejected"]
        assert json.loads(row["tools"])[0]["type"] == "function"
    # The third attempt got another answer to the same call: TRL's completion has to begin with the call.
    (late,) = [row for row in rows if row["rejected"][-1]["content"] == "hm" and row["chosen"][-1]["content"] == "yes"]
    assert [message["role"] for message in late["rejected"]] == ["assistant", "tool", "assistant"]
    assert late["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"id": "a"}


def arguments(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder), "max_steps": 1, "per_device_train_batch_size": 2, "report_to": "none",
        "use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "bf16": False, "gradient_checkpointing": False,
        **more,
    }  # fmt: skip


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_trls_dpo_trainer_takes_pairs(exported: Path, ending: str, renderer: Renderer, tmp_path: Path) -> None:
    rows = load(exported / f"pairs.{ending}", tmp_path)
    trainer = trl.DPOTrainer(
        str(exported / "policy"),
        args=trl.DPOConfig(**arguments(tmp_path)),
        train_dataset=rows,
        processing_class=renderer.tokenizer,
    )
    assert len(trainer.train_dataset) == len(rows)
    assert trainer.train().training_loss == pytest.approx(0.6931, abs=1e-3)  # the policy is its own reference


def test_trls_kto_trainer_takes_labels(exported: Path, renderer: Renderer, tmp_path: Path) -> None:
    rows = load(exported / "labels.parquet", tmp_path)
    trainer = trl.KTOTrainer(
        str(exported / "policy"),
        args=trl.KTOConfig(**arguments(tmp_path)),
        train_dataset=rows,
        processing_class=renderer.tokenizer,
    )
    assert trainer.train().training_loss == pytest.approx(0.5, abs=1e-3)


def test_openai_takes_pairs_of_single_answers_and_our_adapter_reads_them_back(
    renderer: Renderer, tmp_path: Path
) -> None:
    config = PairsConfig(pair_kinds=("trajectory", "step"))
    build_pairs([family()], renderer, tmp_path / "pairs", config=config)
    report = export_dataset(tmp_path / "pairs", tmp_path / "out.jsonl", format="openai_preferences")
    assert report.skipped == {"a side is more than one answer": 2}
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    outputs = [(record["preferred_output"][0], record["non_preferred_output"][0]) for record in records]
    answers = {(chosen["content"], rejected["content"]) for chosen, rejected in outputs}
    assert answers == {("yes", "no"), (None, "I do not know.")}
    calls = [chosen.get("tool_calls") for chosen, _ in outputs]
    assert [call[0]["function"]["arguments"] for call in calls if call] == ['{"id":"a"}']
    read = read_logs(tmp_path / "out.jsonl").trajectories
    assert [trajectory.scores[0].value for trajectory in read] == [1.0, 0.0] * len(records)


def test_pairs_without_a_shared_prompt_are_left_out_and_told(renderer: Renderer, tmp_path: Path) -> None:
    def asked(name: str, question: str, answer: str, *, success: bool) -> Trajectory:
        made = attempt(name, say(answer), success=success)
        messages = [made.messages[0], user(question), made.messages[2]]
        return Trajectory(name, messages, made.source, task_id="task", outcome=made.outcome, contexts=made.contexts)

    sides: Sequence[Trajectory] = [
        asked("one", "Find it!", "yes", success=True), asked("other", "Please find it.", "no", success=False),
    ]  # fmt: skip
    config = PairsConfig()
    build_pairs([sides], renderer, tmp_path / "pairs", config=config)
    with pytest.raises(DataError, match=r"the sides share no prompt that ends with a user or a tool \(1 rows\)"):
        export_dataset(tmp_path / "pairs", tmp_path / "out.jsonl", format="trl")
    assert not (tmp_path / "out.jsonl").exists()


def test_wrong_formats_and_endings_are_told(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a dataset of kind unpaired is written as trl"):
        export_dataset(exported / "labels", tmp_path / "out.jsonl", format="openai_preferences")
    with pytest.raises(UsageError, match=r"give a file that ends in .jsonl or .parquet"):
        export_dataset(exported / "pairs", tmp_path / "out.csv", format="trl")
    with pytest.raises(UsageError, match="is there already"):
        export_dataset(exported / "pairs", exported / "pairs.jsonl", format="trl")
