"""The stages that make policies out of values and train nothing, from stores to episodes."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from toys.token_values import random_token_heads

from offline_arl.datasets.return_conditioning import ReturnConditioning, TrainingReturns, load_conditioning
from offline_arl.errors import DataError, GateError, UsageError
from offline_arl.models.folding import make_fold
from offline_arl.models.guided_policy import load_value_guidance
from offline_arl.models.policy import load_model, logits_and_states, policy_fingerprint
from offline_arl.models.token_heads import TokenHead, TokenValueHeads
from offline_arl.models.value_guidance import GuidanceConfig, ValueGuidance
from offline_arl.rendering.return_conditioning import ConditioningConfig
from offline_arl.rewards.components import RewardConfig
from offline_arl.trainers.token_record import save_token_values
from offline_arl.trainers.value_record import ValueRecord, load_value_record
from offline_arl.trajectories.store import open_store
from offline_arl.workflows.context import StageOutputs
from offline_arl.workflows.ingest import ingest
from offline_arl.workflows.single import build_from_store, run_stage


@dataclasses.dataclass(frozen=True)
class Start:
    """A policy with a dataset, and values for it."""

    dataset: Path
    policy: Path
    heads: TokenValueHeads
    token_values: Path
    step_values: Path


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Walks in the graph of `random_walks`, a random policy, random values."""
    folder = tmp_path_factory.mktemp("start")
    lines = []
    for number, walk in enumerate(("b d a", "c e a", "f h g a", "k l m", "q r s t")):
        nodes = walk.split()
        messages = [{"role": "system", "content": "Walk to a along the edges of the graph."}]
        for node, following in itertools.pairwise(nodes):
            messages += [{"role": "user", "content": node}, {"role": "assistant", "content": following}]
        lines.append(json.dumps({"messages": messages, "success": nodes[-1] == "a", "task_id": str(number)}))
    log = folder / "log.jsonl"
    log.write_text("\n".join(lines))
    ingest(log, folder / "store")
    build_from_store(folder / "store", folder / "data", form="transitions")
    policy = folder / "data" / "policy"
    model = load_model(policy)
    heads = random_token_heads(states=model.config.hidden_size, vocabulary=model.config.vocab_size, bias=0.0)
    save(heads, policy, folder / "token-values" / "values")
    raw = {"kind": "train", "algorithm": "iql_values", "steps": 5, "holdout_fraction": 0.0}
    run_stage(raw, {"dataset": folder / "data", "policy": policy}, folder / "step-values", name="values")
    return Start(folder / "data", policy, heads, folder / "token-values", folder / "step-values")


def save(heads: TokenValueHeads, policy: Path, folder: Path) -> None:
    sha = policy_fingerprint(load_model(policy))
    save_token_values(heads, ValueRecord("token_iql_values", {}, 0, str(policy), sha, (-1,), "", ""), folder)


def made(start: Start, output: Path, algorithm: str, values: Path | None = None, **fields: Any) -> StageOutputs:
    raw = {"kind": "train", "algorithm": algorithm, **fields}
    level = start.step_values if algorithm == "reranked" else start.token_values
    inputs = {"policy": start.policy, "values": level if values is None else values}
    if algorithm != "reranked":
        inputs["dataset"] = start.dataset
    return run_stage(raw, inputs, output, name=algorithm)


def played(policy: Path, output: Path, **fields: Any) -> tuple[StageOutputs, Path]:
    raw = {
        "kind": "evaluate", "environment": "random_walks", "tasks": 4, "backend": "transformers",
        "max_tokens_per_step": 4, "max_total_tokens": 256, **fields,
    }  # fmt: skip
    return run_stage(raw, {}, output, name="evaluation", policies={"it": policy}), output / "store"


def test_a_guided_policy_supports_what_the_data_does_and_plays(start: Start, tmp_path: Path) -> None:
    outputs = made(start, tmp_path / "guided", "value_guided", inverse_temperature=2.0)
    guidance = load_value_guidance(tmp_path / "guided" / "policy")
    assert load_value_record(tmp_path / "guided" / "policy" / "value_guidance").algorithm == "token_iql_values"
    action_text = set("abcdefghijklmnopqrstu")  # the nodes, and the token that ends a message
    assert guidance.config.inverse_temperature == 2.0
    assert guidance.config.support_tokens is not None
    assert 5 < len(guidance.config.support_tokens) <= len(action_text) + 1
    assert set(outputs.metrics) == {"logged_outside_support/value_guided", "divergence/value_guided"}
    assert 0.0 <= outputs.metrics["logged_outside_support/value_guided"].estimate < 1.0
    assert outputs.metrics["divergence/value_guided"].estimate > 0.1
    evaluated, store = played(tmp_path / "guided", tmp_path / "evaluation")
    assert "success/it" in evaluated.metrics
    allowed = set(guidance.config.support_tokens)
    sampled = [
        token
        for trajectory in open_store(store).iter_trajectories()
        for message in trajectory.messages
        if message.tokens is not None
        for token in message.tokens.token_ids
    ]
    assert sampled
    assert set(sampled) <= allowed


def test_the_diagnostics_are_those_of_the_data(start: Start, tmp_path: Path) -> None:
    """With a threshold of 1 the best token alone is supported: the rest of the data lies outside."""
    loose = made(start, tmp_path / "loose", "value_guided", support_threshold=0.0, inverse_temperature=0.0)
    assert loose.metrics["logged_outside_support/value_guided"].estimate == 0.0
    tight = made(start, tmp_path / "tight", "value_guided", support_threshold=1.0, only_action_tokens=False)
    assert "1.0 tokens supported" in tight.notes[0]
    assert tight.metrics["logged_outside_support/value_guided"].estimate > 0.5


def test_the_folded_policy_is_the_guided_one_in_a_plain_folder(start: Start, tmp_path: Path) -> None:
    outputs = made(start, tmp_path / "folded", "value_folded", inverse_temperature=2.0)
    behavior, folded = load_model(start.policy), load_model(tmp_path / "folded" / "policy")
    assert not (tmp_path / "folded" / "policy" / "value_guidance.json").exists()
    ids = torch.arange(40).unsqueeze(0)
    with torch.no_grad():
        logits, states = logits_and_states(behavior, input_ids=ids)
        found = folded(input_ids=ids).logits[0].log_softmax(-1)
    exact = ValueGuidance(start.heads, GuidanceConfig(2.0, 0.0, critics="mean"))(logits[0], states[0])
    torch.testing.assert_close(found, exact.log_softmax(-1), atol=1e-4, rtol=0)
    assert "the fold is exact" in outputs.notes[0]
    assert outputs.metrics["fold_error/value_folded"].estimate < 1e-5
    outside = outputs.metrics["outside_support/value_folded"].estimate
    assert 0.0 < outside < 1.0
    assert outside != outputs.metrics["behavior_outside_support/value_folded"].estimate
    evaluated, _ = played(tmp_path / "folded", tmp_path / "evaluation", sampled=False)
    assert "success/it" in evaluated.metrics


def test_a_bias_is_folded_as_far_as_states_have_something_in_common(start: Start, tmp_path: Path) -> None:
    heads = random_token_heads(states=start.heads.shape.state_size, vocabulary=start.heads.shape.vocabulary_size)
    save(heads, start.policy, tmp_path / "values")
    fields = {"values": tmp_path / "values", "inverse_temperature": 0.5}
    outputs = made(start, tmp_path / "folded", "value_folded", error_tolerance=1.0, **fields)
    error = outputs.metrics["fold_error/value_folded"].estimate
    assert 1e-6 < error < 0.2
    assert "no bias to hold that of the heads" in outputs.notes[0]
    with pytest.raises(GateError, match="mean total variation distance"):
        made(start, tmp_path / "refused", "value_folded", error_tolerance=error / 2, **fields)
    assert not (tmp_path / "refused").exists()
    # Without a place for it the bias would be lost, and the policy further off than that.
    model = load_model(start.policy)
    lost = make_fold(model, heads, inverse_temperature=0.5, constant=torch.zeros(heads.shape.state_size))
    with torch.no_grad():
        logits, states = logits_and_states(model, input_ids=torch.arange(40).unsqueeze(0))
    exact = ValueGuidance(heads, GuidanceConfig(0.5, 0.0, critics="mean"))(logits[0], states[0]).softmax(-1)
    off = 0.5 * ((logits[0] + lost.logits(states[0])).softmax(-1) - exact).abs().sum(-1).mean()
    assert float(off) > 2 * error


def test_a_reranked_policy_plays_and_its_logprobs_are_unknown(start: Start, tmp_path: Path) -> None:
    outputs = made(start, tmp_path / "best", "reranked", candidates=4)
    assert outputs.notes == ("the best of 4 steps by iql_values",)
    evaluated, store = played(tmp_path / "best", tmp_path / "evaluation")
    assert "success_sampled/it" in evaluated.metrics
    records = [
        message.tokens
        for trajectory in open_store(store).iter_trajectories()
        for message in trajectory.messages
        if message.tokens is not None
    ]
    assert records
    assert all(record.logprobs is None for record in records)


def test_values_of_other_hidden_states_are_refused(start: Start, tmp_path: Path) -> None:
    model = load_model(start.policy)
    with torch.no_grad():
        next(model.parameters()).add_(0.01)
    assert policy_fingerprint(model) != policy_fingerprint(load_model(start.policy))
    other = tmp_path / "other"
    model.save_pretrained(other)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (other / name).write_bytes((start.policy / name).read_bytes())
    raw = {"kind": "train", "algorithm": "reranked"}
    inputs = {"policy": other, "values": start.step_values}
    with pytest.raises(DataError, match="name that policy in feature_policy"):
        run_stage(raw, inputs, tmp_path / "best", name="best")
    for algorithm in ("value_guided", "value_folded"):
        raw = {"kind": "train", "algorithm": algorithm}
        inputs = {"policy": other, "values": start.token_values, "dataset": start.dataset}
        with pytest.raises(DataError, match="these values read the hidden states of"):
            run_stage(raw, inputs, tmp_path / algorithm, name=algorithm)


def test_values_of_the_other_level_are_refused(start: Start, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no token-level value heads"):
        made(start, tmp_path / "guided", "value_guided", values=start.step_values)
    with pytest.raises(DataError, match="holds no step-level value heads"):
        made(start, tmp_path / "best", "reranked", values=start.token_values)


def test_nothing_trains_on_from_a_policy_that_decodes_by_values(start: Start, tmp_path: Path) -> None:
    """The result would be another behavior policy, without the values, under the name of the guided one."""
    made(start, tmp_path / "guided", "value_guided")
    made(start, tmp_path / "best", "reranked")
    for folder in (tmp_path / "guided", tmp_path / "best"):
        for raw in ({"algorithm": "bc", "max_steps": 1}, {"algorithm": "value_folded"}):
            inputs = {"policy": folder, "dataset": start.dataset, "values": start.token_values}
            if raw["algorithm"] == "bc":
                del inputs["values"]
            with pytest.raises(UsageError, match="decodes by values, which training would leave out"):
                run_stage({"kind": "train", **raw}, inputs, tmp_path / "out", name="out")
        with pytest.raises(UsageError, match="decodes by values"):
            run_stage(
                {"kind": "online", "algorithm": "grpo", "environment": "random_walks"}, {"policy": folder},
                tmp_path / "out", name="out",
            )  # fmt: skip
    outputs = run_stage(
        {"kind": "train", "algorithm": "reranked"}, {"policy": tmp_path / "guided", "values": start.step_values},
        tmp_path / "both", name="both",
    )  # fmt: skip
    assert outputs.artifacts["policy"] == "policy"
    evaluated, _ = played(tmp_path / "both", tmp_path / "evaluation", sampled=False)
    assert "success/it" in evaluated.metrics


def test_heads_with_hidden_layers_are_not_folded(start: Start, tmp_path: Path) -> None:
    shape = start.heads.shape
    heads = random_token_heads(states=shape.state_size, vocabulary=shape.vocabulary_size, hidden_layers=1)
    assert all(len(head.hidden) == 1 for head in heads.critics if isinstance(head, TokenHead))
    save(heads, start.policy, tmp_path / "values")
    with pytest.raises(UsageError, match="hidden_layers 0"):
        made(start, tmp_path / "folded", "value_folded", values=tmp_path / "values")


def test_a_folded_policy_is_asked_for_returns_like_the_one_that_it_is_made_of(start: Start, tmp_path: Path) -> None:
    shutil.copytree(start.policy, tmp_path / "policy")
    conditioning = ReturnConditioning(
        conditioning=ConditioningConfig(), rewards=RewardConfig(), edges=(0.5,), class_counts=(1, 1),
        default_target=1.0,
        returns=TrainingReturns(attempts=2, minimum=0.0, maximum=1.0, mean=0.5, deciles=(0.0,) * 5 + (1.0,) * 6),
    )  # fmt: skip
    conditioning.save(tmp_path / "policy")
    made(dataclasses.replace(start, policy=tmp_path / "policy"), tmp_path / "folded", "value_folded")
    assert load_conditioning(tmp_path / "folded" / "policy") == conditioning
